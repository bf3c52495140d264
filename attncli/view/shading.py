"""Weights as Rich colours that the terminal has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style

from attncli.view.color import HIDDEN, blues, blues_256, ink, xterm

if TYPE_CHECKING:
    from attncli.view.color import RGB
    from attncli.view.limits import Depth

__all__ = ["hidden_shade", "rich_blue", "shade"]

# Not Rich's "black" and "white", which the terminal's theme may change.
_INK = {"black": "#000000", "white": "#ffffff"}


def rich_blue(fraction: float, depth: Depth) -> str:
    """Return the blue of a weight as Rich names colours; `fraction` is its place on the ramp."""
    return _name(_rgb(fraction, depth), depth)


def shade(fraction: float, depth: Depth) -> Style:
    """Return the background of a share of the largest weight that is shown, and its ink."""
    rgb = _rgb(fraction, depth)
    return Style(color=_INK[ink(rgb)], bgcolor=_name(rgb, depth))


def hidden_shade(depth: Depth) -> Style:
    """Return the grey ink of the weight of a hidden key, which has no background of its own."""
    return Style(color=_name(HIDDEN, depth))


def _rgb(fraction: float, depth: Depth) -> RGB:
    # Of few colours, Rich would take the nearest to a pale blue, which is lavender or grey.
    return blues_256(fraction) if depth == "256" else blues(fraction)


def _name(rgb: RGB, depth: Depth) -> str:
    return f"color({xterm(rgb)})" if depth == "256" else "#{:02x}{:02x}{:02x}".format(*rgb)
