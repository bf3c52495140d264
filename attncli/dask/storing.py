"""Results to Zarr, each block by the worker that computed it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

if TYPE_CHECKING:
    from collections.abc import Mapping

    import dask.array as da


def stored(arrays: Mapping[str, da.Array], folder: str, *, alone: bool) -> list[Any]:
    """Return what, once computed, has written lazy arrays into a folder.

    Parameters
    ----------
    arrays : mapping of str to dask.array.Array
    folder : str
        Empty; it becomes a group, or the array itself where one stands alone.
    alone : bool
    """
    if not alone:
        zarr.create_group(folder)
    made = []
    for name, array in arrays.items():
        regular = array.rechunk(tuple(sizes[0] for sizes in array.chunks))
        target = zarr.create_array(
            folder,
            name=None if alone else name,
            shape=array.shape,
            chunks=tuple(max(1, sizes[0]) for sizes in regular.chunks),
            dtype=array.dtype,
            overwrite=alone,
        )
        # Each block is a chunk of its own, so that nobody waits for a lock.
        ones = (1,) * array.ndim
        made.append(
            regular.map_blocks(
                _written, target=target, dtype=bool, chunks=ones, meta=np.empty((0,) * array.ndim)
            )
        )
    return made


def _written(block: Any, target: Any, block_info: Any = None) -> Any:
    """Write a block, and return next to nothing: workers keep no results."""
    place = block_info[0]["array-location"]
    target[tuple(slice(*span) for span in place)] = block
    return np.ones((1,) * block.ndim, bool)
