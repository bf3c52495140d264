"""A vector that is added to every context, inferred from the numbers of the files."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_context
from attncli.referee.convention import Convention, then
from attncli.referee.stages import shared
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["added_vector"]

Array = npt.NDArray[Any]
# Of one row, or of rows that are all alike, any context is the right one and a vector: right
# contexts have to differ by so many times as much as what a vector leaves.
_LEAST_ROWS, _LEAST_SPREAD = 2, 30.0
# Batch entries have a vector each where one for all leaves twice as much.
_LESS = 0.5
# Numbers that are all the same differ by so many times as much as their errors say, at most, or
# by such a share of themselves.
_OF_NOISE, _ALIKE = 1.5, 0.01
_SHOWN = 3


def added_vector(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that a vector is added to every context of a head.

    As weights sum to 1, b added to every value is b added to every context:
    Σ_j w_j (v_j + b) = Σ_j w_j v_j + b.
    """
    if not all("context" in case.files and case.comparable for case in cases):
        return None
    apart = np.concatenate([_apart(case) for case in cases], axis=2)
    rows = np.isfinite(apart[:, :1, :, :1]).sum(axis=2, keepdims=True)
    if rows.sum() < _LEAST_ROWS:
        return None
    vector = np.nansum(apart, axis=(0, 2), keepdims=True) / rows.sum()
    left = _size(apart - vector)
    # Entries that were projected alike have no biases of their own.
    if cases[0].recipe.projected is None and rows.min() >= _LEAST_ROWS:
        own = np.nansum(apart, axis=2, keepdims=True) / rows
        if _size(apart - own) < _LESS * left:
            vector, left = own, _size(apart - own)
    if _spread(cases, axes=(0, 2) if len(vector) == 1 else (2,)) < _LEAST_SPREAD * left:
        return None
    noise = left / math.sqrt(rows.sum() / len(vector))
    return Convention(
        "added_vector",
        _of_values(cases[0].recipe.problem, vector, noise) or _told(vector, noise),
        lambda recipe: _adding(recipe, vector),
        topic=topics.ADDED,
        fix="look at the bias of the value's projection, or of the output's (left out, or added "
        "twice?), and at the zero point of quantized values",
        shows="almost any input",
        needs=frozenset({"batch", "heads"}),
        variant_of=("another_factor", "bv_missing", "output_bias_missing", "output_bias_repeated"),
    )


def _apart(case: Case) -> Array:
    """Return how far a context is off, (B, H, L, E); NaN where a query sees no key."""
    found, right = case.canonical("context"), case.right["context"]
    seeing = right.any(axis=(1, 3), keepdims=True)
    known = np.isfinite(found).all(axis=(1, 3), keepdims=True)
    return np.where(np.logical_and(seeing, known), found - right, np.nan)


def _spread(cases: Sequence[Case], axes: tuple[int, ...]) -> float:
    """Return how far the right contexts that one vector is added to lie apart."""
    right = np.concatenate([case.right["context"] for case in cases], axis=2)
    return root_mean_square(right - right.mean(axis=axes, keepdims=True))


def _size(apart: Array) -> float:
    return root_mean_square(apart[np.isfinite(apart)])


def _alike(apart: float, noise: float, size: float) -> bool:
    """Return whether numbers differ no more than by their errors, or hardly beside their size."""
    return apart <= max(_OF_NOISE * noise, _ALIKE * size)


def _of_values(problem: Problem, vector: Array, noise: float) -> str | None:
    """Say which value it is that is added, or the mean of all; None if it is none of them."""
    if problem.value is None or problem.output is not None:
        return None
    value = shared(problem, widen(problem.value, np.float64))
    for name, one in (
        ("the first value", value[:, :, :1]),
        ("the last value", value[:, :, -1:]),
        ("the mean of the values", value.mean(axis=2, keepdims=True)),
    ):
        for done, added in (("added to", one), ("subtracted from", -one)):
            if _alike(_size(vector - added), noise, _size(added)):
                return f"{name} is {done} every context"
    return None


def _told(vector: Array, noise: float) -> str:
    """Say what is added: one number where all are alike, or a vector."""
    if _alike(vector.std(), noise, abs(vector.mean())):
        return f"about {vector.mean():.3g} is added to every number of the context"
    batch, heads, _, width = vector.shape
    several = [name for name, count in (("head", heads), ("batch entry", batch)) if count > 1]
    whose = " of ".join(f"each {name}" for name in several)
    where = " of ".join(f"{name} 0" for name in several)
    what = f"{whose} adds a vector of its own" if several else "a vector is added"
    first = ", ".join(f"{number:.3g}" for number in vector[0, 0, 0, :_SHOWN])
    numbers = f"({first}{', …' if width > _SHOWN else ''})"
    place = f", {where}" if several else ""
    return f"{what} to every context{place} {numbers}, as if to each value: weights sum to 1"


def _adding(recipe: Recipe, vector: Array) -> Recipe:
    return then(recipe, behind=of_context(partial(_added, vector)))


def _added(vector: Array, _: Recipe, context: Array) -> Array:
    return np.where(context.any(axis=-1, keepdims=True), context + vector, context)
