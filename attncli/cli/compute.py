"""``attncli compute``: weights and context as tables, in a machine's format, or in files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attncli.cli.cluster import ClusterOptions, compute_lazily
from attncli.cli.gradients import computed, grad_files
from attncli.cli.options import (
    AverageOptions,
    DigitsOptions,
    GradientOptions,
    MergeOptions,
    OutputOptions,
    PickOptions,
    ProblemOptions,
    RunOptions,
    ShardOptions,
)
from attncli.cli.output import Request, limits_of, streamed, write
from attncli.cli.question import (
    Asked,
    ask_or_read,
    finished_only,
    given_maps,
    refuse_average_of_one,
)
from attncli.cli.summaries import Summaries
from attncli.cli.terminal import advice, progress_bar
from attncli.errors import UsageError
from attncli.errors.names import INPUTS, OUTPUTS, ROLLOUT, SUMMARIES

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.text import Text

    from attncli.gather import Finished
    from attncli.problem.problem import Problem
    from attncli.problem.result import Attention
    from attncli.save.formats import Results
    from attncli.view.limits import Limits

__all__ = ["compute"]

# Inputs and gradients, by name.
Arrays = Mapping[str, Any]

# Cells: of more, tables get the rows that they show computed alone, not cut from the whole.
_WHOLE_CELLS = 4_000_000


def compute(
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
    digits: DigitsOptions,
    grads: GradientOptions,
    options: ProblemOptions,
    shard: ShardOptions,
    cluster: ClusterOptions,
    run: RunOptions,
) -> None:
    """Print attention weights and context.

    The context is softmax(scale · QKᵀ) V, for the queries, keys and values in the files. --grad
    adds the backward pass: dquery, dkey, dvalue.

    Example: attncli compute q.csv k.csv v.csv

    Example: attncli compute layer.npz --causal --show weights --save out.npz
    """
    refuse_average_of_one(pick, average)
    rolls = output.asks_for(ROLLOUT)
    if grads.grad and (rolls or merge.merge):
        raise _no_gradients(f"--show {ROLLOUT}" if rolls else "--merge")
    options = options.of_part(shard)
    if merge.merge is None and cluster.takes(options, output):
        refused: dict[str, object] = {
            "--average-heads": average.average_heads,
            "--grad": grad_files(grads),
            "--keys or --queries": shard.given(),
        }
        with advice(quiet=run.quiet):
            compute_lazily(output, pick, options, cluster, run, refused)
        return
    with advice(quiet=run.quiet):
        example = output.is_tables and not output.save
        asked: Asked | Finished
        if rolls:
            from attncli.cli.layers import rolled

            asked = rolled(options, run)
        else:
            chosen, more = PickOptions() if merge.merge else pick, grad_files(grads)
            asked = ask_or_read(options, chosen, run, more=more, example=example)
        if grads.grad and not isinstance(asked, Asked):
            raise _no_gradients(f"finished weights ({asked.name})")
        if not output.is_tables:
            digits.tell_of_all(output.format, quiet=run.quiet)
        if merge.merge is not None:
            from attncli.cli.merging import merged

            asked = merged(asked, merge, run)
        if isinstance(asked, Asked):
            _answer(asked, output, average, grads, options, digits.decimals, run)
        else:
            _show_finished(asked, output, pick, average, digits.decimals, run)


def _no_gradients(beside: str) -> UsageError:
    """Return the error for --grad where weights are not made of query, key and value alone."""
    return UsageError(
        f"--grad does not go with {beside}: gradients are of query, key and value",
        hint="leave out one of the two",
    )


def _show_finished(
    finished: Finished,
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    decimals: int,
    run: RunOptions,
) -> None:
    """Print and save finished weights, those of words or of all layers, and what they come to."""
    from attncli.engine.averaging import refuse_without_heads

    kind = ROLLOUT if output.asks_for(ROLLOUT) else "weights"
    usual = (kind,) if finished.remark else ()
    request = Request.of(output, usual, finished.inputs, averaged=average.average_heads)
    if not request.names or not request.asked <= {kind, *SUMMARIES}:
        if finished.remark:
            raise UsageError(f"of {finished.name}, show {kind}, stats or top")
        raise finished_only(finished)
    weights, picked = given_maps(finished, pick)
    if request.averaged:
        refuse_without_heads(weights.axes)
        weights = weights.averaged()
    summaries = Summaries(weights, output.top_keys, picked, quiet=run.quiet)
    arrays = {kind: weights.in_user_axes}
    request.refuse_unheld({kind: arrays[kind].shape})

    def results(names: tuple[str, ...]) -> Results:
        layout = "bsd" if weights.axes == "b" else None
        return request.results(names, arrays, summaries, layout)

    def tables(limits: Limits) -> Iterator[Text]:
        from attncli.view.answer import finished_parts

        for name in request.names:
            if name == kind:
                mean, remark = request.averaged, finished.remark
                yield from finished_parts(weights, limits, picked, mean=mean, remark=remark)
            else:
                yield from summaries.parts(name, limits)

    write([(save, results(save.names)) for save in request.saves])
    if output.is_tables:
        request.show(tables(limits_of(output, run, decimals)), run)
    else:
        request.write(results(request.names))


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


def _answer(
    asked: Asked,
    output: OutputOptions,
    average: AverageOptions,
    grads: GradientOptions,
    options: ProblemOptions,
    decimals: int,
    run: RunOptions,
) -> None:
    """Compute what is asked for, beside inputs and gradients; save it and show it."""
    from attncli.summaries.maps import Computed

    problem, averaged = asked.problem, average.average_heads
    usual = OUTPUTS[: 1 if problem.value is None else 2]
    read = (*asked.inputs, *grad_files(grads))
    request = Request.of(output, usual, read, averaged=averaged)
    request.refuse_unheld(_shapes(problem, averaged=averaged))
    if "context" in request.asked:
        asked.warn_unprojected()
    given = computed(request.asked, grads, asked, options, run.threads)
    given |= {name: problem.input(name) for name in INPUTS if name in request.asked}
    weights = Computed(problem, threads=run.threads)
    summaries = Summaries(weights, output.top_keys, asked.picked, quiet=run.quiet)
    answer = _solve_and_save(problem, request, given, summaries, run)
    held = _arrays(given, answer, request.names)
    if output.is_tables:  # a closed stdout is told of when the files are written
        limits = limits_of(output, run, decimals)
        request.show(_tables(asked, request, held, summaries, limits, run), run)
    else:
        request.write(request.results(request.names, held, summaries, _batched(problem)))


def _batched(problem: Problem) -> str | None:
    return problem.layout.axes if problem.layout.weight_axes == "b" else None


def _arrays(
    given: Arrays, answer: Attention, names: Sequence[str]
) -> dict[str, npt.NDArray[Any] | None]:
    return {
        name: given[name] if name in given else getattr(answer, name)
        for name in names
        if name not in SUMMARIES
    }


def _solve_and_save(
    problem: Problem, request: Request, given: Arrays, summaries: Summaries, run: RunOptions
) -> Attention:
    """Compute what is shown and saved, and write the files; return what is held."""
    batch, heads, queries, keys = problem.shape
    held = [name for name in request.names if name in OUTPUTS]
    if request.output.is_tables and batch * heads * queries * keys > _WHOLE_CELLS:
        held = [name for name in held if name in ("context", "lse")]
    with streamed(problem, request, held) as maps:
        into = {save.names[0]: array for save, array in maps.items()}
        asked = {name for save in request.saves for name in save.names}.union(held)
        needed = [name for name in OUTPUTS if name in asked]
        answer = _solved(problem, needed, into, request, run)
        outputs = []
        for save in request.saves:
            if save not in maps:
                arrays = _arrays(given, answer, save.names)
                results = request.results(save.names, arrays, summaries, _batched(problem))
                outputs.append((save, results))
        write(outputs)
    return replace(answer, **dict.fromkeys(into))


def _solved(
    problem: Problem,
    names: Sequence[str],
    into: dict[str, npt.NDArray[Any]],
    request: Request,
    run: RunOptions,
) -> Attention:
    from attncli.api import solve, solve_averaged

    solve_it = solve_averaged if request.averaged else solve
    with progress_bar(quiet=run.quiet) as progress:
        return solve_it(problem, names, threads=run.threads, into=into, progress=progress)


def _tables(
    asked: Asked,
    request: Request,
    held: Mapping[str, npt.NDArray[Any] | None],
    summaries: Summaries,
    limits: Limits,
    run: RunOptions,
) -> Iterator[Text]:
    """Yield the tables of inputs and outputs, and of the summaries."""
    from attncli.view.answer import answer_parts, by_head

    problem, mean = asked.problem, request.averaged
    part, answer = problem, None
    if missing := [name for name, array in held.items() if array is None]:
        part, answer = _part_shown(problem, missing, limits, run, averaged=mean)
    arrays = {
        name: by_head(part, name, getattr(answer, name), mean=mean)
        if array is None
        else by_head(problem, name, array, mean=mean)
        for name, array in held.items()
    }
    yield from answer_parts(
        part, arrays, limits, asked.picked, whole=problem, mean=mean,
        value_columns=asked.value_columns,
    )  # fmt: skip
    for name in request.names:
        if name in SUMMARIES:
            yield from summaries.parts(name, limits)


def _part_shown(
    problem: Problem, names: Sequence[str], limits: Limits, run: RunOptions, *, averaged: bool
) -> tuple[Problem, Attention]:
    """Return the batch entries, heads and queries of a large problem that tables show, solved."""
    from attncli.engine import attend
    from attncli.engine.averaging import average_weights

    batches, heads, queries, _ = problem.shape
    most = limits.heads or batches * heads
    some = heads if averaged else min(heads, most)
    entries = min(batches, -(-most // (1 if averaged else some)))
    rows = 0, min(queries, limits.rows or queries)
    part = problem.select(batch=range(entries), head=range(some), rows=rows)
    others = [name for name in names if not (averaged and name == "weights")]
    answer = attend(part, others, threads=run.threads)[0]
    if len(others) < len(names):
        answer = replace(answer, weights=average_weights(part, threads=run.threads)[0])
    return part, answer
