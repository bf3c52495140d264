"""The header of an NPY file, read without evaluating it."""

from __future__ import annotations

import math
import re
import struct
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from attncli.dtypes import dtype_name
from attncli.errors import InputError
from attncli.loading.contents import Member
from attncli.text import printable, quoted

__all__ = ["MAY_BE_BFLOAT16", "Header", "check_size", "read_header"]

NPY_MAGIC = b"\x93NUMPY"
# Format version: the struct code of the header's length, and the header's encoding.
_VERSIONS = {1: ("<H", "latin-1"), 2: ("<I", "latin-1"), 3: ("<I", "utf-8")}
# NumPy's own limit; only structured dtypes, which are refused anyway, take more.
_HEADER_LIMIT = 10_000
_ELEMENTS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
# The header is a Python literal; three patterns read it, so nothing is evaluated.
_DESCR = re.compile(r"""['"]descr['"]\s*:\s*(?:'([^']*)'|"([^"]*)"|([\[(].*[\])]))""", re.DOTALL)
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)\b""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([^()]*)\)""")
_WORDS = re.compile(r"[<>=]U[1-9]\d{0,5}")
_AXIS = re.compile(r"\s*(\d{1,18})L?\s*")  # L as Python 2 wrote it
# Elements of 2 bytes that have no type of their own, or only that of their bits.
MAY_BE_BFLOAT16 = {"V2", "u2", "i2"}


class Header(NamedTuple):
    """What an NPY header claims.

    Attributes
    ----------
    descr : str
        The dtype as written, with byte order: ``<f4``.
    shape : tuple of int
    fortran : bool
        Whether the first axis is the fastest.
    start : int
        Where the data begins, in bytes.
    """

    descr: str
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The elements' dtype as stored; None where attncli does not read it."""
        order, code = self.descr[:1], self.descr[1:]
        known = order in "<>|=" and code in {*_ELEMENTS, "V2"}
        return np.dtype(order + code) if known and order else None

    @property
    def words(self) -> np.dtype[Any] | None:
        """The elements' dtype where they are words, one or a list; None otherwise."""
        return (
            np.dtype(self.descr) if _WORDS.fullmatch(self.descr) and len(self.shape) <= 1 else None
        )

    @property
    def nbytes(self) -> int | None:
        """The size of the data in bytes; None where the dtype is not known."""
        stored = self.words if self.dtype is None else self.dtype
        return None if stored is None else math.prod(self.shape) * stored.itemsize

    def member(self, name: str, dtype: str | None) -> Member:
        """Return what `describe` says of this array; ``dtype`` is the option of that name."""
        if dtype == "bfloat16" and self.descr.lstrip("<>|=") in MAY_BE_BFLOAT16:
            return Member(name, self.shape, dtype)
        known = self.dtype is not None and self.dtype.kind != "V"
        word = dtype_name(self.dtype.newbyteorder("=")) if known and self.dtype else self.descr
        word = "structured" if word[:1] in "[(" else word
        return Member(name, self.shape, word)


def read_header(stream: BinaryIO, name: str) -> Header:
    """Read an NPY header without evaluating it.

    Raises
    ------
    InputError
        If it is not an NPY header of version 1 to 3.
    """
    magic = stream.read(len(NPY_MAGIC) + 2)
    if not magic.startswith(NPY_MAGIC) or len(magic) < len(NPY_MAGIC) + 2:
        raise InputError(f"{name} does not begin like an NPY file")
    version = magic[-2]
    if version not in _VERSIONS:
        raise InputError(f"{name}: expected NPY version 1 to 3; found {version}")
    code, encoding = _VERSIONS[version]
    prefix = stream.read(struct.calcsize(code))
    if len(prefix) < struct.calcsize(code):
        raise InputError(f"{name} ends within its NPY header")
    length: int = struct.unpack(code, prefix)[0]
    if length > _HEADER_LIMIT:
        raise InputError(
            f"{name}: expected an NPY header of at most {_HEADER_LIMIT} bytes; found {length}"
        )
    raw = stream.read(length)
    if len(raw) < length:
        raise InputError(f"{name} ends within its NPY header")
    start = len(magic) + len(prefix) + length
    return _parsed_header(raw.decode(encoding, "replace"), start, name)


def _parsed_header(text: str, start: int, name: str) -> Header:
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if descr is None or order is None or shape is None:
        raise InputError(f"{name} has an NPY header that does not give dtype, order and shape")
    axes = [_AXIS.fullmatch(axis) for axis in shape[1].rstrip(" ,").split(",") if shape[1].strip()]
    if None in axes:
        raise InputError(
            f"{name}: expected an NPY header whose shape is of whole numbers; "
            f"found {quoted(f'({shape[1]})')}"
        )
    sizes = tuple(int(axis[1]) for axis in axes if axis is not None)
    word = descr[1] or descr[2] or descr[3] or ""
    return Header(printable(word), sizes, order[1] == "True", start)


def check_size(header: Header, size: int, name: str) -> None:
    """Refuse a header that claims more or less than the `size` bytes there are.

    Raises
    ------
    InputError
        With the shape and both sizes.
    """
    claimed = header.start + (header.nbytes or 0)
    if claimed != size:
        problem = "truncated" if claimed > size else "longer than its header says"
        msg = (
            f"{name} is {problem}: expected {claimed} bytes for shape {header.shape} of dtype "
            f"{header.descr}; found {size}"
        )
        raise InputError(msg)
