"""Packed sequences: which one each query and each key belongs to.

Several short sequences stand one behind the other in a row, and a query sees only keys of its
own. FlashAttention gives the ends of each (``cu_seqlens``), JAX and others a number for each
token, as is done here.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[Any]


class Segments:
    """The numbers of the sequences: of queries (B or 1, L), and of keys (B or 1, S)."""

    def __init__(self, queries: Ints, keys: Ints) -> None:
        self.queries = queries
        self.keys = keys

    def __len__(self) -> int:
        """Return how many batch entries the numbers tell apart."""
        return max(len(self.queries), len(self.keys))

    @property
    def alike(self) -> bool:
        """Whether sequences that queries and keys share have the same places among both."""
        return self.queries is self.keys or all(_alike(*self._of(b)) for b in range(len(self)))

    def entries(self, batches: Sequence[int]) -> Segments:
        """Return those of some batch entries."""
        both = (self.queries, self.keys)
        return Segments(*(ids if len(ids) == 1 else ids[[*batches]] for ids in both))

    def rows(self, start: int, stop: int) -> Segments:
        """Return those of some queries and all keys."""
        return Segments(self.queries[:, start:stop], self.keys)

    def seen(self) -> Bools:
        """Return which keys belong to the sequence of each query, (B or 1, L, S)."""
        return np.equal(self.queries[:, :, None], self.keys[:, None, :])

    def tile(self, batch: int, rows: tuple[int, int], columns: tuple[int, int]) -> Bools | None:
        """Return the same for a tile, (rows, columns); None where all of them do."""
        queries, keys = self._of(batch)
        queries, keys = queries[slice(*rows)], keys[slice(*columns)]
        if (queries == keys[0]).all() and (keys == keys[0]).all():
            return None
        return np.equal(queries[:, None], keys)

    def reach(self, batch: int, start: int, stop: int) -> tuple[int, int]:
        """Return an interval of keys outside of which there is none of some queries' sequences.

        All keys, where their numbers do not grow from key to key.
        """
        queries, keys = self._of(batch)
        if not self._grow[batch % len(self.keys)]:
            return 0, len(keys)
        own = queries[start:stop]
        first = np.searchsorted(keys, own.min(), side="left")
        return int(first), int(np.searchsorted(keys, own.max(), side="right"))

    @cached_property
    def _grow(self) -> list[bool]:
        """Whether the numbers of each entry's keys never fall."""
        return [bool((ids[1:] >= ids[:-1]).all()) for ids in self.keys]

    def _of(self, batch: int) -> tuple[Ints, Ints]:
        return self.queries[batch % len(self.queries)], self.keys[batch % len(self.keys)]


def _alike(queries: Ints, keys: Ints) -> bool:
    """Return whether numbers that both have begin at the same places and are as many."""
    own, others = (np.unique(ids, return_index=True, return_counts=True) for ids in (queries, keys))
    _, here, there = np.intersect1d(own[0], others[0], assume_unique=True, return_indices=True)
    return all(
        np.array_equal(one[here], other[there]) for one, other in zip(own, others, strict=True)
    )
