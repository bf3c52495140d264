"""Read tables, with commas, tabs, semicolons or blanks: a matrix and the names in its margins."""

from __future__ import annotations

import csv
import io
import itertools
import re
from array import array
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError, warn
from attncli.errors.text import counted, quoted
from attncli.loading import source as limits
from attncli.loading.contents import LoadedArray
from attncli.loading.headings import (
    PLAINLY,
    Headings,
    find_headings,
    names_behind_index,
    settle,
)
from attncli.loading.number import (
    DECIMAL_POINTS,
    NumberOverflowError,
    has_decimal_comma,
    is_hole,
    is_numeric,
    is_truth,
    parse_number,
    printed_alike,
)

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.loading.source import Source

# Bytes: for shorter tables the import of orjson takes longer than it saves.
_LONG = 2**16
# Bytes parsed at once: their numbers are Python objects first, which take much memory.
_BLOCK = 2**18
_PLAIN = b"0123456789+-.eE, \n"

_FILL = "fill the hole with a number, or leave out its row (pandas: fillna, dropna)"
_LENGTH = "every row has as many cells as the first one; begin titles and comments above it with #"
_MASK = "in a mask, write 1 for true and 0 for false, in every cell"
_SEPARATOR_LINE = re.compile(rb'("?)sep=([,;\t])\1 *(?=[\r\n])', re.IGNORECASE)
# Blank lines and comments. Not comments: a first cell # above row numbers, and errors like #N/A.
_COMMENTS = re.compile(rb"(?:[ \t\r]*(?:#(?!#*[,;\t]|N/A|[A-Z/0]+[!?])[^\n]*)?\n)*+")
# 1,5 and 0,123 have a decimal comma; 1,234 may as well have a separator of thousands.
_COMMA = re.compile(
    rb'[;\t"\n] *[-+]?(?:\d*,\d{1,2}|0*,\d+|\d*,\d{4,})(?:[eE][-+]?\d+)? *(?=[;\t"\r\n]|$)'
)
_POINT = re.compile(rb'[;\t"\n] *[-+]?[\d,]*\.\d')
# Decimal commas in a row that commas separate: 1,50, -2,00, perhaps behind a label.
_COMMA_PAIRS = re.compile(
    r"(?:[^,]*, *)?[-+]?\d*,\d+(?:[eE][-+]?\d+)?(?:, +[-+]?\d*,\d+(?:[eE][-+]?\d+)?)+ *"
)
# The separator is found in this many lines at most, and in this many bytes.
_LOOKED_AT, _SAMPLE = 20, 2**16
_QUOTATION = "is a quotation mark left open? A label of one is written with four: " + '"' * 4
Row = list[str]


def read(source: Source) -> LoadedArray:
    """Read a table of numbers, or of booleans where every cell is true or false."""
    table = _open_table(source)
    if table.decimal_commas:
        warn(f"{source.name}: its decimal commas are read as decimal points")
    with limits.no_collection():
        found = _long(table) if len(table.data) > _LONG else None
        found = found or _any(table)
    printed = printed_alike(table.data[:_BLOCK].decode("ascii", "replace"))
    return replace(settle(found, source.header), printed=printed, is_table=True)


