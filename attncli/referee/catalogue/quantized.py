"""Inputs that were quantized: 8 bits and fewer, as a cache of keys and values holds them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of
from attncli.referee.convention import Convention
from attncli.referee.grids import FLOATS, INTEGERS, Grid, on_grid
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["QUANTIZED"]

Array = npt.NDArray[Any]
# Larger inputs, in numbers, are not quantized again and again.
_MOST_NUMBERS = 2**22


class _Sharing(NamedTuple):
    """Which numbers share a scale: those along some axes of (B, H, L or S, D)."""

    name: str
    meaning: str
    axes: tuple[int, ...]


_NONE = _Sharing("", "without a scale", ())
# From the simplest to the finest: where two come to the same, the simpler one is named.
_SCALED = (
    _Sharing("_scaled", "with one scale, by the largest magnitude", (0, 1, 2, 3)),
    _Sharing("_by_head", "with a scale for each head", (0, 2, 3)),
    _Sharing("_by_entry", "with a scale for each head of each batch entry", (2, 3)),
    _Sharing("_by_token", "with a scale for each token of each head", (3,)),
    _Sharing("_by_channel", "with a scale for each column of each head", (2,)),
)
# What is quantized; each after those beside which it says nothing more.
_PARTS = {
    "key": ("the keys are", ("key",)),
    "value": ("the values are", ("value",)),
    "cache": ("keys and values are", ("key", "value")),
    "query_key": ("query and key are", ("query", "key")),
    "inputs": ("query, key and value are", ("query", "key", "value")),
}


def _quantized(
    names: tuple[str, ...], grid: Grid, sharing: _Sharing, recipe: Recipe
) -> Recipe | None:
    """Put some inputs on a grid, as they are when they are multiplied."""
    whole = recipe.whole
    inputs = [getattr(whole, name) for name in names]
    if recipe.problem.score not in ("dot", "cosine") or any(
        array is None or array.size > _MOST_NUMBERS for array in inputs
    ):
        return None
    given = _known(("factors", recipe.part), recipe, lambda: factors_of(recipe.problem))
    made = {}
    for name in names:
        dtype = np.float64 if getattr(whole, name).dtype == np.float64 else np.float32
        array = given[name].astype(dtype)
        top = _largest(recipe, name, array, sharing) if sharing.axes else None
        made[name] = on_grid(grid, array, top).astype(np.float64)
    if all(np.array_equal(made[name], given[name]) for name in names):
        return None
    return vary(recipe, rope=None, **{**given, **made})


def _known(what: object, recipe: Recipe, work_out: Callable[[], Any]) -> Any:
    """Return what was worked out before, for another convention of the same search."""
    if what not in recipe.memory:
        recipe.memory[what] = work_out()
    return recipe.memory[what]


def _largest(recipe: Recipe, name: str, array: Array, sharing: _Sharing) -> Array:
    """Return the largest magnitude of those that share a scale, in the whole problem."""
    batch, head, rows = recipe.part
    cut = {0: batch, 1: head, 2: rows if name == "query" else None}
    if all(part is None for axis, part in cut.items() if axis in sharing.axes):
        return _top(array, sharing)
    top: Array = _known("tops", recipe, lambda: _tops(recipe.whole))[name, sharing]
    shared = recipe.whole.shape[1] // getattr(recipe.whole, name).shape[1]
    if batch is not None and len(top) > 1:
        top = top[batch : batch + 1]
    if head is not None and top.shape[1] > 1:
        top = top[:, head // shared : head // shared + 1]
    return top


def _tops(whole: Problem) -> dict[tuple[str, _Sharing], Array]:
    """Return the largest magnitudes of a whole problem, for each input and each sharing."""
    given = factors_of(whole)
    return {(name, each): _top(array, each) for name, array in given.items() for each in _SCALED}


def _top(array: Array, sharing: _Sharing) -> Array:
    top: Array = np.abs(array).max(axis=sharing.axes, keepdims=True)
    return top


def _conventions(grid: Grid, sharings: tuple[_Sharing, ...]) -> Iterator[Convention]:
    for part, (words, names) in _PARTS.items():
        simpler = [p for p, (_, others) in _PARTS.items() if {*others} < {*names}]
        for place, sharing in enumerate(sharings):
            yield Convention(
                name=f"{part}_in_{grid.name}{sharing.name}",
                topic=topics.QUANTIZED,
                meaning=f"{words} quantized to {grid.name}, {sharing.meaning}",
                fix="give check the inputs as they are when they are dequantized, or judge by "
                "--rtol and --atol",
                shows="almost any input",
                apply=partial(_quantized, names, grid, sharing),
                variant_of=(
                    *(f"{other}_in_{grid.name}{sharing.name}" for other in simpler),
                    *(f"{part}_in_{grid.name}{other.name}" for other in sharings[:place]),
                ),
            )


QUANTIZED = (
    *(convention for grid in INTEGERS for convention in _conventions(grid, _SCALED)),
    *(convention for grid in FLOATS for convention in _conventions(grid, (_NONE, *_SCALED))),
)
