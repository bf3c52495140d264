"""Tables of numbers: what is read, what is refused, and where."""

import csv
import io
import re
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import AttnWarning, InputError
from attncli.loading import LoadedArray, read
from attncli.loading.quick import _BLOCK


def table(text, name="standard input"):
    data = text.encode() if isinstance(text, str) else text
    found = read("-", stdin=io.BytesIO(data))
    assert isinstance(found, LoadedArray)
    assert found.name == name
    return found


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_the_separator_is_found_by_looking(separator, newline, bom):
    text = bom + newline.join(separator.join(row) for row in (["1", "2.5"], ["-3e-2", "nan"]))
    np.testing.assert_array_equal(table(text).values, [[1, 2.5], [-0.03, np.nan]])


@pytest.mark.parametrize(
    ("text", "values", "rows", "columns"),
    [
        ("1,2\n", [[1, 2]], None, None),
        ("1\n2\n", [[1], [2]], None, None),
        ("\n\n1,2\n  \n3,4\n\n", [[1, 2], [3, 4]], None, None),
        (" 1 , 2\n", [[1, 2]], None, None),
        ("the,cat\n1,2\n", [[1, 2]], None, ("the", "cat")),
        ("x\n1\n2\n", [[1], [2]], None, ("x",)),
        ("the,1\ncat,2\n", [[1], [2]], ("the", "cat"), None),
        (",a,b\nr,1,2\ns,3,4\n", [[1, 2], [3, 4]], ("r", "s"), ("a", "b")),
        (",id,a\nr,0,5\ns,1,6\n", [[0, 5], [1, 6]], ("r", "s"), ("id", "a")),
        ("name,a,b\nr,1,2\ns,3,4\n", [[1, 2], [3, 4]], ("r", "s"), ("a", "b")),
        (",0,1\n0,5,6\n1,7,8\n", [[5, 6], [7, 8]], ("0", "1"), ("0", "1")),
        (",1,2\n1,5,6\n2,7,8\n", [[5, 6], [7, 8]], ("1", "2"), ("1", "2")),
        ("\t:\n:\t0.5\n", [[0.5]], (":",), (":",)),
        # pandas' own corner, written again; an index by name; R's row names without a corner.
        ('"Unnamed: 0","0","1"\n0,5,6\n1,7,8\n', [[5, 6], [7, 8]], ("0", "1"), ("0", "1")),
        ("V1\tV2\n1\t5\t6\n2\t7\t8\n", [[5, 6], [7, 8]], ("1", "2"), ("V1", "V2")),
        ("V1\tV2\nthe\t5\t6\ncat\t7\t8\n", [[5, 6], [7, 8]], ("the", "cat"), ("V1", "V2")),
        (",the,2\nthe,1,2\n2,3,4\n", [[1, 2], [3, 4]], ("the", "2"), ("the", "2")),
        ("[CLS],1\n[SEP],2\n", [[1], [2]], ("[CLS]", "[SEP]"), None),
        ("#,1\n#no comment,2\n", [[1], [2]], ("#", "#no comment"), None),
        ('"a,b",1\n"say ""hi""",2\n', [[1], [2]], ("a,b", 'say "hi"'), None),
        ("the;,;cat\n1;2;3\n", [[1, 2, 3]], None, ("the", ",", "cat")),
        ('"two\nlines",b\n1,2\n3,4\n', [[1, 2], [3, 4]], None, ("two\nlines", "b")),
        ("köpfe,größe\n1,2\n", [[1, 2]], None, ("köpfe", "größe")),
        ("inf,-Infinity\nNaN,+1\n", [[np.inf, -np.inf], [np.nan, 1]], None, None),
        ('"1","2"\n', [[1, 2]], None, None),
        ("a,b\r1,2\n3,4\n", [[1, 2], [3, 4]], None, ("a", "b")),
    ],
)
def test_names_are_told_from_numbers(text, values, rows, columns):
    found = table(text)
    np.testing.assert_array_equal(found.values, values)
    assert found.values.dtype == np.float64
    assert (found.row_labels, found.column_labels) == (rows, columns)


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ("1,2\n3,x\n", "line 2, column 2", "'x'"),
        ("1,2\n\n3,x\n", "line 3, column 2", "'x'"),
        ("1,x\n2,3\n", "line 1, column 2", "'x'"),
        ("1,2\n3\n", "line 2, column 2", "expected 2 cells, as in the first row; found 1"),
        ("a,b\n0.5,2,3\n0.7,5,6\n", "line 2, column 3", "expected 2 cells, as in the first row"),
        ("x,y\n1,1,2\n3,4,5\n", "line 2, column 3", "expected 2 cells, as in the first row"),
        ("true,false\nr1,true,false\n", "line 2, column 3", "expected 2 cells, as in the first"),
        ("a,b\n1,2\n3,4,5\n", "line 3, column 3", "expected 2 cells, as in the first row; found 3"),
        ("1,2\n3,4#5\n", "line 2, column 2", "'4#5'"),
        ("1,2\n#3,4\n", "line 2, column 1", "'#3'"),
        ("1,2\n3,x" + "9" * 200_000 + "\n", "line 2, column 2", "field larger"),
        ("1,,2\n", "line 1, column 2", "empty"),
        ("1,2,\n3,4,5\n", "line 1, column 3", "empty"),
        ("1,2,3\n4,5,\n", "line 2, column 3", "empty"),
        ("a,b\n1,\n2,\n", "line 2, column 2", "empty"),
        ("1,2,,\n3,,,\n", "line 2, column 2", "empty"),
        ("1,2\n\n,\n3,4\n,\n", "line 3, column 1", "empty"),
        ("1,2,\n,,\n3,4,\n", "line 2, column 1", "empty"),
        ("1,\n,\n3,\n", "line 2, column 2", "expected 1 cell, as in the first row; found 2"),
        ("1\t\n\t\n3\t\n", "line 2, column 2", "expected 1 cell, as in the first row; found 2"),
        (",\n,\n", "line 1, column 1", "empty"),
        ('"a,\nb",1,\n"c",2,\n', "line 2, column 3", "empty"),
        ("sep=;\n1;2\n3;x\n", "line 3, column 2", "'x'"),
        ("sep=,\n1;2\n3;4\n", "line 1, column 1", "names commas, but"),
        ("sep=;\n1,5\n2,5\n", "line 2, column 1", "'1,5'"),
        (",1,2\n3,4,5\n", "line 1, column 1", "empty"),
        (",1,2\n1,0.5,0.5\n0.2,0.3,0.5\n", "line 1, column 1", "empty"),
        (",1\n1,0\n3,0\n", "line 1, column 1", "empty"),
        ("1;2,5\n3;4,5\n", "line 1, column 2", "'2,5'"),
        ("1\t2,5\n3\t4,5\n", "line 1, column 2", "'2,5'"),
        ("1,2\n3,1e400\n", "line 2, column 2", "'1e400'"),
        ("inf,1e400\n", "line 1, column 2", "'1e400'"),
        ("-1e999;2\n", "line 1, column 1", "'-1e999'"),
        ("1_000,2\n", "line 1, column 1", "'1_000'"),
        ("１,2\n", "line 1, column 1", "'１'"),
        ("1,٢\n", "line 1, column 2", "'٢'"),
        ("1,2\u00a0\n", "line 1, column 2", "expected a number"),
        ("0x10,2\n3,4\n", "line 1, column 1", "expected a number; found '0x10'"),
        ("the,1\n2,3\n", "line 2, column 1", "'2'"),
        ("x\n", "line 1, column 1", "'x'"),
        ("1,\x1b[31m\n", "line 1, column 2", r"'\x1b[31m'"),
        ('a,b\n"1,2\n3,4' + "5" * 140_000, "line 3, column 2", "limit"),
    ],
)
def test_refusals_say_line_and_column(text, place, what):
    with pytest.raises(InputError) as caught:
        table(text)
    assert caught.value.message.startswith(f"standard input: {place}:")
    assert what in caught.value.message
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", ["index", "Idx", "id", "row", "Unnamed: 0"])
def test_a_column_named_as_an_index_that_counts_is_labels(name, start):
    rows = [[start + row, 0.5, row] for row in range(3)]
    text = f"{name},a,b\n" + "".join(f"{i},{x},{y}\n" for i, x, y in rows)
    with pytest.warns(AttnWarning, match="is read as row labels") as caught:
        found = table(text)
    assert name in str(caught[0].message)
    np.testing.assert_array_equal(found.values, [row[1:] for row in rows])
    assert found.row_labels == tuple(str(start + row) for row in range(3))
    assert found.column_labels == ("a", "b")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Unnamed: 0,a\n0.1,5\n0.3,6\n", True),
        ("id,a\n0,5\n2,6\n", True),  # does not count
        ("id,a\n0,5\n", True),  # one row does not count
        ("Token,a\n1990,5\n2000,6\n", True),
        ("id\n0\n1\n", False),  # it is all there is
        ("x,a\n0,5\n1,6\n", False),  # another name
        ("a,id\n5,0\n6,1\n", False),  # not the first
    ],
)
def test_other_columns_of_numbers_are_data(text, named):
    asked = pytest.warns(AttnWarning, match=r"is read as numbers. If it holds labels, leave the")
    with asked if named else nullcontext():
        found = table(text)
    lines = text.splitlines()
    np.testing.assert_array_equal(found.values, np.loadtxt(lines[1:], delimiter=",", ndmin=2))
    assert found.column_labels == tuple(lines[0].split(","))


