"""Read CSV and TSV: a matrix, with the names of its rows and columns where it has them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors import InputError
from attncli.loading.cells import EMPTY_ROWS, FILL, NUMBERED, SEPARATE, read_numbers, read_truths
from attncli.loading.contents import LoadedArray
from attncli.loading.headings import Headings, find_headings, is_meant_as_numbers
from attncli.loading.number import (
    DECIMAL_POINTS,
    begins_as_number,
    is_foreign,
    is_numeric,
    is_truth,
)
from attncli.loading.plain import plain_blocks, plain_table
from attncli.loading.printed import printed_alike
from attncli.loading.separator import column_of_pairs, find_separator, other_separator
from attncli.loading.spreadsheet import (
    separator_line,
    with_line_feeds,
    without_empty_columns,
    without_empty_end,
)
from attncli.loading.table import Body, Table, after, has_lone_returns, line_ends, refuse_large
from attncli.loading.table_doubts import (
    EMPTY_CORNER,
    advise_on_header,
    advise_on_index,
    advise_on_names,
    advise_on_numbers_above_words,
    without_index,
)
from attncli.text import counted, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.loading.source import Source
    from attncli.loading.table import Row

__all__ = ["read_delimited"]

# Of its beginning, which tells how numbers were printed.
_BLOCK = 2**18
# More than this is read block by block, so that a mistake is found on the way.
_LONG = 4 * 2**20
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_ENDED = "the row ends with a separator that the first row lacks: end all rows with one, or none"
_A_TITLE = "if the first line is a title, delete it"
_ADD_HEADER = "if the first column holds labels, add a header row whose first cell is empty"


def read_delimited(source: Source) -> LoadedArray:
    """Read a table of numbers separated by commas, semicolons or tabs.

    Parameters
    ----------
    source : Source

    Returns
    -------
    LoadedArray
        Always two axes, float64, or bool where every cell is true or false; with the
        labels of a header row and a label column where there are such.

    Raises
    ------
    InputError
        With the line and column of a hole, a word, or a ragged row.

    Warns
    -----
    AttnWarning
        The first row may be meant as a header.
    """
    table = _table(source)
    head = list(itertools.islice(table.rows(errors="replace"), 2))
    if not head:  # nothing but quotation marks around nothing
        raise InputError(f"{source.name} holds no numbers")
    if not "".join(head[0][1]).isascii():
        source.text()  # says where it is not UTF-8
    _refuse_decimal_commas(table, head)
    first = _with_corner(*head)
    headings = find_headings(first[1], head[1][1] if len(head) > 1 else None)
    found = _at_once(table, headings, first)
    if found is None:
        found = _careful(table, headings, first)
        _refuse_swallowed(table, found)
    if first is not head[0]:
        _refuse_numbers_as_names(table, found, *head)
    if not headings.row:
        advise_on_header(source.name, first[1], found, labelled=headings.column)
        advise_on_index(found)
    elif headings.certain:
        advise_on_numbers_above_words(found)
    if headings.row and not headings.column:
        found = without_index(found)
    if not (headings.certain or headings.truths):
        advise_on_names(found, first[1][0] if headings.row else "")
    printed = printed_alike(table.data[:_BLOCK].decode("ascii", "replace"))
    return replace(found, printed=printed, is_table=True)


def _table(source: Source) -> Table:
    """Return the text of a table, without what a spreadsheet writes around it."""
    separator, data = separator_line(with_line_feeds(source.text_bytes()))
    table = without_empty_end(Table(source, data, separator or find_separator(data)))
    if separator is not None:
        _refuse_other_separator(table)
    refuse_large(table)
    return without_empty_columns(table)


def _refuse_other_separator(table: Table) -> None:
    """Refuse rows that are not separated by what the first line names."""
    found = other_separator(table.data, table.delimiter)
    if found is not None:
        what = (
            f"sep= in the first line names {_SEPARATORS[table.delimiter]}, but the rows are "
            f"separated by {_SEPARATORS[found]}"
        )
        raise table.refusal(what, 1, 1, "mend the first line, or delete it")


def _refuse_decimal_commas(table: Table, rows: list[Row]) -> None:
    """Refuse numbers like ``1,50, -2,00``, which would be read as twice as many."""
    line, cells = rows[0]
    start = column_of_pairs([row for _, row in rows]) if table.delimiter == "," else None
    if start is not None:
        what = f"expected a number; found {quoted(','.join(cells[start : start + 2]).strip())}"
        raise table.refusal(what, line, start + 1, DECIMAL_POINTS)


def _with_corner(first: Row, second: Row | None = None) -> Row:
    """Return the first row with the corner that R's `write.table` leaves out above row names."""
    line, cells = first
    if second is None or len(second[1]) != len(cells) + 1 or len(cells) < 2:
        return first
    named = not any(is_meant_as_numbers(cell) or is_truth(cell) for cell in cells)
    # R counts rows without a name from 1.
    label = second[1][0]
    labelled = label == "1" or not (is_meant_as_numbers(label) or is_truth(label))
    commented = _first_hint(cells) is not None
    # R writes NA for a hole: what is empty stands behind a separator at the end of the row.
    ended = not second[1][-1].strip()
    return (line, ["", *cells]) if named and labelled and not (commented or ended) else first


