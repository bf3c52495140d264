"""Where everything stands in a figure, in inches, so that no text meets another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor, inf, isfinite
from typing import TYPE_CHECKING

from attncli.errors import UsageError
from attncli.view.figure.heading import bar_name, note_lines, title_lines
from attncli.view.labels import shorten_all
from attncli.view.pictures.room import LABEL_PITCH, grid_columns, panel_size
from attncli.view.pictures.scale import Ticks, scale_ticks, ticks

if TYPE_CHECKING:
    from attncli.view.figure.heading import Measure
    from attncli.view.pictures.picture import Picture

__all__ = [
    "BAR_ARROW",
    "HIDDEN_SWATCH",
    "LABEL_SIZE",
    "NAME_SIZE",
    "NOTE_ROOM",
    "PANEL_TITLE",
    "TITLE_ROOM",
    "TITLE_SIZE",
    "FigureLayout",
    "lay_out",
    "stretch_within",
]

LABEL_SIZE, NAME_SIZE, TITLE_SIZE = 9.0, 10.0, 12.0
TICK_LENGTH = 0.08
HIDDEN_SWATCH = 0.16
PANEL_TITLE = 0.28
BAR_GAP, BAR_WIDTH, BAR_ARROW = 0.22, 0.17, 0.15
TITLE_ROOM, NOTE_ROOM = 0.24, 0.2

# Lines of numbers closer than this touch, and some are left out.
_NUMBER_PITCH, _NUMBER_GAP = 0.22, 0.08
_LONGEST_LABEL = 24
_MOST_NAMED = 64
# A smaller panel shows nothing; and so often a figure is laid out to find how large it may be.
_LEAST_PANEL, _ROUNDS = 0.2, 40
# Sizes that differ by this share are the same.
_SAME = 1e-4
_MARGIN = 0.12
_NAME = 0.2
_GAP = 0.2


@dataclass(frozen=True)
class Axis:
    """The named places of one axis.

    Attributes
    ----------
    ticks : Ticks
    rotated : bool
        Whether labels stand upright, read from below.
    room : float
        Inches that the labels take beside the panel, with the tick marks.
    name : str
        Keys or Queries, and whether some labels were left out.
    """

    ticks: Ticks
    rotated: bool
    room: float
    name: str


@dataclass(frozen=True)
class FigureLayout:
    """Sizes and places of a figure, in inches from its lower left corner.

    Attributes
    ----------
    width, height : float
        The figure.
    panel : (float, float)
        Width and height of each panel.
    corners : tuple of (float, float)
        Lower left corner of each panel, row by row.
    columns : int
        Panels side by side.
    keys, queries : Axis
    bar : (float, float, float, float)
        Left, bottom, width and height of the colour bar, with its arrows.
    bar_name : str
        What the colours mean.
    title, notes : tuple of str
        Their lines.
    """

    width: float
    height: float
    panel: tuple[float, float]
    corners: tuple[tuple[float, float], ...]
    columns: int
    keys: Axis
    queries: Axis
    bar: tuple[float, float, float, float]
    bar_name: str
    title: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def grid(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of all panels."""
        width, height = self.panel
        lefts, bottoms = zip(*self.corners, strict=True)
        return min(lefts), min(bottoms), max(lefts) + width, max(bottoms) + height


