"""``attncli compute`` of finished weights, which shows them, or what they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.cli.question import finished_only
from attncli.cli.saving import held, saves_of, write_saves
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
from attncli.cli.terminal import console
from attncli.names import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from rich.console import RenderableType

    from attncli.cli.options import AverageOptions, OutputOptions, RunOptions
    from attncli.cli.picking import PickOptions
    from attncli.gather import Finished
    from attncli.indices import Picked
    from attncli.save.formats import Results
    from attncli.summaries.row_blocks import Given
    from attncli.view.tables import Limits

__all__ = ["show_finished"]


def show_finished(
    finished: Finished,
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    run: RunOptions,
    *,
    decimals: int,
) -> None:
    """Print and save finished weights, and ``stats`` and ``top`` of them.

    Raises
    ------
    UsageError
        Anything else is asked for.
    """
    names = names_shown(output.show)
    if not names:
        raise finished_only(finished)
    saves = saves_of(output.save or (), names, finished.inputs, chosen=True)
    asked = {*names, *(name for save in saves for name in save.names)}
    if not asked <= {"weights", *SUMMARIES}:
        raise finished_only(finished)
    if average.average_heads:
        refuse_averaged_summaries(asked)
    refuse_unused_top(output, asked)
    refuse_unused_labels(output, [save.format for save in saves])
    part = _part(finished, output, pick, average, run)
    for save in saves:
        part.refuse_unheld(save.names, save.format)
    if output.format != "table":
        refuse_binary(output.format)
        names = held(names, output.format, chosen=True)
        part.refuse_unheld(names, output.format)
    write_saves((save, part.results(save.names)) for save in saves)
    if output.format != "table":
        write_stdout(output.format, part.results(names))
        return
    screen, limits = console(run.color), limits_of(output, run, decimals)
    for name in names:
        for piece in part.tables(name, limits):
            screen.print(piece, crop=False)


class _Part(NamedTuple):
    """What is shown of finished weights.

    Attributes
    ----------
    weights : Given
    picked : Picked
    summaries : Summaries
    mean : bool
        The weights are the mean of the heads.
    labelled : bool
        Tables in files have labels.
    """

    weights: Given
    picked: Picked
    summaries: Summaries
    mean: bool
    labelled: bool

    def refuse_unheld(self, names: Sequence[str], kind: str) -> None:
        """Refuse a format that cannot hold some outputs, before they are computed."""
        from attncli.save.formats import FORMATS, Results

        arrays = self._arrays(names)
        FORMATS[kind].hold(Results(arrays, extra={n: [] for n in names if n not in arrays}))

    def results(self, names: Sequence[str]) -> Results:
        """Return some outputs as files and machine formats take them."""
        from attncli.save.formats import Results

        layout = "bsd" if self.weights.axes == "b" and "weights" in names else None
        summaries = self.summaries.among(names)
        labels = self.weights.labels
        return Results(self._arrays(names), *labels, summaries, layout, self.labelled)

    def tables(self, name: str, limits: Limits) -> Iterator[RenderableType]:
        """Yield the tables of one output."""
        from attncli.view.answer import finished_parts

        if name != "weights":
            return self.summaries.parts(name, limits)
        return finished_parts(self.weights, limits, self.picked, mean=self.mean)

    def _arrays(self, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
        return {"weights": self.weights.in_user_axes} if "weights" in names else {}


def _part(
    finished: Finished,
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    run: RunOptions,
) -> _Part:
    from attncli.summaries.averaging import refuse_without_heads
    from attncli.summaries.row_blocks import Given

    picked = pick.among(finished.counts, finished.axes)
    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    labels = finished.query_labels, finished.key_labels
    array, hidden = finished.weights(picked), finished.hidden_cells(picked)
    weights = Given(array, axes, labels, hidden)
    mean = average.average_heads
    if mean:
        refuse_without_heads(axes)
        weights = weights.averaged()
    summaries = Summaries(weights, output.top_keys, picked, run)
    return _Part(weights, picked, summaries, mean, output.with_labels)
