"""Read CSV and TSV: a matrix, with the names of its rows and columns where it has them."""

from __future__ import annotations

import csv
import io
import itertools
import re
from array import array
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.loading.cells import DECIMAL_POINTS, SEPARATE, read_numbers, read_truths
from attncli.loading.contents import LoadedArray
from attncli.loading.headings import (
    CORNERS,
    INDEX_NAMES,
    Headings,
    find_headings,
    is_meant_as_numbers,
)
from attncli.loading.number import is_foreign, is_numeric, is_truth
from attncli.loading.plain import plain_blocks, plain_table
from attncli.loading.printed import printed_alike
from attncli.loading.separator import column_of_pairs, find_separator
from attncli.text import counted, quoted
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy.typing as npt

    from attncli.loading.source import Source

__all__ = ["read_delimited"]

# What NumPy reads or counts at once; small enough for the cache.
_BLOCK = 2**18
# Each cell of a row is an object of its own while the row is looked at.
_MOST_CELLS = 1_000_000
# Numbers are read at a tenth of a microsecond each; rows with words in them at two.
_MOST_NUMBERS, _MOST_ROWS = 12_000_000, 500_000
# More than this is read block by block, so that a mistake is found on the way.
_LONG = 4 * 2**20
_AS_NPY = "save it as an NPY file"
_A_TITLE = "if the first line is a title, delete it"
_EMPTY_CORNER = "leave the first cell of the header empty"
_ADD_HEADER = "if the first column holds labels, add a header row whose first cell is empty"
# So many numbers that follow each other are hardly chance.
_COUNT = 3
# Rows below the first that are looked at.
_LOOKED_AT = 8
_LONE_RETURN = re.compile(rb"\r(?!\n)")

Row = tuple[int, list[str]]  # the line it ends on, and its cells


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
    data = source.text_bytes()
    table = _Table(source, data, find_separator(data))
    _refuse_wide(table)
    _refuse_many(table)
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
    if first is not head[0]:
        _refuse_numbers_as_names(table, found, *head)
    if not headings.row:
        _advise_on_header(source.name, first[1], found, labelled=headings.column)
    elif headings.certain:
        _advise_on_numbers_above_words(found)
    if headings.row and not headings.column:
        found = _without_index(found)
    if not (headings.certain or headings.truths):
        _advise_on_names(found, first[1][0] if headings.row else "")
    printed = printed_alike(data[:_BLOCK].decode("ascii", "replace"))
    return replace(found, printed=printed, is_table=True)


def _refuse_decimal_commas(table: _Table, rows: list[Row]) -> None:
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
    return (line, ["", *cells]) if named and labelled and not commented else first


def _refuse_numbers_as_names(table: _Table, found: LoadedArray, first: Row, second: Row) -> None:
    """Refuse a first row that is one cell short above numbers that do not count from 1."""
    names = list(found.row_labels or ())
    if names[:1] == ["1"] and not _count_alike(["1"], names):
        what = f"expected {len(first[1])} cells, as in the first row; found {len(second[1])}"
        raise table.refusal(what, second[0], len(first[1]) + 1)


def _without_index(table: LoadedArray) -> LoadedArray:
    """Return a table whose column named as an index, and counting as one, is its labels.

    Warn of another whose name is one that stands above labels.
    """
    values, columns = table.values, table.column_labels
    if not columns or len(columns) < 2:
        return table
    above = columns[0].strip().lower()
    if above not in CORNERS and not _counts_on(values[:, 0]):
        return table
    start, named = int(values[0, 0] == 1), above in INDEX_NAMES
    counts = np.array_equal(values[:, 0], np.arange(start, len(values) + start))
    if not named or not counts or len(values) < 2:
        warn(
            f"{table.name}: the column {quoted(columns[0])} is read as numbers. If it holds "
            f"labels, {_EMPTY_CORNER}"
        )
        return table
    warn(
        f"{table.name}: the column {quoted(columns[0])} counts {start}, {start + 1}, … and is read "
        "as row labels. If it is data, give it another name"
    )
    labels = tuple(str(number) for number in range(start, len(values) + start))
    return LoadedArray(values[:, 1:], table.name, labels, columns[1:])


