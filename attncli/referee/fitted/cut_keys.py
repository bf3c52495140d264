"""Which keys are cut off where no rule cuts them, inferred from a few rows of a context.

Where a row sees keys a to b, running sums over its keys give the context of any such span, also
behind an output projection. Of the few rows that are looked at, each length of a batch entry, or
each place of its queries, gives one span; the numbers of the file tell which it is.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee.convention import Need, without
from attncli.referee.evaluation import evaluate, projected
from attncli.referee.fitted.spans import LOST, SLACK, TYPICAL, RunningSums, sinks_of
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case

__all__ = ["WHOLE", "Family", "Ints", "Look", "Spans", "as_good", "first_keys", "found_numbers"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
# The spans of one row: where they begin and end, of the problem, its batch entry and its query.
Spans = tuple[Ints, Ints]

# What these cases need to be read.
WHOLE: frozenset[Need] = frozenset({"batch", "heads"})
# Rows of a batch entry that are looked at, and columns of a projected context.
_ROWS = 8
_COLUMNS = 64
# Numbers that come so much nearer differ only by keys with next to no weight.
_AS_GOOD = 1.05


@dataclass(frozen=True, eq=False)
class Family:
    """What may have been another number than the right one.

    Attributes
    ----------
    numbers : ndarray of int (n,)
    instead_of : frozenset of str
        The rules in the place of which the spans stand.
    spans : callable
        The problem, a batch entry and a query, to the first key of each span and the one behind
        its last, (n,) each.
    right : tuple of int, of length B
        The right number of each batch entry.
    """

    numbers: Ints
    instead_of: frozenset[str]
    spans: Callable[[Problem, int, int], Spans]
    right: tuple[int, ...]


def found_numbers(cases: Sequence[Case], family: Family) -> tuple[int, ...] | None:
    """Return the number of each batch entry that its rows show.

    Parameters
    ----------
    cases : sequence of Case
        With all batch entries and heads.
    family : Family

    Returns
    -------
    tuple of int, of length B, or None
        None where the files hold no context, or what no number makes, or what the right ones make.
    """
    problem = cases[0].recipe.problem
    if problem.value is None or any("context" not in case.files for case in cases):
        return None
    if not all(case.comparable for case in cases):
        return None
    looked_at = [Look(case, family.instead_of) for case in cases]
    numbers = []
    for b, right in enumerate(family.right):
        if time.monotonic() > cases[0].deadline:
            return None
        errors = [error for look in looked_at for error in look.errors(b, family)]
        number = _best(np.mean(errors, axis=0), family.numbers, right) if errors else right
        if number is None:
            return None
        numbers.append(number)
    found = tuple(numbers)
    return None if found == family.right else found


def _best(errors: Array, numbers: Ints, right: int) -> int | None:
    """Return the number with the least error; of those about as good the nearest to the right."""
    good = numbers[as_good(errors)]
    return int(good[np.argmin(np.abs(good - right))]) if good.size else None


def as_good(errors: Array) -> Ints:
    """Return the places of the least error and of those about as small; of none if all is off."""
    least = float(errors.min(initial=np.inf))
    return np.flatnonzero(errors <= _AS_GOOD * least) if np.isfinite(least) else np.empty(0, int)


class Look:
    """A case, and how far rows of its file are from the context of spans of keys.

    Parameters
    ----------
    case : Case
    instead_of : frozenset of str
        The rules in the place of which the spans stand.
    """

    def __init__(self, case: Case, instead_of: frozenset[str]) -> None:
        recipe = case.recipe
        self._problem = problem = recipe.problem
        self._file = case.canonical("context")
        self._right = case.right["context"]
        lost = LOST * float(np.abs(self._right).max(initial=0.0))
        self._error = max(recipe.resolution + lost, float(np.finfo(np.float64).tiny))
        unruled = without(recipe, *instead_of)
        self._scores = evaluate(unruled, known=case.stages)["scores"]
        value = shared(problem, widen(np.asarray(problem.value), np.float64))
        self._value = np.broadcast_to(value, (*problem.shape[:2], *value.shape[2:]))
        self._sinks = sinks_of(problem)
        count = self._file.shape[-1]
        columns = np.unique(np.linspace(0, count - 1, min(count, _COLUMNS)).astype(int))
        self._columns = slice(None) if problem.output is None else columns

    def errors(self, b: int, family: Family) -> list[Array]:
        """Return the mean squared error of each number in some wrong rows of a batch entry.

        In units of what is tolerated; infinite where some error is far larger.
        """
        with np.errstate(invalid="ignore"):
            wrong = ~(np.abs(self._file[b] - self._right[b]) <= TYPICAL * self._error)
        rows = np.flatnonzero(wrong.any(axis=(0, 2)))
        some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS)).astype(int))
        return [
            self.errors_of(b, i, *family.spans(self._problem, b, i)) for i in map(int, rows[some])
        ]

    def errors_of(self, b: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the mean squared error of spans (n,) of keys in a row of a batch entry, (n,)."""
        if self._problem.output is not None:
            return self._joined_errors(b, i, first, end)
        errors = np.zeros(first.size)
        left = np.arange(first.size)
        for h in range(self._problem.shape[1]):
            made = self._contexts(b, h, i, first[left], end[left])
            within, squares = self._squares(np.abs(made - self._file[b, h, i])[None])
            errors[left[~within]] = np.inf
            errors[left] += squares / self._problem.shape[1]
            left = left[within]
            if not left.size:  # other heads make none of these good
                break
        return errors

    def _joined_errors(self, b: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the same where an output projection has joined the heads."""
        heads = range(self._problem.shape[1])
        contexts = np.stack([self._contexts(b, h, i, first, end) for h in heads])
        made = projected(self._problem.output, contexts[None])[0]
        error = np.abs(made - self._file[b, :, i, None])[..., self._columns]
        within, squares = self._squares(error)
        return np.where(within, squares, np.inf)

    def _contexts(self, b: int, h: int, i: int, first: Ints, end: Ints) -> Array:
        """Return the contexts of spans (n,) of keys in a row of a head, (n, E)."""
        sums = RunningSums.of(self._scores[b, h, i], self._value[b, h], self._sinks[h])
        return sums.contexts(first, end)

    def _squares(self, error: Array) -> tuple[Array, Array]:
        """Return which spans are near everywhere, and their mean squares; error (..., n, E)."""
        axes = (0, 2)
        within = np.asarray((error <= SLACK * self._error).all(axis=axes))
        shares = np.minimum(error, SLACK * self._error) / self._error
        return within, np.square(shares).mean(axis=axes)


def first_keys(count: int) -> str:
    """Return the words for the first so many keys, without their noun."""
    return "the first" if count == 1 else f"the first {count}"
