"""Describe a file: the shapes, ranges and labels of its members, or the texts in a picture."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading import open_members
from attncli.loading.contents import LoadedArray, LoadedMapping, Member, member_of
from attncli.loading.number import is_attempt
from attncli.loading.pictures import picture_format, read_texts
from attncli.loading.source import is_file, open_source
from attncli.loading.words import read_words
from attncli.numerics.chunked import Chunked
from attncli.numerics.dtypes import readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Bytes at the beginning that show whether a file is a picture, and bytes read of a picture.
_HEAD, _MOST_PICTURE = 4096, 1 << 28
# Bytes; longer files are not searched for labels.
_MOST_LABELS = 1 << 22
# Numbers surveyed at once: 16 MB in float64, so a mapped file is never whole in memory.
_BLOCK = 1 << 21


@dataclass(frozen=True)
class Survey:
    """The range of the finite numbers, and the counts of NaN, inf and −inf."""

    minimum: float | None
    maximum: float | None
    nan: int = 0
    inf: int = 0
    minus_inf: int = 0

    @property
    def nonfinite(self) -> int:
        """The count of numbers that are NaN, inf or −inf."""
        return self.nan + self.inf + self.minus_inf


@dataclass(frozen=True)
class FileInfo:
    """The members of one file, or the ``texts`` in a ``picture`` (``png``, ``svg`` or ``pdf``)."""

    name: str
    members: tuple[Member, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    picture: str | None = None


def inspect(source: str, *, numbers: bool = True, dtype: str | None = None) -> FileInfo:
    """Describe a file; without ``numbers``, only the headers of binary files are read."""
    picture = _picture(source)
    if picture is not None:
        return picture
    try:
        contents, names = open_members(source, dtype=dtype)
        tell = _surveyed if numbers else LoadedMapping.member
        members = [tell(contents, name) for name in names]
    except InputError:
        words = _labels(source)
        if words is None:
            raise
        members = [Member("", (len(words),), "text", note=f"labels: {', '.join(words)}")]
    return FileInfo(printable(source), tuple(members))


def survey(array: npt.NDArray[Any]) -> Survey:
    """Return the range of an array and the counts of its non-finite numbers."""
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
    opened = open_source(source) if is_file(source) else None
    kind = opened and picture_format(opened.part(0, _HEAD))
    if opened is None or kind is None:
        return None
    try:
        texts = read_texts(opened.part(0, _MOST_PICTURE))
    except InputError as error:
        raise InputError(f"{opened.name}: {error.message}") from error
    return FileInfo(opened.name, texts=texts, picture=kind)


def _labels(source: str) -> tuple[str, ...] | None:
    """Return the words of a file of labels; None if the file may be something else."""
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


def _surveyed(contents: LoadedMapping, name: str) -> Member:
    """Return an entry with the range of its numbers, or with the reason why it cannot be read."""
    try:
        entry = contents.entries[name]
    except InputError as error:
        # The header may be readable, as that of an array of Python objects is.
        told = Member(name, (), "?")
        with suppress(InputError):
            told = contents.member(name)
        return told._replace(note=error.message)
    told = member_of(name, entry)
    if not isinstance(entry, LoadedArray):
        return told
    named = {"rows": entry.row_labels, "columns": entry.column_labels}
    labels = [f"{what}: {', '.join(words)}" for what, words in named.items() if words]
    return told._replace(numbers=survey(entry.values), note="; ".join(labels) or None)
