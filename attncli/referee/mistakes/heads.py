"""Mistakes with the head axis: how heads are cut, shared, used as a sequence, and joined again."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.mistakes.inputs import own_places
from attncli.referee.mistakes.table import Rows, given, require, written
from attncli.referee.pipeline import Pipeline, causal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array

ROWS = Rows()

_NUMBERS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
_INPUTS = ("query", "key", "value")


def _inputs(
    pipe: Pipeline, change: Callable[[Array], Array], names: Iterable[str] = _INPUTS
) -> Pipeline:
    there = {n: getattr(pipe, n) for n in names if getattr(pipe, n) is not None}
    return pipe.but(**{name: change(array) for name, array in there.items()})


def _finished(pipe: Pipeline, change: Callable[[Array], Array]) -> Pipeline:
    return written(pipe, "context", lambda _, made: change(made["context"]))


def _flip(array: Array) -> Array:
    return array.transpose(0, 2, 1, 3)


# Attention along another axis, or with another number of heads.


def _along(pipe: Pipeline, *axes: int) -> Pipeline:
    """Exchange the sequence axis for another axis, and back in the context."""
    made = _inputs(pipe, lambda array: array.transpose(axes))
    batch, heads, queries, keys = made.shape
    require(len(made.key) == batch, heads % made.key.shape[1] == 0, keys > 1)
    require(not set(pipe.rules) - {"causal"}, not pipe.terms, pipe.sinks is None)
    require(pipe.rope is None or not pipe.places)
    # The causal rule stays aligned with the last key, or else with the first one.
    offset = keys - queries if any(pipe.offsets) else 0
    visible = pipe.problem.visible._replace(queries=queries, keys=keys, offsets=(offset,))
    made = made.but(
        problem=replace(
            pipe.problem, query=made.query, key=made.key, value=made.value, visible=visible
        ),
        rules={"causal": causal((offset,))} if "causal" in pipe.rules else {},
        query_positions=np.arange(queries)[None] + offset,
        key_positions=np.arange(keys)[None],
    )
    return _finished(made, lambda context: context.transpose(axes))


def _other_layout(problem: Problem) -> str:
    other = problem.layout.exchanged
    return f"--layout {other}" if other else ""


def _heads_first(problem: Problem) -> str:
    return "" if problem.layout.packed or problem.layout.axes != "bsd" else "--layout shd"


def _joined(heads: int, array: Array) -> Array:
    """Join the heads of (B, H, S, D), and cut the width into another number of heads."""
    batch, _, rows, _ = array.shape
    return _flip(_flip(array).reshape(batch, rows, heads, -1))


def _usual_scale(problem: Problem) -> bool:
    return math.isclose(problem.scale, problem.query.shape[3] ** -0.5)


def _cut_into(pipe: Pipeline, heads: int) -> Pipeline:
    """Cut all widths into another number of heads, if no rule depends on the head."""
    layout, problem, count = pipe.problem.layout, pipe.problem, pipe.query.shape[1]
    arrays = [array for array in (pipe.query, pipe.key, pipe.value) if array is not None]
    # Outputs other than the context would have no axis for these heads.
    require(layout.packed or not pipe.file.names - {"context"}, "h" not in layout.axes)
    require(heads != count == pipe.key.shape[1], pipe.rope is None, pipe.score == "dot")
    require(pipe.sinks is None, "alibi" not in pipe.terms)
    of_heads = [problem.visible.mask, problem.bias]
    require(all(table is None or table.shape[1] == 1 for table in of_heads))
    require(all(count * array.shape[3] % heads == 0 for array in arrays))
    made = _inputs(pipe, partial(_joined, heads))
    scale = made.width**-0.5 if _usual_scale(problem) else pipe.scale
    return _finished(made.but(scale=scale), partial(_joined, count))


ROWS.add("axes_exchanged", _along, 0, 2, 1, 3, option=_other_layout)
ROWS.add("batch_attended", _along, 2, 1, 0, 3, option=_heads_first)
ROWS.family(
    "heads_{}",
    _cut_into,
    {(number, "head" if number == 1 else "heads"): number for number in _NUMBERS},
    option=lambda n, _: lambda problem: f"--heads {n}" * _usual_scale(problem),
)


# How heads are cut and joined.


def reread(problem: Problem, array: Array, *, back: bool) -> Array:
    """Reshape (…, sequence, heads, …) to (…, heads, sequence, …) in memory, or back."""
    batch, heads, rows, width = array.shape
    sequence_first = problem.layout.packed or problem.layout.axes in ("shd", "bshd")
    if sequence_first is not back:
        return _flip(array).reshape(batch, heads, rows, width)
    return _flip(array.reshape(batch, rows, heads, width))


def _reshaped(pipe: Pipeline, *names: str, back: bool = False) -> Pipeline:
    """Reshape inputs or the context instead of transposing; ``back``: they were transposed."""
    require(pipe.shape[1] > 1, pipe.shape[2:] != (1, 1))
    own = [name for name in names if name != "context"]
    made = _inputs(pipe, lambda array: reread(pipe.problem, array, back=back), own)
    if "context" not in names:
        return made
    return _finished(made, partial(reread, pipe.problem, back=not back))


def _some_reshaped(pipe: Pipeline, *names: str, back: bool = False) -> Pipeline:
    require(all(min(given(getattr(pipe, name)).shape[1:3]) > 1 for name in names))
    return _reshaped(pipe, *names, back=back)


def _interleaved(array: Array) -> Array:
    """Cut the packed width as (D, H), although it is (H, D)."""
    batch, heads, rows, width = array.shape
    return _flip(array).reshape(batch, rows, width, heads).transpose(0, 3, 1, 2)


def _uninterleaved(array: Array) -> Array:
    """Join the heads as (E, H), although it should be (H, E)."""
    batch, heads, rows, width = array.shape
    return _flip(array.transpose(0, 2, 3, 1).reshape(batch, rows, heads, width))


def _cut(pipe: Pipeline, *where: str) -> Pipeline:
    require(pipe.problem.layout.packed, pipe.query.shape[1] > 1)
    made = _inputs(pipe, _interleaved) if "in" in where else pipe
    return _finished(made, _uninterleaved) if "out" in where else made


def _tiled(pipe: Pipeline, *names: str) -> Pipeline:
    groups = pipe.key.shape[1]
    require(groups not in (1, pipe.shape[1]), pipe.value is not None or len(names) > 1)
    heads = np.indices(pipe.shape[:2])[1] % groups
    there = [name for name in names if getattr(pipe, name) is not None]
    return pipe.but(
        places={**pipe.places, **{name: (own_places(pipe, name)[0], heads) for name in there}}
    )


ROWS.add("heads_reshaped_in", _reshaped, *_INPUTS)
ROWS.add("heads_reshaped_out", _reshaped, "context")
ROWS.add("heads_transposed_twice", partial(_reshaped, back=True), "context")
ROWS.add("heads_reshaped", _reshaped, *_INPUTS, "context")
ROWS.add("strides_ignored", partial(_reshaped, back=True), *_INPUTS)
ROWS.add("strides_of_keys_ignored", partial(_reshaped, back=True), *("key", "value"))
_SOME = (("query",), ("key",), ("value",), ("query", "key"), ("query", "value"), ("key", "value"))
ROWS.family("{}_reshaped_in", _some_reshaped, {"_".join(names): names for names in _SOME})
ROWS.family(
    "strides_of_{}_ignored",
    partial(_some_reshaped, back=True),
    {"_".join(names): names for names in _SOME[:-1]},
)
ROWS.add("heads_interleaved", _cut, "in", "out")
ROWS.add("heads_interleaved_in", _cut, "in")
ROWS.add("heads_interleaved_out", _cut, "out")
ROWS.family(
    "heads{}_tiled", _tiled, {"": ("key", "value"), "_of_keys": "key", "_of_values": "value"}
)


# A fused projection of query, key and value, (B, L, ·), that is cut in another order.


def _fused(pipe: Pipeline, axis: int, order: str) -> Pipeline:
    """Cut a fused product in another order; axis 2: (q, k, v), axis 3: (q, k, v) of each head."""
    arrays = [given(getattr(pipe, name)) for name in _INPUTS]
    batch, heads, rows, width = pipe.query.shape
    require(all(array.shape == pipe.query.shape for array in arrays))
    # Some orders are the same for one head, and others for three heads.
    require(heads > 1 or (axis, order) == (2, "blhd3"), heads != 3 or order != "bl3hd")
    lengths = {"b": batch, "l": rows, "h": heads, "3": 3, "d": width}
    product = np.stack([_flip(array) for array in arrays], axis=axis)
    made = product.reshape([lengths[each] for each in order])
    made = made.transpose([order.index(each) for each in "3bhld"])
    return pipe.but(**dict(zip(_INPUTS, made, strict=True)))


ROWS.family(
    "fused_{}",
    _fused,
    {
        "cut_by_head": (2, "blh3d"),
        "cut_by_kind": (3, "bl3hd"),
        "cut_by_component": (2, "blhd3"),
        "heads_cut_by_component": (3, "blhd3"),
        "viewed_as_heads": (2, "3bhld"),
    },
)
