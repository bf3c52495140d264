"""``attncli compute``: weights and context as tables, in a machine's format, or in files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from attncli.cli.cluster import ClusterOptions, compute_lazily
from attncli.cli.options import GradientOptions, MergeOptions, ShardOptions
from attncli.cli.output import OutputOptions, Request, Summaries, streamed, write
from attncli.cli.question import Asked, ask_or_join, finished_only, given_maps, gradients
from attncli.cli.terminal import advice, progress_bar
from attncli.errors import UsageError
from attncli.errors.names import INPUTS, OUTPUTS, ROLLOUT, SUMMARIES

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.text import Text

    from attncli.cli.output import Arrays, Save
    from attncli.gather import Finished
    from attncli.problem.problem import Problem
    from attncli.problem.result import Attention
    from attncli.view.limits import Limits

# Cells of all score matrices; above this, only the rows that tables show are computed.
_WHOLE_CELLS = 4_000_000


class ComputeOptions(OutputOptions, GradientOptions, ShardOptions, MergeOptions, ClusterOptions):
    """All options of `compute`."""

    @property
    def takes_example(self) -> bool:
        """Whether only tables are asked for: a person sees them."""
        return self.is_tables and not self.save

    @property
    def also_read(self) -> list[str]:
        """The files of --grad."""
        return self.grad_files

    @property
    def rollout(self) -> str | None:
        """``half`` if the rollout is shown or saved: here the residual is always kept."""
        return "half" if self.asks_for(ROLLOUT) else None


def compute(options: ComputeOptions) -> None:
    """Print attention weights and context.

    The context is softmax(scale · QKᵀ) V, for the queries, keys and values in the files. --grad
    adds the backward pass: dquery, dkey, dvalue.

    Example: attncli compute q.csv k.csv v.csv

    Example: attncli compute layer.npz --causal --show weights --save out.npz
    """
    if options.rollout or options.merge:
        _refuse_gradients(options, f"--show {ROLLOUT}" if options.rollout else "--merge")
    with advice(quiet=options.quiet):
        if options.merge is None and options.takes(options):
            compute_lazily(options)
            return
        asked = ask_or_join(options)
        if not options.is_tables:
            options.tell_of_all(options.format)
        if isinstance(asked, Asked):
            _answer(asked, options)
        else:
            _refuse_gradients(options, f"finished weights ({asked.name})")
            _show_finished(asked, options)


def _refuse_gradients(options: ComputeOptions, beside: str) -> None:
    why = f"does not go with {beside}: gradients are of query, key and value"
    options.refuse("grad", why, hint="leave out one of the two")


def _show_finished(finished: Finished, options: ComputeOptions) -> None:
    from attncli.engine.averaging import refuse_without_heads

    kind = ROLLOUT if options.rollout else "weights"
    request = Request.of(options, (kind,) if finished.remark else (), finished.inputs)
    if not request.names or not request.asked <= {kind, *SUMMARIES}:
        if finished.remark:
            raise UsageError(f"of {finished.name}, show {kind}, stats or top")
        raise finished_only(finished)
    weights, picked = given_maps(finished, options)
    if options.average_heads:
        refuse_without_heads(weights.axes)
        weights = weights.averaged()
    summaries = Summaries(weights, picked, options)
    arrays = {kind: weights.in_user_axes}
    request.refuse_unheld({kind: arrays[kind].shape})

    def tables(limits: Limits) -> Iterator[Text]:
        from attncli.view.answer import finished_parts

        for name in request.names:
            if name == kind:
                mean, remark = options.average_heads, finished.remark
                yield from finished_parts(weights, limits, picked, mean=mean, remark=remark)
            else:
                yield from summaries.parts(name, limits)

    layout = "bsd" if weights.axes == "b" else None
    results = partial(request.results, arrays=arrays, summaries=summaries, layout=layout)
    write((save, results(save.names)) for save in request.saves)
    request.show(tables(options.limits), results)


def _answer(asked: Asked, options: ComputeOptions) -> None:
    from attncli.summaries.maps import Computed

    problem = asked.problem
    usual = OUTPUTS[: 1 if problem.value is None else 2]
    request = Request.of(options, usual, (*asked.inputs, *options.grad_files))
    request.refuse_unheld(_shapes(problem, averaged=options.average_heads))
    if "context" in request.asked:
        asked.warn_unprojected()
    given = gradients(request.asked, options, asked)
    given |= {name: problem.input(name) for name in INPUTS if name in request.asked}
    summaries = Summaries(Computed(problem, threads=options.threads), asked.picked, options)
    layout = problem.layout.axes if problem.layout.weight_axes == "b" else None
    with _solved(problem, request) as (answer, on_disk):
        names = request.asked - {*SUMMARIES}
        arrays = {n: given[n] if n in given else getattr(answer, n) for n in names}
        results = partial(request.results, arrays=arrays, summaries=summaries, layout=layout)
        write((save, results(save.names)) for save in request.saves if save not in on_disk)
    arrays |= dict.fromkeys(save.names[0] for save in on_disk)
    # Files come first: standard output may be closed.
    request.show(_tables(asked, request, arrays, summaries), results)


def _shapes(problem: Problem, *, averaged: bool) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input and output, in the user's axes."""
    shapes = dict(problem.output_shapes)
    for name in OUTPUTS:
        shapes.setdefault(name, shapes["weights"])
    if averaged:
        shapes["weights"] = shapes.get("mean weights", shapes["weights"])
    given = [name for name in INPUTS if name != "value" or problem.value is not None]
    inputs = {name: problem.input(name).shape for name in given}
    return shapes | inputs | problem.gradient_shapes