class _Table(NamedTuple):
    """The text of a table; ``before`` counts the comment lines above it."""

    source: Source
    data: bytes
    separator: str
    before: int = 0
    decimal_commas: bool = False

    def reader(self) -> Any:
        """Return a strict reader: a lax one would read ``"1"2`` as 12."""
        blanks = self.separator == " "
        data = self.data.replace(b"\t", b" ") if blanks else self.data
        lines = io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="")
        return csv.reader(lines, delimiter=self.separator, strict=True, skipinitialspace=blanks)

    def rows(self) -> list[Row]:
        """Return the rows without blank lines."""
        rows: list[Row] = []
        try:
            rows.extend(self.reader())
        except csv.Error as error:  # in the row behind the last of these rows
            line = len(rows) + sum(cell.count("\n") for cells in rows for cell in cells) + 1
            what = f"expected a row of cells; found none ({error})"
            raise self.wrong(what, line, 1, _QUOTATION) from error
        rows = [cells for cells in rows if len(cells) > 1 or (cells and cells[0].strip())]
        if self.separator == " ":  # blanks at the end of a line begin another cell
            rows = [cells if cells[-1] else cells[:-1] for cells in rows]
        return rows

    def wrong(self, what: str, line: int, column: int, hint: str | None = None) -> InputError:
        """Return the error about a cell."""
        place = f"{self.source.name}: line {self.before + line}, column {column}"
        return InputError(f"{place}: {what}", hint=hint)

    def line_of(self, row: int, cells: Row, at: int) -> int:
        """Return the line on which a cell begins; blank lines do not count as rows."""
        reader = self.reader()
        for found in reader:
            if len(found) > 1 or (found and found[0].strip()):
                if row == 0:
                    break
                row -= 1
        return int(reader.line_num) - sum(cell.count("\n") for cell in cells[at:])


def _open_table(source: Source) -> _Table:
    """Find the text below the comments, its separator and its decimal sign."""
    data = source.text_bytes(limits.NUMBERS_LIMIT)
    if b"\n" not in data:  # Excel's CSV (Macintosh)
        data = data.replace(b"\r", b"\n")
    named = _SEPARATOR_LINE.match(data)
    data = data[named.end() :] if named else data
    comments = _COMMENTS.match(data)
    above = comments[0] if comments and comments.end() < len(data) else b""
    data = data[len(above) :]
    separator = named[2].decode() if named else _find_separator(data)
    _check_cells(source.name, data, separator, limits.MOST_NUMBERS)
    commas = separator in ";\t" and b"," in data and _COMMA.search(b"\n" + data) is not None
    commas = commas and not (b"." in data and _POINT.search(b"\n" + data))
    table = _Table(source, data, separator, above.count(b"\n"), commas)
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
    # A decimal comma is no separator: it counts for the others, and they count against a comma.
    if separator == ",":
        others = -sum(";" in cell or "\t" in cell for cell in cells)
    else:
        others = sum(map(has_decimal_comma, cells))
    return others + sum(map(is_numeric, cells)), len(cells)


def _sample(data: bytes) -> list[str]:
    return data[:_SAMPLE].decode("utf-8", "replace").splitlines()


def _check_cells(name: str, data: bytes, separator: str, most: int) -> None:
    """Refuse too many cells before they take memory."""
    codes = np.frombuffer(data, np.uint8)
    if separator == " ":  # one cell for each run of blanks
        blank = codes <= ord(" ")
        cells = int(np.count_nonzero(blank[1:] > blank[:-1]))
    else:
        cells = sum(int(np.count_nonzero(codes == ord(end))) for end in (separator, "\n"))
    if cells > most:
        raise limits.too_many_cells(name, cells, most)


def _advise_on_comments(table: _Table, above: bytes) -> None:
    """Warn of a comment that looks like a row whose label begins with #."""
    width = _sample(table.data)[0].count(table.separator)
    for line in _sample(above)[:_LOOKED_AT]:
        _, *others = line.split(None if table.separator == " " else table.separator) or [""]
        if others and len(others) == width and all(map(is_numeric, others)):
            warn(
                f"{table.source.name}: {quoted(line)} is read as a comment, since it begins with "
                "#. If it is a row, put its label in quotation marks"
            )


def _long(table: _Table) -> LoadedArray | None:
    """Read a long table of plain numbers, perhaps below a header; None for other tables."""
    reader = table.reader()
    try:
        first, line = next(reader), reader.line_num
        second: Row = next(reader, [])
    except csv.Error:
        return None
    if len(first) != len(second):
        return None
    headings = find_headings(first, second, [], table.source.header)
    if headings.column:
        return None
    below = table.data.split(b"\n", line)[-1] if headings.row else table.data
    values = _plain_numbers(below, table)
    if values is None or values.shape[1] != len(first):
        return None
    return LoadedArray(values, table.source.name, None, tuple(first) if headings.row else None)


