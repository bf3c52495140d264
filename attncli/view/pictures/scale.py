"""The ends of a colour scale, the places of values on it, ticks, and the text of a cell."""

from __future__ import annotations

from itertools import pairwise
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.pictures.picture import Panel, Picture

# Numbers on a colour bar touch if they are closer than this share of its length.
_BESIDE = 0.06
# Weights six decades below the largest count as nothing on a log scale.
_LOG_SPAN = 1e-6
# On a scale of fewer decades, powers of ten alone would be one or two ticks.
_FEW_DECADES = 2
# The least end of a scale; fractions of a smaller one would underflow.
_LEAST_TOP = 1e-300
# A score below _FILLED that is _FAR times as low as all others hides its key: a large negative
# number was added to it, as −10,000 or −1e9.
_FILLED, _FAR = -1000.0, 100.0
# For `ceiling`: a cell is pale if its weight is less than this share of the largest weight.
_PALE = 1 / 20
# The scale ends early if fewer cells than the first are not pale, and pale ones hold more than
# the last of all weight; in pooled maps _FEW_POOLED stands for _FEW.
_FEW, _FEW_POOLED, _MUCH = 0.05, 0.5, 0.1
_SOME, _MOST = 0.25, 1 / 3
# This needs at least _MANY visible cells; the share _SATURATED of them then lies beyond the end.
_MANY, _SATURATED = 1000, 0.02
# A column that holds the largest weight of more than _SINK of the rows is a sink; the most sinks.
_SINK, _SINKS = 1 / 4, 4
# Below the first, numbers have decimals; below the second, all digits before the point.
_WITH_DIGITS, _WHOLE = 1e5, 1e7


class Ticks(NamedTuple):
    """Which places of an axis are named, and how."""

    positions: tuple[int, ...]  # counted from the first one shown
    texts: tuple[str, ...]
    step: int  # one place in this many is named


def ticks(count: int, labels: Sequence[str] | None, room: int, *, start: int = 0) -> Ticks:
    """Choose at most `room` places of an axis to name: every n-th label, or round indices."""
    step, first = max(1, ceil(count / max(1, room))), 0
    if labels is None:
        power = 10 ** (len(str(step)) - 1)
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step)
        # A crop shorter than a step may miss every multiple of it.
        first = -start % step if -start % step < count else 0
    positions = tuple(range(first, count, step))
    texts = tuple(str(start + i) if labels is None else labels[i] for i in positions)
    return Ticks(positions, texts, step)


def limits(picture: Picture) -> tuple[float, float]:
    """Return the ends of the colour scale of all panels; it is symmetric for signed values."""
    look, panels = picture.look, picture.panels
    cells = np.concatenate([panel.values[~panel.hidden] for panel in panels])
    most, end = float(cells.max(initial=0)), look.vmax
    if end is None and look.signed:
        scores = look.what == "scores"
        end = max(most, -(_least_of_seen(cells, most) if scores else float(cells.min(initial=0))))
    elif end is None:
        end = most if look.log else ceiling(panels, pooled=picture.pooled)
    top = end if end >= _LEAST_TOP else 1.0
    if look.signed:
        return -top, top
    return _log_bottom(cells, top) if look.log else 0.0, top


def _least_of_seen(scores: npt.NDArray[Any], most: float) -> float:
    """Return the least score that no large negative number hides."""
    seen = scores[scores > _FILLED]
    least = float(np.min(seen, initial=min(most, 0.0)))
    filled = scores[scores <= _FILLED]
    far = filled.size and float(np.max(filled)) < -_FAR * max(abs(least), abs(most))
    return least if far and seen.size else float(np.min(scores, initial=0.0))


def _log_bottom(cells: npt.NDArray[Any], top: float) -> float:
    least = float(np.min(cells[cells > 0], initial=top))
    # Equal ends would be a scale of no length.
    return max(min(least, top / 10), top * _LOG_SPAN)


def ceiling(panels: Sequence[Panel], *, pooled: bool = False) -> float:
    """Return the weight that gets the darkest blue: the largest, unless nearly all would be white.

    That happens in a long causal map, whose first rows have weights near 1. There the scale ends at
    the weight that 1 cell in 50 exceeds, but not below the largest weight of half of the rows.
    """
    seen = np.concatenate([panel.values[panel.values > 0] for panel in panels])
    largest = float(seen.max(initial=0))
    if not seen.size or (seen.size < _MANY and not pooled):
        return largest
    # Shares of the largest cannot overflow when they are added.
    shares = np.asarray(seen / largest, dtype=np.float64)
    pale = shares < _PALE
    coloured, faint = 1 - pale.mean(), shares[pale].sum() / shares.sum()
    few = _FEW_POOLED if pooled else _FEW
    if not ((coloured < few and faint > _MUCH) or (coloured < _SOME and faint > _MOST)):
        return largest
    end = largest * float(np.quantile(shares, 1 - _SATURATED))
    strongest = np.concatenate([_strongest(panel.values) for panel in panels])
    end = max(end, float(np.median(strongest))) if strongest.size else end
    # Two digits, rounded up.
    unit = 10.0 ** (floor(log10(end)) - 1)
    return min(largest, float(f"{ceil(end / unit - 1e-6) * unit:.6g}"))


