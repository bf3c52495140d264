"""One matrix as CSV or TSV, a row a line, perhaps with its labels; or one list of figures."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from attncli.save.numbers import number_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from attncli.save.formats import Results

__all__ = ["write_table"]


def write_table(stream: BinaryIO, results: Results, separator: str) -> None:
    """Write the one array, or the one list of figures, as lines of cells."""
    records = results.one_list()
    if records is not None:
        _write_records(stream, records, separator)
        return
    name, matrix = results.one_matrix("CSV" if separator == "," else "TSV")
    lines = number_lines(matrix, separator)
    if results.labelled:
        names = results.names_of(name, (matrix.shape[0], matrix.shape[1]))
        lines = _labelled(lines, *names, separator)
    stream.writelines(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)


def _labelled(
    lines: Iterator[str], rows: Sequence[str], columns: Sequence[str], separator: str
) -> Iterator[str]:
    """Yield a header whose first cell is empty, and each line behind its label."""
    yield _line_of(["", *columns], separator)
    for label, line in zip(rows, lines, strict=True):
        yield f"{_line_of([label], separator)}{separator}{line}"


def _write_records(stream: BinaryIO, records: Sequence[Mapping[str, Any]], separator: str) -> None:
    """Write mappings, one a line, and the items of a list within one below each other."""
    rows = [row for record in records for row in _flat(record)]
    names = dict.fromkeys(name for row in rows for name in row)
    told = [name for name in names if any(row.get(name) is not None for row in rows)]
    lines: list[list[Any]] = [told, *([row.get(name) for name in told] for row in rows)]
    texts = (f"{_line_of(line, separator)}\n" for line in lines)
    stream.writelines(text.encode("utf-8", "backslashreplace") for text in texts)


def _line_of(cells: Sequence[Any], separator: str) -> str:
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
