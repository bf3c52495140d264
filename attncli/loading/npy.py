"""Read NPY, NumPy's file of one array: mapped into memory, nothing evaluated or unpickled.

NumPy's own reader evaluates the header and allocates any size that it claims. Reference: NumPy
Enhancement Proposal 1, "A Simple File Format for NumPy Arrays".
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors import InputError, warn
from attncli.errors.text import printable, quoted
from attncli.loading.contents import LazyEntries, LoadedArray, LoadedMapping, Member
from attncli.numerics.dtypes import (
    BFLOAT16,
    as_bfloat16,
    dtype_name,
    looks_like_bfloat16,
    widen,
)

if TYPE_CHECKING:
    from attncli.loading.source import Source

# The most axes and bytes of a NumPy array. The product of a million axes would take minutes.
MOST_AXES, LARGEST = 64, 2**63 - 1
_MAGIC = b"\x93NUMPY"
# Format version: the bytes of the header's length, and the header's encoding.
_VERSIONS = {1: (2, "latin-1"), 2: (4, "latin-1"), 3: (4, "utf-8")}
# NumPy's own limit, in bytes.
_HEADER_LIMIT = 10_000
_ELEMENTS = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"}
_STORED = {*_ELEMENTS, "V2"}
# Programs save bfloat16 as raw bytes, or as integers of the same bits.
_MAY_BE_BFLOAT16 = {"V2", "u2", "i2"}
# The header is a Python literal; patterns read it, so nothing is evaluated.
_DESCR = re.compile(
    r"""['"]descr['"]\s*:\s*(?:'([^']*)'|"([^"]*)"|(\[.*\]|\([^)]*\)))""", re.DOTALL
)
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)\b""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(([^()]*)\)""")
_AXIS = re.compile(r"\s*\d{1,18}\s*")
_FIELD = r"""\(\s*['"]([^'"]*)['"]\s*,\s*['"]([<>|=][a-z]\d)['"]\s*\)"""
_FIELDS = re.compile(rf"\[\s*{_FIELD}(?:\s*,\s*{_FIELD})*\s*,?\s*\]")
_WORDS = re.compile(r"[<>=]U[1-9]\d{0,5}")
# The last code of Unicode, and the first of its surrogates and their number.
_LAST_CHARACTER = 0x10FFFF
_SURROGATES, _SURROGATE_COUNT = np.uint32(0xD800), 0x800
_REFUSED = {
    "O": "Python objects, which only unpickling could read",
    "c": "complex numbers",
    **dict.fromkeys("SUa", "text"),
    **dict.fromkeys("Mm", "dates or time spans"),
    **dict.fromkeys("[(", "structures with fields that are not numbers"),
    "V": "raw bytes",
}


