"""``attncli heatmap --out view.html``: a page to explore."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attncli.cli.declaring import PICTURE
from attncli.cli.question import Asked, layers_of, maps_of
from attncli.cli.terminal import advice, note, progress_bar
from attncli.errors import UsageError
from attncli.errors.text import counted

if TYPE_CHECKING:
    from attncli.cli.heatmap import HeatmapOptions
    from attncli.view.page import Map

__all__ = ["write_page"]

# The options of pictures that a page takes; its reader chooses the rest.
_TAKEN = {"title", "rollout", "grid", "query", "image", "blocks"}
# Weights in a page: more make a file of over 100 MB, which browsers open slowly.
_MOST_CELLS = 100_000_000


def write_page(options: HeatmapOptions) -> None:
    """Write the page of a problem, of finished weights, or of several layers."""
    from attncli.errors import warn
    from attncli.problem.advice import fully_masked_advice
    from attncli.save.files import refuse_inputs, refuse_unwritable, whole_file
    from attncli.view.page import page
    from attncli.view.page.maps import REASONS, MapMaker

    out = str(options.out)
    _refuse_others(options)
    refuse_unwritable([out])
    maps: list[Map] = []
    layers, maker, cells, query, remark = {}, MapMaker(options.threads), 0, 0, ""
    with advice(quiet=options.quiet):
        for layer, name, asked in layers_of(options):
            refuse_inputs([out], [*asked.inputs, *([options.image] if options.image else [])])
            source, picked = maps_of(asked, options)
            cells += math.prod(source.shape)
            if cells > _MOST_CELLS:
                raise UsageError(
                    f"a page holds at most {_MOST_CELLS:,} weights; found {cells:,}",
                    hint="choose some with --layer, --batch and --head",
                )
            layers[layer], query, remark = name, options.query_of(source), asked.remark
            with progress_bar(quiet=options.quiet) as maker.progress:
                maps += maker.maps(source, layer=layer, picked=picked)
            if isinstance(asked, Asked) and maker.fully_masked:
                warn(fully_masked_advice(asked.problem, maker.fully_masked))
        title = "Attention weights" + (f": {remark}" if remark else "")
        text = page(
            maps,
            title=title if options.title is None else options.title,
            layers=layers,
            reasons=REASONS,
            patches=options.on_page(source.shape[3]),
            query=query,
        )
    with whole_file(out) as stream:
        stream.write(text.encode())
    note(f"{out} holds {counted(len(maps), 'map')}: open it in a browser", quiet=options.quiet)


def _refuse_others(options: HeatmapOptions) -> None:
    panels = {name: one.told.rich_help_panel for name, one in options.declared().items()}
    others = [name for name, panel in panels.items() if panel == PICTURE and name not in _TAKEN]
    options.refuse(
        " ".join([*others, "average_heads"]),
        "is not for a page: it shows every query, key and head",
        hint="leave it out, or draw a .png, .svg or .pdf file",
    )
    options.refuse("workers scheduler", "does not go with an .html page")
