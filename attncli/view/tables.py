"""The one writer of tables: columns of text that fit a terminal, a pipe, or Markdown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Span, Text

from attncli.errors.text import printable
from attncli.view.labels import text_width

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.style import Style

    from attncli.view.limits import Limits

# Blanks between two columns of a table.
GAP = 2
# Characters that Markdown would take for markup.
_SIGNS = re.compile(r"([\\`*_{}\[\]<>#|~$&^@])")


@dataclass(frozen=True)
class Column:
    """A heading and the cells below it."""

    heading: str
    cells: Sequence[str]
    left: bool = False  # words are aligned to the left, numbers to the right
    styles: Sequence[Style | str] = ()  # of each cell; none where all are plain

    @property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return max(text_width(self.heading), max(map(text_width, self.cells), default=0))


def heading(title: str, limits: Limits) -> Text:
    """Return the title of a table."""
    if limits.markdown:
        return Text(f"## {words(title)}")
    return Text(limits.known(title), style="bold")


def remark(text: str, limits: Limits) -> Text:
    """Return a remark below a table."""
    if limits.markdown:
        return Text(words(text))
    return Text(limits.known(text), style="dim italic")


def width_of(columns: Sequence[Column]) -> int:
    """Return the columns of the terminal that a table takes."""
    return sum(column.width + GAP for column in columns) - GAP


def groups(
    fixed: Sequence[Column], columns: Sequence[Column], width: int | None, *, together: int = 1
) -> list[Sequence[Column]]:
    """Return groups of columns that fit beside the fixed ones; `together` columns stay together."""
    if width is None:
        return [columns]
    most = width - sum(column.width + GAP for column in fixed)
    found: list[Sequence[Column]] = []
    start, room = 0, most
    for at in range(0, len(columns), together):
        wide = width_of(columns[at : at + together])
        if wide > room and at > start:
            found.append(columns[start:at])
            start, room = at, most
        room -= wide + GAP
    return [*found, columns[start:]]


def stacked(
    fixed: Sequence[Column], columns: Sequence[Column], limits: Limits, *, together: int = 1
) -> Iterator[Text]:
    """Yield one table, or several below each other that repeat the fixed columns."""
    width = None if limits.markdown else limits.width
    for number, group in enumerate(groups(fixed, columns, width, together=together)):
        if number:
            yield Text("")
        yield drawn([*fixed, *group], limits)


def drawn(columns: Sequence[Column], limits: Limits) -> Text:
    """Return a table: the headings, a line below them, and a line for each row of cells."""
    if limits.markdown:
        return Text(_markdown(columns))
    writer = _Writer(columns)
    writer.row([(column.heading, "bold") for column in columns])
    writer.line(("─" if limits.unicode else "-") * width_of(columns), "dim")
    styled = [column.styles or [""] * len(column.cells) for column in columns]
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True)):
        writer.row([(cell, style[number]) for cell, style in zip(cells, styled, strict=True)])
    return writer.text()


class _Writer:
    """Writes one `Text` of many lines; styles are collected as spans, which is quick."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = [(column.width, column.left) for column in columns]
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
            part = " " * (GAP if number else 0) + (cell + fill if left else fill + cell)
            line, at = line + part, at + len(part)
            # A background reaches to the cell before: gaps between shades would look like bars.
            whole = getattr(style, "bgcolor", None) is not None
            if number == len(cells) - 1 and not whole:
                line = line.rstrip()
            if style and (cell or whole):
                first = start if whole else at - len(part.lstrip())
                self._spans.append(Span(self._at + first, self._at + min(at, len(line)), style))
        self.line(line)

    def line(self, line: str, style: str = "") -> None:
        if style:
            self._spans.append(Span(self._at, self._at + len(line), style))
        self._lines.append(line)
        self._at += len(line) + 1

    def text(self) -> Text:
        # With these options, Rich neither breaks nor cuts lines.
        return Text("\n".join(self._lines), spans=self._spans, no_wrap=True, overflow="ignore")


def words(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return _SIGNS.sub(r"\\\1", printable(text))


def _markdown(columns: Sequence[Column]) -> str:
    marks = ("---" if column.left else "---:" for column in columns)
    cells = zip(*(column.cells for column in columns), strict=True)
    rows = [_markdown_row(column.heading for column in columns), f"|{'|'.join(marks)}|"]
    return "\n".join([*rows, *map(_markdown_row, cells)])


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(words, cells))} |"
