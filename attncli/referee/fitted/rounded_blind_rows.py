"""Queries that see no key, where a large negative number was added to all of their scores.

It cancels in the softmax, but for the digits that scores lose beside it.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.blind_rows import unmasked
from attncli.referee.convention import Convention, without
from attncli.referee.fitted.another_number import distance_of
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["blind_rows_rounded"]

Array = npt.NDArray[Any]
# Than without rounding.
_NEARER = 0.5
_NUMBERS = (1e4, 1e5, 1e6, 1e9)
_DTYPES: tuple[np.dtype[Any], ...] = (np.dtype(np.float64), np.dtype(np.float32))


class _Added(NamedTuple):
    """What was added to hide a key.

    Attributes
    ----------
    number : float
        Subtracted from the score.
    dtype : dtype
        In which the two were added.
    by_each : bool
        By each rule that hides the key, not by the mask that joins them.
    """

    number: float
    dtype: np.dtype[Any]
    by_each: bool


def blind_rows_rounded(case: Case) -> Convention | None:
    """Return the convention of what was added to the scores of queries that see no key."""
    rules = without(case.recipe, "query_lengths").rules
    seen = without(case.recipe, "query_lengths").seen
    if not case.comparable or seen.any(axis=-1).all():
        return None
    each = (False, True) if len(rules) > 1 else (False,)
    ways = product(_NUMBERS, _DTYPES, each)
    tried = [_Added(number, dtype, by_each) for number, dtype, by_each in ways]
    distances = [distance_of(case, _computed(case.recipe, one)) for one in tried]
    best = tried[int(np.argmin(distances))]
    # Where the numbers lose no digits, it does not matter which was added.
    exact = best._replace(number=_NUMBERS[0], dtype=_DTYPES[0])
    if not min(distances) < _NEARER * distances[tried.index(exact)]:
        return None
    adds = "each rule adds" if best.by_each else "the mask adds"
    exponent = f"{best.number:.0e}".replace("e+0", "e")
    return Convention(
        "blind_rows_rounded",
        f"a query that sees no key is computed as if nothing were hidden: {adds} −{exponent} to "
        f"its scores, which cancels but for the digits that they lose beside it in {best.dtype}",
        lambda recipe: _computed(recipe, best),
        topic=topics.BLIND_ROWS_ROUNDED,
        fix="write −inf into scores, and zeros where a query sees no key",
        shows="a query that sees no key",
        variant_of=("blind_rows_unmasked", "hidden_finite"),
        choice=math.log2(len(tried)),
    )


def _computed(recipe: Recipe, added: _Added) -> Recipe:
    """Return the recipe in which a number is added to the scores of queries that see no key."""
    real = without(recipe, "query_lengths")
    blind = ~real.seen.any(axis=-1, keepdims=True)
    shown, dtype = unmasked(recipe), added.dtype
    times: Array = np.ones((1, 1, 1, 1), dtype)
    if added.by_each:
        times = sum((~rule).astype(dtype) for rule in real.rules.values()) + np.zeros(1, dtype)

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        lower = scores.astype(dtype) - dtype.type(added.number) * times
        return inner(recipe, np.where(blind, lower.astype(scores.dtype), scores))

    inner = shown.softmax
    return replace(shown, softmax=softmax)
