"""Mistakes with the head axis: how heads are cut, shared, attended over, and joined again."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.inputs import own_places
from attncli.referee.mistakes.table import Change, Rows
from attncli.referee.pipeline import Finish, Outputs, Pipeline, Run, causal

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array

__all__ = ["ATTENDED", "FUSED", "HEADS", "of_context"]

_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
_INPUTS = ("query", "key", "value")


def of_context(change: Callable[[Run, Array], Array]) -> Finish:
    """Return a change of the outputs that changes only the context."""

    def finish(run: Run, outputs: Outputs) -> Outputs:
        if "context" not in outputs:
            return outputs
        return {**outputs, "context": change(run, outputs["context"])}

    return finish


def _inputs(pipe: Pipeline, change: Callable[[Array], Array], names: Any = _INPUTS) -> Pipeline:
    """Return the pipeline with some of its inputs changed."""
    given = {n: getattr(pipe, n) for n in names if getattr(pipe, n) is not None}
    return pipe.but(**{name: change(array) for name, array in given.items()})


def _flip(array: Array) -> Array:
    return array.transpose(0, 2, 1, 3)


# Which axis is attended over, and of how many heads.

ATTENDED = Rows(stages.HEADS)


def _along(*axes: int) -> Change:
    """Exchange the sequence for another axis, and the context's back."""

    def turned(array: Array) -> Array:
        return array.transpose(axes)

    def change(pipe: Pipeline) -> Pipeline | None:
        made = _inputs(pipe, turned)
        batch, heads, queries, keys = made.shape
        fit = len(made.key) == batch and heads % made.key.shape[1] == 0 and keys > 1
        ruled = set(pipe.rules) - {"causal"} or pipe.terms or pipe.sinks is not None
        if ruled or not fit or (pipe.rope is not None and pipe.places):
            return None
        # Aligned with the last key, as it was, or with the first.
        offset = keys - queries if any(pipe.offsets) else 0
        visible = pipe.problem.visible._replace(queries=queries, keys=keys, offsets=(offset,))
        own = replace(
            pipe.problem, query=made.query, key=made.key, value=made.value, visible=visible
        )
        return made.but(
            problem=own,
            rules={"causal": causal((offset,))} if "causal" in pipe.rules else {},
            query_positions=np.arange(queries)[None] + offset,
            key_positions=np.arange(keys)[None],
            finish=(*pipe.finish, of_context(lambda _, context: turned(context))),
        )

    return change


def _other_layout(problem: Problem) -> str:
    other = problem.layout.exchanged
    return f"--layout {other}" if other else ""


def _heads_first(problem: Problem) -> str:
    return "" if problem.layout.packed or problem.layout.axes != "bsd" else "--layout shd"


def _joined(heads: int, array: Array) -> Array:
    """Return (B, H, S, D) as (B, heads, S, ·): the same packed width, cut into other heads."""
    batch, _, rows, _ = array.shape
    return _flip(_flip(array).reshape(batch, rows, heads, -1))


def _usual_scale(problem: Problem) -> bool:
    return math.isclose(problem.scale, problem.query.shape[3] ** -0.5)


def _cut_into(heads: int) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if not _can_be_cut(pipe, heads):
            return None
        count = pipe.shape[1]
        made = _inputs(pipe, partial(_joined, heads))
        scale = made.width**-0.5 if _usual_scale(pipe.problem) else pipe.scale
        back = of_context(lambda _, context: _joined(count, context))
        return made.but(scale=scale).then("finish", back)

    return change


def _can_be_cut(pipe: Pipeline, heads: int) -> bool:
    """Return whether all widths can be cut into so many heads, and no rule depends on the head."""
    layout, problem = pipe.problem.layout, pipe.problem
    count, groups = pipe.query.shape[1], pipe.key.shape[1]
    arrays = [array for array in (pipe.query, pipe.key, pipe.value) if array is not None]
    # Other outputs of heads that the layout does not know would have no axis for them.
    told = layout.packed or not pipe.file.names - {"context"}
    of_heads = [problem.visible.mask, problem.bias]
    return bool(
        told
        and "h" not in layout.axes
        and heads != count == groups
        and pipe.rope is None
        and pipe.score == "dot"
        and pipe.sinks is None
        and "alibi" not in pipe.terms
        and all(table is None or table.shape[1] == 1 for table in of_heads)
        and all(count * array.shape[3] % heads == 0 for array in arrays)
    )


