"""Weights or scores of each head, some rows at a time: computed, given, averaged or subtracted.

A map of L queries and S keys is never held whole unless it was given whole.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.engine import attend
from attncli.errors import ShapeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.problem import Problem

Array: TypeAlias = npt.NDArray[Any]
Bools: TypeAlias = npt.NDArray[np.bool_]
# Two whole numbers: the first row and the row after the last, or rows and columns.
Pair: TypeAlias = tuple[int, int]
Labels: TypeAlias = tuple[str, ...] | None

# Most cells of the rows that are held at a time: 16 MB in float64.
_CELLS = 1 << 21
# The smallest share of a row at which a sink shows in four digits.
_LEAST_SHARE = 1e-4
SINK_NOTE = "rows add up to less than 1: the sink takes the rest"


def sinks_take(weights: Array) -> bool:
    """Return whether some row (…, L, S) adds up to less than 1, but to more than 0."""
    totals = weights.sum(axis=-1)
    return bool(((totals > 0) & (totals < 1 - _LEAST_SHARE)).any())


class Rows(NamedTuple):
    """Some rows of one map, in arrays (rows, S)."""

    start: int  # the index of the first row
    values: Array  # weights or scores
    hidden: Bools | None  # which keys are hidden; None where it is unknown
    scores: Array | None = None  # the scores of weights that were computed

    @property
    def order(self) -> Array:
        """Numbers that order the keys of a row by strength; -inf for a hidden key."""
        # Weights that underflow to 0 have lost their order, scores have not.
        if self.scores is not None:
            return self.scores
        # If nobody knows which keys are hidden, those of weight 0 count as hidden.
        hidden = self.values <= 0 if self.hidden is None else self.hidden
        return np.where(hidden, -np.inf, self.values)


class Maps:
    """One map (L, S) of each batch entry and head.

    The shape is (B, H, L, S). The axes before (L, S) are those of the user's array: ``""``,
    ``"b"``, ``"h"`` or ``"bh"``. The labels are those of queries and of keys.
    """

    # What rows and columns are, and remarks about them.
    names: tuple[str, str] = ("Queries", "Keys")
    remarks: tuple[str, ...] = ()

    def __init__(
        self,
        shape: tuple[int, ...],
        axes: str,
        labels: tuple[Labels, Labels],
        dtype: np.dtype[Any],
    ) -> None:
        batch, heads, queries, keys = shape
        self.shape = batch, heads, queries, keys
        self.axes, self.labels, self.dtype = axes, labels, dtype

    def place(self, batch: int, head: int) -> tuple[int | None, int | None]:
        """Return batch entry and head as a user knows them; None where there is no such axis."""
        return batch if "b" in self.axes else None, head if "h" in self.axes else None

    def offset(self, batch: int) -> int:  # noqa: ARG002 - `Computed` needs it
        """Return the position of query 0 among the keys."""
        return max(0, self.shape[3] - self.shape[2])

    def rows(self, batch: int, head: int, span: Pair) -> Iterator[Rows]:
        """Yield some rows of one map."""
        raise NotImplementedError

    def _spans(self, span: Pair) -> Iterator[Pair]:
        step = max(1, _CELLS // self.shape[3])
        for start in range(*span, step):
            yield start, min(start + step, span[1])


class Computed(Maps):
    """The maps of a problem, computed when they are asked for.

    `fully_masked` counts the computed queries that see no key, without padded ones. `sinks_take`
    says whether the weights of some row add up to less than 1.
    """

    def __init__(
        self, problem: Problem, *, scores: bool = False, threads: int | None = None
    ) -> None:
        labels = problem.query_labels, problem.key_labels
        super().__init__(problem.shape, problem.layout.weight_axes, labels, problem.dtype)
        self.problem, self._scores, self._threads = problem, scores, threads
        self.fully_masked, self.sinks_take = 0, False

    def offset(self, batch: int) -> int:
        """Return the position of query 0 among the keys."""
        return self.problem.visible.offset(batch)

    def rows(self, batch: int, head: int, span: Pair) -> Iterator[Rows]:
        """Yield some rows of one map."""
        for some in self._spans(span):
            part = self.problem.select(batch=batch, head=head, rows=some)
            answer, unseeing = attend(part, ("weights", "scores"), threads=self._threads)
            weights, scores = (
                np.asarray(array).reshape(part.shape[2:])
                for array in (answer.weights, answer.scores)
            )
            self.fully_masked += unseeing
            if self.problem.sinks is not None:
                self.sinks_take = self.sinks_take or sinks_take(weights)
            shown = scores if self._scores else weights
            yield Rows(some[0], shown, np.isneginf(scores), scores)


class Given(Maps):
    """Finished maps (B, H, L, S), perhaps with a mask of the hidden keys in the same shape."""

    def __init__(
        self,
        values: Array,
        axes: str = "bh",
        labels: tuple[Labels, Labels] = (None, None),
        hidden: Bools | None = None,
    ) -> None:
        super().__init__(values.shape, axes, labels, values.dtype)
        self.values, self.hidden = values, hidden

    @property
    def in_user_axes(self) -> Array:
        """The values in the axes that the user gave."""
        counts = dict(zip("bh", self.shape, strict=False))
        return self.values.reshape(*(counts[axis] for axis in self.axes), *self.shape[2:])

    def averaged(self) -> Given:
        """Return the mean of the heads, where a key is hidden if every head hides it."""
        hidden = self.hidden
        if hidden is not None:
            hidden = np.logical_and.reduce(hidden, axis=1, keepdims=True)
        mean = self.values.mean(axis=1, keepdims=True)
        return Given(mean, self.axes.replace("h", ""), self.labels, hidden)

    def rows(self, batch: int, head: int, span: Pair) -> Iterator[Rows]:
        """Yield some rows of one map."""
        for start, stop in self._spans(span):
            part = batch, head, slice(start, stop)
            yield Rows(start, self.values[part], None if self.hidden is None else self.hidden[part])


class Mean(Maps):
    """The mean of the heads of other maps; a key is hidden if every head hides it."""

    def __init__(self, maps: Maps) -> None:
        batch, self._heads, *rest = maps.shape
        super().__init__((batch, 1, *rest), maps.axes.replace("h", ""), maps.labels, maps.dtype)
        self._maps = maps

    def rows(self, batch: int, head: int, span: Pair) -> Iterator[Rows]:
        """Yield some rows of the mean, adding up one head at a time."""
        for some in self._spans(span):
            total, hidden = _same_rows(self._maps, batch, head, some)
            for other in range(1, self._heads):
                values, unseen = _same_rows(self._maps, batch, other, some)
                total = total + values
                hidden = None if hidden is None or unseen is None else hidden & unseen
            yield Rows(some[0], total / self._heads if self._heads > 1 else total, hidden)


class Difference(Maps):
    """Some maps minus others of the same shape; `eps` is the coarser machine epsilon of the two.

    A key is hidden if the first maps hide it and the difference is 0.
    """

    def __init__(self, first: Maps, second: Maps) -> None:
        super().__init__(first.shape, first.axes, first.labels, first.dtype)
        self._first, self._second = first, second
        self.eps = max(float(np.finfo(maps.dtype).eps) for maps in (first, second))

    def rows(self, batch: int, head: int, span: Pair) -> Iterator[Rows]:
        """Yield some rows of one difference."""
        for some in self._spans(span):
            values, hidden = _same_rows(self._first, batch, head, some)
            difference = values - _same_rows(self._second, batch, head, some)[0]
            unseen = None if hidden is None else hidden & (difference == 0)
            yield Rows(some[0], difference, unseen)


class PatchMaps(Maps):
    """The weights of one query of other maps, laid out row by row in a grid of patches."""

    names = "Rows", "Columns"

    def __init__(self, maps: Maps, query: int, grid: Pair) -> None:
        super().__init__((*maps.shape[:2], *grid), maps.axes, (None, None), maps.dtype)
        self.first = first_patch(maps.shape[3], grid)
        self.remarks = ("key 0, the class token, is left out",) if self.first else ()
        self._maps, self._query, self._grid = maps, query, grid

    def rows(self, batch: int, head: int, span: Pair) -> Iterator[Rows]:
        """Yield some rows of the grid."""
        (found,) = self._maps.rows(batch, head, (self._query, self._query + 1))
        yield Rows(
            span[0],
            self._laid(found.values)[slice(*span)],
            None if found.hidden is None else self._laid(found.hidden)[slice(*span)],
        )

    def _laid(self, row: Array) -> Array:
        return row[0, self.first :].reshape(self._grid)


def first_patch(keys: int, grid: Pair) -> int:
    """Return the key of the first patch: 1 where a class token comes before the patches, else 0."""
    count = grid[0] * grid[1]
    if keys - count in (0, 1):
        return keys - count
    sides = [isqrt(n) for n in (keys, keys - 1) if n > 0 and isqrt(n) ** 2 == n]
    raise ShapeError(
        f"--grid: {grid[0]} x {grid[1]} needs {count} keys, or {count + 1} with a class token; "
        f"found {keys}",
        hint=f"--grid {sides[0]}x{sides[0]} would fit" if sides else None,
    )


def _same_rows(maps: Maps, batch: int, head: int, span: Pair) -> tuple[Array, Bools | None]:
    (rows,) = maps.rows(batch, head, span)
    return rows.values, rows.hidden
