"""Cells as characters: coloured blocks, or shades if there is no colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, TypeAlias

from rich.color import ColorSystem
from rich.style import Style

from attncli.view.pictures.scale import fractions
from attncli.view.shading import hidden_shade, inked, painted, ramp_color

if TYPE_CHECKING:
    from attncli.view.color import RGB
    from attncli.view.limits import Limits
    from attncli.view.pictures.picture import Panel, Picture

Span: TypeAlias = tuple[str, Style]
Line: TypeAlias = list[Span]

# No signs, points or digits: they would look like a part of the number beside them.
_ASCII_SHADES = " ':;=*%#@"
_UPPER, _LOWER = "▀", "▄"


@dataclass(frozen=True)
class Form:
    """What one cell looks like."""

    width: int  # columns of the terminal
    halves: bool = False  # a line holds two rows of cells, as upper and lower halves of a block
    numbers: bool = False  # there is a number in the cell


def plain(text: str) -> Span:
    """Return a text in the terminal's own colours."""
    return text, Style.null()


@dataclass(frozen=True)
class Painter:
    """Turns values into spans, and spans into text, for one kind of terminal.

    Visible cells have a background of their own, so they read the same in dark and in light
    terminals. Hidden ones have none: a grey mark on the terminal's background recedes in both.
    """

    limits: Limits
    signed: bool

    @cached_property
    def _palette(self) -> list[RGB]:
        # An even number of steps, so that zero on a signed scale is exactly the middle.
        steps = (step / 256 for step in range(257))
        return [ramp_color(step, self.limits.depth, signed=self.signed) for step in steps]

    def _shade(self, fraction: float) -> RGB:
        return self._palette[round(fraction * 256)]

    def cell(self, fraction: float, width: int, text: str = "") -> Span:
        """Return a visible cell, with or without a number in its middle."""
        depth = self.limits.depth
        if depth != "none":
            back = self._shade(fraction)
            return text.center(width), inked(back, depth) if text else painted(None, back, depth)
        fill = self._fill(fraction, width, sign=self.signed and not text)
        start = (width - len(text)) // 2
        return plain(fill[:start] + text + fill[start + len(text) :])

    def hidden(self, width: int) -> Span:
        """Return a hidden cell."""
        mark = "·" if self.limits.unicode else "/"
        # In a wide cell, one mark in the middle is enough.
        text = mark.center(width) if width > 2 else mark * width
        return (
            plain(text) if self.limits.depth == "none" else (text, hidden_shade(self.limits.depth))
        )

    def _fill(self, fraction: float, width: int, *, sign: bool) -> str:
        """Return a cell without colour: shades, behind a sign unless a number shows it."""
        shades = " ░▒▓█" if self.limits.unicode else _ASCII_SHADES
        strength = abs(2 * fraction - 1) if self.signed else fraction
        shade = shades[round(strength * (len(shades) - 1))]
        if not sign or shade == " ":
            return shade * width
        return ("+" if fraction > 0.5 else "-") + shade * (width - 1)

    def rows(self, picture: Picture, panel: Panel, form: Form) -> list[Line]:
        """Return the lines of a panel."""
        places = fractions(picture, panel.values).astype(object)
        places[panel.hidden] = None
        rows: list[list[float | None]] = places.tolist()
        if form.halves:
            blank: list[float | None] = []
            return [
                [self._half(*cells) for cells in zip_longest(upper, lower)]
                for upper, lower in zip_longest(rows[::2], rows[1::2], fillvalue=blank)
            ]
        texts = picture.texts(panel) if form.numbers else [[""] * len(row) for row in rows]
        return [
            [
                self.hidden(form.width) if place is None else self.cell(place, form.width, text)
                for place, text in zip(*row, strict=True)
            ]
            for row in zip(rows, texts, strict=True)
        ]

    def _half(self, up: float | None, down: float | None) -> Span:
        """Return two cells as a block: its ink is one of them, its background the other."""
        if up is None and down is None:
            return self.hidden(1)
        above, below = (None if place is None else self._shade(place) for place in (up, down))
        if above is None:
            return _LOWER, painted(below, None, self.limits.depth)
        return _UPPER, painted(above, below, self.limits.depth)

    def text(self, line: Line) -> str:
        """Return a line as the terminal gets it; colours change only where they must."""
        if self.limits.depth == "none":
            return "".join(span[0] for span in line).rstrip()
        few = self.limits.depth == "256"
        system = ColorSystem.EIGHT_BIT if few else ColorSystem.TRUECOLOR
        parts = (
            style.render("".join(span[0] for span in spans), color_system=system)
            for style, spans in groupby(line, lambda span: span[1])
        )
        return "".join(parts).rstrip(" ")
