"""The text of a CSV or TSV table: its rows, where they are, and how large it may be."""

from __future__ import annotations

import csv
import io
import itertools
import re
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.loading.source import Source

__all__ = ["Body", "Row", "Table", "after", "has_lone_returns", "line_ends", "refuse_large"]

# What is counted at once; small enough for the cache.
_BLOCK = 2**18
# Each cell of a row is an object of its own while the row is looked at.
_MOST_CELLS = 1_000_000
# Numbers are read at a tenth of a microsecond each; rows with words in them at two.
_MOST_NUMBERS, _MOST_ROWS = 12_000_000, 500_000
_AS_NPY = "save it as an NPY file"
_LONE_RETURN = re.compile(rb"\r(?!\n)")

Row = tuple[int, list[str]]  # the line it ends on, and its cells


class Table(NamedTuple):
    """A table that is not read yet.

    Attributes
    ----------
    source : Source
    data : bytes
    delimiter : str
    before : int
        Lines of the file that stand before the data.
    """

    source: Source
    data: bytes
    delimiter: str
    before: int = 0

    def rows(self, errors: str = "strict") -> Iterator[Row]:
        """Yield the rows that are not blank."""
        lines = io.TextIOWrapper(io.BytesIO(self.data), "utf-8", errors, newline="")
        # Strict, or "1"2 would be 12.
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        read = 0
        try:
            for cells in reader:
                read = reader.line_num
                self.refuse_long(reader.line_num)
                if len(cells) > 1 or (cells and cells[0].strip()):
                    yield self.before + reader.line_num, cells
        except csv.Error as error:
            line, at, what = self._broken(read, reader.line_num, str(error))
            hint = "is a quotation mark left open?"
            raise self.refusal(what, self.before + line, at, hint) from error

    def _broken(self, read: int, line: int, error: str) -> tuple[int, int, str]:
        """Return line, column and what is wrong with a row, behind lines that could be read."""
        if "end of data" not in error:
            return line, self._longest_cell(line), error
        # The quotation that the end of the file closes began in the row behind the last good one.
        rest = self.data.split(b"\n", read)[-1].decode(errors="replace")
        cells = next(csv.reader(io.StringIO(rest, newline=""), delimiter=self.delimiter), [""])
        begun = read + 1 + sum(map(line_ends, cells[:-1]))
        return begun, len(cells), f"expected a number; found {quoted(cells[-1])}"

    def _longest_cell(self, line: int) -> int:
        """Return which cell of a line goes on for too long, or 1 where it began before."""
        text = next(itertools.islice(io.BytesIO(self.data), line - 1, None), b"")
        lengths = [len(cell) for cell in text.split(self.delimiter.encode())]
        return lengths.index(max(lengths)) + 1

    def refuse_long(self, lines: int) -> None:
        """Refuse to look at more lines one by one than is decent."""
        if lines > _MOST_ROWS:
            what = f"expected at most {_MOST_ROWS:,} rows, in a table of more than plain numbers"
            raise self.refusal(what, self.before + lines, 1, "save the numbers as an NPY file")

    def refusal(self, what: str, line: int, column: int, hint: str | None = None) -> InputError:
        """Return the error of what is wrong with a cell, by its line and column."""
        msg = f"{self.source.name}: line {line}, column {column}: {what}"
        return InputError(msg, hint=hint)


@dataclass(eq=False)
class Body:
    """The numbers and row labels read so far."""

    table: Table
    numbers: array[float] = field(default_factory=lambda: array("d"))
    labels: list[str] = field(default_factory=list)

    def refuse_many(self) -> None:
        """Refuse what turns out to be more than `_refuse_many` saw."""
        if len(self.numbers) > _MOST_NUMBERS:
            raise _too_many_cells(self.table, "more")


def refuse_large(table: Table) -> None:
    """Refuse a table with a line of millions of cells, or with too many cells in all.

    Raises
    ------
    InputError
    """
    _refuse_wide(table)
    _refuse_many(table)


def _refuse_many(table: Table) -> None:
    """Refuse what would take more memory as numbers than is decent, if its first lines show it."""
    size = len(table.data)
    if size < 2 * _MOST_NUMBERS:  # a number takes two bytes, one that ends it
        return
    # To count all of them takes longer than to read a fiftieth: `Body` counts on the way.
    if _about_cells(table, _BLOCK) * size <= _MOST_NUMBERS * _BLOCK:
        return
    cells = _about_cells(table, size)
    if cells > _MOST_NUMBERS:
        raise _too_many_cells(table, f"about {cells:,}")


def _about_cells(table: Table, size: int) -> int:
    """Count separators and line ends; `bytes.count` would take five times as long."""
    data = np.frombuffer(table.data, np.uint8)
    pieces = (data[start : start + _BLOCK] for start in range(0, size, _BLOCK))
    ends = ord(table.delimiter), ord("\n")
    return sum(int(np.count_nonzero(piece == end)) for piece in pieces for end in ends)


def _too_many_cells(table: Table, found: str) -> InputError:
    msg = f"{table.source.name}: expected at most {_MOST_NUMBERS:,} cells; found {found}"
    return InputError(msg, hint=_AS_NPY)


def _refuse_wide(table: Table) -> None:
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


def after(data: bytes, lines: int) -> bytes:
    """Return what stands behind so many lines; nothing where others count them differently."""
    start = 0
    for _ in range(lines):
        start = data.find(b"\n", start) + 1 or len(data)
    return b"" if has_lone_returns(data[:start]) else data[start:]


def has_lone_returns(data: bytes) -> bool:
    """Look for line ends of the csv module's that nobody else counts."""
    return b"\r" in data and bool(_LONE_RETURN.search(data))


def line_ends(cell: str) -> int:
    """Return how many lines end in a cell."""
    return cell.count("\n") + cell.count("\r") - cell.count("\r\n")
