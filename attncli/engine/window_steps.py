"""Sliding-window steps, computed at once.

With a sliding window, away from the ends of the sequence, each group of panels sees the same
number of keys, shifted by a constant step. The groups are then computed in one call as if each
were a head: its keys are a strided view that starts one step further on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import by_query_head

if TYPE_CHECKING:
    from attncli.engine.tile import Rows
    from attncli.problem.visibility import Visibility

__all__ = ["window_steps"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Measured (tests/bench/README.md). Queries in a step.
_STEP_ROWS = 128


def window_steps(rows: Rows, span: Span) -> tuple[Rows, Span] | None:
    """Return rows with each step as a head, and the keys that the first step sees.

    Parameters
    ----------
    rows : Rows
    span : (start, stop)
        The keys to sum up.

    Returns
    -------
    (Rows, (start, stop)), or None
        None if the steps do not all see the same number of keys, or if a rule depends on the
        absolute position of a key.
    """
    heads, panels, width, panel = rows.query.shape
    problem = rows.operands.problem
    visible = problem.visible
    each = max(1, _STEP_ROWS // panel)
    movable = rows.masks_after_exp and not rows.strategy.may_overflow
    movable = movable and visible.repeats and problem.bias is None
    if not movable or heads > 1 or panels % each or panels == each:
        return None
    seen = _seen_by_first(rows, visible, each * panel, span)
    if seen is None:
        return None
    count, step = panels // each, each * panel
    slid = partial(_slid, count=count, step=step, length=seen[1])
    steps = replace(
        rows,
        query=rows.query.reshape(count, each, width, panel),
        key=by_query_head(slid(rows.key), count),
        value=None if rows.value is None else by_query_head(slid(rows.value), count),
        stop=rows.start + step,
    )
    return steps, seen


def _seen_by_first(rows: Rows, visible: Visibility, step: int, span: Span) -> Span | None:
    """Return the keys of the first step; None unless each other step sees them shifted."""
    starts = range(rows.start, rows.stop, step)
    first, *others = (visible.span(rows.batch, start, start + step) for start in starts)
    moved = [(first[0] + n * step, first[1] + n * step) for n in range(1, len(starts))]
    inside = first[0] < first[1] and span[0] <= first[0] and (first, *others)[-1][1] <= span[1]
    return first if inside and others == moved else None


def _slid(matrix: Array, count: int, step: int, length: int) -> Array:
    """Return views (count, length, X) of a matrix (S, X), each one step after the previous."""
    window: Array = np.lib.stride_tricks.sliding_window_view(matrix, length, axis=0)
    return window[: (count - 1) * step + 1 : step].swapaxes(1, 2)
