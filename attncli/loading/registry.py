"""The formats that attncli reads, and how it recognises them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from attncli.errors import InputError
from attncli.errors.late import late
from attncli.loading.source import BOM

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.loading.contents import Contents
    from attncli.loading.source import Source

# Bytes at the beginning of a file that show its format.
_HEAD = 4096
# The name of an index ends so; it says which file of a checkpoint holds which tensor.
_INDEX = ".safetensors.index.json"
AS_CSV = "save each sheet as CSV UTF-8"
# Files that attncli does not read: for each hint, their first bytes and the names of the formats.
_FOREIGN: dict[str | None, dict[bytes, str]] = {
    "unpack it first": {
        b"\x1f\x8b": "gzip",
        b"\xfd7zXZ": "xz",
        b"BZh": "bzip2",
        b"\x28\xb5\x2f\xfd": "zstd",
        b"7z\xbc\xaf": "7z",
    },
    "git lfs pull fetches the file itself": {b"version https://git-lfs": "Git LFS pointer"},
    "save the arrays as NPZ or safetensors": {
        b"GGUF": "GGUF",
        b"ARROW1": "Arrow",
        b"SQLite format 3": "SQLite",
        b"PAR1": "Parquet",
        b"\x89HDF": "HDF5",
        b"MATLAB ": "MATLAB",
        **{bytes([0x80, protocol]): "pickle" for protocol in range(2, 6)},
    },
    AS_CSV: {b"\xd0\xcf\x11\xe0": "spreadsheet"},
    'save the array itself, in Python: numpy.save("q.npy", q)': {
        **dict.fromkeys((b"tensor([", b"array(["), "printed array")
    },
    None: {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"%PDF": "PDF"},
}
# An archive of torch.save, by the name of its first member.
_TORCH = rb"PK\x03\x04.{26}[^/\0]{1,200}/(?:data\.pkl|\.format_version|\.data)"
_NPY, _ZIP = rb"\x93NUMPY", rb"PK(?:\x03\x04|\x05\x06)"
# The length of the header in eight bytes, below 4 GiB, and the beginning of a JSON mapping.
_SAFETENSORS = rb".{4}\0{4}\{"
_JSON = rb"""\s*(?:\{|\[\s*(?:[\[\d"+-]|\Z))"""
# The first line that is not a comment begins a document, a list item or a key. A tab before the
# words is the empty first cell of a table, and ``Unnamed: 0`` is a column name by pandas.
_YAML = (
    rb"(?:[^\S\n]*(?:#[^\n]*)?\n)*+ *"
    rb"(?:---|%YAML|-(?:\s|\Z)|(?!Unnamed: \d)"
    rb"""(?:[\w.-]+|"[^"\n]*"|'[^'\n]*')[^\S\n]*:(?:\s|\Z))"""
)


class Format(NamedTuple):
    """One format: its suffixes, the pattern of its first bytes, its reader, and its kind."""

    suffixes: tuple[str, ...]
    begins: re.Pattern[bytes]
    read: Callable[[Source], Contents]
    binary: bool = False


def _format(
    module: str, suffixes: str, begins: bytes, *, binary: bool = False, function: str = "read"
) -> Format:
    read = late(f"attncli.loading.{module}", function)
    return Format(tuple(suffixes.split()), re.compile(begins, re.DOTALL), read, binary)


FORMATS = (
    _format("torch_file", "", _TORCH, binary=True),
    _format("npy", ".npy", _NPY, binary=True),
    _format("npz", ".npz", _ZIP, binary=True),
    _format("safetensors", ".safetensors", _SAFETENSORS, binary=True),
    _format("documents", ".json", _JSON),
    _format("yaml_text", ".yaml .yml", _YAML),
)
_TABLE = _format("table", ".csv .tsv", b"")
_CHECKPOINT_INDEX = _format("safetensors", "", _JSON, binary=True, function="read_index")


def format_of(source: Source) -> Format:
    """Return the format of a file by its first bytes and its name."""
    head = source.part(0, _HEAD)
    begun = [one for one in FORMATS if one.begins.match(head.removeprefix(BOM) or head)]
    if begun and begun[0].binary:
        return begun[0]
    for hint, kinds in _FOREIGN.items():
        for kind in (kind for start, kind in kinds.items() if head.startswith(start)):
            raise InputError(f"{source.name} is a {kind} file, which is not read", hint=hint)
    if source.name.endswith(_INDEX):
        return _CHECKPOINT_INDEX
    if source.suffix in _TABLE.suffixes:
        tail = source.part(max(0, source.size - _HEAD), _HEAD).rstrip()
        # Brackets around the whole text: a document under the wrong name, not the label [CLS].
        enclosed = head.removeprefix(BOM).lstrip()[:1] + tail[-1:] in {b"[]", b"{}"}
        return begun[0] if begun and enclosed else _TABLE
    named = [one for one in FORMATS if source.suffix in one.suffixes]
    return (*named, *begun, _TABLE)[0]
