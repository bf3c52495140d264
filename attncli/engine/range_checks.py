"""Whether the sums of a block show that exponentials or values left the range and lost digits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import NotFiniteError

if TYPE_CHECKING:
    from attncli.engine.flash import Block, OnlineSoftmax

Array = npt.NDArray[Any]

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
# Scores in nats up to which exponentials need no shift: exp(±40) is 4e−18 to 2e17, which leaves
# sums in float32 20 orders of magnitude to both ends of its range, 1e−38 to 3e38.
HIGHEST_UNSHIFTED = {_SINGLE: 40.0, _DOUBLE: 300.0}
# Even thousands of exponentials below this are negligible beside a row sum of 1. Yet it is so far
# above the smallest normal number that products are not slow.
NEGLIGIBLE = {_SINGLE: 2.0**-99, _DOUBLE: 2.0**-963}
# Without a shift, they are negligible beside a row sum of at least this.
_LEAST_SUM = {_SINGLE: 1e-12, _DOUBLE: 1e-250}
# Without a shift, products of exponentials and small values may lose digits. They lose none if the
# row sums are at least the first number, and the context is not below the second.
_ENOUGH, _TINY = 2.0**-10, 1e-30
# Without a shift, a column whose values are all below this may sum to 0.
_SMALL_VALUE = 1e-12
# Without a shift, an lse closer to 0 than this has lost 6 bits.
_NEAR_ZERO = 2.0**-6


def loses_digits(block: Block, softmax: OnlineSoftmax, *, with_lse: bool) -> bool:
    """Return whether a block has to be computed again, in a safer way."""
    row_sum, context = softmax.row_sum, softmax.context
    least = float(row_sum.min())
    if block.watched:
        most = math.exp(HIGHEST_UNSHIFTED[row_sum.dtype])
        # NaN, from a hidden exponential that was infinite, makes comparisons false.
        if not (least > _LEAST_SUM[row_sum.dtype] and row_sum.max() <= most):
            return True
    if with_lse and not block.shifted and (np.abs(np.log(row_sum)) < _NEAR_ZERO).any():
        return True
    if context is None:
        return False
    size = np.linalg.norm(context)
    sound = size > math.sqrt(_TINY) and size < math.inf and least > _ENOUGH
    return not (sound and not softmax.flushed) and _loses_values(block, softmax, context)


def _loses_values(block: Block, softmax: OnlineSoftmax, context: Array) -> bool:
    """Return whether exponentials that count for the context may have been lost.

    An exponential that is negligible in the row sum, or small times its value, still counts where
    its value is large beside the others of its column.
    """
    largest = block.operands.largest_values(block.place)
    if not (np.isfinite(context).all() and np.isfinite(largest).all()):
        if block.problem.unread is not None:
            raise NotFiniteError
        return True
    flushed = 0.0
    if softmax.flushed:
        # In units of the context.
        flushed = block.problem.shape[3] * NEGLIGIBLE[context.dtype]
        flushed /= float(np.finfo(context.dtype).eps)
    missed = flushed * largest.astype(float)
    least = missed if block.shifted else np.maximum(missed, _TINY)
    sizes = np.abs(context)
    if sizes.min() >= least.max():
        return False
    sizes = np.where(softmax.row_sum[..., None] > 0, sizes, math.inf)
    zero = sizes == 0
    if ((sizes < least) & ~zero & (largest > 0)).any():
        return True
    # A 0 in the context usually comes from values of 0, not from lost products. Lost ones matter
    # only where they may exceed the smallest other number.
    smallest = min(1.0, float(sizes.min(initial=math.inf, where=~zero)))
    counts = missed > smallest
    if not block.shifted:
        counts |= (largest > 0) & (largest < _SMALL_VALUE)
    return bool((zero.any(axis=(0, 1)) & counts).any())
