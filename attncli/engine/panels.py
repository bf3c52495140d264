"""The axes of tiles, and the memory that a worker reuses for all of them.

A tile of scores is (G, N, P, C, R): C keys, and the queries of G groups of heads with N heads
each, in P panels of R queries. All heads of a group read the same key and value head, so one
`np.matmul` multiplies every panel with the keys of its group.

In memory a tile is either *query-major*, the keys of a query lie side by side, or *key-major*, the
queries of a key do. `TileShape.array` allocates both under the same axes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Scratch", "TileShape", "row_sums", "weighted_sum"]

Array = npt.NDArray[Any]

# Bytes of a cache line: products are faster if their operands begin at one.
_LINE = 64
# Bytes of scratch memory that may stay allocated between calls, for each thread.
_KEPT = 2**23
# BLAS adds up one number after the other, and rounding errors grow with how many there are. So a
# sum of exponentials adds at most so many, and a product for the context at most so many keys.
_LONGEST_SUM, _LONGEST_PRODUCT = 128, 4096
# NumPy releases the interpreter's lock during a product only if it has more than 500 results.
_FREE_RESULTS, _SHORTEST_PRODUCT = 501, 256


class TileShape(NamedTuple):
    """How the queries of a block are arranged.

    Attributes
    ----------
    groups, heads, panels, rows : int
        G groups of N heads, each with P panels of R queries.
    query_major : bool
        The memory order.
    """

    groups: int
    heads: int
    panels: int
    rows: int
    query_major: bool

    def array(self, scratch: Scratch, name: str, width: int) -> Array:
        """Return a scratch array (G, N, P, width, R)."""
        lead = self.groups, self.heads, self.panels
        if self.query_major:
            return scratch.array(name, (*lead, self.rows, width)).swapaxes(3, 4)
        return scratch.array(name, (*lead, width, self.rows))

    def view(self, array: Array) -> Array:
        """Return a view (G, N, P, width, R) of an array (heads, queries, width).

        An axis of length 1 stands for all heads or queries, and stays of length 1.
        """
        heads, queries, width = array.shape
        groups = (self.groups, self.heads) if heads > 1 else (1, 1)
        panels = (self.panels, self.rows) if queries > 1 else (1, 1)
        view: Array = array.reshape(*groups, *panels, width).swapaxes(3, 4)
        return view

    def by_head(self, array: Array) -> Array:
        """Return an array (G, N, P, …, R) as (heads, numbers), in the order of its memory."""
        if array.ndim == 5 and self.query_major:
            array = array.swapaxes(3, 4)
        return array.reshape(self.groups * self.heads, -1)


class Scratch:
    """Arrays of one worker, each reused under its name. New memory costs page faults."""

    _spare: list[dict[str, Array]] = []  # noqa: RUF012 - shared by all workers

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._views: dict[tuple[str, tuple[int, ...]], Array] = {}
        try:
            self._memory = self._spare.pop()
        except IndexError:
            self._memory = {}

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return an array with any content; it overwrites the last one of the same name."""
        view = self._views.get((name, shape))
        if view is None:
            size = math.prod(shape) * self._dtype.itemsize
            held = self._memory.get(name)
            if held is None or held.size < size:
                fresh = np.empty(size + _LINE, np.uint8)
                start = -fresh.ctypes.data % _LINE
                held = self._memory[name] = fresh[start : start + size]
                self._views = {key: one for key, one in self._views.items() if key[0] != name}
            view = self._views[name, shape] = held[:size].view(self._dtype).reshape(shape)
        return view

    def release(self) -> None:
        """Leave the memory to the next worker, if it is not more than is kept."""
        if sum(held.nbytes for held in self._memory.values()) <= _KEPT:
            self._spare.append(self._memory)


def row_sums(tile: Array) -> Array:
    """Return the sums of a tile (…, keys, queries) over its keys, (…, queries)."""
    keys = tile.shape[-2]
    whole = keys // _LONGEST_SUM * _LONGEST_SUM
    ones = np.ones(_LONGEST_SUM, tile.dtype)
    if not whole:
        return np.asarray(np.matmul(ones[:keys], tile))
    *lead, _, queries = tile.shape
    pieces = tile[..., :whole, :].reshape(*lead, -1, _LONGEST_SUM, queries)
    # NumPy adds numbers that lie side by side in pairs, which keeps rounding errors small.
    total = np.matmul(ones, pieces).swapaxes(-1, -2).copy().sum(axis=-1)
    if whole < keys:
        total += np.matmul(ones[: keys - whole], tile[..., whole:, :])
    return np.asarray(total)


def weighted_sum(weights: Array, value: Array) -> Array:
    """Return weights @ value, (…, R, S) by (…, S, E), in pieces of many keys."""
    rows, keys = weights.shape[-2:]
    freeing = -(-_FREE_RESULTS // (rows * value.shape[-1]))
    pieces = max(
        freeing if keys >= freeing * _SHORTEST_PRODUCT else 1, -(-keys // _LONGEST_PRODUCT)
    )
    if pieces == 1:
        return np.asarray(weights @ value)
    step = keys // pieces
    whole = pieces * step
    cut = weights[..., :whole].reshape(*weights.shape[:-1], pieces, step).swapaxes(-2, -3)
    total = cut @ value[..., :whole, :].reshape(*value.shape[:-2], pieces, step, value.shape[-1])
    context = total.sum(axis=-3)
    if whole < keys:
        context += weights[..., whole:] @ value[..., whole:, :]
    return np.asarray(context)
