"""Numbers that no convention knows, fitted to the files: a scale, a softcap, a base."""

from __future__ import annotations

import math
import time
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.convention import Convention
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.quantities import STEP
from attncli.referee.options import shortest
from attncli.referee.rounding import PRECISIONS
from attncli.referee.verdict import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.fitted.quantities import Quantity
    from attncli.referee.recipe import Recipe

__all__ = ["another", "distance_between", "distance_of", "fewest_digits"]

Array = npt.NDArray[Any]
# The error falls to the right number on a straight line from either side: so far as float64 goes.
_NARROWED = 75
# After so many sections, a thousandth of a step is left; where the error has fallen neither below
# this share of what it was nor of what the multiple left, other numbers do not explain the files.
_SOON, _LEFT, _FALLEN = 14, 0.75, 0.9
_AS_NEAR = 1.1
# Where errors do not fall to 0 but are level at their lowest.
_AS_LOW = 1.001
# Roundings of a few steps.
_OF_SINGLE, _OF_DOUBLE = 2.0**-22, 2.0**-50
# 1/√n of a dimension, as near as float32 shows.
_LEAST_ROOT, _AS_A_ROOT = 0.01, 1e-6
# Digits that are left out change what is shown by so much of the difference.
_SHOWN_OF_GAP = 0.1
_GOLDEN = (math.sqrt(5) - 1) / 2


def another(quantity: Quantity, case: Case) -> Convention | None:
    """Return the convention of the number with which a case comes nearest to its files."""
    right = quantity.right(case.recipe.whole)
    if not right or not case.comparable:
        return None

    @cache
    def distance_at(number: float) -> float:
        return distance_of(case, quantity.put(case.recipe, number))

    def distance(number: float) -> float:
        return distance_at(float(round(number)) if quantity.whole else number)

    def errors(multiple: float) -> Array:
        return _errors_of(case, quantity.put(case.recipe, multiple * right))

    started = time.monotonic()
    before = distance_of(case, case.recipe)
    now = time.monotonic()
    # So often about is a case evaluated.
    times = len(quantity.multiples) + _NARROWED + 10
    if now + times * (now - started) > case.deadline:
        return None
    multiple = _nearest(lambda tried: distance(tried * right), quantity.multiples)
    found = _narrowed(lambda tried: distance(tried * right), errors, multiple, before)
    if found is None:
        return None
    best = right * found
    near = {max(0.0, float(round(best) + step)) for step in (-1, 0, 1)}
    if quantity.whole:
        number = min(sorted(near), key=distance)
    else:
        number = fewest_digits(best, distance, _roundings(case))
    return Convention(
        name=quantity.name,
        topic=quantity.topic,
        meaning=quantity.meaning(*_apart(number, right)),
        fix=quantity.fix,
        shows=quantity.shows,
        apply=lambda recipe: quantity.put(recipe, number),
        option=lambda problem: quantity.option(number, problem),
        variant_of=quantity.variant_of,
        choice=_choice(number),
    )


def _apart(number: float, right: float) -> tuple[str, str]:
    """Return two numbers in few digits, or in so many that they look as far apart as they are."""
    most = _SHOWN_OF_GAP * abs(number - right)

    def few(exact: float, least: int) -> str:
        shown = (float(f"{exact:.{digits}g}") for digits in range(least, 17))
        return shortest(next((each for each in shown if abs(each - exact) <= most), exact))

    return few(number, 6), few(right, 4)


def fewest_digits(best: float, distance: Callable[[float], float], roundings: float = 0.0) -> float:
    """Return a number with as few digits as come about as near to the files as the best.

    Parameters
    ----------
    best : float
    distance : callable
        How far the files lie from what a number gives.
    roundings : float
        How far they may lie from the right one: the best comes nearer to few numbers.
    """
    most = max(_AS_NEAR * distance(best), roundings)
    rounded = (float(f"{best:.{digits}g}") for digits in range(2, 17))
    return next((number for number in rounded if distance(number) <= most), best)


