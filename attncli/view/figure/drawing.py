"""A picture as a Matplotlib figure, without pyplot, so that nothing global is touched.

Matplotlib's constrained layout places panels, labels and colour bar. We choose the size of the
figure: the layout runs once to measure the texts, and again at that size.
"""

from __future__ import annotations

import warnings
from math import ceil, floor, inf, isfinite, isinf
from typing import TYPE_CHECKING, Any, TypeAlias

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch

from attncli.view.figure.cells import (
    HIDDEN_LOOK,
    colors_of,
    draw_cells,
    number_room,
    write_numbers,
)
from attncli.view.figure.style import drawing_style, font_families, text_size
from attncli.view.labels import brief, shorten, shorten_all, text_width, wrapped
from attncli.view.pictures.pooling import coarsen
from attncli.view.pictures.scale import Ticks, minor_ticks, scale_ticks, ticks
from attncli.view.pictures.sizes import (
    LABEL_PITCH,
    NoRoomError,
    cell_limit,
    grid_columns,
    panel_size,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar

    from attncli.view.pictures.picture import Picture

# Two sides, mostly width and height.
Pair: TypeAlias = tuple[float, float]

MOST_PANELS = 400
MOST_NUMBERS = 2_500  # in the cells of all panels
_MOST_NUMBERS_UNASKED = 400  # the same without --annotate

# Sizes of text, as multiples of a label's size.
_NAME, _TITLE, _NUMBER, _SMALLEST_NUMBER = 10 / 9, 12 / 9, 10 / 9, 6 / 9
_MOST_TITLE_LINES = 3
_MOST_HEADS = 64
_LONGEST_LABEL = 24
# Height of a line of text, in units of its size.
_LEADING = 1.45
# Inches: width of the colour bar, length of its arrows, and the space between panels.
_BAR_WIDTH, _BAR_ARROW, _GAP = 0.17, 0.15, 0.16
# Inches that texts and colour bar take: a guess until they are measured.
_TEXTS = 1.5
# Panels that differ by fewer inches are the same.
_SAME = 1e-6
# Inches: a panel with a shorter side shows nothing.
_LEAST_PANEL = 0.2
_MINUS = "−"
_NONE = Ticks((), (), 1)
_TITLES = {
    "weights": "Attention weights",
    "scores": "Attention scores",
    "difference": "Attention weights: difference",
}


def picture_texts(picture: Picture) -> list[str]:
    """Return the titles and labels of a picture."""
    titles = [picture.look.title, *(panel.title for panel in picture.panels)]
    return [
        *(text for text in titles if text),
        *picture.scale_names[:1],
        *(picture.rows.labels or ()),
        *(picture.columns.labels or ()),
    ]


def draw(picture: Picture) -> Drawing:
    """Draw a picture; it is pooled so that every cell has at least a pixel."""
    look, shape = picture.look, (picture.rows.count, picture.columns.count)
    limit = cell_limit(shape, look, panels=len(picture.panels), group=picture.group)
    fonts = font_families(picture_texts(picture))
    with drawing_style(fonts, points=look.font_size, math=look.math):
        drawing = Drawing(coarsen(picture, limit), fonts)
        # Texts may take more of the given size than was guessed.
        if coarsen(drawing.picture, drawing.pixels) is not drawing.picture:
            drawing = Drawing(coarsen(picture, drawing.pixels), fonts)
    return drawing


class Drawing:
    """A figure, and the picture that it shows, which may be pooled."""

    def __init__(self, picture: Picture, fonts: Sequence[str]) -> None:
        look = picture.look
        self.picture, self._look, self._fonts = picture, look, fonts
        self._count, self._points = len(picture.panels), look.font_size
        # Inches from one label to the next, and of a line of text.
        self._pitch = LABEL_PITCH * self._points / 9
        self._line = self._points * _LEADING / 72
        self._queries, self._keys = (
            labels if labels is None or look.math else tuple(shorten_all(labels, _LONGEST_LABEL))
            for labels in (picture.rows.labels, picture.columns.labels)
        )
        self._colors = colors_of(look)
        size = look.size or (inf, inf)
        page = size[0] / size[1] if isfinite(size[1]) else 4 / 3
        aspect = self._shape[1] / self._shape[0]
        across = grid_columns(self._count, aspect, picture.group, page)
        self._grid = across, ceil(self._count / across)
        self._given, self._fixed = size, (isfinite(size[0]), isfinite(size[1]))
        self._bar: Colorbar | None = None
        self.figure = self._empty_figure()
        for axes, panel in zip(self._axes, picture.panels, strict=True):
            draw_cells(axes, picture, panel, self._colors)
        self._write_texts()
        self._settle()
        self._measured()
        # Everything has its place; a layout would draw the figure once more for saving.
        self.figure.set_layout_engine(None)

    @property
    def pixels(self) -> tuple[int, int]:
        """Rows and columns of pixels that a panel has at least."""
        width, height = (max(1, floor(side * self._look.dpi * 0.9)) for side in self._panel)
        return height, width

    def _width(self, text: str, scale: float = 1.0) -> float:
        """Return the width of a text in inches; its size is relative to that of labels."""
        return text_size(text, self._points * scale, self._fonts)[0]

    @property
    def _shape(self) -> Pair:
        """Rows and columns; with an image, in its proportions."""
        rows, columns, image = self.picture.rows.count, self.picture.columns.count, self._look.image
        return rows, columns if image is None else rows * image.shape[1] / image.shape[0]

    def _usual_panel(self) -> Pair:
        picture = self.picture
        labelled = max(len(self._queries or ()), len(self._keys or ())) * self._pitch
        width, height = panel_size(
            *self._shape, panels=self._count, group=picture.group, labelled=labelled
        )
        # If the rows are heads, all of them are named.
        heads = len(self._queries or ()) if picture.rows.name == "Heads" else 0
        return width, max(height, self._pitch * min(heads, _MOST_HEADS))

    def _empty_figure(self) -> Figure:
        """Return a figure with axes for the panels, in the layout that places everything."""
        given = self._given
        sides = [
            usual if isinf(side) else max(_LEAST_PANEL, (side - _TEXTS) / count - _GAP)
            for usual, side, count in zip(self._usual_panel(), given, self._grid, strict=True)
        ]
        self._panel = sides[0], sides[1]
        across, up = (
            (panel + _GAP) * count + _TEXTS if isinf(side) else side
            for panel, side, count in zip(sides, given, self._grid, strict=True)
        )
        self._engine = ConstrainedLayoutEngine(w_pad=_GAP / 2, h_pad=_GAP / 2, wspace=0, hspace=0)
        figure = Figure(
            figsize=(across, up),
            dpi=self._look.dpi,
            layout=self._engine,
            facecolor="none" if self._look.transparent else "white",
        )
        axes = figure.subplots(*self._grid[::-1], squeeze=False).ravel()
        for empty in axes[self._count :]:
            empty.remove()
        self._axes: list[Axes] = list(axes[: self._count])
        return figure

    def _title_panels(self) -> None:
        """Title the panels; all titles are short if one is too long."""
        room = self._panel[0] + _GAP / 2
        titles = [panel.title or "" for panel in self.picture.panels]
        if any(self._width(title, _NAME) > room for title in titles):
            titles = [self._cut(brief(title), room, _NAME) for title in titles]
        for axes, title in zip(self._axes, titles, strict=True):
            axes.set_title(title, fontsize=self._points * _NAME)

    def _cut(self, text: str, room: float, scale: float) -> str:
        length = text_width(text)
        while length > 1 and not self._look.math and self._width(text, scale) > room:
            length = min(length - 1, int(length * room / self._width(text, scale)) + 1)
            text = shorten(text, length)
        return text

    def _draw_bar(self) -> None:
        """Draw the colour bar that all panels share, and the legend of hidden cells."""
        height = (self._panel[1] + _GAP) * self._grid[1] - _GAP
        picture, (below, above) = self.picture, self.picture.saturated
        bar = self.figure.colorbar(
            ScalarMappable(Normalize(0, 1), self._colors),
            ax=self._axes,
            aspect=height / _BAR_WIDTH,
            extend="both" if below and above else "min" if below else "max" if above else "neither",
            extendfrac=_BAR_ARROW / height,
        )
        places, texts = zip(*scale_ticks(picture, self._pitch / height), strict=True)
        bar.set_ticks(places, labels=[text.replace("-", _MINUS) for text in texts])
        bar.ax.set_yticks(minor_ticks(picture), minor=True)
        bar.ax.tick_params(which="major", length=3, width=0.6)
        *longer, shortest = picture.scale_names
        name = next((name for name in longer if self._width(name, _NAME) <= height), shortest)
        bar.set_label(name, fontsize=self._points * _NAME)
        if picture.any_hidden:
            bar.ax.legend(
                handles=[Patch(**HIDDEN_LOOK, linewidth=0.5)],
                labels=["hidden"],
                loc="upper left",
                bbox_to_anchor=(0, -_GAP / height),
                frameon=False,
                borderpad=0,
                borderaxespad=0,
                handlelength=1.3,
                handleheight=1.3,
                handletextpad=0.5,
            )
        self._bar = bar

    def _write_texts(self) -> None:
        """Write all texts but the heading and the numbers."""
        self._title_panels()
        if self._bar is not None:  # it cannot change its shape
            self._bar.remove()
        self._draw_bar()
        self._name_axes()

    def _name_axes(self) -> None:
        """Write the names of the axes, and labels at the outer panels as room allows."""
        keys, upright = self._key_ticks(self._panel[0])
        queries = self._query_ticks(self._panel[1], keys)
        for index, axes in enumerate(self._axes):
            lowest, first = index + self._grid[0] >= self._count, index % self._grid[0] == 0
            axes.tick_params(length=3, width=0.6)
            axes.tick_params(axis="x", labelrotation=90 if upright else 0)
            across, down = keys if lowest else _NONE, queries if first else _NONE
            axes.set_xticks(across.positions, across.texts)
            axes.set_yticks(down.positions, down.texts)
        size = self._points * _NAME
        picture = self.picture
        room = [(side + _GAP) * count for side, count in zip(self._panel, self._grid, strict=True)]
        name = self._axis_name(picture.columns.name, keys, self._keys, room[0])
        self._across_name = self.figure.supxlabel(name, fontsize=size)
        name = self._axis_name(picture.rows.name, queries, self._queries, room[1])
        self._down_name = self.figure.supylabel(name, fontsize=size)

    def _axis_name(self, name: str, named: Ticks, labels: Sequence[str] | None, room: float) -> str:
        """Return the name of an axis; if there is room, it says that labels were left out."""
        if labels is None or named.step == 1:
            return name
        names = f"{name} (1 label in {named.step} shown)", f"{name} (1 in {named.step})"
        return next((text for text in names if self._width(text, _NAME) <= room), name)

    def _key_ticks(self, width: float) -> tuple[Ticks, bool]:
        """Return which keys are named, and whether their labels stand upright."""
        picture, labels = self.picture, self._keys
        last = str(picture.columns.start + picture.columns.count - 1)
        widest = max(map(self._width, (last,) if labels is None else labels))
        # Numbers lie flat and are thinned out; labels stand upright before any is left out.
        flat = labels is None or widest + 0.08 <= width / picture.columns.count
        room = floor(width / (widest + 0.08 if labels is None else self._pitch))
        return ticks(picture.columns.count, labels, room, start=picture.columns.start), not flat

    def _query_ticks(self, height: float, keys: Ticks) -> Ticks:
        """Return which queries are named: in a square map of numbers, the same as keys."""
        picture, labels = self.picture, self._queries
        room = floor(height / (self._pitch * (1.4 if labels is None else 1)))
        if labels is None and self._keys is None and picture.rows.count == picture.columns.count:
            room = min(room, ceil(picture.rows.count / keys.step))
        return ticks(picture.rows.count, labels, room, start=picture.rows.start)

    def _settle(self) -> None:
        """Give the figure its size, and write what depends on it: title, labels, numbers."""
        usual = self._usual_panel()
        real, sides, middle = self._measured()
        width = real[0] if self._fixed[0] else usual[0]
        height = real[1] if self._fixed[1] else width * usual[1] / usual[0]
        points, stretch = self._number_size((width, height))
        panel = width * stretch, height * stretch
        grown = [(b - a) * n for a, b, n in zip(real, panel, self._grid, strict=True)]
        across, up = (side + more for side, more in zip(sides, grown, strict=True))
        places = middle[0] + grown[0] / 2, middle[1] + grown[1] / 2
        lines = self._heading(2 * min(places[0], across - places[0]) - _GAP)
        above = sum(scale for _, scale in lines) * self._line + _GAP / 2 * bool(lines)
        if self._fixed[1]:
            panel = panel[0], panel[1] - above / self._grid[1]
            places = places[0], places[1] - above / 2
        else:
            up += above
        if min(panel) < _LEAST_PANEL:
            raise NoRoomError("titles and labels leave no room for the cells")
        self.figure.set_size_inches(across, up)
        self._engine.set(rect=(0, 0, 1, 1 - above / up))
        if any(abs(a - b) > _SAME for a, b in zip(panel, self._panel, strict=True)):
            self._panel = panel
            self._write_texts()
        self._across_name.set_x(places[0] / across)
        self._down_name.set_y(places[1] / up)
        self._write_heading(lines, places[0] / across)
        if points:
            for axes, each in zip(self._axes, self.picture.panels, strict=True):
                write_numbers(axes, self.picture, each, self._colors, points)

    def _measured(self) -> tuple[Pair, Pair, Pair]:
        """Lay the figure out; return the inches of a panel and of the figure, and its middle."""
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="constrained_layout not applied")
            try:
                self._engine.execute(self.figure)
            except UserWarning:
                raise NoRoomError("titles and labels leave no room for the cells") from None
        across, up = map(float, self.figure.get_size_inches())
        boxes = [axes.get_position() for axes in self._axes]
        left, right = min(box.x0 for box in boxes), max(box.x1 for box in boxes)
        bottom, top = min(box.y0 for box in boxes), max(box.y1 for box in boxes)
        panel = boxes[0].width * across, boxes[0].height * up
        return panel, (across, up), ((left + right) / 2 * across, (bottom + top) / 2 * up)

    def _heading(self, room: float) -> list[tuple[str, float]]:
        picture = self.picture
        title = _TITLES[self._look.what] if self._look.title is None else self._look.title
        texts = [(title, _TITLE)] if title else []
        texts += [(note, 1.0) for note in (*picture.notes, picture.scale_note) if note]
        return [(line, scale) for text, scale in texts for line in self._wrapped(text, room, scale)]

    def _wrapped(self, text: str, room: float, scale: float) -> list[str]:
        lines: list[str] = []
        for part in text.split("\n"):
            words = part.strip(" ").split(" ")
            lines += list(wrapped(words, room, lambda line: self._width(line, scale))) or [""]
        if len(lines) > _MOST_TITLE_LINES:
            lines[_MOST_TITLE_LINES - 1 :] = [" ".join(lines[_MOST_TITLE_LINES - 1 :])]
        return [self._cut(line, room, scale) for line in lines]

    def _write_heading(self, lines: list[tuple[str, float]], center: float) -> None:
        up, place = self.figure.get_size_inches()[1], _GAP / 2
        for text, scale in lines:
            look: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": self._points * scale}
            self.figure.text(center, 1 - place / up, text, **look)
            place += scale * self._line

    def _number_size(self, panel: Pair) -> Pair:
        """Return the points of numbers in cells, 0 for none, and the growth of panels for them."""
        picture, asked = self.picture, self._look.annotate
        count = picture.cells[0] * picture.cells[1] * self._count
        usual = count <= _MOST_NUMBERS_UNASKED and self._look.image is None
        if not (usual if asked is None else asked):
            return 0.0, 1.0
        wanted, least = _NUMBER * self._points, _SMALLEST_NUMBER * self._points
        points = wanted * min(1.0, number_room(picture, panel, wanted, self._fonts))
        if points >= least:
            return points, 1.0
        if asked is None:
            return 0.0, 1.0
        if any(self._fixed):
            raise NoRoomError("there is no room for numbers in the cells")
        return least, least / points
