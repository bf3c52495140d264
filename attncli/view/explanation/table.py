"""The keys of an explanation as a table: from the raw score to the weight and its bar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from attncli.view.explanation.rows import headings_of, row_texts, table_rows
from attncli.view.labels import shorten, text_width
from attncli.view.shading import rich_blue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.explanation.data import Explanation
    from attncli.view.explanation.rows import Row
    from attncli.view.notation import Notation
    from attncli.view.shading import Depth

__all__ = ["weight_table"]

_GAP = "  "
_LONGEST_BAR = 32
_SHORTEST_BAR = 8
_SHORTEST_NAME = 8
# Columns that a narrow terminal drops first: the formulas have these numbers too.
_DISPENSABLE = (("raw", "capped"), ("bias", "ALiBi"), ("shifted",), ("exp",))
_NAMES = "key"
_EIGHTHS = " ▏▎▍▌▋▊▉"


def weight_table(
    explanation: Explanation, notation: Notation, width: int, depth: Depth
) -> Iterator[Text]:
    """Yield the lines of the table of scores, exponentials and weights.

    Parameters
    ----------
    explanation : Explanation
    notation : Notation
    width : int
        Columns of the terminal: no line is longer. If they are few, columns that
        the formulas also show are left out.
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.
    """
    rows = list(table_rows(explanation))
    texts = row_texts(rows, notation)
    widths = _widths(texts)
    names = max(len(_NAMES), *(text_width(notation.known(row.name)) for row in rows))
    for headings in _DISPENSABLE:
        if _total(widths) + min(names, _SHORTEST_NAME) + _SHORTEST_BAR > width:
            widths = {name: size for name, size in widths.items() if name not in headings}
    names = max(1, min(names, width - _total(widths) - _SHORTEST_BAR))
    bar = max(0, min(_LONGEST_BAR, width - _total(widths) - names))
    head = _NAMES[:names].ljust(names) + "".join(
        f"{_GAP}{name:>{size}}" for name, size in widths.items()
    )
    yield Text(head, style="bold", no_wrap=True)
    yield Text(("─" if notation.unicode else "-") * len(head), style="dim", no_wrap=True)
    largest = max((row.weight for row in rows if row.bar), default=0.0)
    for row, cells in zip(rows, texts, strict=True):
        line = _line(row, cells, names, widths, notation)
        if row.words:
            room = max(0, width - text_width(line.plain))
            words = shorten(notation.known(row.words), room, ellipsis=notation.known("…"))
            yield line.append(words, style="italic")
        else:
            line.append(_bar(row.weight if row.bar else 0.0, largest, bar, notation, depth))
            line.rstrip()
            yield line


def _widths(texts: list[dict[str, str]]) -> dict[str, int]:
    """Return the width of each column that some row has a number for, in reading order."""
    return {
        heading: max(len(heading), *(len(cells.get(heading, "")) for cells in texts))
        for heading in headings_of(texts)
    }


def _total(widths: dict[str, int]) -> int:
    """Return the columns that the numbers take, with the gaps around each."""
    return sum(widths.values()) + len(_GAP) * (len(widths) + 1)


def _line(
    row: Row, cells: dict[str, str], names: int, widths: dict[str, int], notation: Notation
) -> Text:
    name = shorten(notation.known(row.name), names, ellipsis=notation.known("…"))
    line = Text(name + " " * (names - text_width(name)), style=row.style, no_wrap=True)
    for heading, size in widths.items():
        # Nothing follows a hidden score: words stand there instead.
        if row.words and heading not in cells:
            break
        line.append(_GAP + f"{notation.known(cells.get(heading, '')):>{size}}")
    return line.append(_GAP)


def _bar(weight: float, largest: float, room: int, notation: Notation, depth: Depth) -> Text:
    """Return a bar as long as the weight, darker blue where it is larger."""
    full, part = divmod(round(8 * room * weight / largest) if largest else 0, 8)
    if not notation.unicode:
        return Text("#" * (full + (part >= 4)))
    # Neither end of the ramp: bars must show on white and on black.
    style = Style(color=rich_blue(0.4 + 0.4 * weight, depth))
    return Text("█" * full + _EIGHTHS[part].strip(), style=style)
