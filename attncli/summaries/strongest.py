"""The strongest keys of each query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.summaries.row_blocks import RowBlock, Weights

__all__ = ["TopKeys", "top"]

Indices = npt.NDArray[np.intp]
# Up to this many are found faster one by one than by sorting the row.
_FEW = 16


@dataclass(frozen=True)
class StrongKey:
    """A key and its weight."""

    index: int
    label: str | None
    weight: float


@dataclass(frozen=True, kw_only=True)
class TopKeys:
    """The strongest keys that one query sees, the strongest first.

    Attributes
    ----------
    batch, head : int, or None where the inputs have no such axis
    query : int
    label : str or None
    keys : tuple of StrongKey
    """

    batch: int | None
    head: int | None
    query: int
    label: str | None
    keys: tuple[StrongKey, ...]


def top(
    weights: Weights,
    count: int = 3,
    *,
    rows: tuple[int, int] | None = None,
) -> Iterator[TopKeys]:
    """Yield the strongest keys of each query, batch by batch and head by head.

    Among equal weights, the key that comes first counts as stronger.

    Parameters
    ----------
    weights : Weights
    count : int
        The most keys for each query.
    rows : (start, stop), optional
        Only these queries.

    Raises
    ------
    UsageError
        The count is below 1, or there are no such queries.
    """
    if count < 1:
        raise UsageError(f"top: expected at least 1; found {count}")
    queries = weights.shape[2]
    start, stop = rows or (0, queries)
    if not 0 <= start <= stop <= queries:
        raise UsageError(f"rows: expected a range within 0:{queries}; found {start}:{stop}")
    return _top(weights, count, (start, stop))


def _top(weights: Weights, count: int, rows: tuple[int, int]) -> Iterator[TopKeys]:
    labels, of_keys = weights.labels
    for batch, head in np.ndindex(*weights.shape[:2]):
        axes = weights.place(batch, head)
        for block in weights.blocks(batch, head, rows):
            seen = np.count_nonzero(block.scores > -np.inf, axis=1).tolist()
            for row, strongest in enumerate(_strongest(block.scores, count)):
                query = block.start + row
                yield TopKeys(
                    batch=axes[0],
                    head=axes[1],
                    query=query,
                    label=None if labels is None else labels[query],
                    keys=_keys(of_keys, block, row, strongest[: seen[row]]),
                )


def _strongest(scores: npt.NDArray[Any], count: int) -> Indices:
    """Return the columns of the largest scores of each row (rows, count), in their order.

    Ordered by score rather than weight, because weights that underflow to 0 have lost their
    order. Columns after the last key that a row sees are arbitrary.
    """
    count = min(count, scores.shape[1])
    if count > _FEW:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    left = scores.copy()
    found = np.empty((len(scores), count), np.intp)
    for rank in range(count):
        found[:, rank] = left.argmax(axis=1)
        np.put_along_axis(left, found[:, rank, None], -np.inf, axis=1)
    return found


def _keys(
    labels: tuple[str, ...] | None, block: RowBlock, row: int, strongest: Indices
) -> tuple[StrongKey, ...]:
    return tuple(
        StrongKey(key, None if labels is None else labels[key], float(block.weights[row, key]))
        for key in strongest.tolist()
    )
