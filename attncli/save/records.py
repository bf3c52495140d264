"""A list of figures as CSV or TSV: a header, and a line for each."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

__all__ = ["line_of", "write_records"]


def write_records(
    stream: BinaryIO, records: Sequence[Mapping[str, Any]], separator: str = ","
) -> None:
    """Write mappings of the same names, one a line; what is None in all of them is left out.

    A list within a mapping becomes a line for each of its items, with their ``rank``: the
    strongest keys of a query, one below the other.

    Parameters
    ----------
    stream : BinaryIO
    records : sequence of mapping
    separator : str
    """
    rows = [row for record in records for row in _flat(record)]
    names = dict.fromkeys(name for row in rows for name in row)
    told = [name for name in names if any(row.get(name) is not None for row in rows)]
    lines: list[list[Any]] = [told, *([row.get(name) for name in told] for row in rows)]
    texts = (f"{line_of(line, separator)}\n" for line in lines)
    stream.writelines(text.encode("utf-8", "backslashreplace") for text in texts)


def line_of(cells: Sequence[Any], separator: str) -> str:
    """Return a line without its end, whose two signs are those that the csv module quotes."""
    end = "\r\n"
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator=end).writerow(cells)
    return text.getvalue().removesuffix(end)


def _flat(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a record without lists: one for each item of its list, or itself."""
    plain = {name: value for name, value in record.items() if not isinstance(value, (list, tuple))}
    lists = {name: value for name, value in record.items() if name not in plain}
    if not any(lists.values()):
        yield plain
    for name, items in lists.items():
        for rank, item in enumerate(items, 1):
            inner = {f"{name.removesuffix('s')}_{key}": value for key, value in item.items()}
            yield {**plain, "rank": rank, **inner}
