"""Whether a block has to be computed again, and with which safeguards.

Every block is first computed in the fastest way. Its sums then show whether that was good
enough: they may have come close to the ends of the number format, or values may be so large
that exponentials count although they are negligible in the denominator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.exponentials import score_floor
from attncli.engine.fully_masked import are_fully_masked
from attncli.engine.refusals import NotFiniteError
from attncli.engine.strategy import Shift
from attncli.engine.sums import outweighs_flushed
from attncli.numerics.finite import all_finite

if TYPE_CHECKING:
    from attncli.engine.strategy import Safeguards
    from attncli.engine.sums import Sums
    from attncli.engine.tile import Rows

__all__ = ["loses_digits_of_lse", "overflows", "safeguards_needed"]

Array = npt.NDArray[Any]
Span = tuple[int, int]

# Near the ends of float32: of a context's sum of squares, and below, of each of its numbers.
_SOUND = (1e-30, math.inf)
# As small as a weight of one of a thousand keys.
_NOT_FAR_BELOW = 2.0**-10
# A logarithm of a sum that is so small beside the shift, or beside 1, has lost 6 bits, of a sum
# that is a single exponential for nothing.
_SMALL = 2.0**-6


def safeguards_needed(
    context: Array | None, sums: Sums, rows: Rows, span: Span, safeguards: Safeguards
) -> Safeguards:
    """Return the safeguards that the sums call for; the same ones if the sums are good.

    Parameters
    ----------
    context : ndarray (N, P, E, R), or None
        The weighted values that belong to the sums.
    sums : Sums
    rows : Rows
    span : (start, stop)
        The keys that the sums should cover.
    safeguards : Safeguards
        Those in use when the sums were computed.

    Raises
    ------
    NotFiniteError
        A sum is not finite, and query, key and value are still unread.
    """
    needed = safeguards
    if rows.strategy.shift is Shift.WATCHED and not _outweigh_flushed(sums, rows, span):
        needed = safeguards._replace(shifted=True)
    elif context is not None:
        needed = _needed_by_context(context, sums, rows, safeguards)
    if context is None or (needed == safeguards and not _misses_values(context, sums, rows)):
        return needed
    if rows.operands.problem.unread is not None and not all_finite(context):
        raise NotFiniteError
    return needed if needed != safeguards else safeguards._replace(shifted=True, keep_tiny=True)


def overflows(context: Array, sums: Sums, rows: Rows) -> bool:
    """Return whether sums of weighted values are beyond the range although a shift is applied.

    Raises
    ------
    NotFiniteError
        They are, or were before they were multiplied by 0, and query, key and value are still
        unread.
    """
    if rows.strategy.shift is not Shift.APPLIED:
        return False
    finite = all_finite(context)
    if rows.operands.problem.unread is not None and (sums.forgot_not_finite or not finite):
        raise NotFiniteError
    return not finite


def loses_digits_of_lse(sums: Sums, rows: Rows) -> bool:
    """Return whether the highest score for shift would give the logarithm of some sum more digits.

    A query that sees one key has its score for logarithm, and that may be close to 0.
    """
    if rows.strategy.headroom == 0:
        return False
    shift = sums.shift[sums.denominator > 0] / sums.unit
    logarithms = np.log(sums.denominator[sums.denominator > 0]) + shift
    return bool(np.any(np.abs(logarithms) < _SMALL * np.maximum(1, np.abs(shift))))


def _outweigh_flushed(sums: Sums, rows: Rows, span: Span) -> bool:
    """Return whether every denominator, except of fully masked rows, outweighs what was flushed."""
    if outweighs_flushed(sums.denominator):
        return True
    zero = (sums.denominator == 0).reshape(len(sums.denominator), -1)
    others = sums.denominator[sums.denominator != 0]
    return (not others.size or outweighs_flushed(others)) and are_fully_masked(rows, zero, span)


def _needed_by_context(
    context: Array, sums: Sums, rows: Rows, safeguards: Safeguards
) -> Safeguards:
    """Return the safeguards that a context beyond either end of the range calls for."""
    flat = context.ravel(order="K")  # in memory order: no copy
    square = float(np.vdot(flat, flat))
    if _SOUND[0] < square < _SOUND[1]:
        lost = _loses_small_values(context, sums, rows)
        return safeguards._replace(shifted=True) if lost else safeguards
    if rows.strategy.shift is Shift.APPLIED:
        # Sums under the highest shift overflow for the largest values alone, which is `overflows`'
        # matter; under a lower one, what they have lost beside exponentials would not come back.
        if safeguards.highest or all_finite(context):
            return safeguards
        return safeguards._replace(shifted=True, highest=True, keep_tiny=True)
    if not square <= _SOUND[0]:
        return safeguards._replace(shifted=True)
    # Fully masked rows and values of 0 are legitimate reasons for a context of 0.
    legitimate = square == 0 and not (sums.denominator.any() and np.any(rows.value))
    return safeguards if legitimate else safeguards._replace(shifted=True)


def _loses_small_values(context: Array, sums: Sums, rows: Rows) -> bool:
    """Return whether exponentials far below 1, times small values, have lost digits.

    Other values may be large, so each number of the context counts by itself.
    """
    if rows.strategy.shift is Shift.APPLIED or sums.denominator.min() > _NOT_FAR_BELOW:
        return False
    live = sums.denominator > 0
    if sums.denominator.min(initial=1, where=live) > _NOT_FAR_BELOW:
        return False
    sizes = np.where(live[:, :, None], np.abs(context), np.inf)
    # A column is 0 if all of its values are.
    zero = sizes.min(axis=(0, 1, 3)) == 0
    lost = zero & _some_not_zero(rows.value) if zero.any() else zero
    return bool(lost.any() or sizes.min(initial=np.inf, where=sizes > 0) < _SOUND[0])


def _some_not_zero(value: Array | None) -> npt.NDArray[np.bool_]:
    """Return which columns of some values (..., S, E) are not all 0."""
    values = np.asarray(value)
    return np.asarray(np.any(values, axis=tuple(range(values.ndim - 1))))


def _misses_values(context: Array, sums: Sums, rows: Rows) -> bool:
    """Return whether flushed exponentials might have counted, times the largest value.

    They are compared with the largest number of each query's context, and with the least of each
    column's, times the largest value of that column.
    """
    if not sums.flushed:
        return False
    # In numbers of the context's own size.
    flushed = rows.key.shape[-2] * math.exp(score_floor(context.dtype))
    flushed /= float(np.finfo(context.dtype).eps)
    missed = flushed * rows.operands.largest_value(rows.batch, rows.heads)
    sizes = np.abs(context)
    if missed <= sizes.min(initial=math.inf):
        return False
    of_queries = sizes.max(axis=2, initial=0)[sums.denominator > 0]
    if not missed <= of_queries.min(initial=math.inf):
        return True
    zero = (sizes == 0) & (sums.denominator > 0)[:, :, None]
    sizes[sizes == 0] = math.inf
    missed_by_column = flushed * rows.operands.largest_by_column(rows.batch, rows.heads)
    if not (missed_by_column <= sizes.min(axis=(0, 1, 3))).all():
        return True
    # A 0 is more often made of values of 0 than of ones that were flushed, which count by
    # themselves, beside numbers of the size of others.
    least = min(1.0, float(sizes.min(initial=math.inf)))
    counting = missed_by_column > least
    return bool(counting.any() and zero.any(axis=(0, 1, 3))[counting].any())
