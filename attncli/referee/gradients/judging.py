"""Judge gradients: compare them with the answer, within a measured tolerance.

As for outputs (`attncli.referee.tolerance`), the textbook formula is computed with every step
stored in the format of the file, or of the inputs if that is coarser, and its errors are measured
on the problem at hand. It is computed in two ways: like a framework, which stores scores and
weights, and like FlashAttention, which computes the weights again from the lse.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.engine.gradients import gradients_of
from attncli.errors import UsageError
from attncli.errors.names import GRADIENTS
from attncli.problem.arguments import real_array
from attncli.problem.upstream import upstream as upstream_of
from attncli.referee.formats import PRECISIONS, Array, Precision, short_of
from attncli.referee.gradients.model import Model, Step, model_of
from attncli.referee.run import WHOLE, Part, together
from attncli.referee.tolerance import Plain, disturbed, earned, root_mean_square
from attncli.referee.verdict import canonical, judged, verdict_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.formats import File
    from attncli.referee.report import CheckReport, Tolerance

# How many scores a measured part has; how many parts of a large problem are measured.
_CELLS, _PARTS = 2**19, 6
# The steps that FlashAttention stores or multiplies in the format of its inputs.
_HELD = ("dcontext", "context", "factor", "draw")
# For float64, random errors of this size are tried and scaled down: real ones are too small.
_TRIED_EPS = 2.0**-36


def with_gradients(
    report: CheckReport,
    problem: Problem,
    files: Mapping[str, File],
    given: Mapping[str, Tolerance],
    upstream: Mapping[str, Any],
    inputs: Sequence[Array],
    time_limit: float | None,
) -> CheckReport:
    """Return the report with verdicts on gradients; with a time limit also with their diagnosis."""
    if upstream["dcontext"] is None:
        raise UsageError(
            "gradients need the gradient of the context, but none is given",
            hint="give dcontext=… (--grad do.npy); for out.sum(), it is an array of ones",
        )
    answers = gradients_of(problem, **upstream, outputs=[*files])
    model = _model(report, problem, upstream)
    short = short_of([*inputs, real_array("dcontext", upstream["dcontext"])])
    tolerances = _earned(model, files, short)
    for name in given.keys() & files.keys():
        error = tolerances[name].plain_error
        tolerances[name] = replace(given[name], plain_error=error)
    found = {
        name: judged(problem, name, file, answers[name], tolerances[name])
        for name, file in files.items()
    }
    verdicts = tuple(verdict_of(problem, name, one) for name, one in found.items())
    diagnosis = report.diagnosis
    if time_limit is not None and not all(verdict.passed for verdict in verdicts):
        from attncli.referee.gradients.search import diagnose  # noqa: PLC0415 - of wrong ones

        own = diagnose(model, found, time_limit)
        diagnosis = own if diagnosis is None else diagnosis + own
    values = {name: file.values for name, file in files.items()}
    return replace(
        report,
        verdicts=(*report.verdicts, *verdicts),
        diagnosis=diagnosis,
        _files={**report._files, **values},  # noqa: SLF001 - its own
        _answers={**report._answers, **answers},  # noqa: SLF001
    )


def _model(report: CheckReport, problem: Problem, upstream: Mapping[str, Any]) -> Model:
    dcontext, dlse = upstream_of(problem, upstream["dcontext"], upstream["dlse"])
    shapes = {verdict.name: verdict.expected_shape for verdict in report.verdicts}
    outputs = {
        name: canonical(problem, name, array)
        for name, array in report._files.items()  # noqa: SLF001
        if array.shape == shapes[name]
    }
    rows = np.zeros(problem.shape[:3]) if dlse is None else dlse
    return model_of(problem, dcontext, rows[..., None], outputs)


def _earned(
    model: Model, files: Mapping[str, File], inputs: Precision | None
) -> dict[str, Tolerance]:
    """Return the measured tolerance of each gradient."""
    plain = dict.fromkeys(files, Plain())
    for part in _parts(model.problem):
        exact = model if part is WHOLE else model.stored(model.precision, part)
        for precision in {file.precision for file in files.values()}:
            names = [name for name, file in files.items() if file.precision == precision]
            stored = inputs if inputs and inputs.eps > precision.eps else precision
            for name, one in _plain_errors(exact, names, stored, precision).items():
                plain[name] |= one
    return {name: earned(plain[name], file.precision, file.digits) for name, file in files.items()}


def _parts(problem: Problem) -> Iterator[Part]:
    """Yield all of a small problem, or a few queries of a large one."""
    batch, heads, queries, keys = problem.shape
    if math.prod(problem.shape) <= _CELLS:
        yield WHOLE
        return
    rows = max(1, min(queries, _CELLS // (heads * keys)))
    starts = range(0, queries, rows)
    for number in {*np.linspace(0, batch * len(starts) - 1, _PARTS).round().astype(int).tolist()}:
        start = starts[number % len(starts)]
        yield Part(number // len(starts), None, (start, min(start + rows, queries)))


def _plain_errors(
    exact: Model, names: list[str], stored: Precision, precision: Precision
) -> dict[str, Plain]:
    """Return the errors of the textbook formula on a part."""
    single = PRECISIONS["float32"]
    # float64 cannot be measured against itself: its errors are those of float32, scaled down.
    tried = stored if stored.short else single
    held = dict.fromkeys((*_HELD, *names), lambda _, made: tried.rounded(made))
    computed = min(stored.eps, single.eps)  # steps that are not stored are at least float32
    amount = max(computed, _TRIED_EPS)
    ways = [
        (exact.stored(tried, exact.part).but(**_STORED), stored.eps / tried.eps),
        (exact.stored(single, exact.part).then(**held), stored.eps / tried.eps),
        *((_disturbed(exact, amount, seed), computed / amount) for seed in (1, 2)),
    ]
    errors = {}
    for name in names:
        times, right = _times(exact, name), exact[name]
        answer = times * root_mean_square(right)
        plain = Plain(size=answer, rms_answer=answer, rows=right[..., 0].size)
        for way, share in ways:
            error = np.abs(way[name].astype(np.float64) - right)
            error = share * times * np.where(np.isfinite(error), error, 0)
            excess = error - precision.eps * times * np.abs(right)
            plain |= Plain(
                largest=float(error.max()),
                excess=float(excess.max(initial=0)),
                rms=root_mean_square(error),
            )
        errors[name] = plain
    return errors


def _disturbed(exact: Model, eps: float, seed: int) -> Model:
    """Return the model with random errors in scores and dweights."""
    random = np.random.default_rng(seed)

    def moved(model: Model, made: Array) -> Array:
        sizes = together(np.abs(model["dcontext"]), np.abs(model["value"]).mT)
        return np.asarray(made + eps * sizes * random.uniform(-1, 1, made.shape))

    pipe = disturbed(exact["backward"], eps, seed)
    return exact.by(pipe, "forward", "backward").then(dweights=moved)


def _times(model: Model, name: str) -> float:
    """Return the ratio of the error of the sum over all queries to that over the part."""
    batch, _, queries, _ = model.problem.shape
    rows = model.part.rows
    if rows is None or name == "dquery":
        return 1.0
    share = queries / (rows[1] - rows[0])
    array = getattr(model.problem, GRADIENTS[name])
    if name == "dbias" and array.shape[2] > 1:
        share = 1.0
    every = name == "dsinks" or len(array) == 1
    return math.sqrt(share * (batch if every else 1))


_STORED: dict[str, Step] = {
    "weights": lambda m: m["again"]["weights"],
    "delta": lambda m: np.vecdot(m["weights"], m["dweights"])[..., None] - m["dlse"],
}
