"""``attncli heatmap --out view.html``: a page to explore."""

from __future__ import annotations

import copy
import math
import os
from typing import TYPE_CHECKING

from attncli.cli.options import PickOptions
from attncli.cli.question import Asked, ask_or_read, maps_of
from attncli.cli.terminal import advice, note, progress_bar
from attncli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.cli.heatmap import PictureOptions
    from attncli.cli.options import (
        AverageOptions,
        MergeOptions,
        ProblemOptions,
        RunOptions,
    )
    from attncli.gather import Finished
    from attncli.view.page import Map

__all__ = ["write_page"]

# What the page leaves to whoever looks at it, or has no room for.
_OF_PICTURES = (
    *("what", "rows", "cols", "minus", "log", "vmax", "annotate", "digits", "cmap", "dpi", "size"),
    *("font_size", "transparent", "math"),
)
_OF_WORDS = "Attention weights, subwords joined (summed over keys, averaged over queries)"
# Weights in a page: more make a file of over 100 MB, which browsers open slowly.
_MOST_CELLS = 100_000_000


def write_page(
    drawing: PictureOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Write the page of a problem, of finished weights, or of all layers in a folder.

    Raises
    ------
    UsageError
        An option is for pictures only, or there are too many weights.
    """
    from attncli.save.files import refuse_inputs, refuse_unwritable, whole_file
    from attncli.view.page import page
    from attncli.view.page.maps import REASONS, MapMaker

    out = str(drawing.out)
    _refuse_others(drawing, average)
    refuse_unwritable([out])
    maps: list[Map] = []
    maker = MapMaker(run.threads)
    cells = 0
    with advice(quiet=run.quiet):
        for layer, asked in _layers(options, pick, merge, run):
            refuse_inputs([out], asked.inputs)
            source, picked = maps_of(asked, pick, run)
            cells += math.prod(source.shape)
            _refuse_too_many(cells)
            with progress_bar(quiet=run.quiet) as maker.progress:
                maps += maker.maps(source, layer=layer, picked=picked)
            _warn_unseeing(asked, maker.fully_masked)
        usual = "Attention weights" if merge.merge is None else _OF_WORDS
        title = usual if drawing.title is None else drawing.title
        text = page(maps, title=title, reasons=REASONS)
    with whole_file(out) as stream:
        stream.write(text.encode())
    note(f"{out} holds {len(maps)} maps: open it in a browser", quiet=run.quiet)


def _refuse_others(drawing: PictureOptions, average: AverageOptions) -> None:
    unasked = type(drawing)()
    other = next((n for n in _OF_PICTURES if getattr(drawing, n) != getattr(unasked, n)), None)
    if average.average_heads:
        other = "average_heads"
    if other:
        raise UsageError(
            f"--{other.replace('_', '-')} is not for a page: it shows every query, key and head",
            hint="leave it out, or draw a .png, .svg or .pdf file",
        )


def _layers(
    options: ProblemOptions, pick: PickOptions, merge: MergeOptions, run: RunOptions
) -> Iterator[tuple[int, Asked | Finished]]:
    """Yield what is asked for, of each layer where a folder holds several and none is chosen."""
    from attncli.gather import recorded_layers

    files = options.files or []
    folder = len(files) == 1 and os.path.isdir(files[0])  # noqa: PTH112 - false of any other name
    numbers: list[int | None] = [options.layer]
    if folder and options.layer is None:
        numbers = [*recorded_layers(files[0])] or numbers
    for number in numbers:
        one = copy.copy(options)
        one.layer = number
        if merge.merge is None:
            yield number or 0, ask_or_read(one, pick, run, saved=True)
        else:
            from attncli.cli.merging import merged

            yield number or 0, merged(ask_or_read(one, PickOptions(), run, saved=True), merge, run)


def _refuse_too_many(cells: int) -> None:
    if cells > _MOST_CELLS:
        raise UsageError(
            f"a page holds at most {_MOST_CELLS:,} weights; found {cells:,}",
            hint="choose some with --layer, --batch and --head",
        )


def _warn_unseeing(asked: Asked | Finished, fully_masked: int) -> None:
    from attncli.errors import warn
    from attncli.problem.advice import fully_masked_advice

    if isinstance(asked, Asked) and fully_masked:
        warn(fully_masked_advice(asked.problem, fully_masked))
