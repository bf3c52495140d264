"""The cells of a figure: their colours, the lines between them, and the numbers in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap, Normalize

from attncli.view.color import ink
from attncli.view.figure.style import text_size
from attncli.view.pictures.scale import fractions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

    from attncli.view.pictures.picture import Axis, Look, Panel, Picture

# Rather paler than in a terminal: half of a picture may be hidden, and paper is white.
HIDDEN_LOOK: dict[str, Any] = {"facecolor": "#cdcdcd", "edgecolor": "#8c8c8c", "hatch": "////"}
# Lines are drawn between cells if each side has at most this many.
_FEW_CELLS = 32
_LINE: dict[str, Any] = {"color": "#80808040", "linewidth": 0.5, "in_layout": False}
# How opaque the smallest and the largest weight are over an image.
_THROUGH = 0.2, 0.85


def colors_of(look: Look) -> Colormap:
    """Return the colour map; over an image, small weights let more of it through."""
    usual = "RdBu" if look.signed else "Blues" if look.image is None else "inferno"
    found = mpl.colormaps[look.cmap or usual]
    if look.image is not None:
        colors = found(np.arange(found.N))
        colors[:, 3] = np.linspace(*_THROUGH, found.N)
        found = ListedColormap(colors)
    return found.with_extremes(bad=(0, 0, 0, 0))


def draw_cells(axes: Axes, picture: Picture, panel: Panel, colors: Colormap) -> None:
    """Draw the cells over a hatched background, which hidden cells let through."""
    look, rows, columns = picture.look, picture.rows, picture.columns
    if panel.hidden.any():
        axes.patch.set(**HIDDEN_LOOK, linewidth=0)
    elif look.transparent:
        axes.patch.set_visible(False)
    if look.image is not None:
        extent = -0.5, columns.count - 0.5, rows.count - 0.5, -0.5
        axes.imshow(look.image, aspect="auto", extent=extent)
    axes.imshow(
        np.ma.array(fractions(picture, panel.values), mask=panel.hidden),
        cmap=colors,
        norm=Normalize(0, 1),
        interpolation="bilinear" if look.smooth else "nearest",
        aspect="auto",
        extent=(-0.5, columns.cells * columns.block - 0.5, rows.cells * rows.block - 0.5, -0.5),
    )
    # The last block may be smaller than the others, so the axes end before the image.
    axes.set_xlim(-0.5, columns.count - 0.5)
    axes.set_ylim(rows.count - 0.5, -0.5)
    if max(picture.cells) <= _FEW_CELLS and look.image is None:
        # Ticks and their grid would take a hundred times as long.
        axes.hlines(_between(rows), -0.5, columns.count - 0.5, **_LINE)
        axes.vlines(_between(columns), -0.5, rows.count - 0.5, **_LINE)


def _between(axis: Axis) -> list[float]:
    return [last + 0.5 for _, last in axis.spans[:-1]]


def number_room(
    picture: Picture, panel: tuple[float, float], points: float, families: Sequence[str]
) -> float:
    """Return the factor of the font size at which the longest number just fits its cell."""
    columns, rows = (
        min(last - first + 1 for first, last in axis.spans) / axis.count
        for axis in (picture.columns, picture.rows)
    )
    texts = (text for panel in picture.panels for row in picture.texts(panel) for text in row)
    across, up = text_size(max(texts, key=len), points, families)
    if not across:
        return 1.0
    return min(0.86 * panel[0] * columns / across, 0.7 * panel[1] * rows / up)


def write_numbers(
    axes: Axes, picture: Picture, panel: Panel, colors: Colormap, points: float
) -> None:
    """Write each value into the middle of its cell, in the ink that its colour needs."""
    inks = colors(fractions(picture, panel.values), bytes=True)[..., :3].tolist()
    down, across = (
        [(first + last) / 2 for first, last in axis.spans]
        for axis in (picture.rows, picture.columns)
    )
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": points}
    look |= {"parse_math": False, "in_layout": False}
    for i, texts in enumerate(picture.texts(panel)):
        for j, text in enumerate(texts):
            red, green, blue = inks[i][j]
            color = ink((red, green, blue))
            axes.text(across[j], down[i], text.replace("-", "−"), color=color, **look)
