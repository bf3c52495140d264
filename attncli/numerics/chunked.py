"""Arrays that stay on disk and are read block by block."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt


class Mapped(NamedTuple):
    """An array of an NPY file, as `Chunked` takes it: mapped when a part is read."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def chunks(self) -> tuple[int, ...]:
        """One chunk, the whole array; any part of it may be read."""
        return (1,) * len(self.shape)

    def __getitem__(self, index: Any) -> Any:
        return np.array(np.load(self.path, mmap_mode="r")[index])

    @classmethod
    def saved(cls, path: str, array: npt.NDArray[Any]) -> Mapped:
        """Write an array to a file."""
        np.save(path, array)
        return cls(path, array.shape, array.dtype)


class Chunked:
    """An array on disk. An index reads a part of it, and `numpy.asarray` reads all of it.

    Parameters
    ----------
    array : object
        An object with ``shape``, ``dtype``, ``chunks`` and an index that reads, as `zarr.Array`.
    """

    def __init__(self, array: Any) -> None:
        self._array = array
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.chunks: tuple[int, ...] = tuple(array.chunks)

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of all elements in memory."""
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        return np.asarray(self._array[index])

    def __array__(self, dtype: Any = None, copy: Any = None) -> npt.NDArray[Any]:
        return np.asarray(self._array[...], dtype)

    def parts(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the chunks."""
        starts = (range(0, n, step) for n, step in zip(self.shape, self.chunks, strict=True))
        for place in product(*starts):
            spans = zip(place, self.chunks, strict=True)
            yield self[tuple(slice(start, start + step) for start, step in spans)]


class Stored(NamedTuple):
    """A block of query, key or value on disk, in the form that is sent to a worker.

    Attributes
    ----------
    array : Chunked
    axes : str
        The axes of the array, such as ``bshd``.
    spans : tuple of (int, int)
        The start and stop of batch, heads, rows and width.
    """

    array: Chunked
    axes: str
    spans: tuple[tuple[int, int], ...]

    def read(self) -> npt.NDArray[Any]:
        """Return the block as (B, H, S, D)."""
        own = dict(zip("bhsd", self.spans, strict=True))
        part = self.array[tuple(slice(*own[axis]) for axis in self.axes)]
        part = part.transpose([self.axes.index(axis) for axis in "bhsd" if axis in self.axes])
        return part[tuple(slice(None) if axis in self.axes else None for axis in "bhsd")]
