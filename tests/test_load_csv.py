"""Tables of numbers: what is read, what is refused, and where."""

import csv
import io
import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import AttnWarning, InputError, UsageError
from attncli.loading import LoadedArray, read


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
        ("1,,2\n", "line 1, column 2", "empty"),
        ("1,2,\n3,4,5\n", "line 1, column 3", "empty"),
        ("1,2,3\n4,5,\n", "line 2, column 3", "empty"),
        ("a,b\n1,\n2,\n", "line 2, column 2", "empty"),
        ("1,2,,\n3,,,\n", "line 2, column 2", "empty"),
        ("1,2\n\n,\n3,4\n,\n", "line 3, column 1", "empty"),
        ("1,2,\n,,\n3,4,\n", "line 2, column 1", "empty"),
        ("sep=;\n1;2\n3;x\n", "line 3, column 2", "'x'"),
        ("sep=,\n1;2\n3;4\n", "line 2, column 1", "'1;2'"),
        (",1,2\n3,4,5\n", "line 1, column 1", "empty"),
        (",1,2\n1,0.5,0.5\n0.2,0.3,0.5\n", "line 1, column 1", "empty"),
        (",1\n1,0\n3,0\n", "line 1, column 1", "empty"),
        ("1,2\n3,1e400\n", "line 2, column 2", "'1e400'"),
        ("inf,1e400\n", "line 1, column 2", "'1e400'"),
        ("-1e999;2\n", "line 1, column 1", "'-1e999'"),
        ("1_000,2\n", "line 1, column 1", "'1_000'"),
        ("１,2\n", "line 1, column 1", "'１'"),
        ("1,٢\n", "line 1, column 2", "'٢'"),
        ("1,2\u00a0\n", "line 1, column 2", "expected a number"),
        ("0x10,2\n3,4\n", "line 2, column 1", "expected a word, as '0x10'; found the number '3'"),
        (".1.2,1\n2,3\n", "line 2, column 1", "expected a word, as '.1.2'; found the number '2'"),
        ("the,1\n2,3\n", "line 2, column 1", "'2'"),
        ("x\n", "line 1, column 1", "'x'"),
        ("1,\x1b[31m\n", "line 1, column 2", r"'\x1b[31m'"),
        ("1,\n,\n3,\n", "line 2, column 1", "empty"),
        ("1 2 3\n4 5\n", "line 2, column 3", "expected 3 cells, as in the first row; found 2"),
        ("# a comment\n\n1 2\n3 x\n", "line 4, column 2", "'x'"),
        ("a;b\n1,5;2.5\n", "line 2, column 1", "'1,5'"),  # both a comma and a point
        ("a;b\n1,234;2,345\n", "line 2, column 1", "'1,234'"),  # a thousand, or one and some
        ("1,5 2,5\n3,5 4,5\n", "line 1, column 2", "'5 2'"),
        ("1,2\n3,4\n# 5,6\n", "line 3, column 1", "'# 5'"),
    ],
)
def test_refusals_say_line_and_column(text, place, what):
    with pytest.raises(InputError) as caught:
        table(text)
    assert caught.value.message.startswith(f"standard input: {place}:")
    assert what in caught.value.message
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("name", ["index", "Idx", "id", "row"])
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
    "text",
    [
        "id,a\n0,5\n2,6\n",  # does not count
        "id,a\n0,5\n",  # one row does not count
        "Token,a\n1990,5\n2000,6\n",
        "id\n0\n1\n",  # it is all there is
        "x,a\n0,5\n1,6\n",  # another name
        "a,id\n5,0\n6,1\n",  # not the first
    ],
)
def test_other_columns_of_numbers_are_data(text):
    found = table(text)
    lines = text.splitlines()
    np.testing.assert_array_equal(found.values, np.loadtxt(lines[1:], delimiter=",", ndmin=2))
    assert found.column_labels == tuple(lines[0].split(","))


