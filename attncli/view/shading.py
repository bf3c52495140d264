"""Weights and signed numbers as Rich styles, in the colours that the terminal has."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rich.style import Style

from attncli.view.color import HIDDEN, blues, blues_256, diverging, diverging_256, ink, xterm

if TYPE_CHECKING:
    from attncli.view.color import RGB
    from attncli.view.limits import Depth

# Not Rich's "black" and "white", which the terminal's theme may change.
_INKS: dict[str, RGB] = {"black": (0, 0, 0), "white": (255, 255, 255)}


def ramp_color(fraction: float, depth: Depth, *, signed: bool = False) -> RGB:
    """Return the colour at a place on the ramp of weights or of signed numbers."""
    # With 256 colours, Rich would turn a pale blue into the nearest one: lavender or grey.
    if depth == "256":
        return diverging_256(fraction) if signed else blues_256(fraction)
    return diverging(fraction) if signed else blues(fraction)


@cache
def painted(fore: RGB | None, back: RGB | None, depth: Depth) -> Style:
    """Return an ink on a background; None is the terminal's own."""
    ink_name, name = (color and _name(color, depth) for color in (fore, back))
    return Style(color=ink_name, bgcolor=name)


def inked(back: RGB, depth: Depth) -> Style:
    """Return a background with the ink that can be read on it."""
    return painted(_INKS[ink(back)], back, depth)


def shade(fraction: float, depth: Depth) -> Style:
    """Return the background and ink of a weight, given as a share of the largest one shown."""
    return inked(ramp_color(fraction, depth), depth)


def hidden_shade(depth: Depth) -> Style:
    """Return the grey ink of a hidden key, which has no background of its own."""
    return painted(HIDDEN, None, depth)


def _name(rgb: RGB, depth: Depth) -> str:
    return f"color({xterm(rgb)})" if depth == "256" else "#{:02x}{:02x}{:02x}".format(*rgb)
