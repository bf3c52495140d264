"""`check` judges outputs of another implementation, and finds out what happened."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli import arguments
from attncli.averaging import average_weights, refuse_without_heads
from attncli.dtypes import widen
from attncli.engine import attend
from attncli.errors import UsageError
from attncli.referee.case import Question
from attncli.referee.diagnosis import diagnose as find_out
from attncli.referee.plain_errors import Plain, plain_errors_in, plain_errors_of
from attncli.referee.report import CheckReport, Tolerance, Verdict
from attncli.referee.rounding import (
    PRECISIONS,
    Digits,
    Precision,
    own_precision,
    printed_digits,
)
from attncli.referee.tolerance import earned
from attncli.referee.verdict import Errors, canonical, distance, measure
from attncli.result import OUTPUTS

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.problem import Problem
    from attncli.referee.report import Place

__all__ = ["check"]

Array = npt.NDArray[Any]
# Bytes of a number of float32.
_SINGLE = 4
_FEW_DIGITS = 1e-9


def check(
    expected: Mapping[str, npt.ArrayLike] | npt.ArrayLike,
    problem: Problem,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    average_heads: bool = False,
    diagnose: bool = True,
    time_limit: float = 10.0,
    threads: int | None = None,
) -> CheckReport:
    """Judge outputs of another implementation, and name the mistake.

    The answer is computed in float64. A file passes if its errors, the largest and the
    root of their mean square, are within a small factor of what the plain formula makes in
    the file's own format, measured on this problem (`attncli.referee.tolerance`).

    Parameters
    ----------
    expected : mapping of str to array_like, or array_like
        What the other implementation gave: context, weights, lse, scores, raw, capped,
        in the shapes of `attncli.Attention`. An array alone is the context.
    problem : Problem
        From `attncli.pose`.
    rtol, atol : float, optional
        An element passes within atol + rtol · |answer|; where either is given the
        other is 0 unless given.
    average_heads : bool
        The weights are the mean of the heads: `torch.nn.MultiheadAttention`'s default.
    diagnose : bool
        On a mismatch, look for the convention that explains it.
    time_limit : float
        Seconds for the diagnosis.
    threads : int, optional
        As in `attncli.attention`, for the answer.

    Returns
    -------
    CheckReport
        ``print(report)`` says it in words.

    Raises
    ------
    UsageError
        An output is unknown, there is none, or the context needs a value; or there are no
        weights, or no heads, to average.
    DataError
        An output holds something that is no real number.

    Examples
    --------
    >>> import attncli
    >>> problem = attncli.pose([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [2.0]])
    >>> attncli.referee.check([[1.3302]], problem).passed
    True
    """
    time_limit = arguments.finite_number("time_limit", time_limit)
    problem = replace(problem.read(), dtype=np.dtype(np.float64))
    inputs = [a for a in (problem.query, problem.key, problem.value) if a is not None]
    single = all(array.dtype.itemsize <= _SINGLE for array in inputs)
    named = _named(expected, problem)
    files = {name: _File.of(name, given, single=single) for name, given in named.items()}
    if average_heads:
        _refuse_average(problem, files)
    answers = _answers(problem, tuple(files), average_heads=average_heads, threads=threads)
    compared = _compare(problem, files, answers, _given(rtol, atol))
    found = None
    if diagnose and not all(verdict.passed for verdict in compared.verdicts):
        question = Question(
            problem=problem,
            files={n: f.values for n, f in files.items()},
            answers=answers,
            wrong={n: errors.wrong for n, errors in compared.errors.items()},
            precisions={n: f.precision for n, f in files.items()},
            digits={n: f.digits for n, f in files.items()},
            tolerances=compared.tolerances,
            averaged=average_heads,
            doubtful=compared.doubtful,
        )
        found = find_out(question, compared.shaped, time.monotonic() + time_limit)
    return CheckReport(compared.verdicts, found, {n: f.values for n, f in files.items()}, answers)


@dataclass(frozen=True, eq=False)
class _Compared:
    """The files beside the answers.

    Attributes
    ----------
    tolerances : dict of str to Tolerance
    verdicts : tuple of Verdict
    shaped : dict of str to ndarray
        The files as (B, H, L, ·), those whose shape is right.
    errors : dict of str to Errors
        Of the same.
    """

    tolerances: dict[str, Tolerance]
    verdicts: tuple[Verdict, ...]
    shaped: dict[str, Array]
    errors: dict[str, Errors]

    @property
    def doubtful(self) -> tuple[Place, ...]:
        """The worst rows of every file."""
        return tuple(place for verdict in self.verdicts for place in verdict.worst_rows)


def _compare(
    problem: Problem,
    files: Mapping[str, _File],
    answers: Mapping[str, Array],
    given: Tolerance | None,
) -> _Compared:
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
    files: Mapping[str, _File],
    answers: Mapping[str, Array],
    tolerances: dict[str, Tolerance],
) -> _Compared:
    shaped: dict[str, Array] = {}
    errors: dict[str, Errors] = {}
    verdicts = []
    for name, file in files.items():
        answer, shape = answers[name], file.values.shape
        if shape != answer.shape:
            verdicts.append(_misshapen(problem, name, file, answer.shape))
            continue
        shaped[name] = canonical(problem, name, file.values)
        right = canonical(problem, name, answer)
        errors[name] = Errors(distance(shaped[name], right), right, tolerances[name])
        fmt = file.precision.name
        verdicts.append(measure(problem, name, shaped[name], errors[name], fmt, shape))
    return _Compared(tolerances, tuple(verdicts), shaped, errors)


@dataclass(frozen=True, eq=False)
class _File:
    """One output of the other implementation, and how exact its numbers are."""

    values: npt.NDArray[np.float64]
    precision: Precision
    digits: Digits

    @classmethod
    def of(cls, name: str, given: object, *, single: bool) -> _File:
        """Look at a file; ``single``: the inputs are no wider than float32."""
        array = arguments.real_array(name, given)
        values = widen(array, np.float64)
        precision = own_precision(array, values)
        if array.dtype != np.float64 or precision.name != "float64":
            return cls(values, precision, Digits())
        digits = printed_digits(values)
        # So few digits do not tell in which format they were made; the inputs do.
        few = max(digits.absolute, digits.relative) > _FEW_DIGITS
        return cls(values, PRECISIONS["float32"] if few and single else precision, digits)


def _named(
    expected: Mapping[str, npt.ArrayLike] | npt.ArrayLike, problem: Problem
) -> dict[str, npt.ArrayLike]:
    named = dict(expected) if isinstance(expected, Mapping) else {"context": expected}
    for name in named:
        if name not in OUTPUTS:
            raise UsageError(f"expected names of {', '.join(OUTPUTS)}; found {name!r}")
    if not named:
        raise UsageError("there is nothing to check", hint="give at least one output")
    if "context" in named and problem.value is None:
        raise UsageError("the context needs a value", hint="give value, or check the weights")
    return named


def _refuse_average(problem: Problem, names: Collection[str]) -> None:
    refuse_without_heads(problem.layout.weight_axes)
    if "weights" not in names:
        raise UsageError(
            "--average-heads is about the weights, and none are given",
            hint="--expect weights=w.npy",
        )


def _answers(
    problem: Problem, names: tuple[str, ...], *, average_heads: bool, threads: int | None
) -> dict[str, Array]:
    """Return the right outputs in the axes of the user."""
    plain = tuple(n for n in names if not (average_heads and n == "weights"))
    answers: dict[str, Array] = {}
    if plain:
        answer, _ = attend(problem, plain, threads=threads)
        answers = {name: getattr(answer, name) for name in plain}
    if average_heads:
        answers["weights"] = average_weights(problem, threads=threads)[0]
    if "context" in answers:
        answers["context"] = problem.projected(answers["context"])
    return answers


def _misshapen(problem: Problem, name: str, file: _File, right: tuple[int, ...]) -> Verdict:
    """Return the verdict on a file of another shape, and what else has that shape."""
    found = file.values.shape
    weights = problem.layout.weights_shape(problem.shape)
    shapes = {"weights": weights, "lse": weights[:-1]}
    if problem.value is not None and problem.output is None:
        context = np.broadcast_to(0.0, (*problem.shape[:3], problem.value.shape[3]))
        shapes["context"] = problem.layout.join(context).shape
    other = next((n for n, shape in shapes.items() if shape == found), None)
    return Verdict(name, file.precision.name, found, right, passed=False, shape_of=other)


def _given(rtol: object, atol: object) -> Tolerance | None:
    """Return the user's tolerance; None where the file must earn it."""
    sizes = {"rtol": rtol, "atol": atol}
    numbers = {n: arguments.finite_number(n, v) for n, v in sizes.items() if v is not None}
    for name, number in numbers.items():
        if number < 0:
            raise UsageError(f"{name}: expected a number of at least 0; found {number:g}")
    if not numbers:
        return None
    return Tolerance(
        absolute=numbers.get("atol", 0.0),
        relative=numbers.get("rtol", 0.0),
        earned=False,
        plain_error=0.0,
    )


def _tolerances(
    plain: Mapping[str, Plain], files: Mapping[str, _File], given: Tolerance | None
) -> dict[str, Tolerance]:
    return {name: _tolerance(plain[name], file, given) for name, file in files.items()}


def _tolerance(plain: Plain, file: _File, given: Tolerance | None) -> Tolerance:
    if given is None:
        return earned(plain, file.precision, file.digits)
    return replace(given, plain_error=plain.largest)