@pytest.mark.parametrize(
    ("text", "rows", "columns"),
    [
        (",Unnamed: 0,a,b\n0,0,5,6\n1,1,7,8\n", ("0", "1"), ("a", "b")),  # saved twice by pandas
        ("Unnamed: 0.1,Unnamed: 0,a,b\n0,0,5,6\n1,1,7,8\n", ("0", "1"), ("a", "b")),
        (",Unnamed: 0.1,Unnamed: 0,a,b\n0,0,0,5,6\n1,1,1,7,8\n", ("0", "1"), ("a", "b")),
        (",Unnamed: 0,a,b\n0,the,5,6\n1,cat,7,8\n", ("the", "cat"), ("a", "b")),
        (",token,a,b\n0,the,5,6\n1,cat,7,8\n", ("the", "cat"), ("a", "b")),
        ('"","X","a","b"\n"1",1,5,6\n"2",2,7,8\n', ("1", "2"), ("a", "b")),  # R
        ('"","X","a","b"\n"1","the",5,6\n"2","cat",7,8\n', ("the", "cat"), ("a", "b")),
        ("word,id,a,b\nthe,0,5,6\ncat,1,7,8\n", ("the", "cat"), ("a", "b")),
    ],
)
def test_index_columns_are_left_out_with_a_note(text, rows, columns):
    with pytest.warns(AttnWarning, match="is left out|row labels"):
        found = table(text)
    assert found.values.tolist() == [[5, 6], [7, 8]]
    assert (found.row_labels, found.column_labels) == (rows, columns)


def test_a_counting_column_behind_labels_is_left_out_beside_fractions_alone():
    with pytest.warns(AttnWarning, match="the column 'n' is left out"):
        found = table(",n,a\nthe,1,0.5\ncat,2,1\nsat,3,2\n")
    assert found.values.tolist() == [[0.5], [1], [2]]
    # A matrix of whole numbers may count by chance, and so may two rows.
    assert table(",n,a\nthe,1,5\ncat,2,1\nsat,3,2\n").values.shape == (3, 2)
    assert table(",n,a\nthe,0,0.5\ncat,1,0.1\n").values.shape == (2, 2)


@pytest.mark.parametrize("corner", ["", "Unnamed: 0"])  # the second is what pandas makes of it
@pytest.mark.parametrize("names", ["2019,2020", "0,5", "7.5,x", "1,2", "0,1"])
def test_an_empty_corner_above_words_heads_columns_of_any_names(corner, names):
    text = f"{corner},{names}\nThe,0.5,1\ncat,0.25,2\n"
    found = table(text)
    np.testing.assert_array_equal(found.values, [[0.5, 1], [0.25, 2]])
    assert (found.row_labels, found.column_labels) == (("The", "cat"), tuple(names.split(",")))


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
        ("1,50, -2,00, 3,1\n0,5, 1,25, 2,0\n", "decimal point"),
        ("a, 1,5, 2,5\nb, 3,5, 4,5\n", "decimal point"),
        ("1,5e3, 2,5e3\n3,5e1, 4,5e2\n", "decimal point"),
        ("1,5;2\n0.5;3\n", "decimal point"),
        ("token,x\n1990,1\nthe,2\n", "first cell of the header is empty"),
        ("1;-2,5 %\n1;3\n", "plain digits"),
        ("1_000,2\n3,4\n", "plain digits"),
        ("1,#WERT!\n2,3\n", "plain digits"),
        ("a,b\n1,NA\n", "fill the hole with a number"),
        ("Queries\n,a,b\nx,1,2\n", "begin titles and comments above it with #"),
        ('1,"2\n' + "3" * 140_000, "quotation mark"),
    ],
)
def test_common_mistakes_get_a_hint(text, hint):
    with pytest.raises(InputError) as caught:
        table(text)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("separator", [";", "\t"])
@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([["1,5", "2"], ["-0,25", "3"]], [[1.5, 2], [-0.25, 3]]),
        ([["", "a", "b"], ["the", "0,123", "1,00E+00"], ["cat", ",5", "inf"]], None),
        ([['"1,5"', '"2,5"'], ['"0,1"', '"7"']], [[1.5, 2.5], [0.1, 7]]),
        ([["1,2345", "2"]] * 9000, [[1.2345, 2]] * 9000),  # a long table
    ],
)
def test_decimal_commas_are_read_with_a_note(separator, rows, values):
    text = "\n".join(map(separator.join, rows)) + "\n"
    with pytest.warns(AttnWarning, match="decimal commas are read as decimal points"):
        found = table(text)
    expected = [[0.123, 1], [0.5, np.inf]] if values is None else values
    np.testing.assert_array_equal(found.values, expected)


