"""A vector that is added to every context, inferred from the numbers of the files."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_context
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.replacing import replace
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["added_vector"]

Array = npt.NDArray[Any]
# Of one row, any context is the right one and a vector.
_LEAST_ROWS = 2
# Batch entries, which may stand for heads, have a vector each where one leaves twice as much.
_LESS = 0.5
# Numbers that are all the same differ by so many times as much as their errors say, at most, or
# by such a share of themselves.
_OF_NOISE, _ALIKE = 1.5, 0.01
_SHOWN = 3


def added_vector(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that a vector is added to every context of a head.

    As weights sum to 1, b added to every value is b added to every context:
    Σ_j w_j (v_j + b) = Σ_j w_j v_j + b.

    Parameters
    ----------
    cases : sequence of Case
        With all batch entries and heads, small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where there is no context, or too few rows of it.
    """
    if not all("context" in case.files and comparable(case) for case in cases):
        return None
    apart = np.concatenate([_apart(case) for case in cases], axis=2)
    rows = np.isfinite(apart[:, :1, :, :1]).sum(axis=2, keepdims=True)
    if rows.sum() < _LEAST_ROWS:
        return None
    vector = np.nansum(apart, axis=(0, 2), keepdims=True) / rows.sum()
    left = _size(apart - vector)
    if apart.shape[1] == 1 and rows.min() >= _LEAST_ROWS:
        own = np.nansum(apart, axis=2, keepdims=True) / rows
        if _size(apart - own) < _LESS * left:
            vector, left = own, _size(apart - own)
    noise = left / math.sqrt(rows.sum() / len(vector))
    alike = vector.std() <= max(_OF_NOISE * noise, _ALIKE * abs(vector.mean()))
    return Convention(
        "added_vector",
        f"about {vector.mean():.3g} is added to every number of the context"
        if alike
        else f"{_told(vector)}, as if to each value: weights sum to 1",
        lambda recipe: _adding(recipe, vector),
        topic=topics.ADDED,
        fix="look at the bias of the value's projection, or of the output's (left out, or added "
        "twice?), and at the zero point of quantized values",
        shows="almost any input",
        needs=frozenset({"batch", "heads"}),
        variant_of=("bv_missing", "output_bias_missing", "output_bias_repeated"),
    )


def _apart(case: Case) -> Array:
    """Return how far a context is off, (B, H, L, E); NaN where a query sees no key."""
    found, right = canonical_file(case, "context"), case.right["context"]
    seeing = right.any(axis=(1, 3), keepdims=True)
    known = np.isfinite(found).all(axis=(1, 3), keepdims=True)
    return np.where(np.logical_and(seeing, known), found - right, np.nan)


def _size(apart: Array) -> float:
    return root_mean_square(apart[np.isfinite(apart)])


def _told(vector: Array) -> str:
    batch, heads, _, width = vector.shape
    each = "head" if heads > 1 else "batch entry" if batch > 1 else None
    what = f"each {each} adds a vector of its own" if each else "a vector is added"
    first = ", ".join(f"{number:.3g}" for number in vector[0, 0, 0, :_SHOWN])
    numbers = f"({first}{', …' if width > _SHOWN else ''})"
    return f"{what} to every context{f', {each} 0 ' if each else ' '}{numbers}"


def _adding(recipe: Recipe, vector: Array) -> Recipe:
    return replace(recipe, behind=(*recipe.behind, of_context(partial(_added, vector))))


def _added(vector: Array, _: Recipe, context: Array) -> Array:
    return np.where(context.any(axis=-1, keepdims=True), context + vector, context)