def _counts_on(numbers: npt.NDArray[Any]) -> bool:
    """Return whether whole numbers count on from any first one, as a column of indices does."""
    first = numbers[0]
    if len(numbers) < _COUNT or not abs(first) < 2**31 or first != np.rint(first):
        return False
    return np.array_equal(numbers, np.arange(first, first + len(numbers)))


def _at_once(table: _Table, headings: Headings, first: Row) -> LoadedArray | None:
    """Read a short table of nothing but numbers; None where it is another."""
    line, cells = first
    if headings.column or len(table.data) > _LONG:
        return None
    body = _after(table.data, line) if headings.row else table.data
    values = plain_table(body, table.delimiter)
    if values is None or values.shape[1] != len(cells):
        return None
    return LoadedArray(values, table.source.name, None, tuple(cells) if headings.row else None)


def _advise_on_header(name: str, first: list[str], found: LoadedArray, *, labelled: bool) -> None:
    """Warn of a first row 0, 1, 2, … as pandas heads columns without names."""
    cells = [cell.strip() for cell in first[int(labelled) :]]
    if len(cells) < 2 or cells != list(map(str, range(len(cells)))):
        _advise_on_counting_row(name, first, found, labelled=labelled)
        return
    if labelled:
        may_be_data, mend = True, "leave its first cell empty (pandas: no index_label)"
    else:
        # A mask of two columns may begin with 0, 1; no mask holds a 2.
        may_be_data = bool(np.isin(found.values[1:], (0, 1)).all())
        mend = "write the file without it (pandas: header=False)"
    goes_on = np.array_equal(found.values.ravel(), np.arange(found.values.size))
    if not goes_on and not (len(cells) == 2 and may_be_data):
        warn(
            f"{name}: the first row counts 0 to {len(cells) - 1} as a header might; it is read as "
            f"numbers. If it is a header, {mend}"
        )


def _advise_on_counting_row(
    name: str, first: list[str], found: LoadedArray, *, labelled: bool
) -> None:
    """Warn of a first row like 2019, 2020, 2021 above numbers that are not all whole."""
    below = found.values[1 : 1 + _LOOKED_AT]
    if not len(below) or np.array_equal(below, np.rint(below)) or not _counts_on(found.values[0]):
        return
    mend = (
        "leave its first cell empty (pandas: no index_label)"
        if labelled
        else "write the file without it (pandas: header=False)"
    )
    warn(
        f"{name}: the first row counts {first[int(labelled)].strip()} to {first[-1].strip()} as a "
        f"header might; it is read as numbers. If it is a header, {mend}"
    )


def _advise_on_numbers_above_words(found: LoadedArray) -> None:
    """Warn of names of columns that are numbers, and do not count, above names of rows."""
    columns = found.column_labels or ()
    counts = [[str(index + start) for index in range(len(columns))] for start in (0, 1)]
    if all(map(is_numeric, columns)) and list(columns) not in counts:
        warn(
            f"{found.name}: the first row, {quoted(columns[0])}, … is read as the names of the "
            "columns, since its first cell is empty. If it holds numbers, write its label there"
        )


def _advise_on_names(found: LoadedArray, corner: str) -> None:
    """Warn of names that may all be numbers in another notation, if nothing says they are names."""
    rows, columns = found.row_labels or (), found.column_labels or ()
    headed = corner.strip().lower() in CORNERS
    for which, names, sure in (("column", rows, headed), ("row", columns, False)):
        if names and all(map(is_foreign, names)) and not sure and rows != columns:
            warn(
                f"{found.name}: the first {which}, {quoted(names[0])}, … is read as labels. If it "
                "holds numbers, write them in plain digits"
            )


def _refuse_many(table: _Table) -> None:
    """Refuse what would take more memory as numbers than is decent, if its first lines show it."""
    size = len(table.data)
    if size < 2 * _MOST_NUMBERS:  # a number takes two bytes, one that ends it
        return
    # To count all of them takes longer than to read a fiftieth: `_Body` counts on the way.
    if _about_cells(table, _BLOCK) * size <= _MOST_NUMBERS * _BLOCK:
        return
    cells = _about_cells(table, size)
    if cells > _MOST_NUMBERS:
        raise _too_many_cells(table, f"about {cells:,}")


def _about_cells(table: _Table, size: int) -> int:
    """Count separators and line ends; `bytes.count` would take five times as long."""
    data = np.frombuffer(table.data, np.uint8)
    pieces = (data[start : start + _BLOCK] for start in range(0, size, _BLOCK))
    ends = ord(table.delimiter), ord("\n")
    return sum(int(np.count_nonzero(piece == end)) for piece in pieces for end in ends)


