"""Labels that fit: their width in a terminal, and a shorter form of long ones."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["brief", "clusters", "shorten", "text_width"]

_JOINER = "\u200d"
_PLACE = re.compile(r"(batch|head) (\d+),?")


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes, as Rich counts them.

    Rich lays out tables and lines, so what is to fit must be measured with its rule.

    Examples
    --------
    >>> text_width("cat"), text_width("中文"), text_width("e\u0301")
    (3, 4, 1)
    """
    if text.isascii() and text.isprintable():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - pictures mostly do without Rich

    return cell_len(text)


def clusters(text: str) -> list[str]:
    """Cut a text into characters, each with what is joined to it: marks, parts of an emoji."""
    parts: list[str] = []
    for character in text:
        if parts and (text_width(character) == 0 or parts[-1].endswith(_JOINER)):
            parts[-1] += character
        else:
            parts.append(character)
    return parts


def brief(title: str) -> str:
    """Return a title with its batch and head in short.

    Examples
    --------
    >>> brief("batch 1, head 12")
    'b1 h12'
    """
    return _PLACE.sub(lambda place: place[1][0] + place[2], title)


def shorten(
    text: str, room: int, *, ellipsis: str = "…", measure: Callable[[str], int] = text_width
) -> str:
    """Cut the middle out of a text that is too long, and mark the place.

    Both ends stay, because labels often differ only in one of them.

    Parameters
    ----------
    text : str
    room : int
        The most that `measure` may give; below 1 nothing is left.
    ellipsis : str
        The mark; left out where even it does not fit.
    measure : callable
        Width of a text; `text_width` unless given.

    Examples
    --------
    >>> shorten("internationalisation", 9)
    'inte…tion'
    """
    if measure(text) <= room:
        return text
    left = room - measure(ellipsis)
    if left < 0:
        return ""
    parts = clusters(text)
    head, spent = _take(parts, (left + 1) // 2, measure)
    tail, _ = _take(parts[::-1], left - spent, measure)
    return "".join(head) + ellipsis + "".join(tail[::-1])


def _take(parts: list[str], room: int, measure: Callable[[str], int]) -> tuple[list[str], int]:
    """Take parts from the front while they fit; return them and their width."""
    taken: list[str] = []
    spent = 0
    for part in parts:
        if spent + measure(part) > room:
            break
        taken.append(part)
        spent += measure(part)
    return taken, spent