@contextmanager
def _solved(
    problem: Problem, request: Request
) -> Iterator[tuple[Attention, Mapping[Save, npt.NDArray[Any]]]]:
    """Compute the outputs; yield those in memory, and those that went into files."""
    from attncli.api import solve, solve_averaged

    options = request.options
    shown = [name for name in request.names if name in OUTPUTS]
    if options.is_tables and math.prod(problem.shape) > _WHOLE_CELLS:
        shown = [name for name in shown if name in ("context", "lse")]
    with streamed(problem, request, shown) as maps:
        into = {save.names[0]: array for save, array in maps.items()}
        asked = {name for save in request.saves for name in save.names}.union(shown)
        needed = [name for name in OUTPUTS if name in asked]
        solved = solve_averaged if options.average_heads else solve
        with progress_bar(quiet=options.quiet) as progress:
            answer = solved(problem, needed, threads=options.threads, into=into, progress=progress)
        yield answer, maps


def _tables(asked: Asked, request: Request, arrays: Arrays, summaries: Summaries) -> Iterator[Text]:
    from attncli.view.answer import answer_parts, by_head

    problem, options, limits = asked.problem, request.options, request.options.limits
    part, answer, mean = problem, None, options.average_heads
    held = {name: arrays[name] for name in request.names if name not in SUMMARIES}
    if missing := [name for name, array in held.items() if array is None]:
        part, answer = _part_shown(problem, missing, options)
    by_name = {
        name: by_head(part, name, getattr(answer, name), mean=mean)
        if array is None
        else by_head(problem, name, array, mean=mean)
        for name, array in held.items()
    }
    yield from answer_parts(
        part, by_name, limits, asked.picked, whole=problem, mean=mean,
        value_columns=asked.value_columns,
    )  # fmt: skip
    for name in request.names:
        if name in SUMMARIES:
            yield from summaries.parts(name, limits)


def _part_shown(
    problem: Problem, names: Sequence[str], options: OutputOptions
) -> tuple[Problem, Attention]:
    """Solve only the batch entries, heads and queries of a large problem that tables show."""
    from attncli.engine import attend
    from attncli.engine.averaging import average_weights

    averaged, limits = options.average_heads, options.limits
    batches, heads, queries, _ = problem.shape
    most = limits.heads or batches * heads
    some = heads if averaged else min(heads, most)
    entries = min(batches, -(-most // (1 if averaged else some)))
    rows = 0, min(queries, limits.rows or queries)
    part = problem.select(batch=range(entries), head=range(some), rows=rows)
    others = [name for name in names if not (averaged and name == "weights")]
    answer = attend(part, others, threads=options.threads)[0]
    if len(others) < len(names):
        answer = replace(answer, weights=average_weights(part, threads=options.threads)[0])
    return part, answer
