"""``attncli check``: whether another implementation's output is right, and if not, why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from attncli.cli.cluster import ClusterOptions, judge_blocks, map_files
from attncli.cli.declaring import JUDGING, MOST_USED, between, by_name, option
from attncli.cli.drawing import figure_kind, write_figure
from attncli.cli.ending import MISMATCH, WRONG
from attncli.cli.options import (
    AverageOptions,
    Formatted,
    GradientOptions,
    PickOneOptions,
    ShardOptions,
)
from attncli.cli.question import ask, upstream_of
from attncli.cli.terminal import (
    advice,
    limits,
    note,
    print_document,
    print_parts,
    progress_bar,
    say,
)
from attncli.errors import ShapeError, UsageError
from attncli.errors.names import GRADIENTS, OUTPUTS
from attncli.errors.text import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from attncli.cli.question import Asked
    from attncli.loading.contents import LoadedArray
    from attncli.problem.problem import Problem
    from attncli.referee.report import CheckReport
    from attncli.view.dumps import Judged

_JUDGED = (*OUTPUTS, *GRADIENTS)


class CheckOptions(
    Formatted, PickOneOptions, AverageOptions, GradientOptions, ShardOptions, ClusterOptions
):
    """The outputs to judge, the tolerance, and the form of the report."""

    expect: list[str] | None = option(
        MOST_USED,
        "[NAME=]FILE",
        "Required: the output of the other implementation, its context, or NAME=FILE with "
        "weights, lse, scores, raw, capped or a gradient (--grad). Repeatable. Of many files, and "
        "of a folder, #NAME is a member of each; default: #out and the gradients.",
    )
    diagnose: bool = option(
        MOST_USED,
        None,
        "Look for the mistake that explains a mismatch.",
        "--diagnose/--no-diagnose",
        default=True,
    )
    diff: str | None = option(
        MOST_USED, "PATH", "Draw the signed difference into a .png, .svg or .pdf file."
    )
    format: Literal["text", "json"] = option(
        MOST_USED, None, "Format of the report; json is for CI.", "--format", "-f", default="text"
    )
    rtol: list[str] | None = option(
        JUDGING,
        "[NAME=]X",
        "Relative tolerance, in place of the earned one, which follows from the rounding errors "
        "of the textbook formula in the file's own dtype; --atol is then 0 unless given. "
        "NAME=X is for one output. Repeatable.",
    )
    atol: list[str] | None = option(
        JUDGING,
        "[NAME=]X",
        "Absolute tolerance, in place of the earned one; --rtol is then 0 unless given. "
        "NAME=X is for one output. Repeatable.",
    )
    beside: str | None = option(
        JUDGING,
        "FILE",
        "A second output of the same kind: which of the two errs less, and by how much.",
    )
    junit: str | None = option(
        JUDGING, "PATH", "Of many files, write the verdicts for a CI server: report.xml."
    )
    time_limit: float = option(
        JUDGING, "SECONDS", "Time limit of the diagnosis.", parser=between(0), default=10
    )

    @property
    def takes_example(self) -> bool:
        """An output of the example is never judged."""
        return False

    @property
    def also_read(self) -> list[str]:
        """The files of outputs and gradients."""
        return [*self.outputs.values(), *self.second.values(), *self.grad_files]

    @property
    def settings(self) -> dict[str, Any]:
        """The tolerances, and whether and how long a mistake is looked for."""
        return {
            "diagnose": self.diagnose,
            "time_limit": self.time_limit,
            "rtol": _tolerance("--rtol", self.rtol),
            "atol": _tolerance("--atol", self.atol),
        }

    @property
    def outputs(self) -> dict[str, str]:
        """The files to judge, by the names of their outputs."""
        if not self.expect:
            raise UsageError(
                "check needs an output to judge",
                hint="--expect out.npy, or --expect weights=w.npy",
            )
        return by_name("--expect", self.expect, _JUDGED, "context")

    @property
    def second(self) -> dict[str, str]:
        """The file of --beside, under the name of the output that it is compared with."""
        if self.beside is None:
            return {}
        if len(self.outputs) > 1:
            raise UsageError("--beside compares one output; --expect gives several")
        (name,) = self.outputs
        found = by_name("--beside", [self.beside], _JUDGED, name)
        if name not in found:
            raise UsageError(f"--beside: expected {name}, as --expect gives; found {min(found)}")
        return found


def _tolerance(flag: str, words: list[str] | None) -> float | dict[str, float] | None:
    """Return one tolerance for all outputs, or one for each that is named."""
    texts = by_name(flag, words, _JUDGED, "all outputs")
    try:
        each = {output: between(0)(text) for output, text in texts.items()}
    except typer.BadParameter as error:
        raise UsageError(f"{flag}: {error.message}") from None
    if "all outputs" in each and len(each) > 1:
        raise UsageError(f"{flag}: give one number, or NAME=X for each output")
    return each.get("all outputs", each or None)


def check(options: CheckOptions) -> None:
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
    from attncli.cli.dumps import dump_files

    if files := dump_files(options):
        options.refuse("diff beside", "is for one file; found several")
        _end_of_many(_judge_many(files, options), options)
    elif options.takes():
        others = "keys queries average_heads grad beside diff"
        options.refuse(others, "does not go with --workers, --scheduler or large Zarr")
        _end_of_many(_judge_in_blocks(options), options)
    else:
        options.refuse("junit", "is for many files, or a folder of dumps")
        _judge_alone(options)


def _judge_many(files: list[str], options: CheckOptions) -> list[Judged]:
    """Judge each dump by its own inputs; an error in one does not stop the others."""
    from attncli.cli.dumps import judge_it, options_of

    here = Path.cwd()  # workers have another current folder

    def judge(file: str) -> Judged:
        path = str(here / file) if options.is_asked_for else file
        return judge_it(file, lambda: _judge_one(options_of(path, options))[0])

    if options.is_asked_for:
        return map_files(judge, files, options)
    found = []
    with progress_bar(f"judging {len(files)} files", quiet=options.quiet) as told:
        for number, file in enumerate(files):
            if told is not None:
                told(number, len(files))
            found.append(judge(file))
    return found


def _judge_in_blocks(options: CheckOptions) -> list[Judged]:
    from attncli.errors import AttnError
    from attncli.view.dumps import Judged

    found = judge_blocks(options.outputs, options, **options.settings)
    return [
        Judged(place, error=one) if isinstance(one, AttnError) else Judged(place, one)
        for place, one in found.items()
    ]


def _end_of_many(found: list[Judged], options: CheckOptions) -> None:
    from attncli.cli.dumps import tell_all

    tell_all(found, options)
    words = {one.word for one in found}
    if "error" in words:
        raise typer.Exit(WRONG)
    if "MISMATCH" in words:
        raise typer.Exit(MISMATCH)


def _judge_alone(options: CheckOptions) -> None:
    from attncli.cli.dumps import of_one_file

    options = of_one_file(options)
    if options.diff and GRADIENTS.keys() & options.outputs:
        raise UsageError("--diff draws outputs; found a gradient")
    if options.diff is not None:
        figure_kind(options.diff, "--diff")
    words = "comparing"
    if options.diagnose:
        words += f"; a mistake is looked for, for {options.time_limit:g} s at most"
    with progress_bar(words, counted=False, quiet=options.quiet):
        report, question, beside = _judge_one(options)
    try:  # the picture comes first: standard output may be closed
        if options.diff is not None:
            _draw(report, question.problem, options.diff, options)
    finally:
        _tell(report, beside, options)
    if not report.passed:
        raise typer.Exit(MISMATCH)


def _judge_one(options: CheckOptions) -> tuple[CheckReport, Asked, CheckReport | None]:
    """Return the report on one problem's outputs, the problem, and the report on --beside."""
    from attncli.loading import split_member
    from attncli.referee import check as judged
    from attncli.save.files import refuse_inputs, refuse_unwritable

    files, read_files = options.outputs, options.also_read
    with advice(quiet=options.quiet):
        question = ask(options)
        pictures = [] if options.diff is None else [options.diff]
        refuse_inputs(pictures, [*question.inputs, *(split_member(file)[0] for file in read_files)])
        refuse_unwritable(pictures)

        given: dict[str, Any] = {}
        if GRADIENTS.keys().isdisjoint(files):
            options.refuse("grad", "has nothing to act on: no gradient is judged")
        else:
            given = upstream_of(options, question)

        def report_on(some: dict[str, str], **more: Any) -> CheckReport:
            read, expected = _outputs(some, question, options)
            return judged(
                expected,
                question.problem,
                **given,
                printed={name: each.printed for name, each in read.items() if each.printed},
                average_heads=options.average_heads,
                threads=options.threads,
                **{**options.settings, **more},
            )

        report = report_on(files)
        beside = report_on(options.second, diagnose=False) if options.beside else None
    return report, question, beside


