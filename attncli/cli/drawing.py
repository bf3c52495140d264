"""Pictures and pages in files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from attncli import __version__
from attncli.cli.declaring import PICTURE, RUN
from attncli.cli.question import Asked, layers_of, maps_of
from attncli.cli.terminal import advice, note, progress_bar
from attncli.errors import UsageError
from attncli.errors.text import counted, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure

    from attncli.cli.heatmap import HeatmapOptions
    from attncli.cli.options import ScreenOptions
    from attncli.view.page import Map
    from attncli.view.pictures.picture import Picture

Kind: TypeAlias = Literal["png", "svg", "pdf"]

_FORMATS: dict[str, Kind] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
# Most pixels of a PNG; more take gigabytes of memory.
_MOST_PIXELS = 100_000_000
# Labels without a font: how many of them a note names, and the most columns of each.
_MOST_NAMED, _LONGEST_NAME = 2, 24
# The options of pictures that a page takes; its reader chooses the rest.
_TAKEN = {"title", "rollout", "grid", "query", "image", "blocks"}
# Weights in a page: more make a file of over 100 MB, which browsers open slowly.
_MOST_CELLS = 100_000_000


def figure_kind(path: str, option: str, also: str = "") -> Kind:
    """Return the format of a figure; PNG for a stream without a suffix, such as /dev/stdout."""
    from attncli.save.files import is_direct

    suffix = Path(path).suffix.lower()
    if path and not suffix and is_direct(path):
        return "png"
    if suffix not in _FORMATS:
        raise UsageError(f"{option}: expected a .png, .svg or .pdf file{also}; found {path!r}")
    return _FORMATS[suffix]


def refuse_unknown_map(name: str | None) -> None:
    """Refuse a colour map that Matplotlib does not have, before anything is computed."""
    if name is None:
        return
    from attncli.view.figure.style import colormap_names

    known = colormap_names()
    if name not in known:
        hint = did_you_mean(name, known) or "Blues, viridis and Greys are examples"
        raise UsageError(f"--cmap: there is no colour map {name!r} in matplotlib", hint=hint)


def write_figure(picture: Picture, path: str, options: ScreenOptions) -> None:
    """Draw a picture into a file, whose metadata holds the given options."""
    from attncli.save.files import whole_file
    from attncli.view.figure.drawing import draw
    from attncli.view.figure.render import render
    from attncli.view.pictures.sizes import NoRoomError

    kind = figure_kind(path, "a picture")
    _refuse_too_much(picture)
    # No date and no path: the same input gives the same bytes.
    metadata = {"Software": f"attncli {__version__}", "what": picture.look.what, **_told(options)}
    try:
        drawn = draw(picture)
        if kind == "png":
            _refuse_pixels(drawn.figure)
        data = render(drawn.figure, kind, metadata=metadata)
    except NoRoomError as error:
        raise UsageError(
            f"--size: {error}",
            hint="give it more room, or draw fewer heads, --rows or --cols, or --no-annotate",
        ) from None
    except ValueError as error:
        if not picture.look.math:
            raise
        raise UsageError(f"--math: {' '.join(str(error).split())}") from None
    with whole_file(path) as stream:
        stream.write(data)
    for words in _notes(drawn.picture, kind):
        note(words, quiet=options.quiet)


def _told(options: ScreenOptions) -> dict[str, str]:
    declared = options.declared()
    return {
        name: " ".join(value) if isinstance(value, list) else str(value)
        for name, value in options.given().items()
        if name not in ("out", "diff") and declared[name].told.rich_help_panel != RUN
    }


def _refuse_too_much(picture: Picture) -> None:
    """Refuse more maps or numbers than anyone could read."""
    from attncli.view.figure.drawing import MOST_NUMBERS, MOST_PANELS

    count = len(picture.panels)
    if count > MOST_PANELS:
        raise UsageError(
            f"a figure holds at most {MOST_PANELS} maps; found {count}",
            hint="choose some with --batch and --head",
        )
    cells = picture.cells[0] * picture.cells[1] * count
    if picture.look.annotate and cells > MOST_NUMBERS:
        raise UsageError(
            f"--annotate: numbers fit into at most {MOST_NUMBERS} cells; found {cells}",
            hint="choose a part with --rows and --cols, or leave out --annotate",
        )


def _refuse_pixels(figure: Figure) -> None:
    width, height = (float(inches) * figure.dpi for inches in figure.get_size_inches())
    if width * height > _MOST_PIXELS:
        raise UsageError(
            f"--dpi: at {figure.dpi:g} dots per inch the picture has {width:.0f} × {height:.0f} "
            f"pixels; at most {_MOST_PIXELS // 10**6} million are drawn",
            hint="choose a smaller --dpi, or write an .svg or .pdf",
        )


def _notes(picture: Picture, kind: Kind) -> Iterator[str]:
    from attncli.view.figure.drawing import picture_texts
    from attncli.view.figure.style import letters_without_font
    from attncli.view.labels import shorten

    yield from (note for note in (picture.note, picture.scale_advice) if note)
    texts = picture_texts(picture)
    missing = letters_without_font(texts) if kind != "svg" else set()
    boxed = [text for text in dict.fromkeys(texts) if not missing.isdisjoint(text)]
    if boxed:
        more = f" and {len(boxed) - _MOST_NAMED} more" if len(boxed) > _MOST_NAMED else ""
        words = ", ".join(shorten(text, _LONGEST_NAME) for text in boxed[:_MOST_NAMED])
        yield (
            f"no font here for {words}{more}: boxes are drawn; a .svg file keeps the characters, "
            f"a .{kind} needs a font that has them (such as one of the Noto fonts)"
        )


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
