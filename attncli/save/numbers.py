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

# Numbers that are looked at together.
_BLOCK = 2**15
# Fewer are written sooner than what writes more of them is imported.
_MANY = 2**12
# So many digits every short decimal keeps on its way through the dtype, and so many are enough
# for every number.
_DIGITS = {np.dtype(np.float16): (3, 5), np.dtype(np.float32): (6, 9)}
# Powers of ten that float64 holds exactly, and numbers that need no others for nine digits, and
# no more than 53 bits if they are whole.
_POWERS = np.array([float(10**power) for power in range(23)])
_LEAST, _MOST = 1e-13, 2.0**53


def number_lines(matrix: Array, separator: str) -> Iterator[str]:
    """Write each number with the fewest digits that give the same number again.

    "The same" holds for whoever reads the text in the dtype of the array, and for
    whoever reads it as float64 and narrows it afterwards.

    Parameters
    ----------
    matrix : ndarray (rows, columns) of float16, float32 or float64
    separator : str
        What stands between two numbers.

    Yields
    ------
    str
        A line for each row, without its end: decimal numbers as Python writes them, ``inf``,
        ``-inf`` or ``nan``. In a large matrix an exponent has no zero before it, as in ``1e-5``.

    References
    ----------
    Steele, G. L. and White, J. L. (1990), "How to Print Floating-Point Numbers
    Accurately", PLDI: the digits. Figueroa, S. A. (1995), "When is Double Rounding
    Innocuous?", SIGNUM Newsletter 30(3): why reading through float64 can differ.

    Examples
    --------
    >>> import numpy as np
    >>> list(number_lines(np.array([[0.1, 1e-5, -np.inf]], np.float32), ","))
    ['0.1,1e-05,-inf']
    """
    write = _many_lines if matrix.size >= _MANY else _few_lines
    step = max(1, _BLOCK // matrix.shape[1])
    for start in range(0, len(matrix), step):
        yield from write(_decimals(matrix[start : start + step]), separator)


def _few_lines(rows: npt.NDArray[np.float64], separator: str) -> Iterator[str]:
    # Nothing else in Python itself writes a list of numbers as quickly.
    encode = JSONEncoder(separators=(separator, ":"), check_circular=False).encode
    for row in rows.tolist():
        yield encode(row)[1:-1].replace("Infinity", "inf").replace("NaN", "nan")


def _many_lines(rows: npt.NDArray[np.float64], separator: str) -> Iterator[str]:
    import orjson  # noqa: PLC0415 - most matrices are small

    finite = np.isfinite(rows)
    # It has one word, null, for all that is not finite.
    if not np.all(finite | (rows == -np.inf)):
        yield from _few_lines(rows, separator)
        return
    whole = orjson.dumps(np.ascontiguousarray(rows), option=orjson.OPT_SERIALIZE_NUMPY)
    for line in whole.decode("ascii")[2:-2].replace("null", "-inf").split("],["):
        yield line if separator == "," else line.replace(",", separator)


def _decimals(numbers: Array) -> npt.NDArray[np.float64]:
    """Return the float64 nearest to the shortest decimal that stands for each number."""
    if numbers.dtype == np.float64:
        return numbers
    flat = numbers.ravel()
    exact = flat.astype(np.float64)
    found = exact.copy()
    size = np.abs(exact)
    usual = (size >= max(_LEAST, float(np.finfo(flat.dtype).tiny))) & (size < _MOST)
    # Half as far as above a power of 2 lies the next number below it: there a decimal that is
    # not the nearest may do with fewer digits.
    usual &= np.frexp(size)[0] != 0.5
    open_ = np.flatnonzero(usual)
    fewest, most = _DIGITS[flat.dtype]
    for digits in range(fewest, most + 1):
        decimal = _rounded(exact[open_], digits)
        right = _stands_for(decimal, flat[open_])
        found[open_[right]] = decimal[right]
        open_ = open_[~right]
    for index in np.flatnonzero(~usual & (size > 0) & np.isfinite(exact)):
        short = float(str(flat[index]))
        if flat.dtype.type(short) == flat[index]:
            found[index] = short
    return found.reshape(numbers.shape)


def _rounded(numbers: npt.NDArray[np.float64], digits: int) -> npt.NDArray[np.float64]:
    """Return the float64 nearest to each number, rounded to so many decimal digits."""
    places = digits - 1 - np.floor(np.log10(np.abs(numbers))).astype(np.intp)
    # One of these is 1, and both are exact, as is what is rounded: so the last step rounds once.
    up, down = _POWERS[np.maximum(places, 0)], _POWERS[np.maximum(-places, 0)]
    whole = np.rint(numbers * up / down)
    rounded: npt.NDArray[np.float64] = whole * down / up
    return rounded


def _stands_for(decimals: npt.NDArray[np.float64], numbers: Array) -> npt.NDArray[np.bool_]:
    """Return where a decimal is read as the number, through float64 and without.

    Its neighbours have to be so, too: nearer to the middle of two numbers, such as
    7.038531e-26 in float32, it is rounded one way directly and the other way in two steps.
    A whole number, which float64 holds as it is, may be that middle.
    """
    above, below = (np.nextafter(decimals, end).astype(numbers.dtype) for end in (np.inf, -np.inf))
    right: npt.NDArray[np.bool_] = (above == numbers) & (below == numbers)
    right |= (np.rint(decimals) == decimals) & (decimals.astype(numbers.dtype) == numbers)
    return right
