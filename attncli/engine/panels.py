"""The memory that a worker reuses for all its tiles, and sums over many keys.

A tile of scores is (P, R, C): P panels of R queries, and C keys. In memory, the keys of a query lie
side by side (query-major), or the queries of a panel do (key-major). `Scratch.tile` allocates
either under the same axes.
"""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Bytes of a cache line: products are faster if their operands begin at the start of one.
_LINE = 64
# Bytes of scratch memory that may stay allocated between calls, for each thread.
_KEPT = 2**23
# BLAS adds one number after the other, and rounding errors grow with their count. These are the
# most exponentials that one sum adds, and the most keys of one product for the context.
_LONGEST_SUM, _LONGEST_PRODUCT = 128, 4096
# NumPy releases the interpreter's lock during a product only if it has more than 500 results.
_FREE_RESULTS, _SHORTEST_PRODUCT = 501, 256


class Scratch:
    """Arrays of one worker, each reused under its name. New memory costs page faults."""

    _spare: list[dict[str, Array]] = []  # noqa: RUF012 - shared by all workers

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        try:
            self._memory = self._spare.pop()
        except IndexError:
            self._memory = {}

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """Return an array with any content; it overwrites the last one of the same name."""
        size = math.prod(shape) * self._dtype.itemsize
        held = self._memory.get(name)
        if held is None or held.size < size:
            fresh = np.empty(size + _LINE, np.uint8)
            start = -fresh.ctypes.data % _LINE
            held = self._memory[name] = fresh[start : start + size]
        return held[:size].view(self._dtype).reshape(shape)

    def tile(self, name: str, shape: tuple[int, int, int], *, query_major: bool) -> Array:
        """Return an array (P, R, C) in either order of memory."""
        if query_major:
            return self.array(name, shape)
        panels, rows, columns = shape
        return self.array(name, (panels, columns, rows)).swapaxes(1, 2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        """Keep the memory for the next worker, unless it exceeds the limit."""
        if sum(held.nbytes for held in self._memory.values()) <= _KEPT:
            self._spare.append(self._memory)


def row_sums(exponentials: Array) -> Array:
    """Return the sums of exponentials (…, queries, keys) over the keys, (…, queries)."""
    *lead, queries, keys = exponentials.shape
    whole = keys // _LONGEST_SUM * _LONGEST_SUM
    ones = np.ones(_LONGEST_SUM, exponentials.dtype)
    if not whole:
        return np.asarray(np.matmul(exponentials, ones[:keys]))
    pieces = exponentials[..., :whole].reshape(*lead, queries, -1, _LONGEST_SUM)
    # NumPy adds numbers that lie side by side in pairs, which keeps rounding errors small.
    total = np.matmul(pieces.swapaxes(-2, -3), ones).swapaxes(-1, -2).copy().sum(axis=-1)
    if whole < keys:
        total += np.matmul(exponentials[..., whole:], ones[: keys - whole])
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
