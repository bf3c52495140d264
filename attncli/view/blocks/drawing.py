"""A picture as text for a terminal: coloured blocks, or shades where colour is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from attncli.view.blocks.axes import (
    LONGEST_UPRIGHT,
    cut,
    fit_text,
    gutter,
    gutter_width,
    has_room,
    key_header,
    terminal_labels,
)
from attncli.view.blocks.cells import Form, Painter, plain
from attncli.view.labels import brief, text_width, wrapped
from attncli.view.pictures.pooling import coarsen
from attncli.view.pictures.scale import scale_ticks
from attncli.view.pictures.sizes import NoRoomError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.blocks.cells import Line
    from attncli.view.limits import Limits
    from attncli.view.pictures.picture import Picture

# Columns: the narrowest terminal, and the width of maps in a pipe.
_NARROWEST, _PIPE_WIDTH = 20, 80
# Lines of a map: the most in a pipe, and the fewest in a terminal, which may scroll a little.
_MOST_LINES, _LEAST_LINES = 64, 16
# Lines that title, axes, key indices, legend and the next prompt take.
_LINES_AROUND = 5
# Columns between two maps; lines between: a blank one, a title and the numbers of keys.
_GAP, _LINES_BETWEEN = 2, 3
# Columns: a digit and a blank on each side.
_NARROWEST_NUMBER = 3
# Columns of the colour scale.
_STEPS = 24


def draw_blocks(picture: Picture, limits: Limits) -> str:
    """Draw a picture in characters; lines hold escape sequences where there is colour.

    Cells are as large as the width allows: with numbers if all maps then stay in sight, two
    columns wide, half a block, or pooled.
    """
    painter = Painter(limits, picture.look.signed)
    left_out = len(picture.panels) - (limits.heads or len(picture.panels))
    rows, keys = (
        replace(axis, labels=terminal_labels(axis.labels, limits))
        for axis in (picture.rows, picture.columns)
    )
    picture = replace(picture, panels=picture.panels[: limits.heads], rows=rows, columns=keys)
    page, height = _Page(limits, painter, left_out), limits.height
    upright = min(LONGEST_UPRIGHT, max(map(text_width, keys.labels))) if keys.labels else 0
    limit = max(_LEAST_LINES, height - _LINES_AROUND - upright) if height else _MOST_LINES
    lines = page.drawn(picture, limit)
    if height is not None and len(picture.panels) == 1:
        # Only a drawn map shows how many lines its titles and notes take; the prompt takes one.
        while (over := len(lines) + 1 - height) > 0 and limit > _LEAST_LINES:
            limit = max(_LEAST_LINES, min(limit, picture.cells[0]) - over)
            lines = page.drawn(picture, limit)
    return "\n".join(painter.text(line) for line in lines)


@dataclass(frozen=True)
class _Page:
    """A terminal, and the number of maps that are left out."""

    limits: Limits
    painter: Painter
    left_out: int

    @property
    def width(self) -> int:
        """Columns of the page."""
        return max(self.limits.width or _PIPE_WIDTH, _NARROWEST)

    def drawn(self, picture: Picture, limit: int) -> list[Line]:
        """Return all lines; the cells of each map take at most `limit` of them."""
        margin = gutter_width(picture.rows, self.width, limit)
        room = self.width - margin
        form = self._numbered(picture, room, limit) or self._form(picture, room, limit)
        if picture.look.annotate and not form.numbers:
            raise NoRoomError("the cells here have no room for numbers")
        rows = limit * 2 if form.halves else limit
        picture = coarsen(picture, (rows, max(1, room // form.width)))
        names = gutter(picture.rows, form, margin, self.limits)
        words = [line for note in self._notes(picture, form) for line in self._wrapped(note)]
        return [
            *self._heading(picture),
            *self._panels(picture, form, names, room),
            *([plain(line)] for line in words),
            *self._legend(picture),
        ]

    def _numbered(self, picture: Picture, room: int, lines: int) -> Form | None:
        """Return cells with numbers, if they fit and all maps stay in sight."""
        (rows, across), asked = picture.cells, picture.look.annotate

        def fit(width: int) -> bool:
            in_sight = asked or _at_once(picture, width, room, lines)
            return across * width <= room and in_sight

        if asked is False or rows > lines or not fit(_NARROWEST_NUMBER):
            return None
        texts = (row for panel in picture.panels for row in picture.texts(panel))
        longest = max(map(len, chain.from_iterable(texts)))
        # With colours one blank keeps numbers apart; with shades each side needs one.
        wide = self.limits.depth == "none" or across * (longest + 2) <= room
        width = longest + (2 if wide else 1)
        if not fit(width):
            return None
        # The names of keys lie flat where there is room.
        names = max(map(text_width, picture.columns.labels or ("",)))
        wider = max(width, names + 1)
        flat = names <= LONGEST_UPRIGHT and across * wider <= room
        return Form(wider if flat else width, numbers=True)

    def _form(self, picture: Picture, room: int, lines: int) -> Form:
        """Return the largest cells without a number that fit."""
        rows, across = picture.cells
        colored = self.limits.depth != "none"
        # Without colour a sign needs a column of its own beside the shade.
        if (picture.look.signed and not colored) or (across * 2 <= room and rows <= lines):
            return Form(2)
        # A handful of rows is seen better in full lines.
        return Form(1, halves=colored and self.limits.unicode and rows > _LEAST_LINES)

    def _heading(self, picture: Picture) -> list[Line]:
        title = map(self.limits.known, (picture.look.title or "").splitlines())
        axes = f"{picture.rows.name.lower()} down, {picture.columns.name.lower()} across"
        edge = self.limits.width is not None
        return [
            [plain(cut(text, self.width, self.limits) if edge else text)] for text in (*title, axes)
        ]

    def _panels(self, picture: Picture, form: Form, names: list[str], room: int) -> list[Line]:
        wide = picture.cells[1] * form.width
        titles = self._titles(picture, wide, room)
        # Maps stand as far apart as the widest title needs.
        pitch = max(wide, *map(text_width, titles)) if titles else wide
        margin, gap = " " * text_width(names[0]), " " * (_GAP + pitch - wide)
        header = key_header(picture.columns, form, self.limits)
        beside = _beside_each_other(len(picture.panels), pitch, room, picture.group)
        lines: list[Line] = []
        for first in range(0, len(picture.panels), beside):
            group = picture.panels[first : first + beside]
            lines += [[plain("")]] if first else []
            if titles:
                shown = [[plain(title)] for title in titles[first : first + beside]]
                lines.append(_joined(margin, shown, " " * _GAP))
            lines += [_joined(margin, [[plain(text)]] * len(group), gap) for text in header]
            bodies = [self.painter.rows(picture, panel, form) for panel in group]
            lines += [
                _joined(name, parts, gap)
                for name, parts in zip(names, zip(*bodies, strict=True), strict=True)
            ]
        return lines

    def _titles(self, picture: Picture, wide: int, room: int) -> list[str]:
        """Return titles of one width, short ones if long ones would push maps apart."""
        titles = [self.limits.known(panel.title or "") for panel in picture.panels]
        if not any(titles):
            return []
        pitch = max(wide, *map(text_width, titles))
        count, group = len(titles), picture.group
        apart = {_beside_each_other(count, each, room, group) for each in (pitch, wide)}
        if self.limits.width is not None and (pitch > room or len(apart) > 1):
            titles = list(map(brief, titles))
            pitch = max(wide, min(room, max(map(text_width, titles))))
        return [fit_text(title, pitch, self.limits) for title in titles]

    def _wrapped(self, text: str) -> list[str]:
        lines = wrapped(self.limits.known(text).split(" "), self.width)
        return [line.replace("\u00a0", " ") for line in lines]

    def _notes(self, picture: Picture, form: Form) -> list[str]:
        notes = [note for note in (*picture.notes, picture.scale_advice) if note]
        if self.left_out > 0:
            more = f"… {self.left_out:,} more maps: --head or --batch for some"
            notes.insert(0, f"{more}, --out for a picture of all")
        rows, keys = picture.rows, picture.columns
        if any(axis.labels is not None and axis.block > 1 for axis in (rows, keys)):
            notes.append("labels are left out where a cell stands for several (--rows, --cols)")
        elif keys.labels is not None and not has_room(keys.labels, form):
            notes.append("the labels of keys have no room (--cols for a part of them)")
        if rows.labels is not None and form.halves and rows.block == 1:
            notes.append("only every second query is labelled")
        return notes

    def _legend(self, picture: Picture) -> list[Line]:
        """Return the scale with its numbers, and the look of hidden cells, on lines that fit."""
        # The name comes first, or "0" would look like the first of the queries.
        names = [self.limits.known(name) for name in picture.scale_names]
        last = cut(names[-1], self.width, self.limits)
        name = next((name for name in names if text_width(name) <= self.width), last)
        parts: list[Line] = [[plain(name)], self._scale(picture)]
        if picture.any_hidden:
            parts.append([self.painter.hidden(2), plain(" hidden")])
        lines: list[Line] = [[]]
        for part in parts:
            if lines[-1] and _length(lines[-1]) + _length(part) + _GAP > self.width:
                lines.append([])
            lines[-1] += ([plain(" " * _GAP)] if lines[-1] else []) + part
        return lines

    def _scale(self, picture: Picture) -> Line:
        """Return the colours of the scale between the numbers of its ends."""
        (_, low), *_, (_, high) = scale_ticks(picture)
        low, high = self.limits.known(low), self.limits.known(high)
        steps = max(5, min(_STEPS, self.width - len(low) - len(high) - 2))
        # A sign and its shade make one step of two columns.
        wide = 2 if picture.look.signed else 1
        count = steps // wide
        ramp = [self.painter.cell(step / (count - 1), wide) for step in range(count)]
        scale = [plain(low + " "), *ramp, plain(" " + high)]
        if _length(scale) > self.width:  # long numbers in a narrow terminal
            return [plain(cut(f"{low} … {high}", self.width, self.limits))]
        return scale


def _at_once(picture: Picture, width: int, room: int, lines: int) -> bool:
    count, (rows, across) = len(picture.panels), picture.cells
    bands = -(-count // _beside_each_other(count, across * width, room, picture.group))
    return bands * (rows + _LINES_BETWEEN) - _LINES_BETWEEN <= lines


def _beside_each_other(count: int, pitch: int, room: int, group: int | None) -> int:
    """Return how many maps stand side by side: all rows have about as many."""
    most = min(count, max(1, (room + _GAP) // (pitch + _GAP)))
    if group is None:
        return -(-count // -(-count // most))
    even = max(count for count in range(1, min(most, group) + 1) if group % count == 0)
    # Otherwise a prime number of heads would stand one below the other.
    return even if 2 * even >= min(most, group) else most


def _joined(name: str, parts: Sequence[Line], gap: str) -> Line:
    line: Line = [plain(name)]
    for index, part in enumerate(parts):
        line += ([plain(gap)] if index else []) + part
    return line


def _length(line: Line) -> int:
    return sum(text_width(span[0]) for span in line)
