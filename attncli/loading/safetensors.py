"""Read safetensors: a JSON header and the bytes of every tensor; several files by their index.

The ``safetensors`` package has no bfloat16 for NumPy without another dependency, does not map the
file, and cannot read a pipe. Reference: Hugging Face, "Safetensors", section "Format".
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from attncli.errors import InputError
from attncli.errors.text import printable, quoted
from attncli.loading.contents import LazyEntries, LoadedMapping, Member
from attncli.loading.documents import json_tree
from attncli.loading.npy import LARGEST, MOST_AXES, check_shape, entry_of, in_native_order
from attncli.loading.source import Source, open_source, refusals
from attncli.numerics.dtypes import BFLOAT16, dtype_name

# Bytes: room for 80,000 tensors of about 100 bytes each.
_HEADER_LIMIT = 8 * 2**20
_DTYPES: dict[str, np.dtype[Any]] = {
    f"{code[0].upper()}{8 * int(code[1])}": np.dtype(f"<{code}")
    for code in ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
}
_DTYPES |= {"BOOL": np.dtype(np.bool_), "BF16": BFLOAT16}


class _Tensor(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read(source: Source) -> LoadedMapping:
    """Read the header of a safetensors file; each tensor is mapped when it is asked for."""
    tensors, metadata = _header(source)

    def entry(name: str) -> object:
        with refusals(source.name):
            return _read_tensor(source, name, tensors[name])

    def header(name: str) -> Member:
        dtype = tensors[name].dtype
        word = dtype_name(_DTYPES[dtype]) if dtype in _DTYPES else dtype
        return Member(name, tensors[name].shape, word)

    entries = LazyEntries(tensors, entry)
    return LoadedMapping(
        entries, source.name, source.folder, dump=True, metadata=metadata, header=header
    )


def _read_tensor(source: Source, name: str, tensor: _Tensor) -> object:
    full = f"{source.name}#{printable(name)}"
    stored = _DTYPES.get(tensor.dtype)
    if stored is None:
        known = ", ".join(_DTYPES)
        raise InputError(f"{full}: expected a dtype of {known}; found {quoted(tensor.dtype)}")
    check_shape(tensor.shape, stored.itemsize, full)
    values = source.array(stored, tensor.shape, start=tensor.start)
    return entry_of(in_native_order(values, full, source.dtype), full)


def _header(source: Source) -> tuple[dict[str, _Tensor], dict[str, str]]:
    """Return tensors and metadata; refuse a header that does not fit the size of the file."""
    prefix = source.part(0, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= source.size - 8:
        what = "is not a safetensors file, or is truncated within its header"
        raise InputError(f"{source.name} {what}")
    if length > _HEADER_LIMIT:
        what = f"expected a header of at most {_HEADER_LIMIT} bytes; found {length}"
        raise InputError(f"{source.name}: {what}")
    try:
        text = source.part(8, length).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{source.name} has a header that is not UTF-8") from error
    entries = json_tree(source, text)
    if not isinstance(entries, dict):
        raise InputError(f"{source.name} has a header that is not a mapping of distinct names")
    metadata = entries.pop("__metadata__", None)
    if not entries:
        raise InputError(f"{source.name} holds no arrays")
    start = 8 + length
    tensors = {name: _tensor(source, name, entry, start) for name, entry in entries.items()}
    _check_layout(source, list(tensors.values()), start)
    said = metadata if isinstance(metadata, dict) else {}
    return tensors, {name: word for name, word in said.items() if isinstance(word, str)}


def _tensor(source: Source, name: str, entry: object, base: int) -> _Tensor:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape, ends = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
    full = f"{source.name}#{printable(name)}"
    if not (isinstance(dtype, str) and _sizes(shape) and _sizes(ends) and len(ends) == 2):
        wanted = f"dtype, shape of at most {MOST_AXES} axes and two data_offsets"
        raise InputError(f"{full}: expected a header with {wanted}")
    if dtype in _DTYPES:
        claimed = math.prod(shape) * _DTYPES[dtype].itemsize
        if claimed != ends[1] - ends[0]:
            what = f"{dtype} of shape {tuple(shape)} takes {claimed} bytes"
            span = f"its data_offsets {ends} span {ends[1] - ends[0]}"
            raise InputError(f"{full} has an inconsistent header: {what}; {span}")
    return _Tensor(dtype, tuple(shape), base + ends[0], base + ends[1])


def _sizes(value: object) -> TypeGuard[list[int]]:
    # Not isinstance: true is an int to Python, but not a size.
    return (
        isinstance(value, list)
        and len(value) <= MOST_AXES
        and all(type(size) is int and 0 <= size <= LARGEST for size in value)
    )


def _check_layout(source: Source, tensors: list[_Tensor], start: int) -> None:
    """Refuse tensors that overlap, leave holes, or do not end where the file ends."""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != start or tensor.end < start:
            raise InputError(f"{source.name} has a header with tensors that overlap or leave holes")
        start = tensor.end
    if start != source.size:
        problem = "is truncated" if start > source.size else "is longer than its header says"
        raise InputError(f"{source.name} {problem}: expected {start} bytes; found {source.size}")


def read_index(source: Source) -> LoadedMapping:
    """Read an index that says which file holds which tensor; files are opened when needed."""
    places = _places(source)

    @cache
    def held(file: str) -> LoadedMapping:
        beside = open_source(str(Path(source.folder) / file))
        return read(beside._replace(dtype=source.dtype))

    def holder(name: str) -> LoadedMapping:
        contents = held(places[name])
        if name not in contents.entries:
            what = f"holds no {printable(name)}, though {source.name} says so"
            raise InputError(f"{contents.name} {what}")
        return contents

    entries = LazyEntries(places, lambda name: holder(name).entries[name])
    return LoadedMapping(
        entries,
        source.name,
        source.folder,
        dump=True,
        header=lambda name: holder(name).member(name),
    )


def _places(source: Source) -> dict[str, str]:
    found = json_tree(source, source.text())
    places = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(places, dict) or not places:
        what = "expected the index of a checkpoint, with weight_map; found none"
        raise InputError(f"{source.name}: {what}")
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", "-", ".."):
            what = f"expected the name of a file beside it for {printable(name)}"
            raise InputError(f"{source.name}: {what}; found {quoted(str(file))}")
    return places