class Header(NamedTuple):
    """The claims of an NPY header: ``descr`` is the dtype as written, such as ``<f4``."""

    descr: str
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def kind(self) -> str:
        """NumPy's letter for the kind of the elements; [ for structured arrays."""
        return self.descr.lstrip("<>|=")[:1]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The dtype of the stored elements; None where attncli cannot read them."""
        if _WORDS.fullmatch(self.descr) and len(self.shape) <= 1:
            return np.dtype(self.descr)
        if _FIELDS.fullmatch(self.descr) and len(self.shape) == 1:
            fields = re.findall(_FIELD, self.descr)
            names = {name for name, code in fields if name and code[1:] in _ELEMENTS}
            return np.dtype(fields) if len(names) == len(fields) else None
        order, code = self.descr[:1], self.descr[1:]
        return np.dtype(order + code) if order and order in "<>|=" and code in _STORED else None

    def member(self, name: str, dtype: str | None) -> Member:
        """Describe the array; ``dtype`` is the option of that name."""
        stored, shape = self.dtype, self.shape
        if dtype == "bfloat16" and self.descr.lstrip("<>|=") in _MAY_BE_BFLOAT16:
            return Member(name, shape, dtype)
        if stored is None or stored.str == "|V2":
            words = {"O": "Python objects", "[": "structured", "(": "structured"}
            return Member(name, shape, words.get(self.kind, self.descr))
        if stored.names:
            fields = [stored[field].newbyteorder("=") for field in stored.names]
            return Member(name, (*shape, len(fields)), np.result_type(*fields).name)
        word = "text" if stored.kind == "U" else dtype_name(stored.newbyteorder("="))
        return Member(name, shape, word)

    def check(self, size: int, name: str, dtype: str | None) -> np.dtype[Any]:
        """Return the dtype of the stored elements; refuse a file whose size the header denies."""
        stored = self.dtype
        raw = stored is not None and stored.kind == "V" and not stored.names
        if stored is None or (raw and dtype != "bfloat16"):
            raise self.unreadable(name)
        claimed = self.start + math.prod(self.shape) * stored.itemsize
        if claimed != size:
            problem = "truncated" if claimed > size else "longer than its header says"
            wanted = f"{claimed} bytes for shape {self.shape} of dtype {self.descr}"
            raise InputError(f"{name} is {problem}: expected {wanted}; found {size}")
        check_shape(self.shape, stored.itemsize, name)
        return stored

    def unreadable(self, name: str) -> InputError:
        """Return the error for elements that are not real numbers."""
        what = _REFUSED.get(self.kind, "elements that attncli does not read")
        hint = "if these are bfloat16, give --dtype bfloat16" if self.descr.endswith("V2") else None
        if self.kind == "O":
            hint = "np.savez writes the arrays of a dictionary: np.savez('problem.npz', **arrays)"
        shown = f"(dtype {quoted(self.descr)}, shape {self.shape})"
        return InputError(f"{name}: expected real numbers; found {what} {shown}", hint=hint)


def read(source: Source) -> LoadedMapping:
    """Read the header of an NPY file; the array, whose name is empty, is mapped when asked for."""
    with source.open() as stream:
        header = read_header(stream, source.name)
    entries = LazyEntries([""], lambda _: _array(source, header))
    told = partial(header.member, dtype=source.dtype)
    return LoadedMapping(entries, source.name, source.folder, dump=True, header=told)


def _array(source: Source, header: Header) -> LoadedArray:
    stored = header.check(source.size, source.name, source.dtype)
    if stored.kind == "U":
        raise header.unreadable(source.name)
    values = source.array(
        stored, header.shape, start=header.start, order="F" if header.fortran else "C"
    )
    values = in_native_order(values, source.name, source.dtype)
    if values.dtype.names and values.dtype != BFLOAT16:
        return _columns(values, source.name)
    return LoadedArray(values, source.name)


def read_header(stream: BinaryIO, name: str) -> Header:
    """Read an NPY header of version 1 to 3 without evaluating it."""
    magic = stream.read(len(_MAGIC) + 2)
    if not magic.startswith(_MAGIC) or len(magic) < len(_MAGIC) + 2:
        raise InputError(f"{name} does not begin like an NPY file")
    version = magic[-2]
    if version not in _VERSIONS:
        raise InputError(f"{name}: expected NPY version 1 to 3; found {version}")
    bytes_of_length, encoding = _VERSIONS[version]
    prefix = stream.read(bytes_of_length)
    length = int.from_bytes(prefix, "little")
    if length > _HEADER_LIMIT:
        what = f"expected an NPY header of at most {_HEADER_LIMIT} bytes; found {length}"
        raise InputError(f"{name}: {what}")
    raw = stream.read(length)
    if len(prefix) < bytes_of_length or len(raw) < length:
        raise InputError(f"{name} ends within its NPY header")
    start = len(magic) + len(prefix) + length
    return _parsed_header(raw.decode(encoding, "replace"), start, name)


def _parsed_header(text: str, start: int, name: str) -> Header:
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if descr is None or order is None or shape is None:
        raise InputError(f"{name} has an NPY header without dtype, order or shape")
    axes = [axis for axis in shape[1].rstrip(" ,").split(",") if axis.strip()]
    if not all(map(_AXIS.fullmatch, axes)):
        what = f"expected an NPY header with whole numbers as the shape; found ({shape[1]})"
        raise InputError(f"{name}: {printable(what[:200])}")
    word = descr[1] or descr[2] or descr[3] or ""
    return Header(printable(word), tuple(map(int, axes)), order[1] == "True", start)


def check_shape(shape: tuple[int, ...], itemsize: int, name: str) -> None:
    """Refuse a shape that no NumPy array can have."""
    if len(shape) > MOST_AXES or math.prod(filter(None, shape)) * itemsize > LARGEST:
        raise InputError(f"{name}: no array has the shape {shape}")


def in_native_order(
    values: npt.NDArray[Any], name: str, dtype: str | None = None
) -> npt.NDArray[Any]:
    """Return the stored elements in native byte order, as bfloat16 if `dtype` says so."""
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    if dtype == "bfloat16" and values.dtype.str[1:] in _MAY_BE_BFLOAT16:
        return as_bfloat16(values)
    if values.dtype.str[1:] in {"u2", "i2"} and looks_like_bfloat16(values):
        warn(
            f"{name} holds 16-bit integers whose bits look like ordinary bfloat16 numbers; if they "
            "are bfloat16, give --dtype bfloat16"
        )
    # NumPy counts a byte 2 as two trues, and then writes past the end of a result.
    if values.dtype == np.bool_ and np.max(values.view(np.uint8), initial=0) > 1:
        raise InputError(f"{name} holds booleans that are neither 0 nor 1")
    return values


def entry_of(values: npt.NDArray[Any], name: str) -> object:
    """Return an array, words, or a single Python value; a structured array becomes columns."""
    if values.dtype.kind == "U":
        return _words_of(values, name)
    if values.dtype.names and values.dtype != BFLOAT16:
        return _columns(values, name)
    if values.ndim:
        return LoadedArray(values, name)
    return (widen(values, np.float64) if values.dtype == BFLOAT16 else values).item()


def _columns(records: npt.NDArray[Any], name: str) -> LoadedArray:
    """Return the fields of a structured array as named columns of one dtype."""
    from attncli.loading.headings import settle  # noqa: PLC0415 - few files hold records

    names = records.dtype.names or ()
    columns = [in_native_order(np.ascontiguousarray(records[field]), name) for field in names]
    values = np.stack(columns, axis=1)
    return settle(LoadedArray(values, name, None, names, is_table=True), "yes")


def _words_of(values: npt.NDArray[np.str_], name: str) -> str | list[str]:
    """Return the word or the list of words in an array of text."""
    codes = np.atleast_1d(values).view(np.uint32)
    # NumPy fails on codes beyond Unicode, and a surrogate cannot be encoded.
    if (codes > _LAST_CHARACTER).any() or (codes - _SURROGATES < _SURROGATE_COUNT).any():
        raise InputError(f"{name} holds text that is not Unicode")
    words: str | list[str] = values.tolist()
    return words
