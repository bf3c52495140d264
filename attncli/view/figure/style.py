"""How matplotlib is set while a figure is made, whatever the user's own settings are."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from attncli.view.pictures.picture import Picture

__all__ = ["boxed_texts", "drawing_style", "picture_families", "text_measure"]

_BASE_FAMILY = "DejaVu Sans"
# Fonts with outlines for what DejaVu lacks, on Linux, macOS and Windows.
_FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "PingFang SC",
    "Hiragino Sans GB",
    "Hiragino Sans",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Noto Emoji",
    "Symbola",
    "Segoe UI Emoji",
    "Segoe UI Symbol",
)
_STYLE: dict[Any, Any] = {
    "font.family": [_BASE_FAMILY],
    "font.size": 9.0,
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    # Labels are text: "$x$" and "_a^b" are not mathematics.
    "text.parse_math": False,
    # Without a fixed salt the ids in an SVG differ from run to run.
    "svg.hashsalt": "attncli",
    # Text stays text: it can be found, copied, and shown in the reader's own fonts.
    "svg.fonttype": "none",
}


@contextmanager
def drawing_style() -> Iterator[None]:
    """Use attncli's settings, and silence warnings of glyphs that no font has."""
    defaults: dict[Any, Any] = {
        k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")
    }
    with warnings.catch_warnings(), mpl.rc_context({**defaults, **_STYLE}):
        # Older matplotlib warns with the second of scripts that join their letters.
        for message in (r"Glyph \d+ .* missing from", r"Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message=message)
        yield


@cache
def _characters_of(family: str) -> frozenset[int]:
    """Return the code points that a font family has glyphs for."""
    return frozenset(get_font(findfont(family)).get_charmap())


def _families(texts: Iterable[str]) -> list[str]:
    """Return the fonts that draw these texts: DejaVu, and installed ones for the rest."""
    missing = _code_points(texts) - _characters_of(_BASE_FAMILY)
    chosen = [_BASE_FAMILY]
    installed = set(fontManager.get_font_names()) if missing else set()
    for family in _FALLBACKS:
        if family in installed and missing & _characters_of(family):
            chosen.append(family)
            missing -= _characters_of(family)
    return chosen


def boxed_texts(picture: Picture) -> list[str]:
    """Return the labels and titles with characters that no known font here can draw.

    These become boxes in PNG and PDF; an SVG keeps them as text.
    """
    texts = _texts(picture)
    points = _code_points(texts)
    for family in _families(texts):
        points -= _characters_of(family)
    return [text for text in dict.fromkeys(texts) if _code_points([text]) & points]


def _texts(picture: Picture) -> list[str]:
    titles = [picture.title, *(panel.title for panel in picture.panels)]
    return [
        *(text for text in titles if text),
        *picture.scale_names[:1],
        *(picture.query_labels or ()),
        *(picture.key_labels or ()),
    ]


def picture_families(picture: Picture) -> list[str]:
    """Return the fonts that draw the labels and titles of a picture."""
    return _families(_texts(picture))


def _code_points(texts: Iterable[str]) -> set[int]:
    return {ord(character) for text in texts for character in text if character != "\n"}


def text_measure(font_families: list[str]) -> Callable[[str, float], tuple[float, float]]:
    """Return a function of text and size in points that gives width and height in inches."""
    dpi = 144
    # Its constructor has no types.
    make: Any = RendererAgg
    renderer = make(1, 1, dpi)

    def measure(text: str, size: float) -> tuple[float, float]:
        font = FontProperties(family=font_families, size=size)
        width, height, _ = renderer.get_text_width_height_descent(text, font, ismath=False)
        return width / dpi, height / dpi

    return measure
