"""The memory that a worker uses for every tile, and leaves to the next one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Scratch"]

Array = npt.NDArray[Any]

# As many as ever worked at once, a megabyte or so each.
_spare: list[dict[str, Array]] = []
_SPARE_BYTES = 2**22
# Forms of what is kept: an edge of a block has few.
_KEPT = 8


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
        self._views: dict[tuple[str, tuple[int, ...]], Array] = {}
        self._kept: dict[Hashable, Array] = {}

    def ones(self, count: int) -> Array:
        """Return so many ones: a product with them is the quickest sum of rows."""
        name = self._dtype.char
        held = self._buffers.get(name)
        if held is None or held.size < count:
            held = self._buffers[name] = np.ones(max(count, self.tile_columns), self._dtype)
        return held[:count]

    def buffer(self, name: str, *shape: int) -> Array:
        """Return a contiguous buffer of a shape; the last one of its name is overwritten."""
        form = name, shape
        view = self._views.get(form)
        if view is None:
            view = self._views[form] = self._view(name, shape)
        return view

    def _view(self, name: str, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape) * self._dtype.itemsize
        held = self._buffers.get(name)
        if held is None or held.size < size:
            # Loads of 64 bytes that start at a multiple of 64 are the fast ones.
            fresh = np.empty(size + 63, np.uint8)
            start = -fresh.ctypes.data % 64
            held = self._buffers[name] = fresh[start : start + size]
        return held[:size].view(self._dtype).reshape(shape)

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
