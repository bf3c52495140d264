"""From a problem, or from finished weights or scores, to the picture of its maps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import UsageError, warn
from attncli.problem.advice import fully_masked_advice
from attncli.summaries.averaging import refuse_without_heads
from attncli.summaries.row_blocks import RowBlock, count_blocks, row_blocks
from attncli.view.pictures.frame import Frame
from attncli.view.sinks import sinks_take

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.engine import Progress
    from attncli.gather import Finished
    from attncli.problem.problem import Problem
    from attncli.view.pictures.frame import Strip, Wish
    from attncli.view.pictures.picture import Picture

__all__ = ["finished_picture", "problem_picture"]

Array = npt.NDArray[Any]


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
    shown = axes.replace("h", "") if wish.average else axes
    frame = Frame.of(wish, problem.shape[2:], shown, (counts[0], len(heads)), labels)
    strips = _Strips(problem, frame, threads, progress)
    panels = frame.panels(
        ((batch, together[0]), strips.of(batch, together))
        for batch in range(counts[0])
        for together in heads
    )
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
        self, problem: Problem, frame: Frame, threads: int | None, progress: Progress | None
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


def finished_picture(finished: Finished, wish: Wish) -> Picture:
    """Return the picture of finished weights or scores.

    Raises
    ------
    ShapeError
        The array is not (…, L, S), or the labels do not fit.
    DataError
        A weight is negative or not finite, or a score is NaN or +inf.
    """
    taken = finished.weights if wish.what == "weights" else finished.scores
    values, hidden = taken(wish.picked), finished.hidden_cells(wish.picked)
    if wish.average:
        _check_average(wish, finished.axes)
        values = values.mean(axis=1, keepdims=True)
        hidden = None if hidden is None else np.all(hidden, axis=1, keepdims=True)
    counts = values.shape[:2]
    labels = finished.query_labels, finished.key_labels
    frame = Frame.of(wish, values.shape[2:], "bh", counts, labels)

    def map_of(place: tuple[int, ...]) -> Strip:
        part: Any = *place, slice(*frame.rows), slice(*frame.columns)
        return 0, values[part], None if hidden is None else hidden[part]

    panels = frame.panels(((b, h), [map_of((b, h))]) for b, h in np.ndindex(*counts))
    return frame.picture(panels)


def _check_average(wish: Wish, axes: str) -> None:
    if wish.what == "scores":
        raise UsageError("scores are not averaged: leave out --average-heads, or --what")
    refuse_without_heads(axes)
