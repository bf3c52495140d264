"""Whether a recipe makes the numbers of the files, and whether that is more than chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.evaluation import evaluate
from attncli.referee.plain_errors import plain_errors
from attncli.referee.tolerance import earned
from attncli.referee.verdict import Errors, finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.case import Case
    from attncli.referee.question import Question
    from attncli.referee.recipe import Outputs, Recipe
    from attncli.referee.report import Tolerance

__all__ = [
    "Fit",
    "agrees",
    "fit",
    "free_numbers",
    "has_right_shapes",
    "leaves_less",
    "may_explain",
    "most_bits",
]

Array = npt.NDArray[Any]

# A deviating formula may round far worse than the right one, but at most by this factor.
_SCREEN = 1000.0
# How much of an error an explanation may leave. The smallest that is not rounding leaves a third;
# the rest is rounding error that the recipe explains, without the slack of a verdict.
_MOST_LEFT = 0.4
_OF_THE_LIMIT = 0.5
# Of factors that are rounded the weights' own roundings are left, about a half.
_MOST_LEFT_OF_FACTORS = 0.6
# Numbers between two codes may go either way, and a few in a hundred thousand do. That moves a
# column as far as the error was, but there are few such columns: half of this is left, at most.
_OF_CODES = 0.2
# Agreement of an infinity or NaN with one where the answer is another or finite is no accident.
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
        Root mean square of the errors of the elements that were wrong, or of all if none was, each
        in units of its tolerance.
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
        found = _Attempt(question, case, recipe).fit()
        if found is None:
            return None
        fits.append(found)
    if not any(f.better for f in fits):
        return None
    error, rms = max(f.error for f in fits), max(f.rms for f in fits)
    return Fit(error, rms, sum(f.bits for f in fits), better=True)


def leaves_less(cases: Sequence[Case], ones: Sequence[Recipe], others: Sequence[Recipe]) -> bool:
    """Return whether recipes leave far less error than others do, in all outputs together.

    A number where the file has none, or the other way round, is more of it than any difference.
    """
    strange, left = _left(cases, ones)
    others_strange, others_left = _left(cases, others)
    if strange != others_strange:
        return strange < others_strange
    return left <= _MOST_LEFT_OF_FACTORS * others_left


def _left(cases: Sequence[Case], recipes: Sequence[Recipe]) -> tuple[int, float]:
    """Return how many NaN and infinities of file or recipe are none of the other, and the errors.

    The errors are those of the rest.
    """
    strange, total = 0, 0.0
    for case, recipe in zip(cases, recipes, strict=True):
        outputs = _outputs(case, recipe)
        for name, found in case.files.items():
            made = case.shaped(recipe, outputs, name)
            if made.shape == found.shape:
                strange += int(np.count_nonzero(_odd(found, made)))
                known, numbers = finite_in_both(found, made)
                total += root_mean_square(known - numbers)
    return strange, total


def agrees(question: Question, case: Case, recipe: Recipe) -> bool:
    """Return whether the files of a case are what a recipe makes."""
    attempt = _Attempt(question, case, recipe)
    return attempt.near and attempt.tolerated


def most_bits(case: Case, recipe: Recipe) -> float:
    """Return the evidence that the files of a case can hold, however many numbers they have."""
    return _MOST_BITS_AN_ELEMENT * free_numbers(case, recipe)


def free_numbers(case: Case, recipe: Recipe) -> float:
    """Return how many numbers of a file of a case can differ by themselves, at most.

    Contexts of a query lie in as many dimensions as it sees keys, less one, and its weights do.

    Parameters
    ----------
    case : Case
    recipe : Recipe
        Which says what each query sees.
    """
    rows = np.broadcast_to(recipe.seen, recipe.problem.shape).sum(axis=-1)
    free = float(np.maximum(rows - 1, 0).sum())
    most = {"weights": free, "context": free, "lse": float(np.count_nonzero(rows))}
    sizes = (min(most.get(name, file.size), file.size) for name, file in case.files.items())
    return max(sizes)


def may_explain(question: Question, case: Case, recipe: Recipe) -> bool:
    """Return whether what a recipe makes is near to the files, and nearer than the right answer.

    So much is true of each part that looks wrong, however small, if a recipe explains a problem.
    """
    attempt = _Attempt(question, case, recipe)
    return attempt.near and attempt.leaves_at_most(1.0)


@dataclass(frozen=True, eq=False)
class _Attempt:
    """One recipe, tried on one case.

    Nothing is worked out before it is asked for: most recipes are far off, and what a recipe
    earns takes longer than all the rest.
    """

    question: Question
    case: Case
    recipe: Recipe

    def fit(self) -> Fit | None:
        """Return how well the recipe fits; None where it does not."""
        if self.case.whole and not has_right_shapes(self.case, self.recipe):
            return None
        most = _MOST_LEFT if self.recipe.products is None else _MOST_LEFT_OF_FACTORS
        if not (self.near and self.leaves_at_most(most) and self.tolerated):
            return None
        explained = {n: self._explains(n, most) for n in self.made}
        if not all(explained[n] or self._was_right(n) for n in self.made):
            return None
        left = self.left.values()
        return Fit(
            error=max(float(errors.error.max(initial=0.0)) for errors in left),
            rms=max(map(self._share, self.left)),
            bits=sum(self._bits(n) for n in self.made),
            better=any(explained.values()) or any(_oddly_wrong(self.case, n) for n in self.made),
        )

    @cached_property
    def outputs(self) -> Outputs:
        return _outputs(self.case, self.recipe)

    @cached_property
    def made(self) -> dict[str, Array]:
        """What the recipe makes of each file."""
        return {n: self.case.shaped(self.recipe, self.outputs, n) for n in self.case.files}

    @property
    def before(self) -> dict[str, Errors | None]:
        """The errors beside the right answer; None where its shape is another."""
        known = self.case.errors
        for name in self.made.keys() - known.keys():
            known[name] = _before(self.question, self.case, name)
        return known

    @cached_property
    def left(self) -> dict[str, Errors]:
        """The errors beside what the recipe makes."""
        tolerances = self._tolerances()
        return {
            n: _errors(self.case.files[n], made, tolerances[n]) for n, made in self.made.items()
        }

    @property
    def near(self) -> bool:
        """Whether no number is far off."""
        outputs = self.question.outputs
        return all(
            _near(self.case.files[n], made, outputs[n].tolerance) for n, made in self.made.items()
        )

    @property
    def tolerated(self) -> bool:
        """Whether the errors that are left are tolerated."""
        return all(errors.passed for errors in self.left.values())

    def leaves_at_most(self, share: float) -> bool:
        """Return whether of the errors that were too large no more than a share is left."""
        return all(self._was_right(n) or self._is_less(n, share) for n in self.made)

    def _is_less(self, name: str, share: float) -> bool:
        before = self.before[name]
        if before is None:
            return True
        known, numbers = finite_in_both(self.case.files[name], self.made[name])
        left = np.abs(known - numbers)
        return root_mean_square(left[np.isfinite(left)]) <= share * before.rms

    def _was_right(self, name: str) -> bool:
        before = self.before[name]
        return before is not None and before.passed

    def _explains(self, name: str, most: float) -> bool:
        """Return whether far less error is left than there was, and no more than rounding.

        Other noise explains nothing.
        """
        left, limit = self.left[name], self.left[name].tolerance.rms
        if self.before[name] is not None and limit is not None:
            digits = self.question.outputs[name].file.digits
            printed = digits.absolute + digits.relative * root_mean_square(left.answer)
            if left.rms > _OF_THE_LIMIT * limit + printed:
                return False
        return self._is_less(name, most)

    def _tolerances(self) -> dict[str, Tolerance]:
        """Return what the recipe earns itself: a deviating formula may round worse than the right.

        Unless the user gave tolerances.
        """
        outputs = self.question.outputs
        own = {n: one.tolerance for n, one in outputs.items()}
        if not (self.case.evaluable and all(tolerance.earned for tolerance in own.values())):
            return own
        precisions = {n: self.recipe.products or p for n, p in self.question.precisions.items()}
        plain = plain_errors(self.recipe, precisions, self.outputs)
        own = {n: earned(plain[n], p, outputs[n].file.digits) for n, p in precisions.items()}
        if not self.recipe.codes:
            return own
        return {n: _of_codes(tolerance, self.before[n]) for n, tolerance in own.items()}

    def _share(self, name: str) -> float:
        """Return the root mean square of what was wrong and is left, in units of what is tolerated.

        Few errors would not show beside the roundings of all that is right.
        """
        errors = self.left[name]
        if self.recipe.codes and errors.tolerance.rms:
            return errors.rms / errors.tolerance.rms
        wrong = self._was_wrong(name)
        of_wrong = _errors(self.case.files[name][wrong], self.made[name][wrong], errors.tolerance)
        return root_mean_square(_shares(of_wrong if of_wrong.error.size else errors))

    def _was_wrong(self, name: str) -> npt.NDArray[np.bool_]:
        """Return which elements were not tolerated; none where the right shape is another."""
        found = self.case.files[name]
        right = self.case.shaped(self.case.recipe, self.case.right, name)
        if right.shape != found.shape:
            return np.zeros(found.shape, np.bool_)
        with np.errstate(invalid="ignore"):
            error = np.abs(found - right)
        return np.asarray(error > self.question.outputs[name].tolerance.allowed(right))

    def _bits(self, name: str) -> float:
        left = self.left[name]
        # What leaves no more than the right formula is no less evident for rounding far worse.
        # Factors that are rounded leave the roundings of the weights, which nobody knows, and no
        # less than any computation does.
        least = self.question.outputs[name].tolerance.rms or 0.0
        rest = None
        if self.recipe.products is not None:
            rest = max(left.rms, least)
        elif left.tolerance.rms is not None and left.rms <= least < left.tolerance.rms:
            rest = least
        return _bits(self.case, name, self.made[name], left.tolerance, rest)


def _outputs(case: Case, recipe: Recipe) -> Outputs:
    if case.evaluable:
        return evaluate(recipe, known=case.stages)
    outputs = case.right
    for finish in (*recipe.finish, *recipe.behind):
        outputs = finish(recipe, outputs)
    return outputs


def has_right_shapes(case: Case, recipe: Recipe) -> bool:
    """Look at shapes before anything is computed: most orders of axes do not fit."""
    problem = recipe.problem
    value = None if problem.value is None else problem.value.shape
    key = recipe.shape, recipe.resized, problem.shape, value, problem.layout
    if key not in case.right_shapes:
        case.right_shapes[key] = _shapes_fit(case, recipe)
    return case.right_shapes[key]


def _shapes_fit(case: Case, recipe: Recipe) -> bool:
    shapes = {
        name: recipe.shape(recipe.problem, name, np.zeros(shape)).shape
        for name, shape in _shapes(case, recipe)
    }
    return all(case.files[name].shape == shape for name, shape in shapes.items())


def _shapes(case: Case, recipe: Recipe) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the shape (B, H, L, ·) of each output that a recipe makes."""
    for name in case.files:
        made = case.right[name].shape
        value = recipe.problem.value
        if name == "context" and recipe.resized and value is not None:
            joined = recipe.problem.shape[1] // made[1]
            yield name, (*made[:2], recipe.problem.shape[2], joined * value.shape[3])
        elif name == "context":  # comes back to the axes of the right one
            yield name, made
        else:
            yield name, (*recipe.problem.shape[:3], 1 if name == "lse" else recipe.problem.shape[3])


