"""A small problem at once: the formula as it stands in the paper, with the rules that it has.

Blocks and tiles begin with a tenth of a millisecond of Python, many times as long as the formula
takes for a few queries and keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.formula import exponentiate, grouped_heads, scaled_product, weighted_sum
from attncli.engine.refusals import refuse_scores
from attncli.engine.rules import cap, factors_with_sinks, log_denominators, penalties
from attncli.engine.size import suits_formula
from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen
from attncli.numerics.finite import all_finite

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from attncli.problem.problem import Problem

__all__ = ["attend_at_once", "suits_at_once"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]

# Measured (tests/bench/README.md). Most scores: half a megabyte in float32. Rules take passes over
# all of them, also over those that blocks leave out, and calls for each batch entry that differs.
_CELLS = 2**17
_RULED_CELLS = 2**16
_RULED_ENTRIES = 16
# Up to so many, a masked copy takes less time than the numbers that would hide instead.
_SHORT = 4096


def suits_at_once(problem: Problem) -> bool:
    """Return whether a problem is computed sooner at once than in blocks."""
    batch, heads, queries, keys = problem.shape
    cells = batch * heads * queries * keys
    if cells > _CELLS or problem.score != "dot" or not suits_formula(problem):
        return False
    if not _has_rules(problem):
        return True
    return cells <= _RULED_CELLS and problem.visible.entries <= _RULED_ENTRIES


def attend_at_once(
    problem: Problem, outputs: Collection[str], *, one_blas_thread: bool
) -> tuple[dict[str, Array], int] | None:
    """Compute the outputs of a problem that `suits_at_once`.

    Parameters
    ----------
    problem : Problem
    outputs : collection of str
    one_blas_thread : bool
        Whether BLAS is limited to one thread now. It has to be unless the problem `is_serial`.

    Returns
    -------
    results : dict of str to ndarray (B, H, L, ...)
    fully_masked : int
        How many (batch, head, query) see no key, padded ones included.

    None of both where sums of large values exceed the range, on the way to contexts that do not.

    Raises
    ------
    DataError
        The score of a key that is seen exceeds the range of the computing dtype.
    NotFiniteError
        A score or a context is not finite, and query, key and value are still unread.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    query, key = _query_and_key(problem)
    groups = key.shape[1]
    scores, finite = _raw_scores(problem, query, key, one_blas_thread=one_blas_thread)
    if not finite:
        _refuse_seen(problem, ~np.isfinite(scores))
    ruled = _has_rules(problem)
    if ruled:
        results = _apply_rules(problem, scores, outputs, finite=finite)
    else:
        results = _copies(scores, outputs)
    highest, total = exponentiate(scores, may_be_empty=ruled)
    above = _above(problem, highest)
    if "lse" in outputs:
        sinks = None if problem.sinks is None else problem.sinks[:, None, None]
        results["lse"] = log_denominators(total, highest, sinks)[..., 0]
    fully_masked = _mend_empty(total) if ruled else 0
    if "context" in outputs and problem.value is not None:
        # Of the scores again: their heads may be a copy of the product's, which has NumPy's order.
        weights = grouped_heads(scores, groups)
        sums = weighted_sum(weights, widen(problem.value, problem.dtype))
        if not _is_finite(sums, problem):
            return None
        results["context"] = _divide(sums.reshape(*total.shape[:3], -1), total, above)
    if "weights" in outputs:
        results["weights"] = _divide(scores, total, above)
    return results, fully_masked


def _query_and_key(problem: Problem) -> tuple[Array, Array]:
    """Return query and key in the computing dtype, rotated if the problem asks for it."""
    query, key = problem.query, problem.key
    if problem.rope is not None:
        from attncli.engine.operands import prepare  # noqa: PLC0415 - most problems have none

        operands = prepare(problem)
        query, key = operands.query, operands.key
    return widen(query, problem.dtype), widen(key, problem.dtype)


def _raw_scores(
    problem: Problem, query: Array, key: Array, *, one_blas_thread: bool
) -> tuple[Array, bool]:
    """Return scale · query keyᵀ, (B, H, L, S), and whether all of it is finite."""
    stacked = grouped_heads(query, key.shape[1])
    scores, finite = scaled_product(stacked, key, problem.scale, one_blas_thread=one_blas_thread)
    return scores.reshape(problem.shape), finite


