"""A factor that no convention knows, found from the numbers of the files themselves."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.options import scaled, shortest
from attncli.referee.recipe import vary
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.case import Case

__all__ = ["another_scale", "comparable", "fewest_digits"]

# As multiples of the right scale: tried first, a factor apart, and then narrowed.
_STEP = 2.0**0.5
_TRIED = tuple(sign * _STEP**power for sign in (1, -1) for power in range(-20, 21))
# The error falls to the right scale on a straight line from either side: so far as float64 goes.
_NARROWED = 75
_AS_NEAR = 1.1
# So often about is a case evaluated.
_TIMES = len(_TRIED) + _NARROWED + 10
_GOLDEN = (math.sqrt(5) - 1) / 2


def another_scale(case: Case, deadline: float = math.inf) -> Convention | None:
    """Return the convention of the scale with which a case comes nearest to its files.

    Parameters
    ----------
    case : Case
        Small enough to be evaluated.
    deadline : float
        On the clock of `time.monotonic`.

    Returns
    -------
    Convention or None
        None where there is no scale to be found: all scores are 0, or the files have
        other shapes; or no time to find it.
    """
    right = case.recipe.problem.scale
    if right == 0 or not comparable(case):
        return None
    started = time.monotonic()
    _distance(case, right)
    now = time.monotonic()
    if now + _TIMES * (now - started) > deadline:
        return None
    factor = min(_TRIED, key=lambda tried: _distance(case, tried * right))
    best = right * _narrowed(case, right, factor)
    scale = fewest_digits(best, lambda tried: _distance(case, tried))
    return Convention(
        name="another_scale",
        topic="scale",
        meaning=f"the scale is about {shortest(scale)}, where {right:.4g} is right",
        fix="multiply Q·Kᵀ by the scale that the problem states; unless it states one, 1/√D",
        shows="nearly any inputs",
        apply=lambda recipe: vary(recipe, scale=scale),
        option=lambda problem: scaled(scale, problem),
    )


def fewest_digits(best: float, distance: Callable[[float], float]) -> float:
    """Return a number with as few digits as come about as near to the files as the best.

    Parameters
    ----------
    best : float
    distance : callable
        How far the files lie from what a number gives.
    """
    most = _AS_NEAR * distance(best)
    rounded = (float(f"{best:.{digits}g}") for digits in range(2, 17))
    return next((number for number in rounded if distance(number) <= most), best)


def comparable(case: Case) -> bool:
    """Return whether a case can be evaluated, and its files have the shapes of the outputs."""
    return case.evaluable and all(
        case.shaped(case.recipe, case.right, name).shape == file.shape and np.isfinite(file).any()
        for name, file in case.files.items()
    )


def _narrowed(case: Case, right: float, factor: float) -> float:
    """Return the best factor between the neighbours of one, by golden sections.

    References
    ----------
    Kiefer 1953, "Sequential minimax search for a maximum".
    """
    low, high = factor / _STEP, factor * _STEP
    one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_other = _distance(case, one * right), _distance(case, other * right)
    for _ in range(_NARROWED):
        if at_one < at_other:
            high, other, at_other = other, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = _distance(case, one * right)
        else:
            low, one, at_one = one, other, at_other
            other = low + _GOLDEN * (high - low)
            at_other = _distance(case, other * right)
    return (low + high) / 2


def _distance(case: Case, scale: float) -> float:
    """Return how far the files lie from what a scale gives, relative to their own size."""
    recipe = vary(case.recipe, scale=scale)
    outputs = evaluate(recipe, products=case.products)
    total = 0.0
    for name, file in case.files.items():
        made = case.shaped(recipe, outputs, name)
        both = np.isfinite(file) & np.isfinite(made)
        size = root_mean_square(file[both]) or 1.0
        total += root_mean_square(file[both] - made[both]) / size if both.any() else math.inf
    return total
