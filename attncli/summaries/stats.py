"""Statistics of each head, added up over its rows, some at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from attncli.engine import Progress
    from attncli.summaries.maps import Maps, Rows

Array = npt.NDArray[Any]

NEGLIGIBLE = 1e-3


@dataclass(frozen=True, kw_only=True)
class HeadStats:
    """The figures of one batch entry and head; all but the counts are None where no key is seen.

    References
    ----------
    Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks",
    section 3 (the first key). Clark et al. 2019, "What Does BERT Look At?", section
    3.3 (entropy).
    """

    batch: int | None  # None where the inputs have no such axis
    head: int | None
    queries: int  # that see some key
    left_out: int  # queries that see none, padded ones included
    entropy: float | None  # mean of -Σ p ln p in nats, where p = weight / row sum
    effective_keys: float | None  # exp(entropy): this many equal weights have the same entropy
    largest: float | None  # the largest weight of all
    first_key: float | None  # mean weight of the first key: the attention sink of many models
    diagonal: float | None  # mean weight of the key at the query's own position, i + offset
    distance: float | None  # mean of |i + offset - j| over the weights, in tokens
    negligible: float | None  # share of the weights of seen keys that are below 1e-3


def statistics(maps: Maps, *, progress: Progress | None = None) -> tuple[HeadStats, ...]:
    """Return the figures of each batch entry and head."""
    batches, heads, queries = maps.shape[:3]
    found = []
    done = 0
    for batch, head in np.ndindex(batches, heads):
        sums = _Sums(maps.offset(batch))
        for rows in maps.rows(batch, head, (0, queries)):
            sums.add(rows)
            done += len(rows.values)
            if progress is not None:
                progress(done, batches * heads * queries)
        found.append(sums.finished(*maps.place(batch, head)))
    return tuple(found)


@dataclass(eq=False)
class _Sums:
    """Sums over the queries so far; `offset` is the position of query 0 among the keys."""

    offset: int
    queries: int = 0
    left_out: int = 0
    cells: int = 0
    small: int = 0
    largest: float = 0.0
    totals: dict[str, float] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        """Add some rows; a query that sees no key has weights of 0, which add nothing."""
        weights = np.maximum(rows.values, 0)  # rounding may leave finished weights below 0
        seen = rows.order > -np.inf
        seeing = int(np.count_nonzero(seen.any(axis=1)))
        self.queries += seeing
        self.left_out += len(weights) - seeing
        self.cells += int(np.count_nonzero(seen))
        self.small += int(np.count_nonzero(seen & (weights < NEGLIGIBLE)))
        self.largest = max(self.largest, float(weights.max()))
        for name, total in _row_totals(weights, rows.start + self.offset).items():
            self.totals[name] = self.totals.get(name, 0.0) + total

    def finished(self, batch: int | None, head: int | None) -> HeadStats:
        """Turn the sums into means."""

        def mean(name: str, of: float) -> float | None:
            return self.totals[name] / of if of else None

        entropy = mean("entropy", self.queries)
        return HeadStats(
            batch=batch,
            head=head,
            queries=self.queries,
            left_out=self.left_out,
            entropy=entropy,
            effective_keys=None if entropy is None else math.exp(entropy),
            largest=self.largest if self.queries else None,
            first_key=mean("first_key", self.queries),
            diagonal=mean("diagonal", self.queries),
            distance=mean("distance", self.totals["weight"]),
            negligible=self.small / self.cells if self.cells else None,
        )


def _row_totals(weights: Array, first: int) -> dict[str, float]:
    """Return sums over rows; `first` is the position of the first query among the keys."""
    rows, keys = weights.shape
    position = np.arange(first, first + rows)
    # 0 · ln 0 is 0, the limit: adding 1 to the zeros makes it so.
    logs = np.log(weights + (weights == 0), dtype=np.float64)
    sums = weights.sum(axis=1, dtype=np.float64)
    some = sums > 0
    # -Σ p ln p with p = w / Σ w, which rounding may leave below 0.
    of_rows = np.maximum(np.log(sums[some]) - _dots(weights, logs)[some] / sums[some], 0)
    inside = np.flatnonzero((position >= 0) & (position < keys))
    distance = np.abs(np.subtract.outer(position, np.arange(keys)))
    return {
        "entropy": float(of_rows.sum()),
        "first_key": float(weights[:, 0].sum(dtype=np.float64)),
        "diagonal": float(weights[inside, position[inside]].sum(dtype=np.float64)),
        "distance": float(_dots(weights, distance).sum()),
        "weight": float(sums.sum()),
    }


def _dots(one: Array, other: Array) -> npt.NDArray[np.float64]:
    """Return Σ one · other of each row in float64, so that long sums lose nothing."""
    return np.asarray(np.einsum("ij,ij->i", one, other, dtype=np.float64))
