"""``attncli heatmap --out view.html``: a page to explore."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.cli.options import PickOptions
from attncli.cli.question import Asked, maps_of
from attncli.cli.terminal import advice, note, progress_bar
from attncli.errors import UsageError
from attncli.errors.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.cli.heatmap import PictureOptions
    from attncli.cli.options import AverageOptions, MergeOptions, ProblemOptions, RunOptions
    from attncli.cli.patches import PatchOptions
    from attncli.gather import Finished
    from attncli.view.page import Map

__all__ = ["write_page"]

# What a page takes of the options of pictures: the rest is left to whoever looks at it.
_TAKEN = ("out", "title", "rollout")
# Weights in a page: more make a file of over 100 MB, which browsers open slowly.
_MOST_CELLS = 100_000_000


def write_page(
    drawing: PictureOptions,
    patches: PatchOptions,
    pick: PickOptions,
    average: AverageOptions,
    merge: MergeOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> None:
    """Write the page of a problem, of finished weights, or of several layers.

    Raises
    ------
    UsageError
        An option is for pictures only, or there are too many weights.
    """
    from attncli.errors import warn
    from attncli.problem.advice import fully_masked_advice
    from attncli.save.files import refuse_inputs, refuse_unwritable, whole_file
    from attncli.view.page import page
    from attncli.view.page.maps import REASONS, MapMaker

    out = str(drawing.out)
    _refuse_others(drawing, average)
    refuse_unwritable([out])
    maps: list[Map] = []
    layers, maker, cells, query, remark = {}, MapMaker(run.threads), 0, 0, ""
    with advice(quiet=run.quiet):
        for layer, name, asked in _layers(drawing, pick, merge, options, run):
            refuse_inputs([out], [*asked.inputs, *([patches.image] if patches.image else [])])
            source, picked = maps_of(asked, pick, run)
            cells += math.prod(source.shape)
            if cells > _MOST_CELLS:
                raise UsageError(
                    f"a page holds at most {_MOST_CELLS:,} weights; found {cells:,}",
                    hint="choose some with --layer, --batch and --head",
                )
            layers[layer], query = name, patches.query_of(source)
            with progress_bar(quiet=run.quiet) as maker.progress:
                maps += maker.maps(source, layer=layer, picked=picked)
            if not isinstance(asked, Asked):
                remark = asked.remark
            elif maker.fully_masked:
                warn(fully_masked_advice(asked.problem, maker.fully_masked))
        title = "Attention weights" + (f": {remark}" if remark else "")
        text = page(
            maps,
            title=title if drawing.title is None else drawing.title,
            layers=layers,
            reasons=REASONS,
            patches=patches.on_page(source.shape[3]),
            query=query,
        )
    with whole_file(out) as stream:
        stream.write(text.encode())
    note(f"{out} holds {counted(len(maps), 'map')}: open it in a browser", quiet=run.quiet)


def _refuse_others(drawing: PictureOptions, average: AverageOptions) -> None:
    asked = {name: value for name, value in vars(drawing).items() if name not in _TAKEN}
    usual = {**vars(type(drawing)()), **vars(type(average)())}
    for name, value in (asked | vars(average)).items():
        if value != usual[name]:
            raise UsageError(
                f"--{name.replace('_', '-')} is not for a page: it shows every query, key and head",
                hint="leave it out, or draw a .png, .svg or .pdf file",
            )


def _layers(
    drawing: PictureOptions,
    pick: PickOptions,
    merge: MergeOptions,
    options: ProblemOptions,
    run: RunOptions,
) -> Iterator[tuple[int, str, Asked | Finished]]:
    """Yield what is asked for of each layer, or of all of them together, as tokens or words."""
    from attncli.cli.layers import each_layer, rolled

    found: Iterator[tuple[int, str, Asked | Finished]]
    if drawing.rollout is None:
        found = each_layer(options, PickOptions() if merge.merge else pick, run)
    else:
        found = iter([(0, "", rolled(options, run, residual=drawing.rollout == "half"))])
    for number, name, asked in found:
        if merge.merge is None:
            yield number, name, asked
        else:
            from attncli.cli.merging import merged

            yield number, name, merged(asked, merge, run)
