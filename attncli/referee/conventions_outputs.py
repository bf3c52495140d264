"""Right numbers under the wrong name: lse, scores, and the axes of a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.convention import Convention, Need
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import Outputs, Recipe, vary
from attncli.referee.stages import present

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["AXES", "LSE", "SCORES"]

Array = npt.NDArray[Any]
Apply = Callable[[Recipe], Recipe | None]


def _finished(change: Callable[[Recipe, Outputs], Outputs]) -> Apply:
    return lambda recipe: replace(recipe, finish=(*recipe.finish, change))


def _lse_as(change: Callable[[Recipe, Outputs], Array]) -> Apply:
    return _finished(lambda recipe, outputs: {**outputs, "lse": change(recipe, outputs)})


def _lse_of(**changes: Any) -> Callable[[Recipe, Outputs], Array]:
    """Take the lse of the same recipe with a changed problem."""
    return lambda recipe, _: evaluate(replace(vary(recipe, **changes), finish=()))["lse"]


def _without_maximum(_: Recipe, outputs: Outputs) -> Array:
    top = outputs["scores"].max(-1, keepdims=True)
    return outputs["lse"] - np.where(np.isneginf(top), 0, top)


def _lse(name: str, meaning: str, apply: Apply, **more: Any) -> Convention:
    return Convention(
        name=name,
        topic="lse",
        meaning=meaning,
        fix="write ln Σ exp(score) over the seen keys, sink included",
        shows=more.pop("shows", "nearly any inputs"),
        apply=apply,
        **more,
    )


LSE = (
    _lse(
        "lse_base_2",
        "the lse is a logarithm to base 2",
        _lse_as(lambda _, outputs: outputs["lse"] / math.log(2.0)),
    ),
    _lse(
        "lse_unscaled",
        "the lse is that of the scores before the scale",
        _lse_as(_lse_of(scale=1.0)),
        shows="a scale other than 1",
    ),
    _lse(
        "lse_without_sinks",
        "the lse leaves the sinks out",
        lambda recipe: (
            None if recipe.problem.sinks is None else _lse_as(_lse_of(sinks=None))(recipe)
        ),
        shows="sinks",
    ),
    _lse(
        "lse_without_maximum",
        "the row's maximum was not added back to the lse",
        _lse_as(_without_maximum),
    ),
    _lse(
        "lse_not_logarithm",
        "the file holds the denominator itself, not its logarithm",
        _lse_as(lambda _, outputs: np.exp(outputs["lse"])),
    ),
    _lse(
        "lse_negative",
        "the lse has the wrong sign",
        _lse_as(lambda _, outputs: -outputs["lse"]),
    ),
)


def _scores_from(stage: str) -> Apply:
    return _finished(lambda _, outputs: {**outputs, "scores": outputs[stage]})


def _unscaled_scores(recipe: Recipe, outputs: Outputs) -> Outputs:
    changed = evaluate(replace(vary(recipe, scale=1.0), finish=()))
    return {**outputs, **{name: changed[name] for name in ("raw", "capped", "scores")}}


def _score(name: str, meaning: str, apply: Apply, *, shows: str) -> Convention:
    return Convention(
        name=name,
        topic="scores",
        meaning=meaning,
        fix="write the scores as the softmax gets them",
        shows=shows,
        apply=apply,
    )


SCORES = (
    _score(
        "scores_are_raw",
        "the file of scores holds scale · Q·Kᵀ, before cap, bias and mask",
        _scores_from("raw"),
        shows="any rule",
    ),
    _score(
        "scores_are_capped",
        "the file of scores holds them before bias and mask",
        _scores_from("capped"),
        shows="a bias or a mask",
    ),
    _score(
        "scores_unscaled",
        "the file of scores holds them without the scale, which the softmax then did get",
        _finished(_unscaled_scores),
        shows="a scale other than 1",
    ),
)

_WHOLE: frozenset[Need] = frozenset({"batch", "heads", "rows"})


def _permuted(order: tuple[int, ...]) -> Apply:
    """Make an `apply` that writes the axes of (B, H, L, ·) in another order."""

    def shape(problem: Problem, name: str, array: Array) -> Array:
        array = array.transpose(order)
        lengths = zip(array.shape, order, strict=True)
        # An axis that the inputs do not have, and the width of the lse, stay away.
        kept = [n for n, axis in lengths if axis in _axes(problem, name)]
        return array.reshape(kept)

    def apply(recipe: Recipe) -> Recipe | None:
        absent = {0, 1} - set(_axes(recipe.problem, "context"))
        idle = order == (0, 1, 2, 3) and not recipe.problem.layout.packed
        # An axis that is not there cannot be misplaced: one entry an order is enough.
        stray = any(order[axis] != axis for axis in absent)
        return None if idle or stray else replace(recipe, shape=shape)

    return apply


def _axes(problem: Problem, name: str) -> tuple[int, ...]:
    lead = tuple("bh".index(axis) for axis in problem.layout.weight_axes)
    return (*lead, 2) if name == "lse" else (*lead, 2, 3)


def _permutations() -> Iterator[Convention]:
    for order in permutations(range(4)):
        words = ", ".join("BHL·"[axis] for axis in order)
        yield Convention(
            name="axes_" + "".join("bhlx"[axis] for axis in order),
            topic="axes",
            meaning=f"the numbers are right, but the file has its axes in the order ({words}), "
            "· being the width, or the keys",
            fix="transpose the result before it is written",
            shows="axes of different length",
            apply=_permuted(order),
            needs=_WHOLE,
            late=True,
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


def _packed(recipe: Recipe) -> Recipe | None:
    if "h" not in recipe.problem.layout.axes:
        return None

    def shape(problem: Problem, name: str, array: Array) -> Array:
        if name != "context":
            return present(problem, name, array)
        batch, _, rows, _ = array.shape
        joined = array.transpose(0, 2, 1, 3).reshape(batch, rows, -1)
        return joined if "b" in problem.layout.axes else joined[0]

    return replace(recipe, shape=shape)


def _axes_of_one(recipe: Recipe) -> Recipe | None:
    """Accept axes of length 1 more or fewer than the answer has."""
    plain, shapes = recipe.shape, recipe.file_shapes

    def shape(problem: Problem, name: str, array: Array) -> Array:
        right = plain(problem, name, array)
        wanted = shapes.get(name, right.shape)
        same = [n for n in right.shape if n != 1] == [n for n in wanted if n != 1]
        return right.reshape(wanted) if same else right

    return replace(recipe, shape=shape)


AXES = (
    Convention(
        name="axes_of_length_1",
        topic="axes",
        meaning="the numbers are right, but the file has axes of length 1 more or fewer",
        fix="squeeze or unsqueeze the result before it is written",
        shows="inputs with an axis of length 1",
        apply=_axes_of_one,
        needs=_WHOLE,
        late=True,
    ),
    Convention(
        name="heads_packed",
        topic="axes",
        meaning="the numbers are right, but the heads lie side by side in the width",
        fix="cut the width into heads before the context is written",
        shows="more than one head",
        apply=_packed,
        needs=_WHOLE,
        late=True,
    ),
    Convention(
        name="weights_averaged",
        topic="axes",
        meaning="the weights are averaged over the heads",
        fix="ask for the weights of each head (nn.MultiheadAttention: average_attn_weights=False)",
        shows="more than one head",
        apply=_average,
        needs=_WHOLE,
        late=True,
    ),
    *_permutations(),
)
