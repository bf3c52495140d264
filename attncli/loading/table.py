"""Read CSV, TSV and tables with blanks: a matrix, with the names of its rows and columns."""

from __future__ import annotations

import csv
import io
import itertools
import re
from array import array
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from attncli.errors import InputError, warn
from attncli.errors.text import counted, quoted
from attncli.loading import source as limits
from attncli.loading.contents import LoadedArray
from attncli.loading.headings import Headings, find_headings, names_behind_index, settle
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
    from collections.abc import Iterator

    import numpy.typing as npt

    from attncli.loading.source import Source

__all__ = ["read_table", "separator_line"]

_SEPARATOR_LINE = re.compile(rb'("?)sep=([,;\t])\1 *(?=[\r\n])', re.IGNORECASE)
# A line is a row if its first cell is #, the heading of numbered rows, or an error of Excel's.
_COMMENTS = re.compile(rb"(?:[ \t\r]*(?:#(?!#*[,;\t]|N/A|[A-Z/0]+[!?])[^\n]*)?\n)*+")
_LONE_RETURN = re.compile(rb"\r(?!\n)")
# 1,5 and 0,123 have a decimal comma; 1,234 may as well have a separator of thousands.
_COMMA = re.compile(
    rb'[;\t"\n] *[-+]?(?:\d*,\d{1,2}|0*,\d+|\d*,\d{4,})(?:[eE][-+]?\d+)? *(?=[;\t"\r\n]|$)'
)
_POINT = re.compile(rb'[;\t"\n] *[-+]?[\d,]*\.\d')
# 1,50, -2,00 in a row that commas separate, perhaps behind a label.
_COMMA_PAIRS = re.compile(
    r"(?:[^,]*, *)?[-+]?\d*,\d+(?:[eE][-+]?\d+)?(?:, +[-+]?\d*,\d+(?:[eE][-+]?\d+)?)+ *"
)
# Among labels with NUL between them, one that does not begin as a word, as every number does.
_NO_LETTER = re.compile(r"(?:\A|\0)(?![^\W\d_iInN])")
# The lines that tell the separator, and bytes in which they are looked for.
_LOOKED_AT, _SAMPLE = 20, 2**16
# Shorter tables are read sooner than the parser of long ones is imported.
_LONG = 2**16
# Bytes that are parsed at once: their numbers are Python's own objects for a while.
_BLOCK = 2**18
_PLAIN = b"0123456789+-.eE, \n"

_FILL = "fill the hole with a number, or leave out its row (pandas: fillna, dropna)"
_LABELS = "if the first column holds labels, write a header row whose first cell is empty"
_LENGTH = "every row has as many cells as the first one; begin titles and comments above it with #"
_QUOTATION = "is a quotation mark left open? One that is a label is written four times: " + '"' * 4
_MASK = "in a mask, write 1 for true and 0 for false, in every cell"
_PLAINLY = "write numbers in plain digits, as -1234.5"

Row = list[str]


class _Table(NamedTuple):
    """The text of a table that is not read yet; ``before`` counts the lines above it."""

    source: Source
    data: bytes
    separator: str
    before: int = 0
    decimal_commas: bool = False

    def rows(self) -> Iterator[tuple[int, Row]]:
        """Yield the rows that are not blank, each with the line that it ends on."""
        data = self.data.replace(b"\t", b" ") if self.separator == " " else self.data
        lines = io.TextIOWrapper(io.BytesIO(data), "utf-8", newline="")
        blanks = self.separator == " "
        # Strict, or "1"2 would be 12.
        reader = csv.reader(lines, delimiter=self.separator, strict=True, skipinitialspace=blanks)
        read = 0
        try:
            for cells in reader:
                read = reader.line_num
                if blanks and cells and not cells[-1]:  # behind blanks at the end of the line
                    cells.pop()
                if len(cells) > 1 or (cells and cells[0].strip()):
                    yield read, cells
        except csv.Error as error:
            # What the end of the file closes began in the row behind the last good one.
            rest = _behind(data, read)[:_SAMPLE].decode(errors="replace")
            cells = next(csv.reader(io.StringIO(rest, newline=""), delimiter=self.separator), [""])
            line = read + 1 + sum(cell.count("\n") for cell in cells[:-1])
            what = f"expected a number; found {quoted(cells[-1])} ({error})"
            self.refuse(what, line, len(cells), _QUOTATION)

    def refuse(self, what: str, line: int, column: int, hint: str | None = None) -> NoReturn:
        """Raise the error of what is wrong with a cell."""
        place = f"{self.source.name}: line {self.before + line}, column {column}"
        raise InputError(f"{place}: {what}", hint=hint)


