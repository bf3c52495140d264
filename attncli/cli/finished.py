"""``attncli compute`` of finished weights, which only shows what they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.cli.question import finished_only
from attncli.cli.saving import held, saves_of, write_save
from attncli.cli.showing import (
    limits_of,
    names_shown,
    refuse_averaged_summaries,
    refuse_binary,
    refuse_unused_top,
    write_stdout,
)
from attncli.cli.summaries import Summaries
from attncli.cli.terminal import console
from attncli.names import SUMMARIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.cli.options import AverageOptions, OutputOptions, RunOptions
    from attncli.cli.picking import PickOptions
    from attncli.gather import Finished
    from attncli.save.formats import Results

__all__ = ["summarise"]


def summarise(
    finished: Finished,
    output: OutputOptions,
    pick: PickOptions,
    average: AverageOptions,
    run: RunOptions,
    *,
    decimals: int,
) -> None:
    """Print and save ``stats`` and ``top`` of finished weights.

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
    if not asked <= {*SUMMARIES}:
        raise finished_only(finished)
    if average.average_heads:
        refuse_averaged_summaries(asked)
    refuse_unused_top(output, asked)
    for save in saves:
        _refuse_unheld(save.names, save.format)
    if output.format != "table":
        refuse_binary(output.format)
        _refuse_unheld(held(names, output.format, chosen=True), output.format)
    summaries = _summaries(finished, output, pick, run)
    for save in saves:
        write_save(save, _results(finished, summaries, save.names))
    if output.format != "table":
        write_stdout(output.format, _results(finished, summaries, names))
        return
    screen, limits = console(run.color), limits_of(output, run, decimals)
    for name in names:
        for part in summaries.parts(name, limits):
            screen.print(part, crop=False)


def _refuse_unheld(names: Sequence[str], kind: str) -> None:
    from attncli.save.formats import FORMATS, Results

    FORMATS[kind].hold(Results({}, extra={name: [] for name in names}))


def _summaries(
    finished: Finished, output: OutputOptions, pick: PickOptions, run: RunOptions
) -> Summaries:
    from attncli.summaries.row_blocks import Given
    from attncli.view.pictures.finished import finished_weights, hidden_cells

    picked = pick.among(finished.counts, "bh")
    gone = [axis for axis, one in zip("bh", picked, strict=True) if isinstance(one, int)]
    axes = "".join(axis for axis in finished.axes if axis not in gone)
    labels = finished.query_labels, finished.key_labels
    array, hidden = finished_weights(finished, picked), hidden_cells(finished, picked)
    return Summaries(Given(array, axes, labels, hidden), output.top_keys, picked, run)


def _results(finished: Finished, summaries: Summaries, names: Sequence[str]) -> Results:
    from attncli.save.formats import Results

    labels = finished.query_labels, finished.key_labels
    return Results({}, *labels, summaries.among(names))
