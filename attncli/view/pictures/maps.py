"""From a problem, or from finished weights or scores, to the picture of its maps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.advice import fully_masked_advice
from attncli.errors import UsageError
from attncli.labelled import named_index
from attncli.summaries.averaging import refuse_without_heads
from attncli.summaries.row_blocks import RowBlock, count_blocks, row_blocks
from attncli.text import places, whole_number
from attncli.view.pictures.finished import finished_scores, finished_weights, hidden_cells
from attncli.view.pictures.picture import Picture, make_picture
from attncli.view.pictures.pooling import Pooler, block_size
from attncli.view.pictures.room import cell_limit
from attncli.view.sinks import sinks_take
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from attncli.engine import Progress
    from attncli.gather import Finished
    from attncli.problem import Problem
    from attncli.view.pictures.panel import Panel

__all__ = [
    "Wish",
    "chosen",
    "finished_picture",
    "grouped",
    "problem_picture",
]

Array = npt.NDArray[Any]
# The first row, the values (l, s), and which of them are hidden.
Strip = tuple[int, Array, "npt.NDArray[np.bool_] | None"]
Labels = tuple[str, ...] | None


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
    dpi : float
        Sets how many cells there is room for.
    """

    what: Literal["weights", "scores"] = "weights"
    rows: str | None = None
    columns: str | None = None
    title: str | None = None
    vmax: float | Literal["auto"] = "auto"
    log: bool = False
    average: bool = False
    dpi: float = 150


def problem_picture(
    problem: Problem,
    wish: Wish,
    *,
    threads: int | None,
    progress: Progress | None = None,
) -> Picture:
    """Compute the maps of a problem, some rows at a time, and pool what does not fit.

    Parameters
    ----------
    problem : Problem
    wish : Wish
    threads : int or None
    progress : callable, optional
        Called with the numbers of blocks done and blocks in all.

    Raises
    ------
    UsageError
        A range of rows or columns is empty.
    """
    axes, counts = problem.layout.weight_axes, problem.shape[:2]
    if wish.average:
        _check_average(wish, axes)
    heads = [range(counts[1])] if wish.average else [[h] for h in range(counts[1])]
    labels = problem.query_labels, problem.key_labels
    frame = _Frame.of(wish, problem.shape[2:], (counts[0], len(heads)), labels)
    strips = _Strips(problem, frame, threads, progress)
    shown = axes.replace("h", "") if wish.average else axes
    panels = [
        frame.panel(strips.of(batch, together), _title(shown, counts, batch, together[0]))
        for batch in range(counts[0])
        for together in heads
    ]
    if strips.fully_masked:
        warn(fully_masked_advice(problem, strips.fully_masked))
    return frame.picture(panels, sinks=strips.sinks_take)