def _too_many_cells(table: _Table, found: str) -> InputError:
    msg = f"{table.source.name}: expected at most {_MOST_NUMBERS:,} cells; found {found}"
    return InputError(msg, hint=_AS_NPY)


def _refuse_wide(table: _Table) -> None:
    """Refuse a line of millions of cells before it is cut into them."""
    data, start = table.data, 0
    while len(data) - start > _MOST_CELLS:
        # Short lines are passed over many at a time.
        end = data.rfind(b"\n", start, start + _MOST_CELLS + 1)
        if end < 0:
            end = data.find(b"\n", start) % (len(data) + 1)
            cells = data.count(table.delimiter.encode(), start, end) + 1
            if cells > _MOST_CELLS:
                what = f"expected at most {_MOST_CELLS:,} cells; found {cells:,}"
                line = data.count(b"\n", 0, start) + 1
                raise table.refusal(what, line, _MOST_CELLS + 1, _AS_NPY)
        start = end + 1


def _after(data: bytes, lines: int) -> bytes:
    start = 0
    for _ in range(lines):
        start = data.find(b"\n", start) + 1 or len(data)
    return b"" if _has_lone_returns(data[:start]) else data[start:]


def _has_lone_returns(data: bytes) -> bool:
    """Look for line ends of the csv module's that nobody else counts."""
    return b"\r" in data and bool(_LONE_RETURN.search(data))


class _Table(NamedTuple):
    source: Source
    data: bytes
    delimiter: str
    before: int = 0  # lines of the file that stand before the data

    def rows(self, errors: str = "strict") -> Iterator[Row]:
        """Yield the rows that are not blank."""
        lines = io.TextIOWrapper(io.BytesIO(self.data), "utf-8", errors, newline="")
        reader = csv.reader(lines, delimiter=self.delimiter)
        try:
            for cells in reader:
                if reader.line_num > _MOST_ROWS:
                    raise self._too_many(self.before + reader.line_num)
                if len(cells) > 1 or (cells and cells[0].strip()):
                    yield self.before + reader.line_num, cells
        except csv.Error as error:
            at = self._longest_cell(reader.line_num)
            line = self.before + reader.line_num
            raise self.refusal(str(error), line, at, "is a quotation mark left open?") from error

    def _longest_cell(self, line: int) -> int:
        """Return which cell of a line goes on for too long, or 1 where it began before."""
        text = next(itertools.islice(io.BytesIO(self.data), line - 1, None), b"")
        lengths = [len(cell) for cell in text.split(self.delimiter.encode())]
        return lengths.index(max(lengths)) + 1

    def _too_many(self, line: int) -> InputError:
        what = f"expected at most {_MOST_ROWS:,} rows, in a table of more than plain numbers"
        return self.refusal(what, line, 1, "save the numbers as an NPY file")

    def refusal(self, what: str, line: int, column: int, hint: str | None = None) -> InputError:
        msg = f"{self.source.name}: line {line}, column {column}: {what}"
        return InputError(msg, hint=hint)


@dataclass(eq=False)
class _Body:
    """The numbers and row labels read so far."""

    table: _Table
    numbers: array[float] = field(default_factory=lambda: array("d"))
    labels: list[str] = field(default_factory=list)

    def refuse_many(self) -> None:
        """Refuse what turns out to be more than `_refuse_many` saw."""
        if len(self.numbers) > _MOST_NUMBERS:
            raise _too_many_cells(self.table, "more")


