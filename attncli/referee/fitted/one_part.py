"""A file that holds one batch entry, or one head, where the problem has several."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import places
from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.replacing import replace
from attncli.referee.stages import present
from attncli.referee.verdict import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case

__all__ = ["one_part"]

Array = npt.NDArray[Any]
# A batch entry and a head; None for all.
Pick = tuple[int | None, int | None]


def one_part(case: Case) -> Convention | None:
    """Return the convention of the part of the answer that comes nearest to the files."""
    if not case.whole:
        return None
    problem = case.recipe.problem
    distances = {pick: _distance(case, problem, pick) for pick in _picks(problem)}
    best = min(distances, key=lambda pick: distances[pick], default=(None, None))
    if not math.isfinite(distances.get(best, math.inf)):
        return None
    words = ", ".join(places(dict(zip(("batch", "head"), best, strict=True))))
    return Convention(
        name="one_part",
        topic=topics.AXES,
        meaning=f"the numbers are right, but the file holds only {words}",
        fix="write the whole result, or give only the inputs of that part",
        shows="more than one batch entry or head",
        apply=lambda recipe: replace(recipe, shape=lambda p, n, a: _part(p, n, a, best)),
        late=True,
    )


def _picks(problem: Problem) -> Iterator[Pick]:
    """Yield a batch entry, a head, or one of both, where there are several."""
    axes = problem.layout.weight_axes
    batches = range(problem.shape[0] if "b" in axes else 0)
    heads = range(problem.shape[1] if "h" in axes else 0)
    yield from (pick for pick in product((None, *batches), (None, *heads)) if pick != (None, None))


def _part(problem: Problem, name: str, array: Array, pick: Pick) -> Array:
    """Return a part of an output (B, H, …) in the axes of the user that are left."""
    layout = problem.layout
    for place, (axis, index) in enumerate(zip("bh", pick, strict=True)):
        if index is not None:
            array = np.take(array, [index], axis=place)
            layout = layout.without(axis)
    return present(replace(problem, layout=layout), name, array)


def _distance(case: Case, problem: Problem, pick: Pick) -> float:
    """Return how far the files lie from a part of the answer; inf where a shape is another."""
    total = 0.0
    for name, file in case.files.items():
        # After an output projection, or an average, there are no heads any more.
        if pick[1] is not None and case.right[name].shape[1] < problem.shape[1]:
            return math.inf
        part = _part(problem, name, case.right[name], pick)
        if part.shape != file.shape:
            return math.inf
        found, made = finite_in_both(file, part)
        total += root_mean_square(found - made) / (root_mean_square(made) or 1.0)
    return total
