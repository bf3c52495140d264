"""What spreadsheets write around a table: a line that names the separator, and empty cells."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from attncli.loading.table import has_lone_returns

if TYPE_CHECKING:
    from attncli.loading.table import Table

__all__ = ["separator_line", "without_empty_columns", "without_empty_end"]

_BLANK = b" \t\r\n"
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


def without_empty_end(table: Table) -> Table:
    """Return a table without the rows at its end that are separators alone."""
    data, empty = table.data, _BLANK + table.delimiter.encode()
    last = data.rfind(b"\n", 0, len(data) - 1) + 1
    if data[last:].strip(empty):
        return table
    return table._replace(data=data[: data.find(b"\n", len(data.rstrip(empty))) + 1 or len(data)])


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
        parts = line.rsplit(table.delimiter.encode(), count)
        # A row of separators alone would become a blank line: it stays, and is refused.
        whole.write(parts[0] + parts[-1].lstrip(b" \t") if parts[0].strip() else line)
    return table._replace(data=whole.getvalue())


def _empty_columns(table: Table) -> int:
    """Return how many columns at the end are empty in every row; 0 where quotations go on."""
    separator, found = table.delimiter.encode(), []
    for at, line in enumerate(io.BytesIO(table.data), 1):
        table.refuse_long(at)
        filled = line.rstrip(_BLANK + separator)
        if filled:
            found.append(line.count(separator, len(filled)))
            if not found[-1] or filled.count(b'"') % 2:
                return 0
    return min(found, default=0)