class _Strips:
    """The rows of a problem's maps, computed block by block.

    Attributes
    ----------
    fully_masked : int
        How many of the queries that were computed see no key.
    sinks_take : bool
        Some of their weights add up to less than 1.
    """

    def __init__(
        self, problem: Problem, frame: _Frame, threads: int | None, progress: Progress | None
    ) -> None:
        self.fully_masked = 0
        self.sinks_take = False
        self._problem, self._frame, self._threads = problem, frame, threads
        self._progress, self._done = progress, 0
        self._blocks = count_blocks(problem, frame.rows) * math.prod(problem.shape[:2])

    def of(self, batch: int, together: Sequence[int]) -> Iterator[Strip]:
        """Yield the rows of one head, or the mean of some, block by block."""
        rows = self._frame.rows
        first, *others = (
            row_blocks(self._problem, batch, head, rows, self._threads) for head in together
        )
        for block in first:
            total, hidden = self._part(block)
            for other in others:  # one block at a time is held
                values, unseen = self._part(next(other))
                total, hidden = total + values, hidden & unseen
            mean = total / len(together) if others else total
            yield block.start - rows[0], mean, hidden

    def _part(self, block: RowBlock) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Count a block; return what is drawn of it, and which cells are hidden."""
        self._done += 1
        self.fully_masked += block.fully_masked
        if self._problem.sinks is not None and not self.sinks_take:
            self.sinks_take = sinks_take(block.weights)
        if self._progress is not None:
            self._progress(self._done, self._blocks)
        scores = block.scores[:, slice(*self._frame.columns)]
        weights = block.weights[:, slice(*self._frame.columns)]
        return (scores if self._frame.signed else weights), np.isneginf(scores)


def finished_picture(
    finished: Finished, wish: Wish, *, batch: int | None = None, head: int | None = None
) -> Picture:
    """Return the picture of finished weights or scores.

    Raises
    ------
    ShapeError
        The array is not (…, L, S), or the labels do not fit.
    DataError
        A weight is negative or not finite, or a score is NaN or +inf.
    """
    read = finished_weights if wish.what == "weights" else finished_scores
    values, hidden = read(finished, batch, head), hidden_cells(finished, batch, head)
    if wish.average:
        _check_average(wish, finished.axes if head is None else "")
        values = values.mean(axis=1, keepdims=True)
        hidden = None if hidden is None else np.all(hidden, axis=1, keepdims=True)
    counts = values.shape[:2]
    labels = finished.query_labels, finished.key_labels
    frame = _Frame.of(wish, values.shape[2:], counts, labels)
    panels = []
    for b, h in np.ndindex(counts):
        part = b, h, slice(*frame.rows), slice(*frame.columns)
        unseen = None if hidden is None else hidden[part]
        panels.append(frame.panel([(0, values[part], unseen)], _title("bh", counts, b, h)))
    return frame.picture(panels)


@dataclass(frozen=True)
class _Frame:
    """What part of the maps is shown, and how many cells there is room for.

    Attributes
    ----------
    wish : Wish
    whole : (int, int)
        Queries and keys of the whole maps.
    rows, columns : (start, stop)
        Those that are shown.
    query_labels, key_labels : tuple of str or None
        Of those that are shown.
    limit : (int, int)
        The most rows and columns of cells of a panel.
    group : int or None
        How many panels belong together.
    """

    wish: Wish
    whole: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    query_labels: Labels
    key_labels: Labels
    limit: tuple[int, int]
    group: int | None

    @classmethod
    def of(
        cls,
        wish: Wish,
        whole: tuple[int, int],
        counts: tuple[int, int],
        labels: tuple[Labels, Labels],
    ) -> _Frame:
        """Return the frame of so many batch entries and maps of each."""
        rows, columns = chosen(wish, whole, labels)
        shape = rows[1] - rows[0], columns[1] - columns[0]
        group = grouped(*counts)
        limit = cell_limit(shape, panels=math.prod(counts), group=group, dpi=wish.dpi)
        query_labels, key_labels = labels
        return cls(
            wish,
            whole,
            rows,
            columns,
            query_labels and query_labels[slice(*rows)],
            key_labels and key_labels[slice(*columns)],
            limit,
            group,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys that are shown."""
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    @property
    def signed(self) -> bool:
        """Whether values have both signs."""
        return self.wish.what == "scores"

    def panel(self, strips: Iterable[Strip], title: str | None) -> Panel:
        """Pool the rows of a map."""
        pooler = Pooler(self.shape, self.limit, signed=self.signed)
        for row, values, hidden in strips:
            pooler.add(values, hidden, row=row)
        return pooler.panel(title)

    def picture(self, panels: list[Panel], *, sinks: bool = False) -> Picture:
        """Return the picture of the maps."""
        return make_picture(
            panels,
            what=self.wish.what,
            query_labels=self.query_labels,
            key_labels=self.key_labels,
            row_start=self.rows[0],
            column_start=self.columns[0],
            title=self.wish.title,
            vmax=self.wish.vmax,
            log=self.wish.log,
            shape=self.shape,
            whole=self.whole,
            block=block_size(self.shape, self.limit),
            group=self.group,
            sinks=sinks,
        )


def _check_average(wish: Wish, axes: str) -> None:
    if wish.what == "scores":
        raise UsageError("scores are not averaged: leave out --average-heads, or --what")
    refuse_without_heads(axes)


def grouped(batches: int, heads: int) -> int | None:
    """Return how many panels belong together, where there are several batch entries."""
    return heads if batches > 1 and heads > 1 else None


def _title(axes: str, counts: tuple[int, ...], batch: int, head: int) -> str | None:
    where = {
        "batch": batch if "b" in axes and counts[0] > 1 else None,
        "head": head if "h" in axes and counts[1] > 1 else None,
    }
    return ", ".join(places(where)) or None


def chosen(
    wish: Wish, whole: tuple[int, int], labels: tuple[Labels, Labels]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return which rows and columns of a map are wished for, each as (start, stop)."""
    rows = _chosen("--rows", wish.rows, whole[0], labels[0], "query")
    return rows, _chosen("--cols", wish.columns, whole[1], labels[1], "key")


def _chosen(
    option: str, wanted: str | None, count: int, labels: Labels, of: Literal["query", "key"]
) -> tuple[int, int]:
    if wanted is None:
        return 0, count
    ends = _named(option, wanted, count, labels, of)
    for end, most in zip(ends, (count - 1, count), strict=True):
        if end is not None and not -count <= end <= most:
            side = "beyond the end" if end > most else "before the beginning"
            raise UsageError(f"{option}: expected a range within 0:{count}; found {end}, {side}")
    start, stop, _ = slice(*ends).indices(count)
    if start >= stop:
        raise UsageError(f"{option}: expected a range within 0:{count}; found an empty one")
    return start, stop


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
