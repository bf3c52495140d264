"""``attncli compute`` of finished weights, which shows them, or what they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.output import Request, limits_of, write
from attncli.cli.question import finished_only
from attncli.cli.summaries import Summaries
from attncli.errors import UsageError
from attncli.errors.names import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from attncli.cli.options import AverageOptions, OutputOptions, PickOptions, RunOptions
    from attncli.gather import Finished
    from attncli.numerics.indices import Picked
    from attncli.summaries.row_blocks import Given
    from attncli.view.tables import Limits

__all__ = ["show_finished"]


def show_finished(
    finished: Finished,
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    run: RunOptions,
    decimals: int,
    usual: tuple[str, ...] = (),
) -> None:
    """Print and save finished weights, and ``stats`` and ``top`` of them.

    Raises
    ------
    UsageError
        Anything else is asked for.
    """
    request = Request.of(output, usual, finished.inputs, averaged=average.average_heads)
    if not request.names or not request.asked <= {"weights", *SUMMARIES}:
        if usual:
            raise UsageError("--merge joins the weights of subwords: show weights, stats or top")
        raise finished_only(finished)
    picked = pick.among(finished.counts, finished.axes)
    weights = _weights(finished, picked, averaged=request.averaged)
    summaries = Summaries(weights, output.top_keys, picked, quiet=run.quiet)
    arrays = {"weights": weights.in_user_axes}
    request.refuse_unheld({"weights": arrays["weights"].shape})
    layout = "bsd" if weights.axes == "b" else None
    outputs = [
        (save, request.results(save.names, arrays, summaries, layout)) for save in request.saves
    ]
    write(outputs, quiet=run.quiet)
    if output.is_tables:
        limits = limits_of(output, run, decimals)
        request.show(_tables(request, weights, summaries, limits, picked), run)
    else:
        request.write(request.results(request.names, arrays, summaries, layout))


def _weights(finished: Finished, picked: Picked, *, averaged: bool) -> Given:
    from attncli.engine.averaging import refuse_without_heads
    from attncli.summaries.row_blocks import Given

    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    labels = finished.query_labels, finished.key_labels
    weights = Given(finished.weights(picked), axes, labels, finished.hidden_cells(picked))
    if not averaged:
        return weights
    refuse_without_heads(axes)
    return weights.averaged()


def _tables(
    request: Request, weights: Given, summaries: Summaries, limits: Limits, picked: Picked
) -> Iterator[Text]:
    from attncli.view.answer import finished_parts

    for name in request.names:
        if name == "weights":
            yield from finished_parts(weights, limits, picked, mean=request.averaged)
        else:
            yield from summaries.parts(name, limits)
