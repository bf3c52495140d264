"""``attncli check``: whether another implementation's output is right, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Option

from attncli.cli.drawing import Look, as_metadata, figure_format, write_figure
from attncli.cli.ending import MISMATCH
from attncli.cli.groups import GroupedCommand, grouped
from attncli.cli.options import (
    JUDGING,
    MOST_USED,
    AverageOptions,
    PickOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.question import ask
from attncli.cli.terminal import advice, console, note, print_text, say, shows_unicode
from attncli.errors import ShapeError, UsageError
from attncli.names import OUTPUTS
from attncli.text import json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from attncli.problem import Problem
    from attncli.referee.report import CheckReport, Verdict

__all__ = ["add_to"]


@dataclass(eq=False, repr=False)
class CheckOptions:
    """What is judged, how strictly, and how it is told."""

    expect: Annotated[
        list[str] | None,
        Option(
            metavar="[NAME=]FILE",
            help="Output of the other implementation: its context, or weights=FILE, lse=FILE, "
            "scores=FILE. Repeatable.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    diagnose: Annotated[
        bool,
        Option(
            "--diagnose/--no-diagnose",
            help="Look for the mistake that explains a mismatch, or that the tolerance of a 16-bit "
            "file hides.",
            rich_help_panel=MOST_USED,
        ),
    ] = True
    diff: Annotated[
        str | None,
        Option(
            metavar="PATH",
            help="Draw the signed difference into a .png, .svg or .pdf file.",
            rich_help_panel=MOST_USED,
        ),
    ] = None
    format: Annotated[
        Literal["text", "json"],
        Option(
            "--format",
            "-f",
            help="Format of the report; json is for CI.",
            rich_help_panel=MOST_USED,
        ),
    ] = "text"
    rtol: Annotated[
        float | None,
        Option(
            metavar="X",
            min=0,
            help="Relative tolerance. Default: earned, from the rounding errors of the plain "
            "formula in the file's own dtype.",
            rich_help_panel=JUDGING,
        ),
    ] = None
    atol: Annotated[
        float | None,
        Option(metavar="X", min=0, help="Absolute tolerance.", rich_help_panel=JUDGING),
    ] = None
    time_limit: Annotated[
        float,
        Option(
            metavar="SECONDS", min=0, help="Time limit of the diagnosis.", rich_help_panel=JUDGING
        ),
    ] = 10.0


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("check", cls=GroupedCommand)(grouped(check))


def check(
    options: ProblemOptions, judging: CheckOptions, average: AverageOptions, run: RunOptions
) -> None:
    """Judge another implementation's output, and name the mistake.

    The answer is computed in float64 and compared. The exit code is 0 if the output is right
    and 1 if it is wrong; then common mistakes are tried, to name the one that makes the
    numbers agree.

    attncli check q.npy k.npy v.npy --expect out.npy
    """
    from attncli.dtypes import BFLOAT16
    from attncli.gather import advise_on_dtype
    from attncli.loading import split_member
    from attncli.referee import check as judged
    from attncli.save.files import refuse_inputs

    files = _expected(judging.expect or [])
    if judging.diff is not None:
        figure_format("--diff", judging.diff)
    with advice(quiet=run.quiet):
        question = ask(options, PickOptions(), run, more=True)
        if judging.diff is not None:
            judged_files = [split_member(file)[0] for file in files.values()]
            refuse_inputs([judging.diff], [*question.inputs, *judged_files])
        expected = {name: _read(name, file, options.dtype) for name, file in files.items()}
        read = question.bfloat16 or any(each.dtype == BFLOAT16 for each in expected.values())
        advise_on_dtype(options.dtype, bfloat16=read)
        report = judged(
            expected,
            question.problem,
            rtol=judging.rtol,
            atol=judging.atol,
            average_heads=average.average_heads,
            diagnose=judging.diagnose,
            time_limit=judging.time_limit,
            threads=run.threads,
        )
    _tell(report, judging, run)
    if judging.diff is not None:
        asked = as_metadata(options, {"expect": judging.expect}, average)
        _draw(report, question.problem, judging.diff, asked, run)
    if not report.passed:
        raise typer.Exit(MISMATCH)


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
            hint=f"for a file of that name write ./{word}",
        )
    return "context", word


def _read(name: str, file: str, dtype: str | None) -> Any:
    from attncli.loading import read_array

    return read_array(file, dtype=dtype, entry=name).values


def _tell(report: CheckReport, judging: CheckOptions, run: RunOptions) -> None:
    from attncli.view.report import as_dict, renderables

    if judging.format == "json":
        print_text(json_text(as_dict(report)))
        return
    screen = console(run.color)
    for part in renderables(report, unicode=shows_unicode()):
        screen.print(part)


def _as_maps(problem: Problem, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an output as (B, H, rows, columns): the lse as rows, for queries go across."""
    from attncli.referee.verdict import canonical

    four = canonical(problem, name, array)
    return four.swapaxes(2, 3) if name == "lse" else four


def _named_axes(name: str, problem: Problem) -> dict[str, Any]:
    """Return what rows and columns of an output are."""
    queries, keys = problem.query_labels, problem.key_labels
    if name == "context":
        return {"query_labels": queries, "columns_are": "Columns"}
    if name == "lse":
        return {"key_labels": queries, "columns_are": "Queries"}
    return {"query_labels": queries, "key_labels": keys}


def _ends(verdict: Verdict) -> dict[str, Any]:
    """Return the title, and a scale on which what is tolerated looks harmless."""
    from attncli.view.scale import number_text

    title = f"{verdict.name}: file − answer"
    tolerance = verdict.tolerance
    if not verdict.passed or tolerance is None or tolerance.absolute == 0:
        return {"title": title}
    end = tolerance.absolute
    return {"title": f"{title}, tolerance {number_text(end)}", "vmax": end}


def _draw(
    report: CheckReport, problem: Problem, path: str, asked: Mapping[str, str], run: RunOptions
) -> None:
    """Draw the first output that is wrong, or the first of all."""
    import numpy as np

    from attncli.view.differences import difference_picture

    wrong = [verdict for verdict in report.verdicts if not verdict.passed]
    verdict = (wrong or report.verdicts)[0]
    name = verdict.name
    if len(wrong) > 1:
        others = " and ".join(other.name for other in wrong[1:])
        note(f"the picture shows {name}, not {others}", quiet=run.quiet)
    try:
        difference = report.difference(name)
    except ShapeError as error:  # a mismatch that was told; there is nothing to draw
        if not run.quiet:
            say("warning", f"no picture is drawn: {error.message}")
        return
    strange = int(np.count_nonzero(~np.isfinite(difference)))
    if strange:
        are = "element is" if strange == 1 else "elements are"
        note(f"{strange} {are} NaN or infinite, drawn as the strongest", quiet=run.quiet)
    ends = _ends(verdict)
    if strange:
        ends["title"] += f" ({strange} NaN or infinite, drawn as the strongest)"
    shown, hidden = (_as_maps(problem, name, array) for array in (difference, report.hidden(name)))
    picture = difference_picture(shown, hidden=hidden, **_named_axes(name, problem), **ends)
    # They have no number that could be written into their cells.
    look = Look(annotate=False) if strange else None
    for words in write_figure(picture, path, look, asked):
        note(words, quiet=run.quiet)
