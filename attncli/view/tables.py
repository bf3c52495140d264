"""The one writer of tables: columns of text that fit a terminal, a pipe, or Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Span, Text

from attncli.view.labels import text_width
from attncli.view.markdown import markdown_table, words
from attncli.view.signs import known

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.style import Style

    from attncli.view.shading import Depth

__all__ = ["Column", "Limits", "drawn", "groups", "heading", "remark", "stacked"]

_GAP = 2


class Limits(NamedTuple):
    """How much of a matrix is shown, and in which way.

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


@dataclass(frozen=True)
class Column:
    """A heading and the cells below it.

    Attributes
    ----------
    heading : str
    cells : sequence of str
    left : bool
        Aligned to the left, as words are; numbers are to the right.
    styles : sequence of Style or str
        Of each cell; none where all are plain.
    """

    heading: str
    cells: Sequence[str]
    left: bool = False
    styles: Sequence[Style | str] = ()

    @property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return max(text_width(self.heading), max(map(text_width, self.cells), default=0))


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


def groups(
    fixed: Sequence[Column], columns: Sequence[Column], width: int | None, *, together: int = 1
) -> list[Sequence[Column]]:
    """Return the columns that fit side by side behind the fixed ones; at least one in each group.

    Parameters
    ----------
    fixed, columns : sequence of Column
    width : int or None
        Columns of the terminal; None if there is no edge.
    together : int
        So many columns are never torn apart.
    """
    if width is None:
        return [columns]
    most = width - sum(column.width + _GAP for column in fixed)
    found: list[Sequence[Column]] = []
    start, room = 0, most
    for at in range(0, len(columns), together):
        wide = sum(column.width + _GAP for column in columns[at : at + together])
        if wide - _GAP > room and at > start:
            found.append(columns[start:at])
            start, room = at, most
        room -= wide
    return [*found, columns[start:]]


def stacked(
    fixed: Sequence[Column], columns: Sequence[Column], limits: Limits, *, together: int = 1
) -> Iterator[Text]:
    """Yield one table, or several below each other that repeat the fixed columns.

    Parameters
    ----------
    fixed, columns, together
        As for `groups`.
    limits : Limits
    """
    width = None if limits.markdown else limits.width
    for number, group in enumerate(groups(fixed, columns, width, together=together)):
        if number:
            yield Text("")
        yield drawn([*fixed, *group], limits)


def drawn(columns: Sequence[Column], limits: Limits) -> Text:
    """Return a table: the headings, a line below them, and a line for each row of cells."""
    if limits.markdown:
        rows = ([*map(words, row)] for row in zip(*(c.cells for c in columns), strict=True))
        left = [number for number, column in enumerate(columns) if column.left]
        return Text(markdown_table([words(c.heading) for c in columns], rows, left=left))
    writer = _Writer(columns)
    writer.row([(column.heading, "bold") for column in columns])
    writer.line(("─" if limits.unicode else "-") * writer.length, "dim")
    styled = [column.styles or [""] * len(column.cells) for column in columns]
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        writer.row([(cell, style[number]) for cell, style in zip(cells, styled, strict=True)])
    return writer.text()


class _Writer:
    """One `Text` of many lines, whose styles are noted by their places: that is quick."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [(column.width, column.left) for column in columns]
        self.length = sum(width for width, _ in self._columns) + _GAP * (len(columns) - 1)
        self._lines: list[str] = []
        self._spans: list[Span] = []
        self._at = 0

    def row(self, cells: Sequence[tuple[str, Style | str]]) -> None:
        line, at = "", 0
        for number, ((width, left), (cell, style)) in enumerate(
            zip(self._columns, cells, strict=True)
        ):
            start = at
            fill = " " * (width - text_width(cell))
            part = " " * (_GAP if number else 0) + (cell + fill if left else fill + cell)
            line, at = line + part, at + len(part)
            if style:
                # A background reaches to the cell before: gaps between shades would look like bars.
                whole = getattr(style, "bgcolor", None) is not None
                first = start if whole else at - len(part.lstrip())
                self._spans.append(Span(self._at + first, self._at + at, style))
        self.line(line.rstrip() if not cells[-1][1] else line)

    def line(self, line: str, style: str = "") -> None:
        if style:
            self._spans.append(Span(self._at, self._at + len(line), style))
        self._lines.append(line)
        self._at += len(line) + 1

    def text(self) -> Text:
        # Rich neither breaks nor cuts such lines.
        return Text("\n".join(self._lines), spans=self._spans, no_wrap=True, overflow="ignore")
