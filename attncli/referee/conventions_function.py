"""Mistakes in the score function: what is done to query and key before their product."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.dtypes import widen
from attncli.referee.convention import Convention
from attncli.referee.recipe import Recipe, vary

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["FUNCTION"]

Apply = Callable[[Recipe], Recipe | None]


def _cosine_for_dot(recipe: Recipe) -> Recipe | None:
    return vary(recipe, score="cosine") if recipe.problem.score == "dot" else None


def _root_mean_square_for_dot(recipe: Recipe) -> Recipe | None:
    """Divide query and key by the root of their mean square: by their length, times √D."""
    problem = recipe.problem
    if problem.score != "dot":
        return None
    return vary(recipe, score="cosine", scale=problem.scale * problem.query.shape[3])


def _dot_for_cosine(recipe: Recipe) -> Recipe | None:
    return vary(recipe, score="dot") if recipe.problem.score == "cosine" else None


def _one_side(side: str) -> Apply:
    """Make an `apply` in which query or key alone is divided by its length."""

    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.problem.score != "cosine" or recipe.problem.rope is not None:
            return None
        rows = widen(getattr(recipe.problem, side), np.float64)
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
        return vary(recipe, score="dot", **{side: rows / np.where(length == 0, 1, length)})

    return apply


def _dot_for_general(recipe: Recipe) -> Recipe | None:
    if recipe.problem.score != "general":
        return None
    return vary(recipe, score="dot", score_weight=None)


def _transposed(recipe: Recipe) -> Recipe | None:
    weight = recipe.problem.score_weight
    return None if weight is None else vary(recipe, score_weight=np.asarray(weight).T)


def _cosine_option(problem: Problem) -> str:
    return f"--score cosine --scale {problem.scale!r}"


def _function(name: str, meaning: str, fix: str, apply: Apply, **more: Any) -> Convention:
    shows = more.pop("shows", "nearly any inputs")
    return Convention(
        name=name,
        topic="score function",
        meaning=meaning,
        fix=fix,
        shows=shows,
        apply=apply,
        **more,
    )


FUNCTION = (
    _function(
        "cosine_unasked",
        "query and key are divided by their lengths: the scores are cosines",
        "multiply query and key as they are, or state the score cosine",
        _cosine_for_dot,
        option=_cosine_option,
    ),
    _function(
        "query_key_normed",
        "query and key are divided by the root of their mean square, as models with an RMSNorm of "
        "queries and keys do",
        "multiply query and key as they are, or give them normalised",
        _root_mean_square_for_dot,
    ),
    _function(
        "lengths_not_divided",
        "query and key are not divided by their lengths: the scores are dot products, not cosines",
        "divide query and key by their lengths before the product",
        _dot_for_cosine,
        option=lambda _: "--score dot",
    ),
    *(
        _function(
            f"{side}_alone_divided",
            f"the {side} alone is divided by its length",
            "divide query and key, each by its own length, before the product",
            _one_side(side),
        )
        for side in ("query", "key")
    ),
    _function(
        "score_weight_missing",
        "the matrix W between query and key is left out",
        "multiply q · W · k",
        _dot_for_general,
        shows="W ≠ 1",
    ),
    _function(
        "score_weight_transposed",
        "the matrix W between query and key is transposed: k · W · q",
        "multiply q · W · k: rows of W belong to the query",
        _transposed,
        shows="a W that is not symmetric",
    ),
)
