"""Weights and scores of a few queries at a time, for callers that read every row once.

They are computed, or were finished before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from attncli.engine import attend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem

__all__ = ["Computed", "Given", "Labels", "RowBlock", "Weights", "count_blocks", "row_blocks"]

Labels = tuple[str, ...] | None

# Most weights in a block: 16 MB in float64, and as much for the scores.
_CELLS = 1 << 21
_LEAST = np.finfo(np.float64).smallest_subnormal


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some queries of one head.

    Attributes
    ----------
    start : int
        Index of the first of them.
    offset : int
        Added to an index, it gives the query's position among the keys.
    weights, scores : ndarray (rows, S)
        The scores of hidden keys are -inf.
    fully_masked : int
        How many of the queries see no key, not counting padding.
    """

    start: int
    offset: int
    weights: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    fully_masked: int


def row_blocks(
    problem: Problem, batch: int, head: int, rows: tuple[int, int], threads: int | None
) -> Iterator[RowBlock]:
    """Yield some rows of one head in blocks that take little memory.

    Does not warn of queries that see no key; `RowBlock.fully_masked` counts them.
    """
    step = _step(problem)
    offset = problem.visible.offset(batch)
    for start in range(*rows, step):
        part = problem.select(batch=batch, head=head, rows=(start, min(start + step, rows[1])))
        answer, fully_masked = attend(part, ("weights", "scores"), threads=threads)
        weights, scores = (
            np.asarray(array).reshape(part.shape[2:]) for array in (answer.weights, answer.scores)
        )
        yield RowBlock(start, offset, weights, scores, fully_masked)


def count_blocks(problem: Problem, rows: tuple[int, int]) -> int:
    """Return how many blocks `row_blocks` yields for each head."""
    return -(-(rows[1] - rows[0]) // _step(problem))


def _step(problem: Problem) -> int:
    return max(1, _CELLS // problem.shape[3])


class Weights(Protocol):
    """Weights of every batch entry and head, some rows at a time."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The numbers of batch entries, heads, queries and keys."""

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """The names of queries and keys."""

    def place(self, batch: int, head: int) -> tuple[int | None, int | None]:
        """Return batch entry and head as a user knows them; None where there is no such axis."""

    def blocks(self, batch: int, head: int, rows: tuple[int, int]) -> Iterator[RowBlock]:
        """Yield some rows of one head."""


@dataclass(frozen=True, eq=False)
class Computed:
    """Weights that are computed when they are asked for.

    Attributes
    ----------
    problem : Problem
    threads : int or None
    """

    problem: Problem
    threads: int | None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights."""
        return self.problem.shape

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """The names of queries and keys."""
        return self.problem.query_labels, self.problem.key_labels

    def place(self, batch: int, head: int) -> tuple[int | None, int | None]:
        """Return batch entry and head as a user knows them."""
        return self.problem.layout.place(batch, head)

    def blocks(self, batch: int, head: int, rows: tuple[int, int]) -> Iterator[RowBlock]:
        """Yield some rows of one head."""
        return row_blocks(self.problem, batch, head, rows, self.threads)


@dataclass(frozen=True, eq=False)
class Given:
    """Weights that were finished before.

    Attributes
    ----------
    array : ndarray (B, H, L, S)
    axes : str
        Those that the user gave, before (L, S): ``""``, ``"b"``, ``"h"`` or ``"bh"``.
    labels : (tuple of str or None, tuple of str or None)
        The names of queries and keys.
    hidden : ndarray of bool (B, H, L, S), or None
        Which keys are hidden; where nobody says it, those whose weight is 0.
    """

    array: npt.NDArray[Any]
    axes: str
    labels: tuple[Labels, Labels] = (None, None)
    hidden: npt.NDArray[np.bool_] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the weights."""
        batch, heads, queries, keys = self.array.shape
        return batch, heads, queries, keys

    @property
    def in_user_axes(self) -> npt.NDArray[Any]:
        """The weights in the axes that the user gave."""
        batch, heads, *rest = self.shape
        lead = [
            count for axis, count in zip("bh", (batch, heads), strict=True) if axis in self.axes
        ]
        return self.array.reshape(*lead, *rest)

    def averaged(self) -> Given:
        """Return the mean of the heads, where a key is hidden if every head hides it."""
        hidden = (
            None
            if self.hidden is None
            else np.logical_and.reduce(self.hidden, axis=1, keepdims=True)
        )
        mean = self.array.mean(axis=1, keepdims=True)
        return Given(mean, self.axes.replace("h", ""), self.labels, hidden)

    def place(self, batch: int, head: int) -> tuple[int | None, int | None]:
        """Return batch entry and head as a user knows them."""
        return batch if "b" in self.axes else None, head if "h" in self.axes else None

    def blocks(self, batch: int, head: int, rows: tuple[int, int]) -> Iterator[RowBlock]:
        """Yield some rows of one head; the last query stands at the last key, if there are more."""
        queries, keys = self.shape[2:]
        step = max(1, _CELLS // keys)
        for start in range(*rows, step):
            part = batch, head, slice(start, min(start + step, rows[1]))
            weights = np.maximum(self.array[part], 0)  # roundings may leave less
            hidden = weights == 0 if self.hidden is None else self.hidden[part]
            # Of a key that is seen, a weight may be too small for its format.
            logs = np.log(np.maximum(weights, _LEAST), dtype=np.float64)
            scores = np.where(hidden, -np.inf, logs)
            unseen = int(np.count_nonzero(hidden.all(axis=1)))
            yield RowBlock(start, max(0, keys - queries), weights, scores, unseen)
