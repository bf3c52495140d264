"""A list of figures as CSV or TSV: a header, and a line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

__all__ = ["write_records"]


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
    for line in lines:
        text = separator.join(_cell(value, separator) for value in line)
        stream.write(f"{text}\n".encode("utf-8", "backslashreplace"))


def _cell(value: Any, separator: str) -> str:
    """Return the text of a value, quoted where it has to be.

    Not by the module csv, which leaves a carriage return as it is in Python 3.11.
    """
    text = "" if value is None else str(value)
    if not set(text).intersection(f'{separator}"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


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
