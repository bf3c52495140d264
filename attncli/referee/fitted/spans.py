"""Which keys each query sees, inferred from a context that has fewer columns than there are keys.

Of all keys in a row, there are S(S + 1)/2 that a loop, a window or an offset may leave: key a to
key b. Differences of running sums give the context of each,

    c_ab = Σ_{a ≤ j ≤ b} exp(s_j) v_j / Σ_{a ≤ j ≤ b} exp(s_j)

and the numbers of a row tell which of them it is.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee.convention import without
from attncli.referee.evaluation import evaluate
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.fitted.found_weights import Patterns

__all__ = ["LOST", "SLACK", "TYPICAL", "RunningSums", "masks_of_spans", "sinks_of"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Rules that the spans may stand for: those by position; and masks, as of documents in a row.
_STOOD_FOR = (frozenset({"causal", "window"}), frozenset({"causal", "window", "mask"}))
# All spans of more keys would take too much memory: one end is that of the right span, or of all.
_MANY_KEYS = 2048
# Of so many spans that come near, those most like the right one are looked at.
_MOST_NEAR = 20_000
# Most errors are this small a share of what is tolerated; those of a row of few keys may be so
# large.
TYPICAL, SLACK = 1 / 8, 8.0
# Spans that come so much nearer, or all within so small a share of the error, are the same.
_AS_GOOD, _LEAST = 1.05, 1e-3
# What differences of running sums lose.
LOST = 1e-10
# Bits that chance does not reach.
_EVIDENCE = 48.0
_MOST_BITS = 16.0


class RunningSums(NamedTuple):
    """Running sums over the keys of one row: of exp(score), and of exp(score) · value."""

    shares: Array
    values: Array
    sink: float

    def contexts(self, first: Array, end: Array) -> Array:
        """Return the contexts of spans, (n, E)."""
        shares = self.shares[end] - self.shares[first] + self.sink
        sums = self.values[end] - self.values[first]
        # Where no key is left, nothing is.
        return np.asarray(sums / np.where(shares > 0, shares, 1)[:, None])

    @classmethod
    def of(cls, scores: Array, value: Array, sink: float) -> RunningSums:
        """Return the sums of the scores of a row (S,), with values (S, E) and a sink."""
        top = max(float(scores.max()), sink)
        shares = np.exp(scores - top) if top > -math.inf else np.zeros(len(scores))
        products = np.cumsum(shares[:, None] * value, axis=0)
        return cls(
            np.concatenate([[0.0], np.cumsum(shares)]),
            np.concatenate([np.zeros((1, value.shape[1])), products]),
            math.exp(sink - top) if sink > -math.inf else 0.0,
        )


def sinks_of(problem: Problem) -> Array:
    """Return the sink of each head, (H,); −inf where there is none."""
    return np.full(problem.shape[1], -np.inf) if problem.sinks is None else problem.sinks


def masks_of_spans(cases: Sequence[Case]) -> Patterns | None:
    """Return the masks with which each query sees the keys from one to another.

    Parameters
    ----------
    cases : sequence of Case

    Returns
    -------
    dict of Part to ndarray of bool (B, H, L, S), or None
        None where a row is that of no span, or chance may have found them.
    """
    found = (_masks_in_place_of(rules, cases) for rules in _STOOD_FOR)
    return next((masks for masks in found if masks is not None), None)


def _masks_in_place_of(rules: frozenset[str], cases: Sequence[Case]) -> Patterns | None:
    masks: Patterns = {}
    bits = 0.0
    for case in cases:
        found = _spans(case, rules)
        if found is None:
            return None
        masks[case.recipe.part], more = found
        bits += more
    return masks if bits >= _EVIDENCE else None


def _spans(case: Case, instead: frozenset[str]) -> tuple[Bools, float] | None:
    """Return the mask of a case in the place of some rules, and the evidence for it in bits."""
    recipe = case.recipe
    problem = recipe.problem
    able = problem.output is None and problem.value is not None
    if not (able and "context" in case.files and case.comparable):
        return None
    file = case.canonical("context")
    if not np.isfinite(file).all():
        return None
    error = recipe.resolution + LOST * float(np.abs(file).max())
    right = case.right["context"]
    mask = np.broadcast_to(recipe.seen, problem.shape).copy()
    scores = evaluate(without(recipe, *instead), known=case.stages)["scores"]
    value = shared(problem, widen(np.asarray(problem.value), np.float64))
    value = np.broadcast_to(value, (*problem.shape[:2], *value.shape[2:]))
    sinks = sinks_of(problem)
    bits = 0.0
    for row in np.argwhere((np.abs(file - right) > TYPICAL * error).any(axis=-1)):
        b, h, i = map(int, row)
        sums = RunningSums.of(scores[b, h, i], value[b, h], float(sinks[h]))
        span = _span(sums, file[b, h, i], error, mask[b, h, i])
        if span is None:
            return None
        mask[b, h, i] = False
        mask[b, h, i, slice(*span)] = np.isfinite(scores[b, h, i, slice(*span)])
        if span[1] - span[0] == 1:  # its weight is 1, whatever its score: any copy of a value is
            continue
        with np.errstate(divide="ignore"):  # what was right says nothing
            told = np.log2(np.abs(file[b, h, i] - right[b, h, i]) / (TYPICAL * error))
        bits += float(np.clip(told, 0, _MOST_BITS).sum()) - 2 * math.log2(problem.shape[3])
    return mask, bits


def _span(sums: RunningSums, context: Array, error: float, right: Bools) -> tuple[int, int] | None:
    """Return the keys, first and end, whose context a row is; the most like the right one.

    Nothing is left of a row of zeros. Where many keys have no weight, many spans are the same.
    """
    if (np.abs(context) <= error).all():
        return 0, 0
    seen = np.flatnonzero(right)
    ends = (int(seen[0]), int(seen[-1]) + 1) if seen.size else (0, 0)
    first, end = _near(sums, context, error, ends)
    unlike = np.abs(first - ends[0]) + np.abs(end - ends[1])
    order = np.argsort(unlike, kind="stable")[:_MOST_NEAR]
    first, end = first[order], end[order]
    apart = np.abs(sums.contexts(first, end) - context)
    errors = np.square(apart).mean(axis=1)
    errors[apart.max(axis=1, initial=0.0) > SLACK * error] = math.inf
    least = float(errors.min(initial=math.inf))
    if least == math.inf:
        return None
    # Keys with next to no weight are left as they should be.
    one = np.flatnonzero(errors <= _AS_GOOD * least + (_LEAST * error) ** 2)[0]
    return int(first[one]), int(end[one])


def _near(
    sums: RunningSums, context: Array, error: float, ends: tuple[int, int]
) -> tuple[Array, Array]:
    """Return the spans whose context comes near along one direction, which is quickly seen."""
    along = np.random.default_rng(0).choice([-1.0, 1.0], len(context))
    apart = sums.values @ along - (context @ along) * sums.shares
    first, end = np.broadcast_arrays(*_candidates(len(sums.shares), ends))
    apart_by = np.abs(apart[end] - apart[first] - sums.sink * (context @ along))
    shares = sums.shares[end] - sums.shares[first] + sums.sink
    near = (apart_by <= SLACK * math.sqrt(len(context)) * error * shares) & (shares > 0)
    near &= first < end
    return first[near], end[near]


def _candidates(count: int, ends: tuple[int, int]) -> tuple[Array, Array]:
    """Return where spans begin and end: all of them, or of many keys those with a usual end."""
    places = np.arange(count)
    if count <= _MANY_KEYS + 1:
        return places[:, None], places[None, :]
    fixed = sorted({0, *ends, count - 1})
    pairs = [(np.minimum(places, end), np.maximum(places, end)) for end in fixed]
    first, end = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return first, end
