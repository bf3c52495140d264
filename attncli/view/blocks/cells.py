"""Cells as characters: coloured blocks, or shades if there is no colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from attncli.view.color import (
    HIDDEN,
    RGB,
    blues,
    blues_256,
    diverging,
    diverging_256,
    ink,
    xterm,
)  # fmt: skip
from attncli.view.pictures.scale import fractions

if TYPE_CHECKING:
    from attncli.view.limits import Limits
    from attncli.view.pictures.picture import Panel, Picture

__all__ = ["Form", "Line", "Painter", "plain"]

# A piece of text with its ink and its background; None is the terminal's own.
Span: TypeAlias = tuple[str, RGB | None, RGB | None]
Line: TypeAlias = list[Span]

_INKS: dict[str, RGB] = {"black": (0, 0, 0), "white": (255, 255, 255)}
# Without signs, points and digits, which would seem to belong to a number beside them.
_ASCII_SHADES = " ':;=*%#@"
_UPPER, _LOWER = "▀", "▄"
_RESET = "\x1b[0m"


@dataclass(frozen=True)
class Form:
    """What one cell looks like."""

    width: int  # columns of the terminal
    halves: bool = False  # a line holds two rows of cells, as upper and lower halves of a block
    numbers: bool = False  # there is a number in the cell


def plain(text: str) -> Span:
    """Return a text in the terminal's own colours."""
    return text, None, None


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
        few = self.limits.depth == "256"
        ramps = (diverging_256, blues_256) if few else (diverging, blues)
        ramp = ramps[0 if self.signed else 1]
        # An even number of steps, so that zero on a signed scale is exactly the middle.
        return [ramp(step / 256) for step in range(257)]

    def _shade(self, fraction: float) -> RGB:
        return self._palette[round(fraction * 256)]

    def cell(self, fraction: float, width: int, text: str = "") -> Span:
        """Return a visible cell, with or without a number in its middle."""
        if self.limits.depth != "none":
            background = self._shade(fraction)
            return text.center(width), _INKS[ink(background)] if text else None, background
        fill = self._fill(fraction, width, sign=self.signed and not text)
        start = (width - len(text)) // 2
        return plain(fill[:start] + text + fill[start + len(text) :])

    def hidden(self, width: int) -> Span:
        """Return a hidden cell."""
        mark = "·" if self.limits.unicode else "/"
        # In the middle of a wide cell one is enough, and recedes.
        text = mark.center(width) if width > 2 else mark * width
        return text, None if self.limits.depth == "none" else HIDDEN, None

    def _fill(self, fraction: float, width: int, *, sign: bool) -> str:
        """Return a cell without colour: shades, after a sign unless a number shows it."""
        shades = " ░▒▓█" if self.limits.unicode else _ASCII_SHADES
        strength = abs(2 * fraction - 1) if self.signed else fraction
        shade = shades[round(strength * (len(shades) - 1))]
        if not sign or shade == " ":
            return shade * width
        return ("+" if fraction > 0.5 else "-") + shade * (width - 1)

    def rows(self, picture: Picture, panel: Panel, form: Form) -> list[Line]:
        """Return the lines of a panel."""
        rows: list[list[float | None]] = [
            [None if hidden else place for place, hidden in zip(*row, strict=True)]
            for row in zip(
                fractions(picture, panel.values).tolist(), panel.hidden.tolist(), strict=True
            )
        ]
        if form.halves:
            blank: list[float | None] = []
            return [
                [self._half(*cells) for cells in zip_longest(upper, lower)]
                for upper, lower in zip_longest(rows[::2], rows[1::2], fillvalue=blank)
            ]
        texts = [[""] * len(row) for row in rows]
        if form.numbers:
            texts = picture.texts(panel)
        return [
            [
                self.hidden(form.width) if place is None else self.cell(place, form.width, text)
                for place, text in zip(*row, strict=True)
            ]
            for row in zip(rows, texts, strict=True)
        ]

    def _half(self, up: float | None, down: float | None) -> Span:
        """Return two cells as a block: its ink is one of them, its background the other."""
        if up is None:
            return self.hidden(1) if down is None else (_LOWER, self._shade(down), None)
        return _UPPER, self._shade(up), None if down is None else self._shade(down)

    def text(self, line: Line) -> str:
        """Return a line as the terminal gets it; colours change only where they must."""
        if self.limits.depth == "none":
            return "".join(span[0] for span in line).rstrip()
        parts: list[str] = []
        now: tuple[RGB | None, RGB | None] = (None, None)
        for text, fore, back in [*line, plain("")]:
            if (fore, back) != now:
                parts.append(self._codes(fore, back))
                now = (fore, back)
            parts.append(text)
        return "".join(parts).rstrip(" ")

    def _codes(self, fore: RGB | None, back: RGB | None) -> str:
        """Return the escape sequence (ECMA-48, SGR) that sets exactly these colours."""
        codes = [
            f"{layer};{self._code(color)}" for layer, color in ((38, fore), (48, back)) if color
        ]
        return _RESET + (f"\x1b[{';'.join(codes)}m" if codes else "")

    def _code(self, color: RGB) -> str:
        return (
            f"5;{xterm(color)}" if self.limits.depth == "256" else "2;" + ";".join(map(str, color))
        )
