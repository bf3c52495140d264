"""``attncli compute``: weights and context as tables, in a machine's format, or in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.cli.groups import GroupedCommand, grouped
from attncli.cli.options import (
    AverageOptions,
    OutputOptions,
    PickOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.question import ask
from attncli.cli.saving import (
    Save,
    held,
    parse_save,
    results,
    streamed,
    write_save,
)
from attncli.cli.summaries import Summaries
from attncli.cli.terminal import (
    advice,
    binary_stdout,
    color_depth,
    console,
    is_terminal,
    note,
    shows_unicode,
    width,
)
from attncli.errors import UsageError
from attncli.names import INPUTS, OUTPUTS, SUMMARIES
from attncli.text import did_you_mean, quoted

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt
    import typer
    from rich.console import RenderableType

    from attncli.problem import Problem
    from attncli.result import Attention
    from attncli.save.formats import Results
    from attncli.view.tables import Limits

__all__ = ["add_to"]

# Above so many cells a table gets its rows computed alone, not cut from the whole.
_WHOLE_CELLS = 4_000_000


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("compute", cls=GroupedCommand)(grouped(compute))


def compute(
    options: ProblemOptions,
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    run: RunOptions,
) -> None:
    """Print attention weights and context.

    The context is softmax(scale · QKᵀ) V, for the queries, keys and values in the files.

    attncli compute q.csv k.csv v.csv
    """
    from attncli.save.files import refuse_inputs

    with advice(quiet=run.quiet):
        question = ask(options, pick, run)
        problem = question.problem
        names = _names(output.show, problem)
        chosen = bool(output.show)
        saves = [parse_save(text, names, chosen=chosen) for text in output.save or []]
        refuse_inputs([save.path for save in saves], question.inputs)
        for text, save in zip(output.save or [], saves, strict=True):
            _tell_of_another_name(text, save, run)
        asked = {*names, *(name for save in saves for name in save.names)}
        if average.average_heads:
            _refuse_average(asked)
        if output.top is not None and "top" not in asked:
            raise UsageError("--top says how many keys --show top lists: add top to --show")
        if question.unprojected and "context" in asked:
            _warn_unprojected()
        if output.format != "table":
            names = held(names, output.format, chosen=chosen)
            _refuse_binary(output.format)
        summaries = Summaries(problem, output.top_keys, pick, run)
        answer = _solve_and_save(problem, names, saves, summaries, output, average, run)
    if output.format != "table":
        found = results(names, problem, answer, summaries.among(names))
        _write_stdout(output.format, found)
    else:
        _print_tables(problem, answer, names, summaries, output, run, pick, average)


def _tell_of_another_name(text: str, save: Save, run: RunOptions) -> None:
    """Say what a file holds where its name, and nothing else, says another output."""
    stem = Path(save.path).stem
    if text == save.path and stem in OUTPUTS and len(save.names) == 1 and stem != save.names[0]:
        words = f"{save.path} holds the {save.names[0]}; --save {stem}={save.path} saves the {stem}"
        note(words, quiet=run.quiet)


def _names(show: Sequence[str] | None, problem: Problem) -> tuple[str, ...]:
    if not show:
        return OUTPUTS[:2] if problem.value is not None else OUTPUTS[:1]
    names = tuple(dict.fromkeys(name.strip() for names in show for name in names.split(",")))
    known = (*OUTPUTS, *SUMMARIES, *INPUTS)
    for name in names:
        if name not in known:
            raise UsageError(
                f"--show: expected names of {', '.join(known)}; found {quoted(name)}",
                hint=did_you_mean(name, known),
            )
    return names


def _warn_unprojected() -> None:
    from attncli.advice import UNPROJECTED
    from attncli.arguments import warn

    warn(UNPROJECTED)


def _refuse_average(asked: set[str]) -> None:
    if each := [name for name in SUMMARIES if name in asked]:
        raise UsageError(
            f"{each[0]} is computed for each head: leave out either it or --average-heads"
        )
    if "weights" not in asked:
        raise UsageError(
            "--average-heads averages the weights, which are not asked for",
            hint="add weights to --show",
        )


def _solve_and_save(
    problem: Problem,
    names: tuple[str, ...],
    saves: Sequence[Save],
    summaries: Summaries,
    output: OutputOptions,
    average: AverageOptions,
    run: RunOptions,
) -> Attention:
    """Compute what is shown and saved, and write the files; return what is held."""
    shown = _shown_whole(names, output.format, problem)
    with streamed(problem, () if average.average_heads else saves, shown) as maps:
        into = {save.names[0]: array for save, array in maps.items()}
        asked = {name for save in saves for name in save.names}.union(shown)
        needed = tuple(name for name in OUTPUTS if name in asked)
        answer = _solve(problem, needed, into, average, run)
    for save in saves:
        if save not in maps:
            write_save(save, results(save.names, problem, answer, summaries.among(save.names)))
    return replace(answer, **dict.fromkeys(into))


def _shown_whole(names: tuple[str, ...], kind: str, problem: Problem) -> tuple[str, ...]:
    """Return which of the outputs to show must be computed whole."""
    batch, heads, queries, keys = problem.shape
    arrays = tuple(name for name in names if name in OUTPUTS)
    if kind != "table" or batch * heads * queries * keys <= _WHOLE_CELLS:
        return arrays
    return tuple(name for name in arrays if name in ("context", "lse"))


def _solve(
    problem: Problem,
    names: Sequence[str],
    into: Mapping[str, npt.NDArray[Any]],
    average: AverageOptions,
    run: RunOptions,
) -> Attention:
    from attncli.api import solve
    from attncli.cli.progress import progress_bar

    with progress_bar(quiet=run.quiet) as progress:
        if average.average_heads:
            from attncli.averaging import solve_averaged

            return solve_averaged(problem, names, threads=run.threads, progress=progress)
        return solve(problem, names, threads=run.threads, into=into, progress=progress)


def _write_stdout(kind: str, outputs: Results) -> None:
    from attncli.save.formats import write

    stream = binary_stdout()
    write(stream, outputs, kind)
    stream.flush()


def _refuse_binary(kind: str) -> None:
    if kind in ("npy", "npz") and is_terminal():
        raise UsageError(
            f"{kind} is binary and stdout is a terminal", hint=f"send it to a file: > out.{kind}"
        )


def _print_tables(
    problem: Problem,
    answer: Attention,
    names: tuple[str, ...],
    summaries: Summaries,
    output: OutputOptions,
    run: RunOptions,
    pick: PickOptions,
    average: AverageOptions,
) -> None:
    from attncli.view.answer import input_parts

    screen = console(run.color)
    limits = _limits(output, run)
    inputs = [name for name in names if name in INPUTS]
    for part in input_parts(problem, inputs, limits, (pick.batch, pick.head)):
        screen.print(part)
    arrays = [name for name in names if name in OUTPUTS]
    for part in _array_parts(problem, answer, arrays, limits, pick, average, run):
        screen.print(part)
    for name in names:
        if name in SUMMARIES:
            for line in summaries.parts(name, limits):
                screen.print(line)


def _array_parts(
    problem: Problem,
    answer: Attention,
    names: list[str],
    limits: Limits,
    pick: PickOptions,
    average: AverageOptions,
    run: RunOptions,
) -> Iterator[RenderableType]:
    """Yield the tables of the outputs; the mean of the heads is one of its own, in its place."""
    from attncli.view.answer import answer_parts, average_parts

    averaged = average.average_heads and "weights" in names
    place = names.index("weights") if averaged else len(names)
    picked = pick.batch, pick.head
    if names[:place]:
        yield from answer_parts(problem, answer, names[:place], limits, picked, threads=run.threads)
    if averaged:
        yield from average_parts(problem, answer.weights, limits, pick.batch, threads=run.threads)
    if names[place + 1 :]:
        yield from answer_parts(
            problem, answer, names[place + 1 :], limits, picked, threads=run.threads
        )


def _limits(output: OutputOptions, run: RunOptions) -> Limits:
    from attncli.view.tables import Limits

    rows, columns, heads = (20, None, 4) if is_terminal() else (64, 64, 16)
    return Limits(
        rows=rows if output.max_rows is None else output.max_rows or None,
        columns=columns if output.max_cols is None else output.max_cols or None,
        heads=heads,
        width=width() if output.max_cols is None else None,
        digits=output.digits,
        unicode=shows_unicode(),
        depth=color_depth(run.color),
    )
