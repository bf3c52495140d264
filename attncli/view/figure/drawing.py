"""A picture as a matplotlib figure, and a figure as the bytes of a file.

No pyplot: a figure has its own canvas, so nothing global is touched and no
display is needed. Importing this module loads matplotlib.
"""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.text import Text

from attncli.errors import UsageError
from attncli.text import did_you_mean
from attncli.view.figure.layout import (
    LABEL_SIZE,
    NAME_SIZE,
    NOTE_ROOM,
    TITLE_ROOM,
    TITLE_SIZE,
    lay_out,
    stretch_within,
)
from attncli.view.figure.metadata import savefig_metadata
from attncli.view.figure.panels import draw_bar, draw_hidden_entry, draw_panel
from attncli.view.figure.style import drawing_style, picture_families, text_measure
from attncli.view.pictures.pooling import coarsen
from attncli.view.pictures.room import cell_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.view.figure.heading import Measure
    from attncli.view.figure.layout import FigureLayout
    from attncli.view.figure.metadata import FigureFormat
    from attncli.view.pictures.picture import Picture

__all__ = ["colormap", "draw", "fit", "render"]

Size = tuple[float, float]

MAX_PANELS = 400
_MAX_PIXELS = 100_000_000
# The fonts of a text in an SVG, which whoever reads it may not have.
_FONTS = re.compile(rb'(<text[^>]* style="[^"]*font-family: [^;"]*)')
_NUMBER_SIZE, _SMALLEST_NUMBER = 10.0, 6.0
_MOST_NUMBERS_UNASKED, _MOST_NUMBERS = 400, 2_500


def fit(picture: Picture, *, dpi: float = 150, size: Size | None = None) -> Picture:
    """Return a picture whose every cell gets at least a pixel; pooled if it must be.

    Parameters
    ----------
    picture : Picture
    dpi : float
        Pixels per inch.
    size : (float, float), optional
        As for `draw`.

    Raises
    ------
    UsageError
        The size leaves no room for cells.
    """
    shape = (picture.rows, picture.columns)
    if size is not None:
        with drawing_style():
            dpi *= stretch_within(picture, text_measure(picture_families(picture)), size)
    limit = cell_limit(shape, panels=len(picture.panels), group=picture.group, dpi=dpi)
    return coarsen(picture, limit)


def draw(
    picture: Picture,
    *,
    cmap: str | None = None,
    annotate: bool | None = None,
    digits: int = 2,
    dpi: float = 150,
    size: Size | None = None,
) -> Figure:
    """Draw a picture.

    Parameters
    ----------
    picture : Picture
        From `fit`, if it may have more cells than pixels.
    cmap : str, optional
        Name of a matplotlib colour map; Blues for weights and RdBu for signed values
        unless given.
    annotate : bool, optional
        Write the numbers into the cells; by default only where they can be read.
    digits : int
        Digits after the point in these numbers.
    dpi : float
        Pixels per inch.
    size : (float, float), optional
        The most inches across and up, which the figure fills as far as its cells keep their
        shape; by default its size follows the number of cells.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    UsageError
        The colour map is unknown, there are too many panels or numbers, or the size leaves no
        room for cells, or for numbers in them.
    """
    if len(picture.panels) > MAX_PANELS:
        message = f"a figure holds at most {MAX_PANELS} maps, found {len(picture.panels)}"
        raise UsageError(message, hint="choose some with --batch and --head")
    colors = colormap(cmap or ("RdBu" if picture.signed else "Blues"))
    with drawing_style():
        fonts = picture_families(picture)
        measure = text_measure(fonts)
        layout, numbers = _with_numbers(picture, measure, digits, annotate=annotate, size=size)
        figure = Figure(figsize=(layout.width, layout.height), dpi=dpi)
        for index in range(len(picture.panels)):
            draw_panel(figure, picture, layout, index, colors, numbers)
        draw_bar(figure, picture, layout, colors)
        if picture.any_hidden:
            draw_hidden_entry(figure, layout)
        _write_names(figure, layout)
        _use_fonts(figure, fonts)
    return figure


def colormap(name: str) -> Any:
    """Return a colour map of matplotlib.

    Raises
    ------
    UsageError
        There is none of that name.
    """
    try:
        return mpl.colormaps[name]
    except KeyError:
        hint = did_you_mean(name, mpl.colormaps) or "Blues, viridis and Greys are examples"
        raise UsageError(f"there is no colour map {name!r} in matplotlib", hint=hint) from None