def _outputs(
    files: Mapping[str, str], question: Asked, options: CheckOptions
) -> tuple[dict[str, LoadedArray], dict[str, npt.NDArray[Any]]]:
    """Return the outputs twice: as their files hold them, and in the axes of the answer."""
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
    axes = AnswerAxes(problem, question.whole, question.picked, averaged=options.average_heads)
    expected = {
        n: real_array(f"{n} ({files[n]})", axes.of(n, each.values, is_table=each.is_table))
        for n, each in read.items()
    }
    bfloat16 = question.bfloat16 or any(each.dtype == BFLOAT16 for each in expected.values())
    advise_on_dtype(options.dtype, bfloat16=bfloat16)
    return read, expected


def _advise_on_orders(read: Mapping[str, LoadedArray], problem: Problem) -> None:
    from attncli.problem.labels import advise_on_order

    for name, file in read.items():
        if name in GRADIENTS:
            continue
        advise_on_order(file.name, file.row_labels, "the problem", problem.query_labels)
        if name not in ("context", "lse"):
            advise_on_order(file.name, file.column_labels, "the problem", problem.key_labels)


def _tell(report: CheckReport, beside: CheckReport | None, options: CheckOptions) -> None:
    from attncli.view.report import as_dict, beside_dict, beside_line, renderables

    if options.format == "json":
        told = as_dict(report)
        if beside is not None:
            told["beside"] = beside_dict(report, beside)
        print_document(json_text(told))
        return
    print_parts(renderables(report, limits(options.color)), options.color)
    if beside is not None:
        print_parts([beside_line(report, beside, str(options.beside))], options.color)


def _draw(report: CheckReport, problem: Problem, path: str, options: CheckOptions) -> None:
    """Draw the first wrong output, or the first output if all are right."""
    from attncli.view.pictures.report import report_picture

    wrong = [verdict.name for verdict in report.verdicts if not verdict.passed]
    name = wrong[0] if wrong else report.verdicts[0].name
    if len(wrong) > 1:
        note(f"the picture shows {name}, not {' and '.join(wrong[1:])}", quiet=options.quiet)
    try:
        picture, strange = report_picture(report, problem, name)
    except ShapeError as error:  # the report says so; there is nothing to draw
        if not options.quiet:
            say("warning", f"no picture is drawn: {error.message}")
        return
    if strange:
        are = "element is" if strange == 1 else "elements are"
        note(f"{strange} {are} NaN or infinite, drawn as the strongest", quiet=options.quiet)
    write_figure(picture, path, options)
