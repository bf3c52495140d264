"""Labels and short lists of numbers, from an option, an entry or a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attncli.errors import InputError, UsageError
from attncli.errors.text import printable
from attncli.loading import is_stream, read, read_array, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.loading.number import NumberOverflowError, parse_number
from attncli.loading.source import is_file, open_source
from attncli.loading.words import read_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attncli.gather.reader import Reader

# Characters of a label: a longer one fits neither a table nor a picture.
_LONGEST = 1000
# A word that ends so is the name of a file of labels.
_SUFFIXES = (".txt", ".json", ".yaml", ".yml", ".csv", ".tsv", ".tok", ".npz")


def labels_of(reader: Reader, name: str, value: object, folder: str) -> tuple[str, ...]:
    """Return the labels in an option or entry: a list, ``"a,b,c"``, or a file."""
    if isinstance(value, LoadedArray):
        numbers = value.values.ravel().tolist()
        return tuple(str(int(n)) if float(n).is_integer() else f"{n:g}" for n in numbers)
    if isinstance(value, (list, tuple)):
        return tuple(str(label) for label in value)
    text = str(value)
    path = inside(folder, text)
    file, member = split_member(path)
    if member is not None and is_file(file, or_pipe=True):
        reader.note_input(path)
        return labels_of(reader, name, _member(file, member), folder)
    # A word with such a suffix means a file even if the file is missing, which is then the error.
    meant = "," not in text and text.partition("#")[0].endswith(_SUFFIXES)
    if text == "-" or meant or is_file(path, or_pipe=True):
        reader.note_input(path)
        return read_words(open_source(path))
    return tuple(label.strip() for label in text.split(","))


def inside(folder: str, file: str) -> str:
    """Return the path of a file that is named in a file of the folder."""
    return file if folder == "." or is_stream(file) else os.path.join(folder, file)  # noqa: PTH118


def _member(file: str, name: str) -> object:
    """Return the words or numbers of one entry of a file."""
    found = read(file)
    entry = found.entries.get(name) if isinstance(found, LoadedMapping) else None
    return entry if isinstance(entry, list | LoadedArray) else read_array(f"{file}#{name}")


def check_labels(name: str, labels: Iterable[str] | None) -> None:
    """Refuse labels that are too long to be shown, or hold NUL."""
    for at, label in enumerate(labels or ()):
        if "\0" in label:
            raise InputError(f"{name}: label {at} holds the character NUL, which no file keeps")
        if len(label) > _LONGEST:
            raise InputError(
                f"{name}: expected labels of at most {_LONGEST:,} characters; "
                f"found {len(label):,} in label {at}"
            )


def number_list(name: str, text: str) -> list[float] | None:
    """Return the numbers in ``"3,5"``, or None for a file name; in a window ``none`` is −1."""
    parts = [part.strip() for part in text.split(",")]
    if name == "window":
        parts = ["-1" if part == "none" else part for part in parts]
    try:
        numbers = [parse_number(part) for part in parts]
    except NumberOverflowError as error:
        raise UsageError(f"{name}: {error}") from None
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        # As int, a whole number keeps all its digits.
        whole = (part.removeprefix("-").isdecimal() for part in parts)
        return [int(p) if w and n else n for p, w, n in zip(parts, whole, known, strict=True)]
    path = split_member(text)[0]
    if known or (path != "-" and not os.path.exists(path) and "." not in path):  # noqa: PTH110
        raise UsageError(
            f"{name}: expected numbers, as in 3 or 3,5, or a file; found {printable(text)!r}"
        )
    return None
