"""Zarr, formats 2 and 3: arrays in chunks, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading.contents import LazyEntries, LoadedArray, LoadedMapping, Member
from attncli.numerics.chunked import Chunked
from attncli.numerics.dtypes import dtype_name

# Bytes: smaller arrays are read whole, as masks and sinks are.
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
        import zarr  # noqa: PLC0415 - of an extra
    except ImportError:
        raise InputError(
            f"{printable(path)} is a Zarr folder, and Zarr is not installed",
            hint="pip install 'attncli[dask]'",
        ) from None
    try:
        # Workers have other current folders, and a chunk that is not found is read as zeros.
        return zarr.open(str(Path(path).resolve()), mode="r")
    except Exception as error:  # zarr raises its own kinds of errors, and those of JSON
        words = " ".join(str(error).split())
        raise InputError(f"{printable(path)} cannot be read as Zarr: {words}") from error
