"""Arrays in NumPy's own formats; the bytes depend on nothing but names and values."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.text import encodable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    import numpy.typing as npt

    from attncli.save.formats import Results

__all__ = ["npy_header", "write_npy", "write_npz"]

# The oldest date a zip file can hold: with the time of day, no two files would be equal.
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


def npy_header(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bytes:
    """Return the bytes before the values of an NPY file (NumPy Enhancement Proposal 1)."""
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    header = io.BytesIO()
    fields = {"descr": descr, "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def _npy_parts(array: npt.NDArray[Any]) -> Iterator[bytes | memoryview]:
    yield npy_header(array.shape, array.dtype)
    # Matrix by matrix, so that an array with exchanged axes is never copied whole.
    for index in np.ndindex(array.shape[:-2]):
        yield np.ascontiguousarray(array[index]).reshape(-1).view(np.uint8).data