@pytest.mark.parametrize("corner", ["", "Unnamed: 0"])  # the second is what pandas makes of it
@pytest.mark.parametrize("names", ["2019,2020", "0,5", "7.5,x", "1,2", "0,1"])
def test_an_empty_corner_above_words_heads_columns_of_any_names(corner, names):
    text = f"{corner},{names}\nThe,0.5,1\ncat,0.25,2\n"
    warned = names in ("2019,2020", "0,5")
    told = pytest.warns(AttnWarning, match="is read as the names of the columns, since its first")
    with told if warned else nullcontext():
        found = table(text)
    np.testing.assert_array_equal(found.values, [[0.5, 1], [0.25, 2]])
    assert (found.row_labels, found.column_labels) == (("The", "cat"), tuple(names.split(",")))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("token_id,a\n0,0.5\n1,0.25\n2,1\n", True),
        ("user,a\n100,0.5\n101,0.25\n102,1\n", True),
        ("x,a\n100,0.5\n102,0.25\n103,1\n", False),
        ("x,a\n0.5,0.5\n1.5,0.25\n2.5,1\n", False),
        ("x,a\n1e300,0.5\n1e300,0.25\n1e300,1\n", False),
    ],
)
def test_a_first_column_that_counts_may_be_labels(text, named):
    told = pytest.warns(AttnWarning, match="is read as numbers. If it holds labels")
    with told if named else nullcontext():
        found = table(text)
    assert found.values.shape == (3, 2)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("2019,2020,2021\n0.5,1,2\n", True),
        ("2019,2020,2021\n5,1,2\n", False),  # whole numbers, as the first row
        ("2019,2020,2023\n0.5,1,2\n", False),
        ("2019,2020\n0.5,1\n", False),
    ],
)
def test_a_first_row_that_counts_may_be_a_header(text, named):
    told = pytest.warns(AttnWarning, match="the first row counts 2019 to 2021 as a header might")
    with told if named else nullcontext():
        found = table(text)
    assert len(found.values) == 2


