"""What sinks leave to the weights, in words beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["SINK_NOTE", "sinks_take"]

SINK_NOTE = "rows add up to less than 1: the sink takes the rest"
# A share that four digits show.
_LEAST_SHARE = 1e-4


def sinks_take(weights: npt.NDArray[Any]) -> bool:
    """Return whether some row (…, L, S) adds up to less than 1; that of no seen key is none."""
    totals = weights.sum(axis=-1)
    return bool(((totals > 0) & (totals < 1 - _LEAST_SHARE)).any())
