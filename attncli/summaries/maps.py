"""Weights and scores of each head, some rows at a time: computed, finished before, or compared."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.summaries.row_blocks import count_blocks, row_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem

__all__ = ["ComputedMaps", "Difference", "FinishedMaps", "Maps", "Mean"]

Array: TypeAlias = npt.NDArray[Any]
# From the first row to the one behind the last.
Span: TypeAlias = tuple[int, int]
Labels: TypeAlias = tuple[str, ...] | None

# Most cells in a strip of a finished map: 16 MB in float64, as in the blocks that are computed.
_CELLS = 1 << 21
# A part of a row that a sink takes, and four digits show.
_LEAST_SHARE = 1e-4


class Strip(NamedTuple):
    """Some rows of one map.

    Attributes
    ----------
    start : int
        Index of the first row.
    values : ndarray (rows, S)
    hidden : ndarray of bool (rows, S)
        Which keys are known to be hidden.
    """

    start: int
    values: Array
    hidden: npt.NDArray[np.bool_]


class Maps(Protocol):
    """One map (L, S) of each batch entry and head, some rows at a time."""

    @property
    def axes(self) -> str:
        """Which of the axes ``b`` and ``h`` there are."""

    @property
    def counts(self) -> tuple[int, int]:
        """Batch entries and heads."""

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """Names of queries and keys."""

    def strips(self, batch: int, head: int, rows: Span) -> Iterator[Strip]:
        """Yield some rows of one map."""


@dataclass(eq=False)
class ComputedMaps:
    """The maps of a problem, computed when they are asked for.

    Attributes
    ----------
    problem : Problem
    scores : bool
        Scores instead of weights.
    threads : int or None
    progress : callable or None
        Called with the numbers of blocks done and blocks in all.
    fully_masked : int
        How many of the queries that were computed see no key.
    sinks_take : bool
        Whether the weights of some row add up to less than 1.
    """

    problem: Problem
    scores: bool = False
    threads: int | None = None
    progress: Callable[[int, int], None] | None = None
    fully_masked: int = field(default=0, init=False)
    sinks_take: bool = field(default=False, init=False)
    _done: int = field(default=0, init=False)
    _blocks: int = field(default=0, init=False)

    @property
    def axes(self) -> str:
        """Which of the axes ``b`` and ``h`` the weights have."""
        return self.problem.layout.weight_axes

    @property
    def counts(self) -> tuple[int, int]:
        """Batch entries and heads."""
        return self.problem.shape[0], self.problem.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.problem.shape[2], self.problem.shape[3]

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """Names of queries and keys."""
        return self.problem.query_labels, self.problem.key_labels

    def strips(self, batch: int, head: int, rows: Span) -> Iterator[Strip]:
        """Yield some rows of one map; those that were computed are counted."""
        # Whoever draws asks for the same rows of every map.
        self._blocks = self._blocks or count_blocks(self.problem, rows) * math.prod(self.counts)
        for block in row_blocks(self.problem, batch, head, rows, self.threads):
            self._done += 1
            self.fully_masked += block.fully_masked
            if self.problem.sinks is not None and not self.sinks_take:
                sums = block.weights.sum(axis=-1)
                self.sinks_take = bool(((sums > 0) & (sums < 1 - _LEAST_SHARE)).any())
            if self.progress is not None:
                self.progress(self._done, self._blocks)
            values = block.scores if self.scores else block.weights
            yield Strip(block.start, values, np.isneginf(block.scores))


@dataclass(frozen=True, eq=False)
class FinishedMaps:
    """Maps that were finished before.

    Attributes
    ----------
    values : ndarray (B, H, L, S)
    axes : str
    labels : (tuple of str or None, tuple of str or None)
    hidden : ndarray of bool (B, H, L, S) or None
    """

    values: Array
    axes: str = "bh"
    labels: tuple[Labels, Labels] = (None, None)
    hidden: npt.NDArray[np.bool_] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """Batch entries and heads."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.values.shape[2], self.values.shape[3]

    def strips(self, batch: int, head: int, rows: Span) -> Iterator[Strip]:
        """Yield some rows of one map."""
        step = max(1, _CELLS // self.shape[1])
        for start in range(*rows, step):
            part = batch, head, slice(start, min(start + step, rows[1]))
            values = self.values[part]
            hidden = np.broadcast_to(False, values.shape)  # noqa: FBT003 - the value to broadcast
            yield Strip(start, values, hidden if self.hidden is None else self.hidden[part])


@dataclass(frozen=True, eq=False)
class Mean:
    """The mean of the heads of other maps; a key is hidden if every head hides it."""

    maps: Maps

    @property
    def axes(self) -> str:
        """The axis of the batch, if there is one."""
        return self.maps.axes.replace("h", "")

    @property
    def counts(self) -> tuple[int, int]:
        """Batch entries, and one map of each."""
        return self.maps.counts[0], 1

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.maps.shape

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """Names of queries and keys."""
        return self.maps.labels

    def strips(self, batch: int, head: int, rows: Span) -> Iterator[Strip]:
        """Yield some rows of the mean; the strips of one head at a time are held."""
        heads = self.maps.counts[1]
        for start, total, unseen in self.maps.strips(batch, head, rows):
            for other in range(1, heads):
                strip = _same_rows(self.maps, batch, other, start, len(total))
                total, unseen = total + strip.values, unseen & strip.hidden  # noqa: PLW2901 - one strip is held
            yield Strip(start, total / heads if heads > 1 else total, unseen)


@dataclass(eq=False)
class Difference:
    """Some maps minus others of the same shape.

    A key that the first hides is hidden, unless a weight of the second makes a difference.

    Attributes
    ----------
    first, second : Maps
    eps : float
        Rounding of a weight of 1, in the wider type of both.
    """

    first: Maps
    second: Maps
    eps: float = field(default=0.0, init=False)

    @property
    def axes(self) -> str:
        """The axes of the first."""
        return self.first.axes

    @property
    def counts(self) -> tuple[int, int]:
        """Batch entries and heads."""
        return self.first.counts

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and keys."""
        return self.first.shape

    @property
    def labels(self) -> tuple[Labels, Labels]:
        """Names of queries and keys."""
        return self.first.labels

    def strips(self, batch: int, head: int, rows: Span) -> Iterator[Strip]:
        """Yield some rows of one difference."""
        for start, values, hidden in self.first.strips(batch, head, rows):
            other = _same_rows(self.second, batch, head, start, len(values)).values
            self.eps = max(self.eps, *(float(np.finfo(one.dtype).eps) for one in (values, other)))
            difference = values - other
            yield Strip(start, difference, hidden & (difference == 0))


def _same_rows(maps: Maps, batch: int, head: int, start: int, count: int) -> Strip:
    (strip,) = maps.strips(batch, head, (start, start + count))
    return strip