def _near(found: Array, made: Array, tolerance: Tolerance) -> bool:
    if found.shape != made.shape or _is_far(found, made, tolerance):
        return False
    odd = ~(np.isfinite(found) & np.isfinite(made))
    if odd.any() and not np.array_equal(found[odd], made[odd], equal_nan=True):
        return False
    known, numbers = finite_in_both(found, made)
    return bool((np.abs(known - numbers) <= _SCREEN * tolerance.allowed(numbers)).all())


def _is_far(found: Array, made: Array, tolerance: Tolerance) -> bool:
    """Return whether some number is far off even beside the largest; false where it is NaN."""
    with np.errstate(invalid="ignore"):
        error = float(np.maximum.reduce(np.abs(found - made), axis=None))
    largest = float(np.maximum.reduce(np.abs(made), axis=None))
    return error > _SCREEN * (tolerance.absolute + tolerance.relative * largest)


def _of_codes(tolerance: Tolerance, before: Errors | None) -> Tolerance:
    """Return the tolerance of inputs that were put into few codes."""
    if before is None or not before.error.size:
        return tolerance
    return replace(
        tolerance,
        absolute=max(tolerance.absolute, float(before.error.max())),
        rms=max(tolerance.rms or 0.0, _OF_CODES * before.rms),
    )


