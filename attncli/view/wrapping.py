"""Texts on lines that fit: pieces joined while there is room, and long ones broken."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attncli.view.labels import clusters, text_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["broken", "wrapped"]

# Before an operator between blanks or a bracket, and behind a product sign without blanks.
_BREAK = r"(?<= )(?=[-+=/·*] |\()|(?<=\S[·*])(?=\S)"


def wrapped(
    pieces: Iterable[str],
    room: float,
    measure: Callable[[str], float] = text_width,
) -> Iterator[str]:
    """Join pieces into lines that fit; a piece that is too long has a line of its own."""
    line = ""
    for piece in pieces:
        joined = f"{line} {piece}" if line else piece
        if line and measure(joined) > room:
            yield line
            line = piece
        else:
            line = joined
    if line:
        yield line


def broken(piece: str, room: int) -> list[str]:
    """Cut a piece of a formula into parts that fit: at operators if it can, within words if not.

    Examples
    --------
    >>> broken("exp(0.25 - 0.5) (cat)", 10)
    ['exp(0.25', '- 0.5)', '(cat)']
    >>> broken("abcde", 2)
    ['ab', 'cd', 'e']
    """
    if text_width(piece) <= room:
        return [piece]
    parts = [""]
    for term in re.split(_BREAK, piece):
        for unit in [term] if text_width(term.rstrip(" ")) <= room else clusters(term):
            if parts[-1] and text_width((parts[-1] + unit).rstrip(" ")) > room:
                parts.append("")
            parts[-1] += unit
    return [part.rstrip(" ") for part in parts]
