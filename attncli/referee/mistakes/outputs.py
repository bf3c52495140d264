"""Right numbers under the wrong name or in the wrong axes: lse, scores, weights, context."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import SCORE_STAGES
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Rows
from attncli.referee.pipeline import Outputs, Pipeline, Run, evaluate, present

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array

__all__ = ["AXES", "GIVEN", "LSE", "SCORES", "WEIGHTS"]

_LN2 = math.log(2.0)
_SEQUENCE_FIRST = ("shd", "bshd", "sbd", "sbhd")
# How packed heads lie in memory, (B, L, H, ·) or (L, B, H, ·): to join them needs no other order.
_IN_MEMORY = {"sd": (0, 2, 1, 3), "bsd": (0, 2, 1, 3), "sbd": (2, 0, 1, 3)}


def _instead(name: str, make: Callable[[Run, Outputs], Array]) -> Change:
    """Return the change that writes something else for an output."""
    return lambda pipe: pipe.then("finish", lambda run, made: {**made, name: make(run, made)})


# The lse.

LSE = Rows(stages.LSE)


def _largest(outputs: Outputs) -> Array:
    """Return the largest score of each row, (B, H, L, 1); 0 where it sees no key."""
    top = outputs["scores"].max(-1, keepdims=True)
    return np.where(np.isneginf(top), 0, top)


def _lse(make: Callable[[Array], Array]) -> Change:
    return _instead("lse", lambda _, outputs: make(outputs["lse"]))


def _of_parts(join: Callable[[Array, Array], Array]) -> Change:
    """Return the change to an lse made of the largest score and ln Σ exp(score − largest)."""

    def lse(_: Run, outputs: Outputs) -> Array:
        top = _largest(outputs)
        return join(top, outputs["lse"] - top)

    return _instead("lse", lse)


def _of_other(name: str, **changes: Any) -> Change:
    """Return the change to an output of the same pipeline with other stages."""

    def made(run: Run, _: Outputs) -> Array:
        own = run.pipe.but(finish=(), **changes)
        return evaluate(own, run.part, memory=run.memory)[name]

    return _instead(name, made)


def _when(sense: Callable[[Pipeline], bool], change: Change) -> Change:
    return lambda pipe: change(pipe) if sense(pipe) else None


LSE.add("lse_base_2", _lse(lambda lse: lse / _LN2))
LSE.add("lse_times_ln_2", _lse(lambda lse: lse * _LN2))
LSE.add("lse_unscaled", _of_other("lse", scale=1.0))
LSE.add(
    "lse_without_sinks", _when(lambda pipe: pipe.sinks is not None, _of_other("lse", sinks=None))
)
LSE.add("lse_without_maximum", _of_parts(lambda _, rest: rest))
LSE.add("lse_not_logarithm", _lse(np.exp))
LSE.add(
    "lse_untransposed",
    _lse(lambda lse: lse.swapaxes(1, 2).reshape(lse.shape)),
    needs="heads rows",
)
LSE.add(
    "lse_is_maximum", _instead("lse", lambda _, outputs: outputs["scores"].max(-1, keepdims=True))
)
for _name, _join in (
    ("maximum_in_base_2", lambda top, rest: top / _LN2 + rest),
    ("sum_in_base_2", lambda top, rest: top + rest / _LN2),
    ("sum_subtracted", lambda top, rest: top - rest),
    ("of_sum_alone", lambda _, rest: np.exp(rest)),
    ("sum_not_logarithm", lambda top, rest: top + np.exp(rest)),
    ("base_10", lambda top, rest: (top + rest) / math.log(10.0)),
):
    LSE.add(f"lse_{_name}", _of_parts(_join))


def _unscaled_maximum(pipe: Pipeline) -> Pipeline | None:
    scale = pipe.problem.scale
    return None if scale in (0, 1) else _of_parts(lambda top, rest: top / scale + rest)(pipe)


LSE.add("lse_maximum_unscaled", _unscaled_maximum)
LSE.add("lse_negative", _lse(np.negative))
LSE.add(
    "lse_of_blind_rows_{}",
    lambda value: _when(
        lambda pipe: pipe.sinks is None and bool(pipe.rules),
        _lse(lambda lse: np.where(np.isneginf(lse), value[2], lse)),
    ),
    values=(
        ("inf", "+inf, as in FlashAttention 2", math.inf),
        ("zero", "0", 0.0),
        ("nan", "NaN", math.nan),
    ),
    stage=stages.LSE_OF_BLIND_ROWS,
)


# One output, or an input, in the place of another.

GIVEN = Rows(stages.GIVEN, writes=True)
WEIGHTS = Rows(stages.WEIGHTS)
SCORES = Rows(stages.SCORES)


def _given(name: str) -> Change:
    """Return the change that gives an input out as the context, where it has its shape."""

    def change(pipe: Pipeline) -> Pipeline | None:
        array = getattr(pipe, name)
        value = pipe.problem.value
        if array is None or value is None or pipe.output is not None:
            return None
        if array.shape != (*pipe.shape[:3], value.shape[3]):
            return None
        return _instead("context", lambda run, _: run.part.of(array))(pipe)

    return change


def _weights_given(pipe: Pipeline) -> Pipeline | None:
    value = pipe.problem.value
    if value is None or pipe.output is not None or value.shape[3] != pipe.shape[3]:
        return None
    return _instead("context", lambda _, outputs: outputs["weights"])(pipe)


GIVEN.add("context_is_{}", _given, values=("key", "value"))
GIVEN.add("context_is_weights", _weights_given, writes=(False))


def _hides(pipe: Pipeline) -> bool:
    return bool(pipe.rules)


WEIGHTS.add(
    "weights_are_scores",
    _when(_hides, _instead("weights", lambda _, outputs: outputs["scores"])),
    variant_of=("softmax_left_out",),
)
WEIGHTS.add(
    "weights_are_logarithms", _instead("weights", lambda _, outputs: np.log(outputs["weights"]))
)
_BEFORE = "write scale · Q·Kᵀ, before softcap, bias and mask"
for _target, _source, _meaning, _fix, _shows in (
    (
        *("scores", "raw"),
        "the file of scores holds scale · Q·Kᵀ, before softcap, bias and mask",
        *("", "any rule"),
    ),
    (
        *("scores", "capped"),
        "the file of scores holds scores before bias and mask",
        *("", "a bias or a mask"),
    ),
    (
        *("raw", "scores"),
        "the file of raw scores holds those behind softcap, bias and mask",
        *(_BEFORE, "any rule"),
    ),
    (
        *("capped", "scores"),
        "the file of capped scores holds those behind bias and mask",
        *("write the scores behind the softcap, before bias and mask", "a bias or a mask"),
    ),
    (
        *("scores", "weights"),
        "the file of scores holds the weights, from behind the softmax",
        *("", "almost any input"),
    ),
):
    SCORES.add(
        f"{_target}_are_{_source}",
        _instead(_target, lambda _, outputs, source=_source: outputs[source]),  # type: ignore[misc]
        **({"fix": _fix} if _fix else {}),
    )
SCORES.add(
    "raw_hidden",
    _when(
        _hides, _instead("raw", lambda run, outputs: np.where(run.seen, outputs["raw"], -np.inf))
    ),
    variant_of=("raw_are_scores",),
)
SCORES.add(
    "scores_less_maximum",
    _instead("scores", lambda _, outputs: outputs["scores"] - _largest(outputs)),
)


def _unscaled(pipe: Pipeline) -> Pipeline:
    def finish(run: Run, outputs: Outputs) -> Outputs:
        own = run.pipe.but(finish=(), scale=1.0)
        changed = evaluate(own, run.part, memory=run.memory)
        return {**outputs, **{name: changed[name] for name in SCORE_STAGES}}

    return pipe.then("finish", finish)


SCORES.add("scores_unscaled", _unscaled)


# Right numbers in the wrong axes.

AXES = Rows(stages.AXES, needs="batch heads rows", writes=True)


def _has_axes(problem: Problem, name: str) -> tuple[int, ...]:
    lead = tuple("bh".index(axis) for axis in problem.layout.weight_axes)
    return (*lead, 2) if name == "lse" else (*lead, 2, 3)


def _ordered(order: tuple[int, ...]) -> Change:
    """Return the change that writes the axes of (B, H, L, ·) in another order."""

    def axes(problem: Problem, name: str, array: Array) -> Array:
        array = array.transpose(order)
        lengths = zip(array.shape, order, strict=True)
        # An axis that the inputs do not have, and the width of the lse, stay away.
        own = _has_axes(problem, name)
        return array.reshape([n for n, axis in lengths if axis in own])

    def change(pipe: Pipeline) -> Pipeline | None:
        problem, layout = pipe.problem, pipe.problem.layout
        absent = {0, 1} - set(_has_axes(problem, "context"))
        if pipe.file.names == {"lse"}:
            absent.add(3)
        # Where the sequence comes before the heads, or these lie in the width, it is a mistake.
        idle = order == (0, 1, 2, 3) and (layout.packed or layout.axes not in _SEQUENCE_FIRST)
        if layout.packed and pipe.file.names == {"context"}:
            idle |= order == _IN_MEMORY[layout.axes]
        # An axis that is not there cannot be misplaced: one entry an order is enough.
        stray = any(order[axis] != axis for axis in absent)
        return None if idle or stray else pipe.but(axes=axes)

    return change


def _words(order: tuple[int, ...]) -> str:
    if order == (0, 1, 3, 2):
        return "the numbers are right, but each matrix in the file is transposed"
    words = ", ".join("BHL·"[axis] for axis in order)
    return (
        f"the numbers are right, but the file has its axes in the order ({words}), "
        "· being the width, or the keys; B and H where there are such"
    )


def _for_context(make: Callable[[Problem, Array], Array]) -> Any:
    """Return a way to write the context, and other outputs as usual."""

    def axes(problem: Problem, name: str, array: Array) -> Array:
        return make(problem, array) if name == "context" else present(problem, name, array)

    return axes


def _average(pipe: Pipeline) -> Pipeline | None:
    """Average the weights that are written, not those that meet the values."""

    def axes(problem: Problem, name: str, array: Array) -> Array:
        if name in ("context", "lse"):
            return present(problem, name, array)
        averaged: Array = array.mean(axis=1)
        return averaged if "b" in problem.layout.weight_axes else averaged[0]

    return None if pipe.shape[1] == 1 else pipe.but(axes=axes)


def _unjoined(pipe: Pipeline) -> Pipeline | None:
    """Keep the heads of a packed context in an axis of their own, before those of the queries."""
    heads, found = pipe.problem.shape[1], pipe.file.shapes.get("context", ())
    if not pipe.problem.layout.packed or heads == 1 or len(found) not in (3, 4):
        return None

    def apart(_: Problem, array: Array) -> Array:
        # Where there is or should be an output projection, they are joined.
        if array.shape[1] == 1 and array.shape[3] % heads == 0:
            batch, _, rows, _ = array.shape
            array = array.reshape(batch, rows, heads, -1).transpose(0, 2, 1, 3)
        return array if len(found) == 4 else array[0]

    return pipe.but(axes=_for_context(apart))


def _packed(*, transposed: bool) -> Change:
    """Put the heads of the context side by side, or reshape (B, H, L, E) as if they were."""

    def side_by_side(problem: Problem, array: Array) -> Array:
        ordered = array.transpose(0, 2, 1, 3) if transposed else array
        joined = ordered.reshape(len(array), array.shape[2], -1)
        return joined if "b" in problem.layout.axes else joined[0]

    def change(pipe: Pipeline) -> Pipeline | None:
        _, heads, queries, _ = pipe.problem.shape
        absent = "h" not in pipe.problem.layout.axes
        same = not transposed and 1 in (heads, queries)
        if absent or same or pipe.output is not None:
            return None
        return pipe.but(axes=_for_context(side_by_side))

    return change


def _other_shape(accepted: Callable[[tuple[int, ...], tuple[int, ...]], bool]) -> Change:
    """Return the change that accepts files of other shapes, the numbers in their order."""

    def change(pipe: Pipeline) -> Pipeline:
        plain, shapes = pipe.axes, pipe.file.shapes

        def axes(problem: Problem, name: str, array: Array) -> Array:
            right = plain(problem, name, array)
            wanted = shapes.get(name, right.shape)
            return right.reshape(wanted) if accepted(right.shape, wanted) else right

        return pipe.but(axes=axes)

    return change


def _same_but_ones(right: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return [n for n in right if n != 1] == [n for n in found if n != 1]


def _same_count(right: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return math.prod(right) == math.prod(found) and not _same_but_ones(right, found)


def _sequence_first(pipe: Pipeline) -> Pipeline | None:
    layout = pipe.problem.layout
    if not layout.packed or "b" not in layout.weight_axes:
        return None
    return pipe.but(
        axes=_for_context(lambda problem, a: present(problem, "context", a).swapaxes(0, 1))
    )


def _with_sinks(place: str) -> Change:
    """Return the change that writes what the sinks have as one more key of weights and scores."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.sinks is None:
            return None
        sinks, before = pipe.sinks[:, None, None], pipe.axes

        def axes(problem: Problem, name: str, array: Array) -> Array:
            if name not in ("weights", "scores"):
                return before(problem, name, array)
            own = 1 - array.sum(axis=-1, keepdims=True) if name == "weights" else sinks
            column = np.broadcast_to(own, (*array.shape[:3], 1))
            parts = (column, array) if place == "first" else (array, column)
            return before(problem, name, np.concatenate(parts, axis=-1))

        return pipe.but(axes=axes)

    return change


