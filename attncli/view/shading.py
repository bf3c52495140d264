"""Weights as Rich colours that the terminal has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from rich.style import Style

from attncli.view.color import blues, blues_256, ink, xterm

if TYPE_CHECKING:
    from attncli.view.color import RGB

__all__ = ["Depth", "rich_blue", "shade"]

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


def shade(weight: float, depth: Depth) -> Style:
    """Return the background of a weight, darker blue where it is larger, and its ink.

    Parameters
    ----------
    weight : float
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.
    """
    background = _rgb(weight, depth)
    return Style(color=_INK[ink(background)], bgcolor=_name(background, depth))


def _rgb(fraction: float, depth: Depth) -> RGB:
    # Of few colours, Rich would take the nearest to a pale blue, which is lavender or grey.
    return blues_256(fraction) if depth == "256" else blues(fraction)


def _name(rgb: RGB, depth: Depth) -> str:
    return f"color({xterm(rgb)})" if depth == "256" else "#{:02x}{:02x}{:02x}".format(*rgb)
