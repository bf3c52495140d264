"""From the options of a command to the problem it is about."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from attncli.cli.terminal import note, piped_in
from attncli.errors import UsageError
from attncli.numerics.indices import EVERYTHING, Picked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from attncli.cli.options import (
        AverageOptions,
        PickOneOptions,
        PickOptions,
        ProblemOptions,
        RunOptions,
    )
    from attncli.gather import Finished
    from attncli.gather.finished import Kind
    from attncli.problem.problem import Problem

__all__ = ["Asked", "ask", "ask_or_read", "ask_whole", "finished_only", "refuse_average_of_one"]


class Asked(NamedTuple):
    """A problem, and the files that it was read from.

    Attributes
    ----------
    problem : Problem
    inputs : tuple of str
    bfloat16 : bool
        Whether any array among them is of this dtype.
    unprojected : bool
        Whether an output projection was left out with the other heads.
    whole : Problem or None
        With all batch entries and heads, where some were picked.
    picked : Picked
        Which of them the problem has.
    upstream : mapping of str to callable
        What reads ``dcontext`` and ``dlse``, where the problem file holds them.
    bias_shape : tuple of int
        As it was given.
    value_columns : tuple of str or None
        The names of the columns of value, where its file has some.
    """

    problem: Problem
    inputs: tuple[str, ...]
    bfloat16: bool = False
    unprojected: bool = False
    whole: Problem | None = None
    value_columns: tuple[str, ...] | None = None
    picked: Picked = EVERYTHING
    upstream: Mapping[str, Callable[[], object]] = MappingProxyType({})
    bias_shape: tuple[int, ...] = ()

    def warn_unprojected(self) -> None:
        """Warn where the context is one before the output projection."""
        if self.unprojected:
            from attncli.errors import warn
            from attncli.problem.advice import UNPROJECTED

            warn(UNPROJECTED)


def ask(
    options: ProblemOptions,
    pick: PickOptions | PickOneOptions,
    run: RunOptions,
    *,
    more: Sequence[str] = (),
    example: bool = True,
) -> Asked:
    """Return the problem that the options pose; `more` and `example` as for `ask_or_read`.

    Raises
    ------
    UsageError
        The files hold finished weights: there is nothing to compute.
    """
    answer = ask_or_read(options, pick, run, more=more, example=example)
    if not isinstance(answer, Asked):
        raise finished_only(answer)
    return answer


def finished_only(answer: Finished) -> UsageError:
    """Return the error for finished weights where a problem is needed."""
    return answer.refusal(
        "give three files, or one problem file; embeddings are given three times, or with "
        "--wq, --wk and --wv, or --checkpoint; of finished weights, heatmap draws a picture and "
        "compute --show weights,stats,top shows them and what they come to",
    )


def ask_whole(
    options: ProblemOptions, pick: PickOneOptions, run: RunOptions, *, example: bool
) -> Asked:
    """Return the problem with all its batch entries and heads, and what is picked of them."""
    from attncli.cli.options import PickOneOptions

    question = ask(options, PickOneOptions(), run, example=example)
    return question._replace(picked=_among(question.problem, pick))


def refuse_average_of_one(pick: PickOptions | PickOneOptions, average: AverageOptions) -> None:
    """Refuse to average the heads where one of them was picked."""
    if average.average_heads and pick.head is not None and not {*",:"} & {*str(pick.head)}:
        raise UsageError(
            f"--average-heads averages the heads, and --head {pick.head} picks one",
            hint="leave one of the two out",
        )


def ask_or_read(
    options: ProblemOptions,
    pick: PickOptions | PickOneOptions,
    run: RunOptions,
    *,
    more: Sequence[str] = (),
    kind: Kind = "weights",
    saved: bool = False,
    example: bool = True,
) -> Asked | Finished:
    """Return the problem that the options pose, or the finished weights or scores that they name.

    Where `more` files will be read with --dtype, no advice on it is given yet; one of them may
    be standard input. `saved` is for `attncli.gather.gather`. With `example`, a person looks at
    the answer, so that the built-in example may stand for files that are not given.

    Raises
    ------
    UsageError
        There are no files, and no example is wanted.
    """
    from attncli.gather import Finished, advise_on_dtype, gather
    from attncli.loading import is_stream

    given = options.given()
    files = options.files or []
    named = any(map(is_stream, (*given.values(), *more)))
    if not files and piped_in() and not named:
        files = ["-"]
    if not files and not example:
        raise UsageError(
            "no files given: the built-in example is only for tables, explanations and heatmaps",
            hint="name one problem file, or the files Q K V (is a variable of the shell empty?)",
        )
    gathered = gather(
        files,
        given,
        without=options.without,
        dtype=options.dtype,
        layer=options.layer,
        header=options.header,
        call=options.call,
        kind=kind,
        saved=saved,
        more=more,
        threads=run.threads,
    )
    if not files:
        # Whoever did not mean it, an unset variable of a shell, has to know.
        note("no files given: this is the built-in example", quiet=False)
    if not more:
        advise_on_dtype(options.dtype, bfloat16=gathered.bfloat16)
    if isinstance(gathered, Finished):
        return gathered
    for words in gathered.notes:
        note(words, quiet=run.quiet)
    problem = gathered.posed()
    picked = _among(problem, pick)
    part = problem
    if picked != EVERYTHING:
        part = problem.select(**picked._asdict())
    unprojected = problem.output is not None and part.output is None
    whole = None if part is problem else problem
    inputs = tuple(gathered.inputs)
    made = gathered.projected is not None or problem.output is not None
    columns = None if made else gathered.value_columns
    return Asked(
        part,
        inputs,
        gathered.bfloat16,
        unprojected,
        whole,
        columns,
        picked,
        gathered.upstream,
        getattr(gathered.arguments.get("bias"), "shape", ()),
    )


def _among(problem: Problem, pick: PickOptions | PickOneOptions) -> Picked:
    return pick.among(problem.shape[:2], problem.layout.weight_axes)
