"""Read NPY, NumPy's file of one array: mapped into memory, nothing unpickled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.loading.contents import LoadedArray, Member
from attncli.loading.elements import check_shape, checked_dtype, in_native_order
from attncli.loading.npy_header import check_size, read_header

if TYPE_CHECKING:
    from attncli.loading.source import Source

__all__ = ["describe_npy", "read_npy"]


def read_npy(source: Source) -> LoadedArray:
    """Read the array of an NPY file; a regular file is mapped, not read.

    Parameters
    ----------
    source : Source

    Returns
    -------
    LoadedArray
        In native byte order, in the dtype stored.

    Raises
    ------
    InputError
        If the header is not NPY's, claims more or less than the file holds, or
        names elements that are not real numbers or booleans.

    References
    ----------
    .. [1] NumPy Enhancement Proposal 1, "A Simple File Format for NumPy Arrays".
    """
    with source.open() as stream:
        header = read_header(stream, source.name)
    stored = checked_dtype(header, source.name, source.dtype)
    check_size(header, source.size, source.name)
    check_shape(header.shape, stored.itemsize, source.name)
    values = source.array(
        stored, header.shape, start=header.start, order="F" if header.fortran else "C"
    )
    return LoadedArray(in_native_order(values, source.name, source.dtype), source.name)


def describe_npy(source: Source) -> list[Member]:
    """Return the shape and dtype that the header gives."""
    with source.open() as stream:
        return [read_header(stream, source.name).member("", source.dtype)]