def lay_out(picture: Picture, measure: Measure, *, stretch: float = 1.0) -> FigureLayout:
    """Place panels, labels, names and colour bar.

    Parameters
    ----------
    picture : Picture
    measure : callable
        Width and height in inches of a text at a size in points.
    stretch : float
        Factor on the size of the panels, to hold numbers in the cells.
    """
    count = len(picture.panels)
    labelled = max(len(picture.query_labels or ()), len(picture.key_labels or ()))
    group = picture.group
    size = panel_size(picture.rows, picture.columns, panels=count, group=group, labelled=labelled)
    panel = (size[0] * stretch, max(size[1] * stretch, _least_height(picture)))
    columns = grid_columns(count, picture.columns / picture.rows, group)
    keys = _key_axis(picture, panel[0], measure)
    queries = _query_axis(picture, panel[1], measure, least=_step_of_both(picture, keys.ticks))
    rows = ceil(count / columns)
    above = PANEL_TITLE if any(p.title for p in picture.panels) else 0.0
    pitch = (panel[0] + _GAP, panel[1] + _GAP + above)
    left = _MARGIN + _NAME + queries.room
    # The entry for hidden cells stands under the colour bar, beside the labels of keys.
    bottom = max(_MARGIN + _NAME + keys.room, 0.5)
    corners = tuple(
        (left + pitch[0] * (i % columns), bottom + pitch[1] * (rows - 1 - i // columns))
        for i in range(count)
    )
    bar_left = left + pitch[0] * columns - _GAP + BAR_GAP
    top = bottom + pitch[1] * rows - _GAP
    width = bar_left + BAR_WIDTH + _bar_room(picture, measure)
    center = (left + bar_left - BAR_GAP) / 2
    title_width = 2 * min(center, width - center) - 0.2
    title = title_lines(picture, title_width, TITLE_SIZE, measure)
    notes = note_lines(picture, title_width, LABEL_SIZE, measure)
    bar_height = top - above - bottom
    middle = bottom + bar_height / 2
    beside = 2 * min(middle, top + 0.2 - middle) - 0.2
    return FigureLayout(
        width=width,
        height=top + 0.22 + TITLE_ROOM * len(title) + NOTE_ROOM * len(notes),
        panel=panel,
        corners=corners,
        columns=columns,
        keys=_named_within(title_width, keys, picture.columns_are, measure),
        queries=_named_within(beside, queries, picture.rows_are, measure),
        bar=(bar_left, bottom, BAR_WIDTH, bar_height),
        bar_name=bar_name(picture, bar_height, NAME_SIZE, measure),
        title=title,
        notes=notes,
    )


def stretch_within(picture: Picture, measure: Measure, size: tuple[float, float]) -> float:
    """Return the factor on the panels with which a figure is as large as it may be.

    Text keeps its size, so that a smaller figure shows fewer labels, and cells keep their shape.

    Parameters
    ----------
    picture : Picture
    measure : callable
        As for `lay_out`.
    size : (float, float)
        The most inches across and up; infinite where any will do.

    Raises
    ------
    UsageError
        Texts leave no room for the cells.
    """
    # Where labels are left out, texts take less room at once: what fits and what does not close in.
    fits, too_large, stretch = 0.0, inf, 1.0
    for _ in range(_ROUNDS):
        layout = lay_out(picture, measure, stretch=stretch)
        factor = _spare(layout, size)
        if factor >= 1 - _SAME:
            fits = stretch
        else:
            too_large = stretch
        closed_in = too_large - fits < _SAME * too_large
        if closed_in or abs(factor - 1) < _SAME or min(layout.panel) < _LEAST_PANEL:
            break
        stretch *= factor
        if not fits < stretch < too_large:
            stretch = (fits + too_large) / 2
    if not fits or not _names_fit(lay_out(picture, measure, stretch=fits), measure):
        raise UsageError(
            f"--size: titles and labels leave no room for the cells of this picture in "
            f"{_inches(size)} inches",
            hint="give it more room, or draw fewer heads, --rows or --cols",
        )
    return fits


def _spare(layout: FigureLayout, size: tuple[float, float]) -> float:
    """Return how many times as large the panels could be if no text took more room or less."""
    rows = ceil(len(layout.corners) / layout.columns)
    cells = layout.panel[0] * layout.columns, layout.panel[1] * rows
    spare = size[0] - layout.width, size[1] - layout.height
    return min(1 + more / taken for more, taken in zip(spare, cells, strict=True))


def _names_fit(layout: FigureLayout, measure: Measure) -> bool:
    """Return whether the names of the axes are no longer than the sides they stand at."""
    sides = (layout.keys, layout.width), (layout.queries, layout.height)
    return all(measure(axis.name, NAME_SIZE)[0] + _MARGIN <= side for axis, side in sides)


def _inches(size: tuple[float, float]) -> str:
    return " × ".join(f"{side:g}" for side in size if isfinite(side))


def _least_height(picture: Picture) -> float:
    """Return the height in which all heads that are picked, in an order of their own, are named."""
    names = picture.query_labels if picture.rows_are == "Heads" else None
    return LABEL_PITCH * len(names) if names and len(names) <= _MOST_NAMED else 0.0


def _key_axis(picture: Picture, width: float, measure: Measure) -> Axis:
    labels = _short(picture.key_labels)
    spacing = width / picture.columns
    level = _numbers_or(labels, picture.column_start, picture.columns)
    widest = max(measure(text, LABEL_SIZE)[0] for text in level)
    # Numbers lie flat and are thinned out; labels stand upright before any is left out.
    flat = labels is None or widest + 0.08 <= spacing
    room = floor(width / (widest + _NUMBER_GAP if labels is None else LABEL_PITCH))
    named = ticks(picture.columns, labels, room, start=picture.column_start)
    upright = max(measure(text, LABEL_SIZE)[0] for text in named.texts)
    tallest = measure("Ag", LABEL_SIZE)[1] if flat else upright
    name = _name(picture.columns_are, named, labels)
    return Axis(named, not flat, tallest + TICK_LENGTH + 0.06, name)


def _query_axis(picture: Picture, height: float, measure: Measure, *, least: int = 1) -> Axis:
    labels = _short(picture.query_labels)
    pitch = _NUMBER_PITCH if labels is None else LABEL_PITCH
    room = min(floor(height / pitch), ceil(picture.rows / least))
    named = ticks(picture.rows, labels, room, start=picture.row_start)
    widest = max(measure(text, LABEL_SIZE)[0] for text in named.texts)
    return Axis(named, False, widest + TICK_LENGTH + 0.06, _name(picture.rows_are, named, labels))  # noqa: FBT003


def _step_of_both(picture: Picture, keys: Ticks) -> int:
    """Return the step of keys for the queries of a square map of numbers, so that both match."""
    numbered = picture.query_labels is None and picture.key_labels is None
    return keys.step if numbered and picture.rows == picture.columns else 1


def _short(labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if labels is None else tuple(shorten_all(labels, _LONGEST_LABEL))


def _numbers_or(labels: tuple[str, ...] | None, start: int, count: int) -> tuple[str, ...]:
    return labels if labels is not None else (str(start + count - 1),)


def _name(name: str, named: Ticks, labels: tuple[str, ...] | None) -> str:
    if labels is None or named.step == 1:
        return name
    return f"{name} (1 label in {named.step} shown)"


def _named_within(room: float, axis: Axis, name: str, measure: Measure) -> Axis:
    """Return an axis whose name says in fewer words, if need be, that labels were left out."""
    names = axis.name, f"{name} (1 in {axis.ticks.step})", name
    return replace(axis, name=next((n for n in names if measure(n, NAME_SIZE)[0] <= room), name))


def _bar_room(picture: Picture, measure: Measure) -> float:
    """Return the inches right of the colour bar: its numbers, its name, the margin."""
    numbers = max(measure(text, LABEL_SIZE)[0] for _, text in scale_ticks(picture))
    entry = HIDDEN_SWATCH + 0.06 + measure("hidden", LABEL_SIZE)[0] - BAR_WIDTH
    return max(numbers + TICK_LENGTH + 0.05 + _NAME, entry if picture.any_hidden else 0) + _MARGIN
