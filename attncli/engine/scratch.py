"""The memory that a worker reuses for every tile, and leaves to later workers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Scratch"]

Array = npt.NDArray[Any]

# One entry for each worker that ever ran at the same time, of about a megabyte.
_spare: list[dict[str, Array]] = []
_SPARE_BYTES = 2**22
# Most arrays in a cache; the edges of a block need few.
_CACHED = 8
# Bytes in a cache line; buffers are aligned to it, because aligned loads are faster.
_LINE = 64
# Bytes. Rows at least this far apart collide in the cache when they are read by column.
_FAR = 512


class Scratch:
    """The buffers of one worker, reused for every tile.

    Parameters
    ----------
    dtype : dtype
    tile_columns : int
        The number of keys in a tile.
    check_stopped : callable
        Called before each tile; raises to stop the work.
    """

    def __init__(
        self, dtype: np.dtype[Any], tile_columns: int, check_stopped: Callable[[], None]
    ) -> None:
        self.tile_columns = tile_columns
        self.check_stopped = check_stopped
        self._dtype = dtype
        self._buffers = _spare_buffers()
        self._views: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Array] = {}
        self._cache: dict[Hashable, Array] = {}
        self._transposed: Hashable = None

    def ones(self, count: int) -> Array:
        """Return a vector of ones: a product with it is the fastest sum of rows."""
        name = self._dtype.char
        held = self._buffers.get(name)
        if held is None or held.size < count:
            held = self._buffers[name] = np.ones(max(count, self.tile_columns), self._dtype)
        return held[:count]

    def filled(self, number: float, *shape: int) -> Array:
        """Return a read-only array filled with one number."""
        return self.cached((number, shape), lambda: np.full(shape, number, self._dtype))

    def buffer(self, name: str, *shape: int, dtype: np.dtype[Any] | None = None) -> Array:
        """Return a contiguous buffer, which overwrites the previous one of the same name."""
        dtype = dtype or self._dtype
        form = name, shape, dtype
        view = self._views.get(form)
        if view is None:
            view = self._views[form] = self._view(name, shape, dtype)
        return view

    def _view(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        size = math.prod(shape) * dtype.itemsize
        held = self._buffers.get(name)
        if held is None or held.size < size:
            fresh = np.empty(size + _LINE - 1, np.uint8)
            start = -fresh.ctypes.data % _LINE
            held = self._buffers[name] = fresh[start : start + size]
        return held[:size].view(dtype).reshape(shape)

    def padded(self, name: str, *shape: int, dtype: np.dtype[Any] | None = None) -> Array:
        """Return a buffer with padded rows, so that they do not start a power of 2 apart.

        Such rows would collide in the cache.
        """
        *lead, columns = shape
        itemsize = (dtype or self._dtype).itemsize
        # An odd number of cache lines.
        lines = -(-columns * itemsize // _LINE) | 1
        return self.buffer(name, *lead, lines * _LINE // itemsize, dtype=dtype)[..., :columns]

    def column_readable(self, name: str, matrix: Array) -> Array:
        """Return a matrix that is fast to read by column: a padded copy if rows are far apart."""
        *_, step, itemsize = matrix.strides
        if itemsize != matrix.itemsize or 1 in matrix.shape or abs(step) < _FAR:
            return matrix
        copy = self.padded(name, *matrix.shape, dtype=matrix.dtype)
        np.copyto(copy, matrix)
        return copy

    def transposed(self, key: Array, place: Hashable) -> Array:
        """Return a copy of keys (G, S, D) in column order; that of the last place is reused."""
        groups, keys, width = key.shape
        transposed = self.padded("keys", groups, width, keys).swapaxes(1, 2)
        if self._transposed != place:
            np.copyto(transposed, widen(key, self._dtype))
            self._transposed = place
        return transposed

    def cached(self, form: Hashable, make: Callable[[], Array]) -> Array:
        """Return the array made earlier for the same form, or make it now."""
        array = self._cache.get(form)
        if array is None:
            if len(self._cache) == _CACHED:
                self._cache.clear()
            array = self._cache[form] = make()
        return array

    def release(self) -> None:
        """Leave the buffers to the next worker; new ones cost 0.2 ms of page faults."""
        if sum(held.nbytes for held in self._buffers.values()) <= _SPARE_BYTES:
            _spare.append(self._buffers)


def _spare_buffers() -> dict[str, Array]:
    try:
        return _spare.pop()
    except IndexError:
        return {}
