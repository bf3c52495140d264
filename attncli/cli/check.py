"""``attncli check``: whether another implementation's output is right, and if not, why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from attncli.cli.cluster import ClusterOptions, judge_blocks, map_files
from attncli.cli.drawing import as_metadata, figure_kind, write_figure
from attncli.cli.ending import MISMATCH, WRONG
from attncli.cli.gradients import grad_files, upstream_of
from attncli.cli.options import (
    AverageOptions,
    CheckOptions,
    GradientOptions,
    PickOneOptions,
    ProblemOptions,
    RunOptions,
    ShardOptions,
)
from attncli.cli.question import ask, is_folder, refuse_average_of_one
from attncli.cli.terminal import (
    advice,
    console,
    limits,
    note,
    print_document,
    progress_bar,
    say,
)
from attncli.errors import ShapeError, UsageError
from attncli.errors.names import GRADIENTS, OUTPUTS, gradient_name
from attncli.errors.text import did_you_mean, json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    import numpy.typing as npt

    from attncli.cli.drawing import Kind
    from attncli.cli.question import Asked
    from attncli.dask.checking import Block
    from attncli.loading.contents import LoadedArray
    from attncli.problem.problem import Problem
    from attncli.referee.report import CheckReport
    from attncli.view.dumps import Judged

__all__ = ["check"]

# Seconds for the diagnosis.
_TIME_LIMIT = 10.0
# What can be judged.
JUDGED = (*OUTPUTS, *GRADIENTS)


def check(
    judging: CheckOptions,
    pick: PickOneOptions,
    average: AverageOptions,
    grads: GradientOptions,
    options: ProblemOptions,
    shard: ShardOptions,
    cluster: ClusterOptions,
    run: RunOptions,
) -> None:
    """Judge another implementation's output, and name the mistake.

    The answer is computed in float64 and compared. The exit code is 0 if the output is right
    and 1 if it is wrong; then common mistakes are tried, to name the one that makes the
    numbers agree.

    Example: attncli check q.npy k.npy v.npy --expect out.npy

    Several files that hold their own outputs, or a folder of them, are judged one by one, a row
    each.

    Example: attncli check layer.npz --causal --expect layer.npz#out

    Example: attncli check layer.npz --causal --expect '#out' --junit report.xml
    """
    from attncli.cli.dumps import dump_files, options_of

    refuse_average_of_one(pick, average)
    options = options.of_part(shard)
    if dumps := dump_files(options, judging):

        def judge(file: str) -> CheckReport:
            own, of_file = options_of(file, options, judging)
            return _judge_one(of_file, pick, average, grads, own, run)[0]

        _judge_many(dumps, judge, judging, cluster, run)
    elif cluster.takes(options):
        refused = shard.given() or average.average_heads or grad_files(grads)
        if refused or judging.beside or judging.diff:
            raise UsageError(
                "--workers, --scheduler and large Zarr take no --keys, --queries, "
                "--average-heads, --grad, --beside or --diff"
            )
        _judge_in_blocks(judging, pick, options, cluster, run)
    else:
        _judge_alone(judging, pick, average, grads, options, run)


def _judge_many(
    files: list[str],
    judge: Callable[[str], CheckReport],
    judging: CheckOptions,
    cluster: ClusterOptions,
    run: RunOptions,
) -> None:
    """Judge dumps, each by its own inputs and outputs."""
    from attncli.cli.dumps import judge_files, judge_it

    if judging.diff or judging.beside:
        raise UsageError("--diff and --beside are for one file; found several")
    if cluster.is_asked_for:
        # Workers have other current folders.
        whole = {file: str(Path(file).resolve()) for file in files}
        found = map_files(
            lambda file: judge_it(file, lambda name: judge(whole[name])), files, cluster, run
        )
    else:
        found = judge_files(files, judge, run)
    _end_of_many(found, judging, run)


def _judge_in_blocks(
    judging: CheckOptions,
    pick: PickOneOptions,
    options: ProblemOptions,
    cluster: ClusterOptions,
    run: RunOptions,
) -> None:
    """Judge one problem block by block, a row each."""
    from attncli.cli.dumps import judge_it

    files = _expected(judging.expect or [])
    settings = {
        "diagnose": judging.diagnose,
        "time_limit": _limit(judging),
        "rtol": _tolerance("--rtol", judging.rtol),
        "atol": _tolerance("--atol", judging.atol),
    }

    def judge(block: Block, outputs: Mapping[str, Any]) -> Judged:
        return judge_it(str(block), lambda _: block.report(outputs, **settings))

    _end_of_many(judge_blocks(files, judge, pick, options, cluster, run), judging, run)


def _end_of_many(found: list[Judged], judging: CheckOptions, run: RunOptions) -> None:
    """Tell many reports, and end with the exit code of the worst."""
    from attncli.cli.dumps import tell_all

    tell_all(found, judging, run)
    words = {one.word for one in found}
    if "error" in words:
        raise typer.Exit(WRONG)
    if "MISMATCH" in words:
        raise typer.Exit(MISMATCH)


def _judge_alone(
    judging: CheckOptions,
    pick: PickOneOptions,
    average: AverageOptions,
    grads: GradientOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Judge one problem, and tell everything that is found."""
    if judging.junit is not None:
        raise UsageError("--junit is for many files, or a folder of dumps")
    options, recorded = _of_recorded_call(options)
    judging.expect = judging.expect or recorded
    if judging.diff and GRADIENTS.keys() & _expected(judging.expect):
        raise UsageError("--diff draws outputs; found a gradient")
    kind = None if judging.diff is None else figure_kind("--diff", judging.diff)
    with progress_bar(_waited_for(judging), counted=False, quiet=run.quiet):
        report, question, beside = _judge_one(judging, pick, average, grads, options, run)
    try:  # who reads the report may close it, and who asked for a picture gets it
        if judging.diff is not None and kind is not None:
            asked = as_metadata(options, {"expect": judging.expect}, average)
            _draw(report, question.problem, judging.diff, kind, asked, run)
    finally:
        _tell(report, judging, run, beside)
    if not report.passed:
        raise typer.Exit(MISMATCH)


