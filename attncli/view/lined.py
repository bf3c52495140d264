"""Tables of text: a line below the headings, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich import box
from rich.segment import Segment
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, ConsoleOptions

__all__ = ["lined_table"]


class _HeadLine(box.Box):
    """Rich's box SIMPLE_HEAD, which Rich replaces by one with edges if there is only ASCII."""

    def substitute(self, options: ConsoleOptions, safe: bool = True) -> box.Box:  # noqa: ARG002, FBT001, FBT002
        return _ASCII if options.ascii_only else box.SIMPLE_HEAD


_ASCII = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_LINE = _HeadLine("    \n    \n ── \n    \n    \n    \n    \n    \n")


class _Bare(Table):
    """A table without blanks at the ends of its lines."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        segments = cast("Iterable[Segment]", super().__rich_console__(console, options))
        for line in Segment.split_lines(segments):
            yield from _without_blanks(line)
            yield Segment.line()


def _without_blanks(line: list[Segment]) -> list[Segment]:
    """Return a line that ends with what can be seen."""
    while line and not line[-1].text.rstrip(" "):
        line.pop()
    if line:
        last = line.pop()
        line.append(Segment(last.text.rstrip(" "), last.style))
    return line


def lined_table(gap: int) -> Table:
    """Return an empty table without an edge.

    Parameters
    ----------
    gap : int
        Columns between two of its columns.
    """
    return _Bare(box=_LINE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
