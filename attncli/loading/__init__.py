"""Read named arrays from files: CSV, TSV, NPY, NPZ, safetensors, YAML, JSON, PyTorch and Zarr.

`read` recognises the format by the first bytes of a file and by its name. It returns a
`LoadedArray` or a `LoadedMapping`, or raises an `AttnError`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, BinaryIO

from attncli.errors import InputError, UsageError
from attncli.errors.late import late
from attncli.errors.text import counted, did_you_mean, first_few, printable, quoted
from attncli.loading.contents import Contents, LoadedArray, LoadedMapping, Member, kind_of
from attncli.loading.registry import format_of
from attncli.loading.source import STANDARD_INPUT, is_file, is_zarr, open_source, refusals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = [
    "LoadedArray",
    "LoadedMapping",
    "Member",
    "describe",
    "headers",
    "is_stream",
    "kind_of",
    "open_members",
    "read",
    "read_array",
    "refuse_two_streams",
    "split_member",
]

# Members that an error message lists at most.
_LISTED = 8
# The name that ``np.savez(file, array)`` gives to the array.
_UNNAMED = "arr_0"


def read(
    source: str,
    *,
    dtype: str | None = None,
    header: str = "auto",
    skipped: Collection[str] = (),
    stdin: BinaryIO | None = None,
) -> Contents:
    """Read the file that `source` names: a path, ``FILE#NAME`` for one member, or ``-``.

    With the `dtype` ``bfloat16``, 2-byte elements of NPY and NPZ files are read as bfloat16.
    `header` says whether the first row of a table names its columns. Entries of a document whose
    names are in `skipped` are not read. `stdin` replaces standard input.
    """
    if not (dtype is None or (isinstance(dtype, str) and dtype == "bfloat16")):
        raise UsageError(f"dtype: expected 'bfloat16' or nothing; found {quoted(str(dtype))}")
    if header not in ("auto", "yes", "no"):
        raise UsageError(f"header: expected auto, yes or no; found {quoted(str(header))}")
    path, member = split_member(source)
    contents = _contents(path, stdin, dtype=dtype, header=header, skipped=frozenset(skipped))
    if isinstance(contents, LoadedMapping) and contents.dump and [*contents.entries] == [""]:
        alone = contents.entries[""]
        contents = alone if isinstance(alone, LoadedArray) else contents
    return contents if member is None else _member(contents, member)


def read_array(
    source: str, *, dtype: str | None = None, header: str = "auto", entry: str | None = None
) -> LoadedArray:
    """Read one array from a file; from a file of several arrays, the array named `entry`.

    A mapping that ``np.savez(file, a)`` wrote counts as one array.
    """
    contents = read(source, dtype=dtype, header=header)
    if isinstance(contents, LoadedArray):
        return contents
    if list(contents.entries) == [_UNNAMED]:
        entry = _UNNAMED
    if entry is not None and entry in contents.entries:
        held = contents.entries[entry]
        if isinstance(held, LoadedArray):
            return held
    names = [
        name
        for name in contents.entries
        if contents.dump or isinstance(contents.entries[name], LoadedArray)
    ]
    found = counted(len(contents.entries), "entry", "entries")
    if len(names) == 1:
        found = f"an entry with a name, {printable(names[0])}"
    hint = f"choose one: {_listed(contents, names)}" if names else "none of them is an array"
    raise InputError(f"{contents.name}: expected one array; found {found}", hint=hint)


def open_members(source: str, *, dtype: str | None = None) -> tuple[LoadedMapping, list[str]]:
    """Return the entries of a file, and the names of all of them or of the one in ``FILE#NAME``.

    A file of one array has one entry, whose name is empty.
    """
    path, name = split_member(source)
    contents = _contents(path, dtype=dtype)
    if isinstance(contents, LoadedArray):
        contents = LoadedMapping({"": contents}, contents.name)
    if name is not None and name not in contents.entries:
        raise InputError(f"{printable(path)} has no member {quoted(name)}")
    return contents, [*contents.entries] if name is None else [name]


def describe(source: str, *, dtype: str | None = None) -> list[Member]:
    """Return the members of a file; only the headers of NPY, NPZ, safetensors and Zarr are read."""
    contents, names = open_members(source, dtype=dtype)
    with refusals(contents.name):
        return [contents.member(name) for name in names]


def headers(source: str) -> list[Member]:
    """Return the members that a binary file's headers list; no members for texts and streams."""
    path = split_member(source)[0]
    return describe(source) if is_file(path) and format_of(open_source(path)).binary else []


def split_member(source: str) -> tuple[str, str | None]:
    """Split ``FILE#NAME`` into file and member; the member is None if all of it names a file."""
    if "#" not in source or os.path.exists(source):  # noqa: PTH110 - no error for impossible names
        return source, None
    cuts = [at for at, letter in enumerate(source) if letter == "#"]
    known = (at for at in reversed(cuts) if source[:at] == "-" or os.path.exists(source[:at]))  # noqa: PTH110
    cut = next(known, cuts[0])
    return source[:cut], source[cut + 1 :]


def is_stream(word: object) -> bool:
    """Return whether an argument names standard input, or a member of it."""
    return isinstance(word, str) and split_member(word)[0] == "-"


def refuse_two_streams(words: Iterable[object]) -> None:
    """Raise an error if several words name standard input."""
    if sum(map(is_stream, words)) > 1:
        msg = "standard input (-) can be read only once"
        raise UsageError(msg, hint="read one of them from a file")


def _contents(path: str, stdin: BinaryIO | None = None, **options: Any) -> Contents:
    if is_zarr(path):
        found: Contents = late("attncli.loading.zarr_folder", "read_zarr")(path)
        return found
    source = open_source(path, stdin)._replace(**options)
    with refusals(source.name):
        return format_of(source).read(source)


def _member(contents: Contents, name: str) -> LoadedArray:
    if isinstance(contents, LoadedArray):
        raise InputError(f"{contents.name} is one array; it has no member {quoted(name)}")
    if name not in contents.entries:
        msg = f"{contents.name} has no member {quoted(name)}"
        hint = did_you_mean(name, contents.entries)
        raise InputError(msg, hint=hint or f"it holds {_listed(contents, contents.entries)}")
    entry = contents.entries[name]
    if not isinstance(entry, LoadedArray):
        kind = "a list of words" if isinstance(entry, list) else f"the single value {entry!r:.40}"
        raise InputError(f"{contents.name}#{printable(name)}: expected an array; found {kind}")
    return entry


def _listed(contents: LoadedMapping, names: Collection[str]) -> str:
    file = "-" if contents.name == STANDARD_INPUT else contents.name
    return first_few([f"{file}#{printable(name)}" for name in names], _LISTED)
