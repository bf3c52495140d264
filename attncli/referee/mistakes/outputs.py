"""Right numbers under the wrong name or in the wrong axes: lse, scores, weights, context."""

from __future__ import annotations

import math
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from attncli.errors.names import SCORE_STAGES, SQUARE
from attncli.referee.mistakes.table import Rows, given, require, written
from attncli.referee.pipeline import Pipeline, present
from attncli.referee.run import Outputs, Run, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array

    Axes = Callable[[Problem, str, Array], Array]

ROWS = Rows()

_LN2 = math.log(2.0)
_SEQUENCE_FIRST = ("shd", "bshd", "sbd", "sbhd")
# The memory order of packed heads, (B, L, H, ·) or (L, B, H, ·).
_IN_MEMORY = {"sd": (0, 2, 1, 3), "bsd": (0, 2, 1, 3), "sbd": (2, 0, 1, 3)}


# The lse: lse − row max = ln Σ exp(score − row max).


def _lse(pipe: Pipeline, make: Callable[[Array, Array], Array]) -> Pipeline:
    """Replace the lse by a function of the lse and the row max, which is 0 for blind rows."""

    def lse(_: Run, outputs: Outputs) -> Array:
        top = outputs["scores"].max(-1, keepdims=True)
        return make(outputs["lse"], np.where(np.isneginf(top), 0, top))

    return written(pipe, "lse", lse)


def _of_other(pipe: Pipeline, stage: str, value: Any, *names: str) -> Pipeline:
    """Write these outputs as a pipeline with another stage gives them."""

    def finish(run: Run, outputs: Outputs) -> Outputs:
        own = run.pipe.but(finish=(), **{stage: value})
        changed = evaluate(own, run.part, memory=run.memory)
        return {**outputs, **{name: changed[name] for name in names}}

    return pipe.then("finish", finish)


def _of_blind_rows(pipe: Pipeline, number: float) -> Pipeline:
    require(pipe.sinks is None, pipe.rules)
    return _lse(pipe, lambda lse, _: np.where(np.isneginf(lse), number, lse))


ROWS.add("lse_base_2", _lse, lambda lse, _: lse / _LN2)
ROWS.add("lse_base_10", _lse, lambda lse, _: lse / math.log(10.0))
ROWS.add("lse_times_ln_2", _lse, lambda lse, _: lse * _LN2)
ROWS.add("lse_negative", _lse, lambda lse, _: -lse)
ROWS.add("lse_not_logarithm", _lse, lambda lse, _: np.exp(lse))
ROWS.add("lse_untransposed", _lse, lambda lse, _: lse.swapaxes(1, 2).reshape(lse.shape))
ROWS.add("lse_without_maximum", _lse, lambda lse, top: lse - top)
ROWS.add("lse_maximum_in_base_2", _lse, lambda lse, top: top / _LN2 + (lse - top))
ROWS.add("lse_sum_in_base_2", _lse, lambda lse, top: top + (lse - top) / _LN2)
ROWS.add("lse_sum_subtracted", _lse, lambda lse, top: top - (lse - top))
ROWS.add("lse_of_sum_alone", _lse, lambda lse, top: np.exp(lse - top))
ROWS.add("lse_sum_not_logarithm", _lse, lambda lse, top: top + np.exp(lse - top))
ROWS.add(
    "lse_maximum_unscaled",
    lambda pipe: _lse(pipe, lambda lse, top: top / pipe.problem.scale + (lse - top)),
    when=lambda pipe: pipe.problem.scale not in (0, 1),
)
ROWS.add("lse_is_maximum", written, "lse", lambda _, made: made["scores"].max(-1, keepdims=True))
ROWS.family("lse_of_blind_rows_{}", _of_blind_rows, {"inf": math.inf, "zero": 0.0, "nan": math.nan})
ROWS.add("lse_unscaled", _of_other, "scale", 1.0, "lse")
ROWS.add("scores_unscaled", _of_other, "scale", 1.0, *SCORE_STAGES)
ROWS.add(
    "lse_without_sinks",
    *(_of_other, "sinks", None, "lse"),
    when=lambda pipe: pipe.sinks is not None,
)


# An output, or an input, in the place of another output.


def _input_given(pipe: Pipeline, name: str) -> Pipeline:
    """Write an input as the context, if it has the shape of the context."""
    array, value = given(getattr(pipe, name)), given(pipe.problem.value)
    require(pipe.output is None, array.shape == (*pipe.shape[:3], value.shape[3]))
    return written(pipe, "context", lambda run, _: run.part.of(array))


