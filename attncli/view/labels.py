"""Labels that fit: their width in a terminal, and a shorter form of long ones."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["brief", "clusters", "shorten", "shorten_all", "text_width"]

_JOINER = "\u200d"
# Two letters of a country make one flag.
_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")
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
        if parts and _continues(parts[-1], character):
            parts[-1] += character
        else:
            parts.append(character)
    return parts


def _continues(part: str, character: str) -> bool:
    """Return whether a character is joined to what stands before it."""
    joined = text_width(character) == 0 or part.endswith(_JOINER)
    return joined or bool(_FLAG.fullmatch(part + character))


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

    Both ends stay, because labels often differ only in one of them. Of less room than the mark
    takes nothing is left.

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


def shorten_all(
    texts: Sequence[str],
    room: int,
    *,
    ellipsis: str = "…",
    measure: Callable[[str], int] = text_width,
) -> list[str]:
    """Shorten labels that stand beside each other, so that those that differ still do.

    Where the ends that `shorten` leaves are the same, the part is shown in which they differ
    first.

    Examples
    --------
    >>> shorten_all(["the first of all my words", "the third of all my words"], 12)
    ['the fi…words', 'the th…words']
    >>> shorten_all(["sentence 1 of the chapter", "sentence 2 of the chapter"], 12)
    ['sen…1 of th…', 'sen…2 of th…']
    """
    made = [shorten(text, room, ellipsis=ellipsis, measure=measure) for text in texts]
    alike: dict[str, set[str]] = {}
    for short, text in zip(made, texts, strict=True):
        alike.setdefault(short, set()).add(text)
    common = {short: _common(group) for short, group in alike.items() if len(group) > 1}
    better = [
        _around(common[short], text, room, ellipsis, measure) if short in common else short
        for short, text in zip(made, texts, strict=True)
    ]
    fits = max(map(measure, better), default=0) <= room
    return better if fits and len(set(better)) > len(set(made)) else made


def _common(texts: set[str]) -> int:
    """Return with how many letters all of several texts begin."""
    first, last = min(texts), max(texts)
    differ = (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other)
    return next(differ, min(len(first), len(last)))


def _around(common: int, text: str, room: int, ellipsis: str, measure: Callable[[str], int]) -> str:
    """Return the beginning of a text, and as much as fits from where it differs from others."""
    parts = clusters(text)
    ends = accumulate(map(len, parts))
    behind = parts[next((at for at, end in enumerate(ends) if end > common), len(parts)) :]
    head, spent = _take(parts, room // 4, measure)
    left = room - spent - measure(ellipsis)
    rest, _ = _take(behind, left, measure)
    if len(rest) < len(behind):
        rest, _ = _take(behind, left - measure(ellipsis), measure)
        rest.append(ellipsis)
    return "".join(head) + ellipsis + "".join(rest)


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
