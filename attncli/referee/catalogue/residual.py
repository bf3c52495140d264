"""A residual connection in the file, which belongs after attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import sinusoidal
from attncli.referee import topics
from attncli.referee.catalogue.helpers import of_context
from attncli.referee.convention import Apply, Convention, Need, then
from attncli.referee.recipe import Recipe
from attncli.referee.stages import shared

__all__ = ["RESIDUAL", "with_embeddings"]

Array = npt.NDArray[Any]
Source = Callable[[Recipe], Array | None]

_ALL: frozenset[Need] = frozenset({"batch", "heads", "rows"})


def _query(recipe: Recipe) -> Array | None:
    return widen(recipe.problem.query, np.float64)


def _value(recipe: Recipe) -> Array | None:
    value = recipe.problem.value
    return None if value is None else shared(recipe.problem, widen(value, np.float64))


def _embeddings(recipe: Recipe) -> Array | None:
    """Return the embeddings as they were projected, (B, 1, L, W)."""
    given = recipe.projected
    if given is None:
        return None
    x = widen(given["x"], np.float64)
    if "positions" in given:
        x = x + sinusoidal(*x.shape[-2:])
    return x.reshape(-1, 1, *x.shape[-2:])


def _plus(source: Source) -> Apply:
    """Make an `apply` that adds what attention began with to what it gives."""

    def apply(recipe: Recipe) -> Recipe | None:
        added = source(recipe)
        if added is None:
            return None

        def add(_: Recipe, context: Array) -> Array:
            like = _shaped(added, context.shape)
            return context if like is None else context + like

        return then(recipe, behind=of_context(add))

    return apply


def with_embeddings(recipe: Recipe) -> Recipe | None:
    """Return the recipe that adds the embeddings to the context; None where there are none."""
    return _plus(_embeddings)(recipe)


def _shaped(array: Array, shape: tuple[int, ...]) -> Array | None:
    """Return (B or 1, H or 1, L, ·) cut into as many heads as a shape has; None if it cannot be."""
    batch, heads, rows, width = shape
    joined = array.transpose(0, 2, 1, 3).reshape(len(array), array.shape[2], -1)
    if joined.shape[1:] != (rows, heads * width) or len(joined) not in (1, batch):
        return None
    return joined.reshape(-1, rows, heads, width).transpose(0, 2, 1, 3)


def _residual(name: str, meaning: str, source: Source) -> Convention:
    return Convention(
        name=name,
        topic=topics.RESIDUAL,
        meaning=meaning,
        fix="compare the output of attention, before the residual connection",
        shows="a context as wide as what is added",
        apply=_plus(source),
        needs=_ALL,
        late=True,
    )


RESIDUAL = (
    _residual(
        "embeddings_added",
        "the embeddings are added to the context: a residual connection is in the file",
        _embeddings,
    ),
    _residual(
        "value_added",
        "the value is added to the context: a residual connection is in the file",
        _value,
    ),
    _residual(
        "query_added",
        "the query is added to the context: a residual connection is in the file",
        _query,
    ),
)