def read_table(source: Source) -> LoadedArray:
    """Read a table of numbers, or of bool where every cell is true or false."""
    table = _table(source)
    if table.decimal_commas:
        warn(f"{source.name}: its decimal commas are read as decimal points")
    with limits.no_collection():
        found = _long(table) if len(table.data) > _LONG else None
        if found is None:
            found = _any(table)
    printed = printed_alike(table.data[:_BLOCK].decode("ascii", "replace"))
    return replace(settle(found, source.header), printed=printed, is_table=True)


def separator_line(data: bytes) -> tuple[str | None, bytes]:
    """Return the separator that a first line ``sep=;`` sets, and the data behind it."""
    named = _SEPARATOR_LINE.match(data)
    return (named[2].decode(), data[named.end() :]) if named else (None, data)


def _table(source: Source) -> _Table:
    """Return the text of a table without comments, and with what separates its cells."""
    data = source.text_bytes(limits.NUMBERS_LIMIT)
    if b"\n" not in data:  # Excel's CSV (Macintosh)
        data = data.replace(b"\r", b"\n")
    if not data.isascii():
        source.text()  # says where it is not UTF-8
    named, data = separator_line(data)
    comments = _COMMENTS.match(data)
    above = comments[0] if comments and comments.end() < len(data) else b""
    data = data[len(above) :]
    separator = named or _find_separator(data)
    cells = _count_cells(data, separator)
    if cells > limits.MOST_NUMBERS:
        raise limits.too_many_cells(source.name, cells, limits.MOST_NUMBERS)
    commas = separator in ";\t" and b"," in data and _has_decimal_commas(b"\n" + data)
    table = _Table(source, data, separator, above.count(b"\n"), commas)
    first = _sample(data)[:2]
    if separator == "," and first and all(map(_COMMA_PAIRS.fullmatch, first)):
        table.refuse(f"expected a number; found {quoted(first[0])}", 1, 1, DECIMAL_POINTS)
    _advise_on_comments(table, above)
    return table


def _has_decimal_commas(data: bytes) -> bool:
    return _COMMA.search(data) is not None and not (b"." in data and _POINT.search(data))


def _find_separator(data: bytes) -> str:
    """Return the separator that makes the most numbers of the first lines, then the most cells.

    Blanks stand in names, too: they separate only where nothing else does in every line, or where
    several tabs do.
    """
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


def _count_cells(data: bytes, separator: str) -> int:
    """Return about how many cells there are, before any of them takes memory."""
    cells = 0
    for start in range(0, len(data), _BLOCK):
        codes = np.frombuffer(data[start : start + _BLOCK], np.uint8)
        if separator == " ":
            blank = codes <= ord(" ")
            cells += int(np.count_nonzero(blank[1:] & ~blank[:-1]))
        else:  # bytes.count would take five times as long
            cells += sum(int(np.count_nonzero(codes == ord(end))) for end in (separator, "\n"))
    return cells


def _advise_on_comments(table: _Table, above: bytes) -> None:
    """Warn of a comment that may as well be a row: of a token that begins with #."""
    width = _sample(table.data)[0].count(table.separator)
    for line in _sample(above)[:_LOOKED_AT]:
        _, *others = line.split(None if table.separator == " " else table.separator) or [""]
        if others and len(others) == width and all(map(is_numeric, others)):
            warn(
                f"{table.source.name}: {quoted(line)} is read as a comment, since it begins with "
                "#. If it is a row, put its label in quotation marks"
            )


def _long(table: _Table) -> LoadedArray | None:
    """Read a long table of plain numbers, perhaps below a header; None where it is another."""
    head = list(itertools.islice(table.rows(), 2))
    (line, first), second = head[0], head[1][1] if len(head) > 1 else None
    headings = find_headings(first, second, None, table.source.header)
    if headings.column or headings.truths or len(head) < 2 or len(first) != len(second or first):
        return None
    values = _plain_numbers(_behind(table.data, line) if headings.row else table.data, table)
    if values is None or values.shape[1] != len(first):
        return None
    return LoadedArray(values, table.source.name, None, tuple(first) if headings.row else None)


