"""``attncli check``: whether another implementation's output is right, and if not, why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from attncli.cli.drawing import Target, as_metadata, figure_target, write_figure
from attncli.cli.ending import MISMATCH
from attncli.cli.options import (
    AverageOptions,
    CheckOptions,
    PickOneOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.question import ask, refuse_average_of_one
from attncli.cli.terminal import (
    advice,
    console,
    note,
    print_document,
    progress_bar,
    say,
    shows_unicode,
)
from attncli.errors import ShapeError, UsageError
from attncli.errors.names import OUTPUTS
from attncli.errors.text import did_you_mean, json_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy.typing as npt

    from attncli.cli.question import Asked
    from attncli.loading.contents import LoadedArray
    from attncli.problem.problem import Problem
    from attncli.referee.report import CheckReport

__all__ = ["check"]

# Seconds for the diagnosis.
_TIME_LIMIT = 10.0


def check(
    judging: CheckOptions,
    pick: PickOneOptions,
    average: AverageOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Judge another implementation's output, and name the mistake.

    The answer is computed in float64 and compared. The exit code is 0 if the output is right
    and 1 if it is wrong; then common mistakes are tried, to name the one that makes the
    numbers agree.

    Example: attncli check q.npy k.npy v.npy --expect out.npy

    Example: attncli check layer.npz --causal --expect layer.npz#out
    """
    from attncli.loading import split_member
    from attncli.referee import check as judged
    from attncli.save.files import refuse_inputs, refuse_unwritable

    refuse_average_of_one(pick, average)
    limit = _TIME_LIMIT if judging.time_limit is None else judging.time_limit
    options, recorded = _of_recorded_call(options)
    files = _expected(judging.expect or recorded)
    target = None if judging.diff is None else figure_target("--diff", judging.diff)
    with advice(quiet=run.quiet):
        question = ask(options, pick, run, more=[*files.values()], example=False)
        if target is not None:
            judged_files = [split_member(file)[0] for file in files.values()]
            refuse_inputs([target.path], [*question.inputs, *judged_files])
            refuse_unwritable([target.path])
        read, expected = _outputs(files, question, average, options)
        with progress_bar(_waited_for(judging, limit), counted=False, quiet=run.quiet):
            report = judged(
                expected,
                question.problem,
                printed={name: each.printed for name, each in read.items() if each.printed},
                rtol=judging.rtol,
                atol=judging.atol,
                average_heads=average.average_heads,
                diagnose=judging.diagnose,
                time_limit=limit,
                threads=run.threads,
            )
    try:  # who reads the report may close it, and who asked for a picture gets it
        if target is not None:
            asked = as_metadata(options, {"expect": judging.expect}, average)
            _draw(report, question.problem, target, asked, run)
    finally:
        _tell(report, judging, run)
    if not report.passed:
        raise typer.Exit(MISMATCH)


def _of_recorded_call(options: ProblemOptions) -> tuple[ProblemOptions, list[str]]:
    """Return the options with the file that they choose of a folder, and what it has to judge."""
    import copy
    import os

    from attncli.gather import dump_file

    folder = (options.files or [""])[0]
    if not os.path.isdir(folder):  # noqa: PTH112 - false of names that no file can have
        return options, []
    file = dump_file(folder, options.layer, options.call)
    chosen = copy.copy(options)
    chosen.files, chosen.layer, chosen.call = [file], None, None
    return chosen, [f"{file}#out"]


def _outputs(
    files: Mapping[str, str], question: Asked, average: AverageOptions, options: ProblemOptions
) -> tuple[dict[str, LoadedArray], dict[str, npt.NDArray[Any]]]:
    """Return what the files of the outputs hold, and the numbers in the axes of the answer."""
    from attncli.gather import advise_on_dtype, one_layer
    from attncli.loading import read_array
    from attncli.numerics.dtypes import BFLOAT16
    from attncli.problem.arguments import real_array
    from attncli.referee.answer_axes import AnswerAxes

    problem = question.problem
    read = {
        n: one_layer(
            read_array(f, dtype=options.dtype, header=options.header, entry=n), options.layer
        )
        for n, f in files.items()
    }
    if "context" in read:
        question.warn_unprojected()
    _advise_on_orders(read, problem)
    whole = question.whole or problem
    axes = AnswerAxes(problem, whole, question.picked, averaged=average.average_heads)
    expected = {
        n: real_array(f"{n} ({files[n]})", axes.of(n, each.values, is_table=each.is_table))
        for n, each in read.items()
    }
    bfloat16 = question.bfloat16 or any(each.dtype == BFLOAT16 for each in expected.values())
    advise_on_dtype(options.dtype, bfloat16=bfloat16)
    return read, expected


def _expected(words: list[str]) -> dict[str, str]:
    if not words:
        raise UsageError(
            "check needs an output to judge", hint="--expect out.npy, or --expect weights=w.npy"
        )
    files: dict[str, str] = {}
    for word in words:
        name, file = _named(word)
        if name in files:
            raise UsageError(f"--expect gives {name} twice: {files[name]} and {file}")
        files[name] = file
    return files


def _named(word: str) -> tuple[str, str]:
    name, separator, file = word.partition("=")
    if separator and name in OUTPUTS:
        return name, file
    if separator and name.isidentifier():
        raise UsageError(
            f"--expect {word}: expected NAME=FILE with a name of {', '.join(OUTPUTS)}; "
            f"found {name!r}",
            hint=did_you_mean(name, OUTPUTS) or f"for a file of that name write ./{word}",
        )
    return "context", word


def _advise_on_orders(read: Mapping[str, LoadedArray], problem: Problem) -> None:
    """Warn of files with the problem's labels in another order."""
    from attncli.problem.labels import advise_on_order

    for name, file in read.items():
        advise_on_order(file.name, file.row_labels, "the problem", problem.query_labels)
        if name not in ("context", "lse"):
            advise_on_order(file.name, file.column_labels, "the problem", problem.key_labels)


def _waited_for(judging: CheckOptions, limit: float) -> str:
    if not judging.diagnose:
        return "comparing"
    return f"comparing; a mistake is looked for, for {limit:g} s at most"


def _tell(report: CheckReport, judging: CheckOptions, run: RunOptions) -> None:
    from attncli.view.report import as_dict, renderables

    if judging.format == "json":
        print_document(json_text(as_dict(report)))
        return
    screen = console(run.color)
    for part in renderables(report, unicode=shows_unicode()):
        screen.print(part)


def _draw(
    report: CheckReport, problem: Problem, target: Target, asked: Mapping[str, str], run: RunOptions
) -> None:
    """Draw the first output that is wrong, or the first of all."""
    from attncli.view.figure.drawing import Look
    from attncli.view.pictures.report import report_picture

    wrong = [verdict.name for verdict in report.verdicts if not verdict.passed]
    name = wrong[0] if wrong else report.verdicts[0].name
    if len(wrong) > 1:
        note(f"the picture shows {name}, not {' and '.join(wrong[1:])}", quiet=run.quiet)
    try:
        picture, strange = report_picture(report, problem, name)
    except ShapeError as error:  # a mismatch that was told; there is nothing to draw
        if not run.quiet:
            say("warning", f"no picture is drawn: {error.message}")
        return
    if strange:
        are = "element is" if strange == 1 else "elements are"
        note(f"{strange} {are} NaN or infinite, drawn as the strongest", quiet=run.quiet)
    # They have no number that could be written into their cells.
    look = Look(annotate=False) if strange else Look()
    for words in write_figure(picture, target, look, asked):
        note(words, quiet=run.quiet)
