"""Write numbers as the shortest exact text, and tables as CSV and TSV."""

from __future__ import annotations

import csv
import io
from json import JSONEncoder
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from attncli.save.formats import Results

Array = npt.NDArray[Any]

# Numbers that become text at once.
_BLOCK = 2**15
# Numbers: for fewer, the import of orjson takes longer than it saves.
_MANY = 2**12


def write_table(stream: BinaryIO, results: Results, separator: str) -> None:
    """Write the only matrix, or the only list of mappings, as a table."""
    records = results.one_list()
    if records is not None:
        lines = _record_lines(records, separator)
    else:
        name, matrix = results.one_matrix("CSV" if separator == "," else "TSV")
        lines = number_lines(matrix, separator)
        if results.labelled:
            names = results.names_of(name, (matrix.shape[0], matrix.shape[1]))
            lines = _labelled(lines, *names, separator)
    stream.writelines(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)


def _labelled(
    lines: Iterator[str], rows: Sequence[str], columns: Sequence[str], separator: str
) -> Iterator[str]:
    """Yield a header with an empty corner, then each line after its label."""
    yield _line_of(["", *columns], separator)
    for label, line in zip(rows, lines, strict=True):
        yield f"{_line_of([label], separator)}{separator}{line}"


def _record_lines(records: Sequence[Mapping[str, Any]], separator: str) -> Iterator[str]:
    """Yield a header, then a line for each mapping, or for each item of its inner lists."""
    rows = [row for record in records for row in _flat(record)]
    names = dict.fromkeys(name for row in rows for name in row)
    told = [name for name in names if any(row.get(name) is not None for row in rows)]
    yield _line_of(told, separator)
    for row in rows:
        yield _line_of([row.get(name) for name in told], separator)


def _line_of(cells: Sequence[Any], separator: str) -> str:
    """Return one CSV line without its end; cells with line breaks are quoted."""
    end = "\r\n"
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, lineterminator=end).writerow(cells)
    return text.getvalue().removesuffix(end)


def _flat(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row for each item of the inner lists of a record, or one row without them."""
    plain = {name: value for name, value in record.items() if not isinstance(value, (list, tuple))}
    lists = {name: value for name, value in record.items() if name not in plain}
    if not any(lists.values()):
        yield plain
    for name, items in lists.items():
        for rank, item in enumerate(items, 1):
            inner = {f"{name.removesuffix('s')}_{key}": value for key, value in item.items()}
            yield {**plain, "rank": rank, **inner}


def number_lines(matrix: Array, separator: str) -> Iterator[str]:
    """Yield each row of a matrix as text, with the fewest digits that read back exactly.

    They read back exactly in the dtype of the array, and also as float64 that is converted to that
    dtype afterwards. Reference: Figueroa (1995), "When is Double Rounding Innocuous?".
    """
    write = _many_lines if matrix.size >= _MANY else _few_lines
    step = max(1, _BLOCK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        yield from write(matrix[start : start + step], separator)


def _few_lines(rows: Array, separator: str) -> Iterator[str]:
    decimals = rows
    if rows.dtype != np.float64:
        short = [float(str(number)) for number in rows.flat]
        decimals = _exact(np.array(short).reshape(rows.shape), rows)
    # The fastest writer of numbers in the standard library.
    encode = JSONEncoder(separators=(separator, ":"), check_circular=False).encode
    for row in decimals.tolist():
        yield encode(row)[1:-1].replace("Infinity", "inf").replace("NaN", "nan")


def _many_lines(rows: Array, separator: str) -> Iterator[str]:
    import orjson  # noqa: PLC0415 - most matrices are small

    # orjson writes null for inf, −inf and nan, and float16 with more digits than needed.
    if rows.dtype == np.float16 or not np.all(np.isfinite(rows) | (rows == -np.inf)):
        yield from _few_lines(rows, separator)
        return
    decimals = np.ascontiguousarray(rows)
    if rows.dtype != np.float64:
        text = orjson.dumps(decimals, option=orjson.OPT_SERIALIZE_NUMPY)
        short = np.array(orjson.loads(text.replace(b"null", b"0")))
        decimals = _exact(np.where(np.isfinite(rows), short, -np.inf), rows)
    whole = orjson.dumps(decimals, option=orjson.OPT_SERIALIZE_NUMPY)
    for line in whole.decode("ascii")[2:-2].replace("null", "-inf").split("],["):
        yield line if separator == "," else line.replace(",", separator)


def _exact(decimals: npt.NDArray[np.float64], numbers: Array) -> npt.NDArray[np.float64]:
    """Return the decimals, with all digits where rounding twice would give another number."""
    same = right = decimals.astype(numbers.dtype) == numbers
    with np.errstate(over="ignore"):  # the neighbours of the largest numbers are infinite
        for end in (np.inf, -np.inf):
            right = right & (np.nextafter(decimals, end).astype(numbers.dtype) == numbers)
    # float64 holds a whole number exactly, so it is rounded only once.
    right |= ~np.isfinite(decimals) | (same & (np.rint(decimals) == decimals))
    return np.where(right, decimals, numbers.astype(np.float64))
