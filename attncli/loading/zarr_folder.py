"""Zarr, formats 2 and 3: arrays in chunks, in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading.contents import LazyEntries, LoadedArray, LoadedMapping, Member
from attncli.numerics.chunked import Chunked
from attncli.numerics.dtypes import dtype_name

if TYPE_CHECKING:
    from attncli.loading.contents import Contents

__all__ = ["describe_zarr", "read_zarr"]

# Bytes: smaller arrays are read whole, as masks and sinks are.
_SMALL = 1 << 20


def read_zarr(path: str) -> Contents:
    """Return the array of a folder, or its arrays; large ones stay on disk (`Chunked`).

    Raises
    ------
    InputError
        Zarr is not installed, or cannot read it.
    """
    found = _opened(path)
    if not hasattr(found, "keys"):
        return _loaded(found, printable(path))
    arrays = _arrays(found)
    return LoadedMapping(
        LazyEntries(
            arrays, lambda name: _loaded(arrays[name], f"{printable(path)}#{printable(name)}")
        ),
        printable(path),
        dump=True,
    )


def describe_zarr(path: str) -> list[Member]:
    """Return what the folder holds, without reading a chunk."""
    found = _opened(path)
    arrays = _arrays(found) if hasattr(found, "keys") else {"": found}
    return [Member(name, each.shape, dtype_name(each.dtype)) for name, each in arrays.items()]


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


def _arrays(group: Any) -> dict[str, Any]:
    return dict(sorted(group.arrays()))


def _loaded(array: Any, name: str) -> LoadedArray:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: expected numbers; found {array.dtype}")
    made: Any = Chunked(array)
    return LoadedArray(np.asarray(made) if made.nbytes <= _SMALL else made, name)
