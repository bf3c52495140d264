"""Tables of numbers: which are read, and which errors name which cell."""

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
        (" 1 , 2\n", [[1, 2]], None, None),
        ("the,cat\n1,2\n", [[1, 2]], None, ("the", "cat")),
        ("the,1\ncat,2\n", [[1], [2]], ("the", "cat"), None),
        (",a,b\nr,1,2\ns,3,4\n", [[1, 2], [3, 4]], ("r", "s"), ("a", "b")),
        (",1,2\n1,5,6\n2,7,8\n", [[5, 6], [7, 8]], ("1", "2"), ("1", "2")),
        ("\t:\n:\t0.5\n", [[0.5]], (":",), (":",)),
        # A table that pandas wrote twice, one with a named index, and one by R, without a corner.
        ('"Unnamed: 0","0","1"\n0,5,6\n1,7,8\n', [[5, 6], [7, 8]], ("0", "1"), ("0", "1")),
        (",the,2\nthe,1,2\n2,3,4\n", [[1, 2], [3, 4]], ("the", "2"), ("the", "2")),
        ('"a,b",1\n"say ""hi""",2\n', [[1], [2]], ("a,b", 'say "hi"'), None),
        ("the;,;cat\n1;2;3\n", [[1, 2, 3]], None, ("the", ",", "cat")),
        ('"two\nlines",b\n1,2\n3,4\n', [[1, 2], [3, 4]], None, ("two\nlines", "b")),
        ('"1","2"\n', [[1, 2]], None, None),
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
        ("1,2\n\n3,x\n", "line 3, column 2", "'x'"),
        ("1,x\n2,3\n", "line 1, column 2", "'x'"),
        ("1,2\n3\n", "line 2, column 2", "expected 2 cells, as in the first row; found 1"),
        ("x,y\n1,1,2\n3,4,5\n", "line 2, column 3", "expected 2 cells, as in the first row"),
        ("1,2\n#3,4\n", "line 2, column 1", "'#3'"),
        ("1,2,3\n4,5,\n", "line 2, column 3", "empty"),
        (",1,2\n3,4,5\n", "line 1, column 1", "empty"),
        (",1,2\n1,0.5,0.5\n0.2,0.3,0.5\n", "line 1, column 1", "empty"),
        ("1,2\n3,1e400\n", "line 2, column 2", "'1e400'"),
        ("1_000,2\n", "line 1, column 1", "'1_000'"),
        ("１,2\n", "line 1, column 1", "'１'"),
        ("0x10,2\n3,4\n", "line 2, column 1", "expected a word, as '0x10'; found the number '3'"),
        ("1,\x1b[31m\n", "line 1, column 2", r"'\x1b[31m'"),
        ("# a comment\n\n1 2\n3 x\n", "line 4, column 2", "'x'"),
        ("a;b\n1,5;2.5\n", "line 2, column 1", "'1,5'"),  # both a comma and a point
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
    ("text", "rows", "columns"),
    [
        ("Unnamed: 0.1,Unnamed: 0,a,b\n0,0,5,6\n1,1,7,8\n", ("0", "1"), ("a", "b")),
        (",Unnamed: 0.1,Unnamed: 0,a,b\n0,0,0,5,6\n1,1,1,7,8\n", ("0", "1"), ("a", "b")),
        (",Unnamed: 0,a,b\n0,the,5,6\n1,cat,7,8\n", ("the", "cat"), ("a", "b")),
        (",token,a,b\n0,the,5,6\n1,cat,7,8\n", ("the", "cat"), ("a", "b")),
    ],
)
def test_index_columns_are_left_out_with_a_note(text, rows, columns):
    with pytest.warns(AttnWarning, match="is left out|row labels"):
        found = table(text)
    assert found.values.tolist() == [[5, 6], [7, 8]]
    assert (found.row_labels, found.column_labels) == (rows, columns)


@pytest.mark.parametrize("corner", ["", "Unnamed: 0"])  # pandas names an empty corner so
@pytest.mark.parametrize("names", ["2019,2020", "0,5", "7.5,x", "1,2", "0,1"])
def test_an_empty_corner_above_words_heads_columns_of_any_names(corner, names):
    text = f"{corner},{names}\nThe,0.5,1\ncat,0.25,2\n"
    found = table(text)
    np.testing.assert_array_equal(found.values, [[0.5, 1], [0.25, 2]])
    assert (found.row_labels, found.column_labels) == (("The", "cat"), tuple(names.split(",")))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1,5e3, 2,5e3\n3,5e1, 4,5e2\n", "decimal point"),
        ("token,x\n1990,1\nthe,2\n", "first cell of the header empty"),
        ("1_000,2\n3,4\n", "plain digits"),
        ("a,b\n1,NA\n", "fill the hole with a number"),
        ("Queries\n,a,b\nx,1,2\n", "begin titles and comments above it with #"),
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
        ([['"1,5"', '"2,5"'], ['"0,1"', '"7"']], [[1.5, 2.5], [0.1, 7]]),
        ([["1,2345", "2"]] * 9000, [[1.2345, 2]] * 9000),  # a long table
    ],
)
def test_decimal_commas_are_read_with_a_note(separator, rows, values):
    text = "\n".join(map(separator.join, rows)) + "\n"
    with pytest.warns(AttnWarning, match="decimal commas are read as decimal points"):
        found = table(text)
    np.testing.assert_array_equal(found.values, values)


