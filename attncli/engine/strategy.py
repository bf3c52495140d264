"""How the scores of a block are exponentiated: with or without a shift, in nats or in bits.

exp(s − c) / Σ exp(s − c) is the same for every shift c, so a shift is only needed where exp(s)
might overflow. Where a bound on the scores rules that out, none is applied. Where no bound is
known, the scores are watched, and the block starts again with a shift if one is too high or a
sum too small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.engine.exponentials import quickest_unit, score_ceiling, score_floor

if TYPE_CHECKING:
    from attncli.engine.operands import Operands
    from attncli.engine.parts import Block
    from attncli.problem.problem import Problem

__all__ = ["ProductsTooHighError", "Safeguards", "Shift", "Strategy", "choose_strategy"]

# With fewer queries, reading all keys for a bound costs as much as the bound saves.
_FEW_QUERIES = 16
# The mantissa of powers of two: a product with one of them is exact.
_POWER_OF_TWO = 0.5
# Scores, in nats, which in bits lose no digit that exponentials of theirs have: of scores that are
# exact in nats, and of others.
_LOW_OF_EXACT, _LOW = 4.0, 64.0
_HALF_OF_RANGE = {
    np.dtype(kind): float(np.finfo(kind).max) / 2 for kind in (np.float32, np.float64)
}


class ProductsTooHighError(Exception):
    """Products that are not yet scaled exceed the range."""


class Shift(Enum):
    """Whether a shift is subtracted from the scores before they are exponentiated."""

    NONE = "none"
    """No: a bound proves that no exponential overflows."""
    WATCHED = "watched"
    """No, but each tile is checked, because no such bound is known."""
    APPLIED = "applied"
    """Yes."""


class Safeguards(NamedTuple):
    """Slower but safer choices; the first attempt at a block uses none of them.

    Attributes
    ----------
    shifted : bool
        Subtract a shift from the scores before they are exponentiated.
    keep_tiny : bool
        Keep exponentials that are negligible in the denominator.
    scaled_first : bool
        Multiply the query with the scale, not the products, which may exceed the range.
    highest : bool
        The shift is the highest score of each query, for lse with few digits to spare.
    """

    shifted: bool = False
    keep_tiny: bool = False
    scaled_first: bool = False
    highest: bool = False


@dataclass(eq=False, slots=True)
class Strategy:
    """How the scores of a block are exponentiated.

    Attributes
    ----------
    shift : Shift
    keep_tiny : bool
        Under a shift, keep exponentials that are negligible in the denominator: they are
        weights that were asked for, or values are large enough to make them count.
    unit : float
        What scores are multiplied by: 1, or 1/ln 2 for exp2. They are in 1/unit nats.
    bound : float
        No raw score exceeds it in magnitude, in nats; inf if unknown.
    may_overflow : bool
        Whether raw scores, or queries times the scale, may exceed the computing dtype.
    may_underflow : bool
        Whether, without a shift, scores may be so low that their exponentials are negligible.
    headroom : float
        By how much scores may exceed the shift, in nats.
    scaled_last : bool
        The products are multiplied with scale and unit, not the query: they may be exact.
    """

    shift: Shift
    keep_tiny: bool
    unit: float
    bound: float
    may_overflow: bool
    may_underflow: bool
    headroom: float
    scaled_last: bool = False


def choose_strategy(
    operands: Operands, block: Block, safeguards: Safeguards, *, keeps_stages: bool
) -> Strategy:
    """Return the fastest strategy that is safe for a block, as far as is known beforehand."""
    problem = operands.problem
    longest, products, bound = _raw_bounds(operands, block)
    extent = _score_bound(problem, block.heads, bound)
    keep_tiny = safeguards.keep_tiny or "weights" in block.results
    unit, half = 1.0, _HALF_OF_RANGE[problem.dtype]
    if extent <= score_ceiling(problem.dtype) and not safeguards.shifted:
        shift = Shift.NONE
    elif safeguards.shifted or block.small or keep_tiny or problem.sinks is not None:
        shift = Shift.APPLIED
    else:
        shift = Shift.WATCHED
    # Shifted scores stay in nats because many are so low that exp2 yields subnormal numbers and
    # takes ten times as long; score stages, because they are returned in nats; and those that may
    # be exact, unless they are low (as all are in float32), because they are not exact in bits.
    highest = min(extent, score_ceiling(problem.dtype))
    exact = _are_exact_in_nats(operands, highest)
    if not (block.small or shift is Shift.APPLIED or keeps_stages or exact):
        unit = quickest_unit(problem.dtype)
    return Strategy(
        shift=shift,
        keep_tiny=keep_tiny,
        unit=unit,
        bound=bound,
        may_overflow=not (longest * unit < half and bound * unit < half),
        may_underflow=not extent <= -score_floor(problem.dtype),
        headroom=0.0 if safeguards.highest else score_ceiling(problem.dtype),
        scaled_last=not safeguards.scaled_first
        and not half <= products < math.inf
        and _repays_scaling_last(operands, unit),
    )


def _are_exact_in_nats(operands: Operands, highest: float) -> bool:
    """Return whether scores look as if they were exact, and would not be in bits."""
    if highest <= _LOW_OF_EXACT:
        return False
    if highest > _LOW:
        return operands.have_few_digits
    exact = abs(math.frexp(operands.problem.scale)[0]) == _POWER_OF_TWO
    return exact and operands.problem.is_product and operands.have_exact_products


def _repays_scaling_last(operands: Operands, unit: float) -> bool:
    """Return whether products may be exact, and the query times the scale would not be."""
    problem = operands.problem
    exact = abs(math.frexp(problem.scale * unit)[0]) == _POWER_OF_TWO
    wanted = problem.is_product and abs(problem.scale) <= 1 and not exact
    return wanted and operands.have_few_digits


def _raw_bounds(operands: Operands, block: Block) -> tuple[float, float, float]:
    """Return bounds on the block's scaled queries, products and raw scores; inf if unknown."""
    problem = operands.problem
    if not problem.is_product:  # the query is not scaled
        return 0.0, 0.0, float(np.abs(np.asarray(problem.score_vector)).sum()) * abs(problem.scale)
    rows = block.start, block.stop
    if block.small or block.stop - block.start < _FEW_QUERIES:
        operands.check_queries(block.batch, block.heads, rows)
        return math.inf, math.inf, math.inf
    # |q · k| ≤ ‖q‖ ‖k‖ (Cauchy–Schwarz).
    query = operands.longest_query(block.batch, block.heads, rows)
    key, scale = operands.longest_key(block.batch, block.heads), abs(problem.scale)
    return query * scale, query * key, query * scale * key


def _score_bound(problem: Problem, heads: tuple[int, int], bound: float) -> float:
    """Return a bound on the magnitude, in nats, of scores after all rules; inf if unknown."""
    if problem.bias is not None or problem.alibi_slopes is not None:
        return math.inf
    sinks = None if problem.sinks is None else problem.sinks[slice(*heads)]
    capped = bound if problem.softcap is None else min(bound, problem.softcap)
    return capped if sinks is None else max(capped, float(np.abs(sinks).max()))