def _above(problem: Problem, highest: Array) -> Array | None:
    """Return by how much the sinks are above the highest scores; None without sinks."""
    if problem.sinks is None:
        return None
    above: Array = problem.sinks[:, None, None].astype(highest.dtype) - highest
    return above


def _mend_empty(total: Array) -> int:
    """Replace totals of 0 by 1, so that weights become 0, and return how many there were."""
    empty = total == 0
    np.copyto(total, 1, where=empty)
    return int(np.count_nonzero(empty))


def _is_finite(sums: Array, problem: Problem) -> bool:
    """Return whether sums are finite; raise if not, and inputs nobody has read may be why."""
    if all_finite(sums):
        return True
    if problem.unread is not None:
        refuse_scores(problem)
    return False


def _divide(array: Array, total: Array, above: Array | None) -> Array:
    """Divide (B, H, L, ·) by totals (B, H, L, 1) in place, and by sinks so far above the shift."""
    if above is None:
        return np.divide(array, total, out=array)
    for factor in factors_with_sinks(total, above):
        np.multiply(array, factor, out=array)
    return array


def _has_rules(problem: Problem) -> bool:
    """Return whether there is more to the scores than the product."""
    return (
        problem.bias is not None
        or problem.softcap is not None
        or problem.alibi_slopes is not None
        or problem.visible.hides
    )


def _copies(scores: Array, outputs: Collection[str]) -> dict[str, Array]:
    """Return the stages asked for of scores that no rule changes."""
    return {name: scores.copy() for name in SCORE_STAGES if name in outputs}


def _apply_rules(
    problem: Problem, scores: Array, outputs: Collection[str], *, finite: bool
) -> dict[str, Array]:
    """Make scores (B, H, L, S) of raw ones in place, and return the stages asked for.

    ``finite`` says whether all raw ones are, also those of hidden keys.
    """
    stages: dict[str, Array] = {}
    if "raw" in outputs:
        stages["raw"] = scores.copy()
    # Softcap precedes bias and mask, or it would squeeze −inf back into range.
    if problem.softcap is not None:
        cap(scores, problem.softcap)
    if "capped" in outputs:
        stages["capped"] = scores.copy()
    if problem.bias is not None or problem.alibi_slopes is not None:
        _add_bias_and_penalties(problem, scores)
    # Hidden scores are replaced, not added to, so nothing behind a mask can leak.
    for own, seen in _seen(problem, scores):
        if finite and own.size > _SHORT:  # many times faster than a copy of an irregular pattern
            highest = np.where(seen, np.inf, -np.inf)
            np.minimum(own, highest, out=own, dtype=own.dtype, casting="same_kind")
        else:
            np.copyto(own, -np.inf, where=~seen)
    if "scores" in outputs:
        stages["scores"] = scores.copy()
    return stages


def _add_bias_and_penalties(problem: Problem, scores: Array) -> None:
    """Add in place; raise if a sum is infinite, unless the bias itself is −inf."""
    if problem.bias is not None:
        scores += widen(problem.bias, problem.dtype)
    if problem.alibi_slopes is not None:
        _, _, queries, keys = problem.shape
        offsets = problem.visible.offsets
        for offset, own in zip(offsets, _by_entry(scores, len(offsets)), strict=True):
            penalty = penalties(problem.alibi_slopes, offset - keys + 1, (queries, keys), own.dtype)
            np.subtract(own, penalty, out=own)
    if all_finite(scores):
        return
    wrong = ~np.isfinite(scores)
    if problem.bias is not None:
        wrong &= widen(problem.bias, problem.dtype) > -np.inf
    _refuse_seen(problem, wrong)


def _refuse_seen(problem: Problem, wrong: Bools) -> None:
    """Raise the error of scores beyond the range if a query sees any of the wrong ones."""
    if problem.unread is None:
        for own, seen in _seen(problem, wrong):
            np.logical_and(own, seen, out=own)
    if wrong.any():
        refuse_scores(problem)


def _seen(problem: Problem, array: Array) -> Iterator[tuple[Array, Bools]]:
    """Yield parts of an array (B, H, L, S), with which keys are seen there, if not all are."""
    visible = problem.visible
    whole = (0, visible.queries), (0, visible.keys)
    for entry, own in enumerate(_by_entry(array, visible.entries)):
        seen = visible.tile(entry, slice(None), *whole)
        if seen is not None:
            yield own, seen


def _by_entry(array: Array, entries: int) -> Iterable[Array]:
    """Return an array (B, H, L, S) entry by entry, or whole where all entries are alike."""
    return [array] if entries == 1 else array
