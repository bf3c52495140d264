"""Labels around a terminal picture: queries in a gutter on the left, keys above."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.view.labels import clusters, shorten, shorten_all, text_width
from attncli.view.pictures.scale import ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.blocks.cells import Form
    from attncli.view.limits import Limits
    from attncli.view.pictures.picture import Axis

LONGEST_UPRIGHT = 10  # lines of an upright label
# Most columns of a query's name.
_WIDEST = 24
# Terminals disagree about the width of joined emoji; separate ones have a known width.
_JOINERS = str.maketrans("", "", "\u200c\u200d\ufe0e\ufe0f")


def terminal_labels(labels: Sequence[str] | None, limits: Limits) -> tuple[str, ...] | None:
    """Return labels whose width is known and whose characters the terminal has."""
    if labels is None:
        return None
    return tuple(limits.known(label.translate(_JOINERS)) for label in labels)


def cut(text: str, room: int, limits: Limits) -> str:
    """Return a text in at most `room` columns: with its middle cut out if it is too long."""
    return shorten(text, room, ellipsis=limits.known("…"))


def fit_text(text: str, room: int, limits: Limits, *, right: bool = False) -> str:
    """Return a text in exactly `room` columns: cut in the middle, or filled up."""
    short = cut(text, room, limits)
    fill = " " * (room - text_width(short))
    return fill + short if right else short + fill


def gutter_width(queries: Axis, width: int, lines: int) -> int:
    """Return the columns that the names of queries take, with a blank after them."""
    # A line of pooled queries shows an index; a line of half blocks may show a label.
    numbered = queries.labels is None or queries.block > 1 or queries.count > lines
    named = queries.block == 1 and queries.count <= 2 * lines
    numbers = (str(queries.start + queries.count - 1),) if numbered else ()
    names = (*numbers, *((queries.labels or ()) if named else ()))
    return min(max(map(text_width, names)), max(4, width // 4), _WIDEST) + 1


def gutter(queries: Axis, form: Form, room: int, limits: Limits) -> list[str]:
    """Return the name at the left of each line; blank where a line has none."""
    per_line = queries.block * (2 if form.halves else 1)
    lines = -(-queries.count // per_line)
    if queries.labels is not None and queries.block == 1:
        texts = list(queries.labels[::per_line])
    else:
        texts = [""] * lines
        # If each line of pooled queries had an index, indices would grow by irregular steps.
        most = lines if per_line == 1 else max(1, lines // 2)
        named = ticks(queries.count, None, most, start=queries.start)
        for place, text in zip(named.positions, named.texts, strict=True):
            texts[place // per_line] = text
    texts = shorten_all(texts, room - 1, ellipsis=limits.known("…"))
    return [fit_text(text, room - 1, limits, right=True) + " " for text in texts]


def key_header(keys: Axis, form: Form, limits: Limits) -> list[str]:
    """Return the lines above the cells: labels that lie flat or stand upright, or numbers."""
    if keys.labels is None or keys.block > 1 or not has_room(keys.labels, form):
        return [_numbered(keys, form)]
    if max(map(text_width, keys.labels)) < form.width:
        return ["".join(_centered(label, form.width) for label in keys.labels)]
    short = shorten_all(keys.labels, LONGEST_UPRIGHT, ellipsis=limits.known("…"))
    parts = list(map(clusters, short))
    depth = max(map(len, parts))
    upright = [[" "] * (depth - len(part)) + part for part in parts]
    return ["".join(_centered(part[line], form.width) for part in upright) for line in range(depth)]


def has_room(labels: Sequence[str], form: Form) -> bool:
    """Return whether labels can stand upright: letters wider than a cell cannot."""
    return all(text_width(part) <= form.width for label in labels for part in clusters(label))


def _numbered(keys: Axis, form: Form) -> str:
    """Return one line with as many indices of keys as fit, each above its cell."""
    wide = keys.cells * form.width
    longest = len(str(keys.start + keys.count - 1))
    named = ticks(keys.count, None, wide // (longest + 1), start=keys.start)
    line = ""
    for place, text in zip(named.positions, named.texts, strict=True):
        slack = max(0, form.width - len(text)) // 2
        start = place // keys.block * form.width + slack
        # Rounding to whole cells may push one number into the next.
        if (not line or start > len(line)) and start + len(text) <= wide:
            line = line.ljust(start) + text
    return line.ljust(wide)


def _centered(text: str, width: int) -> str:
    spare = width - text_width(text)
    return " " * (spare // 2) + text + " " * (spare - spare // 2)