def _behind(data: bytes, lines: int) -> bytes:
    """Return the data behind so many lines."""
    start = 0
    for _ in range(lines):
        start = data.find(b"\n", start) + 1 or len(data)
    return data[start:]


def _plain_numbers(data: bytes, table: _Table) -> npt.NDArray[np.float64] | None:
    """Read lines of numbers as JSON writes them; None where they hold anything else."""
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
    except ValueError:  # no JSON, or lines of other lengths
        return None
    # As a whole number, -0 has lost its sign.
    signed = not values.all() and any(zero in text for zero in (b"-0,", b"-0]", b"-0 "))
    return None if signed or values.ndim != 2 else values


def _any(table: _Table) -> LoadedArray:
    """Read any table cell by cell, and say where it is not one."""
    cells, words = _count_cells(table.data, table.separator), "a table of more than plain numbers"
    if len(table.data) > limits.TEXT_LIMIT:
        raise limits.too_long(f"{table.source.name}, {words},", limits.TEXT_LIMIT)
    if cells > limits.MOST_CELLS:
        raise limits.too_many_cells(f"{table.source.name}, {words}", cells)
    found = list(table.rows())
    lines, rows = array("L", [line for line, _ in found]), _trimmed([cells for _, cells in found])
    if not rows:
        raise InputError(f"{table.source.name} holds no numbers")
    corner = _lacks_corner(rows)
    if corner:
        rows[0] = ["", *rows[0]]
    labels = [cells[0] for cells in rows[1:] if cells]
    headings = find_headings(
        rows[0], rows[1] if len(rows) > 1 else None, labels, table.source.header
    )
    if corner and not headings.row:
        rows[0] = rows[0][1:]
        headings = headings._replace(column=False)
    if headings.row and headings.column and names_behind_index(rows):
        warn(
            f"{table.source.name}: the first column is left out: it counts the rows, and "
            f"{quoted(rows[0][1])} holds their labels"
        )
        rows = [cells[1:] for cells in rows]
    return _array(table, headings, rows, lines)


def _trimmed(rows: list[Row]) -> list[Row]:
    """Leave out rows of empty cells at the end, and columns there that are empty in every row."""
    while rows and not any(map(str.strip, rows[-1])):
        rows.pop()
    if not rows or rows[0][-1].strip():
        return rows
    filled = ([at for at, cell in enumerate(cells, 1) if cell.strip()] for cells in rows)
    count = min(len(cells) - at[-1] for cells, at in zip(rows, filled, strict=True) if at)
    return [cells[: len(cells) - count] for cells in rows] if count else rows


def _lacks_corner(rows: list[Row]) -> bool:
    """Whether names of columns stand above rows with one more cell, as R and pandas print them."""
    first, second = rows[0], rows[1] if len(rows) > 1 else []
    if len(second) != len(first) + 1 or (len(first) < 2 and not second[-1].strip()):
        return False
    counted_on = first == [str(at) for at in range(len(first))]
    named = not any(is_numeric(cell) or is_truth(cell) for cell in first) or counted_on
    # R counts rows without a name from 1, pandas from 0. What ends with a separator is no row of R.
    labels = [cells[0] for cells in rows[1:]]
    counts = any(labels == [str(at + start) for at in range(len(labels))] for start in (0, 1))
    labelled = counts or not (is_numeric(second[0]) or is_truth(second[0]))
    return named and labelled and bool(second[-1].strip()) and not first[0].startswith("sep=")