def _careful(table: _Table, headings: Headings, head: Row) -> LoadedArray:
    """Read any table cell by cell, and say where it is not one."""
    first_line, first = head
    start, body = int(headings.column), _Body(table)
    read = read_truths if headings.truths else read_numbers
    headed = headings.row and not headings.column
    rows: Iterator[Row]
    if _has_lone_returns(table.data):
        rows = itertools.islice(_slowly(table, table.data, 0), int(headings.row), None)
    else:
        begin = len(table.data) - len(_after(table.data, first_line)) if headings.row else 0
        rows = _skim(table, body, headings, begin, len(first))
    for line, cells in rows:
        if len(cells) != len(first):
            expected = counted(len(first), "cell")
            what = f"expected {expected}, as in the first row; found {len(cells)}"
            hint = _first_hint(first) or (_A_TITLE if _is_title(first) else None)
            raise table.refusal(what, line, min(len(cells), len(first)) + 1, hint)
        if headings.column:
            _check_label(table, headings, first_line, body.labels, (line, cells))
            body.labels.append(cells[0])
        refused = partial(_refused_cell, table, (line, cells), headed=headed)
        body.numbers.extend(read(cells, start, refused))
        body.refuse_many()
    if headings.certain and not _count_alike(first[start:], body.labels):
        what = "expected a number; found an empty cell"
        raise table.refusal(what, first_line, 1, "labels that are numbers must count 0, 1, 2, …")
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
    table: _Table, row: Row, what: str, *, column: int, hint: str | None = None, headed: bool
) -> InputError:
    """Return what is wrong with a cell, at the line where it begins."""
    line, cells = row
    ends = sum(map(_line_ends, cells[column - 1 :]))
    # The end of the file closes a quotation; no line follows what ends there.
    if cells[-1].endswith(("\n", "\r")) and table.data.endswith(cells[-1].encode()):
        ends -= 1
    if _line_ends(cells[column - 1]):
        hint = "is a quotation mark left open?"
    elif headed and column == 1 and hint is None:
        hint = _headed_hint(cells)
    elif column == 2 and hint is None and cells[0].isdigit() and cells[1].strip().isalpha():
        hint = "if the second column holds labels, leave out the first (pandas: set_index)"
    elif hint is not None and column == 1 and is_foreign(cells[0]):
        hint += f"; {_ADD_HEADER}"
    return table.refusal(what, line - ends, column, hint)


def _headed_hint(cells: list[str]) -> str:
    """Return what is probably wrong with a first cell that is no number, below other words."""
    if len(cells) == 1 and any(map(is_numeric, cells[0].split())):
        return f"{SEPARATE}, not with spaces"
    if len(cells) > 2 and not any(map(is_meant_as_numbers, cells)):
        return _A_TITLE
    return f"if the first column holds labels, {_EMPTY_CORNER}"


def _is_title(first: list[str]) -> bool:
    """Whether a first line is but a word, above rows of several cells."""
    return len(first) == 1 and bool(first[0].strip()) and not is_meant_as_numbers(first[0])


def _line_ends(cell: str) -> int:
    return cell.count("\n") + cell.count("\r") - cell.count("\r\n")


def _first_hint(first: list[str]) -> str | None:
    """Return what is probably wrong with a first row that is shorter than others."""
    if first[0].startswith("#"):
        return "# does not start a comment: delete the first line"
    if first[0].lower().startswith("sep="):
        return "delete the first line, which only Excel understands"
    return None


def _count_alike(columns: list[str], rows: list[str]) -> bool:
    """Whether columns that count from 1 stand over rows that do, or have words; or do not."""
    if columns[:1] != ["1"] or not all(map(is_numeric, columns)):
        return True
    if rows and not is_meant_as_numbers(rows[0]):
        return True
    return rows == [str(row) for row in range(1, len(rows) + 1)]


def _skim(table: _Table, body: _Body, headings: Headings, start: int, width: int) -> Iterator[Row]:
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


def _slowly(table: _Table, data: bytes, before: int) -> Iterator[Row]:
    """Return the rows of the end of a table, behind so many lines."""
    if not data.isascii():
        table.source.text()  # says where it is not UTF-8
    return _Table(table.source, data, table.delimiter, before).rows()


def _check_label(
    table: _Table, headings: Headings, first_line: int, above: list[str], row: Row
) -> None:
    line, cells = row
    if headings.certain or not is_numeric(cells[0]):
        return
    what = f"expected a word, as above; found the number {quoted(cells[0])}"
    if headings.row:
        raise table.refusal(what, line, 1, f"if the first column holds labels, {_EMPTY_CORNER}")
    hint = _ADD_HEADER
    if len(above) == 1 and above[0].lstrip("+-.")[:1].isdigit():  # 0x1F, --1, 1d3
        what = f"expected a number; found {quoted(above[0])}"
        raise table.refusal(what, first_line, 1, hint)
    if above:
        hint += f"; if not, mend {quoted(above[0])} in the first row, which is no number"
    raise table.refusal(what, line, 1, hint)
