"""``attncli compute``: weights and context as tables, in a machine's format, or in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attncli.cli.options import (
    AverageOptions,
    DigitsOptions,
    OutputOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.picking import PickOptions
from attncli.cli.question import Asked, ask_or_read, refuse_average_of_one
from attncli.cli.saving import (
    Save,
    held,
    refuse_unheld,
    results,
    saves_of,
    streamed,
    write_saves,
)
from attncli.cli.showing import (
    limits_of,
    names_shown,
    refuse_averaged_summaries,
    refuse_binary,
    refuse_unused_labels,
    refuse_unused_top,
    write_stdout,
)
from attncli.cli.summaries import Summaries
from attncli.cli.terminal import (
    advice,
    console,
    note,
)
from attncli.errors import UsageError
from attncli.names import INPUTS, OUTPUTS, SUMMARIES

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt
    from rich.console import RenderableType

    from attncli.indices import Picked
    from attncli.problem import Problem
    from attncli.result import Attention
    from attncli.save.formats import Results
    from attncli.view.tables import Limits

__all__ = ["compute"]

# Above so many cells a table gets its rows computed alone, not cut from the whole.
_WHOLE_CELLS = 4_000_000


def compute(
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    digits: DigitsOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Print attention weights and context.

    The context is softmax(scale · QKᵀ) V, for the queries, keys and values in the files.

    Example: attncli compute q.csv k.csv v.csv

    Example: attncli compute layer.npz --causal --show weights --save out.npz
    """
    refuse_average_of_one(pick, average)
    with advice(quiet=run.quiet):
        asked = ask_or_read(options, pick, run)
        if output.format != "table":
            digits.tell_of_all(output.format, quiet=run.quiet)
        if not isinstance(asked, Asked):
            from attncli.cli.finished import show_finished

            show_finished(asked, output, pick, average, run, decimals=digits.decimals)
            return
        request = _request(asked, output, average, run)
        answer = _solve_and_save(request)
    if output.format == "table":
        _print_tables(request, answer, digits.decimals)
    else:
        write_stdout(output.format, request.results(request.names, answer))


class _Request(NamedTuple):
    """What is asked of a problem.

    Attributes
    ----------
    problem : Problem
    names : tuple of str
        What is shown, in this order.
    saves : tuple of Save
    summaries : Summaries
    averaged : bool
        The weights are the mean of the heads.
    output : OutputOptions
    picked : Picked
        Which of all batch entries and heads the problem has.
    run : RunOptions
    """

    problem: Problem
    names: tuple[str, ...]
    saves: tuple[Save, ...]
    summaries: Summaries
    averaged: bool
    output: OutputOptions
    picked: Picked
    run: RunOptions

    @property
    def asked(self) -> set[str]:
        """What is shown or saved."""
        return {*self.names, *(name for save in self.saves for name in save.names)}

    def results(self, names: Sequence[str], answer: Attention) -> Results:
        """Return some of it as files and machine formats take it."""
        summaries, labelled = self.summaries.among(names), self.output.with_labels
        return results(names, self.problem, answer, summaries, labelled=labelled)


def _request(
    question: Asked, output: OutputOptions, average: AverageOptions, run: RunOptions
) -> _Request:
    """Check what is asked of a problem."""
    from attncli.summaries.row_blocks import Computed

    problem = question.problem
    names = names_shown(output.show) or OUTPUTS[: 1 if problem.value is None else 2]
    chosen = bool(output.show)
    texts = output.save or ()
    saves = saves_of(texts, names, question.inputs, chosen=chosen)
    for text, save in zip(texts, saves, strict=True):
        _tell_of_another_name(text, save, run)
    picked, averaged = question.picked, average.average_heads
    summaries = Summaries(Computed(problem, run.threads), output.top_keys, picked, run)
    request = _Request(problem, names, saves, summaries, averaged, output, picked, run)
    if averaged:
        refuse_averaged_summaries(request.asked)
        _refuse_unshown_average(request.asked)
    refuse_unused_top(output, request.asked)
    refuse_unused_labels(output, [save.format for save in saves])
    if "context" in request.asked:
        question.warn_unprojected()
    if output.format != "table":
        refuse_binary(output.format)
        request = request._replace(names=held(names, output.format, chosen=chosen))
        refuse_unheld(request.names, output.format, problem, averaged=averaged)
    for save in saves:
        refuse_unheld(save.names, save.format, problem, averaged=averaged)
    return request


