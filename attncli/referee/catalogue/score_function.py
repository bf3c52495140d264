"""Mistakes in the score function: what is done to query and key before their product."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Apply, Convention
from attncli.referee.options import shortest
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem

__all__ = ["FUNCTION"]

# What the norms of models add under the root.
_EPSILONS = (0.0, 1e-6, 1e-5)


def _kept(problem: Problem) -> float:
    return problem.scale


def _one(_: Problem) -> float:
    return 1.0


def _of_width(problem: Problem) -> float:
    """Return 1/√D."""
    return 1 / math.sqrt(problem.query.shape[3])


def _instead(
    asked: str, done: str, scale: Callable[[Problem], float] = _kept, **changes: Any
) -> Apply:
    """Make an `apply` with another score function than the one that is asked for."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        # With the scale of the problem itself it has one entry.
        if problem.score != asked or (scale is not _kept and scale(problem) == problem.scale):
            return None
        if problem.query.shape[3] != problem.key.shape[3]:  # which only W brings together
            return None
        return vary(recipe, score=done, scale=scale(problem), **changes)

    return apply


def _normed(recipe: Recipe, *, epsilon: float, scale: Callable[[Problem], float]) -> Recipe | None:
    """Divide query and key by the root of their mean square."""
    problem = recipe.problem
    if problem.score != "dot" or (scale is not _kept and scale(problem) == problem.scale):
        return None
    rows = {side: widen(getattr(problem, side), np.float64) for side in ("query", "key")}
    normed = {
        side: array / np.sqrt(np.maximum(_mean_square(array) + epsilon, np.finfo(np.float64).tiny))
        for side, array in rows.items()
    }
    return vary(recipe, scale=scale(problem), **normed)


def _mean_square(array: Any) -> Any:
    return np.mean(np.square(array), axis=-1, keepdims=True)


def _one_side(side: str) -> Apply:
    """Make an `apply` in which only query or key is divided by its length."""

    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.score != "cosine" or recipe.problem.rope is not None:
            return None
        rows = widen(getattr(recipe.problem, side), np.float64)
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
        return vary(recipe, score="dot", **{side: rows / np.where(length == 0, 1, length)})

    return apply


def _transposed(recipe: Recipe) -> Recipe | None:
    weight = recipe.problem.score_weight
    if weight is None or weight.shape[0] != weight.shape[1]:
        return None
    return vary(recipe, score_weight=np.asarray(weight).T)


def _asking_for(score: str, scale: Callable[[Problem], float]) -> Callable[[Problem], str]:
    """Return how a score function is asked for at a scale."""

    def option(problem: Problem) -> str:
        default = 1.0 if score == "cosine" else _of_width(problem)
        number = scale(problem)
        # What is given already stays given.
        same = number == default and problem.scale in (default, number)
        return f"--score {score}" + ("" if same else f" --scale {shortest(number)}")

    return option


# Each states its scale, so no mistake of the scale is reported beside it.
_function = partial(Convention, topic=topics.SCORE_FUNCTION, shows="almost any input")


def _norms() -> Iterator[Convention]:
    before: list[str] = []
    for scale, scale_name, scale_words in (
        (_kept, "", ""),
        (_one, "_unscaled", ", and their product is not scaled"),
    ):
        for epsilon in _EPSILONS:
            size = f"{epsilon:.0e}".replace("e-0", "e-") if epsilon else ""
            words = f", with {size} under the root" if size else ""
            name = f"query_key_normed{scale_name}{size and '_' + size.replace('-', '_')}"
            yield _function(
                name,
                "query and key are divided by the root of their mean square, as models with an "
                f"RMSNorm of queries and keys do{words}{scale_words}",
                partial(_normed, epsilon=epsilon, scale=scale),
                fix="multiply query and key as they are, or give them normalised",
                variant_of=tuple(before),
            )
            before.append(name)


FUNCTION = (
    *(
        _function(
            f"cosine_unasked{ending}",
            f"query and key are divided by their lengths: the scores are cosines{words}",
            _instead("dot", "cosine", scale),
            fix="multiply query and key as they are, or state the score cosine",
            option=_asking_for("cosine", scale),
        )
        for scale, ending, words in (
            (_kept, "", ""),
            (_one, "_unscaled", ", which are not scaled"),
        )
    ),
    *_norms(),
    *(
        _function(
            f"dot_for_cosine{ending}",
            "query and key are not divided by their lengths: the scores are "
            f"{words}dot products, not cosines",
            _instead("cosine", "dot", scale),
            fix="divide query and key by their lengths before the product",
            option=_asking_for("dot", scale),
        )
        for scale, ending, words in ((_kept, "", ""), (_of_width, "_scaled", "scaled "))
    ),
    *(
        _function(
            f"{side}_alone_divided",
            f"only the {side} is divided by its length",
            _one_side(side),
            fix="divide query and key, each by its own length, before the product",
        )
        for side in ("query", "key")
    ),
    *(
        _function(
            f"score_weight_missing{ending}",
            f"the matrix W between query and key is left out{words}",
            _instead("general", "dot", scale, score_weight=None),
            fix="multiply q · W · k",
            shows="W ≠ 1",
        )
        for scale, ending, words in (
            (_kept, "", ""),
            (_of_width, "_scaled", ", and the product is divided by √D"),
        )
    ),
    _function(
        "score_weight_transposed",
        "the matrix W between query and key is transposed: k · W · q",
        _transposed,
        fix="multiply q · W · k: rows of W belong to the query",
        shows="a W that is not symmetric",
    ),
)
