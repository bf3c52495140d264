"""A picture as text for a terminal: coloured blocks, or shades where colour is missing."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import UsageError
from attncli.view.blocks.axes import (
    LONGEST_UPRIGHT,
    columns,
    cut,
    fit_text,
    gutter,
    gutter_width,
    key_header,
    key_list,
    terminal_labels,
)
from attncli.view.blocks.cells import Form, Painter, plain
from attncli.view.labels import brief
from attncli.view.pictures.pooling import coarsen
from attncli.view.pictures.scale import scale_ticks
from attncli.view.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.blocks.cells import Color, Line
    from attncli.view.pictures.picture import Picture

__all__ = ["draw_blocks"]

_NARROWEST = 20
_PIPE_WIDTH = 80
# Even without a window to fit, a picture should not fill a log.
_MOST_LINES = 64
# Below this, a low window would pool what a little scrolling shows whole.
_LEAST_LINES = 16
# Title, axes, numbers of keys, legend and the next prompt.
_LINES_AROUND = 5
_GAP = 2
# A blank line, a title and the numbers of keys.
_LINES_BETWEEN = 3
# A digit and a column on each side.
_NARROWEST_NUMBER = 3
# Of the colour scale.
_STEPS = 24


def draw_blocks(
    picture: Picture,
    *,
    width: int | None,
    height: int | None = None,
    color: Color = "none",
    unicode: bool = True,
    annotate: bool | None = None,
    digits: int = 2,
    most: int | None = None,
) -> str:
    """Draw a picture in characters.

    Cells are as large as the width allows: with their numbers in them if maps are so small
    that all can be seen at once, two columns wide, half a block, or pooled. Every cell sets its own
    background, so the picture reads the same on dark and on light terminals.

    Parameters
    ----------
    picture : Picture
    width : int or None
        Columns of the terminal; no line is longer (20 is the least). None if there is no
        edge: then maps take 80 columns, and titles what they need.
    height : int, optional
        Lines of the terminal, available to each map; a map takes at least 16 lines of
        cells. 64 unless given.
    color : {"truecolor", "256", "none"}
        Colours that the terminal has.
    unicode : bool
        Whether it can show more than ASCII.
    annotate : bool, optional
        False leaves out the numbers in the cells; True is an error if they do not fit into
        one map.
    digits : int
        Digits after the point in these numbers.
    most : int, optional
        How many maps are drawn, of heads or batch entries; all unless given.

    Returns
    -------
    str
        Lines with escape sequences for colours, if any; no newline at the end.

    Raises
    ------
    UsageError
        Numbers were asked for but do not fit.
    """
    painter = Painter(color, unicode, picture.signed)
    count = len(picture.panels)
    if most is not None and count > most:
        picture = replace(picture, panels=picture.panels[:most])
    page = _Page(
        width,
        painter,
        terminal_labels(picture.query_labels, painter),
        terminal_labels(picture.key_labels, painter),
        None if annotate is False else digits,
        annotate=annotate is True,
        left_out=count - len(picture.panels),
    )
    limit = _line_limit(height, page.keys)
    lines = page.drawn(picture, limit)
    if height is not None and len(picture.panels) == 1:
        # Titles and notes take lines that are known when it is drawn; one is for the next prompt.
        while (over := len(lines) + 1 - height) > 0 and limit > _LEAST_LINES:
            limit = max(_LEAST_LINES, min(limit, picture.cells[0]) - over)
            lines = page.drawn(picture, limit)
    return "\n".join(painter.text(line) for line in lines)


class _Page(NamedTuple):
    """What stays the same, whatever number of lines a map may take."""

    edge: int | None
    painter: Painter
    queries: Sequence[str] | None
    keys: Sequence[str] | None
    digits: int | None
    annotate: bool
    left_out: int

    def drawn(self, picture: Picture, limit: int) -> list[Line]:
        """Return all lines; the cells of each map take no more than so many."""
        width = max(self.edge or _PIPE_WIDTH, _NARROWEST)
        painter = self.painter
        room = width - gutter_width(picture, self.queries, width, limit)
        numbered = self.digits is not None and _numbered(
            picture, painter, room, limit, self.digits, asked=self.annotate
        )
        form = numbered or _form(picture, painter, room, limit)
        if form.digits is not None and self.keys:
            form = _wide_enough(form, self.keys, room)
        if self.annotate and form.digits is None:
            raise UsageError(
                "--annotate: the cells here have no room for numbers",
                hint="choose a part with --rows and --cols, give fewer --digits, or give --out",
            )
        rows = limit * 2 if form.halves else limit
        picture = coarsen(picture, (rows, max(1, room // form.width)))
        names = gutter(picture, self.queries, form, width - room, painter)
        header = key_header(picture, self.keys, form, painter)
        return [
            *_heading(picture, self.edge and width, painter),
            *_panels(picture, form, painter, names, header, self.edge and room),
            *_more(self.left_out, width, painter),
            *([plain(text)] for text in key_list(picture, self.keys, form, width, painter)),
            *_notes(picture, self.queries, form, width, painter),
            *_legend(picture, width, painter),
        ]


def _line_limit(height: int | None, keys: Sequence[str] | None) -> int:
    """Return how many lines the cells of a map may take."""
    if height is None:
        return _MOST_LINES
    upright = min(LONGEST_UPRIGHT, max(map(columns, keys))) if keys else 0
    return max(_LEAST_LINES, height - _LINES_AROUND - upright)


def _numbered(
    picture: Picture, painter: Painter, room: int, lines: int, digits: int, *, asked: bool
) -> Form | None:
    """Return a look with numbers, if they fit, and unless asked for leave all maps in sight."""

    def fit(width: int) -> bool:
        return across * width <= room and (asked or _at_once(picture, width, room, lines))

    rows, across = picture.cells
    if rows > lines or not fit(_NARROWEST_NUMBER):
        return None
    texts = (row for panel in picture.panels for row in picture.texts(panel, digits))
    longest = max(map(len, chain.from_iterable(texts)))
    # Backgrounds tell neighbours apart in one column; shades need one on each side.
    margin = 2 if painter.color == "none" or across * (longest + 2) <= room else 1
    return Form(longest + margin, digits=digits) if fit(longest + margin) else None


def _at_once(picture: Picture, width: int, room: int, lines: int) -> bool:
    """Return whether all maps can be seen at once if their cells are so wide."""
    count, (rows, across) = len(picture.panels), picture.cells
    bands = -(-count // _beside_each_other(count, across * width, room, picture.group))
    return bands * (rows + _LINES_BETWEEN) - _LINES_BETWEEN <= lines


def _form(picture: Picture, painter: Painter, room: int, lines: int) -> Form:
    """Choose the largest look of a cell without a number that fits."""
    rows, across = picture.cells
    # Without colour a sign needs a column of its own beside the shade.
    signs = painter.signed and painter.color == "none"
    if signs or (across * 2 <= room and rows <= lines):
        return Form(2)
    # A handful of rows is seen better in full lines.
    halves = painter.color != "none" and painter.unicode and rows > _LEAST_LINES
    return Form(1, halves=halves)


def _wide_enough(form: Form, keys: Sequence[str], room: int) -> Form:
    """Return cells in which the names of keys lie flat, where the room is enough for them."""
    longest = max(map(columns, keys))
    width = max(form.width, longest + 1)
    fits = longest <= LONGEST_UPRIGHT and len(keys) * width <= room
    return replace(form, width=width) if fits else form


def _panels(
    picture: Picture,
    form: Form,
    painter: Painter,
    names: list[str],
    header: list[str],
    room: int | None,
) -> list[Line]:
    """Return all maps, side by side while they fit."""
    wide = picture.cells[1] * form.width
    edge = room or _PIPE_WIDTH - columns(names[0])
    titles = _titles(picture, wide, edge, painter, whole=room is None)
    # All titles are as wide as a map has to be to hold them.
    pitch = max(wide, *map(columns, titles)) if titles else wide
    beside = _beside_each_other(len(picture.panels), pitch, edge, picture.group)
    lines: list[Line] = []
    for first in range(0, len(picture.panels), beside):
        group = picture.panels[first : first + beside]
        if first:
            lines.append([plain("")])
        margin = " " * len(names[0]) if names[0].isascii() else " " * columns(names[0])
        if titles:
            shown = titles[first : first + beside]
            lines.append(_beside(margin, [[plain(title)] for title in shown]))
        spare = pitch - wide
        lines += [_beside(margin, [[plain(text)]] * len(group), spare) for text in header]
        bodies = [painter.rows(picture, panel, form) for panel in group]
        lines += [
            _beside(name, list(parts), spare)
            for name, parts in zip(names, zip(*bodies, strict=True), strict=True)
        ]
    return lines


def _titles(picture: Picture, wide: int, room: int, painter: Painter, *, whole: bool) -> list[str]:
    """Return the titles, if any, all of one width; short if they would push maps apart."""
    titles = [painter.known(panel.title or "") for panel in picture.panels]
    if not any(titles):
        return []
    pitch = max(wide, *map(columns, titles))
    if whole:
        return [fit_text(title, pitch, painter) for title in titles]
    count = len(titles)
    beside = {_beside_each_other(count, each, room, picture.group) for each in (pitch, wide)}
    if pitch > room or len(beside) > 1:
        titles = list(map(brief, titles))
        pitch = max(wide, min(room, max(map(columns, titles))))
    return [fit_text(title, pitch, painter) for title in titles]


def _beside_each_other(count: int, pitch: int, room: int, group: int | None) -> int:
    """Return how many maps stand in a row: in all about as many, or those of a batch entry."""
    most = min(count, max(1, (room + _GAP) // (pitch + _GAP)))
    if group is None:
        return -(-count // -(-count // most))
    even = max(count for count in range(1, min(most, group) + 1) if group % count == 0)
    # Otherwise a prime number of heads would stand one below the other.
    return even if 2 * even >= min(most, group) else most


def _beside(name: str, parts: list[Line], spare: int = 0) -> Line:
    """Join the lines of several maps, with a gap between them."""
    line: Line = [plain(name)]
    for index, part in enumerate(parts):
        line += ([plain(" " * (_GAP + spare))] if index else []) + part
    return line


def _heading(picture: Picture, width: int | None, painter: Painter) -> list[Line]:
    title = [painter.known(line) for line in (picture.title or "").splitlines()]
    texts = [*title, f"{picture.rows_are.lower()} down, {picture.columns_are.lower()} across"]
    if width is not None:
        texts = [cut(text, width, painter) for text in texts]
    return [[plain(text)] for text in texts]


def _more(count: int, width: int, painter: Painter) -> list[Line]:
    """Return the line that says how many maps are not drawn."""
    if not count:
        return []
    words = f"… {count:,} more maps: --head or --batch for some, --out for a picture of all"
    lines = wrapped(painter.known(words).split(" "), width, columns)
    return [[plain(line)] for line in lines]


def _notes(
    picture: Picture, queries: Sequence[str] | None, form: Form, width: int, painter: Painter
) -> list[Line]:
    """Return what the reader must know about cells and labels."""
    own = picture.crop_note, picture.note, picture.sink_note, picture.equal_note
    notes = [note for note in (*own, picture.scale_advice) if note]
    labelled = picture.query_labels is not None, picture.key_labels is not None
    if any(labels and block > 1 for labels, block in zip(labelled, picture.block, strict=True)):
        notes.append("labels are left out where a cell stands for several (--rows, --cols)")
    if queries is not None and form.halves and picture.block[0] == 1:
        notes.append("only every second query is labelled")
    lines = [line for note in notes for line in wrapped(note.split(" "), width, columns)]
    return [[plain(painter.known(line.replace("\u00a0", " ")))] for line in lines]


def _legend(picture: Picture, width: int, painter: Painter) -> list[Line]:
    """Return the scale with its numbers, and the look of hidden cells."""
    # The name comes first, or "0" would look like the first of the queries.
    name = _first_fitting(picture.scale_names, width, painter)
    parts: list[Line] = [[plain(name)], _scale(picture, width, painter)]
    if picture.any_hidden:
        parts.append([painter.hidden(2), plain(" hidden")])
    return _flowed(parts, width)


def _scale(picture: Picture, width: int, painter: Painter) -> Line:
    """Return all colours between the ends of the scale, with numbers where they belong."""
    (_, low), *inside, (_, high) = _marks(picture, width, painter)
    steps = max(5, min(_STEPS, width - len(low) - len(high) - 2))
    # A sign and its shade make one step of two columns.
    wide = 2 if picture.signed else 1
    count = steps // wide
    ramp = [painter.cell(step / (count - 1), wide) for step in range(count)]
    for place, text in reversed(inside):
        ramp.insert(round(place * count), plain(f" {text} "))
    scale = [plain(low + " "), *ramp, plain(" " + high)]
    if sum(columns(span[0]) for span in scale) > width:  # long numbers in a narrow terminal
        return [plain(cut(f"{low} … {high}", width, painter))]
    return scale


def _marks(picture: Picture, width: int, painter: Painter) -> list[tuple[float, str]]:
    """Return places and numbers on the scale: its ends and, if it is logarithmic, what fits."""
    low, *inside, high = [(at, painter.known(text)) for at, text in scale_ticks(picture)]
    for every in range(1, len(inside) + 1 if picture.log else 1):
        marks = [low, *inside[every - 1 :: every], high]
        if sum(columns(text) + _GAP for _, text in marks) - _GAP + _STEPS <= width:
            return marks
    return [low, high]


def _first_fitting(names: Sequence[str], width: int, painter: Painter) -> str:
    """Return the first of some names that fits, or what fits of the last."""
    known = [painter.known(name) for name in names]
    return next((name for name in known if columns(name) <= width), cut(known[-1], width, painter))


def _flowed(parts: list[Line], width: int) -> list[Line]:
    """Put parts on one line while they fit, on more otherwise."""
    lines: list[Line] = [[]]
    for part in parts:
        taken = sum(columns(span[0]) for span in [*lines[-1], *part])
        if lines[-1] and taken + _GAP > width:
            lines.append(list(part))
        else:
            lines[-1] += ([plain(" " * _GAP)] if lines[-1] else []) + part
    return lines
