"""The range of an array's numbers, and how many are none: in one pass, a block at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import readable

__all__ = ["Survey", "survey"]

# 16 MB in float64; what is mapped is read once and not kept.
_BLOCK = 1 << 21


@dataclass(frozen=True)
class Survey:
    """What the numbers of an array are like.

    Attributes
    ----------
    minimum, maximum : float, int or bool, or None
        Of the finite numbers; None where there are none.
    nan, inf, minus_inf : int
        How many are none.
    """

    minimum: float | None
    maximum: float | None
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0

    @property
    def nonfinite(self) -> int:
        """How many are NaN, inf or −inf."""
        return self.nan + self.inf + self.minus_inf


def survey(array: npt.NDArray[Any]) -> Survey:
    """Return the range of an array and the counts of its non-finite numbers.

    Parameters
    ----------
    array : ndarray, any real dtype, bool or bfloat16
        A memory-mapped one is read once, in blocks.

    Examples
    --------
    >>> survey(np.array([1.0, -np.inf, 3.0]))
    Survey(minimum=1.0, maximum=3.0, nan=0, inf=0, minus_inf=1)
    """
    flat = array.ravel(order="K")
    minima, maxima, odd = [], [], np.zeros(3, np.int64)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        wide = readable(block)
        finite = _finite(wide)
        if finite.size < wide.size:
            odd += [np.count_nonzero(test(wide)) for test in (np.isnan, np.isposinf, np.isneginf)]
        if finite.size:
            minima.append(finite.min().item())
            maxima.append(finite.max().item())
    return Survey(min(minima, default=None), max(maxima, default=None), *odd.tolist())


def _finite(block: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the finite numbers; the block itself where all are."""
    if block.dtype.kind != "f":
        return block
    finite = np.isfinite(block)
    return block if finite.all() else block[finite]