@pytest.mark.parametrize(
    ("text", "values", "rows", "columns"),
    [
        ("1.0 2.5\n-3e-2 nan\n", [[1, 2.5], [-0.03, np.nan]], None, None),
        ("   1.0    2.5\n  -3.0    4.0  \n", [[1, 2.5], [-3, 4]], None, None),
        ('"a" "b"\n"the" 0.5 1.2\n"cat" -0.3 0.8\n', [[0.5, 1.2], [-0.3, 0.8]], *"tc"),
        ('"a" "b"\n"1" 0.5 1.2\n"2" -0.3 0.8\n', [[0.5, 1.2], [-0.3, 0.8]], "12", "ab"),
        ('"the cat" 1 2\n"," 3 4\n', [[1, 2], [3, 4]], ("the cat", ","), None),
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


def test_without_a_header_words_are_no_names():
    with pytest.raises(InputError, match=r"line [12], column [12]: expected a "):
        read("-", stdin=io.BytesIO(b"a,b\n1,2\n"), header="no")
    with pytest.raises(UsageError, match="header: expected auto, yes or no; found 'maybe'"):
        read("-", stdin=io.BytesIO(b"1"), header="maybe")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('1,2\n"3\n4",5\n', "line 2, column 1"),
        ('1,2\n3,"x\n\n"\n4,5\n', "line 2, column 2"),
    ],
)
def test_a_cell_of_several_lines_is_told_where_it_begins(text, place):
    with pytest.raises(InputError, match=f": {place}: expected a number; found"):
        table(text)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xff\xfe1\x00,\x002\x00", "UTF-16"),
        ("1,2\n3,4\n".encode("utf-16-le"), "line 1: expected text; found a NUL"),
        (b"1,2\n3,\x004\n", "line 2: expected text; found a NUL byte (byte 3 of the line)"),
        (b"a,b\n1,2\n\xe9,4\n", "line 3: expected UTF-8 text; found the byte 0xe9 (byte 1"),
        (b" \n\r\n", "is empty"),
    ],
)
def test_other_encodings_are_refused(data, what):
    with pytest.raises(InputError, match=re.escape(what)):
        table(data)


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


@pytest.mark.parametrize(
    "cell",
    "-0| 2|-0.0|9007199254740993|+1|.5|1.|007|inf|-nan|4.9e-324|1e-400|2.2250738585072011e-308|0."
    f"{'1234567890' * 90}".split("|"),
)
def test_long_tables_are_read_as_short_ones(cell):
    """The oracle is float(); the table is longer than those that are read cell by cell."""
    rows = [PLAIN] * 3000
    rows[1700] = [*PLAIN[:5], cell]
    expected = np.array([[float(one) for one in row] for row in rows])
    for separator, newline in ((",", "\n"), (";", "\r\n"), ("\t", "\n")):
        found = table(newline.join(map(separator.join, rows)) + newline).values
        assert found.shape == (3000, 6)
        np.testing.assert_array_equal(found, expected)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("1,2,3,4,5", "line 1701, column 6: expected 6 cells, as in the first row; found 5"),
        ("1,2,true,4,5,6", "line 1701, column 3: expected a number; found 'true'"),
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
        ("a,b\nTRUE,FALSE\n", [[1, 0]], None, ("a", "b")),
        ("the,TRUE,FALSE\ncat,TRUE,TRUE\n", [[1, 0], [1, 1]], ("the", "cat"), None),
    ],
)
def test_a_table_of_true_and_false_is_booleans(text, values, rows, columns):
    found = table(text)
    assert found.values.dtype == np.bool_
    np.testing.assert_array_equal(found.values, values)
    assert (found.row_labels, found.column_labels) == (rows, columns)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("sep=;", "the;cat,\n1;2\n"),  # without sep=, a comma makes as many cells
        ("SEP=,", "the,cat;\n1,2\n"),
        ('"sep=\t"', "the\tcat,\n1\t2\n"),
    ],
)
def test_a_first_line_may_name_the_separator(line, text):
    for start, end in (("", "\n"), ("\ufeff", "\r\n"), ("", "\r")):
        found = table(start + (line + "\n" + text).replace("\n", end))
        assert found.values.tolist() == [[1, 2]]
        assert [name.rstrip(",;") for name in found.column_labels] == ["the", "cat"]


EXPORTED = [
    ["1,2", "3,4"],
    [",the,cat", "a,1,2", "b,3,4"],
    ['"a,b",1', '"say ""hi""",2'],
    ["true,false", "false,true"],
    [",".join(["0.25"] * 6)] * 10_000,  # longer than a block that is read at once
]


@pytest.mark.parametrize("rows", EXPORTED)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("every", "last"),
    [
        (",,", []),
        (", ", []),
        ("", [",,", " , ", "", ",,"]),
        (",", [",,,", ","]),
        (',,""', ['"","",""']),
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


@pytest.mark.parametrize(
    "text", ["2nd,3rd\n1,2\n", ",-,NA\nthe,1,2\n", "token,d0\nNA,1\n-,2\n", "the,1\n-,2\n"]
)
def test_usual_names_are_names(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = table(text)
    assert found.row_labels or found.column_labels