@pytest.mark.parametrize(
    "text", ["1, 2, 3, 4\n5, 6, 7, 8\n", "1,2, 3.5,4\n5,6, 7,8\n", "1,2\n3,4\n"]
)
def test_spaces_after_commas_are_no_decimals(text):
    np.testing.assert_array_equal(table(text).values, np.loadtxt(text.splitlines(), delimiter=","))


def test_a_label_may_hold_a_semicolon():
    found = table("a;b,0.1,0.2\nc;d,0.3,0.4\n")
    assert (found.row_labels, found.values.tolist()) == (("a;b", "c;d"), [[0.1, 0.2], [0.3, 0.4]])


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1 2 3\n4 5 6\n", "not with spaces"),
        ("|d1|d2\nThe|1.2|0.3\ncat|0.5|1.3\n", "semicolons or tabs, not with |"),
        ("|d1|d2\nThe|1,2|0,3\ncat|0,5|1,3\n", "semicolons or tabs, not with |"),
        ("sep=|\n|d1|d2\nThe|1.2|0.3\n", "semicolons or tabs, not with |"),
        ("The|1.2|0.3\ncat|0.5|1.3\n", "semicolons or tabs, not with |"),
        ("0,5;0,25\n1,5;2,5\n", "decimal point"),
        ("1,5;2\n0,5;3\n", "decimal point"),
        ("a;b\n1,5;2\n0,5;3\n", "decimal point"),
        ("the;1,5\ncat;2,5\n", "decimal point"),
        ("the\t1,5\ncat\t2,5\n", "decimal point"),
        ("1,50, -2,00, 3,1\n0,5, 1,25, 2,0\n", "decimal point"),
        ("a, 1,5, 2,5\nb, 3,5, 4,5\n", "decimal point"),
        ("1,5e3, 2,5e3\n3,5e1, 4,5e2\n", "decimal point"),
        ("the,1\n2,3\n", "first cell is empty"),
        ("null,1\n2,3\n", "mend 'null' in the first row"),
        ("1,00E+00;1\n2,00E+00;2\n", "decimal point"),
        ("1,00E+00;5,00E-01\n2,00E+00;0,00E+00\n", "decimal point"),
        ("1,5E+00;0\n0;1\n", "decimal point"),
        ("1;-2,5 %\n1;3\n", "plain digits"),
        ("50%;25%\n25%;3\n", "not 50% or 1/2; if the first column holds labels, add a header row"),
        ("$1.50,$1\n$2,$3\n", "plain digits"),
        ("1.0D+00,1.0D+00\n2.0D+00,3\n", "plain digits"),
        ("1,2 $\n3,4\n", "plain digits"),
        ("#DIV/0!,1\n#DIV/0!,4\n", "a spreadsheet had an error there"),
        ("#N/A,1\n2,3\n", "a spreadsheet had an error there"),
        ("#N/A,#N/A\n2,3\n", "a spreadsheet had an error there"),
        ("1,#\u00a1VALOR!\n2,3\n", "a spreadsheet had an error there"),
        ("1.234,5;2\n1.678,5;4\n", "plain digits"),
        ("1,#WERT!\n2,3\n", "a spreadsheet had an error there"),
        ("1;Err:502\n2;3\n", "a spreadsheet had an error there"),
        ("# my query\n1,2\n", "# does not start a comment"),
        ("# exported, run 3\n0.1,0.2,0.3\n", "# does not start a comment"),
        ("sep=,x\n1,2,3\n", "write one comma, semicolon or tab behind sep="),
        ("sep=|\n1,2,3\n", "write one comma, semicolon or tab behind sep="),
        ('"1,234.5",2\n3,4\n', "plain digits"),
        ('"1,234",2\n3,4\n', "no thousands separators, and decimal points"),
        ("\u22121.5,2\n3,4\n", "the minus of the keyboard"),
        ("1\u00a0000,2\n3,4\n", "plain digits"),
        ('1,"2\n' + "3" * 140_000, "quotation mark"),
        ("1,2\n,\n3,4\n", "delete the rows whose cells are all empty"),
        ("1,2\n,,\n3,4\n", "delete the rows whose cells are all empty"),
        (";a;b\nThe;1;2\n;;\ncat;3;4\n", "delete the rows whose cells are all empty"),
        (";a;b\nThe;1;2\ncat;;\n", "fill in the numbers of 'cat', or delete its row"),
        ("1,2,\n3,4,5\n", "fill the hole with a number"),
        ("1,,2\n3,4,5\n", "fill the hole with a number"),
        ("a,b\n1,NA\n", "fill the hole with a number"),
        (" a b\nThe 0.1 2\n", "not with spaces"),
        ("My table;;;\n;a;b;c\nx;1;2;3\n", "if the first line is a title"),
        (";d1;d2\nThe;1;2;\ncat;3;4;\n", "a separator that the first row lacks"),
        ("d1;d2\n1;2;\n3;4;\n", "a separator that the first row lacks"),
        ('a,b\n1,2,,""\n3,4,,""\n', "a separator that the first row lacks"),
        ("1,2\n3,4,\n", "a separator that the first row lacks"),
        (",word,a\n0,The,0.1\n1,cat,0.2\n", "if the second column holds labels"),
        ("1_000,2\n3,4\n", "without underscores"),
        ("\uff11,2\n3,4\n", "the digits 0 to 9"),
        ('1 , "2"\n3,4\n', "delete the spaces before the quotation mark"),
    ],
)
def test_common_mistakes_get_a_hint(text, hint):
    with pytest.raises(InputError) as caught:
        table(text)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "date",
    [
        *("01. Feb", "1-Feb", "Jan 02", "02.Jan", "Jan-02", "1. M\u00e4r", "1-Feb-24", "2 avr."),
        *("01.02.2024", "1.2.24", "01.02.", "2/1/2024", "2024-02-01", "2024-02-01 00:00:00"),
    ],
)
def test_a_date_is_told_to_be_a_spreadsheet_s(date):
    with pytest.raises(InputError) as caught:
        table(f";a;b\nThe;1;2\ncat;{date};3\n")
    assert f"line 3, column 2: expected a number; found '{date}'" in caught.value.message
    assert "made a date of it" in caught.value.hint
    assert table(f";a;b\nThe;1;2\n{date};3;4\n").row_labels == ("The", date)


