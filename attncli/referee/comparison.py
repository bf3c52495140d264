"""Compare files with the answers, each within the tolerance it earns or the user gave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli import arguments
from attncli.dtypes import widen
from attncli.referee.plain_errors import Plain, plain_errors_in, plain_errors_of
from attncli.referee.report import Tolerance, Verdict
from attncli.referee.rounding import (
    PRECISIONS,
    Digits,
    Precision,
    narrowest,
    own_precision,
    printed_digits,
)
from attncli.referee.tolerance import earned
from attncli.referee.verdict import Errors, canonical, distance, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.problem import Problem
    from attncli.referee.report import Place

__all__ = ["Compared", "File", "compare"]

Array = npt.NDArray[Any]
# Of float32, nine digits tell it from its neighbours; some print a few more.
_FEW_DIGITS = 12


@dataclass(frozen=True, eq=False)
class File:
    """One output of the other implementation, and how exact its numbers are."""

    values: npt.NDArray[np.float64]
    precision: Precision
    digits: Digits

    @classmethod
    def of(cls, name: str, given: object, *, single: bool) -> File:
        """Look at a file; ``single``: the inputs may well be of float32."""
        array = arguments.real_array(name, given)
        values = widen(array, np.float64)
        precision = own_precision(array, values)
        if array.dtype != np.float64 or precision.name != "float64":
            return cls(values, precision, Digits())
        digits = printed_digits(values)
        # So few digits do not show the format of the computation; the inputs do.
        few = digits.significant <= _FEW_DIGITS
        return cls(values, PRECISIONS["float32"] if few and single else precision, digits)

    def as_narrow_as(self, inputs: Sequence[Array]) -> File:
        """Return the file judged in the 16-bit format of its numbers, if the inputs' are so, too.

        NumPy has no bfloat16, so results in it are stored as float32.
        """
        narrow = narrowest(self.values, self.precision, least=1)
        if narrow == self.precision:
            return self
        wide = [widen(array, np.float64) for array in inputs]
        alike = all(narrow.holds(array) for array in wide)
        # Where the inputs show the format, one number of the file is enough.
        telling = any(narrowest(array, self.precision) != self.precision for array in wide)
        sure = telling or narrowest(self.values, self.precision) == narrow
        return replace(self, precision=narrow) if alike and sure else self

    def fused(self) -> File:
        """Return the file held to what a fused kernel makes, where its format has 16 bits."""
        short = self.precision.name in ("float16", "bfloat16")
        return replace(self, precision=replace(self.precision, fused=True)) if short else self


@dataclass(frozen=True, eq=False)
class Compared:
    """The files beside the answers.

    Attributes
    ----------
    files : dict of str to File
    tolerances : dict of str to Tolerance
    verdicts : tuple of Verdict
    errors : dict of str to Errors
        Of those whose shape is right.
    """

    files: Mapping[str, File]
    tolerances: dict[str, Tolerance]
    verdicts: tuple[Verdict, ...]
    errors: dict[str, Errors]

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
    if given is not None or not compared.doubtful:
        return compared
    more = plain_errors_in(compared.doubtful, problem, precisions, plain)
    if more == plain:
        return compared
    return _compare_within(problem, files, answers, _tolerances(more, files, given))


def _compare_within(
    problem: Problem,
    files: Mapping[str, File],
    answers: Mapping[str, Array],
    tolerances: dict[str, Tolerance],
) -> Compared:
    errors: dict[str, Errors] = {}
    verdicts = []
    for name, file in files.items():
        answer, shape = answers[name], file.values.shape
        if shape != answer.shape:
            verdicts.append(_misshapen(problem, name, file, answer.shape))
            continue
        found = canonical(problem, name, file.values)
        right = canonical(problem, name, answer)
        errors[name] = Errors(distance(found, right), right, tolerances[name])
        fmt = file.precision.name
        verdicts.append(measure(problem, name, found, errors[name], fmt, shape))
    return Compared(files, tolerances, tuple(verdicts), errors)


def _misshapen(problem: Problem, name: str, file: File, right: tuple[int, ...]) -> Verdict:
    """Return the verdict on a file of another shape, and what else has that shape."""
    found = file.values.shape
    weights = problem.layout.weights_shape(problem.shape)
    shapes = {"weights": weights, "lse": weights[:-1]}
    if problem.value is not None and problem.output is None:
        context = np.broadcast_to(0.0, (*problem.shape[:3], problem.value.shape[3]))
        shapes["context"] = problem.layout.join(context).shape
    other = next((n for n, shape in shapes.items() if shape == found), None)
    return Verdict(name, file.precision.name, found, right, passed=False, shape_of=other)


def _tolerances(
    plain: Mapping[str, Plain], files: Mapping[str, File], given: Tolerance | None
) -> dict[str, Tolerance]:
    return {name: _tolerance(plain[name], file, given) for name, file in files.items()}


def _tolerance(plain: Plain, file: File, given: Tolerance | None) -> Tolerance:
    if given is None:
        return earned(plain, file.precision, file.digits)
    return replace(given, plain_error=plain.largest)