def _plain_numbers(data: bytes, table: _Table) -> npt.NDArray[np.float64] | None:
    """Read lines of JSON numbers; None if they hold anything else."""
    parts: list[npt.NDArray[np.float64]] = []
    data, start = data.replace(b"\r\n", b"\n").strip(b"\n"), 0
    while start < len(data):
        end = data.find(b"\n", start + _BLOCK) % (len(data) + 1)
        part = _block(data[start:end], table)
        if part is None or part.shape[1:] != (parts or [part])[0].shape[1:]:
            return None
        parts.append(part)
        start = end + 1
    return np.concatenate(parts) if parts else None


def _block(lines: bytes, table: _Table) -> npt.NDArray[np.float64] | None:
    import orjson  # noqa: PLC0415 - most runs read nothing long

    if table.decimal_commas:
        lines = lines.replace(b",", b".")
    if table.separator == " ":
        lines = b"\n".join(b",".join(line.split()) for line in lines.split(b"\n"))
    elif table.separator != ",":
        lines = lines.replace(table.separator.encode(), b",")
    if lines.translate(None, _PLAIN):
        return None
    text = b"[[%b]]" % lines.replace(b"\n", b"],[")
    try:
        values = np.array(orjson.loads(text), np.float64)
    except ValueError:  # not JSON, or lines of different lengths
        return None
    # orjson reads -0 as a whole number, which has no sign.
    signed = not values.all() and any(zero in text for zero in (b"-0,", b"-0]", b"-0 "))
    return None if signed or values.ndim != 2 else values


def _any(table: _Table) -> LoadedArray:
    """Read any table cell by cell, and report the first wrong cell."""
    name, header = f"{table.source.name}, a table with labels or texts", table.source.header
    if len(table.data) > limits.TEXT_LIMIT:
        raise limits.too_long(f"{name},", limits.TEXT_LIMIT)
    _check_cells(name, table.data, table.separator, limits.MOST_CELLS)
    rows = _trimmed(table.rows())
    if not rows:
        raise InputError(f"{table.source.name} holds no numbers")
    if header != "no" and _lacks_corner(rows):
        rows[0] = ["", *rows[0]]
    labels = [cells[0] for cells in rows[1:]]
    headings = find_headings(rows[0], rows[1] if len(rows) > 1 else None, labels, header)
    if headings.row and headings.column and names_behind_index(rows):
        warn(
            f"{table.source.name}: the first column is left out: it counts the rows, and "
            f"{quoted(rows[0][1])} holds their labels"
        )
        rows = [cells[1:] for cells in rows]
    return _array(table, headings, rows)


def _trimmed(rows: list[Row]) -> list[Row]:
    """Remove empty rows and columns at the end."""
    while rows and not any(map(str.strip, rows[-1])):
        rows.pop()
    if not rows or rows[0][-1].strip():
        return rows
    count = min(map(_empty_at_the_end, rows))
    return [cells[: len(cells) - count] for cells in rows] if count else rows


def _empty_at_the_end(cells: Row) -> int:
    filled = (at for at, cell in enumerate(reversed(cells)) if cell.strip())
    return next(filled, len(cells))


def _lacks_corner(rows: list[Row]) -> bool:
    """Whether the first row names columns and has one cell less than the rows below, as in R."""
    first, second = rows[0], rows[1] if len(rows) > 1 else []
    if len(second) != len(first) + 1 or (len(first) < 2 and not second[-1].strip()):
        return False
    counted_on = first == [str(at) for at in range(len(first))]
    named = not any(is_numeric(cell) or is_truth(cell) for cell in first) or counted_on
    # R counts unnamed rows from 1, pandas from 0. R ends no row with a separator.
    labels = [cells[0] for cells in rows[1:]]
    counts = any(labels == [str(at + start) for at in range(len(labels))] for start in (0, 1))
    labelled = counts or not (is_numeric(second[0]) or is_truth(second[0]))
    return named and labelled and bool(second[-1].strip())