@pytest.mark.parametrize("cell", ["1/2", "1.2.3", "12-34", "3 apples", "May", "2024-02"])
def test_what_is_no_date_is_not_told_to_be_one(cell):
    with pytest.raises(InputError) as caught:
        table(f";a;b\nThe;1;2\ncat;{cell};3\n")
    assert "date" not in (caught.value.hint or "")


@pytest.mark.parametrize("label", ["50%", "1/2", "\u20ac1.50", "US$5", "(1.5)", "1.0D+00", "1.5f"])
def test_labels_that_may_all_be_numbers_of_another_notation_are_told(label):
    told = pytest.warns(AttnWarning, match="is read as labels. If it holds numbers, write them")
    for text in (f"{label},1,2\n{label},3,4\n", f"price,x,y\n{label},1,2\n{label},3,4\n"):
        with told:
            found = table(text)
        assert found.row_labels == (label, label)
        assert found.values.tolist() == [[1, 2], [3, 4]]
    with told:
        assert table(f"{label},{label}\n1,2\n3,4\n").column_labels == (label, label)
    for text in (
        f"token,x,y\n{label},1,2\n{label},3,4\n",
        f"{label},1,2\nthe,3,4\n",
        f"the,1,2\n{label},3,4\n",
        f"{label},true,false\n{label},false,true\n",
        f",{label}\n{label},1\n",
    ):
        assert label in table(text).row_labels
    assert table(f"{label},{label}\ntrue,false\n").column_labels == (label, label)


def test_errors_of_a_spreadsheet_may_be_names_beside_words():
    assert table("the,cat,#N/A\n1,2,3\n").column_labels == ("the", "cat", "#N/A")


@pytest.mark.parametrize(
    "header", ["the,price,is,$5", "on,\u20ac,<s>,50%", "a,b,c,3/4", "#wow!,.f,#1,x"]
)
def test_tokens_that_look_like_numbers_are_names_among_others(header):
    found = table(f"{header}\n1,0,0,0\n1,1,0,0\n")
    assert found.column_labels == tuple(header.split(","))
    assert found.row_labels is None


@pytest.mark.parametrize("label", ["50", "50%", "1/2", "#N/A"])
def test_below_an_empty_corner_labels_may_look_like_numbers(label):
    found = table(f",a,b\n{label},1,2\nthe,3,4\n")
    assert found.row_labels == (label, "the")


@pytest.mark.parametrize("label", ["3D", "#1", "a/b", "1st", "5-6"])
def test_words_with_digits_are_labels(label):
    assert table(f"{label},1\nthe,3\n").row_labels == (label, "the")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('1,"2\n3,4\n', "line 1, column 2"),
        ('1,2\n1,"2\r\n3"\n5,6\n', "line 2, column 2"),
        ('1,2\n"1\n",x\n5,6\n', "line 3, column 2"),
        ('1,2\n"3\n4",5\n', "line 2, column 1"),
        ('a,1\n"b\nc","1\n2"\n', "line 3, column 2"),
        ('1,2\n3,"x\n\n"\n4,5\n', "line 2, column 2"),
        ('1,2\n3,"x\n\n\n', "line 2, column 2"),
    ],
)
def test_a_cell_of_several_lines_is_told_where_it_begins(text, place):
    with pytest.raises(InputError, match=f": {place}: expected a number; found"):
        table(text)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xff\xfe1\x00,\x002\x00", "UTF-16"),
        ("1,2\n3,4\n".encode("utf-16"), "UTF-16"),
        ("1,2\n3,4\n".encode("utf-16-le"), "line 1: expected text; found a NUL"),
        (b"1,2\n3,\x004\n", "line 2: expected text; found a NUL byte (byte 3 of the line)"),
        (
            b"a,b\n1,2\n\xe9,4\n",
            "line 3: expected UTF-8 text; found the byte 0xe9 (byte 1",
        ),
        (
            b"caf\xe9,b\n1,2\n",
            "line 1: expected UTF-8 text; found the byte 0xe9 (byte 4",
        ),
        (b"1,2\xa0\n", "line 1: expected UTF-8 text; found the byte 0xa0 (byte 4"),
        (b"", "is empty"),
        (b" \n\r\n", "is empty"),
    ],
)
def test_other_encodings_are_refused(data, what):
    with pytest.raises(InputError, match=re.escape(what)):
        table(data)


