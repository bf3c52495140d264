"""Scores of only some components of query and key, inferred from the numbers of the files."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from attncli.dtypes import widen
from attncli.engine.operands import rotated
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import comparable, distance_of
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Recipe

__all__ = ["some_components"]

# More components are tried in so many steps.
_STEPS = 32
# W of the others has as many rows as there are components.
_COMPARED = ("dot", "cosine")


def some_components(case: Case) -> Convention | None:
    """Return the convention that scores are made of the first or the last components alone.

    Parameters
    ----------
    case : Case
        Small enough to be evaluated.

    Returns
    -------
    Convention or None
        None where no part of them comes nearer to the files than all.
    """
    width = case.recipe.problem.query.shape[3]
    if not comparable(case) or case.recipe.problem.score not in _COMPARED:
        return None
    step = max(1, width // _STEPS)
    parts = [slice(0, end) for end in range(step, width, step)]
    parts += [slice(start, width) for start in range(step, width, step)]
    nearest, best = distance_of(case, case.recipe), None
    for part in parts:
        if time.monotonic() > case.deadline:
            return None
        distance = distance_of(case, _of(case.recipe, part))
        if distance < nearest:
            nearest, best = distance, part
    if best is None:
        return None
    which = f"first {best.stop}" if best.start == 0 else f"last {width - best.start}"
    return Convention(
        "some_components",
        f"the scores are made of the {which} of the {width} components of query and key alone",
        lambda recipe: _of(recipe, best),
        topic=topics.SCORE_FUNCTION,
        fix="add up the products of all D components, of every block and every thread",
        shows="components that are not 0",
    )


def _of(recipe: Recipe, part: slice) -> Recipe:
    """Return the recipe with some components of query and key, which keep their rotation."""
    turned = rotated(recipe.problem)
    query, key = (widen(rows, turned.query.dtype)[..., part] for rows in (turned.query, turned.key))
    return vary(recipe, rope=None, query=query, key=key)
