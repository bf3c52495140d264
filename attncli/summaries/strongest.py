"""The strongest keys of each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.summaries.maps import Labels, Maps, Rows

Indices = npt.NDArray[np.intp]
# Up to this many keys are found faster one by one than by sorting the row.
_FEW = 16


@dataclass(frozen=True)
class StrongKey:
    """A key and its weight."""

    index: int
    label: str | None
    weight: float


@dataclass(frozen=True, kw_only=True)
class TopKeys:
    """The strongest keys that one query sees, the strongest first."""

    batch: int | None
    head: int | None
    query: int
    label: str | None
    keys: tuple[StrongKey, ...]


def top(maps: Maps, count: int = 3, *, queries: int | None = None) -> Iterator[TopKeys]:
    """Yield the strongest keys of each query, or of the first queries, head by head.

    Among equal weights, the key that comes first counts as stronger.
    """
    labels = maps.labels[0]
    for batch, head in np.ndindex(*maps.shape[:2]):
        place = maps.place(batch, head)
        for rows in maps.rows(batch, head, (0, queries or maps.shape[2])):
            order = rows.order
            seen = np.count_nonzero(order > -np.inf, axis=1).tolist()
            for row, strongest in enumerate(_strongest(order, count)):
                query = rows.start + row
                yield TopKeys(
                    batch=place[0],
                    head=place[1],
                    query=query,
                    label=None if labels is None else labels[query],
                    keys=_keys(maps.labels[1], rows, row, strongest[: seen[row]]),
                )


def _strongest(scores: npt.NDArray[Any], count: int) -> Indices:
    """Return the columns of the largest scores of each row, the largest first."""
    count = min(count, scores.shape[1])
    if count > _FEW:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    left = scores.copy()
    found = np.empty((len(scores), count), np.intp)
    for rank in range(count):
        found[:, rank] = left.argmax(axis=1)
        np.put_along_axis(left, found[:, rank, None], -np.inf, axis=1)
    return found


def _keys(labels: Labels, rows: Rows, row: int, strongest: Indices) -> tuple[StrongKey, ...]:
    weights = np.maximum(rows.values[row], 0)  # rounding may leave finished weights below 0
    return tuple(
        StrongKey(key, None if labels is None else labels[key], float(weights[key]))
        for key in strongest.tolist()
    )