def _array(table: _Table, headings: Headings, rows: list[Row]) -> LoadedArray:
    """Return the numbers of the rows, without their labels."""
    top, start, width = int(headings.row), int(headings.column), len(rows[0])
    body = rows[top:]
    if {*map(len, body)} - {width}:
        raise _ragged(table, rows)
    if not body:
        raise table.wrong(f"expected numbers; found only {quoted(rows[0][0])}", 1, 1)
    if start and not headings.certain:
        _refuse_numbers_among_labels(table, rows, top)
    flat = [cell for cells in body for cell in cells[start:]]
    if is_truth(flat[0]) and all(map(is_truth, flat)):
        values, good = np.array([cell.strip().lower() == "true" for cell in flat]), len(flat)
    else:
        values, good = _numbers(flat, decimal_commas=table.decimal_commas)
    if good < len(flat):
        row, at = divmod(good, width - start)
        raise _wrong_cell(table, rows, top + row, start + at)
    found = LoadedArray(
        values.reshape(-1, width - start),
        table.source.name,
        tuple(cells[0] for cells in body) if start else None,
        tuple(rows[0][start:]) if top else None,
    )
    _refuse_swallowed(table, found)
    return found


def _ragged(table: _Table, rows: list[Row]) -> InputError:
    width = len(rows[0])
    row, cells = next((row, cells) for row, cells in enumerate(rows) if len(cells) != width)
    what = f"expected {counted(width, 'cell')}, as in the first row; found {len(cells)}"
    at = min(len(cells), width)
    return table.wrong(what, table.line_of(row, cells, at), at + 1, _LENGTH)


def _refuse_numbers_among_labels(table: _Table, rows: list[Row], top: int) -> None:
    labels = [cells[0] for cells in rows[top:]]
    number = next((at for at, label in enumerate(labels) if is_numeric(label)), None)
    if number is not None:
        word = next((label for label in labels if not is_numeric(label)), rows[0][0])
        what = f"expected a word, as {quoted(word)}; found the number {quoted(labels[number])}"
        row = top + number
        raise table.wrong(what, table.line_of(row, rows[row], 0), 1, PLAINLY)


def _numbers(cells: Row, *, decimal_commas: bool) -> tuple[npt.NDArray[Any], int]:
    """Return the numbers up to the first wrong cell, and the index of that cell."""
    if decimal_commas:
        cells = "\0".join(cells).replace(",", ".").split("\0")  # no cell holds NUL
    numbers = array("d")
    with suppress(ValueError):
        numbers.extend(map(float, cells))
    values = np.frombuffer(numbers)
    wrong = [int(at) for at in np.flatnonzero(np.isinf(values)) if re.search(r"\d", cells[at])]
    joined = "".join(cells)
    if not joined.isascii() or "_" in joined:
        wrong += [at for at, cell in enumerate(cells) if not cell.isascii() or "_" in cell]
    return values, min([len(values), *wrong])


def _wrong_cell(table: _Table, rows: list[Row], row: int, at: int) -> InputError:
    cells, cell = rows[row], rows[row][at]
    what = f"expected a number; found {quoted(cell) if cell.strip() else 'an empty cell'}"
    try:
        parse_number(cell.replace(",", ".") if table.decimal_commas else cell)
    except NumberOverflowError as error:
        what = str(error)
    hint = DECIMAL_POINTS if has_decimal_comma(cell) else PLAINLY
    if any(map(is_truth, cells)) or cell.strip().lower() in ("yes", "no"):
        hint = _MASK
    elif is_hole(cell):
        hint = _FILL
    return table.wrong(what, table.line_of(row, cells, at), at + 1, hint)


def _refuse_swallowed(table: _Table, found: LoadedArray) -> None:
    """Refuse a label that holds whole rows, because a quotation mark was left open."""
    for label in (*(found.row_labels or ()), *(found.column_labels or ())):
        for text in label.splitlines() if "\n" in label else ():
            _, *numbers = text.split(table.separator)
            if len(numbers) == found.values.shape[1] and all(map(is_numeric, numbers)):
                line = table.data.count(b"\n", 0, table.data.find(label.encode())) + 1
                raise table.wrong(f"expected a label; found {quoted(label)}", line, 1, _QUOTATION)
