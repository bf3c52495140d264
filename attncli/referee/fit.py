"""Whether a recipe makes the numbers of the files, and whether that is more than chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.evaluation import evaluate
from attncli.referee.plain_errors import plain_errors
from attncli.referee.tolerance import earned
from attncli.referee.verdict import Errors, finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.case import Case, Question
    from attncli.referee.recipe import Outputs, Recipe
    from attncli.referee.report import Tolerance

__all__ = ["Fit", "agrees", "fit", "leaves_less", "may_explain"]

Array = npt.NDArray[Any]

# A deviating formula may round far worse than the right one, but at most by this factor.
_SCREEN = 1000.0
# How much of an error an explanation may leave. The smallest that is not rounding leaves a third;
# the rest is rounding error that the recipe explains, without the slack of a verdict.
_MOST_LEFT = 0.4
_OF_THE_LIMIT = 0.5
# Of factors that are rounded the weights' own roundings are left, about a half.
_MOST_LEFT_OF_FACTORS = 0.6
# Agreement of an infinity or NaN with one where the answer is finite is no accident.
_NONFINITE_BITS = 32.0
# One number is never enough evidence.
_MOST_BITS_AN_ELEMENT = 16.0


@dataclass(frozen=True)
class Fit:
    """How well a recipe agrees with the files.

    Attributes
    ----------
    error : float
        The largest absolute error that is left.
    rms : float
        Root mean square of the errors, each in units of its tolerance.
    bits : float
        The evidence: log2 of how improbable the agreement would be by chance.
    better : bool
        In at least one output far less error is left, or NaN and infinities are explained.
    """

    error: float
    rms: float
    bits: float
    better: bool


def fit(question: Question, cases: Sequence[Case], recipes: Sequence[Recipe]) -> Fit | None:
    """Return how well a recipe fits all the cases; None where it does not fit one of them.

    A number that is off by d fits within a tolerance t by accident with probability
    t/d, so each element that was wrong and is explained brings log2(d/t) bits.
    """
    fits = []
    for case, recipe in zip(cases, recipes, strict=True):
        found = _fit_one(question, case, recipe)
        if found is None:
            return None
        fits.append(found)
    if not any(f.better for f in fits):
        return None
    error, rms = max(f.error for f in fits), max(f.rms for f in fits)
    return Fit(error, rms, sum(f.bits for f in fits), better=True)


def leaves_less(cases: Sequence[Case], ones: Sequence[Recipe], others: Sequence[Recipe]) -> bool:
    """Return whether recipes leave far less error than others do, in all outputs together."""
    return _left(cases, ones) <= _MOST_LEFT_OF_FACTORS * _left(cases, others)


def _left(cases: Sequence[Case], recipes: Sequence[Recipe]) -> float:
    total = 0.0
    for case, recipe in zip(cases, recipes, strict=True):
        outputs = _outputs(case, recipe)
        for name, found in case.files.items():
            made = case.shaped(recipe, outputs, name)
            if made.shape == found.shape:
                known, numbers = finite_in_both(found, made)
                total += root_mean_square(known - numbers)
    return total


def agrees(question: Question, case: Case, recipe: Recipe) -> bool:
    """Return whether the files of a case are what a recipe makes."""
    outputs = _outputs(case, recipe)
    made = _made(case, recipe, outputs)
    near = _all_near(question, case, made)
    return near and _tolerated(question, case, recipe, outputs, made) is not None


def _tolerated(
    question: Question, case: Case, recipe: Recipe, outputs: Outputs, made: dict[str, Array]
) -> dict[str, Errors] | None:
    """Return the errors beside what a recipe makes; None where any is not tolerated."""
    tolerances = dict(question.tolerances)
    if case.evaluable and all(tolerance.earned for tolerance in tolerances.values()):
        tolerances = _earned(question, recipe, outputs)
    left = {n: _finite_errors(case.files[n], made[n], tolerances[n]) for n in made}
    return left if all(errors.passed for errors in left.values()) else None


def may_explain(question: Question, case: Case, recipe: Recipe) -> bool:
    """Return whether what a recipe makes is near to the files, and nearer than the right answer.

    So much is true of each part that looks wrong, however small, if a recipe explains a problem.
    """
    made = _made(case, recipe, _outputs(case, recipe))
    before = {n: _before(question, case, n) for n in made}
    return _all_near(question, case, made) and all(
        _was_right(before[n]) or _is_less(case.files[n], made[n], before[n], 1.0) for n in made
    )


def _made(case: Case, recipe: Recipe, outputs: Outputs) -> dict[str, Array]:
    return {name: case.shaped(recipe, outputs, name) for name in case.files}


def _all_near(question: Question, case: Case, made: dict[str, Array]) -> bool:
    return all(_near(case.files[n], made[n], question.tolerances[n]) for n in made)


def _fit_one(question: Question, case: Case, recipe: Recipe) -> Fit | None:
    if case.whole and not _right_shapes(case, recipe):
        return None
    outputs = _outputs(case, recipe)
    made = _made(case, recipe, outputs)
    if not _all_near(question, case, made):
        return None
    before = {n: _before(question, case, n) for n in made}
    most = _MOST_LEFT if recipe.products is None else _MOST_LEFT_OF_FACTORS
    less = {n: _is_less(case.files[n], made[n], before[n], most) for n in made}
    # Asked first: what a recipe earns takes longer than all the rest.
    if not all(less[n] or _was_right(before[n]) for n in made):
        return None
    left = _tolerated(question, case, recipe, outputs, made)
    if left is None:
        return None
    explained = {n: less[n] and _is_rounding(question, n, before[n], left[n]) for n in made}
    if not all(explained[n] or _was_right(before[n]) for n in made):
        return None
    error = max(float(errors.error.max(initial=0.0)) for errors in left.values())
    rms = max(root_mean_square(_shares(errors)) for errors in left.values())
    # Factors that are rounded leave the roundings of the weights, which nobody knows.
    rest = {n: None if recipe.products is None else left[n].rms for n in made}
    bits = sum(_bits(case, n, made[n], left[n].tolerance, rest[n]) for n in made)
    better = any(explained.values()) or any(_oddly_wrong(case, n) for n in made)
    return Fit(error, rms, bits, better)


def _outputs(case: Case, recipe: Recipe) -> Outputs:
    if case.evaluable:
        return evaluate(recipe, products=case.products)
    outputs = case.right
    for finish in (*recipe.finish, *recipe.behind):
        outputs = finish(recipe, outputs)
    return outputs


def _right_shapes(case: Case, recipe: Recipe) -> bool:
    """Look at shapes before anything is computed: most orders of axes do not fit."""
    shapes = {
        name: recipe.shape(recipe.problem, name, np.zeros(shape)).shape
        for name, shape in _shapes(case, recipe)
    }
    return all(case.files[name].shape == shape for name, shape in shapes.items())


def _shapes(case: Case, recipe: Recipe) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the shape (B, H, L, ·) of each output that a recipe makes."""
    for name in case.files:
        made = case.right[name].shape
        if name == "context":  # comes back to the axes of the right one
            yield name, made
        else:
            yield name, (*recipe.problem.shape[:3], 1 if name == "lse" else recipe.problem.shape[3])


