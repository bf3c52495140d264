"""Decide whether a pipeline makes the numbers of the files, and whether by more than chance.

A number that was wrong by d and now agrees within a tolerance t agrees by chance with probability
t/d. So it brings log2(d/t) bits of evidence.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.referee.formats import FLOAT64, Array
from attncli.referee.run import Run
from attncli.referee.tolerance import earned, finite_in_both, plain_errors, root_mean_square
from attncli.referee.verdict import Errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.report import Tolerance
    from attncli.referee.run import Outputs

# The least evidence, in bits: about 2^9 mistakes and 2^14 pairs are tried, so 10 more bits mean one
# false name in a thousand files. A fitted number agrees with a few numbers of any file.
BITS_FOR_ONE, BITS_FOR_TWO, BITS_FOR_FITTED = 19.0, 24.0, 100.0
# The evidence for a fitted number, in addition to the bits of its own digits.
_BITS_FOR_A_NUMBER = 21.0
# The most bits of one number, so that one is never enough; the bits of matching NaN and infinities.
_MOST_BITS_AN_ELEMENT, _NONFINITE_BITS = 16.0, 32.0
# A wrong formula may round worse than the right one, but at most by this factor.
_SCREEN = 1000.0
# An explanation may leave this share of the error, and this share of the tolerated rms.
_MOST_LEFT, _OF_THE_LIMIT = 0.4, 0.5
# The same share for rounded factors: the unknown roundings of the weights are half of the error.
_MOST_LEFT_OF_FACTORS = 0.6
# The same share for codes of a few bits: a number between two codes may be rounded either way.
_OF_CODES = 0.2
# How many evaluations the tolerance of a pipeline costs.
_ROUNDED_STEPS = 8


class Fit(NamedTuple):
    """How well a pipeline agrees with the files."""

    error: float  # the largest absolute error that is left
    rms: float  # root mean square of the errors in the wrong numbers, in tolerances
    bits: float  # the evidence
    better: bool  # far less error is left in an output, or NaN and infinities are explained


def fit(cases: Sequence[Case], pipe: Pipeline) -> Fit | None:
    """Return how well a pipeline fits all cases; None if it does not fit one of them."""
    fits = []
    for case in cases:
        found = _Attempt(case, pipe).fit()
        if found is None:
            return None
        fits.append(found)
    error, rms, bits, better = zip(*fits, strict=True)
    return Fit(max(error), max(rms), sum(bits), better=True) if any(better) else None


def agrees(case: Case, pipe: Pipeline) -> bool:
    """Return whether a pipeline makes the files of a case."""
    attempt = _Attempt(case, pipe)
    return attempt.near and all(errors.passed for errors in attempt.left.values())


def may_explain(case: Case, pipe: Pipeline) -> bool:
    """Return whether a pipeline comes near to the files, and nearer than the right answer does."""
    attempt = _Attempt(case, pipe)
    return attempt.near and attempt.leaves_at_most(1.0)


def leaves_less(cases: Sequence[Case], pipe: Pipeline, other: Pipeline) -> bool:
    """Return whether a pipeline leaves fewer NaN and infinities than another, or far less error."""
    (strange, left), (others_strange, others_left) = (_left(cases, each) for each in (pipe, other))
    if strange != others_strange:
        return strange < others_strange
    return left <= _MOST_LEFT_OF_FACTORS * others_left


def _left(cases: Sequence[Case], pipe: Pipeline) -> tuple[int, float]:
    """Return how many NaN and infinities do not match, and the sum of the rms errors."""
    strange, total = 0, 0.0
    for case in cases:
        outputs = case.outputs(pipe)
        for name, found in case.files.items():
            made = case.shaped(pipe, outputs, name)
            if made.shape == found.shape:
                strange += int(np.count_nonzero(_odd(found, made)))
                known, numbers = finite_in_both(found, made)
                total += root_mean_square(known - numbers)
    return strange, total


def free_numbers(case: Case, pipe: Pipeline) -> float:
    """Return the largest count of independent numbers in a file of a case."""
    run = Run(pipe, case.part, FLOAT64, case.memory)
    # Weights add up to 1, so a query that sees n keys has n − 1 free weights.
    rows = np.broadcast_to(run.seen, run.shape).sum(axis=-1)
    free = float(np.maximum(rows - 1, 0).sum())
    most = {"weights": free, "context": free, "lse": float(np.count_nonzero(rows))}
    return max(min(most.get(name, file.size), file.size) for name, file in case.files.items())


def tells(cases: Sequence[Case], pipe: Pipeline, free: int) -> bool:
    """Return whether the files show more independent numbers than were fitted."""
    return not free or sum(free_numbers(case, pipe) for case in cases) > free


def is_evident(
    cases: Sequence[Case],
    pipe: Pipeline,
    result: Fit,
    bits: float,
    *,
    choice: float | None,  # the bits of a fitted number that were free to choose
    careful: bool,
) -> bool:
    """Return whether the evidence is enough; ``careful`` counts only independent numbers."""
    if result.bits >= bits and not careful:
        return True
    most = sum(_MOST_BITS_AN_ELEMENT * free_numbers(case, pipe) for case in cases)
    shown = min(result.bits, most)
    return shown >= bits or (choice is not None and shown >= _BITS_FOR_A_NUMBER + choice)


class _Attempt:
    """One pipeline, tried on one case; its tolerance is computed last, as it takes longest."""

    def __init__(self, case: Case, pipe: Pipeline) -> None:
        self.case, self.pipe, self.question = case, pipe, case.question

    def fit(self) -> Fit | None:
        if self.case.whole and not has_right_shapes(self.case, self.pipe):
            return None
        most = _MOST_LEFT if self.pipe.products is None else _MOST_LEFT_OF_FACTORS
        if not (self.near and self.leaves_at_most(most)):
            return None
        if not all(errors.passed for errors in self.left.values()):
            return None
        explained = {n: self._explains(n, most) for n in self.made}
        if not all(explained[n] or self._was_right(n) for n in self.made):
            return None
        both = [(file, self.case.answers[n]) for n, file in self.case.files.items()]
        oddly_wrong = (_odd(*one).any() for one in both if one[0].shape == one[1].shape)
        return Fit(
            error=max(float(errors.error.max(initial=0.0)) for errors in self.left.values()),
            rms=max(map(self._share, self.left)),
            bits=sum(self._bits(n) for n in self.made),
            better=any(explained.values()) or any(oddly_wrong),
        )

    @cached_property
    def outputs(self) -> Outputs:
        return self.case.outputs(self.pipe)

    @cached_property
    def made(self) -> dict[str, Array]:
        """The outputs of the pipeline that were given as files."""
        return {n: self.case.shaped(self.pipe, self.outputs, n) for n in self.case.files}

    def before(self, name: str) -> Errors | None:
        """Return the errors against the right answer; None if the shapes differ."""
        known = self.case.errors
        if name not in known:
            found, right = self.case.files[name], self.case.answers[name]
            output = self.question.outputs[name]
            block = None if output.errors is None else output.errors.stretch
            tolerance = output.tolerance if block is None else block.tolerance
            same = right.shape == found.shape
            known[name] = _finite_errors(found, right, tolerance) if same else None
        return known[name]

    @cached_property
    def left(self) -> dict[str, Errors]:
        """The errors against the outputs of the pipeline."""
        tolerances = self._tolerances()
        files = self.case.files
        return {n: _finite_errors(files[n], made, tolerances[n]) for n, made in self.made.items()}

    @cached_property
    def near(self) -> bool:
        """Whether no number is far off."""
        outputs = self.question.outputs
        return all(
            near(self.case.files[n], made, outputs[n].tolerance) for n, made in self.made.items()
        )

    def leaves_at_most(self, share: float) -> bool:
        """Return whether each wrong output keeps at most this share of its error."""
        return all(self._was_right(n) or self._is_less(n, share) for n in self.made)

    def _is_less(self, name: str, share: float) -> bool:
        before = self.before(name)
        if before is None:
            return True
        known, numbers = finite_in_both(self.case.files[name], self.made[name])
        left = np.abs(known - numbers)
        return root_mean_square(left[np.isfinite(left)]) <= share * before.rms

    def _was_right(self, name: str) -> bool:
        before = self.before(name)
        return before is not None and before.passed

    def _explains(self, name: str, most: float) -> bool:
        """Return whether only rounding is left, and far less error than before."""
        left, limit = self.left[name], self.left[name].tolerance.rms
        if self.before(name) is not None and limit is not None:
            digits = self.question.outputs[name].file.digits
            printed = digits.absolute + digits.relative * root_mean_square(left.answer)
            if left.rms > _OF_THE_LIMIT * limit + printed:
                return False
        return self._is_less(name, most)

    def _tolerances(self) -> dict[str, Tolerance]:
        """Return the pipeline's own tolerances: it may round worse than the right one."""
        outputs = self.question.outputs
        if not (self.case.evaluable and self.question.earned):
            return {n: one.tolerance for n, one in outputs.items()}
        self.question.work.spend(_ROUNDED_STEPS * self.case.cells)
        precisions = {n: self.pipe.products or p for n, p in self.question.precisions.items()}
        # The mean of the heads errs no more than a single head.
        exact = None if self.pipe.file.averaged else self.outputs
        plain = plain_errors(self.pipe, self.case.part, precisions, exact, self.question.inputs)
        own = {n: earned(plain[n], p, outputs[n].file.digits) for n, p in precisions.items()}
        for name, tolerance in own.items() if self.pipe.codes else ():
            before = self.before(name)
            if before is not None and before.error.size:
                most = max(tolerance.absolute, float(before.error.max()))
                rms = max(tolerance.rms or 0.0, _OF_CODES * before.rms)
                own[name] = replace(tolerance, absolute=most, rms=rms)
        return own

    def _share(self, name: str) -> float:
        """Return the rms of the errors that are left in the wrong numbers, in tolerances."""
        errors, found, right = self.left[name], self.case.files[name], self.case.answers[name]
        if self.pipe.codes and errors.tolerance.rms:
            return errors.rms / errors.tolerance.rms
        if right.shape == found.shape:
            with np.errstate(invalid="ignore"):
                before = np.abs(found - right)
            wrong = before > self.question.outputs[name].tolerance.allowed(right)
            of_wrong = _finite_errors(found[wrong], self.made[name][wrong], errors.tolerance)
            errors = of_wrong if of_wrong.error.size else errors
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = errors.error / errors.tolerance.allowed(errors.answer)
        return root_mean_square(np.where(errors.error == 0, 0, shares))

    def _bits(self, name: str) -> float:
        left, found, right = self.left[name], self.case.files[name], self.case.answers[name]
        # A pipeline with a wide tolerance is no less evident if it errs no more than the right one
        # may. Rounded factors leave the unknown roundings of the weights.
        least = self.question.outputs[name].tolerance.rms or 0.0
        rest = left.tolerance.rms
        if self.pipe.products is not None:
            rest = max(left.rms, least)
        elif rest is not None and left.rms <= least < rest:
            rest = least
        if right.shape != found.shape:
            finite_ones = found[np.isfinite(found)]
            right = np.full_like(found, finite_ones.mean() if finite_ones.size else 0.0)
        return bits_of(found, right, self.made[name], left.tolerance, rest)


