"""Packed sequences: the sequence that each query and key belongs to.

Several short sequences share one row, and a query sees only keys of its own sequence.
FlashAttention takes the ends of the sequences (``cu_seqlens``). JAX and others take a number for
each token, as attncli does.
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
    """The segment ids of queries (B or 1, L) and of keys (B or 1, S)."""

    def __init__(self, queries: Ints, keys: Ints) -> None:
        self.queries = queries
        self.keys = keys

    def __len__(self) -> int:
        """Return the number of batch entries with segment ids of their own: B, or 1 for all."""
        return max(len(self.queries), len(self.keys))

    @property
    def alike(self) -> bool:
        """Whether each shared sequence has the same places among queries and keys."""
        return self.queries is self.keys or all(_alike(*self._of(b)) for b in range(len(self)))

    def entries(self, batches: Sequence[int]) -> Segments:
        """Return the segment ids of some batch entries."""
        both = (self.queries, self.keys)
        return Segments(*(ids if len(ids) == 1 else ids[[*batches]] for ids in both))

    def rows(self, start: int, stop: int) -> Segments:
        """Return the segment ids of some queries and of all keys."""
        return Segments(self.queries[:, start:stop], self.keys)

    def seen(self) -> Bools:
        """Return which keys belong to the sequence of each query, (B or 1, L, S)."""
        return np.equal(self.queries[:, :, None], self.keys[:, None, :])

    def tile(self, batch: int, rows: tuple[int, int], columns: tuple[int, int]) -> Bools | None:
        """Return the seen keys of a tile, (rows, columns); None if its queries see all of them."""
        queries, keys = self._of(batch)
        queries, keys = queries[slice(*rows)], keys[slice(*columns)]
        if (queries == keys[0]).all() and (keys == keys[0]).all():
            return None
        return np.equal(queries[:, None], keys)

    def reach(self, batch: int, start: int, stop: int) -> tuple[int, int]:
        """Return an interval that holds every key of the sequences of some queries.

        All keys, if their segment ids ever fall from key to key.
        """
        queries, keys = self._of(batch)
        if not self._grow[batch % len(self.keys)]:
            return 0, len(keys)
        own = queries[start:stop]
        first = np.searchsorted(keys, own.min(), side="left")
        return int(first), int(np.searchsorted(keys, own.max(), side="right"))

    @cached_property
    def _grow(self) -> list[bool]:
        """Return for each batch entry whether the segment ids of its keys never fall."""
        return [bool((ids[1:] >= ids[:-1]).all()) for ids in self.keys]

    def _of(self, batch: int) -> tuple[Ints, Ints]:
        return self.queries[batch % len(self.queries)], self.keys[batch % len(self.keys)]


def _alike(queries: Ints, keys: Ints) -> bool:
    """Return whether each id that both have begins at the same place and occurs equally often."""
    own, others = (np.unique(ids, return_index=True, return_counts=True) for ids in (queries, keys))
    _, here, there = np.intersect1d(own[0], others[0], assume_unique=True, return_indices=True)
    return all(
        np.array_equal(one[here], other[there]) for one, other in zip(own, others, strict=True)
    )