def _with_numbers(
    picture: Picture, measure: Measure, digits: int, *, annotate: bool | None, size: Size | None
) -> tuple[FigureLayout, tuple[int, float] | None]:
    """Lay the figure out, and find the size of the numbers in its cells, if any."""
    stretch = 1.0 if size is None else stretch_within(picture, measure, size)
    layout = lay_out(picture, measure, stretch=stretch)
    rows, columns = picture.cells
    count = rows * columns * len(picture.panels)
    if annotate is False or (annotate is None and count > _MOST_NUMBERS_UNASKED):
        return layout, None
    if count > _MOST_NUMBERS:
        message = f"numbers fit into at most {_MOST_NUMBERS} cells, found {count}"
        raise UsageError(message, hint="choose a part with --rows and --cols, or --no-annotate")
    points = _number_size(picture, layout, measure, digits)
    if points < _SMALLEST_NUMBER:
        if annotate is None:
            return layout, None
        if size is not None:
            raise UsageError(
                "--size: there is no room for numbers in the cells of a picture of this size",
                hint="give it more room, or --no-annotate, or fewer --digits",
            )
        layout = lay_out(picture, measure, stretch=_SMALLEST_NUMBER / points)
        points = _SMALLEST_NUMBER
    return layout, (digits, points)


def _number_size(picture: Picture, layout: FigureLayout, measure: Measure, digits: int) -> float:
    """Return the size in points at which every number fits into its cell."""
    height, width = (
        side / length * min(last - first + 1 for first, last in picture.spans(axis))
        for axis, side, length in (
            (0, layout.panel[1], picture.rows),
            (1, layout.panel[0], picture.columns),
        )
    )
    longest = max(
        (text for panel in picture.panels for row in picture.texts(panel, digits) for text in row),
        key=len,
    )
    if not longest:
        return _NUMBER_SIZE
    across, up = measure(longest, _NUMBER_SIZE)
    return _NUMBER_SIZE * min(1.0, 0.86 * width / across, 0.7 * height / up)


def _write_names(figure: Figure, layout: FigureLayout) -> None:
    """Write the title, its notes, and the names of the axes."""
    left, bottom, right, top = layout.grid
    across, up = layout.width, layout.height
    center, middle = (left + right) / 2 / across, (bottom + top) / 2 / up
    for line, words in enumerate(layout.title):
        place = 1 - (0.14 + TITLE_ROOM * line) / up
        figure.text(center, place, words, ha="center", va="top", fontsize=TITLE_SIZE)
    below = 0.14 + TITLE_ROOM * len(layout.title)
    for line, words in enumerate(layout.notes):
        place = 1 - (below + NOTE_ROOM * line) / up
        figure.text(center, place, words, ha="center", va="top", fontsize=LABEL_SIZE)
    figure.text(center, 0.1 / up, layout.keys.name, ha="center", va="bottom", fontsize=NAME_SIZE)
    figure.text(
        0.1 / across,
        middle,
        layout.queries.name,
        rotation=90,
        ha="left",
        va="center",
        fontsize=NAME_SIZE,
    )


def _use_fonts(figure: Figure, fonts: list[str]) -> None:
    """Give all text the fonts that were found to draw it."""
    for text in figure.findobj(Text):
        text.set_fontfamily(fonts)


def render(
    figure: Figure,
    file_format: FigureFormat,
    *,
    dpi: float = 150,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Return a figure as the bytes of a file; the same figure is the same bytes.

    Parameters
    ----------
    figure : Figure
    file_format : {"png", "svg", "pdf"}
    dpi : float
        Pixels per inch, for PNG.
    metadata : mapping of str to str, optional
        Written into the file, where `attncli info` finds it.

    Raises
    ------
    UsageError
        The image would have more than 100 million pixels.
    """
    width, height = (float(side) * dpi for side in figure.get_size_inches())
    if file_format == "png" and not 0 < width * height <= _MAX_PIXELS:
        message = (
            f"at {dpi:g} dots per inch the picture has {width:.0f} × {height:.0f} pixels;"
            f" at most {_MAX_PIXELS // 10**6} million are drawn"
        )
        raise UsageError(message, hint="choose a smaller --dpi, or write an .svg or .pdf")
    buffer = BytesIO()
    with drawing_style():
        figure.savefig(
            buffer,
            format=file_format,
            dpi=dpi,
            metadata=savefig_metadata(metadata or {}, file_format),
        )
    drawn = buffer.getvalue()
    return drawn if file_format != "svg" else _FONTS.sub(rb"\1, Verdana, sans-serif", drawn)
