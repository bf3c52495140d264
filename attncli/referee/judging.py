"""`check` judges outputs of another implementation, and names the mistake."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.engine import attend
from attncli.engine.averaging import average_weights, refuse_without_heads
from attncli.errors import UsageError
from attncli.errors.calling import by_known_names
from attncli.errors.names import GRADIENTS, OUTPUTS, gradient_name
from attncli.numerics.dtypes import readable, widen
from attncli.numerics.threads.blas import single_blas_thread
from attncli.problem import arguments
from attncli.problem.problem import posed_problem
from attncli.problem.projection import Projected, as_heads, project
from attncli.problem.result import Attention
from attncli.referee.diagnosis import diagnose as find_out
from attncli.referee.formats import Array, File, may_be_single, short_of
from attncli.referee.parts import Question, Work
from attncli.referee.report import CheckReport, Tolerance
from attncli.referee.swamped import swamped_queries, with_the_answer, without
from attncli.referee.verdict import compare, verdict_of

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from attncli.problem.problem import Problem

_FORM = re.compile(r"%\.\d{1,2}[ef]")


@by_known_names
def check(
    expected: Attention | Mapping[str, npt.ArrayLike] | npt.ArrayLike,
    problem: Problem,
    *,
    printed: Mapping[str, str] | None = None,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    average_heads: bool = False,
    diagnose: bool = True,
    time_limit: float = 10.0,
    threads: int | None = None,
    projected: Projected | None = None,
    dcontext: npt.ArrayLike | None = None,
    dlse: npt.ArrayLike | None = None,
) -> CheckReport:
    """Judge outputs and gradients of another implementation, and name the mistake.

    The answer is computed in float64. The textbook formula, computed in the file's own format,
    also errs on this problem. A file passes if its largest error and its root mean square error
    are within a small factor of the formula's. A query is not judged if all its keys have a bias
    so large that the scores lose all digits.

    Parameters
    ----------
    expected : mapping of str to array_like, array_like, or Attention
        The outputs of the other implementation: context, weights, lse, scores, raw, capped,
        in the shapes of `attncli.Attention`. A single array is the context. Gradients have the
        names dquery, dkey, dvalue, dbias and dsinks, and the shapes of their inputs.
    problem : Problem
        From `attncli.pose` or `attncli.load`.
    printed : mapping of str to str, optional
        For each output, the format in which it was printed: ``%.2f`` or ``%.2e``. Otherwise the
        format is guessed from the numbers, which fails if there are few of them with few digits.
    rtol, atol : float or mapping of str to float, optional
        An element passes if its error is at most atol + rtol · |answer|. If only one of the two
        is given, the other is 0. A mapping gives one for each output that it names.
    average_heads : bool
        The weights are the mean of the heads: `torch.nn.MultiheadAttention`'s default.
    diagnose : bool
        On a mismatch, look for the mistake that explains it.
    time_limit : float
        Seconds for the diagnosis. They are counted in units of work, so that identical calls give
        identical names. On a slow machine the clock ends the search at most a second later.
    threads : int, optional
        As in `attncli.attention`, for the answer.
    projected : Projected, optional
        The projections of `attncli.project` that made query, key and value: mistakes in them are
        looked for, too. By default, those that `attncli.load` found.
    dcontext, dlse : array_like, optional
        As in `attncli.gradients`. Gradients need dcontext.

    Returns
    -------
    CheckReport
        ``print(report)`` shows it in words; ``bool(report)`` tells whether all outputs passed. An
        output of the wrong shape is a mismatch.

    Raises
    ------
    UsageError
        There is no output, or one is unknown; the context is given, but no value; there are no
        weights, or no heads, to average; or another argument is not as above.
    DataError
        An output holds something that is no real number; or the bias is so large that no query
        can be judged.

    Examples
    --------
    >>> import attncli
    >>> problem = attncli.pose([[1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], [[1.0], [2.0]])
    >>> attncli.check([[1.3302]], problem).passed
    True
    """
    posed_problem(problem)
    average_heads = arguments.flag("average_heads", average_heads)
    diagnose = arguments.flag("diagnose", diagnose)
    time_limit = arguments.not_negative("time_limit", time_limit)
    threads = arguments.thread_count(threads)
    if projected is not None and not isinstance(projected, Projected):
        raise UsageError(
            f"projected: expected what attncli.project returns; found {type(projected).__name__}"
        )
    read = problem.read()
    exact = whole = _in_float64(read, projected, threads)
    named = _named(expected, exact)
    inputs = [a for a in (read.query, read.key, read.value) if a is not None]
    files = _files(named, read, inputs, _forms({} if printed is None else printed, named))
    gradients = {name: files.pop(name) for name in GRADIENTS if name in files}
    if average_heads:
        _refuse_average(exact, files)
    tolerances = _given(rtol, atol, named)
    # If the user gives a tolerance, every query is judged.
    left_out = None if tolerances else swamped_queries(exact, files)
    unjudged = ""
    if left_out is not None:
        exact, unjudged = without(exact, left_out)
    answers = _answers(exact, files, averaged=average_heads, threads=threads)
    if left_out is not None:
        files = with_the_answer(exact, files, answers, left_out)
    short = short_of(inputs)
    outputs = compare(exact, files, answers, tolerances, short)
    verdicts = tuple(verdict_of(exact, name, one) for name, one in outputs.items())
    found = None
    if diagnose and not all(verdict.passed for verdict in verdicts):
        doubtful = [place for verdict in verdicts for place in verdict.worst_rows]
        work = Work(time_limit)
        question = Question(exact, outputs, work, average_heads, doubtful, inputs=short)
        # In thousands of small products, threads would wait longer than they work.
        with single_blas_thread(), np.errstate(all="ignore"):
            found = find_out(question)
    values = {name: file.values for name, file in files.items()}
    report = CheckReport(verdicts, found, values, answers, unjudged)
    if not gradients:
        return report
    from attncli.referee.gradients import with_gradients  # noqa: PLC0415 - seldom needed

    upstream = {"dcontext": dcontext, "dlse": dlse}
    limit = time_limit if diagnose else None
    with single_blas_thread():
        return with_gradients(report, whole, gradients, tolerances, upstream, inputs, limit)


def _answers(
    problem: Problem, names: Collection[str], *, averaged: bool, threads: int | None
) -> dict[str, Array]:
    plain = tuple(name for name in names if not (averaged and name == "weights"))
    answers: dict[str, Array] = {}
    if plain:
        answer, _ = attend(problem, plain, threads=threads)
        answers = {name: getattr(answer, name) for name in plain}
    if averaged:
        answers["weights"] = average_weights(problem, threads=threads)[0]
    if "context" in answers:
        answers["context"] = problem.projected(answers["context"], threads=threads)
    return answers


def _in_float64(problem: Problem, projected: Projected | None, threads: int | None) -> Problem:
    """Return the problem in float64, made from the inputs of its projections."""
    made = _exactly_made(problem, threads)
    # From here on the mask is boolean: true where a query sees a key.
    exact = replace(
        made,
        dtype=np.dtype(np.float64),
        bias=None if made.bias is None else readable(made.bias),
        visible=made.visible.with_whole_mask(),
    )
    return exact if projected is None else replace(exact, made_from=projected)


def _exactly_made(problem: Problem, threads: int | None) -> Problem:
    """Return the problem with inputs projected in float64, unless a precision was given."""
    made = problem.made_from
    if made is None or made.arguments["precision"] is not None or made.query.dtype == np.float64:
        return problem
    exact = project(**{**made.arguments, "precision": "float64"}, threads=threads)
    return replace(
        problem,
        made_from=replace(exact, norm_before=made.norm_before),
        query=_unless_padding(exact.query, problem.query),
        key=_unless_padding(exact.key, problem.key),
        value=None if problem.value is None else _unless_padding(exact.value, problem.value),
    )


def _unless_padding(packed: Array | None, own: Array) -> Array:
    """Return the array that was made again; non-finite padding is taken from the old one."""
    made = as_heads(packed, own)
    return own if made is None else np.where(np.isfinite(made), made, widen(own, made.dtype))


def _forms(printed: object, named: Collection[str]) -> Mapping[str, str]:
    expected = f"a mapping with names of {', '.join(named)}"
    if isinstance(printed, Mapping) and set(printed) <= set(named):
        if all(isinstance(form, str) and _FORM.fullmatch(form) for form in printed.values()):
            return printed
        expected = "%.2f or %.2e for each output"
    raise UsageError(f"printed: expected {expected}; found {arguments.shown(printed)}")


def _files(
    named: Mapping[str, npt.ArrayLike],
    problem: Problem,
    inputs: list[Array],
    printed: Mapping[str, str],
) -> dict[str, File]:
    single = may_be_single(inputs, problem.dtype)
    arrays = {name: _in_one_axis(name, given, problem) for name, given in named.items()}
    return {
        name: File.of(name, array, inputs, single=single, printed=printed.get(name))
        for name, array in arrays.items()
    }


def _in_one_axis(name: str, given: npt.ArrayLike, problem: Problem) -> npt.ArrayLike:
    """Return dbias in the axes of the bias, or the lse of one head without axes of length 1."""
    shapes = {"lse": problem.output_shapes["lse"], **problem.gradient_shapes}
    if name not in ("lse", "dbias") or name not in shapes:
        return given
    array, right = arguments.real_array(name, given), shapes[name]
    one_head = name == "dbias" or math.prod(right) == right[-1]
    alike = [n for n in array.shape if n > 1] == [n for n in right if n > 1]
    return array.reshape(right) if alike and one_head else array


def _named(
    expected: Attention | Mapping[str, npt.ArrayLike] | npt.ArrayLike, problem: Problem
) -> dict[str, npt.ArrayLike]:
    if isinstance(expected, Attention):
        expected = {name: array for name, array in vars(expected).items() if array is not None}
    named = dict(expected) if isinstance(expected, Mapping) else {"context": expected}
    named = {gradient_name(name) or name: array for name, array in named.items()}
    known = (*OUTPUTS, *GRADIENTS)
    for name in named:
        if name not in known:
            raise UsageError(f"expected names of {', '.join(known)}; found {name!r}")
    if not named:
        raise UsageError("there is nothing to check", hint="give at least one output")
    if "context" in named and problem.value is None:
        raise UsageError(
            "the context needs a value",
            hint="give value; if the file holds weights, give weights=… (--expect weights=FILE)",
        )
    return named


def _refuse_average(problem: Problem, names: Collection[str]) -> None:
    refuse_without_heads(problem.layout.weight_axes)
    if "weights" not in names:
        raise UsageError(
            "average_heads (--average-heads) is for weights, but none are given",
            hint="give weights=… (--expect weights=w.npy)",
        )


def _given(rtol: object, atol: object, names: Collection[str]) -> dict[str, Tolerance]:
    found: dict[str, dict[str, float]] = {}
    for argument, given in (("rtol", rtol), ("atol", atol)):
        each = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
        if not set(each) <= set(names):
            raise UsageError(f"{argument}: expected names of {', '.join(names)}")
        for name, number in each.items():
            if number is not None:
                own = arguments.not_negative(argument, number)
                found.setdefault(name, {})[argument] = own
    return {
        name: Tolerance(own.get("atol", 0.0), own.get("rtol", 0.0), earned=False, plain_error=0.0)
        for name, own in found.items()
    }
