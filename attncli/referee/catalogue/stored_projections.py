"""Projections that are stored in fewer bits than they are given in, or hold the scale."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.catalogue.helpers import Given, made_again, of_embeddings
from attncli.referee.recipe import Recipe, vary
from attncli.referee.rounding import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.referee.convention import Apply, Convention

__all__ = ["STORED_PROJECTIONS"]

Array = npt.NDArray[Any]
_WEIGHTS = ("wq", "wk", "wv")
_SINGLE = PRECISIONS["float32"].largest


def _rounded_to(name: str, weight: Array) -> Array:
    with np.errstate(over="ignore"):
        return PRECISIONS[name].rounded(weight.astype(np.float32)).astype(np.float64)


def _in_int8(axis: int | None, weight: Array) -> Array:
    """Round to 255 steps between the largest magnitude of a column, or of all, and its negative."""
    step = np.abs(weight).max(axis=axis, keepdims=True) / 127
    step = np.where(step == 0, 1, step)
    rounded: Array = np.rint(weight / step) * step
    return rounded


def _stored(rounded: Callable[[Array], Array]) -> Apply:
    """Make an `apply` that projects with rounded weights; in float32, or it would not show."""

    def change(given: Given) -> Given | None:
        wide = {name: widen(given[name], np.float64) for name in _WEIGHTS if name in given}
        made = {name: rounded(weight) for name, weight in wide.items()}
        if all(np.array_equal(made[name], wide[name]) for name in made):
            return None
        return {**given, **made}

    again = made_again(change)
    return lambda recipe: again(recipe) if recipe.largest >= _SINGLE else None


def _folded(*, bias: bool, weight: bool) -> Apply:
    """Make an `apply` whose scale is a factor of wq or of bq, but not of both.

    Whoever folds it into wq scales no scores; whoever folds it into bq alone does that as well.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        scale = recipe.problem.scale
        given = recipe.projected
        if given is None or "bq" not in given or scale == 1:
            return None
        names = [name for name, times in (("wq", weight), ("bq", bias)) if times and name in given]
        scaled = {name: widen(given[name], np.float64) * scale for name in names}
        made = made_again(lambda given: {**given, **scaled})(recipe)
        return vary(made, scale=1.0) if made is not None and weight else made

    return apply


def _formats() -> Iterator[tuple[str, str, Callable[[Array], Array]]]:
    for name in ("bfloat16", "float16"):
        yield name, f"rounded to {name}", partial(_rounded_to, name)
    yield "int8_by_column", "quantized to int8, each column with a scale", partial(_in_int8, 0)
    yield "int8", "quantized to int8, each matrix with one scale", partial(_in_int8, None)


STORED_PROJECTIONS: tuple[Convention, ...] = (
    *(
        of_embeddings(
            f"projections_in_{name}",
            topics.STORED_INPUTS,
            f"wq, wk and wv are {words}, and nothing else is",
            "give check the projections as they are when they are read, or judge by --rtol and "
            "--atol",
            _stored(rounded),
            shows="projections with more bits",
        )
        for name, words, rounded in _formats()
    ),
    of_embeddings(
        "scale_in_wq_not_in_bq",
        topics.FOLDED_SCALE,
        "the scale is a factor of wq, but not of bq: the bias of the queries is not scaled",
        "multiply bq with the scale as well, or scale the scores",
        _folded(bias=False, weight=True),
        shows="a bias of the queries",
    ),
    of_embeddings(
        "scale_in_bq_too",
        topics.FOLDED_SCALE,
        "bq is multiplied with the scale, and the scores are scaled as well",
        "scale the scores alone, or multiply wq and bq with the scale and scale nothing else",
        _folded(bias=True, weight=False),
        shows="a bias of the queries",
    ),
)