@pytest.mark.parametrize(
    ("text", "values", "rows", "columns"),
    [
        ("1.0 2.5\n-3e-2 nan\n", [[1, 2.5], [-0.03, np.nan]], None, None),
        ("   1.0    2.5\n  -3.0    4.0  \n", [[1, 2.5], [-3, 4]], None, None),
        ("1\t\t2\n3\t\t4\n", [[1, 2], [3, 4]], None, None),
        ("1 \t2\n3\t 4\n", [[1, 2], [3, 4]], None, None),
        ('"a" "b"\n"the" 0.5 1.2\n"cat" -0.3 0.8\n', [[0.5, 1.2], [-0.3, 0.8]], *"tc"),
        ('"a" "b"\n"1" 0.5 1.2\n"2" -0.3 0.8\n', [[0.5, 1.2], [-0.3, 0.8]], "12", "ab"),
        ('"the cat" 1 2\n"," 3 4\n', [[1, 2], [3, 4]], ("the cat", ","), None),
        ("    0    1\n0  5.5  6.0\n1  7.0  8.0\n", [[5.5, 6], [7, 8]], "01", "01"),  # pandas
        ("# d0 d1\n1 2\n3 4\n", [[1, 2], [3, 4]], None, None),
        ("1 2\n" * 40_000, [[1, 2]] * 40_000, None, None),
    ],
)
def test_tables_with_blanks_are_read(text, values, rows, columns):
    rows, columns = (("the", "cat"), ("a", "b")) if rows == "t" else (rows, columns)
    found = table(text)
    np.testing.assert_array_equal(found.values, values)
    assert found.row_labels == (rows and tuple(rows))
    assert found.column_labels == (columns and tuple(columns))


@pytest.mark.parametrize("options", [{}, {"header": "a comment\nof two lines"}, {"fmt": "%12.4f"}])
def test_what_numpy_writes_by_default_is_read(tmp_path, options):
    matrix = np.random.default_rng(2).standard_normal((7, 5))
    np.savetxt(tmp_path / "q.txt", matrix, **options)
    found = read(str(tmp_path / "q.txt")).values
    np.testing.assert_array_equal(found, np.loadtxt(tmp_path / "q.txt"))


@pytest.mark.parametrize("above", ["# a comment\n", "#1, 2, 3\n\n  # b\n", "#\n"])
def test_lines_with_a_number_sign_above_the_first_row_are_comments(above):
    assert table(above + "a,b\n1,2\n").column_labels == ("a", "b")


def test_a_comment_that_may_be_a_row_is_told():
    with pytest.warns(AttnWarning, match="'##ing,1,2' is read as a comment"):
        assert table("##ing,1,2\nthe,3,4\n").row_labels == ("the",)
    assert table('"##ing",1,2\nthe,3,4\n').row_labels == ("##ing", "the")
    assert table("#,d1,d2\n1,0.1,2\n3,3,4\n").column_labels == ("#", "d1", "d2")


@pytest.mark.parametrize(
    ("header", "text", "values", "columns"),
    [
        ("yes", "0,1\n5,6\n", [[5, 6]], ("0", "1")),
        ("yes", "2019,7.5\n5,6\n", [[5, 6]], ("2019", "7.5")),
        ("no", "0,1,2\n0.5,1.5,2.5\n", [[0, 1, 2], [0.5, 1.5, 2.5]], None),
        ("auto", "0,1,2\n0.5,1.5,2e1\n", [[0.5, 1.5, 20]], ("0", "1", "2")),
        ("auto", "0,1\n0.5,1.5\n", [[0, 1], [0.5, 1.5]], None),  # two may be by chance
        ("auto", "0,1,2\n0.5,1,2e1\n", [[0, 1, 2], [0.5, 1, 20]], None),
    ],
)
def test_whether_there_is_a_header_may_be_said(header, text, values, columns):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = read("-", stdin=io.BytesIO(text.encode()), header=header)
    assert found.values.tolist() == values
    assert found.column_labels == columns


def test_without_a_header_words_are_no_names():
    with pytest.raises(InputError, match=r"line [12], column [12]: expected a "):
        read("-", stdin=io.BytesIO(b"a,b\n1,2\n"), header="no")
    with pytest.raises(UsageError, match="header: expected auto, yes or no; found 'maybe'"):
        read("-", stdin=io.BytesIO(b"1"), header="maybe")


@pytest.mark.parametrize(
    "label", ["50%", "1/2", "\u20ac1.50", "(1.5)", "1.0D+00", "1.5f", "0x10", "<0.01", '="1"']
)
def test_names_that_are_all_like_numbers_are_refused(label):
    cell = '"' + label.replace('"', '""') + '"'
    for text in (f"{cell},1,2\n{cell},3,4\n", f"{cell},{cell}\n1,2\n3,4\n"):
        with pytest.raises(InputError, match="line 1, column 1: expected a number; found"):
            table(text)
    for text in (f"{cell},1,2\nthe,3,4\n", f",x\n{cell},1\n{cell},2\n"):
        assert label in table(text).row_labels


