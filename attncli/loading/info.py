"""What a file holds, as data: its members with the range of their numbers, labels, texts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading import describe, headers, kind_of, read, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping, Member
from attncli.loading.number import is_attempt
from attncli.loading.pictures import picture_format, read_texts
from attncli.loading.source import is_file, open_source
from attncli.loading.words import read_words
from attncli.numerics.dtypes import dtype_name, readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["FileInfo", "MemberInfo", "Survey", "inspect", "survey"]

# Enough bytes to tell a picture from a table of numbers, and the most of a picture.
_HEAD, _MOST_PICTURE = 4096, 1 << 28
# 16 MB in float64; what is mapped is read once and not kept.
_BLOCK = 1 << 21


@dataclass(frozen=True)
class Survey:
    """The range of the finite numbers (None without any), and how many are none."""

    minimum: float | None
    maximum: float | None
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0

    @property
    def nonfinite(self) -> int:
        """How many are NaN, inf or −inf."""
        return self.nan + self.inf + self.minus_inf


@dataclass(frozen=True)
class MemberInfo:
    """One entry of a file: the ``note`` is its single value, words, labels, or why it is not read.

    The name is empty where the file is one array; ``numbers`` is None where none were looked at.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: Survey | None = None
    note: str | None = None


@dataclass(frozen=True)
class FileInfo:
    """One file; of a ``picture`` (``png``, ``svg``, ``pdf``) the ``texts`` that it carries."""

    name: str
    members: tuple[MemberInfo, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    picture: str | None = None


def inspect(source: str, *, numbers: bool = True, dtype: str | None = None) -> FileInfo:
    """Return what a file holds; without ``numbers``, binary files only by their headers."""
    picture = _picture(source)
    if picture is not None:
        return picture
    try:
        if numbers:
            members = tuple(_surveyed(source, dtype))
        else:
            found = describe(source, dtype=dtype)
            members = tuple(MemberInfo(one.name, one.shape, one.dtype_name) for one in found)
    except InputError:
        words = _labels(source)
        if words is None:
            raise
        members = (MemberInfo("", (len(words),), "text", note=f"labels: {', '.join(words)}"),)
    return FileInfo(printable(source), members)


def survey(array: npt.NDArray[Any]) -> Survey:
    """Return the range of an array and the counts of its non-finite numbers.

    Examples
    --------
    >>> survey(np.array([1.0, -np.inf, 3.0]))
    Survey(minimum=1.0, maximum=3.0, nan=0, inf=0, minus_inf=1)
    """
    flat = array.ravel(order="K")
    minima, maxima, odd = [], [], np.zeros(3, np.int64)
    for start in range(0, flat.size, _BLOCK):
        block = readable(flat[start : start + _BLOCK])
        finite = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        if finite.size < block.size:
            odd += [np.count_nonzero(test(block)) for test in (np.isnan, np.isposinf, np.isneginf)]
        if finite.size:
            minima.append(finite.min().item())
            maxima.append(finite.max().item())
    return Survey(min(minima, default=None), max(maxima, default=None), *odd.tolist())


def _picture(source: str) -> FileInfo | None:
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
    except InputError as error:
        raise InputError(f"{printable(source)}: {error.message}") from error
    except (OSError, ValueError):
        # What cannot be opened is told in one place, where every file is opened.
        return None
    return FileInfo(printable(source), texts=texts, picture=kind)


def _labels(source: str) -> tuple[str, ...] | None:
    """Return the words of a file of labels; None where it may be anything else."""
    if not is_file(source):
        return None
    opened = open_source(source)
    try:
        words = read_words(opened)
    except InputError:
        return None
    lines = opened.suffix in (".txt", ".tok", ".csv", ".tsv", "")
    cells = [cell for word in words for cell in re.split(r"[,;\t]", word)] if lines else []
    if len(cells) > len(words) or any(map(is_attempt, filter(None, cells))):
        return None
    return words if lines or len(words) > 1 else None


def _surveyed(source: str, dtype: str | None) -> Iterator[MemberInfo]:
    try:
        contents = read(source, dtype=dtype)
    except InputError as error:
        # The header of an array of objects, say, tells what it is all the same.
        yield from (_unread(member, error) for member in _headers(source, error))
        return
    if isinstance(contents, LoadedArray):
        yield _array(split_member(source)[1] or "", contents)
        return
    for name in contents.entries:
        yield _entry(source, name, contents)


def _headers(source: str, error: InputError) -> list[Member]:
    """Return what the headers say, or raise the first error where they say nothing either."""
    with suppress(InputError):
        if found := headers(source):
            return found
    raise error


def _entry(source: str, name: str, contents: LoadedMapping) -> MemberInfo:
    try:
        entry = contents.entries[name]
    except InputError as error:
        known = {}
        with suppress(InputError):
            known = {one.name: one for one in headers(split_member(source)[0])}
        return _unread(known.get(name, Member(name, (), "?")), error)
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
    values, note = array.values, "; ".join(labels) or None
    return MemberInfo(name, values.shape, dtype_name(values.dtype), survey(values), note)


def _unread(member: Member, error: InputError) -> MemberInfo:
    return MemberInfo(member.name, member.shape, member.dtype_name, note=error.message)
