"""Contexts that were averaged or added up over the heads or the queries."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Apply, Convention
from attncli.referee.replacing import replace
from attncli.referee.stages import present

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["POOLED"]

Array = npt.NDArray[Any]
_HEADS, _QUERIES = 1, 2


def _pooled(pool: Callable[..., Array], axis: int) -> Apply:
    """Make an `apply` that pools the contexts (B, H, L, E); the axis may stay, of length 1."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, found = recipe.problem, recipe.file_shapes.get("context")
        mixed = axis == _HEADS and problem.output is not None
        if problem.shape[axis] == 1 or mixed or found is None:
            return None

        def shape(problem: Problem, name: str, array: Array) -> Array:
            if name != "context":
                return present(problem, name, array)
            pooled = present(problem, name, pool(array, axis=axis, keepdims=True))
            lengths = [[n for n in each if n != 1] for each in (pooled.shape, found)]
            return pooled.reshape(found) if lengths[0] == lengths[1] else pooled

        return replace(recipe, shape=shape)

    return apply


_pool = partial(
    Convention,
    topic=topics.AXES,
    needs=frozenset({"batch", "heads", "rows"}),
    late=True,
    reshapes=True,
)
_of_heads = partial(
    _pool,
    fix="put the heads side by side instead: context.transpose(0, 2, 1, 3).reshape(B, L, H·E)",
    shows="more than one head",
)

POOLED = (
    _of_heads(
        name="context_averaged_over_heads",
        meaning="the contexts of the heads are averaged",
        apply=_pooled(np.mean, _HEADS),
    ),
    _of_heads(
        name="context_summed_over_heads",
        meaning="the contexts of the heads are added up",
        apply=_pooled(np.sum, _HEADS),
    ),
    _pool(
        name="context_averaged_over_queries",
        meaning="the contexts of the queries are averaged: the file has one for all of them",
        apply=_pooled(np.mean, _QUERIES),
        fix="keep the context of each query; pool afterwards",
        shows="more than one query",
    ),
)
