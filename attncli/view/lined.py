"""The look of every table: a line below the headings, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import ConsoleOptions

__all__ = ["lined_table"]


class _HeadLine(box.Box):
    """Rich's box SIMPLE_HEAD, which Rich replaces by one with edges if there is only ASCII."""

    def substitute(self, options: ConsoleOptions, safe: bool = True) -> box.Box:  # noqa: ARG002, FBT001, FBT002
        return _ASCII if options.ascii_only else box.SIMPLE_HEAD


_ASCII = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
_LINE = _HeadLine("    \n    \n ── \n    \n    \n    \n    \n    \n")


def lined_table(gap: int) -> Table:
    """Return an empty table without an edge.

    Parameters
    ----------
    gap : int
        Columns between two of its columns.
    """
    return Table(box=_LINE, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
