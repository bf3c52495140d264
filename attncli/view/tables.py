"""Matrices as Rich tables: labelled, right-aligned, cropped to what fits, shaded by weight."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.text import Text

from attncli.errors.text import label_text
from attncli.view.columns import GAP, Column, table_lines
from attncli.view.labels import shorten_all, text_width
from attncli.view.markdown import markdown_table, words
from attncli.view.shading import hidden_shade, shade
from attncli.view.signs import known

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from attncli.view.shading import Depth

__all__ = ["Limits", "Sheet", "heading", "on_one_scale", "remark", "sheet_parts"]

_LABEL_WIDTH, _LEAST_LABEL = 24, 4
_HEADING_WIDTH = 12
_GAP = len(GAP)
_MANY_CELLS = 20_000
# Numbers from the one on have powers of ten; so have others, if some lie between the two.
_HUGE, _USUAL = 1e6, 1e4
_ONE = {"queries": "query", "keys": "key", "columns": "column"}


class Limits(NamedTuple):
    """How much of a matrix is shown.

    Attributes
    ----------
    rows, columns : int or None
        At most this many; None is all.
    heads : int
        At most this many (batch, head) matrices of each output.
    width : int or None
        Columns of the terminal, or None if there is no edge.
    digits : int
        Digits after the point.
    unicode : bool
        Whether stdout takes more than ASCII.
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.
    stacked : bool
        Columns that do not fit are shown below the others, not left out.
    markdown : bool
        Each part is a block of Markdown; without colours and without an edge.
    """

    rows: int | None
    columns: int | None
    heads: int
    width: int | None
    digits: int
    unicode: bool = True
    depth: Depth = "truecolor"
    stacked: bool = False
    markdown: bool = False

    def known(self, text: str) -> str:
        """Return a text in characters that stdout takes; to be called before measuring it."""
        return known(text, unicode=self.unicode)


def heading(title: str, limits: Limits) -> Text:
    """Return what stands above a table."""
    if limits.markdown:
        return Text(f"## {words(title)}")
    return Text(limits.known(title), style="bold")


def remark(text: str, limits: Limits) -> Text:
    """Return what is said below a table."""
    if limits.markdown:
        return Text(words(text))
    return Text(limits.known(text), style="dim italic")


class Sheet(NamedTuple):
    """One matrix to show.

    Attributes
    ----------
    title : str
    values : ndarray (rows shown, columns)
    row_count : int
        How many rows there are in all: more than ``values`` has if it is cropped.
    row_labels, column_labels : sequence of str or None
        The indices are shown if there are none.
    rows_are, columns_are : str
        ``queries``, ``keys``, ``columns``: for the line that says what was left out.
    shaded : bool
        Larger numbers are darker blue: for weights.
    hidden : ndarray of bool (rows shown, columns), or None
        Which keys are hidden: grey where numbers are shaded.
    darkest : float or None
        The number that is darkest; None is the largest that is shown.
    """

    title: str
    values: npt.NDArray[Any]
    row_count: int
    row_labels: Sequence[str] | None
    column_labels: Sequence[str] | None
    rows_are: str
    columns_are: str
    shaded: bool = False
    hidden: npt.NDArray[np.bool_] | None = None
    darkest: float | None = None


def on_one_scale(sheets: Iterator[Sheet], limits: Limits) -> Iterator[Sheet]:
    """Yield sheets with the same darkest number: the largest that any shaded one of them shows.

    They are all made before the first one is yielded, unless there are no colours.
    """
    if limits.depth == "none":
        yield from sheets
        return
    held = list(sheets)
    largest = max((_largest(sheet, limits) for sheet in held if sheet.shaded), default=0.0)
    for sheet in held:
        yield sheet._replace(darkest=largest)


def _most_shown(sheet: Sheet, limits: Limits) -> tuple[int, int]:
    """Return how many rows and columns are shown at most."""
    rows, count = sheet.values.shape
    rows = min(rows, limits.rows or rows)
    count = min(count, limits.columns or count)
    return rows, count if limits.stacked else min(count, limits.width or count)


def _largest(sheet: Sheet, limits: Limits) -> float:
    """Return the largest number that is shown; 0 where none is positive."""
    rows, count = _most_shown(sheet, limits)
    shown = sheet.values[:rows, :count]
    return float(np.max(shown, initial=0.0, where=np.isfinite(shown)))


def _darkest(sheet: Sheet, limits: Limits) -> float:
    return _largest(sheet, limits) if sheet.darkest is None else sheet.darkest


def sheet_parts(sheet: Sheet, limits: Limits) -> Iterator[RenderableType]:
    """Yield the title, the table, and a line that says what was left out."""
    rows, count = _most_shown(sheet, limits)
    texts = _cell_texts(sheet.values[:rows, :count], limits.digits)
    names, headings = _names_and_headings(sheet, texts, count, limits)
    groups = _groups(names, headings, texts, limits.width)
    if not limits.stacked:
        del groups[1:]
    yield heading(sheet.title, limits)
    if limits.markdown:
        cells = ([words(name), *row] for name, row in zip(names, texts, strict=True))
        yield Text(markdown_table(["", *map(words, headings)], cells))
    else:
        yield from _drawn(sheet, names, headings, texts, groups, limits)
    left_out = _left_out(sheet, rows, groups[-1][1])
    if left_out:
        yield remark(left_out, limits)
    yield Text("")


def _drawn(
    sheet: Sheet,
    names: list[str],
    headings: list[str],
    texts: list[list[str]],
    groups: list[tuple[int, int]],
    limits: Limits,
) -> Iterator[Text]:
    """Yield the columns of each group as a table, and what their colours mean."""
    rows, count = len(texts), len(headings)
    plain = limits.depth == "none" or rows * groups[-1][1] > _MANY_CELLS
    darkest = 0.0 if plain or not sheet.shaded else _darkest(sheet, limits)
    shades = [] if plain else _shades(sheet, rows, count, darkest, limits.depth)
    for number, (first, last) in enumerate(groups):
        if number:
            yield Text("")
        part = [row[first:last] for row in texts]
        if plain:
            # Rich lays out 15,000 cells per second, so a large table has no shades even if
            # --color always asks for them.
            yield _plain_table(names, headings[first:last], part, "─" if limits.unicode else "-")
        else:
            styles = [row[first:last] for row in shades]
            columns = _columns(headings[first:last], part, styles)
            yield from table_lines([_column_of(names), *columns], unicode=limits.unicode)
    shown = slice(rows), slice(groups[-1][1])
    legend = [] if plain else _legend(sheet, shown, darkest, limits)
    if legend:
        yield remark(" · ".join(legend), limits)


def _names_and_headings(
    sheet: Sheet, texts: list[list[str]], count: int, limits: Limits
) -> tuple[list[str], list[str]]:
    """Return the labels of rows and columns, which leave room for the numbers."""
    widest = max(map(len, chain.from_iterable(texts)), default=1)
    room = _LABEL_WIDTH if limits.width is None else limits.width - _GAP - widest
    names = _labels(
        sheet.row_labels, len(texts), max(_LEAST_LABEL, min(_LABEL_WIDTH, room)), limits
    )
    taken = max(map(text_width, names), default=0)
    room = _HEADING_WIDTH if limits.width is None else limits.width - _GAP - taken
    room = max(widest, min(_HEADING_WIDTH, room))
    return names, _labels(sheet.column_labels, count, room, limits)


def _labels(labels: Sequence[str] | None, count: int, longest: int, limits: Limits) -> list[str]:
    if labels is None:
        return [str(index) for index in range(count)]
    names = [limits.known(label_text(label)) for label in labels[:count]]
    return shorten_all(names, longest, ellipsis=limits.known("…"))


def _cell_texts(values: npt.NDArray[Any], digits: int) -> list[list[str]]:
    """Return numbers in one notation for the whole table: fixed point unless that hides them.

    Huge ones among others, such as scores of keys that a bias of -1e9 hides, have one of their own.
    """
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    huge = sizes >= _HUGE
    others = sizes[~huge]
    tiny = others.size and others.max() < 10.0 ** -max(digits - 1, 2)
    apart = huge.any() and not (huge | (sizes < _USUAL)).all()
    fixed, powers = f"{{:.{digits}f}}", f"{{:.{digits}e}}"
    if tiny or apart:
        fixed = powers
    texts = [
        [(powers if _HUGE <= abs(number) < np.inf else fixed).format(number) for number in row]
        for row in values.tolist()
    ]
    if not (np.signbit(values) & (np.abs(values) < 10.0**-digits)).any():
        return texts
    # A zero has no sign.
    return [[t[1:] if t[0] == "-" and float(t) == 0 else t for t in row] for row in texts]


def _groups(
    names: list[str], headings: list[str], texts: list[list[str]], width: int | None
) -> list[tuple[int, int]]:
    """Return which columns fit side by side, as (start, stop): at least one in each group."""
    if width is None:
        return [(0, len(headings))]
    most = width - max(map(text_width, names), default=0)
    starts, room = [0], most
    for index, heading in enumerate(headings):
        wide = _GAP + max(text_width(heading), *(len(row[index]) for row in texts))
        if wide > room and index > starts[-1]:
            starts.append(index)
            room = most
        room -= wide
    return list(pairwise([*starts, len(headings)]))


def _column_of(names: list[str]) -> Column:
    return Column("", [Text(name, style="bold") for name in names])


def _legend(sheet: Sheet, shown: tuple[slice, slice], darkest: float, limits: Limits) -> list[str]:
    """Return what the colours of a table mean."""
    legend = []
    if sheet.shaded and darkest:
        ((number,),) = _cell_texts(np.array([[darkest]]), limits.digits)
        legend.append(f"darkest blue: {number}")
    if sheet.hidden is not None and sheet.hidden[shown].any():
        legend.append("grey: hidden")
    return legend


def _shades(sheet: Sheet, rows: int, count: int, darkest: float, depth: Depth) -> list[list[Any]]:
    """Return the style of each cell."""
    if not sheet.shaded:
        return [[""] * count] * rows
    values, largest = sheet.values[:rows, :count], darkest or 1.0
    styles = [[shade(number / largest, depth) for number in row] for row in values.tolist()]
    if sheet.hidden is not None:
        for row, column in np.argwhere(sheet.hidden[:rows, :count]).tolist():
            styles[row][column] = hidden_shade(depth)
    return styles


def _columns(headings: list[str], texts: list[list[str]], styles: list[list[Any]]) -> list[Column]:
    """Return the columns of numbers, each in its style."""
    rows = zip(texts, styles, strict=True)
    cells = [[Text(text, style=style) for text, style in zip(*row, strict=True)] for row in rows]
    return [
        Column(heading, column)
        for heading, column in zip(headings, zip(*cells, strict=True), strict=True)
    ]


def _plain_table(names: list[str], headings: list[str], texts: list[list[str]], line: str) -> Text:
    """Return the same table as one text, without colours."""
    table = [["", *names], *map(list, zip(headings, *texts, strict=True))]
    padded = []
    for column in table:
        wide = max(map(text_width, column))
        padded.append([" " * (wide - text_width(text)) + text for text in column])
    header, *rows = ((" " * _GAP).join(row) for row in zip(*padded, strict=True))
    lines = [header, line * text_width(header), *rows]
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def _left_out(sheet: Sheet, rows: int, count: int) -> str:
    missing = [
        (sheet.row_count - rows, sheet.rows_are, "--max-rows"),
        (sheet.values.shape[1] - count, sheet.columns_are, "--max-cols"),
    ]
    parts = [
        f"{number:,} more {_ONE.get(things, things) if number == 1 else things}"
        for number, things, _ in missing
        if number
    ]
    options = [option for number, _, option in missing if number]
    if not parts:
        return ""
    return f"… {' and '.join(parts)} ({', '.join(options)}; --save and --format json have all)"
