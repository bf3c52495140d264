"""Cells as characters: coloured blocks, or shades if there is no colour."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from attncli.view.color import (
    HIDDEN,
    RGB,
    blues,
    blues_256,
    diverging,
    diverging_256,
    ink,
    xterm,
)
from attncli.view.pictures.scale import fractions
from attncli.view.signs import known

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from attncli.view.pictures.panel import Panel
    from attncli.view.pictures.picture import Picture

__all__ = ["Color", "Form", "Line", "Painter", "plain"]

Color: TypeAlias = Literal["truecolor", "256", "none"]
# A piece of text with its ink and its background; None is the terminal's own.
Span: TypeAlias = tuple[str, RGB | None, RGB | None]
Line: TypeAlias = list[Span]

_INKS: dict[str, RGB] = {"black": (0, 0, 0), "white": (255, 255, 255)}
_HIDDEN_INK: RGB = (60, 60, 60)
# Without signs, points and digits, which would seem to belong to a number beside them.
_ASCII_SHADES = " ':;=*%#@"
_UPPER_HALF = "▀"
_RESET = "\x1b[0m"


@dataclass(frozen=True)
class Form:
    """What one cell looks like.

    Attributes
    ----------
    width : int
        Columns of the terminal.
    halves : bool
        A line holds two rows of cells, as upper and lower halves of a block.
    digits : int or None
        Digits after the point of the number in the cell; None for no number.
    """

    width: int
    halves: bool = False
    digits: int | None = None


def plain(text: str) -> Span:
    """Return a text in the terminal's own colours."""
    return text, None, None


@dataclass(frozen=True)
class Painter:
    """Turns values into spans, and spans into text, for one kind of terminal.

    Attributes
    ----------
    color : {"truecolor", "256", "none"}
    unicode : bool
        Blocks and shades may be used; ASCII only otherwise.
    signed : bool
        Values have both signs.
    """

    color: Color
    unicode: bool
    signed: bool

    @property
    def shades(self) -> str:
        """Characters from no ink to the most."""
        return " ░▒▓█" if self.unicode else _ASCII_SHADES

    @property
    def hidden_mark(self) -> str:
        """What fills a hidden cell."""
        return "·" if self.unicode else "/"

    @cached_property
    def _palette(self) -> list[RGB]:
        if self.color == "256":
            ramp = diverging_256 if self.signed else blues_256
        else:
            ramp = diverging if self.signed else blues
        # An even number of steps, so that zero on a signed scale is exactly the middle.
        return [ramp(step / 256) for step in range(257)]

    def shade(self, fraction: float) -> RGB:
        """Return the colour at a place of the scale."""
        return self._palette[round(fraction * 256)]

    def cell(self, fraction: float, width: int, text: str = "") -> Span:
        """Return a visible cell, with or without a number in its middle."""
        if self.color != "none":
            background = self.shade(fraction)
            return text.center(width), _INKS[ink(background)] if text else None, background
        return plain(
            _centered(text, self._ink_fill(fraction, width, sign=self.signed and not text))
        )

    def hidden(self, width: int) -> Span:
        """Return a hidden cell."""
        if self.color == "none":
            return plain(self.hidden_mark * width)
        return self.hidden_mark * width, _HIDDEN_INK, HIDDEN

    def _ink_fill(self, fraction: float, width: int, *, sign: bool) -> str:
        """Return a cell without colour: shades, after a sign unless a number shows it."""
        strength = abs(2 * fraction - 1) if self.signed else fraction
        shade = self.shades[round(strength * (len(self.shades) - 1))]
        if not sign or shade == " ":
            return shade * width
        return ("+" if fraction > 0.5 else "-") + shade * (width - 1)

    def rows(self, picture: Picture, panel: Panel, form: Form) -> list[Line]:
        """Return the lines of a panel."""
        places = fractions(picture, panel.values)
        if form.halves:
            return self._halves(places, panel.hidden)
        blank = [[""] * places.shape[1]] * places.shape[0]
        texts = blank if form.digits is None else self._numbers(picture, panel, form.digits)
        return [
            [
                self.hidden(form.width) if hidden else self.cell(place, form.width, text)
                for place, hidden, text in zip(*row, strict=True)
            ]
            for row in zip(places.tolist(), panel.hidden.tolist(), texts, strict=True)
        ]

    def _numbers(self, picture: Picture, panel: Panel, digits: int) -> list[list[str]]:
        texts = picture.texts(panel, digits)
        return [[self.known(text) for text in row] for row in texts]

    def _halves(self, places: npt.NDArray[np.float64], hidden: npt.NDArray[np.bool_]) -> list[Line]:
        """Return lines of half blocks: the ink is the upper cell, the background the lower."""
        uppers, lowers = zip(places[::2], hidden[::2], strict=True), _with_blank(places, hidden)
        return [
            [
                self._half(*cell)
                for cell in zip(up.tolist(), up_hidden.tolist(), down, down_hidden, strict=True)
            ]
            for (up, up_hidden), (down, down_hidden) in zip(uppers, lowers, strict=True)
        ]

    def _half(self, up: float, up_hidden: bool, down: float | None, down_hidden: bool) -> Span:  # noqa: FBT001
        if up_hidden and down_hidden:
            return self.hidden(1)
        below = None if down is None else HIDDEN if down_hidden else self.shade(down)
        return _UPPER_HALF, HIDDEN if up_hidden else self.shade(up), below

    def known(self, text: str) -> str:
        """Return a text in characters that this terminal has."""
        return known(text, unicode=self.unicode)

    def text(self, line: Line) -> str:
        """Return a line as the terminal gets it; colours change only where they must."""
        if self.color == "none":
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
        return f"5;{xterm(color)}" if self.color == "256" else "2;" + ";".join(map(str, color))


def _centered(text: str, fill: str) -> str:
    """Put a text into the middle of a filling that is as wide as the cell."""
    start = (len(fill) - len(text)) // 2
    return fill[:start] + text + fill[start + len(text) :]


def _with_blank(
    places: npt.NDArray[np.float64], hidden: npt.NDArray[np.bool_]
) -> list[tuple[list[float] | list[None], list[bool]]]:
    """Return the lower rows of each pair; a last row without a partner gets a blank one."""
    pairs: list[tuple[list[float] | list[None], list[bool]]] = list(
        zip(places[1::2].tolist(), hidden[1::2].tolist(), strict=True)
    )
    if len(places) % 2:
        pairs.append(([None] * places.shape[1], [False] * places.shape[1]))
    return pairs
