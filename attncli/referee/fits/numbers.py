"""Numbers that an implementation may have got wrong: one for all, or one for each head or query.

How far the files lie from what another number makes falls to the right one on a straight line from
either side. It is looked for among multiples of what is stated, then by golden sections, then by
secants. The numbers of heads do not know of each other: all are narrowed by the same evaluations.

References
----------
Kiefer 1953, "Sequential minimax search for a maximum"; Wolfe 1959, "The secant method for
simultaneous nonlinear equations".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.fits.table import found
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.options import shortest
from attncli.referee.tolerance import finite_in_both, root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline

__all__ = ["Quantity", "distance_of", "few_digits", "fitted"]

# Multiples of what is stated that are tried first, a factor of 2 or of its root apart.
_OCTAVES = 10
# Golden sections, each of which leaves 0.618 of where the number may be; secants after them.
_GOLDEN, _SECTIONS, _SECANTS = (math.sqrt(5) - 1) / 2, 14, 12
# Of the error that there was, a number that explains it leaves less than this share.
_MOST_LEFT = 0.5
# Numbers of fewer digits come about as near.
_AS_NEAR = 1.1
# Roundings of a few steps, in float32 and float64.
_OF_SINGLE, _OF_DOUBLE = 2.0**-22, 2.0**-50
# 1/√n of a dimension, as near as float32 shows.
_LEAST_ROOT, _AS_A_ROOT = 0.01, 1e-6
# Numbers that differ by less, as a share, are told with all their digits.
_HARDLY = 1e-2
# Numbers of heads or queries that differ by no more are one number for all.
_EQUAL = 2e-3


@dataclass(frozen=True, eq=False)
class Quantity:
    """A number that bears on the answer.

    Attributes
    ----------
    right : callable
        The number that a problem states; None or 0 where it has none. Multiples of it are tried.
    put : callable
        The pipeline that takes another number; with an axis, other numbers (n,).
    axis : int or None
        1 for a number of each head, 2 for a number of each query, None for one of all.
    words : callable
        From the other number and the right one to what stands in the mistake's meaning; as texts,
        or with an axis as arrays.
    option : callable
        From the other number to the option with which attncli takes it.
    negative : bool
        It may have the other sign.
    turns : bool
        It turns queries and keys, so that errors rise and fall again: more multiples are tried.
    """

    name: str
    right: Callable[[Problem], float | None]
    put: Callable[[Pipeline, Any], Pipeline]
    axis: int | None = None
    words: Callable[..., tuple[str, ...]] = lambda *both: both
    option: Callable[[float, Problem], str] = lambda *_: ""
    negative: bool = False
    turns: bool = False


def distance_of(case: Case, pipe: Pipeline) -> float:
    """Return how far the files lie from what a pipeline makes, relative to their own size."""
    outputs = case.outputs(pipe)
    total = 0.0
    for name, file in case.files.items():
        known, made = finite_in_both(file, case.shaped(pipe, outputs, name))
        size = root_mean_square(known) or 1.0
        total += root_mean_square(known - made) / size if known.size else math.inf
    return total


class _Errors:
    """The errors that numbers leave, relative to the files; a line of them for each number."""

    def __init__(self, quantity: Quantity, case: Case, base: Pipeline) -> None:
        self._case, self._base, self._quantity = case, base, quantity
        axis = self.axis = quantity.axis
        count = 1 if axis is None else case.right["weights"].shape[axis]
        self.count = count
        files = {name: case.canonical(name) for name in case.files}
        self.files = {n: f for n, f in files.items() if axis is None or f.shape[axis] == count}
        self._sizes = {
            n: math.sqrt(f.size) * (root_mean_square(f[np.isfinite(f)]) or 1.0)
            for n, f in self.files.items()
        }

    def pipe(self, numbers: Array) -> Pipeline:
        own = float(numbers[0]) if self.axis is None else numbers
        return self._quantity.put(self._base, own)

    def of(self, pipe: Pipeline) -> Array:
        """Return the errors of a pipeline (n, ·), 0 where a file is not finite."""
        made = self._case.outputs(pipe)
        each = []
        for name, file in self.files.items():
            with np.errstate(invalid="ignore"):
                error = np.nan_to_num((file - made[name]) / self._sizes[name], nan=1.0)
            error = np.where(np.isfinite(file), error, 0)
            error = error if self.axis is None else np.moveaxis(error, self.axis, 0)
            each.append(error.reshape(self.count, -1))
        return np.concatenate(each, axis=1)

    def far(self, numbers: Array) -> Array:
        """Return how far files are from what numbers (n,) make, (n,)."""
        return np.asarray(np.sqrt(np.square(self.of(self.pipe(numbers))).sum(axis=1)))


def fitted(quantity: Quantity, case: Case, base: Pipeline | None = None) -> Mistake | None:
    """Return the mistake of the numbers with which a case comes nearest to its files.

    With a base, beside what that one does.
    """
    right = quantity.right(case.problem)
    if not right or not case.comparable:
        return None
    step = 2.0**0.5 if quantity.turns else 2.0
    powers = (
        range(-_OCTAVES, _OCTAVES + 1) if step == 2.0 else range(-2 * _OCTAVES, 2 * _OCTAVES + 1)
    )
    tried = right * step ** np.array(powers, np.float64)
    tried = np.concatenate([tried, -tried]) if quantity.negative else tried
    work = case.question.work
    if work.left < (len(tried) + _SECTIONS + 2 * _SECANTS) * case.cells:
        return None
    errors = _Errors(quantity, case, base or case.pipe)
    if not errors.files or (quantity.axis is not None and errors.count == 1):
        return None
    numbers = _narrowed(errors, tried, step)
    before = np.sqrt(np.square(errors.of(case.pipe)).sum())
    if not np.sqrt(np.square(errors.far(numbers)).sum()) <= _MOST_LEFT * before:
        return None
    usual = [] if quantity.axis is None else [np.full(errors.count, right)]
    return _mistake(quantity, few_digits(numbers, errors.far, _roundings(case), usual), right)


def _narrowed(errors: _Errors, tried: Array, step: float) -> Array:
    """Return the numbers (n,) that leave least, between the neighbours of those that are tried."""
    distances = np.stack([errors.far(np.full(errors.count, number)) for number in tried])
    best = tried[distances.argmin(axis=0)]
    low, high = best / step, best * step
    one, other = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_one, at_other = errors.far(one), errors.far(other)
    for _ in range(_SECTIONS):
        left = at_one < at_other
        low, high = np.where(left, low, one), np.where(left, other, high)
        kept, at_kept = np.where(left, one, other), np.where(left, at_one, at_other)
        new = np.where(left, high - _GOLDEN * (high - low), low + _GOLDEN * (high - low))
        at_new = errors.far(new)
        one, at_one = np.where(left, new, kept), np.where(left, at_new, at_kept)
        other, at_other = np.where(left, kept, new), np.where(left, at_kept, at_new)
    return _by_secants(errors, low, high)


def _by_secants(errors: _Errors, before: Array, number: Array) -> Array:
    """Return where errors that change on straight lines are least, each step with the last two."""
    of_before, of_number = errors.of(errors.pipe(before)), errors.of(errors.pipe(number))
    best, least = number, np.square(of_number).sum(axis=1)
    for _ in range(_SECANTS):
        growth = of_number - of_before
        with np.errstate(all="ignore"):
            step = (growth * of_number).sum(axis=1) / np.square(growth).sum(axis=1)
            moved = number - step * (number - before)
        moved = np.where(np.isfinite(moved), moved, number)
        if (moved == number).all():
            break
        before, of_before, number = number, of_number, moved
        of_number = errors.of(errors.pipe(number))
        left = np.square(of_number).sum(axis=1)
        best, least = np.where(left < least, number, best), np.minimum(left, least)
    return best


def few_digits(
    numbers: Array,
    far: Callable[[Array], Array],
    roundings: float = 0.0,
    usual: Sequence[Array] = (),
) -> Array:
    """Return numbers (n,) with as few digits as come about as near to the files.

    ``roundings`` is how far the files may lie from the right ones: the best come nearer to few
    numbers. What is usual is tried first.
    """
    most, shown = np.maximum(_AS_NEAR * far(numbers), roundings), numbers.copy()
    longer = np.ones(len(numbers), np.bool_)
    short = (np.array([float(f"{n:.{digits}g}") for n in numbers]) for digits in range(1, 17))
    for rounded in (*usual, *short):
        near = longer & (far(np.where(longer, rounded, shown)) <= most)
        shown, longer = np.where(near, rounded, shown), longer & ~near
        if not longer.any():
            break
    return shown


def _roundings(case: Case) -> float:
    """Return how far files lie from what they were rounded from, relative to their own size."""
    single = all(map(PRECISIONS["float32"].holds, case.files.values()))
    return math.sqrt(len(case.files)) * (_OF_SINGLE if single else _OF_DOUBLE)


def _mistake(quantity: Quantity, numbers: Array, right: float) -> Mistake | None:
    """Return the mistake of numbers; None where all are one number that has another name."""
    if quantity.axis is None:
        number = float(numbers[0])
        return found(
            quantity.name,
            lambda pipe: quantity.put(pipe, number),
            *quantity.words(*_apart(number, right)),
            option=lambda problem: quantity.option(number, problem),
            choice=_choice(number),
            free=1,
        )
    # One number for all queries that are wrong is another mistake, in a part of them.
    others = numbers[numbers != right] if quantity.axis == 2 else numbers
    if not others.size or np.ptp(others) <= _EQUAL * np.abs(others).max():
        return None
    words = quantity.words(numbers)
    return found(quantity.name, lambda pipe: quantity.put(pipe, numbers), *words, free=len(numbers))


def _apart(number: float, right: float) -> tuple[str, str]:
    """Return two numbers in few digits, or in all where they hardly differ."""
    if abs(number - right) < _HARDLY * abs(right):
        return shortest(number), shortest(right)
    return f"{number:.6g}", f"{right:.4g}"


def _choice(number: float) -> float:
    """Return how many bits it takes to say a number: its digits, or which 1/√n it is."""
    digits = len(Decimal(repr(number)).normalize().as_tuple().digits)
    if _LEAST_ROOT < abs(number) < 1:
        root = round(number**-2)
        if math.isclose(abs(number), root**-0.5, rel_tol=_AS_A_ROOT):
            digits = min(digits, len(str(root)))
    return digits * math.log2(10)
