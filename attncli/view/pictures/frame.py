"""Which part of the maps a picture shows, and how its panels are made of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attncli.errors.text import places, whole_number
from attncli.numerics.indices import EVERYTHING, Picked, range_of
from attncli.problem.labels import named_index
from attncli.view.pictures.picture import Picture, crop_words, make_picture
from attncli.view.pictures.pooling import Pooler, block_size
from attncli.view.pictures.sizes import cell_limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from attncli.view.pictures.panel import Panel

__all__ = ["Frame", "Strip", "Wish", "chosen", "grouped", "heads_are_rows", "heads_as_rows"]

# The first row, the values (l, s), and which of them are hidden.
Strip: TypeAlias = "tuple[int, npt.NDArray[Any], npt.NDArray[np.bool_] | None]"
# The batch entry and head of a map, and its rows.
Map: TypeAlias = "tuple[tuple[int, int], Iterable[Strip]]"
Labels: TypeAlias = "tuple[str, ...] | None"
# From the first to the one behind the last.
Span: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True)
class Wish:
    """What the picture should show.

    Attributes
    ----------
    what : {"weights", "scores"}
    rows, columns : str or None
        A range, or the index or label of one, as of ``--rows``; None for all.
    title : str or None
    vmax : float or "auto"
    log : bool
    average : bool
        The mean of the heads in one map.
    picked : Picked
        Which of all batch entries and heads are drawn.
    dpi : float
    size : (float, float) or None
        The most inches of the figure across and up. Both set how many cells there is room for.
    """

    what: Literal["weights", "scores"] = "weights"
    rows: str | None = None
    columns: str | None = None
    title: str | None = None
    vmax: float | Literal["auto"] = "auto"
    log: bool = False
    average: bool = False
    picked: Picked = EVERYTHING
    dpi: float = 150
    size: tuple[float, float] | None = None


@dataclass(frozen=True)
class Frame:
    """What part of the maps is shown, and how many cells there is room for.

    Of one query, the maps of several heads are one panel, whose rows are the heads.

    Attributes
    ----------
    wish : Wish
    axes : str
        Those that have a name in titles, of ``b`` and ``h``.
    counts : (int, int)
        Batch entries, and maps of each.
    whole : (int, int)
        Queries and keys of the whole maps.
    rows, columns : (start, stop)
        Those that are shown.
    query_labels, key_labels : tuple of str or None
        Of those that are shown.
    limit : (int, int)
        The most rows and columns of cells of a panel.
    """

    wish: Wish
    axes: str
    counts: tuple[int, int]
    whole: tuple[int, int]
    rows: Span
    columns: Span
    query_labels: Labels
    key_labels: Labels
    limit: tuple[int, int]

    @classmethod
    def of(
        cls,
        wish: Wish,
        whole: tuple[int, int],
        axes: str,
        counts: tuple[int, int],
        labels: tuple[Labels, Labels],
    ) -> Frame:
        """Return the frame of so many batch entries and maps of each."""
        rows, columns = chosen(wish, whole, labels)
        height, panels, group = _length(rows), math.prod(counts), grouped(*counts)
        if heads_are_rows(rows, counts):
            height, panels, group = counts[1], counts[0], None
        limit = cell_limit(
            (height, _length(columns)), panels=panels, group=group, dpi=wish.dpi, size=wish.size
        )
        query_labels, key_labels = labels
        return cls(
            wish,
            axes,
            counts,
            whole,
            rows,
            columns,
            query_labels and query_labels[slice(*rows)],
            key_labels and key_labels[slice(*columns)],
            limit,
        )

    @property
    def signed(self) -> bool:
        """Whether values have both signs."""
        return self.wish.what == "scores"

    @property
    def _by_head(self) -> bool:
        return heads_are_rows(self.rows, self.counts)

    @property
    def _shape(self) -> tuple[int, int]:
        """Rows and keys of a panel."""
        return self.counts[1] if self._by_head else _length(self.rows), _length(self.columns)

    def panels(self, maps: Iterable[Map]) -> list[Panel]:
        """Pool the maps of batch entries and their heads, in this order."""
        if not self._by_head:
            return [self._panel(strips, self._title(*place)) for place, strips in maps]
        entries = groupby(maps, lambda one: one[0][0])
        return [self._panel(_stacked(heads), self._title(batch)) for batch, heads in entries]

    def _panel(self, strips: Iterable[Strip], title: str | None) -> Panel:
        pooler = Pooler(self._shape, self.limit, signed=self.signed)
        for row, values, hidden in strips:
            pooler.add(values, hidden, row=row)
        return pooler.panel(title)

    def _title(self, batch: int, head: int | None = None) -> str | None:
        """Return which map it is, where there are several."""
        numbers = self.wish.picked.place(batch, head)
        named = zip(("batch", "head"), numbers, self.counts, strict=True)
        where = {
            name: number for name, number, count in named if count > 1 and name[0] in self.axes
        }
        return ", ".join(places(where)) or None

    def picture(self, panels: list[Panel], *, sinks: bool = False) -> Picture:
        """Return the picture of the panels."""
        rows: dict[str, Any] = {
            "row_start": self.rows[0],
            "query_labels": self.query_labels,
            "whole": self.whole,
            "group": grouped(*self.counts),
        }
        if self._by_head:
            rows = heads_as_rows(
                self.wish, self.counts[1], self.rows[0], self.whole, self.query_labels
            )
        return make_picture(
            panels,
            what=self.wish.what,
            key_labels=self.key_labels,
            column_start=self.columns[0],
            title=self.wish.title,
            vmax=self.wish.vmax,
            log=self.wish.log,
            shape=self._shape,
            block=block_size(self._shape, self.limit),
            sinks=sinks,
            **rows,
        )


def _length(span: Span) -> int:
    return span[1] - span[0]


def _stacked(heads: Iterable[Map]) -> Iterator[Strip]:
    """Yield the one row of each head at the row of this head."""
    for (_, head), strips in heads:
        yield from ((head, values, hidden) for _, values, hidden in strips)


def heads_are_rows(rows: Span, counts: tuple[int, int]) -> bool:
    """Return whether one query is shown of several heads."""
    return _length(rows) == 1 and counts[1] > 1


def heads_as_rows(
    wish: Wish, heads: int, query: int, whole: tuple[int, int], labels: Sequence[str] | None
) -> dict[str, Any]:
    """Return what `make_picture` is told of rows that are the heads of one query.

    Parameters
    ----------
    wish : Wish
    heads : int
        How many are shown.
    query : int
    whole : (int, int)
        Queries and keys that there are.
    labels : sequence of str or None
        Of the query alone.
    """
    query_words = None
    if whole[0] > 1 or labels:
        query_words = crop_words("query", "queries", (query, query + 1), whole[0], labels)
    numbers = [wish.picked.place(None, head)[1] for head in range(heads)]
    return {
        "rows_are": "Heads",
        "query": query_words,
        "query_labels": [*map(str, numbers)] if wish.picked.head else None,
        "whole": (heads, whole[1]),
    }


def grouped(batches: int, heads: int) -> int | None:
    """Return how many panels belong together, where there are several batch entries."""
    return heads if batches > 1 and heads > 1 else None


def chosen(wish: Wish, whole: tuple[int, int], labels: tuple[Labels, Labels]) -> tuple[Span, Span]:
    """Return which rows and columns of a map are wished for."""
    rows = _chosen("--rows", wish.rows, whole[0], labels[0], "query")
    return rows, _chosen("--cols", wish.columns, whole[1], labels[1], "key")


def _chosen(
    option: str, wanted: str | None, count: int, labels: Labels, of: Literal["query", "key"]
) -> Span:
    if wanted is None:
        return 0, count
    return range_of(option, _named(option, wanted, count, labels, of), count)


def _named(
    option: str, words: str, count: int, labels: Labels, of: Literal["query", "key"]
) -> tuple[int | None, int | None]:
    """Return the range of one query or key, or from one index or label to another.

    An index at the end is no part of it, a label is.
    """
    known = labels or ()

    def index_of_one(text: str) -> int:
        # Tokens may begin with a blank.
        label = text if text in known else text.strip()
        return named_index(option, label, count, labels, of=of, also="a:b, as in 0:64, ")

    if words.count(":") != 1 or words in known:
        index = index_of_one(words)
        return index, index + 1
    first, last = words.split(":")
    start, stop = (_index_or_none(end.strip(), count, known) for end in (first, last))
    if first.strip() and start is None:
        start = index_of_one(first)
    if last.strip() and stop is None:
        stop = index_of_one(last) + 1
    return start, stop


def _index_or_none(text: str, count: int, labels: Sequence[str]) -> int | None:
    """Return the index at an end of a range; None of a word, or of a label below 0 or beyond."""
    index = whole_number(text)
    if index is not None and text in labels and not 0 <= index <= count:
        return None
    return index
