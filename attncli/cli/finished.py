"""``attncli compute`` of finished weights, which shows them, or what they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.cli.question import finished_only
from attncli.cli.saving import write_saves
from attncli.cli.showing import Request, names_shown
from attncli.cli.summaries import Summaries
from attncli.errors.names import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt
    from rich.console import RenderableType

    from attncli.cli.options import AverageOptions, OutputOptions, PickOptions, RunOptions
    from attncli.gather import Finished
    from attncli.numerics.indices import Picked
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
    request = Request.of(output, names, finished.inputs, averaged=average.average_heads)
    if not request.asked <= {"weights", *SUMMARIES}:
        raise finished_only(finished)
    request.refuse_idle()
    part = _part(finished, request, pick, run)
    request = request.held(part.array)
    write_saves((save, part.results(save.names)) for save in request.saves)
    request.show(part.results, part.tables, run, decimals=decimals)


class _Part(NamedTuple):
    """What is shown of finished weights.

    Attributes
    ----------
    weights : Given
    picked : Picked
    summaries : Summaries
    request : Request
    """

    weights: Given
    picked: Picked
    summaries: Summaries
    request: Request

    def array(self, _: str) -> npt.NDArray[Any]:
        """Return the weights, which are the one output that there is."""
        return self.weights.in_user_axes

    def results(self, names: Sequence[str]) -> Results:
        """Return some outputs as files and machine formats take them."""
        batched = "bsd" if self.weights.axes == "b" else None
        return self.request.results(names, self.array, self.summaries, batched=batched)

    def tables(self, limits: Limits) -> Iterator[RenderableType]:
        """Yield the tables of what is shown."""
        from attncli.view.answer import finished_parts

        mean = self.request.averaged
        for name in self.request.names:
            if name == "weights":
                yield from finished_parts(self.weights, limits, self.picked, mean=mean)
            else:
                yield from self.summaries.parts(name, limits)


def _part(finished: Finished, request: Request, pick: PickOptions, run: RunOptions) -> _Part:
    from attncli.summaries.averaging import refuse_without_heads
    from attncli.summaries.row_blocks import Given

    picked = pick.among(finished.counts, finished.axes)
    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    labels = finished.query_labels, finished.key_labels
    array, hidden = finished.weights(picked), finished.hidden_cells(picked)
    weights = Given(array, axes, labels, hidden)
    if request.averaged:
        refuse_without_heads(axes)
        weights = weights.averaged()
    summaries = Summaries(weights, request.output.top_keys, picked, run)
    return _Part(weights, picked, summaries, request)
