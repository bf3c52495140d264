"""Numbers of 8 bits and fewer: rounding to them, with a scale for all numbers or for some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "E2M1",
    "FLOATS",
    "INTEGERS",
    "Ends",
    "Grid",
    "between",
    "codes_on_grid",
    "in_q4_0",
    "in_q8_0",
    "on_grid",
    "with_power_of_two",
    "with_scale_of_e4m3",
]

Array = npt.NDArray[Any]
# The least and the largest of the numbers that share a scale, broadcast to all of them.
Ends = tuple[Array, Array]


@dataclass(frozen=True)
class Grid:
    """The numbers that a format of few bits has.

    Attributes
    ----------
    name : str
        As PyTorch calls it: ``int8``, ``float8_e4m3fn``.
    largest : float
        The largest one that is used; its negative is the smallest.
    nearest : callable
        An array of float32 or float64 in, the nearest numbers out, within no bounds.
    """

    name: str
    largest: float
    nearest: Callable[[Array], Array]


def _float8(mantissa: int, least: int) -> Callable[[Array], Array]:
    """Return how to round to floats with so many bits behind the point and that least exponent."""

    def nearest(array: Array) -> Array:
        exponent = np.frexp(array)[1] - 1
        step = np.ldexp(array.dtype.type(1), np.maximum(exponent, least) - mantissa)
        rounded: Array = np.rint(array / step) * step
        return rounded

    return nearest


# Of int8 and int4, symmetric schemes leave the number out that has no positive counterpart.
INTEGERS = (Grid("int8", 127.0, np.rint), Grid("int4", 7.0, np.rint))
FLOATS = (
    Grid("float8_e4m3fn", 448.0, _float8(3, -6)),
    Grid("float8_e5m2", 57344.0, _float8(2, -14)),
)
E2M1 = Grid("float4_e2m1fn", 6.0, _float8(1, 0))
_E4M3 = FLOATS[0]


def on_grid(grid: Grid, array: Array, ends: Ends | None = None) -> Array:
    """Return what numbers are after they went through a format.

    Parameters
    ----------
    grid : Grid
    array : ndarray of float32 or float64
    ends : tuple of ndarray, optional
        Of the numbers that share a scale: their largest magnitude becomes the grid's largest
        number. Without them there is no scale, and what is too large becomes the grid's largest.

    Examples
    --------
    >>> on_grid(INTEGERS[1], np.array([0.1, 0.4, -0.7]), (np.array(-0.7), np.array(0.4))).round(3)
    array([ 0.1,  0.4, -0.7])
    >>> on_grid(FLOATS[0], np.array([0.1, 17.0, 500.0]))
    array([1.015625e-01, 1.600000e+01, 4.480000e+02])
    """
    if ends is None:
        return np.clip(grid.nearest(array), -grid.largest, grid.largest)
    return codes_on_grid(grid, array, ends) * _scale(grid, array, ends)


def codes_on_grid(grid: Grid, array: Array, ends: Ends) -> Array:
    """Return the numbers of a format that stand for others, which are these times their scale.

    Examples
    --------
    >>> codes_on_grid(INTEGERS[1], np.array([0.1, 0.4, -0.7]), (np.array(-0.7), np.array(0.4)))
    array([ 1.,  4., -7.])
    """
    return grid.nearest(array / _scale(grid, array, ends))


def between(bits: int, array: Array, ends: Ends) -> Array:
    """Return what numbers are as codes of so many bits, from their least to their largest.

    The least number is the zero point, as in KIVI (Liu et al. 2024, arXiv:2402.02750, §3).

    Examples
    --------
    >>> between(2, np.array([1.0, 1.4, 4.0]), (np.array(1.0), np.array(4.0)))
    array([1., 1., 4.])
    """
    low, high = (end.astype(array.dtype) for end in ends)
    scale = _unless_zero(high - low) / array.dtype.type(2**bits - 1)
    made: Array = np.rint((array - low) / scale) * scale + low
    return made


def in_q8_0(array: Array, ends: Ends) -> Array:
    """Return what numbers are in llama.cpp's format Q8_0: int8 with scales of float16."""
    scale = _magnitude(ends).astype(array.dtype) / array.dtype.type(127)
    return np.rint(array / _unless_zero(scale)) * _in_float16(scale)


def in_q4_0(array: Array, ends: Ends) -> Array:
    """Return what numbers are in llama.cpp's format Q4_0: the largest of them is −8.

    Codes are -8 to 7, times a scale of float16 that may be negative.
    """
    low, high = (end.astype(array.dtype) for end in ends)
    scale = np.where(-low > high, low, high) / array.dtype.type(-8)
    codes = np.minimum(np.floor(array / _unless_zero(scale) + array.dtype.type(8.5)), 15) - 8
    made: Array = codes * _in_float16(scale)
    return made


def with_power_of_two(grid: Grid, array: Array, ends: Ends, *, up: bool = False) -> Array:
    """Return what numbers are in a microscaling format: a scale that is a power of 2.

    Parameters
    ----------
    grid : Grid
    array : ndarray of float32 or float64
    ends : tuple of ndarray
        Of the numbers that share a scale.
    up : bool
        The least power with which no number is cut; else the one by which the largest number
        comes into the grid's last octave, where it may be cut.

    References
    ----------
    Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", §6.3.
    """
    top = _unless_zero(_magnitude(ends).astype(array.dtype))
    largest = array.dtype.type(grid.largest)
    octave = np.exp2(np.floor(np.log2(largest)))
    exponent = np.ceil(np.log2(top / largest)) if up else np.floor(np.log2(top)) - np.log2(octave)
    scale = np.exp2(exponent).astype(array.dtype)
    return np.asarray(on_grid(grid, array / scale) * scale)


def with_scale_of_e4m3(array: Array, ends: Ends, whole: Ends | None = None) -> Array:
    """Return what numbers are as float4 with scales of float8: NVFP4.

    Parameters
    ----------
    array : ndarray of float32 or float64
    ends : tuple of ndarray
        Of the numbers that share a scale.
    whole : tuple of ndarray, optional
        Of all numbers, whose scale in float32 makes the largest scale of float8 the largest there
        is; without it there is none.
    """
    top, largest = _magnitude(ends).astype(array.dtype), array.dtype.type(E2M1.largest)
    all_ = array.dtype.type(1)
    if whole is not None:
        all_ = _unless_zero(_magnitude(whole).astype(array.dtype)) / (largest * _E4M3.largest)
        all_ = all_.astype(array.dtype)
    scale = _unless_zero(on_grid(_E4M3, top / largest / all_)) * all_
    return np.asarray(on_grid(E2M1, array / scale) * scale)


def _scale(grid: Grid, array: Array, ends: Ends) -> Array:
    top = _unless_zero(_magnitude(ends).astype(array.dtype))
    return np.asarray(top / array.dtype.type(grid.largest))


def _magnitude(ends: Ends) -> Array:
    return np.maximum(-ends[0], ends[1])


def _unless_zero(scale: Array) -> Array:
    return np.where(scale == 0, scale.dtype.type(1), scale)


def _in_float16(scale: Array) -> Array:
    return scale.astype(np.float16).astype(scale.dtype)
