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

from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention, with_term
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.places import judged, told
from attncli.referee.options import shortest
from attncli.referee.recipe import distance, vary

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
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
# Numbers that differ by less are one, read off files that show no more digits of it.
_EQUAL = 2e-3


class _ByHead(NamedTuple):
    """What each head may have another number of.

    Attributes
    ----------
    name, topic, fix
        Of the convention.
    meaning : callable
        The numbers of all heads to the meaning of the convention.
    put : callable
        The recipe with a number for each head, (H,).
    unstated : bool
        The problem states none, which is the number 0; otherwise numbers are factors of its own.
    option, variant_of
        Of the convention; the numbers of all heads to its option.
    """

    name: str
    topic: Topic
    fix: str
    meaning: Callable[[Array], str]
    put: Callable[[Recipe, Array], Recipe]
    unstated: bool = False
    option: Callable[[Array, Problem], str] = lambda *_: ""
    variant_of: tuple[str, ...] = ()


def _by_head(by_head: _ByHead, case: Case) -> Convention | None:
    """Return the convention of the numbers with which a case comes nearest to its files."""
    name, heads = judged(case, least=1), case.recipe.problem.shape[1]
    alone = heads == 1 and not by_head.unstated
    if name is None or alone or case.canonical(name).shape != case.right[name].shape:
        return None
    far = partial(_distances, by_head, case, name)
    started = time.monotonic()
    before = far(np.full(heads, 0.0 if by_head.unstated else 1.0))
    now = time.monotonic()
    # So often about are all heads evaluated.
    if now + (len(_TRIED) + 2 * _SECTIONS + 20) * (now - started) > case.deadline:
        return None
    found = _narrowed(far, before)
    if found is None:
        return None
    numbers = _short(found, far)
    # One that is the same for all heads has another name, unless there should be none.
    if not by_head.unstated and np.ptp(numbers) <= _EQUAL * np.abs(numbers).max():
        return None
    return Convention(
        by_head.name,
        by_head.meaning(numbers),
        lambda recipe: by_head.put(recipe, numbers),
        topic=by_head.topic,
        fix=by_head.fix,
        shows="more than one head",
        option=partial(by_head.option, numbers),
        needs=frozenset({"heads"}),
        variant_of=by_head.variant_of,
    )


def _distances(by_head: _ByHead, case: Case, name: str, factors: Array) -> Array:
    """Return how far the file lies from what the factors make, for each head."""
    made = evaluate(by_head.put(case.recipe, factors))[name]
    with np.errstate(all="ignore"):
        error = np.sqrt(np.square(case.canonical(name) - made).mean(axis=(0, 2, 3)))
    return np.asarray(np.where(np.isfinite(error), error, np.inf))


def _narrowed(far: Callable[[Array], Array], before: Array) -> Array | None:
    """Return the best factor of each head, by golden sections; None where errors do not fall."""
    tried = np.stack([far(np.full(len(before), multiple)) for multiple in _TRIED])
    best = tried.argmin(axis=0)
    grid = np.array([*_TRIED, _TRIED[-1] * _STEP])
    low, high = grid[np.maximum(best - 1, 0)], grid[best + 1]
    for section in range(_SECTIONS):
        one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        lower = far(one) < far(other)
        low, high = np.where(lower, low, one), np.where(lower, other, high)
        if section == _SOON and (far((low + high) / 2) > _FALLEN * before.max()).any():
            return None
    return np.asarray((low + high) / 2)


def _short(found: Array, far: Callable[[Array], Array]) -> Array:
    """Return numbers with as few digits as come about as near; 0 and 1 where these do."""
    most, numbers = _AS_NEAR * far(found), found.copy()
    open_ = np.ones(len(found), np.bool_)
    rounded = ([float(f"{number:.{digits}g}") for number in found] for digits in range(1, 17))
    for candidate in (np.zeros(len(found)), np.ones(len(found)), *map(np.array, rounded)):
        near = open_ & (far(candidate) <= most)
        numbers, open_ = np.where(near, candidate, numbers), open_ & ~near
    return numbers


def _differs(what: str) -> Callable[[Array], str]:
    def meaning(numbers: Array) -> str:
        pairs = ((f"head {h}", f"{one:.6g}") for h, one in enumerate(numbers) if one != 1)
        return f"{what} differs from head to head: {told(pairs, 'times')}"

    return meaning


def _slopes_times(recipe: Recipe, factors: Array) -> Recipe:
    alibi = recipe.terms["alibi"] * factors[:, None, None]
    return with_term(recipe, "alibi", alibi)


def _scale_times(recipe: Recipe, factors: Array) -> Recipe:
    query = widen(recipe.problem.query, np.float64) * factors[:, None, None]
    return vary(recipe, query=query)


def _with_slopes(recipe: Recipe, slopes: Array) -> Recipe:
    alibi = -slopes[:, None, None] * np.abs(distance(recipe.problem))
    return with_term(recipe, "alibi", alibi)


def _unstated_slopes(slopes: Array) -> str:
    pairs = ((f"head {h}", f"{slope:.6g}") for h, slope in enumerate(slopes))
    return f"ALiBi is applied, but the problem states none: {told(pairs, 'has the slope')}"


_SLOPES = _ByHead(
    name="slopes_by_head",
    topic=topics.ALIBI,
    fix="let every head take its own ALiBi slope, as the problem states it",
    meaning=_differs("the ALiBi slope"),
    put=_slopes_times,
    variant_of=("another_alibi_factor", "inputs_misplaced"),
)
_SLOPES_UNASKED = _ByHead(
    name="alibi_unasked_with_other_slopes",
    topic=topics.ALIBI,
    fix="leave ALiBi out, or state its slopes: alibi_slopes (--alibi-slopes)",
    meaning=_unstated_slopes,
    put=_with_slopes,
    unstated=True,
    option=lambda slopes, _: f"--alibi-slopes {','.join(map(shortest, slopes))}",
    variant_of=("window_unasked", "another_window"),  # what steep slopes come to
)
_SCALE = _ByHead(
    name="scale_by_head",
    topic=topics.SCALE,
    fix="let every head take its own scale, as the problem states it",
    meaning=_differs("the scale"),
    put=_scale_times,
    variant_of=("another_scale",),
)


def slopes_by_head(case: Case) -> Convention | None:
    """Return the convention that ALiBi slopes are others, or stated nowhere, in each head."""
    return _by_head(_SLOPES if "alibi" in case.recipe.terms else _SLOPES_UNASKED, case)


def scale_by_head(case: Case) -> Convention | None:
    """Return the convention that the scale is another in each head."""
    return _by_head(_SCALE, case) if case.recipe.problem.score == "dot" else None
