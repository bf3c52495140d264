"""The memory that a worker uses for every tile, and leaves to the next one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Scratch"]

Array = npt.NDArray[Any]

# As many as ever worked at once, a megabyte or so each.
_spare: list[dict[str, Array]] = []
_SPARE_BYTES = 2**22
# Forms of what is kept: an edge of a block has few.
_KEPT = 8
# Bytes. Loads of one that begin where it does are the fast ones.
_LINE = 64
# Bytes. Rows so far from each other collide in the cache when they are read by the column.
_FAR = 512


class Scratch:
    """The buffers of one worker, used for every tile.

    Parameters
    ----------
    dtype : dtype
    tile_columns : int
    pause : callable
        Called before each tile; raises to stop the work.
    """

    def __init__(self, dtype: np.dtype[Any], tile_columns: int, pause: Callable[[], None]) -> None:
        self.tile_columns = tile_columns
        self.pause = pause
        self._dtype = dtype
        self._buffers = _taken()
        self._views: dict[tuple[str, tuple[int, ...], np.dtype[Any]], Array] = {}
        self._kept: dict[Hashable, Array] = {}
        self._turned: Hashable = None

    def ones(self, count: int) -> Array:
        """Return so many ones: a product with them is the quickest sum of rows."""
        name = self._dtype.char
        held = self._buffers.get(name)
        if held is None or held.size < count:
            held = self._buffers[name] = np.ones(max(count, self.tile_columns), self._dtype)
        return held[:count]

    def same(self, number: float, *shape: int) -> Array:
        """Return an array of one number, to read."""
        return self.kept((number, shape), lambda: np.full(shape, number, self._dtype))

    def buffer(self, name: str, *shape: int, dtype: np.dtype[Any] | None = None) -> Array:
        """Return a contiguous buffer of a shape; the last one of its name is overwritten."""
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

    def apart(self, name: str, *shape: int, dtype: np.dtype[Any] | None = None) -> Array:
        """Return a buffer of a shape whose rows do not lie a power of 2 apart.

        Those that do collide in the cache.
        """
        *lead, columns = shape
        itemsize = (dtype or self._dtype).itemsize
        # An odd number of lines of the cache.
        lines = -(-columns * itemsize // _LINE) | 1
        return self.buffer(name, *lead, lines * _LINE // itemsize, dtype=dtype)[..., :columns]

    def near(self, name: str, matrix: Array) -> Array:
        """Return a matrix that can be read by the column: a copy where its rows lie far apart."""
        step, itemsize = matrix.strides
        if itemsize != matrix.itemsize or 1 in matrix.shape or abs(step) < _FAR:
            return matrix
        copy = self.apart(name, *matrix.shape, dtype=matrix.dtype)
        np.copyto(copy, matrix)
        return copy

    def turned(self, key: Array, place: Hashable) -> Array:
        """Return keys (G, S, D) that lie by the column, (G, D, S); the last ones are kept."""
        groups, keys, width = key.shape
        turned = self.apart("keys", groups, width, keys).swapaxes(1, 2)
        if self._turned != place:
            np.copyto(turned, widen(key, self._dtype))
            self._turned = place
        return turned

    def kept(self, form: Hashable, make: Callable[[], Array]) -> Array:
        """Return what was made for a form before, or make it now."""
        array = self._kept.get(form)
        if array is None:
            if len(self._kept) == _KEPT:
                self._kept.clear()
            array = self._kept[form] = make()
        return array

    def give_back(self) -> None:
        """Leave the buffers to the next worker: the system takes 0.2 ms to hand out new ones."""
        if sum(held.nbytes for held in self._buffers.values()) <= _SPARE_BYTES:
            _spare.append(self._buffers)


def _taken() -> dict[str, Array]:
    try:
        return _spare.pop()
    except IndexError:
        return {}
