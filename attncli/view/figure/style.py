"""How Matplotlib is set while a figure is made, and which fonts draw its texts."""

from __future__ import annotations

import unicodedata
import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.textpath import TextToPath

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_BASE_FAMILY = "DejaVu Sans"
# A font whose glyphs are boxes with the name of a script.
_NO_REAL_FONT = "Last Resort"
# Families whose names hold these words have letters of many scripts.
_MANY_LETTERS = frozenset({"cjk", "emoji", "symbols", "symbols2"})
_REGULAR = 400  # the weight of a regular font
_STYLE: dict[Any, Any] = {
    "axes.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    # Without a fixed salt the ids in an SVG differ from run to run.
    "svg.hashsalt": "attncli",
    # Text in an SVG stays text: it can be found, copied, and shown in the reader's own fonts.
    "svg.fonttype": "none",
}


@contextmanager
def drawing_style(
    families: Sequence[str] = (_BASE_FAMILY,), *, points: float = 9.0, math: bool = False
) -> Iterator[None]:
    """Use our settings instead of the user's, and silence warnings of missing glyphs."""
    defaults: dict[Any, Any] = {
        key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")
    }
    own: dict[Any, Any] = {
        "font.family": list(families),
        "font.size": points,
        "text.parse_math": math,
    }
    with warnings.catch_warnings(), mpl.rc_context({**defaults, **_STYLE, **own}):
        # Older versions also warn of scripts that join their letters.
        for message in (r"Glyph \d+ .* missing from", r"Matplotlib currently does not support"):
            warnings.filterwarnings("ignore", message=message)
        yield


def colormap_names() -> list[str]:
    """Return the names of Matplotlib's colour maps."""
    return list(mpl.colormaps)


def font_families(texts: Iterable[str]) -> list[str]:
    """Return DejaVu Sans, and the installed fonts that have the letters it lacks."""
    missing = _lacking(_BASE_FAMILY, _letters(texts))
    families = [_BASE_FAMILY]
    for family in _by_likelihood(missing) if missing else ():
        left = _lacking(family, missing)
        if left != missing:
            families.append(family)
            missing = left
        if not missing:
            break
    return families


def letters_without_font(texts: Sequence[str]) -> set[str]:
    """Return the letters that no installed font has: PNG and PDF show boxes in their place."""
    missing = _letters(texts)
    for family in font_families(texts):
        missing = _lacking(family, missing)
    return missing


def text_size(text: str, points: float, families: Sequence[str]) -> tuple[float, float]:
    """Return the width and height in inches of a line of text."""
    font = FontProperties(family=list(families), size=points)
    measured: Any = TextToPath()
    width, height, _ = measured.get_text_width_height_descent(text, font, ismath=False)
    return width / 72, height / 72


def _letters(texts: Iterable[str]) -> set[str]:
    return {letter for text in texts for letter in text if letter != "\n"}


def _lacking(family: str, letters: set[str]) -> set[str]:
    if not letters:
        return letters
    font: Any = get_font(findfont(FontProperties(family=[family])))
    return {letter for letter in letters if not font.get_char_index(ord(letter))}


@cache
def _installed() -> frozenset[str]:
    """Return the families that have a regular font with outlines."""
    return frozenset(
        entry.name
        for entry in fontManager.ttflist
        if entry.style == "normal"
        and entry.weight == _REGULAR
        and not entry.name.startswith(_NO_REAL_FONT)
    )


def _by_likelihood(letters: Iterable[str]) -> list[str]:
    """Return all installed families, first those named after the script of a letter."""
    # The Unicode name of a letter begins with its script: DEVANAGARI LETTER NA.
    scripts = {unicodedata.name(letter, "").partition(" ")[0].lower() for letter in letters}
    likely = scripts | _MANY_LETTERS

    def rank(family: str) -> tuple[bool, bool, str]:
        words = set(family.lower().split())
        return words.isdisjoint(likely), not family.startswith("Noto Sans"), family

    return sorted(_installed(), key=rank)