def _tell_of_another_name(text: str, save: Save, run: RunOptions) -> None:
    """Say what a file holds where its name, and nothing else, says another output."""
    stem = Path(save.path).stem
    if text == save.path and stem in OUTPUTS and len(save.names) == 1 and stem != save.names[0]:
        words = f"{save.path} holds the {save.names[0]}; --save {stem}={save.path} saves the {stem}"
        note(words, quiet=run.quiet)


def _refuse_unshown_average(asked: set[str]) -> None:
    if "weights" not in asked:
        raise UsageError(
            "--average-heads averages the weights, which are not asked for",
            hint="add weights to --show",
        )


def _solve_and_save(request: _Request) -> Attention:
    """Compute what is shown and saved, and write the files; return what is held."""
    problem, saves = request.problem, request.saves
    shown = _shown_whole(request)
    with streamed(problem, saves, shown, averaged=request.averaged) as maps:
        into = {save.names[0]: array for save, array in maps.items()}
        asked = {name for save in saves for name in save.names}.union(shown)
        needed = tuple(name for name in OUTPUTS if name in asked)
        answer = _solve(request, needed, into)
        others = (save for save in saves if save not in maps)
        write_saves((save, request.results(save.names, answer)) for save in others)
    return replace(answer, **dict.fromkeys(into))


def _shown_whole(request: _Request) -> tuple[str, ...]:
    """Return which of the outputs to show must be computed whole."""
    batch, heads, queries, keys = request.problem.shape
    arrays = tuple(name for name in request.names if name in OUTPUTS)
    if request.output.format != "table" or batch * heads * queries * keys <= _WHOLE_CELLS:
        return arrays
    return tuple(name for name in arrays if name in ("context", "lse"))


def _solve(
    request: _Request, names: Sequence[str], into: Mapping[str, npt.NDArray[Any]]
) -> Attention:
    from attncli.cli.progress import progress_bar
    from attncli.solving import solve

    problem, threads = request.problem, request.run.threads
    with progress_bar(quiet=request.run.quiet) as progress:
        if request.averaged:
            from attncli.summaries.averaging import solve_averaged

            return solve_averaged(problem, names, threads=threads, progress=progress, into=into)
        return solve(problem, names, threads=threads, into=into, progress=progress)


def _print_tables(request: _Request, answer: Attention, decimals: int) -> None:
    screen = console(request.run.color)
    limits = limits_of(request.output, request.run, decimals)
    for part in _parts(request, answer, limits):
        screen.print(part, crop=False)


def _parts(request: _Request, answer: Attention, limits: Limits) -> Iterator[RenderableType]:
    """Yield the tables: of the inputs, of the outputs, and of the summaries."""
    from attncli.view.answer import input_parts

    names = request.names
    inputs = [name for name in names if name in INPUTS]
    yield from input_parts(request.problem, inputs, limits, request.picked)
    yield from _array_parts(request, answer, limits)
    for name in names:
        if name in SUMMARIES:
            yield from request.summaries.parts(name, limits)


def _array_parts(request: _Request, answer: Attention, limits: Limits) -> Iterator[RenderableType]:
    """Yield the tables of the outputs; the mean of the heads is one of its own, in its place."""
    from attncli.view.answer import answer_parts, average_parts

    problem, picked, threads = request.problem, request.picked, request.run.threads
    names = [name for name in request.names if name in OUTPUTS]
    for averaged, group in groupby(names, lambda name: request.averaged and name == "weights"):
        if averaged:
            yield from average_parts(problem, answer.weights, limits, picked, threads=threads)
        else:
            yield from answer_parts(problem, answer, [*group], limits, picked, threads=threads)
