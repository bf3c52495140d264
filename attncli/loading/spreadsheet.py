"""What spreadsheets write around a table: a line that names the separator, CR, and empty cells."""

from __future__ import annotations

import io
import itertools
import re
from typing import TYPE_CHECKING

from attncli.loading.table import has_lone_returns

if TYPE_CHECKING:
    from attncli.loading.table import Table

__all__ = ["separator_line", "with_line_feeds", "without_empty_columns", "without_empty_end"]

_BLANK = b" \t\r\n"
# Of rows of nothing else.
_EMPTY_CELLS = rb'(?:[ \t\r\n%b]++|""(?![^\t\r\n%b]))*+'
_SEPARATOR_LINE = re.compile(rb'("?)sep=([,;\t])\1 *(?=[\r\n])', re.IGNORECASE)


def separator_line(data: bytes) -> tuple[str | None, bytes]:
    """Return the separator that a first line ``sep=;`` names, and the data with that line blank.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    separator : str or None
        None where there is no such line.
    data : bytes
        Of as many lines.
    """
    named = _SEPARATOR_LINE.match(data)
    return (named[2].decode(), data[named.end() :]) if named else (None, data)


def with_line_feeds(data: bytes) -> bytes:
    """Return text with LF where all its lines end in CR, as in Excel's CSV (Macintosh)."""
    return data if b"\n" in data else data.replace(b"\r", b"\n")


def without_empty_end(table: Table) -> Table:
    """Return a table without the rows at its end whose cells are all empty, quoted or not."""
    data, separator = table.data, table.delimiter.encode()
    around = _BLANK + separator + b'"'
    last = data.rfind(b"\n", 0, len(data) - 1) + 1
    if data[last:].strip(around):
        return table
    end = data.find(b"\n", len(data.rstrip(around))) + 1
    # Other quotation marks open or close what is no empty cell.
    if end and not re.compile(_EMPTY_CELLS % (separator, separator)).fullmatch(data, end):
        return table
    return table._replace(data=data[: end or len(data)])


def without_empty_columns(table: Table) -> Table:
    """Return a table without the columns at its end that are empty in every row.

    Raises
    ------
    InputError
        If it has too many rows for that.
    """
    count = _empty_columns(table)
    if not count or has_lone_returns(table.data):
        return table
    whole = io.BytesIO()
    for line in io.BytesIO(table.data):
        filled = line.rsplit(table.delimiter.encode(), count)[0]
        # A row of empty cells alone would become a blank line: it stays, and is refused.
        kept = filled + line[len(line.rstrip(b"\r\n")) :]
        whole.write(line if _is_empty(filled) else kept)
    return table._replace(data=whole.getvalue())


def _empty_columns(table: Table) -> int:
    """Return how many columns at the end are empty in every row; 0 where quotations go on."""
    separator, found = table.delimiter.encode(), []
    for at, line in enumerate(io.BytesIO(table.data), 1):
        table.refuse_long(at)
        if line.strip(_BLANK + separator + b'"'):
            found.append(_empty_at_end(line, separator))
            if not found[-1] or line.rsplit(separator, found[-1])[0].count(b'"') % 2:
                return 0
    return min(found, default=0)


def _empty_at_end(line: bytes, separator: bytes) -> int:
    """Return how many cells are empty, quoted or not, behind the last that is not."""
    filled = line.rstrip(_BLANK + separator + b'"')
    _, *cells = line[len(filled) :].split(separator)
    return sum(1 for _ in itertools.takewhile(_is_empty, reversed(cells)))


def _is_empty(cell: bytes) -> bool:
    return cell.strip(_BLANK) in (b"", b'""')
