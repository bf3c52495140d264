"""Weights as Rich colours that the terminal has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.style import Style

from attncli.view.color import HIDDEN, blues, blues_256, ink, xterm

if TYPE_CHECKING:
    from attncli.view.color import RGB

__all__ = ["Depth", "hidden_shade", "rich_blue", "shade"]

Depth: TypeAlias = Literal["none", "256", "truecolor"]
# Not Rich's "black" and "white", which the terminal's theme may change.
_INK = {"black": "#000000", "white": "#ffffff"}


def rich_blue(fraction: float, depth: Depth) -> str:
    """Return the blue of a weight as Rich names colours.

    Parameters
    ----------
    fraction : float
        Place on the ramp; clipped to 0 … 1.
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.
    """
    return _name(_rgb(fraction, depth), depth)


def shade(fraction: float, depth: Depth) -> Style:
    """Return the background of a weight, darker blue where it is larger, and its ink.

    Parameters
    ----------
    fraction : float
        Of the largest weight that is shown.
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.
    """
    return _on(_rgb(fraction, depth), depth)


def hidden_shade(depth: Depth) -> Style:
    """Return the grey ink of the weight of a hidden key, which has no background of its own."""
    return Style(color=_name(HIDDEN, depth))


def _on(background: RGB, depth: Depth) -> Style:
    return Style(color=_INK[ink(background)], bgcolor=_name(background, depth))


def _rgb(fraction: float, depth: Depth) -> RGB:
    # Of few colours, Rich would take the nearest to a pale blue, which is lavender or grey.
    return blues_256(fraction) if depth == "256" else blues(fraction)


def _name(rgb: RGB, depth: Depth) -> str:
    return f"color({xterm(rgb)})" if depth == "256" else "#{:02x}{:02x}{:02x}".format(*rgb)
