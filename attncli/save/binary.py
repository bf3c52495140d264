"""Write arrays as NPY and NPZ, whole or tile by tile."""

from __future__ import annotations

import io
import math
import os
import shutil
import tempfile
import zipfile
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from attncli.errors import OutputError
from attncli.errors.text import encodable
from attncli.save.files import is_direct, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from attncli.save.formats import Results

# The oldest date that ZIP can hold, for every member: equal results give equal files.
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def write_npy(stream: BinaryIO, results: Results) -> None:
    """Write the one array as NPY, see `attncli.save.formats.write`."""
    stream.writelines(_npy_parts(results.one_array("NPY")[1]))


def write_npz(stream: BinaryIO, results: Results) -> None:
    """Write the arrays and the labels as NPZ, see `attncli.save.formats.write`."""
    members = dict(results.only_arrays("NPZ"))
    for name in ("query_labels", "key_labels"):
        labels = getattr(results, name)
        if labels is not None:
            members[name] = np.array([encodable(label) for label in labels], np.str_)
    if results.layout is not None:
        members["layout"] = np.array(results.layout, np.str_)
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, array in members.items():
            entry = zipfile.ZipInfo(f"{name}.npy", _NO_DATE)
            with archive.open(entry, "w", force_zip64=True) as member:
                for part in _npy_parts(array):
                    member.write(part)


def _npy_header(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """Return the bytes before the values of an NPY file (NumPy Enhancement Proposal 1)."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def _npy_parts(array: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    yield _npy_header(array.shape, array.dtype)
    # Matrix by matrix: a transposed array is never copied whole.
    for index in np.ndindex(array.shape[:-2]):
        yield np.ascontiguousarray(array[index]).reshape(-1).view(np.uint8).data


@contextmanager
def open_npy(path: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Iterator[npt.NDArray[Any]]:
    """Yield a memory map of zeros; it becomes the NPY file at `path` if the block ends well.

    The space on the disk is reserved first. Pipes and devices get the bytes at the end.
    """
    direct, header = is_direct(path), _npy_header(shape, dtype)
    with (
        whole_file(path) as stream,
        tempfile.TemporaryFile() if direct else nullcontext(stream) as file,
    ):
        file.write(header)
        file.flush()
        _reserve(path, file, len(header) + math.prod(shape) * np.dtype(dtype).itemsize)
        values = np.memmap(file, dtype, "r+", len(header), shape)
        yield np.asarray(values)
        values.flush()
        if direct:
            file.seek(0)
            shutil.copyfileobj(file, stream)


def _reserve(path: str, stream: BinaryIO, size: int) -> None:
    """Reserve space on the disk: without it, writing into a memory map kills the process."""
    # Compared first: even a reservation that fails fills the disk for a moment.
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