def bits_of(
    found: Array, right: Array, made: Array, tolerance: Tolerance, rest: float | None
) -> float:
    """Return the evidence that a pipeline made a file; most errors are at most ``rest``."""
    odd = _odd(found, right)
    finite = _differ(found, right) & ~odd & np.isfinite(made)
    with np.errstate(divide="ignore", over="ignore"):
        allowed = tolerance.allowed(made)[finite]
        if rest is not None:
            allowed = np.minimum(allowed, rest)
        ratio = np.abs(found[finite] - right[finite]) / allowed
        bits = np.clip(np.log2(ratio), 0, _MOST_BITS_AN_ELEMENT)
    return float(bits.sum()) + (_NONFINITE_BITS if odd.any() else 0.0)


def has_right_shapes(case: Case, pipe: Pipeline) -> bool:
    """Return whether outputs have the shapes of the files; computed once for each layout."""
    value = None if pipe.value is None else pipe.value.shape
    key = pipe.axes, pipe.shape, value, pipe.output, pipe.finish, pipe.behind
    if key not in case.shapes:
        made = case.outputs(pipe)
        case.shapes[key] = all(
            case.shaped(pipe, made, name).shape == file.shape for name, file in case.files.items()
        )
    return case.shapes[key]


def near(found: Array, made: Array, tolerance: Tolerance) -> bool:
    """Return whether all numbers of a pipeline are near the file's, with NaN in the same places."""
    if found.shape != made.shape:
        return False
    odd = ~(np.isfinite(found) & np.isfinite(made))
    if odd.any() and not np.array_equal(found[odd], made[odd], equal_nan=True):
        return False
    known, numbers = finite_in_both(found, made)
    return bool((np.abs(known - numbers) <= _SCREEN * tolerance.allowed(numbers)).all())


def _finite_errors(found: Array, made: Array, tolerance: Tolerance) -> Errors:
    return Errors(*finite_in_both(found, made), tolerance)


def _odd(found: Array, right: Array) -> Array:
    """Return where two arrays differ because one of the numbers is NaN or infinite."""
    return _differ(found, right) & ~(np.isfinite(found) & np.isfinite(right))


def _differ(found: Array, right: Array) -> Array:
    return np.asarray(~((found == right) | (np.isnan(found) & np.isnan(right))))
