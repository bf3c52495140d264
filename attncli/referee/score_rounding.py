"""What one rounding of every score, and of every rotary angle, may do to the outputs.

The textbook formula may be exact by luck: its sums are sums of few numbers, its frequencies are
powers that need no rounding. Another right implementation has no such luck. What rounded angles
may do is tried: beside thousands of keys most of it cancels, and a bound would be as large as the
answer. What rounded scores may do is bounded. Where s are the scores before the softmax and δ the
size of their errors, to first order

    |error of lse_i| ≤ Σ_j w_ij δ_ij
    |error of w_ij| ≤ w_ij ((1 − w_ij) δ_ij + Σ_{k≠j} w_ik δ_ik)
    |error of c_i| ≤ Σ_j w_ij δ_ij |v_j − c_i|

which follows from ∂w_j/∂s_k = w_j (1[j = k] − w_k), with sinks, too. Scores of millions err by
more than 1; then a weight lies between those of its own score at its lowest beside all others at
their highest, and the reverse. Since weights sum to 1, c_i also errs by at most Σ_j |error of w_ij|
|v_j − r| for any r: the value of the largest weight is best where one key has it all. And it stays
among the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import turned
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import vary
from attncli.referee.sizes import product_sizes, through_the_output
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.problem.problem import Problem, Rope
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["effects_of_rounding"]

Array = npt.NDArray[Any]
# Errors of scores, in nats: below, a weight moves by so much of itself. And e^300 is no overflow.
_SMALL, _LARGEST = 1e-3, 300.0
# Units in the last place that frequencies err by: of exp(−ln(base) 2p/D) half as many as nats.
_FREQUENCY = 6.0
_TRIES, _TRIED_EPS = 2, 2.0**-23


def effects_of_rounding(
    recipe: Recipe, exact: Outputs, names: Collection[str], eps: float
) -> Outputs:
    """Return how far the roundings of scores and angles may move each output.

    Parameters
    ----------
    recipe : Recipe
    exact : dict
        What `evaluate` gives for it.
    names : collection of str
        Of outputs.
    eps : float
        The distance from 1 to the next number of the format.

    Returns
    -------
    dict of str to ndarray of float64
        For each output, or those of them that can be told.
    """
    problem, scores, weights = recipe.problem, exact["scores"], exact["weights"]
    if not names or (problem.rope is None and set(names) <= set(SCORE_STAGES)):
        return {}
    if {scores.shape[2:], weights.shape[2:]} != {problem.shape[2:]}:  # axes were exchanged
        return {}
    sizes = np.where(recipe.seen & np.isfinite(scores), np.abs(scores), 0)
    if problem.score == "dot":
        sizes = np.maximum(sizes, product_sizes(problem))
    sizes = sizes + _alibi_sizes(problem)
    with np.errstate(all="ignore"):  # mistakes may make weights infinite
        effects = _carried(problem, weights, eps * sizes)
        if problem.rope is not None:
            for name, moved in _turned_effects(recipe, exact, problem.rope, eps).items():
                effects[name] = effects.get(name, 0) + moved
    return effects


def _alibi_sizes(problem: Problem) -> Array | float:
    """Return how large a penalty by position is that ALiBi may be made of, where it is causal.

    Of causal keys slope · j (BLOOM) and slope · (j − S + 1) (MPT) differ from −slope · (i − j) by
    the same for all keys of a query, which changes no weight.
    """
    slopes, keys = problem.alibi_slopes, np.arange(problem.shape[3])
    if slopes is None or not problem.visible.causal:
        return 0.0
    return np.asarray(np.abs(slopes)[:, None, None] * np.maximum(keys, keys[::-1]))


def _carried(problem: Problem, weights: Array, errors: Array) -> Outputs:
    """Carry errors of the scores through the softmax and the weighted sum."""
    weights = np.abs(weights)
    total = weights.sum(axis=-1, keepdims=True)
    # A sink has the rest of the weight, and a value of 0.
    rest = np.maximum(0, 1 - total) if problem.sinks is not None else np.zeros_like(total)
    shares = weights * errors
    lse = shares.sum(axis=-1, keepdims=True)
    moved = shares * (1 - weights) + weights * (lse - shares)
    moved_rest = rest * lse
    large = errors.max(axis=-1, keepdims=True) > _SMALL
    if large.any():
        most = _at_most(weights, rest, errors)
        lse, moved, moved_rest = (
            np.where(large, one, first)
            for one, first in zip(most, (lse, moved, moved_rest), strict=True)
        )
    carried = {"lse": lse, "weights": moved}
    if problem.value is not None:
        value = shared(problem, widen(problem.value, np.float64))
        value = np.where(np.isfinite(value), value, 0)
        context = weights @ value
        first = np.where(large, np.inf, _to_first_order(context, shares, value))
        moved_context = np.minimum(first, _by_weights(weights, moved, moved_rest, value))
        moved_context = np.minimum(moved_context, _among_values(context, weights, rest, value))
        carried["context"] = through_the_output(problem, moved_context)
    return carried


def _at_most(weights: Array, rest: Array, errors: Array) -> tuple[Array, Array, Array]:
    """Return how far lse, weights and the rest of the weight may move, whatever the errors."""
    larger = np.exp(np.minimum(errors, _LARGEST))
    up, down = weights * larger, weights / larger
    total = weights.sum(axis=-1, keepdims=True) + rest
    ups, downs = (one.sum(axis=-1, keepdims=True) + rest for one in (up, down))
    lse = np.maximum(np.log(ups / total), np.log(total / downs))
    highest = total * up / (up + _others(down) + rest)
    lowest = total * down / (down + _others(up) + rest)
    moved = np.maximum(highest - weights, weights - lowest)
    moved_rest = np.maximum(total * rest / downs - rest, rest - total * rest / ups)
    return tuple(np.nan_to_num(one, posinf=0.0) for one in (lse, moved, moved_rest))


def _others(terms: Array) -> Array:
    """Return the sum of all other terms along the last axis, which no term's own size blurs."""
    before, behind = np.zeros_like(terms), np.zeros_like(terms)
    np.cumsum(terms[..., :-1], axis=-1, out=before[..., 1:])
    np.cumsum(terms[..., :0:-1], axis=-1, out=behind[..., -2::-1])
    return np.asarray(before + behind)


