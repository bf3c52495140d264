"""A fused projection of query, key and value that is split in another order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.errors.names import INPUTS
from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_inputs
from attncli.referee.convention import Apply, Convention
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

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


def _by_shard(count: int) -> Callable[[list[Array]], Array]:
    """Make a function that returns the product (B, L, ·) of so many shards, each with (q, k, v)."""

    def fused(arrays: list[Array]) -> Array:
        parts = [
            np.stack(np.split(array.transpose(0, 2, 1, 3), count, axis=2), axis=2)
            for array in arrays
        ]
        return _flat(np.stack(parts, axis=3))

    return fused


def _in_memory(arrays: list[Array]) -> list[Array]:
    """Read a product (B, L, ·) of (q, k, v) as (3, B, heads, L, D) without moving anything."""
    batch, heads, rows, width = arrays[0].shape
    return list(_by_kind(arrays).reshape(3, batch, heads, rows, width))


def _of_shards(count: int) -> Apply:
    cut = _fused(_cut(_by_shard(count), "3hd"), least=count + 1)

    def apply(recipe: Recipe) -> Recipe | None:
        return cut(recipe) if recipe.problem.query.shape[1] % count == 0 else None

    return apply


def _by_group(recipe: Recipe) -> Recipe | None:
    """Cut a product that holds groups, each with (queries, key, value), by kind."""
    problem = recipe.problem
    arrays = of_inputs(problem, lambda array: array)
    query, key, value = (arrays[name] for name in INPUTS)
    if query is None or key is None or value is None or key.shape != value.shape:
        return None
    batch, heads, rows, width = query.shape
    groups = key.shape[1]
    shares_rows = key.shape[0] == batch and key.shape[2:] == (rows, width)
    if not shares_rows or not 1 < groups < heads:
        return None
    per_group = query.reshape(batch, groups, -1, rows, width).transpose(0, 3, 1, 2, 4)
    others = [array.transpose(0, 2, 1, 3)[:, :, :, None] for array in (key, value)]
    made = np.concatenate((per_group, *others), axis=3).reshape(batch, rows, -1, width)
    cut = np.split(made.transpose(0, 2, 1, 3), [heads, heads + groups], axis=1)
    return vary(recipe, **dict(zip(INPUTS, cut, strict=True)))


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


_BY_ORDER = tuple(
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

_fused_product = partial(
    Convention,
    topic=topics.FUSED_PARTS,
    shows="several heads",
    needs=frozenset({"batch", "heads", "rows"}),
)

FUSED = (
    *_BY_ORDER,
    _fused_product(
        "fused_viewed_as_heads",
        "a product that holds query, key and value at once, (B, L, 3·H·D), is viewed as "
        "(3, B, H, L, D): nothing is transposed",
        _fused(_in_memory),
        fix="reshape it to (B, L, 3, H, D), and permute to (3, B, H, L, D)",
    ),
    *(
        _fused_product(
            f"fused_shards_of_{count}_cut_by_kind",
            f"a product of {count} shards, each with query, key and value of its heads "
            "(tensor-parallel checkpoints), is cut as (3, heads, D)",
            _of_shards(count),
            fix="take the shards apart before they are cut into query, key and value",
        )
        for count in (2, 4, 8)
    ),
    _fused_product(
        "fused_groups_cut_by_kind",
        "a product of groups, each with its queries, its key and its value (InternLM2, Falcon), is "
        "cut as all queries, all keys and all values",
        _by_group,
        fix="reshape it to (…, groups, H/G + 2, D) before it is taken apart",
    ),
)
