"""Mistakes in the scale of the product."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.problem.problem import default_scale
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.options import scaled
from attncli.referee.recipe import Recipe, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

__all__ = ["SCALES"]


def _width(problem: Problem) -> int:
    return int(problem.query.shape[3])


def _embedding(problem: Problem) -> int:
    return int(problem.query.shape[1]) * _width(problem)


def _scale(
    name: str,
    scale: Callable[[Problem], float],
    meaning: str,
    *,
    shows: str = "almost any input",
    fix: str = "multiply Q·Kᵀ by 1/√D, D being the width of one head",
    option: Callable[[Problem], str] | None = None,
) -> Convention:
    """Make a convention that only has another factor."""

    def apply(recipe: Recipe) -> Recipe | None:
        # From the whole problem: a slice of one head still belongs to the embedding.
        factor = scale(recipe.whole)
        if not math.isfinite(factor):  # of a scale at the edge of the range: nobody's mistake
            return None
        same = math.isclose(factor, recipe.problem.scale, rel_tol=1e-12)
        return None if same else vary(recipe, scale=factor)

    return Convention(
        name=name,
        topic=topics.SCALE,
        meaning=meaning,
        fix=fix,
        shows=shows,
        apply=apply,
        option=option or (lambda problem: scaled(scale(problem), problem)),
    )


def _after_softmax(recipe: Recipe) -> Recipe | None:
    factor = recipe.problem.scale
    if factor == 1:
        return None
    after = (*recipe.after, lambda _, weights: weights * factor)
    return replace(vary(recipe, scale=1.0), after=after)


def _twice(problem: Problem) -> float:
    # With the usual scale this is 1/D, which has its own entry.
    twice = problem.scale * problem.scale
    usual = math.isclose(twice, 1 / _width(problem), rel_tol=1e-12)
    return problem.scale if usual else twice


def _unless_width(problem: Problem, length: int) -> float:
    # 1/√D has its own entries.
    return problem.scale if length == _width(problem) else 1 / math.sqrt(length)


SCALES = (
    _scale("unscaled", lambda _: 1.0, "the scores are not scaled: 1/√D is missing"),
    _scale(
        "scores_zero",
        lambda _: 0.0,
        "the product of query and key is lost: all scores are 0, and all keys that are seen "
        "get the same weight",
        fix="check where the scores are written and where they are read",
        shows="keys of different scores",
    ),
    _scale(
        "scores_negated",
        lambda p: -p.scale,
        "the scores have the wrong sign: keys get less weight, the more they are like the query",
        fix="take the minus sign off the scores",
        shows="keys of different scores",
    ),
    _scale(
        "one_over_width",
        lambda p: 1 / _width(p),
        "the scores are divided by D, not by √D (or by √D twice, in query and key)",
    ),
    _scale(
        "embedding_scale",
        lambda p: 1 / math.sqrt(_embedding(p)) if p.shape[1] > 1 else p.scale,
        "the scale is 1/√(H·D), of the whole embedding instead of one head",
        shows="more than one head",
    ),
    _scale(
        "scale_ignored",
        lambda p: default_scale(p.score, _width(p)),
        "the scale that was given is ignored",
        shows="a scale other than 1/√D",
        fix="multiply Q·Kᵀ by the scale that the problem states",
        option=lambda p: f"leave {'--plain or ' if p.scale == 1 else ''}--scale out",
    ),
    _scale(
        "scale_inverted",
        lambda p: 1 / p.scale if p.scale else 1.0,
        "√D is in the wrong place: the scores are multiplied by it, not divided",
    ),
    _scale(
        "scale_of_one_side",
        lambda p: math.copysign(math.sqrt(abs(p.scale)), p.scale),
        "the scale is split between query and key (D to the power of −1/4 each), and one of the "
        "two is left out",
    ),
    _scale("scale_twice", _twice, "the scale is applied twice", fix="apply the scale once"),
    _scale(
        "length_scale",
        lambda p: _unless_width(p, p.key.shape[2]),
        "the scale is 1/√S, of the number of keys instead of the width",
        shows="S ≠ D",
    ),
    _scale(
        "value_scale",
        lambda p: _unless_width(p, _width(p) if p.value is None else p.value.shape[3]),
        "the scale is 1/√E, of the width of the values instead of the keys",
        shows="E ≠ D",
    ),
    _scale(
        "padded_width_scale",
        lambda p: _unless_width(p, 2 ** math.ceil(math.log2(_width(p)))),
        "the scale is that of the width rounded up to a power of 2",
        shows="a width that is not a power of 2",
    ),
    _scale(
        "log2e_without_exp2",
        lambda p: p.scale / math.log(2),
        "the scores are multiplied by log2(e), as for exp2, but then exp is used",
        fix="use exp2, or leave log2(e) out",
    ),
    Convention(
        name="scale_after_softmax",
        topic=topics.SCALE,
        meaning="√D is in the wrong place: the weights are divided by it, after the softmax",
        fix="scale the scores before the softmax, and do not scale the weights",
        shows="almost any input",
        apply=_after_softmax,
        variant_of=("unscaled",),  # in what comes before the weights
    ),
)
