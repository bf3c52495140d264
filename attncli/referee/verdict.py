"""Measure how far the numbers of a file are from the answer, and where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.report import Place, Stretch, Tolerance, Verdict

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = [
    "Errors",
    "canonical",
    "distance",
    "finite_in_both",
    "measure",
    "root_mean_square",
    "worst_rows",
]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_WORST_ROWS = 5
# Where no larger share is outside the tolerance, elements nearer to the answer may be wrong, too.
_FEW = 0.05


def canonical(problem: Problem, name: str, array: Array) -> Array:
    """Return an output in the user's axes as (B, H, L, ·); (B, 1, L, S) for averaged weights."""
    batch, heads, queries, keys = problem.shape
    if name == "context":
        # An output projection mixes the heads: what comes out is one.
        return problem.layout.split(array, heads if problem.output is None else 1, name)
    return np.asarray(array.reshape(batch, -1, queries, 1 if name == "lse" else keys))


def distance(found: Array, answer: Array) -> Array:
    """Return |found − answer|: 0 for equal infinities, inf where only one is finite or any NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        error: Array = np.abs(found - answer)
    error[found == answer] = 0
    error[np.isnan(found) & np.isnan(answer)] = 0
    error[np.isnan(error)] = np.inf
    return error


@dataclass(frozen=True, eq=False)
class Errors:
    """The errors of one output and what is tolerated, one by one and together.

    Attributes
    ----------
    error : ndarray
        |found − answer|.
    answer : ndarray
    tolerance : Tolerance
    stretch : Stretch or None
        Queries that are wrong by themselves, where few elements of the whole are.
    limits : ndarray or None
        Beside such a stretch: how large an error in each row may be.
    """

    error: Array
    answer: Array
    tolerance: Tolerance
    stretch: Stretch | None = None
    limits: Array | None = None

    @cached_property
    def outside(self) -> Bools:
        """Which elements lie outside the tolerance."""
        far: Bools = self.error > self.tolerance.allowed(self.answer)
        return far

    @cached_property
    def rms(self) -> float:
        """The root mean square of the finite errors."""
        return root_mean_square(self.error[np.isfinite(self.error)])

    @property
    def passed(self) -> bool:
        """Whether all errors are tolerated."""
        far = self.outside.any() or self._too_large_together
        return not far and self.stretch is None

    @property
    def few_outside(self) -> bool:
        """Whether no more than a few elements lie outside the tolerance."""
        return bool(np.count_nonzero(self.outside) <= _FEW * self.outside.size)

    @property
    def wrong(self) -> Bools:
        """Which elements are wrong.

        Those outside the tolerance; where they are few but the errors together are too large,
        also those that exceed the largest root mean square allowed, of all or of their stretch,
        by more than large numbers are rounded by, or at all if there are no others.
        """
        wrong = self.outside
        together = self.few_outside and self._too_large_together
        for limits in (self.limits, np.float64(self.tolerance.rms) if together else None):
            if limits is not None:
                wrong = wrong | self._beyond(limits)
                if not wrong.any():
                    wrong = self.error > limits
        return wrong

    def _beyond(self, limits: Array | np.float64) -> Bools:
        """Return which errors exceed limits by more than the numbers are rounded by."""
        far: Bools = self.error > limits + self.tolerance.relative * np.abs(self.answer)
        return far

    @property
    def _too_large_together(self) -> bool:
        return self.tolerance.rms is not None and self.rms > self.tolerance.rms


def measure(
    problem: Problem, name: str, found: Array, errors: Errors, fmt: str, shape: tuple[int, ...]
) -> Verdict:
    """Return the verdict on one output whose shape is right.

    Parameters
    ----------
    problem : Problem
    name : str
    found : ndarray of float64 (B, H, L, ·)
    errors : Errors
    fmt : str
        The format in which it is judged.
    shape : tuple of int
        In the axes of the user.
    """
    error, answer = errors.error, errors.answer
    odd = ~np.isfinite(found) & (error > 0)
    return Verdict(
        name=name,
        format=fmt,
        shape=shape,
        expected_shape=shape,
        passed=errors.passed,
        tolerance=errors.tolerance,
        largest=_largest(problem, name, found, answer, error),
        largest_relative=_largest(problem, name, found, answer, _relative(error, answer)),
        rms=errors.rms if np.isfinite(error).all() else math.inf,
        elements=error.size,
        outside=int(np.count_nonzero(errors.outside)),
        nonfinite=int(np.count_nonzero(odd)),
        nonfinite_rows=int(np.count_nonzero(odd.any(axis=-1))),
        stretch=errors.stretch,
        worst_rows=worst_rows(problem, name, found, errors, _WORST_ROWS),
    )


def _relative(error: Array, answer: Array) -> Array:
    """Return the error over |answer|; 0 where the answer is 0 or infinite."""
    with np.errstate(all="ignore"):
        relative = error / np.abs(answer)
    relative[(answer == 0) | ~np.isfinite(answer)] = 0
    return relative


def finite_in_both(found: Array, made: Array) -> tuple[Array, Array]:
    """Return those numbers of two arrays of one shape that are finite in both, (N,) each."""
    both = np.isfinite(found) & np.isfinite(made)
    return (found.ravel(), made.ravel()) if both.all() else (found[both], made[both])


def root_mean_square(numbers: Array) -> float:
    """Return the root of the mean square of finite numbers; 0 of none."""
    peak = float(np.maximum.reduce(np.abs(numbers), axis=None, initial=0))
    if peak == 0:
        return 0.0
    # Divided by the largest first, so that no square overflows.
    total = float(np.add.reduce(np.square(numbers / peak), axis=None))
    return peak * math.sqrt(total / numbers.size)


def _largest(
    problem: Problem, name: str, found: Array, answer: Array, error: Array
) -> Place | None:
    if not error.any():
        return None
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    return _place(problem, name, found, answer, error, tuple(int(i) for i in index))


def worst_rows(
    problem: Problem, name: str, found: Array, errors: Errors, count: int
) -> tuple[Place, ...]:
    """Return the wrong rows with the largest errors, worst first.

    Parameters
    ----------
    problem : Problem
    name : str
    found : ndarray of float64 (B, H, L, ·)
    errors : Errors
    count : int
        At most so many.
    """
    error = np.where(errors.wrong, errors.error, 0)
    peaks = error.max(axis=-1)
    order = np.argsort(-peaks, axis=None, kind="stable")[:count]  # of equal ones the first
    rows = [tuple(int(i) for i in np.unravel_index(int(flat), peaks.shape)) for flat in order]
    return tuple(
        _place(problem, name, found, errors.answer, error, (*row, int(np.argmax(error[row]))))
        for row in rows
        if peaks[row] > 0
    )


def _place(
    problem: Problem, name: str, found: Array, answer: Array, error: Array, index: tuple[int, ...]
) -> Place:
    batch, head, query, column = index
    keyed = name not in ("context", "lse")
    # After an output projection, or an average, there are no heads any more.
    mixed = answer.shape[1] < problem.shape[1]
    own_batch, own_head = problem.layout.place(batch, None if mixed else head)
    return Place(
        batch=own_batch,
        head=own_head,
        query=query,
        column=None if name == "lse" else column,
        query_label=_label(problem.query_labels, query),
        column_label=_label(problem.key_labels, column) if keyed else None,
        found=float(found[index]),
        answer=float(answer[index]),
        error=float(error[index]),
    )


def _label(labels: tuple[str, ...] | None, index: int) -> str | None:
    return None if labels is None else labels[index]
