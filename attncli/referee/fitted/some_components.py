"""Scores of only some components of query and key, inferred from the numbers of the files."""

from __future__ import annotations

import math
import time
from itertools import product
from typing import TYPE_CHECKING

from attncli.engine.operands import rotated
from attncli.numerics.dtypes import widen
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import distance_of
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
    """Return the convention that scores are made of the first or the last components alone."""
    width = case.recipe.problem.query.shape[3]
    if not case.comparable or case.recipe.problem.score not in _COMPARED:
        return None
    step = max(1, width // _STEPS)
    # A loop that ends too soon, or begins too late, leaves out one.
    counts = sorted({*range(step, width, step), width - 1} - {0})
    parts = [slice(0, count) for count in counts]
    parts += [slice(width - count, width) for count in counts]
    scaled = (False, True) if _is_of_width(case.recipe) else (False,)
    nearest, best = distance_of(case, case.recipe), None
    for part, with_scale in product(parts, scaled):
        if time.monotonic() > case.deadline:
            return None
        distance = distance_of(case, _of(case.recipe, part, with_scale=with_scale))
        if distance < nearest:
            nearest, best = distance, (part, with_scale)
    if best is None:
        return None
    part, with_scale = best
    count = part.stop - part.start
    which = f"{'first' if part.start == 0 else 'last'} {count}"
    return Convention(
        "some_components",
        f"the scores are made of the {which} of the {width} components of query and key alone"
        f"{f', and scaled by 1/√{count}' if with_scale else ''}",
        lambda recipe: _of(recipe, part, with_scale=with_scale),
        topic=topics.SCORE_FUNCTION,
        fix="add up the products of all D components, of every block and every thread",
        shows="components that are not 0",
    )


def _is_of_width(recipe: Recipe) -> bool:
    """Return whether the scale is 1/√D."""
    problem = recipe.problem
    return problem.score == "dot" and math.isclose(problem.scale, problem.query.shape[3] ** -0.5)


def _of(recipe: Recipe, part: slice, *, with_scale: bool) -> Recipe:
    """Return the recipe with some components of query and key, which keep their rotation."""
    turned = rotated(recipe.problem)
    query, key = (widen(rows, turned.query.dtype)[..., part] for rows in (turned.query, turned.key))
    scale = query.shape[3] ** -0.5 if with_scale else recipe.problem.scale
    return vary(recipe, rope=None, query=query, key=key, scale=scale)
