"""Numbers that differ from head to head, inferred from the numbers of the files.

Heads do not know of each other: the number of each is narrowed at the same time as those of the
others, by the same evaluations of the whole problem.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.fitted.places import judged, told
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe
    from attncli.referee.topics import Topic

__all__ = ["scale_by_head", "slopes_by_head"]

Array = npt.NDArray[Any]
_STEP = 2.0**0.5
_TRIED = (0.0, *(_STEP**power for power in range(-14, 15)))
_GOLDEN = (math.sqrt(5) - 1) / 2
# Sections until it is clear whether errors fall to nothing, so far at least, and all of them.
_SOON, _FALLEN, _SECTIONS = 12, 0.1, 70
_AS_NEAR = 1.1
_EQUAL = 1e-6


class _Factor(NamedTuple):
    """What each head may multiply.

    Attributes
    ----------
    name, topic, what
        Of the convention, and of the thing.
    put : callable
        The recipe with a factor for each head, (H,).
    variant_of : tuple of str
        Of the convention.
    """

    name: str
    topic: Topic
    what: str
    put: Callable[[Recipe, Array], Recipe]
    variant_of: tuple[str, ...]


def _by_head(factor: _Factor, case: Case) -> Convention | None:
    """Return the convention of the factors with which a case comes nearest to its files.

    Parameters
    ----------
    factor : _Factor
    case : Case
        With all heads, small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where the factors are no better than 1, or all the same.
    """
    name, heads = judged(case), case.recipe.problem.shape[1]
    if name is None or heads == 1 or canonical_file(case, name).shape != case.right[name].shape:
        return None
    distance = partial(_distances, factor, case, name)
    started = time.monotonic()
    distance(np.ones(heads))
    now = time.monotonic()
    # So often about are all heads evaluated.
    if now + (len(_TRIED) + 2 * _SECTIONS + 20) * (now - started) > case.deadline:
        return None
    found = _narrowed(distance, heads)
    if found is None or np.ptp(found) <= _EQUAL * np.abs(found).max():
        return None
    numbers = _short(found, distance)
    if np.ptp(numbers) == 0:
        return None
    thing = factor.what.removeprefix("the ")
    words = told(
        ((f"head {h}", f"{number:.6g}") for h, number in enumerate(numbers) if number != 1), "times"
    )
    return Convention(
        factor.name,
        f"{factor.what} differs from head to head: {words}",
        lambda recipe: factor.put(recipe, numbers),
        topic=factor.topic,
        fix=f"let every head take its own {thing}, as the problem states it",
        shows="more than one head",
        needs=frozenset({"heads"}),
        variant_of=factor.variant_of,
    )


def _distances(factor: _Factor, case: Case, name: str, factors: Array) -> Array:
    """Return how far the file lies from what the factors make, for each head."""
    made = evaluate(factor.put(case.recipe, factors))[name]
    with np.errstate(all="ignore"):
        error = np.sqrt(np.square(canonical_file(case, name) - made).mean(axis=(0, 2, 3)))
    return np.asarray(np.where(np.isfinite(error), error, np.inf))


def _narrowed(distance: Callable[[Array], Array], heads: int) -> Array | None:
    """Return the best factor of each head, by golden sections; None where errors do not fall."""
    before = distance(np.ones(heads))
    tried = np.stack([distance(np.full(heads, multiple)) for multiple in _TRIED])
    best = tried.argmin(axis=0)
    grid = np.array([*_TRIED, _TRIED[-1] * _STEP])
    low, high = grid[np.maximum(best - 1, 0)], grid[best + 1]
    for section in range(_SECTIONS):
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        lower = distance(one) < distance(other)
        low, high = np.where(lower, low, one), np.where(lower, other, high)
        if section == _SOON and (distance((low + high) / 2) > _FALLEN * before.max()).any():
            return None
    return np.asarray((low + high) / 2)


def _short(found: Array, distance: Callable[[Array], Array]) -> Array:
    """Return numbers with as few digits as come about as near; 0 and 1 where these do."""
    most, numbers = _AS_NEAR * distance(found), found.copy()
    open_ = np.ones(len(found), np.bool_)
    rounded = ([float(f"{number:.{digits}g}") for number in found] for digits in range(1, 17))
    for candidate in (np.zeros(len(found)), np.ones(len(found)), *map(np.array, rounded)):
        near = open_ & (distance(candidate) <= most)
        numbers, open_ = np.where(near, candidate, numbers), open_ & ~near
    return numbers


def _slopes_times(recipe: Recipe, factors: Array) -> Recipe:
    alibi = recipe.terms["alibi"] * factors[:, None, None]
    return replace(recipe, terms={**recipe.terms, "alibi": alibi})


def _scale_times(recipe: Recipe, factors: Array) -> Recipe:
    query = widen(recipe.problem.query, np.float64) * factors[:, None, None]
    return vary(recipe, query=query)


_SLOPES = _Factor(
    "slopes_by_head",
    topics.ALIBI,
    "the ALiBi slope",
    _slopes_times,
    variant_of=("another_alibi_factor", "inputs_misplaced"),
)
_SCALE = _Factor(
    "scale_by_head", topics.SCALE, "the scale", _scale_times, variant_of=("another_scale",)
)


def slopes_by_head(case: Case) -> Convention | None:
    """Return the convention that ALiBi slopes are others, in each head by another factor."""
    return _by_head(_SLOPES, case) if "alibi" in case.recipe.terms else None


def scale_by_head(case: Case) -> Convention | None:
    """Return the convention that the scale is another in each head."""
    return _by_head(_SCALE, case) if case.recipe.problem.score == "dot" else None
