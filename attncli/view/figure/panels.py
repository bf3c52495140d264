"""The parts of a figure: one panel with its cells, the colour bar, the hidden entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.patches import PathPatch, Polygon, Rectangle
from matplotlib.path import Path

from attncli.view.color import ink
from attncli.view.figure.layout import (
    BAR_ARROW,
    HIDDEN_SWATCH,
    LABEL_SIZE,
    NAME_SIZE,
    PANEL_TITLE,
)
from attncli.view.labels import brief, shorten
from attncli.view.pictures.scale import fractions, minor_ticks, scale_ticks

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from attncli.view.figure.layout import FigureLayout
    from attncli.view.pictures.panel import Panel
    from attncli.view.pictures.picture import Picture

__all__ = ["draw_bar", "draw_hidden_entry", "draw_panel"]

# Hatching is drawn run by run; beyond this many runs, plain grey must do.
_MOST_RUNS = 5_000
_HATCH = "////"
_HATCH_COLOR = (0.55, 0.55, 0.55)
# Paler than in a terminal, since half of a picture may be hidden and paper is white.
_GREY = (205, 205, 205)
# Viewers smooth small images in SVG and PDF; larger ones keep their edges sharp.
_SHARP = 512
# Points of an inch, and the height of a line of text in units of its size.
_POINTS, _LEADING = 72, 1.3


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes at a place given in inches."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def image_colors(picture: Picture, panel: Panel, colormap: Any) -> npt.NDArray[np.uint8]:
    """Return the colour of each cell.

    Returns
    -------
    ndarray of uint8, (rows, columns, 4)
        Red, green, blue and alpha; grey where hidden.
    """
    colors = np.array(colormap(fractions(picture, panel.values), bytes=True))
    colors[panel.hidden] = (*_GREY, 255)
    return colors


def draw_panel(
    figure: Figure,
    picture: Picture,
    layout: FigureLayout,
    index: int,
    colormap: Any,
    numbers: tuple[int, float] | None,
) -> None:
    """Draw one map: cells, hatching, ticks, title and, where given, numbers.

    Parameters
    ----------
    figure : Figure
    picture : Picture
    layout : FigureLayout
    index : int
        Which panel.
    colormap : Colormap
    numbers : (int, float) or None
        Digits after the point and the size in points.
    """
    panel = picture.panels[index]
    axes = add_axes(figure, *layout.corners[index], *layout.panel)
    colors = image_colors(picture, panel, colormap)
    down, across = (size * block for size, block in zip(picture.cells, picture.block, strict=True))
    axes.imshow(
        _enlarged(colors),
        interpolation="none",
        aspect="auto",
        extent=(-0.5, across - 0.5, down - 0.5, -0.5),
    )
    _hatch(axes, panel.hidden, picture.block)
    # The last block may be smaller than the others, so the axes end before the image.
    axes.set_xlim(-0.5, picture.columns - 0.5)
    axes.set_ylim(picture.rows - 0.5, -0.5)
    _name_places(axes, layout, index)
    _title_panel(axes, picture, index, layout)
    if numbers is not None:
        digits, size = numbers
        _write_numbers(axes, picture, picture.texts(panel, digits), colors, size)


def _enlarged(colors: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    down, across = (max(1, -(-_SHARP // size)) for size in colors.shape[:2])
    return colors.repeat(down, axis=0).repeat(across, axis=1)


def _hatch(axes: Axes, hidden: npt.NDArray[np.bool_], block: tuple[int, int]) -> None:
    """Hatch the hidden cells, so that they differ from zero in any colour map."""
    path = _hidden_path(hidden, block)
    if path is not None:
        axes.add_patch(
            PathPatch(path, fill=False, hatch=_HATCH, edgecolor=_HATCH_COLOR, linewidth=0)
        )


def _hidden_path(hidden: npt.NDArray[np.bool_], block: tuple[int, int]) -> Path | None:
    """Return the outlines of all runs of hidden cells in a row, as one path."""
    edges = np.diff(np.pad(hidden, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    _, ends = np.nonzero(edges == -1)
    if not 0 < len(rows) <= _MOST_RUNS:
        return None
    top, bottom = rows * block[0] - 0.5, (rows + 1) * block[0] - 0.5
    left, right = starts * block[1] - 0.5, ends * block[1] - 0.5
    corners = np.stack(
        [left, top, right, top, right, bottom, left, bottom, left, top], axis=1
    ).reshape(-1, 2)
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    return Path(corners, np.tile(codes, len(rows)))


def _name_places(axes: Axes, layout: FigureLayout, index: int) -> None:
    """Write the labels: queries beside the first column, keys below the lowest panels."""
    keys, queries = layout.keys, layout.queries
    lowest = index + layout.columns >= len(layout.corners)
    first = index % layout.columns == 0
    axes.tick_params(length=3, width=0.6, labelsize=LABEL_SIZE, bottom=lowest, left=first)
    axes.set_xticks(keys.ticks.positions, keys.ticks.texts if lowest else [])
    axes.set_yticks(queries.ticks.positions, queries.ticks.texts if first else [])
    if keys.rotated:
        axes.tick_params(axis="x", labelrotation=90)


def _title_panel(axes: Axes, picture: Picture, index: int, layout: FigureLayout) -> None:
    """Write the title; all titles are short if any is too long."""
    titles = [panel.title or "" for panel in picture.panels]
    # A rough width is enough for what is nearly always "head 3"; half of a gap is on either side.
    room = max(5, int((layout.panel[0] + 0.1) / 0.1))
    title = brief(titles[index]) if max(map(len, titles)) > room else titles[index]
    if title:
        axes.set_title(shorten(title, room), fontsize=NAME_SIZE, pad=PANEL_TITLE * 14)


def _write_numbers(
    axes: Axes,
    picture: Picture,
    numbers: list[list[str]],
    colors: npt.NDArray[np.uint8],
    size: float,
) -> None:
    """Write each weight into the middle of its cell, in the ink that its colour needs."""
    down, across = ([(first + last) / 2 for first, last in picture.spans(axis)] for axis in (0, 1))
    for i, texts in enumerate(numbers):
        for j, text in enumerate(texts):
            red, green, blue = colors[i, j, :3].tolist()
            axes.text(
                across[j],
                down[i],
                text,
                ha="center",
                va="center_baseline",
                fontsize=size,
                color=ink((red, green, blue)),
            )


def draw_bar(figure: Figure, picture: Picture, layout: FigureLayout, colormap: Any) -> None:
    """Draw the colour bar that all panels share, with its numbers and its name."""
    left, bottom, width, height = layout.bar
    below, above = (BAR_ARROW if beyond else 0.0 for beyond in picture.saturated)
    axes = add_axes(figure, left, bottom + below, width, height - below - above)
    steps = (np.arange(256) + 0.5) / 256
    axes.imshow(
        colormap(steps, bytes=True)[:, np.newaxis],
        interpolation="none",
        aspect="auto",
        origin="lower",
        extent=(0, 1, 0, 1),
    )
    text = LABEL_SIZE / _POINTS * _LEADING
    places, texts = zip(*scale_ticks(picture, text / (height - below - above)), strict=True)
    axes.set_xticks([])
    axes.set_yticks(places, texts)
    axes.set_yticks(minor_ticks(picture), minor=True)
    axes.yaxis.tick_right()
    axes.tick_params(length=3, width=0.6, labelsize=LABEL_SIZE)
    axes.tick_params(which="minor", length=1.5, width=0.5)
    axes.yaxis.set_label_position("right")
    axes.set_ylabel(layout.bar_name, fontsize=NAME_SIZE)
    if below:
        _point(figure, layout, bottom + below, bottom, colormap(0.0))
    if above:
        _point(figure, layout, bottom + height - above, bottom + height, colormap(1.0))


def _point(figure: Figure, layout: FigureLayout, base: float, tip: float, color: Any) -> None:
    """Draw the arrow for values beyond the end of the bar."""
    left, _, width, _ = layout.bar
    corners = np.array([(left, base), (left + width / 2, tip), (left + width, base)])
    figure.add_artist(
        Polygon(corners / figure.get_size_inches(), facecolor=color, edgecolor="black", lw=0.6)
    )


def draw_hidden_entry(figure: Figure, layout: FigureLayout) -> None:
    """Draw what stands for a hidden cell, below the colour bar."""
    width, height = figure.get_size_inches()
    left, bottom = layout.bar[0], layout.bar[1] - 0.2 - HIDDEN_SWATCH
    for look in (
        {"facecolor": [channel / 255 for channel in _GREY]},
        {"fill": False, "hatch": _HATCH},
    ):
        figure.add_artist(
            Rectangle(
                (left / width, bottom / height),
                HIDDEN_SWATCH / width,
                HIDDEN_SWATCH / height,
                edgecolor=_HATCH_COLOR,
                linewidth=0.5,
                **look,
            )
        )
    figure.text(
        (left + HIDDEN_SWATCH + 0.06) / width,
        (bottom + HIDDEN_SWATCH / 2) / height,
        "hidden",
        va="center",
        fontsize=LABEL_SIZE,
    )
