"""``attncli compute``: weights and context as tables, in a machine's format, or in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
from attncli.cli.terminal import advice, binary_stdout, console, is_terminal, width
from attncli.errors import UsageError

if TYPE_CHECKING:
    import typer

    from attncli.problem import Problem
    from attncli.result import Attention
    from attncli.save.formats import Results
    from attncli.view.tables import Limits

__all__ = ["add_to"]

NAMES = ("weights", "context", "scores", "raw", "capped", "lse")
_ONE_ARRAY = ("csv", "tsv", "npy")
# Above so many cells a table gets its rows computed alone, not cut from the whole.
_WHOLE_CELLS = 4_000_000


@dataclass(frozen=True)
class _Save:
    names: tuple[str, ...]
    path: str


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

    Computes softmax(scale · QKᵀ) V for the queries, keys and values in the files.

    attncli compute q.csv k.csv v.csv
    """
    from attncli.save.files import refuse_inputs  # noqa: PLC0415

    with advice(quiet=run.quiet):
        question = ask(options, pick, run)
        problem = question.problem
        names = _names(output.show, problem)
        saves = [_save(text, names) for text in output.save or []]
        refuse_inputs([save.path for save in saves], question.inputs)
        needed = _needed(names, saves, output.format, problem)
        answer = _solve(problem, needed, average, run)
    for save in saves:
        _write_file(save, problem, answer)
    if output.format != "table":
        _write_stdout(output.format, names, problem, answer)
    else:
        _print_tables(problem, answer, names, output, run, pick, average)


def _names(show: str | None, problem: Problem) -> tuple[str, ...]:
    if show is None:
        return NAMES[:2] if problem.value is not None else NAMES[:1]
    names = tuple(dict.fromkeys(name.strip() for name in show.split(",")))
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--show: expected names of {', '.join(NAMES)}; found {name!r}")
    return names


def _save(text: str, names: tuple[str, ...]) -> _Save:
    from attncli.save.formats import format_of  # noqa: PLC0415

    name, separator, path = text.partition("=")
    if separator and name in NAMES:
        return _Save((name,), path)
    if separator and name.isidentifier():
        raise UsageError(
            f"--save {text}: expected NAME=PATH with a name of {', '.join(NAMES)}; found {name!r}",
            hint=f"for a file of that name write ./{text}",
        )
    if not text:
        raise UsageError("--save: expected [NAME=]PATH; found nothing")
    return _Save(_held(names, format_of(text)), text)


def _held(names: tuple[str, ...], kind: str) -> tuple[str, ...]:
    """Return which outputs a format takes: one array is the context unless another was named."""
    if kind not in _ONE_ARRAY or len(names) == 1:
        return names
    if "context" in names:
        return ("context",)
    raise UsageError(
        f"{kind} holds one array; --show names {', '.join(names)}",
        hint="name one, or use json, yaml or npz",
    )


def _needed(
    names: tuple[str, ...], saves: Sequence[_Save], kind: str, problem: Problem
) -> tuple[str, ...]:
    """Return which outputs must be computed whole."""
    batch, heads, queries, keys = problem.shape
    needed = {name for save in saves for name in save.names}
    if kind != "table":
        needed.update(_held(names, kind))
    elif batch * heads * queries * keys <= _WHOLE_CELLS:
        needed.update(names)
    else:
        needed.update(name for name in names if name in ("context", "lse"))
    return tuple(name for name in NAMES if name in needed)


def _solve(
    problem: Problem, names: Sequence[str], average: AverageOptions, run: RunOptions
) -> Attention:
    from attncli.api import solve  # noqa: PLC0415

    if average.average_heads:
        from attncli.averaging import solve_averaged  # noqa: PLC0415

        return solve_averaged(problem, names, threads=run.threads)
    return solve(problem, names, threads=run.threads)


def _results(names: Sequence[str], problem: Problem, answer: Attention) -> Results:
    from attncli.save.formats import Results  # noqa: PLC0415

    arrays = {name: getattr(answer, name) for name in NAMES if name in names}
    return Results(arrays, problem.query_labels, problem.key_labels)


def _write_file(save: _Save, problem: Problem, answer: Attention) -> None:
    from attncli.save.formats import save as save_file  # noqa: PLC0415

    save_file(save.path, _results(save.names, problem, answer))


def _write_stdout(kind: str, names: tuple[str, ...], problem: Problem, answer: Attention) -> None:
    from attncli.save.formats import write  # noqa: PLC0415

    stream = binary_stdout()
    if kind in ("npy", "npz") and is_terminal():
        raise UsageError(
            f"{kind} is binary and stdout is a terminal", hint=f"send it to a file: > out.{kind}"
        )
    write(stream, _results(_held(names, kind), problem, answer), kind)
    stream.flush()


def _print_tables(
    problem: Problem,
    answer: Attention,
    names: tuple[str, ...],
    output: OutputOptions,
    run: RunOptions,
    pick: PickOptions,
    average: AverageOptions,
) -> None:
    from attncli.view.answer import answer_parts, average_parts  # noqa: PLC0415

    screen = console(run.color)
    picked = pick.batch, pick.head
    limits = _limits(output)
    if average.average_heads and "weights" in names:
        names = tuple(name for name in names if name != "weights")
        for part in average_parts(problem, answer.weights, limits, picked[0]):
            screen.print(part)
    for part in answer_parts(problem, answer, names, limits, picked):
        screen.print(part)


def _limits(output: OutputOptions) -> Limits:
    from attncli.view.tables import Limits  # noqa: PLC0415

    rows, columns, heads = (20, None, 4) if is_terminal() else (64, 64, 16)
    return Limits(
        rows=rows if output.max_rows is None else output.max_rows or None,
        columns=columns if output.max_cols is None else output.max_cols or None,
        heads=heads,
        width=width() if output.max_cols is None else None,
        digits=output.digits,
    )
