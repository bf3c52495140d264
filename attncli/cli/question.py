"""From the options of a command to the problem it is about, or to finished weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attncli.cli.options import PickOneOptions
from attncli.cli.terminal import note, piped_in
from attncli.errors import UsageError
from attncli.numerics.indices import EVERYTHING, Picked

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from attncli.cli.options import AverageOptions, PickOptions, ProblemOptions, RunOptions
    from attncli.gather import Finished, Gathered
    from attncli.gather.finished import Kind
    from attncli.problem.problem import Problem
    from attncli.summaries.maps import Computed, Given, Maps

__all__ = [
    "Asked", "Lazily", "ask", "ask_or_read", "ask_whole", "finished_only", "gathered", "given_maps",
    "is_folder", "maps_of", "refuse_average_of_one",
]  # fmt: skip


def is_folder(file: str) -> bool:
    """Return whether a name is that of a folder of files; one of Zarr is a file itself."""
    from attncli.loading.source import is_folder as of_files

    return of_files(file)


class Asked(NamedTuple):
    """A problem, and the files that it was read from.

    Attributes
    ----------
    problem : Problem
    inputs : tuple of str
    bfloat16 : bool
        Whether any array among them is of this dtype.
    whole : Problem
        With all batch entries and heads, of which the problem has those that were picked.
    picked : Picked
    upstream : mapping of str to callable
        What reads ``dcontext`` and ``dlse``, where the problem file holds them.
    bias_shape : tuple of int
        As it was given.
    value_columns : tuple of str or None
        The names of the columns of value, where its file has some.
    """

    problem: Problem
    inputs: tuple[str, ...]
    bfloat16: bool
    whole: Problem
    picked: Picked
    upstream: Mapping[str, Callable[[], object]]
    bias_shape: tuple[int, ...]
    value_columns: tuple[str, ...] | None

    def warn_unprojected(self) -> None:
        """Warn where an output projection was left out with the other heads."""
        if self.whole.output is not None and self.problem.output is None:
            from attncli.errors import warn
            from attncli.problem.advice import UNPROJECTED

            warn(UNPROJECTED)


def ask(
    options: ProblemOptions,
    pick: PickOptions,
    run: RunOptions,
    *,
    more: Sequence[str] = (),
    example: bool = True,
) -> Asked:
    """Return the problem that the options pose, as `ask_or_read`; finished weights are none."""
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
    question = ask(options, PickOneOptions(), run, example=example)
    return question._replace(picked=_among(question.problem, pick))


def refuse_average_of_one(pick: PickOptions, average: AverageOptions) -> None:
    """Refuse to average the heads where one of them was picked."""
    if average.average_heads and pick.head is not None and not {*",:"} & {*str(pick.head)}:
        raise UsageError(
            f"--average-heads averages the heads, and --head {pick.head} picks one",
            hint="leave one of the two out",
        )


def ask_or_read(
    options: ProblemOptions,
    pick: PickOptions,
    run: RunOptions,
    *,
    more: Sequence[str] = (),
    kind: Kind = "weights",
    saved: bool = False,
    example: bool = True,
) -> Asked | Finished:
    """Return the problem that the options pose, or the finished weights or scores that they name.

    Parameters
    ----------
    options, pick, run
    more : sequence of str
        Files that will be read with --dtype, so that no advice on it is given yet; one of them
        may be standard input.
    kind, saved
        As for `attncli.gather.gather`.
    example : bool
        A person looks at the answer, so the built-in example may stand for files.

    Raises
    ------
    UsageError
        There are no files, and no example is wanted.
    """
    from attncli.gather import Finished

    found = gathered(options, run, more=more, kind=kind, saved=saved, example=example)
    if isinstance(found, Finished):
        return found
    whole = found.posed()
    picked = _among(whole, pick)
    problem = whole if picked == EVERYTHING else whole.select(**picked._asdict())
    made = found.projected is not None or whole.output is not None
    columns = None if made else found.value_columns
    return Asked(
        problem,
        tuple(found.inputs),
        found.bfloat16,
        whole,
        picked,
        found.upstream,
        getattr(found.arguments.get("bias"), "shape", ()),
        columns,
    )


def gathered(
    options: ProblemOptions,
    run: RunOptions,
    *,
    more: Sequence[str] = (),
    kind: Kind = "weights",
    saved: bool = False,
    example: bool = False,
) -> Gathered | Finished:
    """Return what files and options say, not yet checked; the parameters are as above."""
    from attncli.gather import Finished, advise_on_dtype, gather
    from attncli.loading import is_stream

    given = options.given()
    files = options.files or []
    if not files and piped_in() and not any(map(is_stream, (*given.values(), *more))):
        files = ["-"]
    if not files and not example:
        raise UsageError(
            "no files given: the built-in example is only for tables, explanations and heatmaps",
            hint="name one problem file, or the files Q K V (is a variable of the shell empty?)",
        )
    found = gather(
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
        advise_on_dtype(options.dtype, bfloat16=found.bfloat16)
    for words in () if isinstance(found, Finished) else found.notes:
        note(words, quiet=run.quiet)
    return found


def given_maps(
    finished: Finished, pick: PickOptions, kind: Kind = "weights"
) -> tuple[Given, Picked]:
    """Return finished weights or scores, and which of all heads they are."""
    from attncli.summaries.maps import Given

    picked = pick.among(finished.counts, finished.axes)
    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    values = finished.checked(kind, picked)
    labels = finished.query_labels, finished.key_labels
    return Given(values, axes, labels, finished.hidden_cells(picked)), picked


class Lazily(NamedTuple):
    """Maps that are computed block by block, as `maps_of` returns them, and where they came from.

    Attributes
    ----------
    maps : Maps
    picked : Picked
    inputs : tuple of str
    remark : str
    """

    maps: Maps
    picked: Picked
    inputs: tuple[str, ...]
    remark: str = ""


def maps_of(
    asked: Asked | Finished, pick: PickOptions, run: RunOptions, kind: Kind = "weights"
) -> tuple[Computed | Given, Picked]:
    """Return the weights or scores of what is asked for, and which of all heads they are."""
    from attncli.summaries.maps import Computed

    if not isinstance(asked, Asked):
        return given_maps(asked, pick, kind)
    return Computed(asked.problem, scores=kind == "scores", threads=run.threads), asked.picked


def _among(problem: Problem, pick: PickOptions) -> Picked:
    return pick.among(problem.shape[:2], problem.layout.weight_axes)
