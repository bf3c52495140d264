"""An NPY file that is filled tile by tile and may be larger than memory."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from attncli.errors import OutputError
from attncli.save.binary import npy_header
from attncli.save.files import is_direct, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

__all__ = ["open_npy"]


@contextmanager
def open_npy(path: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
    """Give a map of zeros whose values become the NPY file at `path` when the block ends well.

    The space on the disk is reserved first. A pipe or a device gets the bytes at the end.
    """
    with whole_file(path) as stream:
        if is_direct(path):
            with tempfile.TemporaryFile() as spool:
                with _mapped(path, spool, shape, dtype) as array:
                    yield array
                spool.seek(0)
                shutil.copyfileobj(spool, stream)
        else:
            with _mapped(path, stream, shape, dtype) as array:
                yield array


@contextmanager
def _mapped(
    path: str, stream: BinaryIO, shape: tuple[int, ...], dtype: npt.DTypeLike
) -> Iterator[npt.NDArray[Any]]:
    header = npy_header(shape, dtype)
    stream.write(header)
    stream.flush()
    _reserve(path, stream, len(header) + math.prod(shape) * np.dtype(dtype).itemsize)
    values = np.memmap(stream, dtype, "r+", len(header), shape)
    yield np.asarray(values)
    values.flush()


def _reserve(path: str, stream: BinaryIO, size: int) -> None:
    """Take the room on the disk now; a write into a map without room kills the process."""
    # Asked first: a reservation that fails would fill the disk for everybody meanwhile.
    folder = tempfile.gettempdir() if is_direct(path) else Path(path).resolve().parent
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutputError(
            f"cannot write {path}: it takes {size / 1e9:.3g} GB,"
            f" but the disk has {free / 1e9:.3g} GB free",
            hint="free some space, name a file on another disk, or save less",
        )
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, size)
    else:
        stream.truncate(size)
