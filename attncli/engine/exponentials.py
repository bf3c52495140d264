"""exp of a tile of scores, in the way that is the quickest for NumPy on this processor.

Scores are in nats, or in bits where exp2 is the quicker: 2^(s / ln 2) is exp(s).
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import is_turned

if TYPE_CHECKING:
    from attncli.engine.scratch import Scratch

__all__ = [
    "TooHighError",
    "depth",
    "exponential",
    "exponentiate_felt",
    "exponentiate_normal",
    "has_unfelt",
    "height",
    "quickest_unit",
    "refuse_nearly_high",
]

Array = npt.NDArray[Any]

# exp(±40) is 4e−18 to 2e17: in float32 (1e−38 to 3e38) sums and products with values
# keep 20 orders of magnitude to both ends. `attncli.engine.block` looks at what comes out.
_HEIGHT = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}

# Far below what sums feel that are larger than the others, and so far above the least number
# that differences stay normal.
_LEAST = {np.dtype(np.float32): 2.0**-99, np.dtype(np.float64): 2.0**-963}
# A first tile that comes so near to the height is followed by one that exceeds it.
_NEARLY = 0.8


class TooHighError(Exception):
    """A score is too high to be exponentiated without a shift."""


def height(dtype: np.dtype[Any]) -> float:
    """Return how high a score, in nats, may be when it is exponentiated without a shift."""
    return _HEIGHT[dtype]


def depth(dtype: np.dtype[Any]) -> float:
    """Return how far below 0 a score, in nats, may be before no sum feels its exponential."""
    return -math.log(_LEAST[dtype])


@cache
def quickest_unit(dtype: np.dtype[Any]) -> float:
    """Return the unit of scores, in 1/nats, whose exponential is the quickest: 1 or 1/ln 2.

    NumPy's exp2 takes half the time of exp, and is nearer to the truth, where it has vector
    instructions for it (AVX-512). Elsewhere the C library computes one number after the other:
    then exp, for which NumPy has older instructions too, takes half the time of exp2.
    """
    try:
        from numpy.lib.introspect import opt_func_info  # noqa: PLC0415 - NumPy 2
    except ImportError:
        return 1.0
    ways = opt_func_info("^exp2$", f"^{dtype.name}$").get("exp2", {})
    vectors = any(not way["current"].startswith("baseline") for way in ways.values())
    return 1 / math.log(2) if vectors else 1.0


def exponential(scores: Array, unit: float, out: Array | None = None) -> Array:
    """Return exp of scores that are in 1/unit nats."""
    result: Array = np.exp(scores, out) if unit == 1.0 else np.exp2(scores, out)
    return result


def exponentiate_felt(scores: Array, unit: float, scratch: Scratch) -> None:
    """Exponentiate in place, but to 0 what no sum would feel that has a 1 in it, or `is_felt`.

    Exponentials below 1e−38 take ten times as long as others, and products with them a hundred
    times.
    """
    least = _LEAST[scores.dtype]
    _raise_to(-depth(scores.dtype) * unit, scores, scratch)
    exponential(scores, unit, scores)
    np.subtract(scores, 2 * least, out=scores)
    _raise_to(0.0, scores, scratch)


def has_unfelt(scores: Array, unit: float) -> bool:
    """Return whether `exponentiate_felt` would make any of the scores 0."""
    return bool(scores.min() < -depth(scores.dtype) * unit)


def refuse_nearly_high(scores: Array, unit: float) -> None:
    """Say so if some scores of a first tile are, or are so nearly, too high to go without a shift.

    Raises
    ------
    TooHighError
    """
    if not scores.max() <= _NEARLY * height(scores.dtype) * unit:
        raise TooHighError


def exponentiate_normal(scores: Array, scratch: Scratch) -> None:
    """Exponentiate scores in nats in place, but to 0 what would be less than a normal number."""
    least = 2 * float(np.finfo(scores.dtype).tiny)
    lowest = math.log(least)
    if scores.min() >= lowest:
        np.exp(scores, scores)
        return
    _raise_to(lowest, scores, scratch)
    np.exp(scores, scores)
    # Not by subtraction: the small ones keep all their digits.
    normal = (scores > least * (1 + 1e-4)).astype(scores.dtype)
    np.multiply(scores, normal, out=scores)


def _raise_to(least: float, tile: Array, scratch: Scratch) -> None:
    """Put a number in the place of every lower one of a tile."""
    # np.maximum takes four times as long with a single number as with an array.
    columns, panel = tile.shape[2:]
    bound = scratch.same(least, columns, panel if is_turned(tile) else 1)
    np.maximum(tile, bound, out=tile)