def _judge_one(
    judging: CheckOptions,
    pick: PickOneOptions,
    average: AverageOptions,
    grads: GradientOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> tuple[CheckReport, Asked, CheckReport | None]:
    """Return the report on the outputs of one problem, the problem, and the report beside it."""
    from attncli.loading import split_member
    from attncli.referee import check as judged
    from attncli.save.files import refuse_inputs, refuse_unwritable

    files = _expected(judging.expect or [])
    other = {} if judging.beside is None else _beside(judging.beside, files)
    read_files = [*files.values(), *other.values(), *grad_files(grads)]
    with advice(quiet=run.quiet):
        question = ask(options, pick, run, more=read_files, example=False)
        outputs = [] if judging.diff is None else [judging.diff]
        refuse_inputs(outputs, [*question.inputs, *(split_member(file)[0] for file in read_files)])
        refuse_unwritable(outputs)

        backward = not GRADIENTS.keys().isdisjoint(files)
        if grads.grad and not backward:
            raise UsageError("--grad has nothing to act on: no gradient is judged")
        given = upstream_of(grads, question, options) if backward else {}

        def report_on(some: dict[str, str], *, diagnose: bool) -> CheckReport:
            read, expected = _outputs(some, question, average, options)
            return judged(
                expected,
                question.problem,
                dcontext=given.get("dcontext"),
                dlse=given.get("dlse"),
                printed={name: each.printed for name, each in read.items() if each.printed},
                rtol=_tolerance("--rtol", judging.rtol),
                atol=_tolerance("--atol", judging.atol),
                average_heads=average.average_heads,
                diagnose=diagnose,
                time_limit=_limit(judging),
                threads=run.threads,
            )

        report = report_on(files, diagnose=judging.diagnose)
        beside = report_on(other, diagnose=False) if other else None
    return report, question, beside


def _beside(word: str, files: dict[str, str]) -> dict[str, str]:
    """Return the second file under the name of the output that it is compared with."""
    if len(files) > 1:
        raise UsageError("--beside compares one output; --expect gives several")
    (name,) = files
    given, file = _named(word)
    if "=" in word and given != name:
        raise UsageError(f"--beside: expected {name}, as --expect gives; found {given}")
    return {name: file}


def _limit(judging: CheckOptions) -> float:
    return _TIME_LIMIT if judging.time_limit is None else judging.time_limit


def _tolerance(name: str, words: list[str] | None) -> float | dict[str, float] | None:
    """Return one tolerance for all outputs, or one for each that is named."""
    from attncli.cli.declaring import positive

    each: dict[str, float] = {}
    for word in words or []:
        output, _, number = word.rpartition("=")
        output = gradient_name(output) or output
        if output and output not in JUDGED:
            raise UsageError(f"{name} {word}: expected a name of {', '.join(JUDGED)}")
        if output in each:
            raise UsageError(f"{name} is given twice for {output or 'all outputs'}")
        try:
            each[output] = positive(number)
        except typer.BadParameter as error:
            raise UsageError(f"{name}: {error.message}") from None
    if "" in each and len(each) > 1:
        raise UsageError(f"{name}: give one number, or NAME=X for each output")
    return each.get("", each or None)


def _of_recorded_call(options: ProblemOptions) -> tuple[ProblemOptions, list[str]]:
    """Return the options with the file that they choose of a folder, and what it has to judge."""
    import copy

    from attncli.cli.dumps import judged_members
    from attncli.gather import dump_file

    folder = (options.files or [""])[0]
    if not is_folder(folder):
        alone = judged_members(folder) if len(options.files or []) == 1 else []
        return options, alone if any("=" in word for word in alone) else []
    file = dump_file(folder, options.layer, options.call)
    chosen = copy.copy(options)
    chosen.files, chosen.layer, chosen.call = [file], None, None
    return chosen, judged_members(file)


def _outputs(
    files: Mapping[str, str], question: Asked, average: AverageOptions, options: ProblemOptions
) -> tuple[dict[str, LoadedArray], dict[str, npt.NDArray[Any]]]:
    """Return what the files of the outputs hold, and the numbers in the axes of the answer."""
    import numpy as np

    from attncli.gather import advise_on_dtype, one_layer
    from attncli.loading import read_array
    from attncli.numerics.dtypes import BFLOAT16
    from attncli.problem.arguments import real_array
    from attncli.problem.shards import part_of_output
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
    if problem.shard is not None:
        read = {
            n: replace(each, values=part_of_output(problem, n, np.asarray(each.values)))
            for n, each in read.items()
        }
    axes = AnswerAxes(problem, question.whole, question.picked, averaged=average.average_heads)
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
    full = gradient_name(name) or name
    if separator and full in JUDGED:
        return full, file
    if separator and name.isidentifier():
        raise UsageError(
            f"--expect {word}: expected NAME=FILE with a name of {', '.join(JUDGED)}; "
            f"found {name!r}",
            hint=did_you_mean(name, JUDGED) or f"for a file of that name write ./{word}",
        )
    return "context", word


def _advise_on_orders(read: Mapping[str, LoadedArray], problem: Problem) -> None:
    """Warn of files with the problem's labels in another order."""
    from attncli.problem.labels import advise_on_order

    for name, file in read.items():
        if name in GRADIENTS:
            continue
        advise_on_order(file.name, file.row_labels, "the problem", problem.query_labels)
        if name not in ("context", "lse"):
            advise_on_order(file.name, file.column_labels, "the problem", problem.key_labels)


def _waited_for(judging: CheckOptions) -> str:
    if not judging.diagnose:
        return "comparing"
    return f"comparing; a mistake is looked for, for {_limit(judging):g} s at most"


def _tell(
    report: CheckReport, judging: CheckOptions, run: RunOptions, beside: CheckReport | None
) -> None:
    from attncli.view.report import as_dict, beside_dict, beside_line, renderables

    if judging.format == "json":
        told = as_dict(report)
        if beside is not None:
            told["beside"] = beside_dict(report, beside)
        print_document(json_text(told))
        return
    screen = console(run.color)
    for part in renderables(report, limits(run.color)):
        screen.print(part)
    if beside is not None:
        screen.print(beside_line(report, beside, str(judging.beside)))


def _draw(
    report: CheckReport,
    problem: Problem,
    path: str,
    kind: Kind,
    asked: Mapping[str, str],
    run: RunOptions,
) -> None:
    """Draw the first output that is wrong, or the first of all."""
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
    for words in write_figure(picture, path, kind, asked):
        note(words, quiet=run.quiet)
