"""Where a colour scale of weights ends by default: at the largest weight, or below a few."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.pictures.panel import FloatArray, Panel

__all__ = ["ceiling"]

# In this lowest part of the scale the blues look white.
_PALE = 1 / 20
# If fewer cells than this have a colour, and the others hold this much of the attention, ...
_FEW = 0.05
# (for cells that show the largest of many weights: fewer than this)
_FEW_POOLED = 0.5
_MUCH = 0.1
# or fewer than this, and the others hold even this much, ...
_SOME, _MOST = 0.25, 1 / 3
# Of fewer cells a reader compares each with each: none is saturated.
_MANY = 1000
# ... this share is saturated, so that the others get colours.
_SATURATED = 0.02
# A column in which more rows than this have their largest is a sink; a map has a few at most.
_SINK, _SINKS = 1 / 4, 4


def ceiling(panels: Sequence[Panel], *, pooled: bool = False) -> float:
    """Return the weight that gets the darkest colour.

    It is the largest weight, unless fewer than 1 cell in 20 lies above a twentieth of it
    and the other cells hold more than a tenth of the attention, or fewer than 1 in 4 and the
    others hold more than a third. A scale up to the largest would then leave the picture
    white, as with a long causal map, whose first rows have weights near 1. There the scale
    ends at the weight that 1 cell in 50 exceeds, but not below what half of the rows have as
    their largest, or no row would show its strongest key; both rounded up to two digits. Columns
    in which many rows have their largest, attention sinks, do not count there. Cells of weight
    0 do not count at all, and of fewer than 1,000 cells, each a weight, the scale ends at the
    largest.
    In a pooled map, whose cells show the largest of many weights, half of the cells must lie
    above a twentieth.

    Parameters
    ----------
    panels : sequence of Panel
        Weights, finite.
    pooled : bool
        Each cell shows the largest of several weights.

    Returns
    -------
    float
        1 if no cell is above 0.
    """
    seen = np.concatenate([panel.values[panel.values > 0] for panel in panels])
    if not seen.size:
        return 1.0
    largest = float(seen.max())
    if seen.size < _MANY and not pooled:
        return largest
    # Shares of the largest cannot overflow when they are added.
    shares = np.asarray(seen / largest, dtype=np.float64)
    pale = shares < _PALE
    few = _FEW_POOLED if pooled else _FEW
    coloured, faint = 1 - pale.mean(), shares[pale].sum() / shares.sum()
    white = (coloured < few and faint > _MUCH) or (coloured < _SOME and faint > _MOST)
    if not white:
        return largest
    end = largest * float(np.quantile(shares, 1 - _SATURATED))
    strongest = np.concatenate([_strongest(panel.values) for panel in panels])
    if strongest.size:
        end = max(end, float(np.median(strongest)))
    return min(largest, _rounded_up(end))


def _strongest(weights: FloatArray) -> FloatArray:
    """Return the largest weight of each row that is in no sink."""
    rest = weights.copy()
    for _ in range(_SINKS):
        rows = rest.max(axis=1) > 0
        favoured = np.bincount(rest[rows].argmax(axis=1), minlength=rest.shape[1])
        sinks = favoured > max(1, _SINK * len(rest))
        if not sinks.any():
            break
        rest[:, sinks] = 0
    largest = rest.max(axis=1)
    return np.asarray(largest[largest > 0])


def _rounded_up(number: float) -> float:
    """Return a number with two digits that is not smaller."""
    exponent = floor(log10(number)) - 1
    digits = ceil(float(f"{number:.6e}".split("e")[0]) * 10)
    return float(f"{digits}e{exponent}")
