"""What a file holds, as data: members with their range, attention layers, a picture's texts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.checkpoints.layers import layer_widths
from attncli.checkpoints.names import find_layers
from attncli.describing.survey import Survey, survey
from attncli.dtypes import dtype_name
from attncli.errors import InputError
from attncli.loading import describe, headers, kind_of, read, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping, Member
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from attncli.checkpoints.layers import Widths
    from attncli.checkpoints.names import Layer

__all__ = ["FileInfo", "LayerInfo", "MemberInfo", "inspect"]

# Enough to tell a picture from a table of numbers.
_HEAD = 4096
_MOST_PICTURE = 1 << 28


@dataclass(frozen=True)
class MemberInfo:
    """One entry of a file.

    Attributes
    ----------
    name : str
        Empty where the whole file is one array.
    shape : tuple of int
    dtype : str
        ``float32``, ``bfloat16``, …, or what stands there instead: ``text``, ``bool``.
    numbers : Survey or None
        None where they are none, cannot be read, or were not looked at.
    note : str or None
        A single value, the first words of a list, labels, or why it cannot be read.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: Survey | None = None
    note: str | None = None


@dataclass(frozen=True)
class LayerInfo:
    """One attention layer of a checkpoint.

    Attributes
    ----------
    argument : str
        What to give to ``--checkpoint``.
    layer : Layer
    widths : Widths or None
        None where its members have shapes that no layer has.
    """

    argument: str
    layer: Layer
    widths: Widths | None


@dataclass(frozen=True)
class FileInfo:
    """One file.

    Attributes
    ----------
    name : str
    members : tuple of MemberInfo
    layers : tuple of LayerInfo
    texts : mapping of str to str
        What a picture says of itself.
    picture : str or None
        ``png``, ``svg`` or ``pdf``.
    """

    name: str
    members: tuple[MemberInfo, ...] = ()
    layers: tuple[LayerInfo, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    picture: str | None = None


def inspect(source: str, *, numbers: bool = True, dtype: str | None = None) -> FileInfo:
    """Return what a file holds.

    Parameters
    ----------
    source : str
        A path, ``FILE#NAME`` for one member, or ``-`` for standard input.
    numbers : bool
        Look at every number for range and non-finite count; without it NPY, NPZ and
        safetensors are not read beyond their headers.
    dtype
        As in `attncli.gather.gather`.

    Raises
    ------
    InputError
        There is no such file, or it is neither a picture nor a file of numbers.
    """
    picture = _picture(source)
    if picture is not None:
        return picture
    members = tuple(_surveyed(source, dtype) if numbers else _described(source, dtype))
    return FileInfo(printable(source), members, _layers(source, members))


def _picture(source: str) -> FileInfo | None:
    from attncli.describing.pictures import picture_format, read_texts  # noqa: PLC0415

    path = Path(source)
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            kind = picture_format(stream.read(_HEAD))
            if kind is None:
                return None
            stream.seek(0)
            texts = read_texts(stream.read(_MOST_PICTURE))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise InputError(f"{printable(source)}: {error.message}") from error
        # What cannot be opened is told in one place, where every file is opened.
        return None
    return FileInfo(printable(source), texts=texts, picture=kind)


def _described(source: str, dtype: str | None) -> Iterator[MemberInfo]:
    for member in describe(source, dtype=dtype):
        yield MemberInfo(member.name, member.shape, member.dtype_name)


def _surveyed(source: str, dtype: str | None) -> Iterator[MemberInfo]:
    try:
        contents = read(source, dtype=dtype)
    except InputError as error:
        # The header of an array of objects, say, tells what it is all the same.
        yield from (_unread(member, error) for member in _headers(source, error))
        return
    if isinstance(contents, LoadedArray):
        name = split_member(source)[1] or ""
        yield _array(name, contents)
        return
    for name in contents.entries:
        yield _entry(source, name, contents)


def _headers(source: str, error: InputError) -> list[Member]:
    """Return what the headers say, or raise the first error where they say nothing either."""
    try:
        found = headers(source)
    except InputError:
        raise error from None
    if not found:
        raise error
    return found


def _header(source: str, name: str) -> Member:
    """Return what the headers say of a member; no more than its name where they say nothing."""
    with suppress(InputError):
        return next((one for one in headers(source) if one.name == name), Member(name, (), "?"))
    return Member(name, (), "?")


def _entry(source: str, name: str, contents: LoadedMapping) -> MemberInfo:
    try:
        entry = contents.entries[name]
    except InputError as error:
        return _unread(_header(split_member(source)[0], name), error)
    if isinstance(entry, LoadedArray):
        return _array(name, entry)
    if isinstance(entry, list):
        return MemberInfo(name, (len(entry),), "text", note=", ".join(map(str, entry)))
    return MemberInfo(name, (), kind_of(entry), note=None if entry is None else str(entry))


def _array(name: str, array: LoadedArray) -> MemberInfo:
    labels = [
        f"{what}: {', '.join(words)}"
        for what, words in (("rows", array.row_labels), ("columns", array.column_labels))
        if words
    ]
    values = array.values
    note = "; ".join(labels) or None
    return MemberInfo(name, values.shape, dtype_name(values.dtype), survey(values), note)


def _unread(member: Member, error: InputError) -> MemberInfo:
    return MemberInfo(member.name, member.shape, member.dtype_name, note=error.message)


def _layers(source: str, members: tuple[MemberInfo, ...]) -> tuple[LayerInfo, ...]:
    file, member = split_member(source)
    if member is not None:
        return ()
    # A word in the place of an array is a file's name in a problem.
    shapes = {info.name: info.shape for info in members if info.shape}
    return tuple(
        LayerInfo(
            f"{file}#{layer.prefix}" if layer.prefix else file,
            layer,
            layer_widths(layer, shapes),
        )
        for layer in find_layers(shapes)
    )