def _with_heads(value: tuple[int, str]) -> Callable[[Problem], str]:
    return lambda problem: f"--heads {value[0]}" if _usual_scale(problem) else ""


ATTENDED.add("axes_exchanged", _along(0, 2, 1, 3), option=_other_layout, needs="heads rows")
ATTENDED.add("batch_attended", _along(2, 1, 0, 3), option=_heads_first, needs="batch rows")
ATTENDED.add(
    "heads_{}",
    lambda value: _cut_into(value[0]),
    values=[(number, "head" if number == 1 else "heads") for number in _NUMBERS],
    stage=stages.NUMBER_OF_HEADS,
    option=_with_heads,
    needs="heads",
)


# How heads are cut and joined.

HEADS = Rows(stages.HEADS, shows="more than one head")


def _sequence_first(problem: Problem) -> bool:
    return problem.layout.packed or problem.layout.axes in ("shd", "bshd")


def reread(problem: Problem, array: Array, *, back: bool) -> Array:
    """Reshape (…, sequence, heads, …) in memory as (…, heads, sequence, …), or the other way."""
    batch, heads, rows, width = array.shape
    if _sequence_first(problem) is not back:
        return _flip(array).reshape(batch, heads, rows, width)
    return _flip(array.reshape(batch, rows, heads, width))


def _reshaped(*names: str, back: bool = False, all_change: bool = False) -> Change:
    """Reshape some inputs, or the context, instead of transposing them.

    With ``back``, what is reshaped lies the other way round already; with ``all_change`` each of
    them has to be another one then.
    """

    def write(run: Run, context: Array) -> Array:
        return reread(run.pipe.problem, context, back=not back)

    def change(pipe: Pipeline) -> Pipeline | None:
        own = [name for name in names if name != "context"]
        arrays = [getattr(pipe, name) for name in own]
        if pipe.shape[1] == 1 or pipe.shape[2:] == (1, 1):
            return None
        if all_change and any(a is None or min(a.shape[1:3]) == 1 for a in arrays):
            return None
        made = _inputs(pipe, lambda array: reread(pipe.problem, array, back=back), own)
        return made.then("finish", of_context(write)) if "context" in names else made

    return change


def _interleaved(array: Array) -> Array:
    """Cut the packed width as (D, H) where it is (H, D)."""
    batch, heads, rows, width = array.shape
    return _flip(array).reshape(batch, rows, width, heads).transpose(0, 3, 1, 2)


def _uninterleaved(array: Array) -> Array:
    """Join the heads as (E, H)."""
    batch, heads, rows, width = array.shape
    return _flip(array.transpose(0, 2, 3, 1).reshape(batch, rows, heads, width))


def _cut(*, taken: bool, joined: bool) -> Change:
    """Interleave heads where they are cut from a width, joined, or both."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if not pipe.problem.layout.packed or pipe.query.shape[1] == 1:
            return None
        made = _inputs(pipe, _interleaved) if taken else pipe
        back = of_context(lambda _, context: _uninterleaved(context))
        return made.then("finish", back) if joined else made

    return change


def _by_columns(where: str) -> Change:
    """Flatten kernels (W, H, D) as (W, D, H), or (H, D, W) as (D, H, W)."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.query.shape[1] == 1:
            return None
        if where == "in":
            return _inputs(pipe, _uninterleaved) if pipe.problem.layout.packed else None
        if pipe.output is None:
            return None
        return pipe.then("finish", of_context(lambda _, context: _interleaved(context)))

    return change