def test_a_label_that_looks_like_json_stays_a_csv(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("[CLS],[SEP]\n1,2\n")
    assert read(str(path)).column_labels == ("[CLS]", "[SEP]")


numbers = st.floats(width=64)
words = st.text(min_size=1, max_size=5).filter(
    lambda word: word.strip() and "\0" not in word and "\r" not in word and word.isprintable()
)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_what_csv_writes_is_read_bit_for_bit(data):
    """The oracle is the csv module and repr, which round-trips every double."""
    width = data.draw(st.integers(1, 5))
    matrix = data.draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1))
    labelled = data.draw(st.booleans())
    out = io.StringIO()
    writer = csv.writer(out, delimiter=data.draw(st.sampled_from(",;\t")))
    if labelled:
        header = data.draw(st.lists(words, min_size=width, max_size=width))
        writer.writerow(["", *(f"k {word}" for word in header)])
    for number, row in enumerate(matrix):
        writer.writerow(([f"q {number}"] if labelled else []) + [repr(cell) for cell in row])
    found = table(out.getvalue())
    expected = np.array(matrix)
    assert found.values.shape == expected.shape
    np.testing.assert_array_equal(
        found.values.view(np.uint64)[~np.isnan(expected)],
        expected.view(np.uint64)[~np.isnan(expected)],
    )
    assert np.isnan(found.values[np.isnan(expected)]).all()
    if labelled:
        assert found.row_labels == tuple(f"q {number}" for number in range(len(matrix)))
        assert found.column_labels == tuple(f"k {word}" for word in header)


PLAIN = ["0.25", "-1.5e-7", "3", "-17.000000000000000001", "1E+5", "123456789012345678901"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "cell",
    "-0| 2|-0.0|9007199254740993|+1|.5|1.|007|inf|-nan|4.9e-324|1e-400|2.2250738585072011e-308|0."
    f"{'1234567890' * 90}".split("|"),
)
def test_long_tables_are_read_as_short_ones(separator, newline, cell):
    """The oracle is float(), in a table too long for the patient reader alone."""
    rows = [PLAIN] * 3000
    rows[1700] = [*PLAIN[:5], cell]
    found = table(newline.join(map(separator.join, rows)) + newline).values
    assert found.shape == (3000, 6)
    expected = np.array([[float(one) for one in row] for row in rows])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("1,2,3,4,5", "line 1701, column 6: expected 6 cells, as in the first row; found 5"),
        ("1,2,3,4,5,6,7", "line 1701, column 7: expected 6 cells, as in the first row; found 7"),
        ("1,2,3],[4,5,6", "line 1701, column 3: expected a number; found '3]'"),
        ("1,2,true,4,5,6", "line 1701, column 3: expected a number; found 'true'"),
        ("1,2,null,4,5,6", "line 1701, column 3: expected a number; found 'null'"),
        ("1,2,,4,5,6", "line 1701, column 3: expected a number; found an empty cell"),
        ("1,2,3 4,4,5,6", "line 1701, column 3: expected a number; found '3 4'"),
        ("1,2,1e400,4,5,6", "line 1701, column 3: '1e400' is beyond the range of float64"),
    ],
)
def test_mistakes_in_long_tables_have_a_place(row, place):
    rows = [",".join(PLAIN)] * 3000
    rows[1700] = row
    with pytest.raises(InputError, match=re.escape(place)):
        table("\n".join(rows))


def test_a_table_whose_width_changes_between_two_blocks_is_refused():
    row = ",".join(PLAIN)
    rows = [row] * (_BLOCK // (len(row) + 1) + 1)
    with pytest.raises(InputError, match=f"line {len(rows) + 1}, column 6: expected 6 cells"):
        table("\n".join([*rows, *["1,2,3,4,5"] * 9]))


@pytest.mark.parametrize(("separator", "newline"), [(",", "\n"), (";", "\r\n"), ("\t", "\n")])
@pytest.mark.parametrize("label", ["猫", "", " a ", "#", '"', "nan?", "-"])
def test_long_tables_with_labels_are_read_as_short_ones(separator, newline, label):
    """The oracle is the csv module, line by line."""
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=newline)
    writer.writerow(["", *"abcdef"])
    for at in range(3000):
        writer.writerow([label if at == 1700 else f"q{at}", *PLAIN])
        if at == 2000:
            out.write(newline)
    found = table(out.getvalue())
    rows = [row for row in csv.reader(io.StringIO(out.getvalue()), delimiter=separator) if row]
    assert found.row_labels == tuple(row[0] for row in rows[1:])
    assert found.row_labels[1700] == label
    np.testing.assert_array_equal(found.values, [list(map(float, row[1:])) for row in rows[1:]])


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("7,1,2", "line 1702, column 1: expected a word, as above; found the number '7'"),
        ("q,1", "line 1702, column 3: expected 3 cells, as in the first row; found 2"),
        ("q", "line 1702, column 2: expected 3 cells, as in the first row; found 1"),
        ("q,1,2,3", "line 1702, column 4: expected 3 cells, as in the first row; found 4"),
        ("q,1,x", "line 1702, column 3: expected a number; found 'x'"),
        ("q,,", "line 1702, column 2: expected a number; found an empty cell"),
        ("\xff,1,2", "line 1702"),
    ],
)
def test_mistakes_in_long_tables_with_labels_have_a_place(row, place):
    lines = ["name,a,b", *["the,0.25,-1.5e-7"] * 3000]
    lines[1701] = row
    with pytest.raises(InputError, match=re.escape(place)):
        table("\n".join(lines).encode("latin-1"))


def test_blank_lines_in_a_long_table_are_passed_over():
    rows = [",".join(PLAIN)] * 3000
    rows[1700] = ""
    assert table("\n".join(rows)).values.shape == (2999, 6)


def test_a_header_does_not_change_the_numbers(tmp_path):
    matrix = np.random.default_rng(5).standard_normal((40, 7))
    bare, headed, quoted = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.csv"
    np.savetxt(bare, matrix, delimiter=",", fmt="%.17g")
    headed.write_text("a,b,c,d,e,f,g\n" + bare.read_text())
    quoted.write_text(
        "\n".join(f'"q,{at}",{row}' for at, row in enumerate(bare.read_text().splitlines()))
    )
    for path in (bare, headed, quoted):
        np.testing.assert_array_equal(read(str(path)).values, matrix)


