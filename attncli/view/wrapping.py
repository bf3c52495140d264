"""Text cut into lines that fit a terminal, as Rich measures them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.view.labels import clusters, shorten, text_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["cut", "wrapped"]


def wrapped(pieces: Iterable[str], room: int, known: Callable[[str], str]) -> Iterator[str]:
    """Join pieces by spaces into lines that fit; a piece that is too long is broken.

    Parameters
    ----------
    pieces : iterable of str
    room : int
        Columns of a line.
    known : callable
        Puts a text into characters that the terminal has.
    """
    line = ""
    for piece in map(known, pieces):
        joined = f"{line} {piece}" if line else piece
        if text_width(joined) <= room:
            line = joined
            continue
        if line:
            yield line
        *full, line = _broken(piece, room)
        yield from full
    if line:
        yield line


def _broken(piece: str, room: int) -> list[str]:
    parts = [""]
    for character in clusters(piece):
        if parts[-1] and text_width(parts[-1] + character) > room:
            parts.append("")
        parts[-1] += character
    return parts


def cut(text: str, room: int, *, unicode: bool = True) -> str:
    """Return the text with its middle cut out where it is too long."""
    if text_width(text) <= room:
        return text
    return shorten(text, room, ellipsis="…" if unicode else "..")
