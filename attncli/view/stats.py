"""Statistics of heads and the strongest keys of queries, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors.text import label_text
from attncli.view.labels import shorten
from attncli.view.shading import shade
from attncli.view.tables import GAP, Column, remark, stacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.text import Text

    from attncli.summaries.stats import HeadStats
    from attncli.summaries.strongest import TopKeys
    from attncli.view.limits import Limits

# Columns of a label: the most, the fewest before ranks are put below each other, the fewest.
_LABEL_WIDTH, _READABLE_LABEL, _SHORTEST_LABEL = 24, 12, 6
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
    """Yield a table with a line for each head, or several tables if it is too wide."""

    def cell(number: float | None) -> str:
        return "-" if number is None else limits.cell(number)

    columns = []
    if any(head.left_out for head in stats):
        columns.append(Column("queries", [str(head.queries) for head in stats]))
        columns.append(Column("left out", [str(head.left_out) for head in stats]))
    for name, told in _FIGURES.items():
        columns.append(Column(told, [cell(getattr(head, name)) for head in stats]))
    yield from stacked(_places(stats), columns, limits)
    yield remark(_LEGEND, limits)


def _places(parts: Sequence[HeadStats] | Sequence[TopKeys]) -> list[Column]:
    return [
        Column(axis, [str(getattr(part, axis)) for part in parts])
        for axis in ("batch", "head")
        if getattr(parts[0], axis) is not None
    ]


def top_parts(rows: Sequence[TopKeys], limits: Limits) -> Iterator[Text]:
    """Yield a table of the strongest keys, with a line for each query."""
    if not rows:
        return
    places = _places(rows)
    ranks = max(1, *(len(row.keys) for row in rows))
    room = _label_room(limits, sum(place.width + GAP for place in places), ranks)
    names = [_name("query", row.query, row.label, room, limits) for row in rows]
    places.append(Column("query", names, left=True))
    largest = max((key.weight for row in rows for key in row.keys), default=1.0) or 1.0
    ranked: list[Column] = []
    for rank in range(ranks):
        told = f"{_ordinal(rank + 1)} key" if ranks > 1 else "key"
        keys = [row.keys[rank] if rank < len(row.keys) else None for row in rows]
        names = [_name("key", key.index, key.label, room, limits) if key else "" for key in keys]
        if rank == 0:
            names = [name or "sees no key"[: max(room, len("key"))] for name in names]
        weights = [limits.cell(key.weight) if key else "" for key in keys]
        shown = [key if limits.depth != "none" else None for key in keys]
        styles = [shade(key.weight / largest, limits.depth) if key else "" for key in shown]
        ranked += [Column(told, names, left=True), Column("weight", weights, styles=styles)]
    yield from stacked(places, ranked, limits, together=2)


def _name(kind: str, index: int, label: str | None, room: int, limits: Limits) -> str:
    text = f"{index}" if label is None else f"{index} {limits.known(label_text(label))}"
    return shorten(text, max(room, len(kind)), ellipsis=limits.known("…"))


def _label_room(limits: Limits, taken: int, ranks: int) -> int:
    """Return the columns for each label: it stays readable, even if fewer ranks fit."""
    if limits.width is None:
        return _LABEL_WIDTH
    left, number = limits.width - taken, limits.digits + 2 + 2 * GAP
    rooms = [(left - count * number) // (count + 1) for count in range(ranks, 0, -1)]
    room = next((room for room in rooms if room >= _READABLE_LABEL), rooms[-1])
    return max(_SHORTEST_LABEL, min(_LABEL_WIDTH, room))


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"