@pytest.mark.parametrize(
    ("text", "values", "rows", "columns"),
    [
        ("TRUE,FALSE\nFALSE,TRUE\n", [[1, 0], [0, 1]], None, None),
        ("true, False \n", [[1, 0]], None, None),
        ("True\nFalse\n", [[1], [0]], None, None),
        ("a,b\nTRUE,FALSE\n", [[1, 0]], None, ("a", "b")),
        ("the,TRUE,FALSE\ncat,TRUE,TRUE\n", [[1, 0], [1, 1]], ("the", "cat"), None),
        ("the,TRUE,FALSE\n", [[1, 0]], ("the",), None),
        (",0,1\n0,True,False\n1,True,True\n", [[1, 0], [1, 1]], ("0", "1"), ("0", "1")),
        ("name;a;b\nr;true;false\n", [[1, 0]], ("r",), ("a", "b")),
    ],
)
def test_a_table_of_true_and_false_is_booleans(text, values, rows, columns):
    found = table(text)
    assert found.values.dtype == np.bool_
    np.testing.assert_array_equal(found.values, values)
    assert (found.row_labels, found.column_labels) == (rows, columns)


@pytest.mark.parametrize("text", ["the,true,cat\n1,2,3\n", "true,cat\n1,2\n"])
def test_true_among_other_names_is_a_name(text):
    assert table(text).column_labels == tuple(text.splitlines()[0].split(","))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("TRUE,FALSE\nTRUE,1\n", "line 2, column 2: expected true or false; found '1'"),
        ("true,fales\nfalse,true\n", "line 1, column 2: expected true or false; found 'fales'"),
        ("yes,true,no\nfalse,true,true\n", "line 1, column 1: expected true or false; found 'yes'"),
        ("TRUE,FALSE\nyes,TRUE\n", "line 2, column 1: expected true or false; found 'yes'"),
        ("TRUE,1\nFALSE,0\n", "line 1, column 1: expected a number; found 'TRUE'"),
        ("1,0\nTRUE,0\n", "line 2, column 1: expected a number; found 'TRUE'"),
        ("yes,no\nno,yes\n", "line 2, column 2: expected a number; found 'yes'"),
        ("WAHR;FALSCH\nFALSCH;WAHR\n", "line 2, column 2: expected a number; found 'WAHR'"),
        ("VRAI;FAUX\nFAUX;VRAI\n", "line 2, column 2: expected a number; found 'VRAI'"),
        ("1;0\nfalso;1\n", "line 2, column 1: expected a number; found 'falso'"),
    ],
)
def test_mixed_truths_are_refused_with_what_to_write(text, place):
    with pytest.raises(InputError) as caught:
        table(text)
    assert caught.value.message == f"standard input: {place}"
    assert caught.value.hint == "in a mask, write 1 for true and 0 for false, in every cell"


@pytest.mark.parametrize(
    ("text", "cell"), [("Q = [[1,0,1]]\n", "1]]"), ("Q = [[1,0,1],\n [1,1,0]]\n", "1]")]
)
def test_the_brackets_of_a_printed_list_are_told_of(text, cell):
    with pytest.raises(InputError, match=re.escape(f"found '{cell}'")) as caught:
        table(text)
    assert caught.value.hint.startswith("write the numbers without brackets, or save the array")


@pytest.mark.parametrize(
    "text", ["0,1,2\n0.5,0.1,0.2\n", "0\t1\n5\t6\n7\t8\n", "0,1,2\n1,0,1\n0,1,1\n"]
)
def test_a_first_row_that_counts_is_data_and_told(text):
    with pytest.warns(AttnWarning, match="the first row counts 0 to .* header=False"):
        found = table(text)
    assert found.column_labels is None
    assert found.values[0].tolist() == list(range(len(found.values[0])))


@pytest.mark.parametrize("text", ["I,0,1,2\nyou,1,0,1\n", "token,0,1,2\n"])
def test_a_labelled_row_that_counts_is_data_and_told(text):
    lone = text.count("\n") == 1  # nothing stands below it
    told = pytest.warns(AttnWarning, match="the first row counts 0 to .* no index_label")
    with nullcontext() if lone else told:
        found = table(text)
    assert found.row_labels == tuple(line.split(",")[0] for line in text.split())


@pytest.mark.parametrize("corner", ["token", "Word", "index", " label "])
def test_a_row_that_counts_behind_the_name_of_labels_is_a_header(corner):
    found = table(f"{corner},0,1\nI,1,0\nyou,0,1\n")  # pandas: index_label
    assert (found.row_labels, found.column_labels) == (("I", "you"), ("0", "1"))
    assert found.values.tolist() == [[1, 0], [0, 1]]


def test_a_title_above_a_table_is_told():
    with pytest.raises(InputError, match="line 2, column 2: expected 1 cell") as caught:
        table("Queries\n,a,b\nx,1,2\n")
    assert caught.value.hint == "if the first line is a title, delete it"
    with pytest.raises(InputError, match="line 2, column 2: expected 1 cell") as caught:
        table("7\n1,2\n")
    assert caught.value.hint is None


def test_indices_below_the_name_of_labels_are_labels():
    found = table("token,0,1\n0,0.5,2\n1,3,4\n")
    assert (found.row_labels, found.column_labels) == (("0", "1"), ("0", "1"))
    assert found.values.tolist() == [[0.5, 2], [3, 4]]


def test_other_numbers_behind_it_are_not():
    found = table("token,1,2\nI,1,0\n")
    assert (found.row_labels, found.column_labels) == (("token", "I"), None)


def test_two_numbers_of_a_token_may_be_0_and_1():
    assert table("I,0,1\nyou,1,0\n").row_labels == ("I", "you")