def _roundings(case: Case) -> float:
    """Return how far files lie from what they were rounded from, relative to their own size."""
    single = all(map(PRECISIONS["float32"].holds, case.files.values()))
    return len(case.files) * (_OF_SINGLE if single else _OF_DOUBLE)


def _choice(number: float) -> float:
    """Return how many bits it takes to say a number: its digits, or which 1/√n it is."""
    digits = len(Decimal(repr(number)).normalize().as_tuple().digits)
    if _LEAST_ROOT < abs(number) < 1:
        root = round(number**-2)
        if math.isclose(abs(number), root**-0.5, rel_tol=_AS_A_ROOT):
            digits = min(digits, len(str(root)))
    return digits * math.log2(10)


def _nearest(distance: Callable[[float], float], multiples: Sequence[float]) -> float:
    """Return the best of multiples and of the neighbours of the best."""
    best = min(multiples, key=distance)
    return min((best / STEP, best, best * STEP), key=distance)


def _narrowed(
    distance: Callable[[float], float],
    errors: Callable[[float], Array],
    multiple: float,
    before: float,
) -> float | None:
    """Return the best multiple between the neighbours of one, by golden sections and by its errors.

    None where it is soon seen that no error falls much below what it was before.

    References
    ----------
    Kiefer 1953, "Sequential minimax search for a maximum".
    """
    low, high = multiple / STEP, multiple * STEP
    one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_other = distance(one), distance(other)
    enough = max(_LEFT * before, _FALLEN * distance(multiple))
    for section in range(_NARROWED):
        # The right number itself may have lost a digit or two, which nothing has shown yet.
        if section == _SOON:
            least = min(at_one, at_other)
            if multiple != 1 and least > enough:
                return None
            found = _crossing(errors, low, high)
            if found is not None and distance(found) <= _AS_LOW * least:
                return found
        if at_one < at_other:
            high, other, at_other = other, one, at_one
            one = high - _GOLDEN * (high - low)
            at_one = distance(one)
        else:
            low, one, at_one = one, other, at_other
            other = low + _GOLDEN * (high - low)
            at_other = distance(other)
    return (low + high) / 2


def _crossing(errors: Callable[[float], Array], low: float, high: float) -> float | None:
    """Return where errors that grow from one number to another cross 0; None where they do not.

    Of the errors, what lies in the direction in which they grow: between numbers so near to each
    other they change on a straight line, so that few steps come as near as float64 goes.

    References
    ----------
    Dowell and Jarratt 1971, "A modified regula falsi method for computing the root of an equation".
    """
    at_low, at_high = errors(low), errors(high)
    growth = at_high - at_low
    below, above = float(at_low @ growth), float(at_high @ growth)
    before = low
    while below < 0 < above:
        between = low + (high - low) * below / (below - above)
        if between in (low, high):
            return between
        there = float(errors(between) @ growth)
        if there < 0:
            above = above / 2 if before == low else above
            low, below, before = between, there, between
        else:
            below = below / 2 if before == high else below
            high, above, before = between, there, between
    return None


def distance_of(case: Case, recipe: Recipe) -> float:
    """Return how far the files lie from what a recipe makes, relative to their own size."""
    outputs = evaluate(recipe, known=case.stages)
    total = 0.0
    for name, file in case.files.items():
        total += distance_between(file, case.shaped(recipe, outputs, name))
    return total


def distance_between(file: Array, array: Array) -> float:
    """Return how far an array lies from the numbers of a file, relative to their own size."""
    found, made = finite_in_both(file, array)
    size = root_mean_square(found) or 1.0
    return root_mean_square(found - made) / size if found.size else math.inf


def _errors_of(case: Case, recipe: Recipe) -> Array:
    """Return the errors that a recipe leaves, each file's relative to its size, one after another.

    0 where a number is not finite in both.
    """
    outputs = evaluate(recipe, known=case.stages)
    each = []
    for name, file in case.files.items():
        size = root_mean_square(file[np.isfinite(file)]) or 1.0
        with np.errstate(invalid="ignore"):
            error = (file - case.shaped(recipe, outputs, name)) / (size * math.sqrt(file.size))
        each.append(np.where(np.isfinite(error), error, 0).ravel())
    return np.concatenate(each)
