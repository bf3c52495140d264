"""Files to named arrays: CSV, TSV, NPY, NPZ, safetensors, YAML and JSON.

`read` takes what a user wrote on the command line, tells the format by content
and name, and gives a `LoadedArray` or a `LoadedMapping`; the only other end is
an `AttnError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from attncli.errors import InputError, UsageError
from attncli.errors.late import late
from attncli.errors.text import counted, did_you_mean, first_few, printable, quoted
from attncli.loading.contents import Contents, LoadedArray, LoadedMapping, Member, Unread
from attncli.loading.registry import format_of
from attncli.loading.source import STANDARD_INPUT, is_file, is_zarr, open_source, refusals
from attncli.numerics.dtypes import dtype_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from attncli.loading.source import Source

__all__ = [
    "LoadedArray",
    "LoadedMapping",
    "Member",
    "describe",
    "headers",
    "is_stream",
    "kind_of",
    "member",
    "read",
    "read_array",
    "refuse_two_streams",
    "split_member",
    "two_streams",
]

_LISTED = 8
# What ``np.savez(file, array)`` calls it.
_UNNAMED = "arr_0"


def read(
    source: str,
    *,
    dtype: str | None = None,
    header: str = "auto",
    skipped: Collection[str] = (),
    stdin: BinaryIO | None = None,
) -> Contents:
    """Read what `source` names: one array, or a mapping of named entries.

    Parameters
    ----------
    source : str
        A path, ``FILE#NAME`` for one member of a file, or ``-`` for standard input.
    dtype : str, optional
        ``bfloat16`` reads 2-byte elements that have no type of their own (``|V2``,
        ``uint16`` and ``int16`` in NPY and NPZ) as bfloat16; other elements stay as they are.
    header : {"auto", "yes", "no"}
        Whether the first row of a table names its columns.
    skipped : collection of str
        Entries of a document that nobody will ask for: nothing in them is an error.
    stdin : binary file, optional
        What ``-`` reads; ``sys.stdin.buffer`` unless given.

    Raises
    ------
    InputError
        If there is no such file or member, or it is not what its format asks for.
    UsageError
        If `dtype` or `header` is not known.
    """
    if not (dtype is None or (isinstance(dtype, str) and dtype == "bfloat16")):
        raise UsageError(f"dtype: expected 'bfloat16' or nothing; found {quoted(str(dtype))}")
    if header not in ("auto", "yes", "no"):
        raise UsageError(f"header: expected auto, yes or no; found {quoted(str(header))}")
    path, member = split_member(source)
    if is_zarr(path):
        contents: Contents = late("attncli.loading.zarr_folder", "read_zarr")(path)
        return contents if member is None else _member(contents, member)
    opened = open_source(path, stdin)._replace(
        dtype=dtype, header=header, skipped=frozenset(skipped)
    )
    with refusals(opened.name):
        contents = format_of(opened).read(opened)
        return contents if member is None else _member(contents, member)


def read_array(
    source: str,
    *,
    dtype: str | None = None,
    header: str = "auto",
    entry: str | None = None,
) -> LoadedArray:
    """Read what `source` names as one array; the options are those of `read`.

    Of a mapping, the array called ``entry`` is taken, if it has one of this name.

    Raises
    ------
    InputError
        If the file is a mapping, other than of one array without a name, as ``np.savez(file, a)``
        writes it; the hint lists its members as ``FILE#NAME``.
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


def describe(source: str, *, dtype: str | None = None) -> list[Member]:
    """Return what a file holds; of NPY, NPZ and safetensors only the headers are read.

    Where the file is one array, the name of its one member is empty. Elements that attncli cannot
    compute with are no error here.
    """
    path, name = split_member(source)
    if is_zarr(path):
        members: list[Member] = late("attncli.loading.zarr_folder", "describe_zarr")(path)
    else:
        members = _members(open_source(path)._replace(dtype=dtype))
    chosen = [one for one in members if name in {None, one.name}]
    if not chosen:
        raise InputError(f"{printable(path)} has no member {quoted(name or '')}")
    return chosen


def _members(source: Source) -> list[Member]:
    with refusals(source.name):
        found = format_of(source)
        if found.describe is not None:
            return found.describe(source)
        held = found.read(source)
        entries = {"": held} if isinstance(held, LoadedArray) else held.entries
        return [member(*item) for item in entries.items()]


def headers(source: str) -> list[Member]:
    """Return what the headers of a file say; nothing if its format has none, or it is a stream."""
    path = split_member(source)[0]
    known = is_file(path) and format_of(open_source(path)).describe is not None
    return describe(source) if known else []


def split_member(source: str) -> tuple[str, str | None]:
    """Split ``FILE#NAME`` into the file and the member; None where no member is named.

    A file whose own name holds ``#`` comes first.

    Examples
    --------
    >>> split_member("dump.npz#q")
    ('dump.npz', 'q')
    >>> split_member("q.csv")
    ('q.csv', None)
    """
    if "#" not in source or _exists(source):
        return source, None
    cuts = [at for at, letter in enumerate(source) if letter == "#"]
    cut = next((at for at in reversed(cuts) if source[:at] == "-" or _exists(source[:at])), cuts[0])
    return source[:cut], source[cut + 1 :]


def is_stream(word: object) -> bool:
    """Return whether an argument names standard input, or a member of it."""
    return isinstance(word, str) and split_member(word)[0] == "-"


def refuse_two_streams(words: Iterable[object]) -> None:
    """Refuse several words that name standard input."""
    if sum(map(is_stream, words)) > 1:
        raise two_streams()


def two_streams() -> UsageError:
    """Return the error of what names standard input a second time."""
    msg = "standard input (-) can be read only once"
    return UsageError(msg, hint="read one of them from a file")


def _exists(path: str) -> bool:
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):  # a name too long, or with a NUL: not a file's
        return False


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


def member(name: str, entry: object) -> Member:
    """Return what an entry is."""
    if isinstance(entry, LoadedArray):
        return Member(name, entry.values.shape, dtype_name(entry.values.dtype))
    if isinstance(entry, list):
        return Member(name, (len(entry),), "text", note=", ".join(map(str, entry)))
    return Member(name, (), kind_of(entry), note=None if entry is None else str(entry))


def kind_of(entry: object) -> str:
    """Return the word for the kind of a single value: ``text``, ``null``, ``bool``."""
    words = {str: "text", list: "text", type(None): "null", Unread: "summary"}
    return words.get(type(entry), type(entry).__name__)
