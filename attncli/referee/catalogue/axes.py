"""Right numbers in the wrong axes."""

from __future__ import annotations

import math
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Apply, Convention, Need
from attncli.referee.replacing import replace
from attncli.referee.stages import over_heads, present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["AXES"]

Array = npt.NDArray[Any]

_SEQUENCE_FIRST = ("shd", "bshd", "sbd", "sbhd")
# How packed heads lie in memory, (B, L, H, ·) or (L, B, H, ·): to join them needs no other order.
_IN_MEMORY = {"sd": (0, 2, 1, 3), "bsd": (0, 2, 1, 3), "sbd": (2, 0, 1, 3)}
_WHOLE: frozenset[Need] = frozenset({"batch", "heads", "rows"})
# What only changes how a result is written.
_axes_as = partial(Convention, topic=topics.AXES, needs=_WHOLE, late=True)


def _permuted(order: tuple[int, ...]) -> Apply:
    """Make an `apply` that writes the axes of (B, H, L, ·) in another order."""

    def shape(problem: Problem, name: str, array: Array) -> Array:
        array = array.transpose(order)
        lengths = zip(array.shape, order, strict=True)
        # An axis that the inputs do not have, and the width of the lse, stay away.
        kept = [n for n, axis in lengths if axis in _axes(problem, name)]
        return array.reshape(kept)

    def apply(recipe: Recipe) -> Recipe | None:
        layout = recipe.problem.layout
        absent = {0, 1} - set(_axes(recipe.problem, "context"))
        if set(recipe.file_shapes) == {"lse"}:
            absent.add(3)
        # Where the sequence comes before the heads, or these lie in the width, it is a mistake.
        idle = order == (0, 1, 2, 3) and (layout.packed or layout.axes not in _SEQUENCE_FIRST)
        if layout.packed and set(recipe.file_shapes) == {"context"}:
            idle |= order == _IN_MEMORY[layout.axes]
        # An axis that is not there cannot be misplaced: one entry an order is enough.
        stray = any(order[axis] != axis for axis in absent)
        return None if idle or stray else replace(recipe, shape=shape)

    return apply


def _axes(problem: Problem, name: str) -> tuple[int, ...]:
    lead = tuple("bh".index(axis) for axis in problem.layout.weight_axes)
    return (*lead, 2) if name == "lse" else (*lead, 2, 3)


def _name(order: tuple[int, ...]) -> str:
    return "axes_" + "".join("bhlx"[axis] for axis in order)


def _permutations() -> Iterator[Convention]:
    for order in permutations(range(4)):
        yield _axes_as(
            _name(order),
            _order_words(order),
            _permuted(order),
            fix="transpose the result before it is written",
            shows="axes of different length",
        )


def _order_words(order: tuple[int, ...]) -> str:
    if order == (0, 1, 3, 2):
        return "the numbers are right, but each matrix in the file is transposed"
    words = ", ".join("BHL·"[axis] for axis in order)
    return (
        f"the numbers are right, but the file has its axes in the order ({words}), "
        "· being the width, or the keys; B and H where there are such"
    )


def _average(recipe: Recipe) -> Recipe | None:
    """Average the weights that are written, not those that meet the values."""
    if recipe.problem.shape[1] == 1:
        return None

    def shape(problem: Problem, name: str, array: Array) -> Array:
        if name in ("context", "lse"):
            return present(problem, name, array)
        averaged: Array = array.mean(axis=1)
        return averaged if "b" in problem.layout.weight_axes else averaged[0]

    return replace(recipe, shape=shape)


def _unjoined(recipe: Recipe) -> Recipe | None:
    """Keep the heads of a packed context in an axis of their own, before those of the queries."""
    problem, found = recipe.problem, recipe.file_shapes.get("context", ())
    if not problem.layout.packed or problem.shape[1] == 1 or len(found) not in (3, 4):
        return None

    def shape(problem: Problem, name: str, array: Array) -> Array:
        if name != "context":
            return present(problem, name, array)
        # Where there is or should be an output projection, they are joined.
        apart = array if array.shape[1] > 1 else _cut(array, problem.shape[1])
        return apart if len(found) == 4 else apart[0]

    return replace(recipe, shape=shape)


def _cut(joined: Array, heads: int) -> Array:
    """Return (B, 1, L, H·E) as (B, H, L, E); as it is where the width cannot be cut."""
    batch, _, rows, width = joined.shape
    if width % heads:
        return joined
    return joined.reshape(batch, rows, heads, -1).transpose(0, 2, 1, 3)


def _packed(recipe: Recipe, *, transposed: bool = True) -> Recipe | None:
    """Put the heads of the context side by side, or reshape (B, H, L, E) as if they were."""
    _, heads, queries, _ = recipe.problem.shape
    absent = "h" not in recipe.problem.layout.axes
    same = not transposed and 1 in (heads, queries)
    if absent or same or recipe.problem.output is not None:
        return None

    def shape(problem: Problem, name: str, array: Array) -> Array:
        if name != "context":
            return present(problem, name, array)
        batch, _, rows, _ = array.shape
        ordered = array.transpose(0, 2, 1, 3) if transposed else array
        joined = ordered.reshape(batch, rows, -1)
        return joined if "b" in problem.layout.axes else joined[0]

    return replace(recipe, shape=shape)


