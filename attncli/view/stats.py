"""Figures of heads and the strongest keys of queries, as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.text import Text

from attncli.errors.text import label_text
from attncli.view.columns import GAP, Column, stacked
from attncli.view.labels import shorten, text_width
from attncli.view.notation import Notation
from attncli.view.shading import shade
from attncli.view.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from attncli.summaries.stats import HeadStats
    from attncli.summaries.strongest import TopKeys
    from attncli.view.shading import Depth

__all__ = ["stats_list", "stats_parts", "top_list", "top_parts"]

_LABEL_WIDTH = 24
_SHORTEST_LABEL = 6
# If labels would get shorter than this, ranks are put below each other.
_READABLE_LABEL = 12
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


def stats_parts(
    stats: Sequence[HeadStats],
    *,
    width: int | None = None,
    digits: int = 4,
    unicode: bool = True,
    markdown: bool = False,
) -> Iterator[Text]:
    """Yield the lines of a table with a line for each head; of several tables if it is too wide.

    Parameters
    ----------
    stats : sequence of HeadStats
        At least one.
    width : int, optional
        Columns of the terminal; None if there is no edge.
    digits : int
        Digits after the point.
    unicode : bool
        Whether the terminal has more than ASCII.
    markdown : bool
        The table is in Markdown.
    """
    notation = Notation(digits, unicode)
    places = [
        _whole_numbers(axis, [getattr(head, axis) for head in stats])
        for axis in ("batch", "head")
        if getattr(stats[0], axis) is not None
    ]
    counts = []
    if any(head.left_out for head in stats):
        counts.append(_whole_numbers("queries", [head.queries for head in stats]))
        counts.append(_whole_numbers("left out", [head.left_out for head in stats]))
    figures = [
        Column(heading, _figures([getattr(head, name) for head in stats], notation))
        for name, heading in _FIGURES.items()
    ]
    yield from stacked(places, counts + figures, width, unicode=unicode, markdown=markdown)
    for line in wrapped(_LEGEND.split(" "), width or text_width(_LEGEND)):
        yield Text(line, style="italic dim")


def top_parts(
    rows: Iterable[TopKeys],
    *,
    width: int | None = None,
    digits: int = 4,
    unicode: bool = True,
    depth: Depth = "truecolor",
    markdown: bool = False,
) -> Iterator[Text]:
    """Yield the lines of a table of the strongest keys, with a line for each query.

    Parameters
    ----------
    rows : iterable of TopKeys
    width, digits, unicode, markdown
        As in `stats_parts`.
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.
    """
    notation = Notation(digits, unicode)
    rows = list(rows)
    if not rows:
        return
    places = [
        _whole_numbers(axis, [getattr(row, axis) for row in rows])
        for axis in ("batch", "head")
        if getattr(rows[0], axis) is not None
    ]
    ranks = max(1, *(len(row.keys) for row in rows))
    taken = sum(place.width + len(GAP) for place in places)
    room = _label_room(width, taken, ranks, digits)
    names = [_name("query", row.query, row.label, room, notation) for row in rows]
    places.append(Column("query", names, left=True))
    weights = [key.weight for row in rows for key in row.keys]
    texts = map(notation.cell, weights)
    largest = max(weights, default=1.0) or 1.0
    written = {
        weight: Text(text, style=shade(weight / largest, depth))
        for weight, text in zip(weights, texts, strict=True)
    }
    ranked = [
        column
        for rank in range(ranks)
        for column in _ranked(rows, rank, room, notation, written, several=ranks > 1)
    ]
    yield from stacked(places, ranked, width, unicode=unicode, together=2, markdown=markdown)


def stats_list(stats: Iterable[HeadStats]) -> list[dict[str, object]]:
    """Return the figures as plain mappings, for JSON; None if no query sees a key."""
    return [asdict(head) for head in stats]


def top_list(rows: Iterable[TopKeys]) -> list[dict[str, object]]:
    """Return the strongest keys as plain mappings, for JSON."""
    return [asdict(row) for row in rows]


def _whole_numbers(heading: str, numbers: Sequence[int]) -> Column:
    return Column(heading, [Text(str(number)) for number in numbers])


def _figures(numbers: Sequence[float | None], notation: Notation) -> list[Text]:
    return [Text("-" if number is None else notation.cell(number)) for number in numbers]


def _name(kind: str, index: int, label: str | None, room: int, notation: Notation) -> Text:
    text = f"{index}" if label is None else f"{index} {notation.known(label_text(label))}"
    return Text(shorten(text, max(room, len(kind)), ellipsis=notation.known("…")))


def _label_room(width: int | None, taken: int, ranks: int, digits: int) -> int:
    """Return the columns for each label, with as many ranks side by side as leave it readable."""
    if width is None:
        return _LABEL_WIDTH
    room = 0
    for together in range(ranks, 0, -1):
        numbers = together * (digits + 2 + 2 * len(GAP))
        room = (width - taken - numbers) // (together + 1)
        if room >= _READABLE_LABEL:
            break
    return max(_SHORTEST_LABEL, min(_LABEL_WIDTH, room))


def _ranked(
    rows: Sequence[TopKeys],
    rank: int,
    room: int,
    notation: Notation,
    written: Mapping[float, Text],
    *,
    several: bool,
) -> tuple[Column, Column]:
    """Return the columns of the keys of one rank and their weights; blank if there is none."""
    names, weights = [], []
    for row in rows:
        if rank >= len(row.keys):
            names.append(Text("sees no key" if not row.keys and rank == 0 else "", style="dim"))
            names[-1].truncate(max(room, len("key")))
            weights.append(Text(""))
            continue
        key = row.keys[rank]
        names.append(_name("key", key.index, key.label, room, notation))
        weights.append(written[key.weight])
    heading = f"{_ordinal(rank + 1)} key" if several else "key"
    return Column(heading, names, left=True), Column("weight", weights)


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else endings.get(number % 10, 'th')}"
