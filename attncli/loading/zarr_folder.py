"""Read Zarr, formats 2 and 3: a folder of arrays in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading.contents import LazyEntries, LoadedArray, LoadedMapping, Member
from attncli.numerics.chunked import Chunked
from attncli.numerics.dtypes import dtype_name

# Bytes: arrays up to this size, such as masks and sinks, are read into memory.
_SMALL = 1 << 20


def read_zarr(path: str) -> LoadedMapping:
    """Return the arrays of a Zarr folder; large ones stay on disk."""
    found, name = _opened(path), printable(path)
    arrays = dict(sorted(found.arrays())) if hasattr(found, "keys") else {"": found}

    def entry(member: str) -> LoadedArray:
        full = f"{name}#{printable(member)}" if member else name
        if arrays[member].dtype.kind not in "biuf":
            raise InputError(f"{full}: expected numbers; found {arrays[member].dtype}")
        made: Any = Chunked(arrays[member])
        return LoadedArray(np.asarray(made) if made.nbytes <= _SMALL else made, full)

    def header(member: str) -> Member:
        return Member(member, arrays[member].shape, dtype_name(arrays[member].dtype))

    return LoadedMapping(LazyEntries(arrays, entry), name, dump=True, header=header)


def _opened(path: str) -> Any:
    try:
        import zarr  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise InputError(
            f"{printable(path)} is a Zarr folder, and Zarr is not installed",
            hint="pip install 'attncli[dask]'",
        ) from None
    try:
        # An absolute path: workers have other current folders, and Zarr reads missing chunks as 0.
        return zarr.open(str(Path(path).resolve()), mode="r")
    except Exception as error:  # zarr raises its own kinds of errors, and those of JSON
        words = " ".join(str(error).split())
        raise InputError(f"{printable(path)} cannot be read as Zarr: {words}") from error
