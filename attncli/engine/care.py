"""Whether a block has to be done again, and with what care.

Blocks are done in the quickest way first. The sums tell where it was not good enough: they
left the middle of the number format, or values count that no denominator felt.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.engine.blind import are_blind
from attncli.engine.exponentials import depth
from attncli.engine.refusals import NotFiniteError
from attncli.engine.strategy import Shift
from attncli.engine.sums import is_felt
from attncli.finite import all_finite

if TYPE_CHECKING:
    from attncli.engine.sums import Sums
    from attncli.engine.tile import Rows

__all__ = ["Care", "remedy"]

Array = npt.NDArray[Any]
Span = tuple[int, int]

# Sums of squares of contexts outside these were made of numbers near the ends of float32.
_SOUND = (1e-30, math.inf)
# With values of up to 3e38, sums over any number of keys stay finite.
_SHRINK = 2.0**-40


class Care(NamedTuple):
    """What is done with more care than at first, because the sums need it.

    Attributes
    ----------
    shifted : bool
        Scores are shifted before they are exponentiated.
    value_factor : float
        Values are multiplied by it, and contexts divided.
    keep_tiny : bool
        Exponentials count that no denominator feels.
    """

    shifted: bool = False
    value_factor: float = 1.0
    keep_tiny: bool = False


def remedy(context: Array | None, sums: Sums, rows: Rows, span: Span, care: Care) -> Care:
    """Return what care the sums need: no more where they stayed clear of the number format's ends.

    Parameters
    ----------
    context : ndarray (N, P, E, R), or None
        The weighted values of those sums.
    sums : Sums
    rows : Rows
    span : (start, stop)
        The keys that were asked for.
    care : Care
        With what care they were summed up.

    Raises
    ------
    NotFiniteError
        A sum is not finite, and key and value are still unread.
    """
    more = care
    if rows.strategy.shift is Shift.WATCHED and not _are_felt(sums, rows, span):
        more = care._replace(shifted=True)
    elif context is not None and care.value_factor == 1.0:
        more = _remedy_of_context(context, sums, rows, care)
    if context is None or (more == care and not _misses_values(context, sums, rows)):
        return more
    if rows.operands.problem.unread is not None and not all_finite(context):
        raise NotFiniteError
    return more if more != care else care._replace(shifted=True, keep_tiny=True)


def _are_felt(sums: Sums, rows: Rows, span: Span) -> bool:
    """Return whether no denominator, but of a query that sees no key, feels what was left out."""
    if is_felt(sums.denominator):
        return True
    none = (sums.denominator == 0).reshape(len(sums.denominator), -1)
    others = sums.denominator[sums.denominator != 0]
    return (not others.size or is_felt(others)) and are_blind(rows, none, span)


def _remedy_of_context(context: Array, sums: Sums, rows: Rows, care: Care) -> Care:
    flat = context.ravel(order="K")  # as it lies: no copy
    square = float(np.vdot(flat, flat))
    if _SOUND[0] < square < _SOUND[1]:
        return care
    if rows.strategy.shift is Shift.APPLIED:  # only an overflow can do harm
        return care if all_finite(context) else care._replace(value_factor=_SHRINK)
    if not square <= _SOUND[0]:
        return care._replace(shifted=True, value_factor=_SHRINK)
    # Neither queries that see no key nor values of 0 make more than 0.
    nothing = square == 0 and not (sums.denominator.any() and np.any(rows.value))
    return care if nothing else care._replace(shifted=True)


def _misses_values(context: Array, sums: Sums, rows: Rows) -> bool:
    """Return whether values are so large that exponentials count that no denominator feels."""
    if not sums.unfelt:
        return False
    heads = rows.head, rows.head + len(rows.query)
    largest = rows.operands.largest_value(rows.batch, heads) * sums.value_factor
    missed = rows.key.shape[1] * math.exp(-depth(context.dtype)) * largest
    sizes = np.abs(context).max(axis=2, initial=0)[sums.denominator > 0]
    return not missed <= float(np.finfo(context.dtype).eps) * sizes.min(initial=math.inf)
