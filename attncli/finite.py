"""Whether an array holds finite numbers only: asked of every input, and of every tile of scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import BFLOAT16

__all__ = ["all_finite"]

_SHORT = 4096
_HALF = np.dtype(np.float16)
# Infinity and NaN are the numbers whose exponent bits are all ones.
_EXPONENT = {BFLOAT16: 0x7F80, _HALF: 0x7C00}


def all_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether no element is NaN or infinite, with no temporary of the array's size.

    Parameters
    ----------
    array : ndarray of float16, bfloat16, float32 or float64
        Not empty; memory-mapped ones are read once.
    """
    if array.dtype in _EXPONENT:
        return all(_narrow_finite(matrix) for matrix in _matrices(array))
    # A sum of squares is the shortest call of all; where it overflows the extremes decide.
    # For long arrays BLAS would wake its threads, which then spin beside the engine's.
    if array.size <= _SHORT and math.isfinite(np.vdot(array, array)):
        return True
    # NaN fails both comparisons.
    return bool(array.min() > -np.inf and array.max() < np.inf)


def _narrow_finite(matrix: npt.NDArray[Any]) -> bool:
    exponent = np.uint16(_EXPONENT[matrix.dtype])
    bits = matrix.view(np.uint16)
    return bool((np.bitwise_and(bits, exponent) != exponent).all())


def _matrices(array: npt.NDArray[Any], rows: int = 4096) -> list[npt.NDArray[Any]]:
    """Return views of the array of at most so many rows each."""
    if array.ndim > 2:
        return [part for entry in array for part in _matrices(entry, rows)]
    return [array[start : start + rows] for start in range(0, len(array), rows)]