def _averaged(pipe: Pipeline) -> Pipeline | None:
    def average(_: Run, weights: Array) -> Array:
        return np.broadcast_to(weights.mean(axis=1, keepdims=True), weights.shape)

    return None if pipe.shape[1] == 1 else pipe.then("after", average)


HEADS.add("heads_reshaped_in", _reshaped(*_INPUTS))
HEADS.add("heads_reshaped_out", _reshaped("context"), needs="heads rows", writes=True)
HEADS.add(
    "heads_transposed_twice", _reshaped("context", back=True), needs="heads rows", writes=True
)
HEADS.add("heads_reshaped", _reshaped(*_INPUTS, "context"), needs="heads rows")
HEADS.add("strides_ignored", _reshaped(*_INPUTS, back=True))
HEADS.add(
    "strides_of_keys_ignored", _reshaped("key", "value", back=True), variant_of=("strides_ignored",)
)
_SOME = (("query",), ("key",), ("value",), ("key", "value"), ("query", "key"), ("query", "value"))
HEADS.add(
    "{}_reshaped_in",
    lambda value: _reshaped(*value[2], all_change=True),
    values=[
        ("_".join(names), f"{' and '.join(names)} {'are' if names[1:] else 'is'}", names)
        for names in _SOME
    ],
    stage=stages.MISREAD_HEADS,
    variant_of=("heads_reshaped_in", "heads_reshaped", "strides_ignored"),
)
HEADS.add(
    "strides_of_{}_ignored",
    lambda value: _reshaped(*value[2], back=True, all_change=True),
    values=[
        ("_".join(names), " and ".join(names), names)
        for names in _SOME
        if names != ("key", "value")
    ],
    stage=stages.MISREAD_HEADS,
    variant_of=("heads_reshaped_in", "heads_reshaped", "strides_ignored"),
)
HEADS.add("heads_interleaved", _cut(taken=True, joined=True), needs="heads")
HEADS.add(
    "kernels_by_columns_{}",
    lambda value: _by_columns(value[0]),
    meaning="{1}",
    values=(
        ("in", "the kernels of query, key and value, (W, H, D), are flattened as (W, D, H)"),
        ("out", "the kernel of the output projection, (H, D, W), is flattened as (D, H, W)"),
    ),
    stage=stages.MISREAD_HEADS,
    fix="reshape kernels (W, H, D) to (W, H·D), and (H, D, W) to (H·D, W), in this order",
    needs="heads rows",
    variant_of=("heads_interleaved_in", "heads_interleaved_out"),
)
HEADS.add("heads_interleaved_in", _cut(taken=True, joined=False))
HEADS.add("heads_interleaved_out", _cut(taken=False, joined=True), needs="heads", writes=True)
HEADS.add("weights_averaged_before_values", _averaged, needs="heads")


def _tiled(*names: str) -> Change:
    """Let query head h read head h mod G of some inputs."""

    def change(pipe: Pipeline) -> Pipeline | None:
        groups = pipe.key.shape[1]
        if groups in (1, pipe.shape[1]) or (pipe.value is None and len(names) == 1):
            return None
        given = [name for name in names if getattr(pipe, name) is not None]
        heads = np.indices(pipe.shape[:2])[1] % groups
        places = {name: (own_places(pipe, name)[0], heads) for name in given}
        return pipe.but(places={**pipe.places, **places})

    return change


HEADS.add(
    "heads{}_tiled",
    lambda value: _tiled(*value[3]),
    values=(
        ("", "key/value heads", "", ("key", "value")),
        ("_of_keys", "heads of the keys", ", but not those of the values", ("key",)),
        ("_of_values", "heads of the values", ", but not those of the keys", ("value",)),
    ),
    stage=stages.SHARED_HEADS,
)


# A fused projection of query, key and value that is split in another order.

FUSED = Rows(stages.FUSED_PROJECTION)


