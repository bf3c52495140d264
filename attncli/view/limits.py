"""How much of a result is shown, and what the terminal can show."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from attncli.view.signs import known

__all__ = ["Depth", "Limits"]

# The colours that a terminal has.
Depth: TypeAlias = Literal["none", "256", "truecolor"]


class Limits(NamedTuple):
    """How much is shown, and in which way.

    Attributes
    ----------
    rows, columns : int or None
        At most this many of a matrix; None is all.
    heads : int or None
        At most this many tables of each output, or maps; None is all.
    width, height : int or None
        Columns and lines of the terminal, or None if there is no edge.
    digits : int
        Digits after the point.
    unicode : bool
        Whether stdout takes more than ASCII.
    depth : {"none", "256", "truecolor"}
    stacked : bool
        Columns that do not fit are shown below the others, not left out.
    markdown : bool
        Each part is a block of Markdown; without colours and without an edge.
    """

    rows: int | None = None
    columns: int | None = None
    heads: int | None = None
    width: int | None = None
    height: int | None = None
    digits: int = 4
    unicode: bool = True
    depth: Depth = "none"
    stacked: bool = False
    markdown: bool = False

    def known(self, text: str) -> str:
        """Return a text in characters that stdout takes; to be called before measuring it."""
        return known(text, unicode=self.unicode)
