"""Figures of heads and the strongest keys of queries, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors.text import label_text
from attncli.view.labels import shorten
from attncli.view.notation import Notation
from attncli.view.shading import shade
from attncli.view.tables import Column, remark, stacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from attncli.summaries.stats import HeadStats
    from attncli.summaries.strongest import TopKeys
    from attncli.view.tables import Limits

__all__ = ["stats_parts", "top_parts"]

# Columns of a label; if labels would get shorter than the second, ranks are put below each other.
_LABEL_WIDTH, _READABLE_LABEL, _SHORTEST_LABEL, _GAP = 24, 12, 6, 2
_FIGURES = {
    "entropy": "entropy",
    "effective_keys": "eff. keys",
    "largest": "largest",
    "first_key": "first key",
    "diagonal": "diagonal",
    "distance": "distance",
    "negligible": "< 1e-3",
}
_LEGEND = (
    "mean entropy in nats; eff. keys = exp(entropy); largest weight of all; mean weight of the "
    "first key and of the diagonal; mean distance in tokens; share of the weights of visible keys "
    "below 1e-3. Queries that see no key are left out"
)


def stats_parts(stats: Sequence[HeadStats], limits: Limits) -> Iterator[Text]:
    """Yield a table with a line for each head, or several tables if it is too wide.

    Parameters
    ----------
    stats : sequence of HeadStats
        At least one.
    limits : Limits
    """
    notation = Notation(limits.digits, limits.unicode)
    places = _places(stats)
    counts = []
    if any(head.left_out for head in stats):
        counts.append(Column("queries", [str(head.queries) for head in stats]))
        counts.append(Column("left out", [str(head.left_out) for head in stats]))
    figures = [
        Column(told, [_figure(getattr(head, name), notation) for head in stats])
        for name, told in _FIGURES.items()
    ]
    yield from stacked(places, [*counts, *figures], limits)
    yield remark(_LEGEND, limits)


def _figure(number: float | None, notation: Notation) -> str:
    return "-" if number is None else notation.cell(number)


def _places(parts: Sequence[HeadStats] | Sequence[TopKeys]) -> list[Column]:
    return [
        Column(axis, [str(getattr(part, axis)) for part in parts])
        for axis in ("batch", "head")
        if getattr(parts[0], axis) is not None
    ]


def top_parts(rows: Sequence[TopKeys], limits: Limits) -> Iterator[Text]:
    """Yield a table of the strongest keys, with a line for each query.

    Parameters
    ----------
    rows : sequence of TopKeys
    limits : Limits
    """
    if not rows:
        return
    places = _places(rows)
    ranks = max(1, *(len(row.keys) for row in rows))
    room = _label_room(limits, sum(place.width + _GAP for place in places), ranks)
    names = [_name("query", row.query, row.label, room, limits) for row in rows]
    places.append(Column("query", names, left=True))
    largest = max((key.weight for row in rows for key in row.keys), default=1.0) or 1.0
    ranked = [
        column
        for rank in range(ranks)
        for column in _ranked(rows, rank, room, largest, limits, several=ranks > 1)
    ]
    yield from stacked(places, ranked, limits, together=2)


def _name(kind: str, index: int, label: str | None, room: int, limits: Limits) -> str:
    text = f"{index}" if label is None else f"{index} {limits.known(label_text(label))}"
    return shorten(text, max(room, len(kind)), ellipsis=limits.known("…"))


def _label_room(limits: Limits, taken: int, ranks: int) -> int:
    """Return the columns for each label, with as many ranks side by side as leave it readable."""
    if limits.width is None:
        return _LABEL_WIDTH
    room = 0
    for together in range(ranks, 0, -1):
        numbers = together * (limits.digits + 2 + 2 * _GAP)
        room = (limits.width - taken - numbers) // (together + 1)
        if room >= _READABLE_LABEL:
            break
    return max(_SHORTEST_LABEL, min(_LABEL_WIDTH, room))


def _ranked(
    rows: Sequence[TopKeys],
    rank: int,
    room: int,
    largest: float,
    limits: Limits,
    *,
    several: bool,
) -> tuple[Column, Column]:
    """Return the columns of the keys of one rank and their weights; blank if there is none."""
    notation = Notation(limits.digits, limits.unicode)
    names, weights, styles = [], [], []
    for row in rows:
        if rank < len(row.keys):
            key = row.keys[rank]
            names.append(_name("key", key.index, key.label, room, limits))
            weights.append(notation.cell(key.weight))
            depth = limits.depth
            styles.append("" if depth == "none" else shade(key.weight / largest, depth))
        else:
            unseen = not row.keys and rank == 0
            names.append("sees no key"[: max(room, len("key"))] if unseen else "")
            weights.append("")
            styles.append("")
    told = f"{_ordinal(rank + 1)} key" if several else "key"
    return Column(told, names, left=True), Column("weight", weights, styles=styles)


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"