def _fused(arrays: list[Array], axis: int) -> Array:
    """Return the product (B, L, ·) that holds (q, k, v), or with axis 3 heads with theirs."""
    made = np.stack([_flip(array) for array in arrays], axis=axis)
    return made.reshape(*made.shape[:2], -1)


def _ordered(axis: int, order: str, shards: int = 1) -> Callable[[list[Array]], list[Array]]:
    """Return what cuts a product of (q, k, v) as if its width had another order."""

    def cut(arrays: list[Array]) -> list[Array]:
        batch, heads, rows, width = arrays[0].shape
        lengths = {"h": heads, "3": 3, "d": width}
        if shards > 1:  # each shard holds (q, k, v) of its heads
            parts = [np.stack(np.split(_flip(a), shards, axis=2), axis=2) for a in arrays]
            product = np.stack(parts, axis=3).reshape(batch, rows, -1)
        else:
            product = _fused(arrays, axis)
        made = product.reshape(batch, rows, *(lengths[each] for each in order))
        return [_flip(kind) for kind in np.moveaxis(made, 2 + order.index("3"), 0)]

    return cut


def _in_memory(arrays: list[Array]) -> list[Array]:
    """Read a product (B, L, ·) of (q, k, v) as (3, B, heads, L, D) without moving anything."""
    return list(_fused(arrays, 2).reshape(3, *arrays[0].shape))


def _cut_fused(cut: Callable[[list[Array]], list[Array]], sense: Callable[[int], bool]) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        arrays = [getattr(pipe, name) for name in _INPUTS]
        shapes = {None if array is None else array.shape for array in arrays}
        # One product can have made query, key and value.
        if shapes != {pipe.query.shape} or not sense(pipe.query.shape[1]):
            return None
        return pipe.but(**dict(zip(_INPUTS, cut(arrays), strict=True)))

    return change


def _by_group(pipe: Pipeline) -> Pipeline | None:
    """Cut a product that holds groups, each with (queries, key, value), by kind."""
    query, key, value = pipe.query, pipe.key, pipe.value
    if value is None or key.shape != value.shape:
        return None
    batch, heads, rows, width = query.shape
    groups = key.shape[1]
    shares_rows = key.shape[0] == batch and key.shape[2:] == (rows, width)
    if not shares_rows or not 1 < groups < heads:
        return None
    per_group = query.reshape(batch, groups, -1, rows, width).transpose(0, 3, 1, 2, 4)
    others = [_flip(array)[:, :, :, None] for array in (key, value)]
    made = np.concatenate((per_group, *others), axis=3).reshape(batch, rows, -1, width)
    cut = np.split(_flip(made), [heads, heads + groups], axis=1)
    return pipe.but(**dict(zip(_INPUTS, cut, strict=True)))


FUSED.add(
    "fused_{}",
    lambda value: _cut_fused(_ordered(value[3], value[4]), value[5]),
    values=(
        ("cut_by_head", "(heads, 3, D)", "(3, heads, D)", 2, "h3d", lambda heads: heads > 1),
        # Of three heads the other one is the same.
        (
            *("cut_by_kind", "(3, heads, D)", "(heads, 3, D)", 3, "3hd"),
            lambda heads: heads > 1 and heads != 3,
        ),
        ("cut_by_component", "(heads, D, 3)", "(3, heads, D)", 2, "hd3", lambda _: True),
        (
            *("heads_cut_by_component", "(heads, D, 3)", "(heads, 3, D)", 3, "hd3"),
            lambda heads: heads > 1,
        ),
    ),
)
FUSED.add(
    "fused_viewed_as_heads",
    _cut_fused(_in_memory, lambda heads: heads > 1),
    stage=stages.FUSED_PARTS,
)
FUSED.add(
    "fused_shards_of_{}_cut_by_kind",
    lambda count: _cut_fused(
        _ordered(2, "3hd", count), lambda heads: heads > count and heads % count == 0
    ),
    values=(2, 4, 8),
    stage=stages.FUSED_PARTS,
)
FUSED.add("fused_groups_cut_by_kind", _by_group, stage=stages.FUSED_PARTS)
