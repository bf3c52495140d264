"""Texts that fit: their width in a terminal, shorter labels, and wrapped lines."""

from __future__ import annotations

import re
from itertools import accumulate
from os.path import commonprefix
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_JOINER = "\u200d"
# Two letters of a country make one flag.
_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]{2}")
_PLACE = re.compile(r"(batch|head) (\d+),?")
# Before an operator between blanks or a bracket, and behind a product sign without blanks.
_BREAK = r"(?<= )(?=[-+=/·*] |\()|(?<=\S[·*])(?=\S)"


def text_width(text: str) -> int:
    """Return how many columns of a terminal a text takes, as Rich counts them.

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
    joined = text_width(character) == 0 or part.endswith(_JOINER)
    return joined or bool(_FLAG.fullmatch(part + character))


def brief(title: str) -> str:
    """Return a title with its batch and head in short: b1 h12."""
    return _PLACE.sub(lambda place: place[1][0] + place[2], title)


def shorten(text: str, room: int, *, ellipsis: str = "…") -> str:
    """Cut the middle out of a text that is too long, and mark the place.

    Both ends stay, because labels often differ only in one of them.
    """
    if text_width(text) <= room:
        return text
    left = room - text_width(ellipsis)
    if left < 0:
        return ""
    parts = clusters(text)
    head = _first(parts, (left + 1) // 2)
    tail = _first(parts[::-1], left - text_width("".join(head)))
    return "".join(head) + ellipsis + "".join(tail[::-1])


def shorten_all(texts: Sequence[str], room: int, *, ellipsis: str = "…") -> list[str]:
    """Shorten labels that stand side by side, so that different ones stay different if possible.

    Examples
    --------
    >>> shorten_all(["the first of all my words", "the third of all my words"], 12)
    ['the fi…words', 'the th…words']
    >>> shorten_all(["sentence 1 of the chapter", "sentence 2 of the chapter"], 12)
    ['sen…1 of th…', 'sen…2 of th…']
    """
    made = [shorten(text, room, ellipsis=ellipsis) for text in texts]
    alike: dict[str, set[str]] = {}
    for short, text in zip(made, texts, strict=True):
        alike.setdefault(short, set()).add(text)
    # Of texts, not of paths.
    common = {short: len(commonprefix([*group])) for short, group in alike.items()}  # noqa: RUF071
    better = [
        _around(common[short], text, room, ellipsis) if len(alike[short]) > 1 else short
        for short, text in zip(made, texts, strict=True)
    ]
    fits = max(map(text_width, better), default=0) <= room
    return better if fits and len(set(better)) > len(set(made)) else made


def _around(common: int, text: str, room: int, ellipsis: str) -> str:
    """Return the beginning of a text, and the part from where it differs from others."""
    parts = clusters(text)
    ends = accumulate(map(len, parts))
    behind = parts[next((at for at, end in enumerate(ends) if end > common), len(parts)) :]
    head = "".join(_first(parts, room // 4)) + ellipsis
    left = room - text_width(head)
    rest = _first(behind, left)
    if len(rest) < len(behind):
        rest = [*_first(behind, left - text_width(ellipsis)), ellipsis]
    return head + "".join(rest)


def _first(parts: list[str], room: int) -> list[str]:
    ends = accumulate(map(text_width, parts))
    return [part for part, end in zip(parts, ends, strict=True) if end <= room]


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
