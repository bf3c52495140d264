"""The formats attncli reads, and how a file is told to be one of them."""

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

__all__ = ["AS_CSV", "format_of"]

_HEAD = 4096
# What lists the files of a checkpoint in several; the second, those of pickles.
_INDEX, _INDEX_OF_PICKLES = ".safetensors.index.json", ".bin.index.json"
AS_CSV = "save each sheet as CSV UTF-8"
_AS_SAFETENSORS = (
    "save the model as safetensors, in Python: "
    'model.save_pretrained("folder", safe_serialization=True)'
)
# What other files begin with, by what to do with these.
_FOREIGN: dict[str | None, dict[bytes, str]] = {
    "unpack it first": {
        b"\x1f\x8b": "gzip",
        b"\xfd7zXZ": "xz",
        b"BZh": "bzip2",
        b"\x28\xb5\x2f\xfd": "zstd",
        b"7z\xbc\xaf": "7z",
    },
    "git lfs pull fetches what it stands for": {b"version https://git-lfs": "Git LFS pointer"},
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
# The first member of the archive that torch.save writes.
_TORCH = rb"PK\x03\x04.{26}[^/\0]{1,200}/(?:data\.pkl|\.format_version|\.data)"
_NPY, _ZIP = rb"\x93NUMPY", rb"PK(?:\x03\x04|\x05\x06)"
# A plausible length of the header in eight bytes, and a JSON mapping.
_SAFETENSORS = rb".{4}\0{4}\{"
# What pandas names a column without a name is no key of YAML.
_YAML_LINE = rb"""---|%YAML|-\s|-$|(?!Unnamed: \d)(?:[\w.-]+|"[^"]*"|'[^']*')\s*:(?:\s|$)"""
_JSON_START = rb"""\{|\[\s*(?:[\[\d"+-]|$)"""


class Format(NamedTuple):
    """One format: its suffixes, its first bytes (certain if ``binary``), and how to read it."""

    name: str
    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    read: Callable[[Source], Contents]
    binary: bool = False


def _like(pattern: bytes) -> Callable[[bytes], bool]:
    """Return whether first bytes are like a pattern."""
    return lambda head: re.match(pattern, head, re.DOTALL) is not None


def _begins_as_json(head: bytes) -> bool:
    return re.match(_JSON_START, head.lstrip()) is not None


def _begins_as_yaml(head: bytes) -> bool:
    for line in head.splitlines():
        words = line.strip()
        if words and not words.startswith(b"#"):
            # YAML has no tabs before its words: a table's first cell is empty.
            return re.match(_YAML_LINE, words) is not None and not line.startswith(b"\t")
    return False


def _reader(module: str) -> Callable[[Source], Contents]:
    return late(f"attncli.loading.{module}", "read")


FORMATS = (
    Format("PyTorch", (), _like(_TORCH), _reader("torch_file"), binary=True),
    Format("NPY", (".npy",), _like(_NPY), _reader("npy"), binary=True),
    Format("NPZ", (".npz",), _like(_ZIP), _reader("npz"), binary=True),
    Format(
        "safetensors", (".safetensors",), _like(_SAFETENSORS), _reader("safetensors"), binary=True
    ),
    Format("JSON", (".json",), _begins_as_json, _reader("json_text")),
    Format("YAML", (".yaml", ".yml"), _begins_as_yaml, _reader("yaml_text")),
    Format("CSV", (".csv", ".tsv"), bool, _reader("table")),
)
_CHECKPOINT_INDEX = Format(
    "index", (), _begins_as_json, late("attncli.loading.safetensors", "read_index"), binary=True
)


def format_of(source: Source) -> Format:
    """Tell the format by the content, and where that leaves a choice, by the name."""
    head = source.part(0, _HEAD)
    for candidate in FORMATS:
        if candidate.binary and candidate.begins(head):
            return candidate
    _refuse_foreign(source, head)
    if source.name.endswith(_INDEX):
        return _CHECKPOINT_INDEX
    head = head.removeprefix(BOM) or head
    named = next((one for one in FORMATS if source.suffix in one.suffixes), None)
    if named is not None and (named.name != "CSV" or not _is_bracketed(source, head)):
        return named
    return next(one for one in FORMATS if not one.binary and one.begins(head))


def _refuse_foreign(source: Source, head: bytes) -> None:
    for hint, kinds in _FOREIGN.items():
        for kind in (kind for start, kind in kinds.items() if head.startswith(start)):
            raise InputError(f"{source.name} is a {kind} file, which is not read", hint=hint)
    if source.name.endswith(_INDEX_OF_PICKLES):
        what = f"{source.name} says which pickle of a checkpoint holds what"
        raise InputError(f"{what}; pickles are never read", hint=_AS_SAFETENSORS)


def _is_bracketed(source: Source, head: bytes) -> bool:
    """Whether a text is a JSON document whatever its name is, not a label like [CLS]."""
    tail = source.part(max(0, source.size - _HEAD), _HEAD).rstrip()
    return _begins_as_json(head) and head.lstrip()[:1] + tail[-1:] in {b"[]", b"{}"}
