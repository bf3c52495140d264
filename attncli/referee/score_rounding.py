"""What one rounding of every score, and of every rotary angle, may do to the outputs.

The plain formula may be exact by luck: its sums are sums of few numbers, its frequencies are
powers that need no rounding. Another right implementation has no such luck, so what it may err by
is bounded here. Where s are the scores before the softmax and δ the size of their errors, to
first order

    |error of lse_i| ≤ Σ_j w_ij δ_ij
    |error of w_ij| ≤ w_ij (δ_ij + Σ_k w_ik δ_ik)
    |error of c_i| ≤ Σ_j w_ij δ_ij |v_j − c_i|

which follows from ∂w_j/∂s_k = w_j (1[j = k] − w_k), with sinks, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.names import SCORE_STAGES
from attncli.positions import pair_lengths
from attncli.referee.sizes import product_sizes, through_the_output
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.problem import Problem
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["effects_of_rounding"]

Array = npt.NDArray[Any]


def effects_of_rounding(recipe: Recipe, exact: Outputs, names: Collection[str]) -> Outputs:
    """Return how far the roundings of scores and angles may move each output.

    Parameters
    ----------
    recipe : Recipe
    exact : dict
        What `evaluate` gives for it.
    names : collection of str
        Of outputs.

    Returns
    -------
    dict of str to ndarray of float64
        For each output, or those of them that can be told: in multiples of the distance from 1 to
        the next number of the format.
    """
    problem, scores, weights = recipe.problem, exact["scores"], exact["weights"]
    if not names or (problem.rope is None and set(names) <= set(SCORE_STAGES)):
        return {}
    if {scores.shape[2:], weights.shape[2:]} != {problem.shape[2:]}:  # axes were exchanged
        return {}
    turned = _turning_sizes(problem)
    sizes = np.where(recipe.seen & np.isfinite(scores), np.abs(scores), 0)
    if problem.score == "dot":
        sizes = np.maximum(sizes, product_sizes(problem) + turned)
    return _carried(problem, weights, sizes) | dict.fromkeys(SCORE_STAGES, turned)


def _carried(problem: Problem, weights: Array, errors: Array) -> Outputs:
    """Carry errors of the scores through the softmax and the weighted sum."""
    shares = weights * errors
    total = shares.sum(axis=-1, keepdims=True)
    carried = {"lse": total, "weights": shares + weights * total}
    if problem.value is not None:
        value = shared(problem, widen(problem.value, np.float64))
        # |v − c| ≤ |v − m| + |c − m| for any m: what all values have in common does no harm.
        value = value - value.mean(axis=-2, keepdims=True)
        context = shares @ np.abs(value) + total * np.abs(weights @ value)
        carried["context"] = through_the_output(problem, context)
    return carried


def _turning_sizes(problem: Problem) -> Array:
    """Return how far each score moves, at most, if every angle errs by its own size.

    Pair p of a query turns by α, of a key by β. Their part of the product is at most |q_p| |k_p|,
    and moves by at most (|α| + |β|) |q_p| |k_p|.
    """
    rope = problem.rope
    if rope is None:
        return np.zeros((1, 1, 1, 1))
    batch, _, queries, keys = problem.shape
    frequencies = np.abs(rope.of_width(problem.query.shape[3]))
    offsets = np.array([problem.visible.offset(entry) for entry in range(batch)])
    places = np.abs(offsets[:, None, None, None] + np.arange(queries)[:, None])
    query, key = (
        pair_lengths(widen(rows, np.float64), len(frequencies), rope.pairing)
        for rows in (problem.query, problem.key)
    )
    key = shared(problem, key)
    of_queries = (query * frequencies * places) @ key.swapaxes(-1, -2)
    of_keys = query @ (key * frequencies * np.arange(keys)[:, None]).swapaxes(-1, -2)
    return np.asarray(abs(problem.scale) * (of_queries + of_keys))