def _as(pipe: Pipeline, target: str, source: str) -> Pipeline:
    return written(pipe, target, lambda _, outputs: outputs[source])


def _hides(pipe: Pipeline) -> bool:
    return bool(pipe.rules)


ROWS.family("context_is_{}", _input_given, ("key", "value"))
ROWS.add(
    "context_is_weights",
    *(_as, "context", "weights"),
    when=lambda pipe: pipe.output is None and given(pipe.value).shape[3] == pipe.shape[3],
)
ROWS.add("weights_are_scores", _as, "weights", "scores", when=_hides)
ROWS.add("weights_are_logarithms", written, "weights", lambda _, made: np.log(made["weights"]))
_INSTEAD: Any = (("scores", "raw"), ("scores", "capped"), ("scores", "weights"))
_INSTEAD += (("raw", "scores"), ("capped", "scores"))
ROWS.family("{}_are_{}", _as, _INSTEAD)
ROWS.add(
    "raw_hidden",
    *(written, "raw", lambda run, outputs: np.where(run.seen, outputs["raw"], -np.inf)),
    when=_hides,
)


# Right numbers in the wrong axes.


def _has_axes(problem: Problem, name: str) -> tuple[int, ...]:
    lead = tuple("bh".index(axis) for axis in problem.layout.weight_axes)
    return (*lead, 2) if name == "lse" else (*lead, 2, 3)


def _ordered(pipe: Pipeline, *order: int) -> Pipeline:
    problem, layout = pipe.problem, pipe.problem.layout
    absent = {0, 1} - set(_has_axes(problem, "context"))
    absent |= {3} if pipe.file.names == {"lse"} else set()
    # A missing axis cannot be misplaced.
    require(all(order[axis] == axis for axis in absent))
    # The order (B, H, L, ·) is a mistake only if the user's order differs.
    usual = layout.packed or layout.axes not in _SEQUENCE_FIRST
    require(not (order == (0, 1, 2, 3) and usual))
    joined = layout.packed and pipe.file.names == {"context"}
    require(not (joined and order == _IN_MEMORY[layout.axes]))

    def axes(problem: Problem, name: str, array: Array) -> Array:
        lengths = zip(array.transpose(order).shape, order, strict=True)
        # Leave out the axes that the inputs do not have, and the width of the lse.
        own = _has_axes(problem, name)
        return array.transpose(order).reshape([n for n, axis in lengths if axis in own])

    return pipe.but(axes=axes)


def _behind(pipe: Pipeline, make: Callable[[str, Array], Array]) -> Pipeline:
    before = pipe.axes
    return pipe.but(axes=lambda problem, name, array: make(name, before(problem, name, array)))


def _presented(
    pipe: Pipeline, make: Callable[[Problem, str, Array], Array], *names: str
) -> Pipeline:
    """Write some outputs in another layout, made from (B, H, …)."""
    before = pipe.axes

    def axes(problem: Problem, name: str, array: Array) -> Array:
        return (make if name in names else before)(problem, name, array)

    return pipe.but(axes=axes)


def _averaged(problem: Problem, _: str, array: Array) -> Array:
    """Average the written weights over the heads, but not the weights that multiply the values."""
    averaged: Array = array.mean(axis=1)
    return averaged if "b" in problem.layout.weight_axes else averaged[0]


def _unjoined(pipe: Pipeline) -> Pipeline:
    """Write the heads of a packed context in an axis before the queries."""
    heads, found = pipe.problem.shape[1], pipe.file.shapes.get("context", ())
    require(pipe.problem.layout.packed, heads > 1, len(found) in (3, 4))

    def apart(_: Problem, __: str, array: Array) -> Array:
        # Behind an output projection, present or missing, the heads are joined already.
        if array.shape[1] == 1 and array.shape[3] % heads == 0:
            batch, _, rows, _ = array.shape
            array = array.reshape(batch, rows, heads, -1).transpose(0, 2, 1, 3)
        return array if len(found) == 4 else array[0]

    return _presented(pipe, apart, "context")