def _to_first_order(context: Array, shares: Array, value: Array) -> Array:
    """Return Σ_j w_j δ_j |v_j − c|, at most."""
    # |v − c| ≤ |v − m| + |c − m| for any m: what all values have in common does no harm.
    middle = context.mean(axis=-2, keepdims=True)
    off = np.abs(context - middle)
    return np.asarray(shares @ np.abs(value - middle) + shares.sum(axis=-1, keepdims=True) * off)


def _by_weights(weights: Array, moved: Array, moved_rest: Array, value: Array) -> Array:
    """Return how far the context moves with its weights, at most."""
    largest = weights.argmax(axis=-1)[..., None]
    at_largest = np.take_along_axis(value, largest, axis=-2)
    others = moved.copy()
    np.put_along_axis(others, largest, 0, axis=-1)
    middle = at_largest.mean(axis=-2, keepdims=True)
    away = others @ np.abs(value - middle)
    back = others.sum(axis=-1, keepdims=True) * np.abs(at_largest - middle)
    return np.asarray(away + back + moved_rest * np.abs(at_largest))


def _among_values(context: Array, weights: Array, rest: Array, value: Array) -> Array:
    """Return how far each context lies from the least and the largest value that is seen."""
    seen = np.any(weights > 0, axis=-2, keepdims=True).swapaxes(-1, -2)
    lowest = np.where(seen, value, np.inf).min(axis=-2, keepdims=True)
    highest = np.where(seen, value, -np.inf).max(axis=-2, keepdims=True)
    to_sink = np.where(rest > 0, np.abs(context), 0)
    return np.asarray(np.maximum(np.maximum(highest - context, context - lowest), to_sink))


def _turned_effects(recipe: Recipe, exact: Outputs, rope: Rope, eps: float) -> Outputs:
    """Return how far outputs move if every frequency and every angle is rounded, in a few tries.

    They are tried in float32 at least, since float64 would show its own roundings, too.
    """
    tried = max(eps, _TRIED_EPS)
    random = np.random.default_rng(0)
    count = len(rope.of_width(recipe.problem.query.shape[3]))
    signs = [np.ones(count), *random.choice([-1.0, 1.0], (_TRIES, count))]
    moved: Outputs = {}
    for of_frequencies in signs:
        found = evaluate(_turned_further(recipe, rope, tried * of_frequencies, tried, random))
        for name, array in found.items():
            if array.shape == exact[name].shape:
                error = np.abs(np.where(array == exact[name], 0, array - exact[name]))
                moved[name] = np.maximum(moved.get(name, 0.0), error * (eps / tried))
    return moved


def _turned_further(
    recipe: Recipe, rope: Rope, of_frequencies: Array, eps: float, random: np.random.Generator
) -> Recipe:
    """Return a recipe whose queries and keys are turned further, each pair by its error."""
    problem = recipe.problem
    batch, _, queries, keys = problem.shape
    frequencies = rope.of_width(problem.query.shape[3])
    offsets = np.array([problem.visible.offset(entry) for entry in range(batch)])
    places = offsets[:, None, None, None] + np.arange(queries)[:, None]

    def further(rows: Array, places: Array) -> Array:
        angles = places * frequencies
        rounded = eps * random.uniform(-1, 1, angles.shape)
        return turned(
            widen(rows, np.float64), angles * (_FREQUENCY * of_frequencies + rounded), rope.pairing
        )

    return vary(
        recipe,
        query=further(problem.query, places),
        key=further(problem.key, np.arange(keys)[:, None]),
    )