def _refuse_numbers_as_names(table: Table, found: LoadedArray, first: Row, second: Row) -> None:
    """Refuse a first row that is one cell short above numbers that do not count from 1."""
    names = list(found.row_labels or ())
    if names[:1] == ["1"] and not _count_alike(["1"], names):
        what = f"expected {len(first[1])} cells, as in the first row; found {len(second[1])}"
        raise table.refusal(what, second[0], len(first[1]) + 1)


def _refuse_swallowed(table: Table, found: LoadedArray) -> None:
    """Refuse a label that holds whole rows: a token that is a quotation mark began it."""
    for label in (*(found.row_labels or ()), *(found.column_labels or ())):
        if line_ends(label) and any(_is_row(line, table, found) for line in label.splitlines()):
            line = table.data.count(b"\n", 0, max(0, table.data.find(label.encode()))) + 1
            hint = "is a quotation mark left open? One that is a label is written four times: "
            raise table.refusal(f"expected a label; found {quoted(label)}", line, 1, hint + '"' * 4)


def _is_row(line: str, table: Table, found: LoadedArray) -> bool:
    """Return whether a line of a label is a row of the table, or the end of one."""
    _, *numbers = line.split(table.delimiter)
    return len(numbers) == found.values.shape[1] and all(map(is_numeric, numbers))


def _at_once(table: Table, headings: Headings, first: Row) -> LoadedArray | None:
    """Read a short table of nothing but numbers; None where it is another."""
    line, cells = first
    if headings.column or len(table.data) > _LONG:
        return None
    body = after(table.data, line) if headings.row else table.data
    values = plain_table(body, table.delimiter)
    if values is None or values.shape[1] != len(cells):
        return None
    return LoadedArray(values, table.source.name, None, tuple(cells) if headings.row else None)


def _careful(table: Table, headings: Headings, head: Row) -> LoadedArray:
    """Read any table cell by cell, and say where it is not one."""
    first_line, first = head
    start, body = int(headings.column), Body(table)
    read = read_truths if headings.truths else read_numbers
    headed = headings.row and not headings.column
    rows: Iterator[Row]
    if has_lone_returns(table.data):
        rows = itertools.islice(_slowly(table, table.data, 0), int(headings.row), None)
    else:
        begin = len(table.data) - len(after(table.data, first_line)) if headings.row else 0
        rows = _skim(table, body, headings, begin, len(first))
    for line, cells in rows:
        if len(cells) != len(first):
            expected = counted(len(first), "cell")
            what = f"expected {expected}, as in the first row; found {len(cells)}"
            column = min(len(cells), len(first)) + 1
            raise table.refusal(what, line, column, _ragged_hint(first, cells))
        if headings.column:
            _check_label(table, headings, first_line, body.labels, (line, cells))
            body.labels.append(cells[0])
        refused = partial(_refused_cell, table, (line, cells), headed=headed)
        body.numbers.extend(read(cells, start, refused))
        body.refuse_many()
    if headings.certain and not _count_alike(first[start:], body.labels):
        what = "expected a number; found an empty cell"
        raise table.refusal(what, first_line, 1, NUMBERED)
    if not body.numbers:
        raise table.refusal(f"expected numbers; found only {quoted(first[0])}", first_line, 1)
    width = len(first) - start
    # Not a copy: the numbers may be half of what memory there is.
    numbers = np.frombuffer(body.numbers)
    return LoadedArray(
        (numbers.astype(np.bool_) if headings.truths else numbers).reshape(-1, width),
        table.source.name,
        tuple(body.labels) if headings.column else None,
        tuple(first[start:]) if headings.row else None,
    )


def _refused_cell(
    table: Table, row: Row, what: str, *, column: int, hint: str | None = None, headed: bool
) -> InputError:
    """Return what is wrong with a cell, at the line where it begins."""
    line, cells = row
    ends = sum(map(line_ends, cells[column - 1 :]))
    # The end of the file closes a quotation; no line follows what ends there.
    if cells[-1].endswith(("\n", "\r")) and table.data.endswith(cells[-1].encode()):
        ends -= 1
    if line_ends(cells[column - 1]):
        hint = "is a quotation mark left open?"
    elif headed and column == 1 and hint is None:
        hint = _headed_hint(cells)
    elif column == 2 and hint is None and cells[0].isdigit() and cells[1].strip().isalpha():
        hint = "if the second column holds labels, leave out the first (pandas: set_index)"
    elif hint in (None, FILL) and column > 1 and _holds_no_numbers(table, column):
        hint = "delete each column that holds no numbers, as this one"
    elif hint is not None and column == 1 and is_foreign(cells[0]):
        hint += f"; {_ADD_HEADER}"
    return table.refusal(what, line - ends, column, hint)


