"""A fused projection of query, key and value that is split in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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


def _by_kind(arrays: list[Array]) -> Array:
    """Return the product (B, L, ·) that holds (q, k, v), each of all heads."""
    return _flat(np.stack([array.transpose(0, 2, 1, 3) for array in arrays], axis=2))


def _by_head(arrays: list[Array]) -> Array:
    """Return the product (B, L, ·) that holds heads, each with its (q, k, v)."""
    return _flat(np.stack([array.transpose(0, 2, 1, 3) for array in arrays], axis=3))


def _flat(fused: Array) -> Array:
    flat: Array = fused.reshape(*fused.shape[:2], -1)
    return flat


def _cut(
    fused: Callable[[list[Array]], Array], order: Literal["h3d", "3hd", "hd3"]
) -> Callable[[list[Array]], list[Array]]:
    """Make a function that cuts a product of (q, k, v) as if its width had another order."""

    def cut(arrays: list[Array]) -> list[Array]:
        batch, heads, rows, width = arrays[0].shape
        lengths = {"h": heads, "3": 3, "d": width}
        made = fused(arrays).reshape(batch, rows, *(lengths[axis] for axis in order))
        kinds = np.moveaxis(made, 2 + order.index("3"), 0)
        return [kind.transpose(0, 2, 1, 3) for kind in kinds]

    return cut


def _fused(cut: Callable[[list[Array]], list[Array]], *, least: int = 2) -> Apply:
    """Make an `apply` for problems of at least so many heads."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if problem.query.shape[1] < least or not _can_be_fused(problem):
            return None
        given = of_inputs(problem, lambda array: array)
        names = INPUTS
        made = cut([array for name in names if (array := given[name]) is not None])
        return vary(recipe, **dict(zip(names, made, strict=True)))

    return apply


def _can_be_fused(problem: Problem) -> bool:
    """Return whether one product can have made query, key and value."""
    arrays = problem.query, problem.key, problem.value
    shapes = {None if array is None else array.shape for array in arrays}
    return shapes == {problem.query.shape}


def _unless_three(recipe: Recipe) -> Recipe | None:
    """Cut three heads in one way only: there the other one is the same."""
    return None if recipe.problem.query.shape[1] == 3 else _fused(_cut(_by_head, "3hd"))(recipe)


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
        ("fused_cut_by_head", "(heads, 3, D)", "(3, heads, D)", _fused(_cut(_by_kind, "h3d"))),
        ("fused_cut_by_kind", "(3, heads, D)", "(heads, 3, D)", _unless_three),
        (
            "fused_cut_by_component",
            "(heads, D, 3)",
            "(3, heads, D)",
            _fused(_cut(_by_kind, "hd3"), least=1),
        ),
        (
            "fused_heads_cut_by_component",
            "(heads, D, 3)",
            "(heads, 3, D)",
            _fused(_cut(_by_head, "hd3")),
        ),
    )
)
