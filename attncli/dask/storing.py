"""Write results to Zarr: each worker writes the blocks that it has computed."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import dask.array as da
import zarr
from dask.highlevelgraph import HighLevelGraph

from attncli.dask.blocks import write_block

if TYPE_CHECKING:
    from collections.abc import Mapping


def stored(arrays: Mapping[str, da.Array], folder: str, *, alone: bool) -> list[da.Array]:
    """Return lazy arrays that write others into a folder when they are computed.

    Parameters
    ----------
    arrays : mapping of str to dask.array.Array
    folder : str
        It is empty, and becomes a group, or one array.
    alone : bool
        Whether the folder becomes the only array.
    """
    if not alone:
        zarr.create_group(folder)
    return [_written(name, array, folder, alone=alone) for name, array in arrays.items()]


def _written(name: str, array: da.Array, folder: str, *, alone: bool) -> da.Array:
    """Return a lazy array that writes another one. A task writes a whole chunk, without a lock."""
    size = tuple(max(1, sizes[0]) for sizes in array.chunks)
    regular = array.rechunk(size)
    target = zarr.create_array(
        folder,
        name=None if alone else name,
        shape=array.shape,
        chunks=size,
        dtype=array.dtype,
        overwrite=alone,
    )
    own = f"written-{regular.name}"
    tasks = {
        (own, *place): (
            write_block,
            target,
            [slice(n * step, (n + 1) * step) for n, step in zip(place, size, strict=True)],
            (regular.name, *place),
        )
        for place in product(*map(range, regular.numblocks))
    }
    graph = HighLevelGraph.from_collections(own, tasks, [regular])
    return da.Array(graph, own, tuple((1,) * count for count in regular.numblocks), dtype=bool)
