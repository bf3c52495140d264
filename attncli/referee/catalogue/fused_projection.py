"""A fused projection of query, key and value that is split in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.names import INPUTS
from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_inputs
from attncli.referee.convention import Apply, Convention
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem import Problem

__all__ = ["FUSED"]

Array = npt.NDArray[Any]


def _cut_by_head(arrays: list[Array]) -> list[Array]:
    """Cut (q, k, v) side by side as if each head had its q, k and v side by side."""
    fused = np.stack([array.transpose(0, 2, 1, 3) for array in arrays], axis=2)
    batch, rows, _, heads, width = fused.shape
    cut = fused.reshape(batch, rows, heads, 3, width)
    return [cut[:, :, :, at].transpose(0, 2, 1, 3) for at in range(3)]


def _cut_by_kind(arrays: list[Array]) -> list[Array]:
    """Cut heads side by side, each with its q, k and v, as if they were (q, k, v)."""
    fused = np.stack([array.transpose(0, 2, 1, 3) for array in arrays], axis=3)
    batch, rows, heads, _, width = fused.shape
    cut = fused.reshape(batch, rows, 3, heads, width)
    return [cut[:, :, at].transpose(0, 2, 1, 3) for at in range(3)]


def _fused(cut: Callable[[list[Array]], list[Array]]) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not _can_be_fused(problem):
            return None
        given = of_inputs(problem, lambda array: array)
        names = INPUTS
        made = cut([array for name in names if (array := given[name]) is not None])
        return vary(recipe, **dict(zip(names, made, strict=True)))

    return apply


def _can_be_fused(problem: Problem) -> bool:
    """Return whether one product can have made query, key and value, of several heads."""
    arrays = problem.query, problem.key, problem.value
    shapes = {None if array is None else array.shape for array in arrays}
    return shapes == {problem.query.shape} and problem.query.shape[1] > 1


def _unless_three(recipe: Recipe) -> Recipe | None:
    """Cut three heads in one way only: there the other one is the same."""
    return None if recipe.problem.query.shape[1] == 3 else _fused(_cut_by_kind)(recipe)


FUSED = tuple(
    Convention(
        name=name,
        topic=topics.FUSED_PROJECTION,
        meaning=f"a product that holds query, key and value at once is cut as {found} instead "
        f"of {right}",
        fix=f"reshape it to (…, {right}) before it is taken apart",
        shows="several heads",
        apply=apply,
        needs=frozenset({"heads", "rows"}),
    )
    for name, found, right, apply in (
        ("fused_cut_by_head", "(heads, 3, D)", "(3, heads, D)", _fused(_cut_by_head)),
        ("fused_cut_by_kind", "(3, heads, D)", "(heads, 3, D)", _unless_three),
    )
)