def _shares(errors: Errors) -> Array:
    """Return the errors as shares of what is allowed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        allowed = errors.tolerance.allowed(errors.answer)
        return np.where(errors.error == 0, 0, errors.error / allowed)


def _errors(found: Array, made: Array, tolerance: Tolerance) -> Errors:
    """Return the errors of the elements that are finite in both."""
    known, numbers = finite_in_both(found, made)
    return Errors(np.abs(known - numbers), numbers, tolerance)


def _before(question: Question, case: Case, name: str) -> Errors | None:
    """Return the errors beside the right answer; None where its shape is another."""
    found, right = case.files[name], case.shaped(case.recipe, case.right, name)
    if right.shape != found.shape:
        return None
    return _errors(found, right, _tolerance_of_right(question, case, name))


def _tolerance_of_right(question: Question, case: Case, name: str) -> Tolerance:
    """Return what is tolerated beside the right answer, by the part itself where it earns that."""
    output = question.outputs[name]
    stretched = output.errors is not None and output.errors.stretch is not None
    if not (stretched and case.evaluable):
        return output.tolerance
    plain = plain_errors(case.recipe, {name: output.file.precision}, case.right)[name]
    return earned(plain, output.file.precision, output.file.digits)


def _oddly_wrong(case: Case, name: str) -> bool:
    """Return whether a number is NaN or infinite and should be another, or the other way."""
    found, right = case.files[name], case.shaped(case.recipe, case.right, name)
    return found.shape == right.shape and bool(_odd(found, right).any())


def _odd(found: Array, right: Array) -> Array:
    """Return where two arrays differ, and a number of either is NaN or infinite."""
    return _differ(found, right) & ~(np.isfinite(found) & np.isfinite(right))


def _differ(found: Array, right: Array) -> Array:
    return np.asarray(~((found == right) | (np.isnan(found) & np.isnan(right))))


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
    wrong, odd = _differ(found, right), _odd(found, right)
    finite = wrong & ~odd & np.isfinite(made)
    with np.errstate(divide="ignore", over="ignore"):
        allowed = tolerance.allowed(made)[finite]
        if tolerance.rms is not None:  # what nearly every element must keep to
            allowed = np.minimum(allowed, tolerance.rms if rest is None else rest)
        ratio = np.abs(found[finite] - right[finite]) / allowed
        bits = np.clip(np.log2(ratio), 0, _MOST_BITS_AN_ELEMENT)
    return float(bits.sum()) + (_NONFINITE_BITS if odd.any() else 0.0)