def _other_shape(accepted: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> Apply:
    """Make an `apply` that accepts files of other shapes, the numbers in their order."""

    def apply(recipe: Recipe) -> Recipe | None:
        plain, shapes = recipe.shape, recipe.file_shapes

        def shape(problem: Problem, name: str, array: Array) -> Array:
            right = plain(problem, name, array)
            wanted = shapes.get(name, right.shape)
            return right.reshape(wanted) if accepted(right.shape, wanted) else right

        return replace(recipe, shape=shape)

    return apply


def _same_but_ones(right: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return [n for n in right if n != 1] == [n for n in found if n != 1]


def _joined(right: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return math.prod(right) == math.prod(found) and not _same_but_ones(right, found)


def _sequence_first(recipe: Recipe) -> Recipe | None:
    """Write the context of packed heads as (L, B, ·)."""
    layout = recipe.problem.layout
    if not layout.packed or "b" not in layout.weight_axes:
        return None

    def shape(problem: Problem, name: str, array: Array) -> Array:
        right = present(problem, name, array)
        return right.swapaxes(0, 1) if name == "context" else right

    return replace(recipe, shape=shape)


def _with_sinks(*, first: bool) -> Apply:
    """Make an `apply` that writes what the sinks have as one more key of weights and scores."""

    def apply(recipe: Recipe) -> Recipe | None:
        sinks = recipe.problem.sinks
        if sinks is None:
            return None
        of_sinks = over_heads(sinks)

        def shape(problem: Problem, name: str, array: Array) -> Array:
            if name not in ("weights", "scores"):
                return before(problem, name, array)
            own = 1 - array.sum(axis=-1, keepdims=True) if name == "weights" else of_sinks
            column = np.broadcast_to(own, (*array.shape[:3], 1))
            parts = (column, array) if first else (array, column)
            return before(problem, name, np.concatenate(parts, axis=-1))

        before = recipe.shape
        return replace(recipe, shape=shape)

    return apply


AXES = (
    *(
        _axes_as(
            name=f"sinks_as_{place}_column",
            meaning=f"the numbers are right, but the file has one more key, the {place}: the sink",
            fix="cut the column of the sink off before the weights are written",
            shows="any input",
            apply=_with_sinks(first=place == "first"),
            reshapes=True,
        )
        for place in ("first", "last")
    ),
    _axes_as(
        name="axes_of_length_1",
        meaning="the numbers are right, but the file has more or fewer axes of length 1",
        fix="squeeze or unsqueeze the result before it is written",
        shows="inputs with an axis of length 1",
        apply=_other_shape(_same_but_ones),
        reshapes=True,
    ),
    _axes_as(
        name="axes_joined",
        meaning="the numbers are right and in their order, but axes of the file are joined or "
        "split",
        fix="reshape the result to the shape of the answer",
        shows="axes that can be joined",
        variant_of=(
            "heads_packed",
            "heads_packed_untransposed",
            *map(_name, permutations(range(4))),
        ),
        apply=_other_shape(_joined),
        reshapes=True,
    ),
    _axes_as(
        name="sequence_first",
        meaning="the numbers are right, but the sequence comes before the batch: (L, B, ·), as "
        "nn.MultiheadAttention gives it without batch_first",
        fix="transpose the first two axes, or set batch_first=True; --layout sbd reads such inputs",
        shows="more than one batch entry",
        apply=_sequence_first,
    ),
    _axes_as(
        name="heads_packed",
        meaning="the numbers are right, but the heads lie side by side in the width",
        fix="cut the file into heads, out.reshape(B, L, H, E).transpose(0, 2, 1, 3), or give "
        "packed inputs (B, L, H·D) and --heads",
        shows="more than one head",
        apply=_packed,
        reshapes=True,
    ),
    _axes_as(
        name="heads_not_joined",
        meaning="the numbers are right, but the heads are not joined: (B, H, L, E)",
        fix="join the heads by context.transpose(0, 2, 1, 3).reshape(B, L, H·E)",
        shows="more than one head",
        apply=_unjoined,
        reshapes=True,
    ),
    _axes_as(
        name="heads_packed_untransposed",
        meaning="(B, H, L, E) is reshaped to (B, L, H·E) without the transpose before it: rows of "
        "one head stand where the heads of one query belong",
        fix="join the heads by context.transpose(0, 2, 1, 3).reshape(B, L, H·E)",
        shows="more than one head and more than one query",
        apply=lambda recipe: _packed(recipe, transposed=False),
        reshapes=True,
    ),
    _axes_as(
        name="weights_averaged",
        meaning="the weights are averaged over the heads",
        fix="ask for the weights of each head (nn.MultiheadAttention: average_attn_weights=False)",
        option=lambda _: "--average-heads",
        shows="more than one head",
        apply=_average,
        reshapes=True,
    ),
    *_permutations(),
)
