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
from attncli.loading import describe, headers, member, read, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping, Member
from attncli.loading.number import is_attempt
from attncli.loading.pictures import picture_format, read_texts
from attncli.loading.source import is_file, open_source
from attncli.loading.words import read_words
from attncli.numerics.chunked import Chunked
from attncli.numerics.dtypes import readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["FileInfo", "Survey", "inspect", "survey"]

# Enough bytes to tell a picture from a table of numbers, and the most of a picture.
_HEAD, _MOST_PICTURE = 4096, 1 << 28
# A longer file is not looked at for labels where it is none of numbers.
_MOST_LABELS = 1 << 22
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
class FileInfo:
    """One file; of a ``picture`` (``png``, ``svg``, ``pdf``) the ``texts`` that it carries."""

    name: str
    members: tuple[Member, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    picture: str | None = None


def inspect(source: str, *, numbers: bool = True, dtype: str | None = None) -> FileInfo:
    """Return what a file holds; without ``numbers``, binary files only by their headers."""
    picture = _picture(source)
    if picture is not None:
        return picture
    try:
        members = _surveyed(source, dtype) if numbers else describe(source, dtype=dtype)
    except InputError:
        words = _labels(source)
        if words is None:
            raise
        members = [Member("", (len(words),), "text", note=f"labels: {', '.join(words)}")]
    return FileInfo(printable(source), tuple(members))


def survey(array: npt.NDArray[Any]) -> Survey:
    """Return the range of an array and the counts of its non-finite numbers.

    Examples
    --------
    >>> survey(np.array([1.0, -np.inf, 3.0]))
    Survey(minimum=1.0, maximum=3.0, nan=0, inf=0, minus_inf=1)
    """
    minima, maxima, odd = [], [], np.zeros(3, np.int64)
    for block in map(readable, _blocks(array)):
        finite = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        if finite.size < block.size:
            odd += [np.count_nonzero(test(block)) for test in (np.isnan, np.isposinf, np.isneginf)]
        if finite.size:
            minima.append(finite.min().item())
            maxima.append(finite.max().item())
    return Survey(min(minima, default=None), max(maxima, default=None), *odd.tolist())


def _blocks(array: npt.NDArray[Any] | Chunked) -> Iterator[npt.NDArray[Any]]:
    if isinstance(array, Chunked):
        yield from array.parts()
        return
    flat = array.ravel(order="K")
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK]


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
    opened = open_source(source) if is_file(source) else None
    if opened is None or opened.size > _MOST_LABELS:
        return None
    try:
        words = read_words(opened)
    except InputError:
        return None
    lines = opened.suffix in (".txt", ".tok", ".csv", ".tsv", "")
    cells = [cell for word in words for cell in re.split(r"[,;\t]", word)] if lines else []
    if len(cells) > len(words) or any(map(is_attempt, filter(None, cells))):
        return None
    return words if lines or len(words) > 1 else None


def _surveyed(source: str, dtype: str | None) -> list[Member]:
    try:
        contents = read(source, dtype=dtype)
    except InputError as error:
        # The header of an array of objects, say, tells what it is all the same.
        if not (known := _headers(source)):
            raise
        return [one._replace(note=error.message) for one in known.values()]
    if isinstance(contents, LoadedArray):
        return [_with_numbers(split_member(source)[1] or "", contents)]
    return [_entry(source, name, contents) for name in contents.entries]


def _headers(source: str) -> dict[str, Member]:
    """Return what the headers say; nothing where they are broken."""
    with suppress(InputError):
        return {member.name: member for member in headers(source)}
    return {}


def _entry(source: str, name: str, contents: LoadedMapping) -> Member:
    try:
        entry = contents.entries[name]
    except InputError as error:
        known = _headers(split_member(source)[0])
        return known.get(name, Member(name, (), "?"))._replace(note=error.message)
    return _with_numbers(name, entry) if isinstance(entry, LoadedArray) else member(name, entry)


def _with_numbers(name: str, array: LoadedArray) -> Member:
    named = {"rows": array.row_labels, "columns": array.column_labels}
    labels = [f"{what}: {', '.join(words)}" for what, words in named.items() if words]
    note = "; ".join(labels) or None
    return member(name, array)._replace(numbers=survey(array.values), note=note)