def _array(table: _Table, headings: Headings, rows: list[Row], lines: array[int]) -> LoadedArray:
    """Return the numbers of the rows behind their labels."""
    start, width = int(headings.column), len(rows[0])
    body = rows[int(headings.row) :]
    lines = lines[int(headings.row) :]
    for line, cells in zip(lines, body, strict=False) if {*map(len, body)} != {width} else ():
        if len(cells) != width:
            expected = f"expected {counted(width, 'cell')}, as in the first row"
            at = min(len(cells), width) + 1
            table.refuse(f"{expected}; found {len(cells)}", line, at, _LENGTH)
    if not body:
        table.refuse(f"expected numbers; found only {quoted(rows[0][0])}", 1, 1)
    if start and not headings.certain:
        suspect = _NO_LETTER.search("\0".join([cells[0] for cells in body]))  # most are words
        numbered = (at for at, cells in enumerate(body) if is_numeric(cells[0]))
        number = next(numbered, None) if suspect else None
        if number is not None:
            word = next((cells[0] for cells in body if not is_numeric(cells[0])), rows[0][0])
            what = f"expected a word, as {quoted(word)}; found the number {quoted(body[number][0])}"
            table.refuse(what, lines[number], 1, _LABELS)
    flat = [cell for cells in body for cell in cells[start:]]
    numbers, read = _truths(flat) if headings.truths else _numbers(flat, table)
    if read < len(flat):
        at = read // (width - start)
        numbers = array("d", numbers[: at * (width - start)])
        for line, cells in zip(lines[at:], body[at:], strict=False):
            numbers.extend(_by_cell(table, headings, line, cells))
    values = np.frombuffer(numbers).reshape(-1, width - start)
    found = LoadedArray(
        values.astype(np.bool_) if headings.truths else values,
        table.source.name,
        tuple(cells[0] for cells in body) if headings.column else None,
        tuple(rows[0][start:]) if headings.row else None,
    )
    _refuse_swallowed(table, found)
    return found


def _numbers(cells: Row, table: _Table) -> tuple[array[float], int]:
    """Return the numbers of cells, and before which one they must be looked at one by one."""
    numbers = array("d")
    if table.decimal_commas:
        cells = "\0".join(cells).replace(",", ".").split("\0")  # no cell holds NUL
    if not table.data.isascii() or b"_" in table.data:
        joined = "".join(cells)
        if not joined.isascii() or "_" in joined:
            return numbers, 0
    try:
        numbers.extend(map(float, cells))
    except ValueError:
        return numbers, len(numbers)
    infinite = np.flatnonzero(np.isinf(np.frombuffer(numbers)))
    return numbers, next((int(at) for at in infinite if re.search(r"\d", cells[at])), len(cells))


def _truths(cells: Row) -> tuple[array[float], int]:
    words = [cell.strip().lower() for cell in cells]
    known = {*words} <= {"true", "false"}
    return array("d", [word == "true" for word in words]), len(words) if known else 0


def _by_cell(table: _Table, headings: Headings, line: int, cells: Row) -> Iterator[float]:
    """Yield the numbers of a row, or refuse the first cell that is none."""
    for at in range(int(headings.column), len(cells)):
        cell = cells[at]
        comma = table.decimal_commas and has_decimal_comma(cell)
        try:
            value = parse_number(cell.replace(",", ".") if comma else cell)
        except NumberOverflowError as error:
            table.refuse(str(error), _begins(line, cells, at), at + 1)
        if headings.truths:
            value = float(cell.strip().lower() == "true") if is_truth(cell) else None
        if value is None:
            expected = "true or false" if headings.truths else "a number"
            shown = quoted(cell) if cell.strip() else "an empty cell"
            hint = _hint(headings, cells, at)
            table.refuse(
                f"expected {expected}; found {shown}", _begins(line, cells, at), at + 1, hint
            )
        yield value


def _begins(line: int, cells: Row, at: int) -> int:
    """Return the line on which a cell begins, of a row that ends on a line."""
    return line - sum(cell.count("\n") for cell in cells[at:])


def _hint(headings: Headings, cells: Row, at: int) -> str:
    """Return how a cell that is no number is mended."""
    cell = cells[at].strip()
    if headings.truths or cell.lower() in ("true", "false", "yes", "no"):
        return _MASK
    if is_hole(cell):
        return _FILL
    if "\n" in cell:
        return _QUOTATION
    if has_decimal_comma(cell):
        return DECIMAL_POINTS
    return _LABELS if at == 0 and len(cells) > 1 and not is_numeric(cell) else _PLAINLY


def _refuse_swallowed(table: _Table, found: LoadedArray) -> None:
    """Refuse a label that holds whole rows: a token that is a quotation mark began it."""
    for label in (*(found.row_labels or ()), *(found.column_labels or ())):
        for text in label.splitlines() if "\n" in label else ():
            _, *numbers = text.split(table.separator)
            if len(numbers) == found.values.shape[1] and all(map(is_numeric, numbers)):
                line = table.data.count(b"\n", 0, table.data.find(label.encode())) + 1
                table.refuse(f"expected a label; found {quoted(label)}", line, 1, _QUOTATION)