def _holds_no_numbers(table: Table, column: int) -> bool:
    """Return whether several rows below the first hold numbers, but none of them in this column."""
    below = 0
    try:
        for _, cells in itertools.islice(table.rows(errors="replace"), 1, None):
            if any(
                is_meant_as_numbers(c) or begins_as_number(c) for c in cells[column - 1 : column]
            ):
                return False
            below += any(map(is_numeric, cells))
    except InputError:  # further down, a quotation mark is left open
        return False
    return below > 1


def _headed_hint(cells: list[str]) -> str:
    """Return what is probably wrong with a first cell that is no number, below other words."""
    if len(cells) == 1 and any(map(is_numeric, cells[0].split())):
        return f"{SEPARATE}, not with spaces"
    if _is_barred(cells):
        return f"{SEPARATE}, not with |"
    if len(cells) > 2 and not any(map(is_meant_as_numbers, cells)):
        return _A_TITLE
    return f"if the first column holds labels, {EMPTY_CORNER}"


def _ragged_hint(first: list[str], cells: list[str]) -> str | None:
    """Return what is probably wrong with a row of another length than the first."""
    if not any(map(str.strip, cells)):
        return EMPTY_ROWS
    if _is_barred(first) and _first_hint(first) is None:
        return f"{SEPARATE}, not with |"
    if len(cells) > len(first) and not any(map(str.strip, cells[len(first) :])):
        return _ENDED
    return _first_hint(first) or (_A_TITLE if _is_title(first) else None)


def _is_title(first: list[str]) -> bool:
    """Whether a first line is but a word, above rows of several cells."""
    return len(first) == 1 and bool(first[0].strip()) and not is_meant_as_numbers(first[0])


def _is_barred(row: list[str]) -> bool:
    """Whether bars stand where separators should."""
    return len(row) == 1 and "|" in row[0]


def _first_hint(first: list[str]) -> str | None:
    """Return what is probably wrong with a first row that is shorter than others."""
    if first[0].startswith("#"):
        return "# does not start a comment: delete the first line"
    if first[0].lower().startswith("sep="):
        return "write one comma, semicolon or tab behind sep=, or delete the first line"
    return None


def _count_alike(columns: list[str], rows: list[str]) -> bool:
    """Whether columns that are numbers count as the rows do, are the same, or stand over words."""
    if not all(map(is_numeric, columns)) or columns == [str(at) for at in range(len(columns))]:
        return True
    if columns == rows or (rows and not is_meant_as_numbers(rows[0])):
        return True
    counts = [str(at) for at in range(1, max(len(rows), len(columns)) + 1)]
    return rows == counts[: len(rows)] and columns == counts[: len(columns)]


def _skim(table: Table, body: Body, headings: Headings, start: int, width: int) -> Iterator[Row]:
    """Take blocks of rows as fast as they can be read, and return those that remain.

    So a mistake at the end of a long file is found soon.
    """
    end = start
    for block in plain_blocks(table.data, table.delimiter, headings, start, width):
        body.labels.extend(block.labels)
        body.numbers.frombytes(block.values.data.cast("B"))
        body.refuse_many()
        end = block.end
    if end == len(table.data):
        return iter(())
    return _slowly(table, table.data[end:], table.data.count(b"\n", 0, end))


def _slowly(table: Table, data: bytes, before: int) -> Iterator[Row]:
    """Return the rows of the end of a table, behind so many lines."""
    if not data.isascii():
        table.source.text()  # says where it is not UTF-8
    return Table(table.source, data, table.delimiter, before).rows()


def _check_label(
    table: Table, headings: Headings, first_line: int, above: list[str], row: Row
) -> None:
    line, cells = row
    if headings.certain or not is_numeric(cells[0]):
        return
    what = f"expected a word, as above; found the number {quoted(cells[0])}"
    if headings.row:
        raise table.refusal(what, line, 1, f"if the first column holds labels, {EMPTY_CORNER}")
    hint = _ADD_HEADER
    if len(above) == 1 and above[0].lstrip("+-.")[:1].isdigit():  # 0x1F, --1, 1d3
        what = f"expected a number; found {quoted(above[0])}"
        raise table.refusal(what, first_line, 1, hint)
    if above:
        hint += f"; if not, mend {quoted(above[0])} in the first row, which is no number"
    raise table.refusal(what, line, 1, hint)