@pytest.mark.parametrize(
    "header", ["the,price,is,$5", "on,\u20ac,<s>,50%", "a,b,c,3/4", "wow!,.f,#1,#N/A"]
)
def test_tokens_that_look_like_numbers_are_names_among_others(header):
    found = table(f"{header}\n1,0,0,0\n1,1,0,0\n")
    assert found.column_labels == tuple(header.split(","))
    assert found.row_labels is None


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('1,2\n1,"2\r\n3"\n5,6\n', "line 2, column 2"),
        ('1,2\n"1\n",x\n5,6\n', "line 3, column 2"),
        ('1,2\n"3\n4",5\n', "line 2, column 1"),
        ('a,1\n"b\nc","1\n2"\n', "line 3, column 2"),
        ('1,2\n3,"x\n\n"\n4,5\n', "line 2, column 2"),
    ],
)
def test_a_cell_of_several_lines_is_told_where_it_begins(text, place):
    with pytest.raises(InputError, match=f": {place}: expected a number; found"):
        table(text)


@pytest.mark.parametrize("text", ['1,2\n3,"x\n\n\n', '1,2\n3,"x"4\n5,6\n'])
def test_a_row_whose_quotation_mark_is_left_open_is_told_by_its_line(text):
    with pytest.raises(InputError, match="line 2, ") as caught:
        table(text)
    assert "quotation mark" in caught.value.hint


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
        ("TRUE,FALSE\nTRUE,1\n", "line 1, column 1: expected a number; found 'TRUE'"),
        ("true,fales\nfalse,true\n", "line 1, column 1: expected a number; found 'true'"),
        ("yes,true,no\nfalse,true,true\n", "line 1, column [123]: expected a number; found"),
        ("1,0\nTRUE,0\n", "line 2, column 1: expected a number; found 'TRUE'"),
        ("yes,no\nno,yes\n", "line 2, column 2: expected a number; found 'yes'"),
    ],
)
def test_mixed_truths_are_refused_with_what_to_write(text, place):
    with pytest.raises(InputError, match=place) as caught:
        table(text)
    assert "write 1 for true and 0 for false" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["0,1,2\n0.5,0.1,2\n", "0\t1\n5\t6\n7\t8\n", "0,1,2\n1,0,1\n0,1,1\n"]
)
def test_a_first_row_that_counts_is_data_and_told(text):
    with pytest.warns(AttnWarning, match="the first row counts 0 to .* --header yes"):
        found = table(text)
    assert found.column_labels is None
    assert found.values[0].tolist() == list(range(len(found.values[0])))


@pytest.mark.parametrize("corner", ["token", "Word", "index", " label "])
def test_a_row_that_counts_behind_the_name_of_labels_is_a_header(corner):
    found = table(f"{corner},0,1\nI,1,0\nyou,0,1\n")  # pandas: index_label
    assert (found.row_labels, found.column_labels) == (("I", "you"), ("0", "1"))
    assert found.values.tolist() == [[1, 0], [0, 1]]


def test_indices_below_the_name_of_labels_are_labels():
    found = table("token,0,1\n0,0.5,2\n1,3,4\n")
    assert (found.row_labels, found.column_labels) == (("0", "1"), ("0", "1"))
    assert found.values.tolist() == [[0.5, 2], [3, 4]]


@pytest.mark.parametrize(
    "text",
    ["0,1,2\n3,4,5\n", "0,1\n1,0\n", "0,1,2\n", "0\n7\n", "1,0\n5,6\n"],
)
def test_numbers_that_do_not_only_count_are_not_told(text):
    assert table(text).column_labels is None  # a warning would be an error here


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


@pytest.mark.parametrize("text", ["sep=,\n;d1;d2\nThe;1.2;0.3\n", "sep=;\n,d1,d2\nThe,1.2,0.3\n"])
def test_rows_with_another_separator_than_the_first_line_sets_are_refused(text):
    with pytest.raises(InputError, match=r"line [23], column 1"):
        table(text)


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


@pytest.mark.parametrize("name", ["X", "n", "year"])
def test_a_counting_column_under_a_name_is_data_and_told(name):
    with pytest.warns(AttnWarning, match="first column counts 1, 2, … as an index might"):
        found = table(f"{name},a\n1,0.5\n2,0.25\n3,0.125\n")
    assert found.values.shape == (3, 2)


def test_numbers_name_rows_and_columns_where_they_are_the_same():
    """Weights between tokens that are known by their ids."""
    found = table(",101,2023\n101,0.5,0.5\n2023,0.2,0.8\n")
    assert found.row_labels == found.column_labels == ("101", "2023")
    for text in (",101,2023\n5,0.5,0.5\n2023,0.2,0.8\n", ",101,2023\n101,0.5,0.5\n7,0.2,0.8\n"):
        with pytest.raises(InputError, match="empty cell"):
            table(text)