def _near(found: Array, made: Array, tolerance: Tolerance) -> bool:
    if found.shape != made.shape:
        return False
    odd = ~(np.isfinite(found) & np.isfinite(made))
    if odd.any() and not np.array_equal(found[odd], made[odd], equal_nan=True):
        return False
    known, numbers = finite_in_both(found, made)
    return bool((np.abs(known - numbers) <= _SCREEN * tolerance.allowed(numbers)).all())


def _earned(question: Question, recipe: Recipe, outputs: Outputs) -> dict[str, Tolerance]:
    """Return what the recipe itself earns: a deviating formula may round worse than the right."""
    precisions = {n: recipe.products or own for n, own in question.precisions.items()}
    plain = plain_errors(recipe, precisions, outputs)
    return {n: earned(plain[n], own, question.digits[n]) for n, own in precisions.items()}


def _shares(errors: Errors) -> Array:
    """Return the errors as shares of what is allowed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        allowed = errors.tolerance.allowed(errors.answer)
        return np.where(errors.error == 0, 0, errors.error / allowed)


def _finite_errors(found: Array, made: Array, tolerance: Tolerance) -> Errors:
    """Return the errors of the elements that are finite in both."""
    known, numbers = finite_in_both(found, made)
    return Errors(np.abs(known - numbers), numbers, tolerance)


def _before(question: Question, case: Case, name: str) -> Errors | None:
    """Return the errors beside the right answer; None where its shape is another."""
    found, right = case.files[name], case.shaped(case.recipe, case.right, name)
    if right.shape != found.shape:
        return None
    return _finite_errors(found, right, question.tolerances[name])


def _oddly_wrong(case: Case, name: str) -> bool:
    """Return whether a number is NaN or infinite and should not be, or the other way."""
    found, right = case.files[name], case.shaped(case.recipe, case.right, name)
    return found.shape == right.shape and bool((np.isfinite(found) != np.isfinite(right)).any())


def _was_right(before: Errors | None) -> bool:
    return before is not None and before.passed


def _is_less(found: Array, made: Array, before: Errors | None, most: float) -> bool:
    """Return whether far less error is left than there was: other noise explains nothing.

    Parameters
    ----------
    found, made : ndarray
        What the file holds of an output, and what the recipe makes of it.
    before : Errors, optional
        Beside the right answer, if that has the shape of the file.
    most : float
        How much of the error may be left.
    """
    if before is None:
        return True
    known, numbers = finite_in_both(found, made)
    left = np.abs(known - numbers)
    return root_mean_square(left[np.isfinite(left)]) <= most * before.rms


def _is_rounding(question: Question, name: str, before: Errors | None, left: Errors) -> bool:
    """Return whether what is left is no more than rounding and printing."""
    if before is None or left.tolerance.rms is None:
        return True
    digits = question.digits[name]
    printed = digits.absolute + digits.relative * root_mean_square(left.answer)
    return left.rms <= _OF_THE_LIMIT * left.tolerance.rms + printed


def _bits(
    case: Case, name: str, made: Array, tolerance: Tolerance, rest: float | None = None
) -> float:
    """Return the evidence of one output; beside the rest, where that is given."""
    found = case.files[name]
    right = case.shaped(case.recipe, case.right, name)
    if right.shape != found.shape:
        # The shape itself says that something is different; ask how little of it is chance.
        finite_ones = found[np.isfinite(found)]
        right = np.full_like(found, finite_ones.mean() if finite_ones.size else 0.0)
    wrong = ~((found == right) | (np.isnan(found) & np.isnan(right)))
    odd = wrong & (np.isfinite(found) != np.isfinite(right))
    finite = wrong & np.isfinite(found) & np.isfinite(right) & np.isfinite(made)
    with np.errstate(divide="ignore", over="ignore"):
        allowed = tolerance.allowed(made)[finite]
        if tolerance.rms is not None:  # what nearly every element must keep to
            allowed = np.minimum(allowed, tolerance.rms if rest is None else rest)
        ratio = np.abs(found[finite] - right[finite]) / allowed
        bits = np.clip(np.log2(ratio), 0, _MOST_BITS_AN_ELEMENT)
    return float(bits.sum()) + (_NONFINITE_BITS if odd.any() else 0.0)
