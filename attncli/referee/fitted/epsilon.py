"""A number that is added to every denominator, inferred from how much less all keys weigh."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import with_epsilon
from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.denominators import added_to_denominators, typical
from attncli.referee.options import shortest
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["epsilon_added"]

Array = npt.NDArray[Any]
_LEAST_ROWS = 4


def epsilon_added(case: Case) -> Convention | None:
    """Return the convention that a number is added to the sum of the exponentials."""
    added = added_to_denominators(case) if case.recipe.problem.sinks is None else None
    if added is None:
        return None
    top = evaluate(case.recipe, known=case.stages)["scores"].max(axis=-1)
    with np.errstate(all="ignore"):
        shifted = added * np.exp(-top)
    # What is the same in all rows is what was added.
    found = {True: _finite(shifted), False: _finite(added)}
    subtracted = _scatter(found[True]) <= _scatter(found[False])
    numbers = found[subtracted]
    if len(numbers) < _LEAST_ROWS or (epsilon := typical(numbers)) <= 0:
        return None
    heads = case.recipe.whole.shape[1]
    sink = float(f"{math.log(epsilon):.9g}")
    exponential = "exp(score − maximum)" if subtracted else "exp(score)"
    like = "" if subtracted else f", like a sink of {sink:.4g} in every head"
    return Convention(
        "epsilon_added",
        f"{epsilon:.6g} is added to the sum of {exponential} before it divides{like}",
        with_epsilon(epsilon)
        if subtracted
        else lambda recipe: vary(recipe, sinks=np.full(recipe.problem.shape[1], sink)),
        topic=topics.EPSILON,
        fix="divide by the sum itself, which is at least 1 once the maximum is subtracted",
        shows="almost any input",
        option=lambda _: "" if subtracted else f"--sinks={','.join([shortest(sink)] * heads)}",
        needs=frozenset({"heads"}),
        variant_of=("zeros_counted", "another_factor"),
    )


def _finite(numbers: Array) -> Array:
    return np.asarray(numbers[np.isfinite(numbers)])


def _scatter(numbers: Array) -> float:
    """Return how much numbers differ, beside their size."""
    if not numbers.size:
        return math.inf
    middle = float(np.median(numbers))
    return float(np.median(np.abs(numbers - middle))) / max(abs(middle), 1e-300)
