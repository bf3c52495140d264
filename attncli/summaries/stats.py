"""Statistics of each head, added up over its rows, some at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
        sums: dict[str, float] = {}
        largest = 0.0
        for rows in maps.rows(batch, head, (0, queries)):
            for name, total in _totals(rows, maps.offset(batch)).items():
                sums[name] = sums.get(name, 0) + total
            largest = max(largest, float(rows.values.max()))
            done += len(rows.values)
            if progress is not None:
                progress(done, batches * heads * queries)
        found.append(_means(sums, largest, *maps.place(batch, head)))
    return tuple(found)


def _means(
    sums: dict[str, float], largest: float, batch: int | None, head: int | None
) -> HeadStats:
    def mean(name: str, of: str) -> float | None:
        return sums[name] / sums[of] if sums[of] else None

    entropy = mean("entropy", "queries")
    return HeadStats(
        batch=batch,
        head=head,
        queries=int(sums["queries"]),
        left_out=int(sums["left_out"]),
        entropy=entropy,
        effective_keys=None if entropy is None else math.exp(entropy),
        largest=largest if sums["queries"] else None,
        first_key=mean("first_key", "queries"),
        diagonal=mean("diagonal", "queries"),
        distance=mean("distance", "weight"),
        negligible=mean("negligible", "cells"),
    )


def _totals(rows: Rows, offset: int) -> dict[str, float]:
    """Return sums over rows; a query that sees no key has weights of 0, which add nothing."""
    weights = np.maximum(rows.values, 0)  # rounding may leave finished weights below 0
    seen = rows.order > -np.inf
    seeing = int(np.count_nonzero(seen.any(axis=1)))
    keys = weights.shape[1]
    position = np.arange(len(weights)) + rows.start + offset
    # 0 · ln 0 is 0, the limit: adding 1 to the zeros makes it so.
    logs = np.log(weights + (weights == 0), dtype=np.float64)
    sums = weights.sum(axis=1, dtype=np.float64)
    some = sums > 0
    # -Σ p ln p with p = w / Σ w, which rounding may leave below 0.
    of_rows = np.maximum(np.log(sums[some]) - _dots(weights, logs)[some] / sums[some], 0)
    inside = np.flatnonzero((position >= 0) & (position < keys))
    distance = np.abs(np.subtract.outer(position, np.arange(keys)))
    return {
        "queries": seeing,
        "left_out": len(weights) - seeing,
        "cells": int(np.count_nonzero(seen)),
        "negligible": int(np.count_nonzero(seen & (weights < NEGLIGIBLE))),
        "entropy": float(of_rows.sum()),
        "first_key": float(weights[:, 0].sum(dtype=np.float64)),
        "diagonal": float(weights[inside, position[inside]].sum(dtype=np.float64)),
        "distance": float(_dots(weights, distance).sum()),
        "weight": float(sums.sum()),
    }


def _dots(one: Array, other: Array) -> npt.NDArray[np.float64]:
    """Return Σ one · other of each row in float64, so that long sums lose nothing."""
    return np.asarray(np.einsum("ij,ij->i", one, other, dtype=np.float64))
