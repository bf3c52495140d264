"""In which mode a head of a block is computed, and whether the sums show that it was good enough.

A bound on the scores decides first, and the sums afterwards. What fails is computed again in a
safer mode, and in the end by the formula. Heads are judged one by one, so they do not influence
each other's bits.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.formula import HIGHEST_UNSHIFTED
from attncli.engine.operands import NotFiniteError

if TYPE_CHECKING:
    from attncli.engine.flash import Block, OnlineSoftmax
    from attncli.engine.formula import Part
    from attncli.engine.operands import Operands
    from attncli.problem.problem import Problem

__all__ = ["NEGLIGIBLE", "Mode", "failed_heads", "first_mode", "score_bound"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Exponentials below this are negligible beside a row sum of 1, also thousands of them. They are far
# enough above the smallest normal number that products with them are not slow.
NEGLIGIBLE = {np.dtype(np.float32): 2.0**-99, np.dtype(np.float64): 2.0**-963}
# The least row sum beside which they are negligible where there is no shift.
_LEAST_SUM = {np.dtype(np.float32): 1e-12, np.dtype(np.float64): 1e-250}
# Without a shift, products of exponentials and small values may lose digits. They have not where
# the row sums are at least this, and the values summed up are not tiny.
_ENOUGH, _TINY = 2.0**-10, 1e-30
# A column whose largest value is below this may be summed up to 0 without a shift.
_SMALL_VALUE = 1e-12
# A lse so close to 0 that is made without a shift has lost 6 bits.
_NEAR_ZERO = 2.0**-6


class Mode(IntEnum):
    """How a head is computed, from the quickest to the safest way."""

    BOUNDED = 0
    """Without a shift: a bound shows that no exponential leaves the range."""
    WATCHED = 1
    """Without a shift, and the row sums show whether that was right."""
    SHIFTED = 2
    """The row max is subtracted."""
    FORMULA = 3
    """By `attncli.engine.formula`, with normalised weights."""

    @property
    def safer(self) -> Mode:
        """The mode for what fails in this one."""
        return Mode.SHIFTED if self < Mode.SHIFTED else Mode.FORMULA


def score_bound(operands: Operands, part: Part, head: int) -> float:
    """Return a bound on the capped scores of a head, in nats; inf if they may leave the range."""
    problem = operands.problem
    query, key = operands.lengths(part.entries[0], head, part.rows)
    # |q · k| ≤ ‖q‖ ‖k‖ (Cauchy–Schwarz), and the query is scaled before it is multiplied.
    query *= abs(problem.scale)
    if not max(query, query * key) < float(np.finfo(problem.dtype).max) / 2:
        return math.inf
    return min(query * key, problem.softcap or math.inf)


def first_mode(problem: Problem, bound: float) -> Mode:
    """Return the quickest mode that is safe, as far as a bound on the capped scores tells."""
    if bound == math.inf:
        return Mode.FORMULA
    if problem.bias is not None or problem.alibi_slopes is not None:
        return Mode.WATCHED
    return Mode.BOUNDED if bound <= HIGHEST_UNSHIFTED[problem.dtype] else Mode.WATCHED


def failed_heads(block: Block, softmax: OnlineSoftmax, *, with_lse: bool) -> Bools:
    """Return which heads (H,) of a block have to be computed again, in a safer mode."""
    row_sum = block.shape.by_head(softmax.row_sum)
    least = row_sum.min(axis=1)
    failed = np.zeros(len(row_sum), np.bool_)
    if block.mode is Mode.WATCHED:
        most = math.exp(HIGHEST_UNSHIFTED[row_sum.dtype])
        # NaN, of a hidden exponential that was infinite, makes a comparison false.
        failed |= ~((least > _LEAST_SUM[row_sum.dtype]) & (row_sum.max(axis=1) <= most))
    if with_lse and block.mode < Mode.SHIFTED:
        failed |= (np.abs(np.log(row_sum)) < _NEAR_ZERO).any(axis=1)
    if softmax.context is None:
        return failed
    context = block.shape.by_head(softmax.context)
    squares = np.vecdot(context, context)
    sound = (squares > _TINY) & (squares < math.inf) & (least > _ENOUGH)
    sound &= ~softmax.flushed.reshape(-1)
    for head in np.flatnonzero(~sound & ~failed):
        failed[head] = _loses_values(block, softmax, int(head))
    return failed


def _loses_values(block: Block, softmax: OnlineSoftmax, head: int) -> bool:
    """Return whether exponentials that count for the context of a head may have been lost.

    They are negligible in the row sum, or were summed up with small values, but count where their
    value is large beside the others of its column.
    """
    operands, shape = block.operands, block.shape
    place = divmod(head, shape.heads)
    context, live = np.asarray(softmax.context)[place], softmax.row_sum[place] > 0
    largest = operands.largest_values(block.entry, block.part.heads[0] + head)
    if not (np.isfinite(context).all() and np.isfinite(largest).all()):
        if block.problem.unread is not None:
            raise NotFiniteError
        return True
    flushed = 0.0
    if softmax.flushed[place]:
        # In numbers of the context's own size.
        flushed = block.problem.shape[3] * NEGLIGIBLE[context.dtype]
        flushed /= float(np.finfo(context.dtype).eps)
    missed = flushed * largest.astype(float)
    unshifted = block.mode < Mode.SHIFTED
    least = np.maximum(missed, _TINY) if unshifted else missed
    sizes = np.abs(context)
    if sizes.min() >= least.max():
        return False
    sizes = np.where(live[:, None], sizes, math.inf)
    zero = sizes == 0
    if ((sizes < least[:, None]) & ~zero & (largest > 0)[:, None]).any():
        return True
    # A 0 is more often made of values of 0 than of lost ones: these count by themselves, beside
    # numbers of the size of others.
    smallest = min(1.0, float(sizes.min(initial=math.inf, where=~zero)))
    counts = missed > smallest
    if unshifted:
        counts |= (largest > 0) & (largest < _SMALL_VALUE)
    return bool((zero.any(axis=(0, 2)) & counts).any())
