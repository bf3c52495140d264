"""The number formats of the inputs, and how each is widened for computing.

NumPy has no bfloat16. Here it is a structure of one unsigned 16-bit field, so
that slicing, reshaping and memory-mapping work as for any other array, and
nothing can mistake the bits for integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BFLOAT16", "as_bfloat16", "dtype_name", "widen"]

BFLOAT16: np.dtype[np.void] = np.dtype([("bfloat16", "<u2")])


def as_bfloat16(bits: npt.NDArray[Any]) -> npt.NDArray[np.void]:
    """Read 2-byte elements of any dtype as bfloat16, without a copy.

    Parameters
    ----------
    bits : ndarray, any 2-byte dtype
        The raw bits, little-endian, as ``ml_dtypes`` and safetensors store them.

    Returns
    -------
    ndarray of `BFLOAT16`
        A view of the same memory.
    """
    return bits.view(BFLOAT16)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype as a user writes it: ``float32``, ``bfloat16``."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def widen(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the array in a wider floating dtype; no copy where it already has it.

    A bfloat16 is the upper half of the float32 of the same value, so widening is
    exact (Kalamkar et al. 2019, "A Study of BFLOAT16 for Deep Learning Training").

    Parameters
    ----------
    array : ndarray, any real dtype or `BFLOAT16`
    dtype : dtype
        float32 or float64.

    Returns
    -------
    ndarray of `dtype`
    """
    if array.dtype == dtype:
        return array
    if array.dtype == BFLOAT16:
        bits = array["bfloat16"].astype(np.uint32)
        array = np.left_shift(bits, 16, out=bits).view(np.float32)
    return array.astype(dtype, copy=False)
