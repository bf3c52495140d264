"""Mistakes with the head axis, on the way in and on the way out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_context, of_inputs
from attncli.referee.convention import Apply, Convention, Need, then
from attncli.referee.recipe import Recipe, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["HEADS"]

Array = npt.NDArray[Any]

_HEADS: frozenset[Need] = frozenset({"heads"})
_ALL: frozenset[Need] = frozenset({"heads", "rows"})
_Named = Literal["query", "key", "value", "context"]


def _tiled(*names: Literal["key", "value"]) -> Apply:
    """Make an `apply` that tiles the heads of some inputs, and repeats those of the others."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        heads, groups = problem.query.shape[1], problem.key.shape[1]
        if groups in (1, heads) or (problem.value is None and names != ("key", "value")):
            return None
        times = heads // groups

        def spread(name: Literal["key", "value"], array: Array) -> Array:
            return np.tile(array, (1, times, 1, 1)) if name in names else array.repeat(times, 1)

        value = None if problem.value is None else spread("value", problem.value)
        return vary(recipe, key=spread("key", problem.key), value=value)

    return apply


def _flip(array: Array) -> Array:
    return array.transpose(0, 2, 1, 3)


def _reread(problem: Problem, array: Array, *, back: bool) -> Array:
    """Reshape (…, sequence, heads, …) in memory as (…, heads, sequence, …), or the other way."""
    batch, heads, rows, width = array.shape
    if _sequence_first(problem) is not back:
        return _flip(array).reshape(batch, heads, rows, width)
    return _flip(array.reshape(batch, rows, heads, width))


def _sequence_first(problem: Problem) -> bool:
    return problem.layout.packed or problem.layout.axes in ("shd", "bshd")


def _reshaped(*names: _Named, back: bool = False) -> Apply:
    """Make an `apply` that reshapes some inputs, or the context, instead of transposing them.

    With ``back``, what is reshaped lies the other way round already.
    """

    def write(recipe: Recipe, context: Array) -> Array:
        return _reread(recipe.problem, context, back=not back)

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if problem.shape[1] == 1 or problem.shape[2:] == (1, 1):
            return None
        made = of_inputs(problem, partial(_reread, problem, back=back))
        changed = vary(recipe, **{name: made[name] for name in names if name != "context"})
        if "context" not in names:
            return changed
        return then(changed, finish=of_context(write))

    return apply


def _interleaved(array: Array) -> Array:
    """Cut the packed width as (D, H) where it is (H, D)."""
    batch, heads, rows, width = array.shape
    packed = _flip(array).reshape(batch, rows, width, heads)
    return packed.transpose(0, 3, 1, 2)


def _uninterleaved(_: Recipe, context: Array) -> Array:
    """Join the heads as (E, H)."""
    batch, heads, rows, width = context.shape
    joined = context.transpose(0, 2, 3, 1).reshape(batch, rows, heads, width)
    return _flip(joined)


