"""Whether an array holds only finite numbers: checked for every input and tile of scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import NARROW, is_finite

_SHORT = 4096
# Weights from another implementation may lie below 0 by a rounding error.
_SLIGHTLY_NEGATIVE = -1e-6


def all_finite(array: npt.NDArray[Any], *, one_blas_thread: bool = False) -> bool:
    """Return whether no element is NaN or infinite, with no temporary of the array's size.

    Parameters
    ----------
    array : ndarray of float16, bfloat16, float32 or float64
        Not empty; memory-mapped ones are read once.
    one_blas_thread : bool
        Whether BLAS is limited to one thread now.
    """
    if array.dtype in NARROW:
        return is_finite(array)
    # A sum of squares is the fastest check; if it overflows, the extremes decide. For long arrays
    # BLAS would wake its own threads, which then compete with the engine's.
    short = one_blas_thread or array.size <= _SHORT
    if short and math.isfinite(np.vdot(array, array)):
        return True
    # NaN makes both comparisons false.
    return bool(array.min() > -np.inf and array.max() < np.inf)


def finite_in(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether all elements are finite, and stay so in a computing dtype.

    Parameters
    ----------
    array : ndarray
        As for `all_finite`.
    dtype : dtype
        float32 or float64.
    """
    if array.dtype.itemsize <= dtype.itemsize:
        return all_finite(array)
    with np.errstate(over="ignore"):
        ends = np.array([array.min(), array.max()]).astype(dtype)
    return bool(np.isfinite(ends).all())


def within_range(means: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return means of finite values, with infinity replaced by the largest finite number.

    Weights are rounded, and so may add up to a little more than 1.

    Parameters
    ----------
    means : ndarray of float32 or float64
    """
    largest = np.finfo(means.dtype).max
    clipped: npt.NDArray[Any] = np.clip(means, -largest, largest)
    return clipped


def are_weights(least: float, most: float) -> bool:
    """Whether numbers with these extremes are finite and, apart from rounding, not below 0."""
    return math.isfinite(least) and math.isfinite(most) and least >= least_weight(most)


def least_weight(most: float) -> float:
    """Return the lowest number that rounding may give a weight, relative to the largest weight."""
    return _SLIGHTLY_NEGATIVE * max(1.0, most)
