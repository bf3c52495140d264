"""exp of a tile of scores, in the way that NumPy computes fastest on this processor.

Scores are in nats, or in bits where exp2 is faster: 2^(s / ln 2) is exp(s).
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import is_key_major

if TYPE_CHECKING:
    from attncli.engine.scratch import Scratch

__all__ = [
    "TooHighError",
    "exp_flush_negligible",
    "exp_flush_subnormal",
    "exp_raise_negligible",
    "exponential_of",
    "has_negligible",
    "quickest_unit",
    "raise_if_nearly_too_high",
    "score_ceiling",
    "score_floor",
]

Array = npt.NDArray[Any]

# exp(±40) is 4e−18 to 2e17: in float32 (1e−38 to 3e38) sums and products with values
# keep 20 orders of magnitude to both ends. `attncli.engine.retry` checks the results.
_CEILING = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}

# Exponentials below this are negligible. It is far below the rounding error of any sum that
# `attncli.engine.sums.outweighs_flushed` accepts, yet far enough above the smallest normal
# number that differences stay normal.
_NEGLIGIBLE = {np.dtype(np.float32): 2.0**-99, np.dtype(np.float64): 2.0**-963}
_FLOOR = {dtype: math.log(least) for dtype, least in _NEGLIGIBLE.items()}
# If the first tile comes this close to the ceiling, a later one will exceed it.
_NEARLY = 0.8


class TooHighError(Exception):
    """A score is too high to be exponentiated without a shift."""


def score_ceiling(dtype: np.dtype[Any]) -> float:
    """Return the highest score, in nats, that may be exponentiated without a shift."""
    return _CEILING[dtype]


def score_floor(dtype: np.dtype[Any]) -> float:
    """Return the score, in nats and below 0, whose exponential is just not negligible."""
    return _FLOOR[dtype]


@cache
def quickest_unit(dtype: np.dtype[Any]) -> float:
    """Return the unit of scores, in 1/nats, with the fastest exponential: 1 or 1/ln 2.

    Where NumPy has vector instructions for exp2 (AVX-512), it takes half the time of exp and is
    more accurate. Elsewhere exp2 falls back to the scalar C library, and exp, which is
    vectorised with older instructions too, takes half the time.
    """
    from numpy.lib.introspect import opt_func_info  # noqa: PLC0415 - 1 ms

    kernels = opt_func_info("^exp2$", f"^{dtype.name}$").get("exp2", {})
    vectorised = any(not one["current"].startswith("baseline") for one in kernels.values())
    return 1 / math.log(2) if vectorised else 1.0


def exponential_of(unit: float) -> np.ufunc:
    """Return the exponential of scores that are in 1/unit nats."""
    return np.exp if unit == 1.0 else np.exp2


def exp_flush_negligible(scores: Array, unit: float, scratch: Scratch) -> None:
    """Exponentiate in place, and flush negligible exponentials to 0, as of scores of −inf."""
    exp_raise_negligible(scores, unit, scratch)
    np.subtract(scores, 2 * _NEGLIGIBLE[scores.dtype], out=scores)
    _raise_to(0.0, scores, scratch)


def exp_raise_negligible(scores: Array, unit: float, scratch: Scratch) -> None:
    """Exponentiate in place, and raise negligible exponentials to the least that is not.

    Arithmetic on subnormal numbers is slow: exponentials below 1e−38 take ten times as long as
    others, and products with them a hundred times. Sums that `outweighs_flushed` accepts are not
    changed by it.
    """
    _raise_to(score_floor(scores.dtype) * unit, scores, scratch)
    exponential_of(unit)(scores, scores)


def has_negligible(scores: Array, unit: float) -> bool:
    """Return whether some score is so low that its exponential is negligible."""
    return bool(scores.min() < score_floor(scores.dtype) * unit)


def raise_if_nearly_too_high(scores: Array, unit: float) -> None:
    """Raise if the scores of a first tile reach, or almost reach, the ceiling.

    Raises
    ------
    TooHighError
    """
    if not scores.max() <= _NEARLY * score_ceiling(scores.dtype) * unit:
        raise TooHighError


def exp_flush_subnormal(scores: Array, scratch: Scratch) -> None:
    """Exponentiate scores in nats in place, and flush only subnormal results to 0."""
    least = 2 * float(np.finfo(scores.dtype).tiny)
    lowest = math.log(least)
    if scores.min() >= lowest:
        np.exp(scores, scores)
        return
    _raise_to(lowest, scores, scratch)
    np.exp(scores, scores)
    # A mask rather than a subtraction, so that small exponentials keep all their digits.
    normal = (scores > least * (1 + 1e-4)).astype(scores.dtype)
    np.multiply(scores, normal, out=scores)


def _raise_to(least: float, tile: Array, scratch: Scratch) -> None:
    """Replace every lower number of a tile by ``least``, in place."""
    # np.maximum takes four times as long with a scalar as with an array.
    columns, panel = tile.shape[2:]
    bound = scratch.filled(least, columns, panel if is_key_major(tile) else 1)
    np.maximum(tile, bound, out=tile)