def _cut(*, taken: bool, joined: bool) -> Apply:
    """Make an `apply` that interleaves heads where they are cut from a width, joined, or both."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        if not problem.layout.packed or problem.query.shape[1] == 1:
            return None
        if taken:
            recipe = vary(recipe, **of_inputs(problem, _interleaved))
        finish = (*recipe.finish, of_context(_uninterleaved))
        return replace(recipe, finish=finish) if joined else recipe

    return apply


def _by_columns_in(recipe: Recipe) -> Recipe | None:
    """Read what is packed as (D, H) as if it were (H, D)."""
    if not recipe.problem.layout.packed or recipe.problem.query.shape[1] == 1:
        return None
    read = partial(_uninterleaved, recipe)
    return vary(recipe, **of_inputs(recipe.problem, read))


def _by_columns_out(recipe: Recipe) -> Recipe | None:
    """Multiply the joined contexts with a projection whose rows are (E, H)."""
    if recipe.problem.output is None or recipe.problem.query.shape[1] == 1:
        return None
    finish = of_context(lambda _, context: _interleaved(context))
    return then(recipe, finish=finish)


def _averaged(recipe: Recipe) -> Recipe | None:
    if recipe.problem.shape[1] == 1:
        return None

    def average(_: Recipe, weights: Array) -> Array:
        return np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)

    return then(recipe, after=average)


def _changes(recipe: Recipe, *names: str) -> bool:
    """Return whether each of some inputs is another one when it is reshaped."""
    arrays = [getattr(recipe.problem, name) for name in names]
    return all(array is not None and min(array.shape[1:3]) > 1 for array in arrays)


def _misread(*names: _Named, back: bool) -> Convention:
    """Return the convention in which some of the inputs are misread, and the others are not."""
    misreads = _reshaped(*names, back=back)
    words = " and ".join(names)
    are, their = ("are", "their") if len(names) > 1 else ("is", "its")
    if back:
        name, fix = f"strides_of_{'_'.join(names)}_ignored", _STRIDES_FIX
        meaning = (
            f"{words}, transposed between (L, H, D) and (H, L, D), {are} read in the order of "
            f"{their} memory: {their} strides are ignored"
        )
    else:
        name, fix = f"{'_'.join(names)}_reshaped_in", _CUT_FIX
        meaning = f"{words} {are} reshaped between (L, H, D) and (H, L, D) instead of transposed"
    return _head(
        name,
        meaning,
        lambda recipe: misreads(recipe) if _changes(recipe, *names) else None,
        topic=topics.MISREAD_HEADS,
        fix=fix,
        needs=_ALL,
        variant_of=("heads_reshaped_in", "heads_reshaped", "strides_ignored"),
    )


_head = partial(Convention, topic=topics.HEADS, shows="more than one head")


_REPEAT_FIX = "repeat each key/value head H/G times in place (repeat_interleave, not repeat)"
_STRIDES_FIX = "make them contiguous, or go by their strides"
_CUT_FIX = "reshape (B, L, H·D) to (B, L, H, D) and transpose to (B, H, L, D); the same backwards"

_tile = partial(
    Convention, topic=topics.SHARED_HEADS, fix=_REPEAT_FIX, shows="1 < G < H", needs=_HEADS
)

_SOME_INPUTS: tuple[tuple[_Named, ...], ...] = (
    ("query",),
    ("key",),
    ("value",),
    ("key", "value"),
    ("query", "key"),
    ("query", "value"),
)

HEADS = (
    _head(
        "heads_reshaped_in",
        "query, key and value are reshaped between (L, H, D) and (H, L, D) instead of transposed",
        _reshaped("query", "key", "value"),
        fix=_CUT_FIX,
        needs=_ALL,
    ),
    _head(
        "heads_reshaped_out",
        "the context is reshaped between (H, L, E) and (L, H, E) instead of transposed",
        _reshaped("context"),
        fix=_CUT_FIX,
        needs=_ALL,
        late=True,
    ),
    _head(
        "heads_transposed_twice",
        "the context, in its layout already, is taken for one with heads and sequence the other "
        "way round, and transposed once more",
        _reshaped("context", back=True),
        fix="do not transpose what the kernel has written in this layout",
        needs=_ALL,
        late=True,
    ),
    _head(
        "heads_reshaped",
        "inputs and context are reshaped between (L, H, D) and (H, L, D) instead of transposed",
        _reshaped("query", "key", "value", "context"),
        fix=_CUT_FIX,
        needs=_ALL,
    ),
    _head(
        "strides_ignored",
        "query, key and value, transposed between (L, H, D) and (H, L, D), are read in the order "
        "of their memory: their strides are ignored",
        _reshaped("query", "key", "value", back=True),
        fix=_STRIDES_FIX,
        needs=_ALL,
    ),
    _head(
        "strides_of_keys_ignored",
        "key and value, transposed between (S, G, D) and (G, S, D), are read in the order of "
        "their memory: their strides are ignored",
        _reshaped("key", "value", back=True),
        fix=_STRIDES_FIX,
        needs=_ALL,
        variant_of=("strides_ignored",),
    ),
    *(
        _misread(*names, back=back)
        for back in (False, True)
        for names in _SOME_INPUTS
        if not (back and names == ("key", "value"))  # above
    ),
    _head(
        "heads_interleaved",
        "heads are cut interleaved: component d of head h is taken from d·H + h, not h·D + d, and "
        "joined again likewise",
        _cut(taken=True, joined=True),
        fix=_CUT_FIX,
        needs=_HEADS,
    ),
    *(
        _head(
            f"kernels_by_columns_{end}",
            meaning,
            apply,
            topic=topics.MISREAD_HEADS,
            fix="reshape kernels (W, H, D) to (W, H·D), and (H, D, W) to (H·D, W), in this order",
            needs=_ALL,
            variant_of=("heads_interleaved_in", "heads_interleaved_out"),
        )
        for end, meaning, apply in (
            (
                "in",
                "the kernels of query, key and value, (W, H, D), are flattened as (W, D, H)",
                _by_columns_in,
            ),
            (
                "out",
                "the kernel of the output projection, (H, D, W), is flattened as (D, H, W)",
                _by_columns_out,
            ),
        )
    ),
    _head(
        "heads_interleaved_in",
        "heads are cut interleaved: component d of head h is taken from d·H + h, not h·D + d",
        _cut(taken=True, joined=False),
        fix=_CUT_FIX,
        needs=_HEADS,
    ),
    _head(
        "heads_interleaved_out",
        "heads are joined interleaved: component e of head h goes to e·H + h, not h·E + e",
        _cut(taken=False, joined=True),
        fix=_CUT_FIX,
        needs=_HEADS,
        late=True,
    ),
    _head(
        "weights_averaged_before_values",
        "the weights are averaged over the heads before they meet the values",
        _averaged,
        fix="give each head its own weights, and average only what is shown",
        needs=_HEADS,
    ),
    # Behind those that cut the heads.
    _tile(
        "heads_tiled",
        "key/value heads are tiled (query head h reads head h mod G) instead of repeated (h // "
        "(H/G))",
        _tiled("key", "value"),
    ),
    _tile(
        "heads_of_keys_tiled",
        "heads of the keys are tiled (query head h reads head h mod G) instead of repeated, but "
        "not those of the values",
        _tiled("key"),
    ),
    _tile(
        "heads_of_values_tiled",
        "heads of the values are tiled (query head h reads head h mod G) instead of repeated, "
        "but not those of the keys",
        _tiled("value"),
    ),
)