@pytest.mark.parametrize(
    "text",
    ["0,1,2\n3,4,5\n", "0,1\n1,0\n", "0,1,2\n", "0\n7\n", "0,1.0\n5,6\n", "1,0\n5,6\n"],
)
def test_numbers_that_do_not_only_count_are_not_told(text):
    assert table(text).column_labels is None  # a warning would be an error here


@pytest.mark.parametrize(
    ("text", "line"), [("token,x\nthe,1\n1990,2\n", 3), ("label,x\n1990,1\nthe,2\n", 3)]
)
def test_words_and_numbers_under_a_header_may_be_labels(text, line):
    with pytest.raises(InputError, match=f"line {line}, column 1") as caught:
        table(text)
    hint = "if the first column holds labels, leave the first cell of the header empty"
    assert caught.value.hint == hint
    found = table(text.replace("token", "").replace("label", ""))
    assert set(found.row_labels) == {"the", "1990"}


def test_long_text_that_was_printed_alike_is_known_by_its_beginning():
    assert table(",".join(["0.1234"] * 2000)).printed == "%.4f"


def test_names_with_colons_behind_an_empty_corner_are_no_yaml():
    found = read("-", stdin=io.BytesIO(b"\tq:\tk:\n0\t0.5\t0.5\n"))
    assert found.column_labels == ("q:", "k:")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("sep=;", "the;cat,\n1;2\n"),  # by looking, the comma would make as many cells
        ("SEP=,", "the,cat;\n1,2\n"),
        ('"sep=\t"', "the\tcat,\n1\t2\n"),
        ("sep=; ", "the;cat,\n1;2\n"),
    ],
)
@pytest.mark.parametrize("start", ["", "\ufeff"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_first_line_may_name_the_separator(start, end, line, text):
    found = table(start + (line + "\n" + text).replace("\n", end))
    assert found.values.tolist() == [[1, 2]]
    assert [name.rstrip(",;") for name in found.column_labels] == ["the", "cat"]


@pytest.mark.parametrize(
    ("line", "text", "separator"),
    [
        (
            "sep=,",
            ";d1;d2\nThe;1.2;0.3\n",
            "semicolons",
        ),
        (
            "sep=,",
            ";d1;d2\nThe;1,2;0,3\n",
            "semicolons",
        ),
        ("sep=,", '"";"d1"\n"The";"1"\n', "semicolons"),
        ("sep=;", ",d1,d2\n\nThe,1.2,0.3\n", "commas"),
        ("sep=;", "\td1\nThe\t1\n", "tabs"),
        ("sep=\t", "1,2,3\n3,4,5\n", "commas"),
    ],
)
def test_a_first_line_that_names_another_separator_is_told(line, text, separator):
    with pytest.raises(InputError) as caught:
        table(f"{line}\n{text}")
    named = {"sep=,": "commas", "sep=;": "semicolons", "sep=\t": "tabs"}[line]
    what = f"names {named}, but the rows are separated by {separator}"
    assert what in caught.value.message
    assert "first line" in caught.value.hint


@pytest.mark.parametrize("text", ['"a,b"\n1\n2\n', "a,b\n1\n2\n", "a,b;c\n1;2\n"])
def test_a_name_may_hold_what_the_first_line_does_not_name(text):
    assert table("sep=;\n" + text).column_labels[0] == "a,b"


def test_a_lone_line_that_names_a_separator_holds_no_numbers():
    with pytest.raises(InputError, match="holds no numbers"):
        table("sep=;\n")


EXPORTED = [
    ["1,2", "3,4"],
    ["the,cat", "1,2"],
    [",the,cat", "a,1,2", "b,3,4"],
    ["the,cat", "r,1,2", "s,3,4"],
    ['"a,b",1', '"say ""hi""",2'],
    ["true,false", "false,true"],
    [",".join(["0.25"] * 6)] * 20_000,  # longer than what is read at once
    [f"r{row},0.5" for row in range(9)],
]


@pytest.mark.parametrize("rows", EXPORTED)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("every", "last"),
    [
        (",", []),
        (",,", []),
        (", ", []),
        ("", [",,", " , ", "", ",,"]),
        (",", [",,,", ","]),
        (',""', []),
        (',,""', ['"","",""']),
        ("", ['"",', "", ',""']),
    ],
)
def test_empty_columns_and_rows_at_the_end_are_none(rows, newline, every, last):
    """The oracle is the same table without them."""
    expected = table(newline.join(rows))
    lines = [row + every for row in rows]
    lines.insert(1, "")
    for ended in (newline, ""):
        found = table(newline.join([*lines, *last]) + ended)
        np.testing.assert_array_equal(found.values, expected.values)
        assert found.values.dtype == expected.values.dtype
        assert found.row_labels == expected.row_labels
        assert found.column_labels == expected.column_labels


@pytest.mark.parametrize("end", ['"";"', '"""";""', '";""', '"";;"\n""'])
def test_quotation_marks_around_no_empty_cell_are_not_passed_over(end):
    with pytest.raises(InputError):
        table(f"1;2\n3;4\n{end}\n")


@pytest.mark.parametrize("name", ['""""', '"a;"""', '"""a"'])
def test_quotation_marks_in_a_name_before_empty_cells_are_kept(name):
    assert table(f'{name};""\n1;""\n').column_labels == (name[1:-1].replace('""', '"'),)


def test_a_name_of_no_letters_above_numbers_is_a_column():
    assert table("a,\n1,2\n").column_labels == ("a", "")


def test_a_lone_empty_cell_is_told_without_advice_on_separators():
    with pytest.raises(InputError, match="expected a number; found an empty cell") as caught:
        table("a,1\nb,\n")
    assert caught.value.hint is None


def test_decimal_commas_beside_semicolons_separate_nothing():
    with pytest.raises(InputError, match="found '1,5'"):
        table("1,5;2,5\n3,5;4,5\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (";d1;d2;;note\nThe;1.2;0.3;;\ncat;0.5;1.3;;see book\n", "line 2, column 4"),
        (";d1;note;d2\nThe;1;;2\ncat;3;see book;4\n", "line 2, column 3"),
        ("word;tag;d1\nThe;DT;1\ncat;NN;2\n", "line 2, column 2"),
        ("d1;note\n1;\n2;NA\n", "line 2, column 2"),
    ],
)
def test_a_column_without_numbers_is_told_to_be_one(text, place):
    with pytest.raises(InputError, match=place) as caught:
        table(text)
    assert caught.value.hint == "delete each column that holds no numbers, as this one"


