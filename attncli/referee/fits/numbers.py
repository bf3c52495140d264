"""Fit numbers that an implementation may have wrong: one for all, or one for each head or query.

The error of a pipeline falls as its number approaches that of the implementation, from either side.
The number is searched among multiples of the stated one, then on ever finer grids, then by the
secant method. The numbers of several heads are independent, so the same evaluations narrow all of
them. If only a few values make sense, the one with the smallest error is taken.

References
----------
Wolfe 1959, "The secant method for simultaneous nonlinear equations".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.fits.table import found
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.tolerance import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.pipeline import Pipeline

# The first grid reaches this many octaves up and down from the stated number.
_OCTAVES = 10
# The grid is refined by this factor, this many times; then come this many secant steps.
_FINER, _ROUNDS, _SECANTS = 4, 3, 12
# The first secant goes through the best number and this multiple of it.
_BESIDE = 1.01
# A number that explains the error leaves less than this share of it.
_MOST_LEFT = 0.5
# A number is shortened to fewer digits if the error grows by at most this factor.
_AS_NEAR = 1.1
# The relative rounding error of a few steps, in float32 and float64.
_OF_SINGLE, _OF_DOUBLE = 2.0**-22, 2.0**-50
# If the numbers of heads or queries differ by less than this share, they count as one number.
_EQUAL = 2e-3


@dataclass(frozen=True, eq=False)
class Quantity:
    """A number that an implementation may get wrong; with axes, one for each index on them."""

    name: str
    # The number that a problem states; None or 0 if it has none. Multiples of it are tried.
    right: Callable[[Problem], float | None]
    # Puts another number into a pipeline; with axes, other numbers (n,).
    put: Callable[[Pipeline, Any], Pipeline]
    axes: tuple[int, ...] = ()
    output: str = "weights"  # an output with these axes
    # From the other number and the right one, as texts, to the words of the meaning; with axes,
    # from arrays.
    words: Callable[..., tuple[str, ...]] = lambda *both: both
    # From the other number, or numbers, to the option that reproduces it.
    option: Callable[[Any, Problem], str] = lambda *_: ""
    negative: bool = False  # it may be negative
    turns: bool = False  # it rotates queries and keys, so errors rise and fall: a finer grid
    linear: bool = False  # errors are linear in it: the secant method is enough
    least: int = 0  # if not 0: it is a whole number, and at least this
    # The numbers (n,) of a right pipeline, if they differ, or may all be wrong by the same factor.
    usual: Callable[[Pipeline], Array] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Choice:
    """A mistake whose parameter has only a few possible values."""

    name: str
    # The possible values for a case, likely ones first; none if the mistake makes no sense.
    values: Callable[[Case], Iterable[Any]]
    put: Callable[[Pipeline, Any], Pipeline | None]
    words: Callable[[Any, Pipeline], tuple[str, ...]]


class _Errors:
    """The errors that pipelines leave, relative to the size of the files."""

    def __init__(self, case: Case, axes: tuple[int, ...] = (), shape: tuple[int, ...] = ()) -> None:
        self._case, self._axes, self.count = case, axes, math.prod(shape)
        files = {name: case.canonical(name) for name in case.files}
        self.files = {n: f for n, f in files.items() if tuple(f.shape[a] for a in axes) == shape}
        self._sizes = {
            n: math.sqrt(f.size) * (root_mean_square(f[np.isfinite(f)]) or 1.0)
            for n, f in self.files.items()
        }

    def of(self, pipe: Pipeline) -> Array:
        """Return the errors of a pipeline, (n, ·); they are 0 where a file is not finite."""
        made = self._case.outputs(pipe)
        each = []
        for name, file in self.files.items():
            with np.errstate(invalid="ignore"):
                error = np.nan_to_num((file - made[name]) / self._sizes[name], nan=1.0)
            error = np.where(np.isfinite(file), error, 0)
            error = np.moveaxis(error, self._axes, range(len(self._axes)))
            each.append(error.reshape(self.count, -1))
        return np.concatenate(each, axis=1)

    def total(self, pipe: Pipeline | None) -> float:
        """Return the root of the sum of squared errors; infinity if there is no pipeline."""
        return math.inf if pipe is None else math.sqrt(float(np.square(self.of(pipe)).sum()))


def chosen(choice: Choice, case: Case) -> Mistake | None:
    """Find the value with the smallest error, if that is far below the error of the right one."""
    values = list(choice.values(case)) if case.comparable else []
    if not values or case.question.work.left < len(values) * case.cells:
        return None
    errors = _Errors(case)
    distances = [errors.total(choice.put(case.pipe, value)) for value in values]
    nearest = int(np.argmin(distances))
    if not distances[nearest] < _MOST_LEFT * errors.total(case.pipe):
        return None
    value = values[nearest]
    return found(
        choice.name,
        lambda pipe: choice.put(pipe, value),
        *choice.words(value, case.pipe),
        choice=math.log2(len(values)),
    )


def fitted(quantity: Quantity, case: Case, base: Pipeline | None = None) -> Mistake | None:
    """Find the numbers with the smallest error; ``base``: in addition to another mistake."""
    right = quantity.right(case.problem)
    if not right or not case.comparable or quantity.output not in case.right:
        return None
    step = 2.0**0.5 if quantity.turns else 2.0
    octaves = 2 * _OCTAVES if quantity.turns else _OCTAVES
    tried = right * step ** np.arange(-octaves, octaves + 1.0)
    tried = np.concatenate([tried, -tried]) if quantity.negative else tried
    evaluations = len(tried) + _ROUNDS * 2 * _FINER + 2 * _SECANTS
    if case.question.work.left < evaluations * case.cells:
        return None
    shape = tuple(case.right[quantity.output].shape[axis] for axis in quantity.axes)
    errors, own = _Errors(case, quantity.axes, shape), base or case.pipe
    if not errors.files or (quantity.axes and quantity.usual is None and errors.count == 1):
        return None

    def of(numbers: Array) -> Array:
        with np.errstate(all="ignore"):
            made = quantity.put(own, numbers if quantity.axes else float(numbers[0]))
        return errors.of(made)

    def far(numbers: Array) -> Array:
        return np.asarray(np.sqrt(np.square(of(numbers)).sum(axis=1)))

    numbers = np.full(errors.count, right)
    if not quantity.linear:
        numbers = _narrowed(far, np.repeat(tried[:, None], errors.count, axis=1), step)
    numbers = _by_secants(of, numbers * _BESIDE, numbers)
    if quantity.least:
        numbers = np.maximum(numbers.round(), quantity.least)
    if not np.linalg.norm(far(numbers)) <= _MOST_LEFT * errors.total(case.pipe):
        return None
    usual = np.full(errors.count, right) if quantity.usual is None else quantity.usual(own)
    known = [usual] if quantity.axes else [np.zeros(1)]
    single = all(map(PRECISIONS["float32"].holds, case.files.values()))
    roundings = (_OF_SINGLE if single else _OF_DOUBLE) * math.sqrt(len(case.files) / errors.count)
    return _mistake(quantity, _few_digits(numbers, far, roundings, known), right, usual)


def _narrowed(far: Callable[[Array], Array], tried: Array, step: float) -> Array:
    """Return the numbers (n,) with the smallest errors, on ever finer grids."""
    for _ in range(_ROUNDS + 1):
        nearest = np.stack([far(numbers) for numbers in tried]).argmin(axis=0)
        best = tried[nearest, np.arange(len(nearest))]
        step **= 1 / _FINER
        tried = best * step ** np.arange(1.0 - _FINER, _FINER)[:, None]
    return np.asarray(best)


def _by_secants(of: Callable[[Array], Array], before: Array, number: Array) -> Array:
    """Return the numbers (n,) with the smallest errors, by the secant method."""
    of_before, of_number = of(before), of(number)
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
        of_number = of(number)
        left = np.square(of_number).sum(axis=1)
        best, least = np.where(left < least, number, best), np.minimum(left, least)
    return best


def _few_digits(
    numbers: Array, far: Callable[[Array], Array], roundings: float, usual: Sequence[Array]
) -> Array:
    """Round numbers (n,) to as few digits as the errors allow."""
    # In small files, the best number fits even the roundings: the right one may err a bit more.
    most, shown = np.maximum(_AS_NEAR * far(numbers), roundings), numbers.copy()
    longer = np.ones(len(numbers), np.bool_)
    short = (np.array([float(f"{n:.{digits}g}") for n in numbers]) for digits in range(1, 17))
    for rounded in (*usual, *short):
        near = longer & (far(np.where(longer, rounded, shown)) <= most)
        shown, longer = np.where(near, rounded, shown), longer & ~near
        if not longer.any():
            break
    return shown


def _mistake(quantity: Quantity, numbers: Array, right: float, usual: Array) -> Mistake | None:
    if not quantity.axes:
        number = float(numbers[0])
        if number == 0:  # a missing stage has a name of its own
            return None
        digits = len(Decimal(repr(number)).normalize().as_tuple().digits)
        return found(
            quantity.name,
            lambda pipe: quantity.put(pipe, number),
            *quantity.words(f"{number:.6g}", f"{right:.6g}"),
            option=lambda problem: quantity.option(number, problem),
            choice=digits * math.log2(10),
            free=1,
        )
    # If all wrong queries have the same number, it is another mistake, in a part of the queries.
    others = numbers if quantity.axes == (1,) else numbers[numbers != usual]
    alike = np.ptp(others) <= _EQUAL * np.abs(others).max() if others.size else True
    if (numbers == usual).all() or (alike and quantity.usual is None):
        return None
    return found(
        quantity.name,
        lambda pipe: quantity.put(pipe, numbers),
        *quantity.words(numbers, usual),
        option=lambda problem: quantity.option(numbers, problem),
        free=len(numbers),
    )
