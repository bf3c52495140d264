"""Compare files with the answers, each within the tolerance it earns or the user gave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.problem import arguments
from attncli.referee.plain_errors import Plain, plain_errors_in, plain_errors_of
from attncli.referee.report import Tolerance, Verdict
from attncli.referee.rounding import (
    PRECISIONS,
    Digits,
    Precision,
    narrowest,
    own_precision,
    printed_digits,
    rounded_digits,
    short_of,
)
from attncli.referee.stretches import judged_in_stretches
from attncli.referee.tolerance import earned, usual
from attncli.referee.verdict import Errors, canonical, distance, measure, worst_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.report import Place

__all__ = ["Compared", "File", "Judged", "compare"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Of float32, nine digits tell it from its neighbours; some print a few more.
_FEW_DIGITS = 12
# Rows of a large problem that are measured by themselves, if they look wrong.
_DOUBTFUL = 32


@dataclass(frozen=True, eq=False)
class File:
    """One output of the other implementation, and how exact its numbers are."""

    values: npt.NDArray[np.float64]
    precision: Precision
    digits: Digits

    @classmethod
    def of(cls, name: str, given: object, *, single: bool, printed: str | None = None) -> File:
        """Look at a file; ``single``: the inputs may well be of float32."""
        array = arguments.real_array(name, given)
        values = widen(array, np.float64)
        precision = own_precision(array, values, single=single)
        if precision.name == "float32" and (printed is None or array.dtype != np.float64):
            return cls(values, precision, rounded_digits(values))
        if array.dtype != np.float64:
            return cls(values, precision, Digits())
        digits = printed_digits(values, printed)
        # So few digits do not show the format of the computation; the inputs do.
        few = digits.significant <= _FEW_DIGITS
        return cls(values, PRECISIONS["float32"] if few and single else precision, digits)

    def as_narrow_as(self, inputs: Sequence[Array]) -> File:
        """Return the file judged in the 16-bit format of its numbers, if the inputs' are so, too.

        NumPy has no bfloat16, so results in it are stored as float32.
        """
        if self.precision.short:
            return self
        arrays = [self.values, *inputs]
        # Where the inputs show the format, any numbers of the file will do.
        telling = any(narrowest(array, self.precision) != self.precision for array in arrays)
        narrow = short_of(arrays) if telling else None
        return self if narrow is None else replace(self, precision=narrow)

    def fused(self) -> File:
        """Return the file held to what a fused kernel makes, where its format has 16 bits."""
        if not self.precision.short:
            return self
        return replace(self, precision=replace(self.precision, fused=True))


@dataclass(frozen=True, eq=False)
class Judged:
    """One output: the file beside the answer.

    Attributes
    ----------
    file : File
    answer : ndarray of float64
        In the axes of the user; the file may have another shape.
    tolerance : Tolerance
        What the right answer earns, or was given.
    errors : Errors or None
        Of (B, H, L, ·); None where the shape is another one.
    """

    file: File
    answer: Array
    tolerance: Tolerance
    errors: Errors | None

    @property
    def wrong(self) -> Bools | None:
        """Which elements are wrong, (B, H, L, ·); None where the shape is another one."""
        return None if self.errors is None else self.errors.wrong


@dataclass(frozen=True, eq=False)
class Compared:
    """The files beside the answers.

    Attributes
    ----------
    outputs : dict of str to Judged
    verdicts : tuple of Verdict
    """

    outputs: dict[str, Judged]
    verdicts: tuple[Verdict, ...]

    @property
    def passed(self) -> bool:
        """Whether every file is within its tolerance."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def doubtful(self) -> tuple[Place, ...]:
        """The worst rows of every file."""
        return tuple(place for verdict in self.verdicts for place in verdict.worst_rows)


def compare(
    problem: Problem,
    files: Mapping[str, File],
    answers: Mapping[str, Array],
    given: Tolerance | None,
) -> Compared:
    """Compare with the tolerance given, or else with the one earned."""
    precisions = {n: f.precision for n, f in files.items()}
    plain = plain_errors_of(problem, precisions)
    compared = _compare_within(problem, files, answers, _tolerances(plain, files, given))
    if given is not None:
        return compared
    if not compared.passed and (doubtful := _doubtful(problem, compared)):
        more = plain_errors_in(doubtful, problem, precisions, plain)
        if more != plain:
            compared = _compare_within(problem, files, answers, _tolerances(more, files, given))
    return _looked_at_closely(problem, compared)


def _doubtful(problem: Problem, compared: Compared) -> list[Place]:
    """Return the rows whose errors may make all of a file look wrong."""
    return [
        place
        for name, one in compared.outputs.items()
        if one.errors is not None
        for place in worst_rows(
            problem, name, canonical(problem, name, one.file.values), one.errors, _DOUBTFUL
        )
    ]


def _looked_at_closely(problem: Problem, compared: Compared) -> Compared:
    """Compare in stretches, too, so that no mistake hides where the numbers are small."""
    outputs = dict(compared.outputs)
    for name, one in compared.outputs.items():
        if one.errors is not None:
            file = one.file
            errors = judged_in_stretches(problem, name, one.errors, file.precision, file.digits)
            if errors.stretch is not None:
                outputs[name] = replace(one, errors=errors)
    return compared if outputs == compared.outputs else _with_verdicts(problem, outputs)


def _compare_within(
    problem: Problem,
    files: Mapping[str, File],
    answers: Mapping[str, Array],
    tolerances: dict[str, Tolerance],
) -> Compared:
    outputs = {}
    for name, file in files.items():
        answer, errors = answers[name], None
        if file.values.shape == answer.shape:
            found, right = (canonical(problem, name, each) for each in (file.values, answer))
            errors = Errors(distance(found, right), right, tolerances[name])
        outputs[name] = Judged(file, answer, tolerances[name], errors)
    return _with_verdicts(problem, outputs)


def _with_verdicts(problem: Problem, outputs: dict[str, Judged]) -> Compared:
    return Compared(outputs, tuple(_verdict(problem, *item) for item in outputs.items()))


def _verdict(problem: Problem, name: str, output: Judged) -> Verdict:
    file = output.file
    if output.errors is None:
        return _misshapen(problem, name, file, output.answer.shape)
    found = canonical(problem, name, file.values)
    return measure(problem, name, found, output.errors, file.precision.name, file.values.shape)


def _misshapen(problem: Problem, name: str, file: File, right: tuple[int, ...]) -> Verdict:
    """Return the verdict on a file of another shape, and what else has that shape."""
    found = file.values.shape
    other = next((n for n, shape in problem.output_shapes.items() if shape == found), None)
    return Verdict(name, file.precision.name, found, right, passed=False, shape_of=other)


def _tolerances(
    plain: Mapping[str, Plain], files: Mapping[str, File], given: Tolerance | None
) -> dict[str, Tolerance]:
    return {name: _tolerance(plain[name], file, given) for name, file in files.items()}


def _tolerance(plain: Plain, file: File, given: Tolerance | None) -> Tolerance:
    if given is None:
        # What a fused kernel keeps is asked for to find out whether a mistake may lie beneath.
        tolerance = usual if file.precision.fused else earned
        return tolerance(plain, file.precision, file.digits)
    return replace(given, plain_error=plain.largest)
