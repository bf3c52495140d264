"""Numbers as the shortest text that reads back exactly."""

from __future__ import annotations

from json import JSONEncoder
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["number_lines"]

Array = npt.NDArray[Any]

# Numbers that are written together.
_BLOCK = 2**15
# Fewer are written sooner than what writes more of them is imported.
_MANY = 2**12


def number_lines(matrix: Array, separator: str) -> Iterator[str]:
    """Write each row of a matrix with few digits that give the same numbers again.

    That holds for whoever reads the text in the dtype of the array, and for whoever reads it as
    float64 and narrows it afterwards: Figueroa (1995), "When is Double Rounding Innocuous?".
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
    # Nothing else in Python itself writes a list of numbers as quickly.
    encode = JSONEncoder(separators=(separator, ":"), check_circular=False).encode
    for row in decimals.tolist():
        yield encode(row)[1:-1].replace("Infinity", "inf").replace("NaN", "nan")


def _many_lines(rows: Array, separator: str) -> Iterator[str]:
    import orjson  # noqa: PLC0415 - most matrices are small

    # It has one word, null, for all that is not finite, and writes float16 with more digits.
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
    """Return decimals for numbers, with all digits where rounding twice gives another number."""
    same = right = decimals.astype(numbers.dtype) == numbers
    with np.errstate(over="ignore"):  # of what stands beside infinity
        for end in (np.inf, -np.inf):
            right = right & (np.nextafter(decimals, end).astype(numbers.dtype) == numbers)
    # A whole number, which float64 holds as it is, may be that middle.
    right |= ~np.isfinite(decimals) | (same & (np.rint(decimals) == decimals))
    return np.where(right, decimals, numbers.astype(np.float64))
