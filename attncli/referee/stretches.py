"""Judge a few queries of one head by themselves, where their errors are large for their numbers.

One tolerance for all of an output is made by its largest numbers. Where others are far smaller (of
late queries with many keys, of a head whose values are small), a mistake there hides in it. So a
head is cut into stretches of queries, and those whose error is a larger share of their numbers
than everywhere else earn a limit of their own, from what the textbook formula makes there. In 16
bits, heads of a few queries do so each: what one of them earns says little of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee.lone_rows import judged_row_by_row
from attncli.referee.pipeline import Part, evaluate, pipeline_of
from attncli.referee.report import Stretch
from attncli.referee.tolerance import earned, plain_errors

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.formats import Digits, Precision
    from attncli.referee.verdict import Errors

__all__ = ["judged_in_stretches"]

Array = npt.NDArray[Any]

_ROWS = 64
_CELLS = 2**21
# Where the largest scores of a row are nearly the same, to round one of them to 16 bits moves all
# of its numbers. So many rows do not count then, but where there are fewer than these.
_UNCOUNTED, _FEWEST_ROWS = 2, 16
# Of so many heads the most doubtful stretch is measured; of few queries, of as many as have so many
# scores.
_MEASURED, _MEASURED_CELLS = 4, 2**20
_FAR_LARGER = 2.0
# Of what is tolerated of the whole: beside numbers that are 0 any error would be large.
_LEAST = 0.01


def judged_in_stretches(
    problem: Problem, name: str, errors: Errors, precision: Precision, digits: Digits
) -> Errors:
    """Return the errors, with a stretch that is wrong by itself if there is one.

    Parameters
    ----------
    problem : Problem
    name : str
    errors : Errors
        Beside the answer, and the tolerance that the whole output has earned.
    precision : Precision
    digits : Digits
    """
    # After an average there are no heads whose scores could be rounded.
    averaged = name != "context" and errors.answer.shape[1] < problem.shape[1]
    if errors.tolerance.rms is None or averaged or not errors.few_outside:
        return errors
    # Of a context behind a projection no number belongs to one head.
    joined = problem.output is not None and name == "context"
    rows = _rows_a_stretch(problem, joined=joined)
    few = precision.short and rows < _FEWEST_ROWS
    sizes = _Sizes.of(errors, rows, _UNCOUNTED if precision.short and not few else 0)
    each = max(_MEASURED, _MEASURED_CELLS // (rows * problem.shape[3])) if few else 0
    pipe = pipeline_of(problem)
    for place in sizes.worst(each) if each else sizes.doubtful():
        part = Part(place.batch, None if joined else place.head, (place.start, place.stop))
        plain = plain_errors(pipe, part, {name: precision}, evaluate(pipe, part))[name]
        tolerance = earned(plain, precision, digits)
        most = max(tolerance.rms or 0.0, _LEAST * errors.tolerance.rms)
        if sizes.rms(place) > most:
            batch, head = problem.layout.place(place.batch, None if joined else place.head)
            stretch = Stretch(
                batch=batch,
                head=head,
                queries=(place.start, place.stop),
                rms=sizes.rms(place),
                tolerance=replace(tolerance, rms=most),
            )
            return replace(errors, stretch=stretch, limits=sizes.limits(place, most))
    if precision.short and not (few or joined):
        return judged_row_by_row(problem, name, errors, precision, digits)
    return errors


class _Place(NamedTuple):
    """A stretch of queries, by its number, of one head; of all together behind a projection."""

    batch: int
    head: int
    number: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class _Sizes:
    """How large errors and answers of each stretch are: sums of squares, (B, H, stretches).

    Attributes
    ----------
    edges : ndarray of int
        Where the stretches begin, and where the last one ends.
    errors, answers : ndarray
        Of the errors, the worst rows do not count.
    counts : ndarray
        How many numbers an answer's stretch has.
    """

    edges: npt.NDArray[np.intp]
    errors: Array
    answers: Array
    counts: Array

    @classmethod
    def of(cls, errors: Errors, rows: int, uncounted: int) -> _Sizes:
        """Measure all stretches of about so many rows, some of which do not count."""
        queries = errors.error.shape[2]
        edges = np.linspace(0, queries, max(1, queries // rows) + 1).astype(np.intp)
        wrong, right = _squares(errors.error), _squares(errors.answer)
        counts = np.isfinite(errors.answer).sum(axis=-1)
        cut = list(pairwise(edges))
        return cls(
            edges,
            np.stack([_without_worst(wrong[..., a:b], uncounted) for a, b in cut], axis=-1),
            np.stack([right[..., a:b].sum(axis=-1) for a, b in cut], axis=-1),
            np.stack([counts[..., a:b].sum(axis=-1) for a, b in cut], axis=-1),
        )

    def doubtful(self) -> list[_Place]:
        """Return the stretch of each head with the largest errors for its numbers, worst first.

        Where they are a far larger share of them than all errors are of all numbers.
        """
        with np.errstate(all="ignore"):
            usual = _FAR_LARGER**2 * self.errors.sum() / self.answers.sum()
        return self.worst(_MEASURED, above=usual)

    def worst(self, count: int, *, above: float = 0.0) -> list[_Place]:
        """Return the stretch of each of some heads with the largest errors for its numbers."""
        with np.errstate(all="ignore"):
            least = _LEAST**2 * self.answers.sum() / max(1, self.counts.sum()) * self.counts
            shares = self.errors / np.maximum(self.answers, least)
            shares[~(shares > above)] = 0
        numbers, largest = shares.argmax(axis=-1), shares.max(axis=-1)
        worst = [np.unravel_index(i, largest.shape) for i in np.argsort(-largest, axis=None)]
        return [
            self._place(int(batch), int(head), int(numbers[batch, head]))
            for batch, head in worst[:count]
            if largest[batch, head] > 0
        ]

    def _place(self, batch: int, head: int, number: int) -> _Place:
        return _Place(batch, head, number, int(self.edges[number]), int(self.edges[number + 1]))

    def rms(self, place: _Place) -> float:
        """Return the root mean square of the errors that count in a stretch."""
        return float(math.sqrt(self.errors[place[:3]] / max(1, self.counts[place[:3]])))

    def limits(self, place: _Place, most: float) -> Array:
        """Return what every row may err by, if it may be the same share as in a stretch."""
        means = np.sqrt(self.answers / np.maximum(1, self.counts))
        with np.errstate(all="ignore"):
            larger = means / means[place[:3]]
        # A single error may well be twice the root mean square of many.
        limits = 2 * most * np.where(larger > 1, larger, 1)
        return np.repeat(limits, np.diff(self.edges), axis=-1)[..., None]


def _squares(array: Array) -> Array:
    """Return the sums of the squares of the finite numbers of each row."""
    rows = array.reshape(-1, *array.shape[-2:])
    made = np.empty(rows.shape[:2])
    for one, out in zip(rows, made, strict=True):
        finite = np.where(np.isfinite(one), one, 0)
        with np.errstate(over="ignore"):
            np.einsum("ij,ij->i", finite, finite, out=out)
    return made.reshape(array.shape[:-1])


def _without_worst(rows: Array, uncounted: int) -> Array:
    """Return the sums over rows, without the largest ones."""
    kept = rows.shape[-1] - uncounted
    with np.errstate(over="ignore"):
        return np.asarray(np.sort(rows, axis=-1)[..., :kept].sum(axis=-1))


def _rows_a_stretch(problem: Problem, *, joined: bool) -> int:
    _, heads, queries, keys = problem.shape
    return max(1, min(queries, _ROWS, _CELLS // (keys * (heads if joined else 1))))
