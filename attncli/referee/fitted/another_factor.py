"""A factor that all numbers of an output share, inferred from the numbers of the files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Convention, then
from attncli.referee.fitted.another_number import fewest_digits
from attncli.referee.options import shortest
from attncli.referee.verdict import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from attncli.referee.case import Case
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["another_factor"]

Array = npt.NDArray[Any]
# The outputs that grow with the weights.
_OUTPUTS = {"context", "weights"}


def another_factor(case: Case) -> Convention | None:
    """Return the convention of the factor with which right outputs come nearest to the files."""
    if set(case.files) - _OUTPUTS or not case.comparable:
        return None
    found, right = _finite_numbers(case)
    if not right.any():
        return None
    factor = fewest_digits(
        float(np.dot(found, right) / np.dot(right, right)),
        lambda tried: root_mean_square(found - tried * right),
    )
    return Convention(
        name="another_factor",
        topic=topics.FACTOR,
        meaning=f"the numbers are about {shortest(factor)} times the right ones",
        fix="look for a factor that is missing or applied twice: the scale of quantized "
        "values, 1/(1 − p) of dropout, a block of queries that is added more than once",
        shows="almost any input",
        # Of what was projected, its bias included.
        apply=lambda recipe: then(recipe, behind=partial(_times, factor)),
    )


def _times(factor: float, _: Recipe, outputs: Outputs) -> Outputs:
    return {n: array * factor if n in _OUTPUTS else array for n, array in outputs.items()}


def _finite_numbers(case: Case) -> tuple[Array, Array]:
    """Return what is finite in both: the numbers of all files, and of the right outputs."""
    found, right = [], []
    for name, file in case.files.items():
        known, made = finite_in_both(file, case.shaped(case.recipe, case.right, name))
        found.append(known)
        right.append(made)
    return np.concatenate(found), np.concatenate(right)