def _strongest(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the largest weight of each row, without the columns that many rows favour: sinks."""
    rest = weights.copy()
    for _ in range(_SINKS):
        rows = rest.max(axis=1) > 0
        favoured = np.bincount(rest[rows].argmax(axis=1), minlength=rest.shape[1])
        sinks = favoured > max(1, _SINK * len(rest))
        if not sinks.any():
            break
        rest[:, sinks] = 0
    largest = rest.max(axis=1)
    return np.asarray(largest[largest > 0])


def fractions(picture: Picture, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the place of each value on the colour scale: 0 at `vmin` or below, 1 at `vmax`."""
    clipped = np.clip(np.asarray(values, dtype=np.float64), picture.vmin, picture.vmax)
    if picture.look.log:
        span = log10(picture.vmax) - log10(picture.vmin)
        return np.asarray((np.log10(clipped) - log10(picture.vmin)) / span)
    share = clipped / picture.vmax
    # vmax - vmin overflows for scores near the end of float64; this does not.
    return np.asarray(0.5 + 0.5 * share if picture.look.signed else share)


def scale_ticks(picture: Picture, beside: float = 0.0) -> list[tuple[float, str]]:
    """Return places (as `fractions`) and texts for a colour bar, from bottom to top.

    `beside` is the share of the scale that a text takes. An end has ≥ or ≤ if cells lie beyond it.
    """
    values = _log_values(picture) if picture.look.log else _linear_values(picture)
    below, above = picture.saturated
    places = [float(fractions(picture, value)) for value in values]
    kept = _apart(places, values.index(0) if 0 in values else 0, beside)
    inside = [(places[i], number_text(values[i])) for i in kept]
    low = ("≤ " if below else "") + number_text(picture.vmin)
    high = ("≥ " if above else "") + number_text(picture.vmax)
    return [(0.0, low), *inside, (1.0, high)]


def _apart(places: list[float], zero: int, beside: float) -> list[int]:
    """Return the places that stand away from the ends and from each other."""
    near = max(_BESIDE, beside)
    kept: list[int] = []
    for every in range(1, len(places) + 1):
        some = range(zero % every, len(places), every)
        kept = [i for i in some if near < places[i] < 1 - near]
        if all(places[right] - places[left] >= beside for left, right in pairwise(kept)):
            break
    return kept


def _linear_values(picture: Picture) -> list[float]:
    """Return multiples of a round step: three to six from 0 up, mirrored where signed."""
    wanted = 3 if picture.look.signed else 6
    exponent = floor(log10(picture.vmax))
    # One power of ten lower and multiplied up, so that 0.3 is not 0.30000000000000004.
    for digit in (2, 5, 10, 20, 50):
        count = floor(picture.vmax / 10.0**exponent * 10 / digit * (1 + 1e-12))
        if count <= wanted:
            break
    steps = range(-count if picture.look.signed else 0, count + 1)
    return [float(f"{index * digit}e{exponent - 1}") for index in steps]


def _log_values(picture: Picture) -> list[float]:
    """Return the powers of ten within the scale, and multiples of them if there are few."""
    decades = log10(picture.vmax) - log10(picture.vmin)
    return _multiples(picture, (1, 2, 5) if decades < _FEW_DECADES else (1,))


def minor_ticks(picture: Picture) -> list[float]:
    """Return the places between the numbers of a logarithmic scale; none of a linear one."""
    values = _multiples(picture, range(1, 10)) if picture.look.log else []
    return [float(fractions(picture, value)) for value in values]


def _multiples(picture: Picture, digits: Sequence[int]) -> list[float]:
    exponents = range(floor(log10(picture.vmin)), ceil(log10(picture.vmax)) + 1)
    values = [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
    return [value for value in values if picture.vmin <= value <= picture.vmax]


def number_text(value: float, form: str = ".3g") -> str:
    """Return a number, of three significant digits unless a form is given; a zero has no sign."""
    return f"{value:z{form}}".rstrip(".").replace(".e", "e")


def cell_texts(panel: Panel, digits: int, *, significant: bool = False) -> list[list[str]]:
    """Return the number of each cell as text; empty if the cell is hidden."""

    def form(value: float) -> str:
        if significant:
            return f"#.{max(1, digits)}g" if value else ".0f"
        # A few digits of a huge number say more than all of them.
        if abs(value) < _WITH_DIGITS:
            return f".{digits}f"
        return ".0f" if abs(value) < _WHOLE else ".2g"

    rows = zip(panel.values.tolist(), panel.hidden.tolist(), strict=True)
    return [
        [
            "" if hidden else number_text(value, form(value))
            for value, hidden in zip(*row, strict=True)
        ]
        for row in rows
    ]