@pytest.mark.parametrize(
    "text",
    [
        ";a;b\nThe;1;\ncat;2;4\n",
        ";a;b\nThe;1;\ncat;2;4,5\n",  # a number that is to be mended
        ";a;b\nThe;1;\ncat;2;0x1F\n",
        ";a;b\nThe;1;\n",
        ';a;b\nThe;1;\ncat;2;\n"sat;3;\n',
    ],
)
def test_a_hole_in_a_column_of_numbers_is_to_be_filled(text):
    with pytest.raises(InputError, match="line 2, column 3") as caught:
        table(text)
    assert caught.value.hint.startswith("fill the hole with a number")


def test_a_first_row_like_a_number_among_words_is_one_label_of_several():
    with pytest.raises(InputError) as caught:
        table("0x1F,1\nx,2\n3,4\n")
    assert "expected a word, as above; found the number '3'" in str(caught.value)
    assert "mend '0x1F' in the first row" in caught.value.hint


@pytest.mark.parametrize("cell", [".1.2", "-.5x", "0x1F", "+1d3"])
def test_a_first_cell_that_begins_as_a_number_is_one(cell):
    with pytest.raises(InputError) as caught:
        table(f"{cell},1\n2,3\n")
    assert f"line 1, column 1: expected a number; found '{cell}'" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "–1,–2\n3,0\n",
        "-∞,-∞\n0,0\n",
        "NA,NA\n0,1\n",
        "null,null\n1,2\n",
        "-,-\n0,1\n",
        "#####,####\n1,2\n",
        '"1,234,567","2,345,678"\n500,600\n',
        '"1,234,567",0.1\n"2,345,678",0.2\n',
        "1.234.567;2\n2.345.678;3\n",
        '"1,23,456",2\n"2,34,567",3\n',
        '"1"2,3\n4,5\n',
    ],
)
def test_a_first_row_or_column_of_badly_written_numbers_is_no_header(text):
    """What is left would be broadcast: one row of a bias to every query."""
    with pytest.raises(InputError, match=r"line 1, column"):
        table(text)


@pytest.mark.parametrize(
    "text",
    [
        '="1",="2"\n3,4\n',
        "“1”,“2”\n3,4\n",
        "1.5-,2.5-\n3,4\n",
        "0x10,0x20\n1,2\n",
        "1.5 m,2.5 m\n1,2\n",
        "<0.01,<0.01\n1,2\n",
        "\ufeff\ufeff1\n2\n3\n",
        '"$1,234.50",2\n"$2,234.50",3\n',
        "V1,V2\nNA,2\nNA,3\n",
        "0.5 dB,1\n0.7 dB,2\n",
    ],
)
def test_names_that_look_like_numbers_of_another_notation_are_told(text):
    with pytest.warns(AttnWarning, match="is read as labels. If it holds numbers"):
        table(text)


@pytest.mark.parametrize(
    "text",
    [
        "2nd,3rd\n1,2\n",
        "3D,4D\n1,2\n",
        ",-,NA\nthe,1,2\n",
        "token,d0\nNA,1\n-,2\n",
        "the,1\n-,2\n",
        "2-gram of words,1\n3-gram of words,2\n",
    ],
)
def test_usual_names_are_names(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = table(text)
    assert found.row_labels or found.column_labels


def test_a_token_that_is_a_quotation_mark_swallows_no_rows():
    text = 'the,1,2\n",3,4\nhi,5,6\n",7,8\nend,9,10\n'
    with pytest.raises(InputError, match=r"line 2, column 1: expected a label") as caught:
        table(text)
    assert 'written four times: """"' in str(caught.value)
    # Separators and line ends by themselves are tokens.
    assert table('",",1\n",\n",2\n"a\nb",3\n').row_labels == (",", ",\n", "a\nb")
    assert table('the,1,2\n"""",3,4\n').row_labels == ("the", '"')


@pytest.mark.parametrize("start", [0, 1])
def test_an_index_without_a_header_is_told(start):
    rows = [f"{at + start},{at / 2 + 0.25},7.5" for at in range(4)]
    with pytest.warns(
        AttnWarning, match=f"first column counts {start}, {start + 1}, … as an index"
    ):
        assert table("\n".join(rows)).values.shape == (4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = [f"{at + start},{at * 2},7" for at in range(4)]
        assert table("\n".join(whole)).values.shape == (4, 3)


def test_numbers_name_rows_and_columns_where_they_are_the_same():
    """Weights between tokens that are known by their ids."""
    found = table(",101,2023\n101,0.5,0.5\n2023,0.2,0.8\n")
    assert found.row_labels == found.column_labels == ("101", "2023")
    for text in (",101,2023\n5,0.5,0.5\n2023,0.2,0.8\n", ",101,2023\n101,0.5,0.5\n7,0.2,0.8\n"):
        with pytest.raises(InputError, match="empty cell") as caught:
            table(text)
        assert "or be the same of rows and columns" in str(caught.value)