def _packed(pipe: Pipeline, how: Literal["transposed", "reshaped"]) -> Pipeline:
    """Write heads side by side, or reshape (B, H, L, E) to that shape."""
    _, heads, queries, _ = pipe.problem.shape
    require("h" in pipe.problem.layout.axes, pipe.output is None)
    require(how == "transposed" or 1 not in (heads, queries))

    def side_by_side(problem: Problem, _: str, array: Array) -> Array:
        ordered = array.transpose(0, 2, 1, 3) if how == "transposed" else array
        joined = ordered.reshape(len(array), array.shape[2], -1)
        return joined if "b" in problem.layout.axes else joined[0]

    return _presented(pipe, side_by_side, "context")


def _other_shape(pipe: Pipeline, accepted: Callable[[Any, Any], bool]) -> Pipeline:
    """Accept a file of another shape whose numbers are in the same order."""

    def axes(name: str, right: Array) -> Array:
        wanted = pipe.file.shapes.get(name, right.shape)
        return right.reshape(wanted) if accepted(right.shape, wanted) else right

    return _behind(pipe, axes)


def _same_but_ones(right: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return [n for n in right if n != 1] == [n for n in found if n != 1]


def _same_count(right: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return math.prod(right) == math.prod(found) and not _same_but_ones(right, found)


def _with_sinks(pipe: Pipeline, place: str) -> Pipeline:
    """Write the sinks as one more column of weights and scores."""
    sinks, before = given(pipe.sinks)[:, None, None], pipe.axes

    def with_column(problem: Problem, name: str, array: Array) -> Array:
        own = 1 - array.sum(axis=-1, keepdims=True) if name == "weights" else sinks
        column = np.broadcast_to(own, (*array.shape[:3], 1))
        parts = (column, array) if place == "first" else (array, column)
        return before(problem, name, np.concatenate(parts, axis=-1))

    return _presented(pipe, with_column, "weights", "scores")


def _poured(pipe: Pipeline, write: Literal["C", "F"], read: Literal["C", "F"]) -> Pipeline:
    def axes(name: str, right: Array) -> Array:
        wanted = pipe.file.shapes.get(name, right.shape)
        same = math.prod(wanted) == right.size
        return right.ravel(order=write).reshape(wanted, order=read) if same else right

    return _behind(pipe, axes)


def _pooled(pipe: Pipeline, pool: Callable[..., Array], axis: int) -> Pipeline:
    """Average or add contexts (B, H, L, E) over an axis, which may stay with the length 1."""
    found = given(pipe.file.shapes.get("context"))
    require(pipe.problem.shape[axis] > 1, axis != 1 or pipe.output is None)

    def one(problem: Problem, name: str, array: Array) -> Array:
        made = present(problem, name, pool(array, axis=axis, keepdims=True))
        return made.reshape(found) if _same_but_ones(made.shape, found) else made

    return _presented(pipe, one, "context")


_ORDERS = {"".join("bhlx"[axis] for axis in order): order for order in permutations(range(4))}
_ORDERED = tuple(f"axes_{order}" for order in _ORDERS)
ROWS.family("sinks_as_{}_column", _with_sinks, ("first", "last"))
ROWS.add("axes_of_length_1", _other_shape, _same_but_ones)
ROWS.add(
    "axes_joined",
    _other_shape,
    _same_count,
    variant_of=("heads_packed", "heads_packed_untransposed", *_ORDERED),
)
ROWS.add(
    "sequence_first",
    *(_presented, lambda *told: present(*told).swapaxes(0, 1), "context"),
    when=lambda pipe: pipe.problem.layout.packed and "b" in pipe.problem.layout.weight_axes,
)
ROWS.add("heads_packed", _packed, "transposed")
ROWS.add("heads_not_joined", _unjoined)
ROWS.add("heads_packed_untransposed", _packed, "reshaped")
ROWS.add(
    "weights_averaged",
    *(_presented, _averaged, *SQUARE),
    when=lambda pipe: pipe.shape[1] > 1,
    option="--average-heads",
)
ROWS.family(
    "axes_{0}",
    _ordered,
    {(name, ", ".join("BHL·"[axis] for axis in order)): order for name, order in _ORDERS.items()},
)
ROWS.family(
    "memory_order_{}", _poured, {"row": ("F", "C"), "column": ("C", "F")}, variant_of=_ORDERED
)
ROWS.add("context_averaged_over_heads", _pooled, np.mean, 1)
ROWS.add("context_summed_over_heads", _pooled, np.sum, 1)
ROWS.add("context_averaged_over_queries", _pooled, np.mean, 2)
