"""The text of a table: what separates its cells, its comments, and its decimal commas."""

from __future__ import annotations

import csv
import io
import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError, warn
from attncli.errors.text import quoted
from attncli.loading import source as limits
from attncli.loading.number import DECIMAL_POINTS, has_decimal_comma, is_numeric

if TYPE_CHECKING:
    from attncli.loading.source import Source

__all__ = ["QUOTATION", "Row", "Table", "check_cells", "open_table", "separator_line"]

_SEPARATOR_LINE = re.compile(rb'("?)sep=([,;\t])\1 *(?=[\r\n])', re.IGNORECASE)
# These lines are no comments: a first cell that is only #, the heading of row numbers, or an error
# of Excel, such as #N/A.
_COMMENTS = re.compile(rb"(?:[ \t\r]*(?:#(?!#*[,;\t]|N/A|[A-Z/0]+[!?])[^\n]*)?\n)*+")
# 1,5 and 0,123 have a decimal comma; 1,234 may as well have a separator of thousands.
_COMMA = re.compile(
    rb'[;\t"\n] *[-+]?(?:\d*,\d{1,2}|0*,\d+|\d*,\d{4,})(?:[eE][-+]?\d+)? *(?=[;\t"\r\n]|$)'
)
_POINT = re.compile(rb'[;\t"\n] *[-+]?[\d,]*\.\d')
# 1,50, -2,00 in a row that commas separate, perhaps behind a label.
_COMMA_PAIRS = re.compile(
    r"(?:[^,]*, *)?[-+]?\d*,\d+(?:[eE][-+]?\d+)?(?:, +[-+]?\d*,\d+(?:[eE][-+]?\d+)?)+ *"
)
# The lines that tell the separator, and bytes in which they are looked for.
_LOOKED_AT, _SAMPLE = 20, 2**16
QUOTATION = "is a quotation mark left open? One that is a label is written four times: " + '"' * 4
Row = list[str]


class Table(NamedTuple):
    """The text of a table that is not read yet; ``before`` counts the lines above it."""

    source: Source
    data: bytes
    separator: str
    before: int = 0
    decimal_commas: bool = False

    def reader(self) -> Any:
        """Return the csv module's reader: strict, or ``"1"2`` would be 12."""
        blanks = self.separator == " "
        data = self.data.replace(b"\t", b" ") if blanks else self.data
        lines = io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="")
        return csv.reader(lines, delimiter=self.separator, strict=True, skipinitialspace=blanks)

    def rows(self) -> list[Row]:
        """Return the rows that are not blank."""
        rows: list[Row] = []
        try:
            rows.extend(self.reader())
        except csv.Error as error:  # in the row behind those that are good
            line = len(rows) + sum(cell.count("\n") for cells in rows for cell in cells) + 1
            what = f"expected a row of cells; found none ({error})"
            raise self.wrong(what, line, 1, QUOTATION) from error
        rows = [cells for cells in rows if len(cells) > 1 or (cells and cells[0].strip())]
        if self.separator == " ":  # blanks at the end of a line begin another cell
            rows = [cells if cells[-1] else cells[:-1] for cells in rows]
        return rows

    def wrong(self, what: str, line: int, column: int, hint: str | None = None) -> InputError:
        """Return the error of what is wrong with a cell."""
        place = f"{self.source.name}: line {self.before + line}, column {column}"
        return InputError(f"{place}: {what}", hint=hint)

    def line_of(self, row: int, cells: Row, at: int) -> int:
        """Return the line on which a cell begins, of a row that is counted without blank ones."""
        reader = self.reader()
        for found in reader:
            if len(found) > 1 or (found and found[0].strip()):
                if row == 0:
                    break
                row -= 1
        return int(reader.line_num) - sum(cell.count("\n") for cell in cells[at:])


def separator_line(data: bytes) -> tuple[str | None, bytes]:
    """Return the separator that a first line ``sep=;`` sets, and the data behind it."""
    named = _SEPARATOR_LINE.match(data)
    return (named[2].decode(), data[named.end() :]) if named else (None, data)


def open_table(source: Source) -> Table:
    """Return the text of a table without comments, and with what separates its cells."""
    data = source.text_bytes(limits.NUMBERS_LIMIT)
    if b"\n" not in data:  # Excel's CSV (Macintosh)
        data = data.replace(b"\r", b"\n")
    named, data = separator_line(data)
    comments = _COMMENTS.match(data)
    above = comments[0] if comments and comments.end() < len(data) else b""
    data = data[len(above) :]
    separator = named or _find_separator(data)
    check_cells(source.name, data, separator, limits.MOST_NUMBERS)
    commas = separator in ";\t" and b"," in data and _COMMA.search(b"\n" + data) is not None
    commas = commas and not (b"." in data and _POINT.search(b"\n" + data))
    table = Table(source, data, separator, above.count(b"\n"), commas)
    first = _sample(data)[:2]
    if separator == "," and first and all(map(_COMMA_PAIRS.fullmatch, first)):
        raise table.wrong(f"expected a number; found {quoted(first[0])}", 1, 1, DECIMAL_POINTS)
    _advise_on_comments(table, above)
    return table


def _find_separator(data: bytes) -> str:
    """Return the separator that makes the most numbers of the first lines, then the most cells."""
    lines = [line for line in _sample(data)[:_LOOKED_AT] if line.strip()]
    found = max(",;\t", key=lambda separator: _merit(lines, separator))
    tabs = found == "\t" and all("\t\t" in line.strip() for line in lines)
    if all(found in line for line in lines) and not tabs:
        return found
    blanks = [" ".join(line.split()) for line in lines]
    return " " if _merit(blanks, " ")[0] > _merit(lines, found)[0] - tabs else found


def _merit(lines: list[str], separator: str) -> tuple[int, int]:
    try:
        cells = list(itertools.chain.from_iterable(csv.reader(lines, delimiter=separator)))
    except csv.Error:  # a cell of absurd length
        return 0, 0
    # Where a comma is the decimal point it separates nothing.
    if separator == ",":
        others = -sum(";" in cell or "\t" in cell for cell in cells)
    else:
        others = sum(map(has_decimal_comma, cells))
    return others + sum(map(is_numeric, cells)), len(cells)


def _sample(data: bytes) -> list[str]:
    return data[:_SAMPLE].decode("utf-8", "replace").splitlines()


def check_cells(name: str, data: bytes, separator: str, most: int) -> None:
    """Refuse too many cells before any of them takes memory."""
    codes = np.frombuffer(data, np.uint8)
    if separator == " ":  # as many as there are runs of blanks
        blank = codes <= ord(" ")
        cells = int(np.count_nonzero(blank[1:] > blank[:-1]))
    else:
        cells = sum(int(np.count_nonzero(codes == ord(end))) for end in (separator, "\n"))
    if cells > most:
        raise limits.too_many_cells(name, cells, most)


def _advise_on_comments(table: Table, above: bytes) -> None:
    """Warn of a comment that may as well be a row: of a token that begins with #."""
    width = _sample(table.data)[0].count(table.separator)
    for line in _sample(above)[:_LOOKED_AT]:
        _, *others = line.split(None if table.separator == " " else table.separator) or [""]
        if others and len(others) == width and all(map(is_numeric, others)):
            warn(
                f"{table.source.name}: {quoted(line)} is read as a comment, since it begins with "
                "#. If it is a row, put its label in quotation marks"
            )
