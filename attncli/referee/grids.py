"""Numbers of 8 bits and fewer: rounding to them, with a scale for all numbers or for some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FLOATS", "INTEGERS", "Grid", "on_grid"]

Array = npt.NDArray[Any]


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


def on_grid(grid: Grid, array: Array, largest: Array | None = None) -> Array:
    """Return what numbers are after they went through a format.

    Parameters
    ----------
    grid : Grid
    array : ndarray of float32 or float64
    largest : ndarray, optional
        The largest magnitude of those that share a scale, broadcast to the array: it becomes
        the grid's largest number. Without it there is no scale, and what is too large becomes
        the grid's largest.

    Examples
    --------
    >>> on_grid(INTEGERS[1], np.array([0.1, 0.4, -0.7]), np.array(0.7)).round(3)
    array([ 0.1,  0.4, -0.7])
    >>> on_grid(FLOATS[0], np.array([0.1, 17.0, 500.0]))
    array([1.015625e-01, 1.600000e+01, 4.480000e+02])
    """
    if largest is None:
        return np.clip(grid.nearest(array), -grid.largest, grid.largest)
    scale = np.where(largest == 0, 1, largest).astype(array.dtype) / array.dtype.type(grid.largest)
    scaled: Array = grid.nearest(array / scale) * scale
    return scaled