def _poured(order: str) -> Change:
    """Return the change that writes the numbers in one memory order and reads them in the other."""

    def change(pipe: Pipeline) -> Pipeline:
        before = pipe.axes

        def axes(problem: Problem, name: str, array: Array) -> Array:
            right = before(problem, name, array)
            wanted = pipe.file.shapes.get(name, right.shape)
            if math.prod(wanted) != right.size:
                return right
            if order == "column":
                return right.ravel(order="C").reshape(wanted, order="F")
            return right.ravel(order="F").reshape(wanted, order="C")

        return pipe.but(axes=axes)

    return change


_ORDERS = list(permutations(range(4)))
AXES.add("sinks_as_{}_column", _with_sinks, values=("first", "last"), reshapes=True)
AXES.add("axes_of_length_1", _other_shape(_same_but_ones), reshapes=True)
AXES.add(
    "axes_joined",
    _other_shape(_same_count),
    reshapes=True,
    variant_of=(
        "heads_packed",
        "heads_packed_untransposed",
        *("axes_" + "".join("bhlx"[axis] for axis in order) for order in _ORDERS),
    ),
)
AXES.add("sequence_first", _sequence_first)
AXES.add("heads_packed", _packed(transposed=True), reshapes=True)
AXES.add("heads_not_joined", _unjoined, reshapes=True)
AXES.add("heads_packed_untransposed", _packed(transposed=False), reshapes=True)
AXES.add("weights_averaged", _average, option="--average-heads", reshapes=True)
AXES.add(
    "axes_{}",
    lambda value: _ordered(value[2]),
    meaning="{1}",
    values=[("".join("bhlx"[axis] for axis in o), _words(o), o) for o in _ORDERS],
    fix="transpose the result before it is written",
    shows="axes of different length",
)
AXES.add(
    "memory_order_{}",
    lambda value: _poured(value[0]),
    values=(("row", "column-major", "row-major"), ("column", "row-major", "column-major")),
    variant_of=tuple("axes_" + "".join("bhlx"[axis] for axis in order) for order in _ORDERS),
)


# Contexts that were averaged or added up.


def _pooled(pool: Callable[..., Array], axis: int) -> Change:
    """Return the change that pools the contexts (B, H, L, E); the axis may stay, of length 1."""

    def change(pipe: Pipeline) -> Pipeline | None:
        found = pipe.file.shapes.get("context")
        mixed = axis == 1 and pipe.output is not None
        if pipe.problem.shape[axis] == 1 or mixed or found is None:
            return None

        def one(problem: Problem, array: Array) -> Array:
            made = present(problem, "context", pool(array, axis=axis, keepdims=True))
            return made.reshape(found) if _same_but_ones(made.shape, found) else made

        return pipe.but(axes=_for_context(one))

    return change


for _done, _pool in (("averaged", np.mean), ("summed", np.sum)):
    AXES.add(f"context_{_done}_over_heads", _pooled(_pool, 1), reshapes=True)
AXES.add("context_averaged_over_queries", _pooled(np.mean, 2), reshapes=True)
