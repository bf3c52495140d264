"""Read safetensors: a JSON header and the bytes of every tensor.

The header is read here and not by the ``safetensors`` package: its NumPy side has
no bfloat16 without another dependency, does not map the file, and cannot read a
pipe. The format is small enough to check in full.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from attncli.dtypes import BFLOAT16, dtype_name
from attncli.errors import InputError
from attncli.loading.contents import LoadedMapping, Member
from attncli.loading.elements import LARGEST, MOST_AXES, check_shape, entry_of, in_native_order
from attncli.loading.json_text import bounded_json
from attncli.loading.lazy import LazyEntries
from attncli.loading.source import Source, refusals
from attncli.loading.tree import Document
from attncli.text import printable, quoted

__all__ = ["describe_safetensors", "read_safetensors"]

# About 100 bytes a tensor: room for 80,000 of them.
_HEADER_LIMIT = 8 * 2**20
_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("<u1"),
    "I8": np.dtype("<i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": BFLOAT16,
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_safetensors(source: Source) -> LoadedMapping:
    """Read the header of a safetensors file; each tensor is mapped when asked for.

    Parameters
    ----------
    source : Source

    Returns
    -------
    LoadedMapping

    Raises
    ------
    InputError
        If the header lies about the file. Reading a tensor of a dtype that
        attncli does not know raises it too.

    References
    ----------
    .. [1] Hugging Face, "Safetensors", section "Format".
    """
    tensors = _tensors(source)

    def entry(name: str) -> object:
        with refusals(source.name):
            return _read_tensor(source, name, tensors[name])

    return LoadedMapping(LazyEntries(tensors, entry), source.name, source.folder, dump=True)


def describe_safetensors(source: Source) -> list[Member]:
    """Return the shape and dtype of every tensor, from the header."""
    return [
        Member(name, tensor.shape, _word(tensor.dtype)) for name, tensor in _tensors(source).items()
    ]


def _word(dtype: str) -> str:
    return dtype_name(_DTYPES[dtype]) if dtype in _DTYPES else dtype


def _read_tensor(source: Source, name: str, tensor: _Tensor) -> object:
    full = f"{source.name}#{printable(name)}"
    stored = _DTYPES.get(tensor.dtype)
    if stored is None:
        known = ", ".join(_DTYPES)
        raise InputError(f"{full}: expected a dtype of {known}; found {quoted(tensor.dtype)}")
    check_shape(tensor.shape, stored.itemsize, full)
    values = source.array(stored, tensor.shape, start=tensor.start)
    return entry_of(in_native_order(values, full, source.dtype), full)


def _tensors(source: Source) -> dict[str, _Tensor]:
    """Read the header and hold it against the size of the file."""
    prefix = source.part(0, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= source.size - 8:
        msg = f"{source.name} is not a safetensors file, or is truncated within its header"
        raise InputError(msg)
    if length > _HEADER_LIMIT:
        msg = f"{source.name}: expected a header of at most {_HEADER_LIMIT} bytes; found {length}"
        raise InputError(msg)
    try:
        text = source.part(8, length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source.name} has a header that is not UTF-8") from error
    entries = bounded_json(Document(source, text))
    if not isinstance(entries, dict):
        raise InputError(f"{source.name} has a header that is not a mapping of distinct names")
    entries.pop("__metadata__", None)
    if not entries:
        raise InputError(f"{source.name} holds no arrays")
    start = 8 + length
    tensors = {name: _tensor(source, name, entry, start) for name, entry in entries.items()}
    _check_layout(source, list(tensors.values()), start)
    return tensors


def _tensor(source: Source, name: str, entry: object, base: int) -> _Tensor:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, ends = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    full = f"{source.name}#{printable(name)}"
    if not (isinstance(dtype, str) and _sizes(shape) and _sizes(ends) and len(ends) == 2):
        msg = (
            f"{full}: expected a header with dtype, shape of at most {MOST_AXES} axes and "
            "two data_offsets"
        )
        raise InputError(msg)
    if dtype in _DTYPES:
        claimed = math.prod(shape) * _DTYPES[dtype].itemsize
        if claimed != ends[1] - ends[0]:
            msg = (
                f"{full} has an inconsistent header: {dtype} of shape {tuple(shape)} takes "
                f"{claimed} bytes; its data_offsets {ends} span {ends[1] - ends[0]}"
            )
            raise InputError(msg)
    return _Tensor(dtype, tuple(shape), base + ends[0], base + ends[1])


def _sizes(value: object) -> TypeGuard[list[int]]:
    # Not isinstance: true is an int to Python, but not a size.
    return (
        isinstance(value, list)
        and len(value) <= MOST_AXES
        and all(type(size) is int and 0 <= size <= LARGEST for size in value)
    )


def _check_layout(source: Source, tensors: list[_Tensor], start: int) -> None:
    """The format wants the tensors one behind the other, and nothing else in the file."""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != start or tensor.end < start:
            msg = f"{source.name} has a header with tensors that overlap or leave holes"
            raise InputError(msg)
        start = tensor.end
    if start != source.size:
        problem = "is truncated" if start > source.size else "is longer than its header says"
        raise InputError(f"{source.name} {problem}: expected {start} bytes; found {source.size}")
