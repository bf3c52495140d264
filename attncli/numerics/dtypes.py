"""The number formats of the inputs, and how each is widened for computing.

NumPy has no bfloat16. Here it is a structure of one unsigned 16-bit field, so that slicing,
reshaping and memory-mapping work as for any array, and nothing mistakes the bits for integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

BFLOAT16: np.dtype[np.void] = np.dtype([("bfloat16", "<u2")])
_HALF = np.dtype(np.float16)
LARGEST_FLOAT16 = 65504.0
_UNSIGNED = np.uint16(0x7FFF)
# To recognise bfloat16 in 2-byte integers: the most and the fewest that are examined, and the share
# of them that must look like bfloat16.
_SAMPLE, _FEW, _NEARLY_ALL = 1000, 4, 0.9
_INFINITE = {BFLOAT16: 0x7F80, _HALF: 0x7C00}
NARROW = frozenset(_INFINITE)
# The position of a float16's bits in a float32, and the factor for the 112 between their biases.
_SHIFT = 13
_PLACES = np.int32(0x8FFFE000 - 2**32)
_FACTOR = np.float32(2.0**112)
_SUBNORMAL = np.float32(1e-40)


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


def looks_like_bfloat16(integers: npt.NDArray[Any]) -> bool:
    """Return whether 16-bit integers look like the bits of typical bfloat16 numbers.

    Parameters
    ----------
    integers : ndarray of int16 or uint16

    Notes
    -----
    Nearly all numbers of a tensor are between 1e-9 and 1e4 in magnitude, so their bits without
    the sign are between 0x3000 and 0x4600. One in six of all 16-bit integers is.
    """
    flat = integers.reshape(-1)
    some = flat[:: max(1, flat.size // _SAMPLE)].view(np.uint16) & _UNSIGNED
    some = some[some != 0]
    usual = np.count_nonzero((some >= 0x3000) & (some < 0x4600))
    return bool(usual >= _FEW and usual > _NEARLY_ALL * some.size)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return the name of a dtype as a user writes it: ``float32``, ``bfloat16``."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def in_float64(dtype: np.dtype[Any]) -> str | None:
    """Return the hint for what a narrower computing dtype cannot hold; None for float64."""
    return "compute in float64 (--precision float64)" if dtype.itemsize < 8 else None


def widen(array: npt.NDArray[Any], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return the array in a wider floating dtype, without a copy if it already has that dtype.

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
    elif array.dtype == _HALF and not _flushes() and is_finite(array):
        array = _widened(array)
    return array.astype(dtype, copy=False)


def readable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array in a dtype that NumPy calculates with: bfloat16 as float32."""
    return widen(array, np.float32) if array.dtype == BFLOAT16 else array


def nearest(array: npt.NDArray[Any], dropped: int) -> npt.NDArray[Any]:
    """Round float32, ties to even, to the bits above the lowest ``dropped`` ones (bfloat16: 16)."""
    bits = _bits(array)
    near = bits >> np.uint32(dropped)
    near &= np.uint32(1)
    near += np.uint32(2 ** (dropped - 1) - 1)
    near += bits
    made = _cut(near, dropped)
    invalid = np.isnan(array)
    if invalid.any():
        np.copyto(made, array, where=invalid)
    return made


def truncated(array: npt.NDArray[Any], dropped: int) -> npt.NDArray[Any]:
    """Truncate finite float32 toward 0 to the bits above the lowest ``dropped`` ones."""
    return _cut(_bits(array), dropped)


def parts(array: npt.NDArray[Any], most: int = 2**18) -> Iterator[npt.NDArray[Any]]:
    """Yield views that cover an array in order, each of at most about ``most`` elements."""
    if array.size <= most or array.ndim == 0:
        yield array
    elif array.ndim > 2:
        for entry in array:
            yield from parts(entry, most)
    else:
        step = max(1, most // (array.size // len(array)))
        for start in range(0, len(array), step):
            yield array[start : start + step]


def is_finite(array: npt.NDArray[Any]) -> bool:
    """Return whether no element of an array of 2-byte floats is NaN or infinite."""
    # Bits without the sign sort by magnitude; infinity has all exponent bits, and NaN lies above.
    most = _INFINITE[array.dtype]
    return all((part.view(np.uint16) & _UNSIGNED).max(initial=0) < most for part in parts(array))


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return array.view(np.uint32) if array.flags.c_contiguous else array.copy().view(np.uint32)


def _cut(bits: npt.NDArray[np.uint32], dropped: int) -> npt.NDArray[Any]:
    return np.bitwise_and(bits, np.uint32(2**32 - 2**dropped)).view(np.float32)


def _flushes() -> bool:
    """Return whether this thread takes subnormal numbers for 0 (`torch.set_flush_denormal`)."""
    return bool(_SUBNORMAL * _FACTOR == 0)


def _widened(halves: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return finite float16 as float32, in a third of the time of NumPy's astype."""
    numbers = np.empty(halves.shape, np.float32)
    for some, out in zip(parts(halves), parts(numbers), strict=True):
        bits = out.view(np.int32)
        np.copyto(bits, some.view(np.int16))  # sign-extended
        np.left_shift(bits, _SHIFT, out=bits)
        np.bitwise_and(bits, _PLACES, out=bits)
        np.multiply(out, _FACTOR, out=out)
    return numbers
