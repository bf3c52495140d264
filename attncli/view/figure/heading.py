"""The lines above a figure: its title, wrapped, and what the reader must know about the cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.view.labels import shorten, text_width
from attncli.view.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.view.pictures.picture import Picture

    Measure = Callable[[str, float], tuple[float, float]]

__all__ = ["Measure", "bar_name", "note_lines", "title_lines"]

_TITLES = {
    "weights": "Attention weights",
    "scores": "Attention scores",
    "difference": "Difference of two attention maps",
}
_MOST_LINES = 3


def title_lines(picture: Picture, room: float, size: float, measure: Measure) -> tuple[str, ...]:
    """Return the lines of the title; the last one is cut if there would be too many.

    Parameters
    ----------
    picture : Picture
    room : float
        Inches across.
    size : float
        Points.
    measure : callable
        Width and height in inches of a text at a size in points.
    """
    title = _TITLES[picture.what] if picture.title is None else picture.title
    return _wrapped(title, room, size, measure) if title else ()


def note_lines(picture: Picture, room: float, size: float, measure: Measure) -> tuple[str, ...]:
    """Return the lines of what the reader must know; parameters as in `title_lines`."""
    return tuple(line for note in picture.notes for line in _wrapped(note, room, size, measure))


def bar_name(picture: Picture, room: float, size: float, measure: Measure) -> str:
    """Return what the colours mean, in fewer words if need be; parameters as in `title_lines`."""
    *longer, shortest = picture.scale_names
    return next((name for name in longer if measure(name, size)[0] <= room), shortest)


def _wrapped(text: str, room: float, size: float, measure: Measure) -> tuple[str, ...]:
    lines: list[str] = []
    for part in text.split("\n"):
        words = part.strip(" ").split(" ")
        lines += list(wrapped(words, room, lambda line: measure(line, size)[0])) or [""]
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES - 1 :] = [" ".join(lines[_MOST_LINES - 1 :])]
    return tuple(_cut(line, room, size, measure) for line in lines)


def _cut(text: str, room: float, size: float, measure: Measure) -> str:
    """Shorten a text in the middle until it fits the room in inches."""
    length = text_width(text)
    while length > 1 and measure(text, size)[0] > room:
        length = min(length - 1, int(length * room / measure(text, size)[0]) + 1)
        text = shorten(text, length)
    return text
