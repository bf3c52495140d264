"""Colours of weights and the ink that can be read on them, without imports that take time."""

from __future__ import annotations

from functools import cache, partial
from typing import Literal, TypeAlias

# Red, green and blue, 0 … 255 (sRGB).
RGB: TypeAlias = tuple[int, int, int]

# Neutral and of medium lightness: neither ramp below comes near it.
HIDDEN: RGB = (128, 128, 128)


def _points(codes: str) -> tuple[RGB, ...]:
    return tuple((code[0], code[1], code[2]) for code in map(bytes.fromhex, codes.split()))


# ColorBrewer's nine-class Blues and eleven-class RdBu (Harrower & Brewer 2003),
# the control points that matplotlib's maps of these names interpolate too.
_BLUES = _points("f7fbff deebf7 c6dbef 9ecae1 6baed6 4292c6 2171b5 08519c 08306b")
_RED_BLUE = _points("67001f b2182b d6604d f4a582 fddbc7 f7f7f7 d1e5f0 92c5de 4393c3 2166ac 053061")
_CUBE = (0, 95, 135, 175, 215, 255)
# The nearest of the 240 fixed colours to a pale blue is mint, lavender or grey, so these are chosen
# by eye: only blues, each darker than the one before.
_BLUES_256 = (231, 153, 111, 75, 33, 26, 25, 18, 17)
_RED_BLUE_256 = (52, 88, 124, 167, 216, 224, 255, 153, 111, 75, 26, 18, 17)


def _between(points: tuple[RGB, ...], fraction: float) -> RGB:
    # NaN gets the colour of 0.
    place = max(0.0, min(1.0, fraction)) * (len(points) - 1) if fraction == fraction else 0.0  # noqa: PLR0124
    low = min(int(place), len(points) - 2)
    part = place - low
    red, green, blue = (
        round(a + (b - a) * part) for a, b in zip(points[low], points[low + 1], strict=True)
    )
    return red, green, blue


def _step(codes: tuple[int, ...], fraction: float) -> RGB:
    return _fixed(codes[round(max(0.0, min(1.0, fraction)) * (len(codes) - 1))])


def _fixed(code: int) -> RGB:
    """Return the colour of a code 16 … 255: a cube of 216 colours, and 24 greys."""
    if code >= 232:
        shade = 8 + 10 * (code - 232)
        return shade, shade, shade
    return _CUBE[(code - 16) // 36], _CUBE[(code - 16) // 6 % 6], _CUBE[(code - 16) % 6]


# The shade of a weight, light blue for 0, dark blue for 1; the second is for 256 colours.
blues, blues_256 = partial(_between, _BLUES), partial(_step, _BLUES_256)
# The shade of a signed number: red below, white at 0.5, blue above.
diverging, diverging_256 = partial(_between, _RED_BLUE), partial(_step, _RED_BLUE_256)


@cache
def xterm(rgb: RGB) -> int:
    """Return the code of one of the fixed colours; users choose the first sixteen themselves."""
    return next(code for code in range(16, 256) if _fixed(code) == rgb)


def _luminance(rgb: RGB) -> float:
    shares = [channel / 255 for channel in rgb]
    red, green, blue = (
        share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink(rgb: RGB) -> Literal["black", "white"]:
    """Return the ink with the better contrast on a background, by WCAG 2.2."""
    light = _luminance(rgb) + 0.05
    return "black" if light / 0.05 >= 1.05 / light else "white"
