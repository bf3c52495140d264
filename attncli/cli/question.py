"""From the options of a command to the problem it is about, or to finished weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attncli.cli.terminal import note, piped_in
from attncli.errors import UsageError
from attncli.numerics.indices import EVERYTHING, Picked

if TYPE_CHECKING:
    from attncli.cli.options import QuestionOptions
    from attncli.gather import Finished, Gathered
    from attncli.problem.problem import Problem
    from attncli.summaries.maps import Computed, Given, Maps

__all__ = [
    "Asked",
    "Lazily",
    "ask",
    "ask_or_read",
    "finished_only",
    "gathered",
    "given_maps",
    "maps_of",
]


class Asked(NamedTuple):
    """The part of a problem that was picked, the whole of it, and what the files say."""

    problem: Problem
    whole: Problem
    picked: Picked
    found: Gathered
    # As `attncli.gather.Finished` has them.
    name: str = "the weights computed here"
    remark: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that were read."""
        return tuple(self.found.inputs)

    @property
    def bfloat16(self) -> bool:
        """Whether an array among them has this dtype."""
        return self.found.bfloat16

    @property
    def value_columns(self) -> tuple[str, ...] | None:
        """The names of the columns of the context, where the file of value has some."""
        made = self.found.projected is not None or self.whole.output is not None
        return None if made else self.found.value_columns

    def warn_unprojected(self) -> None:
        """Warn where an output projection was left out with the other heads."""
        if self.whole.output is not None and self.problem.output is None:
            from attncli.errors import warn
            from attncli.problem.advice import UNPROJECTED

            warn(UNPROJECTED)


class Lazily(NamedTuple):
    """Maps that are computed block by block, and where they came from."""

    maps: Maps
    picked: Picked
    inputs: tuple[str, ...]
    remark: str = ""


def ask(options: QuestionOptions) -> Asked:
    """Return the problem that the options pose; finished weights are an error."""
    answer = ask_or_read(options)
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


def ask_or_read(options: QuestionOptions, *, saved: bool = False) -> Asked | Finished:
    """Return the problem that the options pose, or the finished weights or scores in the files.

    With ``saved``, an output that a program saved beside its queries and keys is meant.
    """
    from attncli.gather import Finished

    found = gathered(options, saved=saved)
    if isinstance(found, Finished):
        return found
    whole = found.posed()
    picked = options.among(whole.shape[:2], whole.layout.weight_axes)
    problem = whole if picked == EVERYTHING else whole.select(**picked._asdict())
    return Asked(problem, whole, picked, found)


def gathered(options: QuestionOptions, *, saved: bool = False) -> Gathered | Finished:
    """Return what files and options say, not yet checked."""
    from attncli.gather import Finished, advise_on_dtype, gather
    from attncli.loading import is_stream

    given, more = options.arguments(), options.also_read
    files = options.files or []
    if not files and piped_in() and not any(map(is_stream, (*given.values(), *more))):
        files = ["-"]
    if not files and not options.takes_example:
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
        kind=options.what,
        saved=saved,
        more=more,
        threads=options.threads,
    )
    if not files:
        # Whoever did not mean it, an unset variable of a shell, has to know.
        note("no files given: this is the built-in example", quiet=False)
    if not more:
        advise_on_dtype(options.dtype, bfloat16=found.bfloat16)
    for words in () if isinstance(found, Finished) else found.notes:
        note(words, quiet=options.quiet)
    return found


def given_maps(finished: Finished, options: QuestionOptions) -> tuple[Given, Picked]:
    """Return the finished weights or scores that are picked, and which these are."""
    from attncli.summaries.maps import Given

    picked = options.among(finished.counts, finished.axes)
    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    values = finished.checked(options.what, picked)
    labels = finished.query_labels, finished.key_labels
    return Given(values, axes, labels, finished.hidden_cells(picked)), picked


def maps_of(asked: Asked | Finished, options: QuestionOptions) -> tuple[Computed | Given, Picked]:
    """Return the weights or scores that are picked, and which of all heads these are."""
    from attncli.summaries.maps import Computed

    if not isinstance(asked, Asked):
        return given_maps(asked, options)
    scores = options.what == "scores"
    return Computed(asked.problem, scores=scores, threads=options.threads), asked.picked
