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
    PickOptions,
    ProblemOptions,
    RunOptions,
)
from attncli.cli.question import Asked, ask_or_read, refuse_average_of_one
from attncli.cli.saving import Save, streamed, write_saves
from attncli.cli.showing import Request, names_shown
from attncli.cli.summaries import Summaries
from attncli.cli.terminal import advice, note
from attncli.errors.names import INPUTS, OUTPUTS, SUMMARIES

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt
    from rich.console import RenderableType

    from attncli.numerics.indices import Picked
    from attncli.problem.problem import Problem
    from attncli.problem.result import Attention
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
        asked = ask_or_read(options, pick, run, example=output.is_tables and not output.save)
        if not output.is_tables:
            digits.tell_of_all(output.format, quiet=run.quiet)
        if not isinstance(asked, Asked):
            from attncli.cli.finished import show_finished

            show_finished(asked, output, pick, average, run, decimals=digits.decimals)
            return
        question = _question(asked, output, average, run)
        answer = _solve_and_save(question)
    question.request.show(
        lambda names: question.results(names, answer),
        lambda limits: _tables(question, answer, limits),
        run,
        decimals=digits.decimals,
    )


class _Question(NamedTuple):
    """What is asked of a problem.

    Attributes
    ----------
    problem : Problem
    request : Request
    summaries : Summaries
    picked : Picked
        Which of all batch entries and heads the problem has.
    run : RunOptions
    """

    problem: Problem
    request: Request
    summaries: Summaries
    picked: Picked
    run: RunOptions

    def empty(self, name: str) -> npt.NDArray[Any]:
        """Return an array of the shape of an output that takes no memory."""
        import numpy as np

        if name in INPUTS:
            return self.problem.input(name)
        shapes = self.problem.output_shapes
        mean = shapes.get("mean weights") if self.request.averaged and name == "weights" else None
        return np.broadcast_to(np.zeros((), np.bool_), mean or shapes.get(name, shapes["weights"]))

    def results(self, names: Sequence[str], answer: Attention) -> Results:
        """Return some of it as files and machine formats take it."""
        layout = self.problem.layout
        batched = layout.axes if layout.weight_axes == "b" else None

        def array_of(name: str) -> Any:
            return self.problem.input(name) if name in INPUTS else getattr(answer, name)

        return self.request.results(names, array_of, self.summaries, batched=batched)


def _question(
    asked: Asked, output: OutputOptions, average: AverageOptions, run: RunOptions
) -> _Question:
    """Check what is asked of a problem."""
    from attncli.summaries.row_blocks import Computed

    problem, picked = asked.problem, asked.picked
    names = names_shown(output.show) or OUTPUTS[: 1 if problem.value is None else 2]
    request = Request.of(output, names, asked.inputs, averaged=average.average_heads)
    for text, save in zip(output.save or (), request.saves, strict=True):
        _tell_of_another_name(text, save, run)
    summaries = Summaries(Computed(problem, run.threads), output.top_keys, picked, run)
    request.refuse_idle()
    if "context" in request.asked:
        asked.warn_unprojected()
    question = _Question(problem, request, summaries, picked, run)
    return question._replace(request=request.held(question.empty))


def _tell_of_another_name(text: str, save: Save, run: RunOptions) -> None:
    """Say what a file holds where its name, and nothing else, says another output."""
    stem = Path(save.path).stem
    if text == save.path and stem in OUTPUTS and len(save.names) == 1 and stem != save.names[0]:
        words = f"{save.path} holds the {save.names[0]}; --save {stem}={save.path} saves the {stem}"
        note(words, quiet=run.quiet)


def _solve_and_save(question: _Question) -> Attention:
    """Compute what is shown and saved, and write the files; return what is held."""
    problem, saves = question.problem, question.request.saves
    shown = _shown_whole(question)
    with streamed(problem, saves, shown, averaged=question.request.averaged) as maps:
        into = {save.names[0]: array for save, array in maps.items()}
        asked = {name for save in saves for name in save.names}.union(shown)
        needed = tuple(name for name in OUTPUTS if name in asked)
        answer = _solve(question, needed, into)
        others = (save for save in saves if save not in maps)
        write_saves((save, question.results(save.names, answer)) for save in others)
    return replace(answer, **dict.fromkeys(into))


def _shown_whole(question: _Question) -> tuple[str, ...]:
    """Return which of the outputs to show must be computed whole."""
    batch, heads, queries, keys = question.problem.shape
    arrays = tuple(name for name in question.request.names if name in OUTPUTS)
    if not question.request.output.is_tables or batch * heads * queries * keys <= _WHOLE_CELLS:
        return arrays
    return tuple(name for name in arrays if name in ("context", "lse"))


def _solve(
    question: _Question, names: Sequence[str], into: Mapping[str, npt.NDArray[Any]]
) -> Attention:
    from attncli.api import solve
    from attncli.cli.terminal import progress_bar

    problem, threads = question.problem, question.run.threads
    with progress_bar(quiet=question.run.quiet) as progress:
        if question.request.averaged:
            from attncli.api import solve_averaged

            return solve_averaged(problem, names, threads=threads, progress=progress, into=into)
        return solve(problem, names, threads=threads, into=into, progress=progress)


def _tables(question: _Question, answer: Attention, limits: Limits) -> Iterator[RenderableType]:
    """Yield the tables: of the inputs, of the outputs, and of the summaries."""
    from attncli.view.answer import input_parts

    names = question.request.names
    inputs = [name for name in names if name in INPUTS]
    yield from input_parts(question.problem, inputs, limits, question.picked)
    yield from _array_parts(question, answer, limits)
    for name in names:
        if name in SUMMARIES:
            yield from question.summaries.parts(name, limits)


def _array_parts(
    question: _Question, answer: Attention, limits: Limits
) -> Iterator[RenderableType]:
    """Yield the tables of the outputs; the mean of the heads is one of its own, in its place."""
    from attncli.view.answer import answer_parts, average_parts

    problem, picked, threads = question.problem, question.picked, question.run.threads
    names = [name for name in question.request.names if name in OUTPUTS]
    for averaged, group in groupby(
        names, lambda name: question.request.averaged and name == "weights"
    ):
        if averaged:
            yield from average_parts(problem, answer.weights, limits, picked, threads=threads)
        else:
            yield from answer_parts(problem, answer, [*group], limits, picked, threads=threads)
