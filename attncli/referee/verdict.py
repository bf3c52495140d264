"""Compare files with the answers: how large the errors are, where, and whether they pass."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import GRADIENTS, SQUARE
from attncli.referee.blocks import judged_in_blocks
from attncli.referee.report import Place, Stretch, Tolerance, Verdict
from attncli.referee.tolerance import earned, plain_errors_of, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools, File, Precision

_WORST_ROWS = 5
# If at most this share of the elements is outside the tolerance, others may be wrong, too.
_FEW = 0.05


def canonical(problem: Problem, name: str, array: Array) -> Array:
    """Return an output or a gradient in the user's axes as (B, H or 1, rows, columns)."""
    batch, heads, queries, keys = problem.shape
    if name == "dsinks":
        return array.reshape(1, -1, 1, 1)
    if name == "dbias":
        return problem.layout.broadcastable(array)
    if name in GRADIENTS:
        return problem.layout.split(array, getattr(problem, GRADIENTS[name]).shape[1], name)
    if name == "context":  # after an output projection there is one head
        return problem.layout.split(array, heads if problem.output is None else 1, name)
    return np.asarray(array.reshape(batch, -1, queries, 1 if name == "lse" else keys))


@dataclass(frozen=True, eq=False)
class Errors:
    """The errors of one output, and its tolerance."""

    found: Array
    answer: Array
    tolerance: Tolerance
    stretch: Stretch | None = None  # queries that are wrong by themselves
    limits: Array | None = None  # if there is a stretch: the largest error allowed in each row

    @cached_property
    def error(self) -> Array:
        """|found − answer|: 0 for equal infinities, inf where only one is finite or any NaN."""
        found, answer = self.found, self.answer
        with np.errstate(invalid="ignore", over="ignore"):
            error: Array = np.abs(found - answer)
        error[(found == answer) | (np.isnan(found) & np.isnan(answer))] = 0
        error[np.isnan(error)] = np.inf
        return error

    @cached_property
    def outside(self) -> Bools:
        """The elements outside the tolerance."""
        far: Bools = self.error > self.tolerance.allowed(self.answer)
        return far

    @cached_property
    def rms(self) -> float:
        """The root mean square of the finite errors."""
        return root_mean_square(self.error[np.isfinite(self.error)])

    @property
    def passed(self) -> bool:
        """Whether all errors are tolerated."""
        return not (self.outside.any() or self._too_large_together) and self.stretch is None

    @property
    def few_outside(self) -> bool:
        """Whether no more than a few elements lie outside the tolerance."""
        return bool(np.count_nonzero(self.outside) <= _FEW * self.outside.size)

    @cached_property
    def wrong(self) -> Bools:
        """The wrong elements."""
        wrong = self.outside
        # If few elements are outside, but the rms is too large, elements whose error is above the
        # allowed rms are wrong, too. Large numbers may err by their rounding in addition, unless no
        # element would be wrong then.
        together = self.few_outside and self._too_large_together
        for limits in (self.limits, np.float64(self.tolerance.rms) if together else None):
            if limits is not None:
                rounded = self.tolerance.relative * np.abs(self.answer)
                wrong = wrong | (self.error > limits + rounded)
                if not wrong.any():
                    wrong = self.error > limits
        return wrong

    @property
    def _too_large_together(self) -> bool:
        return self.tolerance.rms is not None and self.rms > self.tolerance.rms


@dataclass(frozen=True, eq=False)
class Judged:
    """One output: the file, the answer and the errors."""

    file: File
    answer: Array  # in the axes of the user; the file may have another shape
    tolerance: Tolerance  # measured on this problem, or given by the user
    errors: Errors | None  # (B, H, L, ·); None if file and answer have different shapes

    @property
    def wrong(self) -> Bools | None:
        """The wrong elements, (B, H, L, ·); None if the shapes differ."""
        return None if self.errors is None else self.errors.wrong


