"""The formula as it stands in the paper, for small problems without rules: all heads at once.

Blocks, tiles and threads would take longer than the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.plan import is_small
from attncli.engine.tile import refuse_scores
from attncli.finite import all_finite

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["attend_plainly", "is_plain"]

Array = npt.NDArray[Any]

# All scores of all heads are held at once: half a megabyte at most.
_CELLS = 2**16


def is_plain(problem: Problem) -> bool:
    """Return whether a problem is small and asks for nothing but softmax(scale · QKᵀ) V."""
    batch, heads, queries, keys = problem.shape
    rules = problem.softcap, problem.bias, problem.slopes, problem.sinks, problem.rope
    return (
        batch * heads * queries * keys <= _CELLS
        and is_small(problem)
        and problem.score == "dot"
        and not problem.visible.hides
        and all(rule is None for rule in rules)
    )


def attend_plainly(problem: Problem, results: dict[str, Array]) -> None:
    """Fill the results of a plain problem.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)

    Raises
    ------
    DataError
        A score exceeds the range of the computing dtype.
    NotFiniteError
        A score or a context is not finite, and key and value are still unread.

    References
    ----------
    Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """
    scores = _scores(problem)
    if not all_finite(scores):
        refuse_scores(problem)
    for name in ("raw", "capped", "scores"):
        if name in results:
            results[name][...] = scores.reshape(problem.shape)
    highest = scores.max(axis=-1, keepdims=True)
    np.subtract(scores, highest, out=scores)
    weights = np.exp(scores, out=scores)
    total = np.add.reduce(weights, axis=-1, keepdims=True)
    if "lse" in results:
        results["lse"][...] = (np.log(total) + highest).reshape(results["lse"].shape)
    np.divide(weights, total, out=weights)
    if "weights" in results:
        results["weights"][...] = weights.reshape(problem.shape)
    if "context" in results and problem.value is not None:
        context = weights @ widen(problem.value, problem.dtype)
        if problem.unread is not None and not all_finite(context):
            refuse_scores(problem)
        results["context"][...] = context.reshape(results["context"].shape)


def _scores(problem: Problem) -> Array:
    """Return the scores (B, G, H/G · L, S): the heads that share a key lie below each other."""
    batch, groups = problem.query.shape[0], problem.key.shape[1]
    query = widen(problem.query, problem.dtype)
    if groups != query.shape[1]:
        query = query.reshape(batch, groups, -1, query.shape[3])
    key = widen(problem.key, problem.dtype)
    scaled = np.multiply(query, problem.scale, dtype=problem.dtype)
    scores: Array = scaled @ key.swapaxes(2, 3)
    return scores
