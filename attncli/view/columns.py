"""Tables of lines of text: one, or several below each other where a terminal is too narrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from attncli.view.labels import text_width
from attncli.view.markdown import markdown_table, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["GAP", "Column", "stacked", "table_lines"]

GAP = "  "


@dataclass(frozen=True)
class Column:
    """A heading and the cells below it."""

    heading: str
    cells: Sequence[Text]
    left: bool = False

    @property
    def width(self) -> int:
        """Columns of the terminal that it takes."""
        return max(text_width(self.heading), *(text_width(cell.plain) for cell in self.cells))


def stacked(
    fixed: Sequence[Column],
    columns: Sequence[Column],
    width: int | None,
    *,
    unicode: bool,
    together: int = 1,
    markdown: bool = False,
) -> Iterator[Text]:
    """Yield one table, or several below each other that repeat the fixed columns.

    Parameters
    ----------
    fixed, columns : sequence of Column
    width : int or None
        Columns of the terminal; None if there is no edge.
    unicode : bool
        Whether the terminal has more than ASCII.
    together : int
        So many columns are never torn apart.
    markdown : bool
        One table in Markdown, however wide.
    """
    if markdown:
        yield _in_markdown([*fixed, *columns])
        return
    groups = [columns[start : start + together] for start in range(0, len(columns), together)]
    taken = sum(column.width + len(GAP) for column in fixed)
    chunk: list[Column] = []
    for group in groups:
        needed = taken + sum(column.width + len(GAP) for column in (*chunk, *group)) - len(GAP)
        if chunk and width is not None and needed > width:
            yield from table_lines([*fixed, *chunk], unicode=unicode)
            yield Text("")
            chunk = []
        chunk += group
    yield from table_lines([*fixed, *chunk], unicode=unicode)


def _in_markdown(columns: Sequence[Column]) -> Text:
    headings = [words(column.heading) for column in columns]
    cells = zip(*(column.cells for column in columns), strict=True)
    rows = ([words(cell.plain) for cell in row] for row in cells)
    left = [number for number, column in enumerate(columns) if column.left]
    return Text(markdown_table(headings, rows, left=left))


def table_lines(columns: Sequence[Column], *, unicode: bool) -> Iterator[Text]:
    """Yield the headings, a line below them, and a line for each row of cells."""
    widths = [column.width for column in columns]
    headings = [Text(column.heading, style="bold") for column in columns]
    yield _row(columns, widths, headings)
    length = sum(widths) + len(GAP) * (len(columns) - 1)
    yield _line(Text(("─" if unicode else "-") * length, style="dim"))
    for cells in zip(*(column.cells for column in columns), strict=True):
        yield _row(columns, widths, cells)


def _row(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[Text]) -> Text:
    line = Text()
    for number, (column, wide, cell) in enumerate(zip(columns, widths, cells, strict=True)):
        # A background reaches to the cell before: gaps between shades would look like bars.
        style = cell.style if getattr(cell.style, "bgcolor", None) else ""
        fill = Text(" " * (wide - text_width(cell.plain)), style=style)
        line.append(GAP if number else "", style=style)
        parts = (cell, fill) if column.left else (fill, cell)
        line.append_text(Text.assemble(*parts))
    line.rstrip()
    return _line(line)


def _line(text: Text) -> Text:
    """Return a line that Rich neither breaks nor cuts."""
    text.no_wrap, text.overflow = True, "ignore"
    return text