def compare(
    problem: Problem,
    files: Mapping[str, File],
    answers: Mapping[str, Array],
    given: Mapping[str, Tolerance],
    inputs: Precision | None = None,
) -> dict[str, Judged]:
    """Compare each file within the tolerance given for it, or else within a measured one."""
    precisions = {name: file.precision for name, file in files.items()}

    def judged_with(places: Sequence[Place]) -> dict[str, Judged]:
        plain = plain_errors_of(problem, precisions, places, inputs)
        tolerances = {n: earned(plain[n], f.precision, f.digits) for n, f in files.items()}
        for name in given.keys() & files.keys():
            tolerances[name] = replace(given[name], plain_error=plain[name].largest)
        return {n: judged(problem, n, f, answers[n], tolerances[n]) for n, f in files.items()}

    outputs = judged_with(())
    doubtful = [
        place for name, one in outputs.items() for place in _worst_rows(problem, name, one.errors)
    ]
    if doubtful and not files.keys() <= given.keys():
        # Where numbers look wrong, the textbook formula may err more.
        outputs = judged_with(doubtful)
    for name, one in outputs.items():
        if one.errors is not None and one.tolerance.earned:
            errors = judged_in_blocks(problem, name, one.errors, one.file, inputs)
            outputs[name] = replace(one, errors=errors)
    return outputs


def judged(problem: Problem, name: str, file: File, answer: Array, tolerance: Tolerance) -> Judged:
    """Return a file with its answer and its errors."""
    errors = None
    if file.values.shape == answer.shape:
        found, right = (canonical(problem, name, each) for each in (file.values, answer))
        errors = Errors(found, right, tolerance)
    return Judged(file, answer, tolerance, errors)


def verdict_of(problem: Problem, name: str, output: Judged) -> Verdict:
    """Return the verdict on a file."""
    file, errors = output.file, output.errors
    shape, fmt = file.values.shape, file.format
    if errors is None:
        other = next((n for n, right in problem.output_shapes.items() if right == shape), None)
        return Verdict(name, fmt, shape, output.answer.shape, passed=False, shape_of=other)
    error, answer = errors.error, errors.answer
    odd = ~np.isfinite(errors.found) & (error > 0)
    with np.errstate(all="ignore"):
        relative = np.where((answer == 0) | ~np.isfinite(answer), 0, error / np.abs(answer))

    def largest(of: Array) -> Place | None:
        index = np.unravel_index(int(np.argmax(of)), of.shape)
        return _place(problem, name, errors, of, index) if of.any() else None

    return Verdict(
        name=name,
        format=fmt,
        shape=shape,
        expected_shape=shape,
        passed=errors.passed,
        tolerance=errors.tolerance,
        largest=largest(error),
        largest_relative=largest(relative),
        rms=errors.rms if np.isfinite(error).all() else math.inf,
        elements=error.size,
        outside=int(np.count_nonzero(errors.outside)),
        nonfinite=int(np.count_nonzero(odd)),
        nonfinite_rows=int(np.count_nonzero(odd.any(axis=-1))),
        stretch=errors.stretch,
        worst_rows=_worst_rows(problem, name, errors),
    )


def _worst_rows(problem: Problem, name: str, errors: Errors | None) -> tuple[Place, ...]:
    """Return the largest error of each of the worst wrong rows, the worst first."""
    if errors is None:
        return ()
    error = np.where(errors.wrong, errors.error, 0)
    peaks = error.max(axis=-1, initial=0)
    order = np.argsort(-peaks, axis=None, kind="stable")[:_WORST_ROWS]  # of equal ones the first
    rows = [np.unravel_index(int(flat), peaks.shape) for flat in order]
    return tuple(
        _place(problem, name, errors, error, (*row, np.argmax(error[row])))
        for row in rows
        if peaks[row] > 0
    )


def _place(
    problem: Problem, name: str, errors: Errors, error: Array, index: Sequence[Any]
) -> Place:
    batch, head, query, column = (int(i) for i in index)
    at = batch, head, query, column
    # Behind an output projection, or an average, there are no heads.
    mixed = errors.answer.shape[1] == 1 < problem.shape[1]
    own_batch, own_head = problem.layout.place(batch, None if mixed else head)
    keys = problem.key_labels if name in (*SQUARE, "dbias") else None
    rows = problem.key_labels if name in ("dkey", "dvalue") else problem.query_labels
    return Place(
        batch=own_batch,
        head=own_head,
        query=query,
        column=None if name == "lse" else column,
        query_label=None if rows is None else rows[query],
        column_label=None if keys is None else keys[column],
        found=float(errors.found[at]),
        answer=float(errors.answer[at]),
        error=float(error[at]),
    )
