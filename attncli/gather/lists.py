"""Short lists: labels in a file of text, numbers in the place of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attncli.errors import InputError, UsageError
from attncli.loading import read, read_array, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.loading.number import NumberOverflowError, parse_number
from attncli.loading.source import open_source
from attncli.loading.words import read_words
from attncli.text import printable, quoted
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "check_labels",
    "is_meant_as_file",
    "label_file",
    "label_member",
    "number_list",
    "split_labels",
]

# A longer one would be neither in a table nor in a picture.
_LONGEST = 1000
_SUFFIXES = (".txt", ".json", ".yaml", ".yml", ".csv", ".tsv", ".tok", ".npz")


def label_file(path: str) -> tuple[str, ...]:
    """Read the label on each line, which may hold anything, or a list in JSON, YAML or CSV.

    Raises
    ------
    InputError
        There is no such file, or it is no text.
    """
    return read_words(open_source(path))


def split_labels(name: str, text: str) -> tuple[str, ...]:
    """Return the labels of ``"a,b,c"``.

    Warns
    -----
    AttnWarning
        They look like a list in a program; `name` is the option that gave it.
    """
    labels = tuple(label.strip() for label in text.split(","))
    if _without_quotes(_without_brackets(labels)) != labels:
        warn(
            f"{name}: the brackets and quotation marks of {quoted(text)} are part of the labels: "
            "write a,b,c without them, or the labels as the lines of a file"
        )
    return labels


def _without_brackets(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return labels without a pair of brackets around them all; [CLS] to [SEP] are none."""
    first, last = labels[0], labels[-1]
    for opening, closing in ("[]", "()"):
        opens = first.startswith(opening) and closing not in first and first != opening
        if opens and last.endswith(closing) and opening not in last and last != closing:
            return first[1:], *labels[1:-1], last[:-1]
    return labels


def _without_quotes(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return labels without quotation marks, if each stands in some."""
    for mark in ("'", '"'):
        if all(len(label) > 1 and label[0] == label[-1] == mark for label in labels):
            return tuple(label[1:-1] for label in labels)
    return labels


def label_member(file: str, name: str) -> object:
    """Return the labels that an entry of a file holds: a list of words, or an array of numbers.

    Raises
    ------
    InputError
        There is no such entry, or it is something else.
    """
    found = read(file)
    entry = found.entries.get(name) if isinstance(found, LoadedMapping) else None
    return entry if isinstance(entry, list | LoadedArray) else read_array(f"{file}#{name}")


def is_meant_as_file(text: str) -> bool:
    """Return whether a lone word names a file of labels even where there is none.

    Examples
    --------
    >>> is_meant_as_file("labels.json"), is_meant_as_file("</s>"), is_meant_as_file("a.txt,b.txt")
    (True, False, False)
    """
    return "," not in text and text.partition("#")[0].endswith(_SUFFIXES)


def check_labels(name: str, labels: Iterable[str] | None) -> None:
    """Refuse labels that no table and no picture could show.

    Raises
    ------
    InputError
        One has more than a thousand letters, or a NUL; `name` is the option that gave it.
    """
    for at, label in enumerate(labels or ()):
        if "\0" in label:
            raise InputError(f"{name}: label {at} holds the character NUL, which no file keeps")
        if len(label) > _LONGEST:
            raise InputError(
                f"{name}: expected labels of at most {_LONGEST:,} characters; "
                f"found {len(label):,} in label {at}"
            )


def number_list(name: str, text: str) -> list[float] | None:
    """Return the numbers of ``"3,5"``, or None where it names a file instead.

    Raises
    ------
    UsageError
        It is neither; `name` is the option that it was given to.
    """
    try:
        numbers = [_number(part.strip()) for part in text.split(",")]
    except NumberOverflowError as error:
        raise UsageError(f"{name}: {error}") from None
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        return known
    path = split_member(text)[0]
    if known or (path != "-" and not os.path.exists(path) and "." not in path):  # noqa: PTH110
        raise UsageError(
            f"{name}: expected numbers, as in 3 or 3,5, or a file; found {printable(text)!r}"
        )
    return None


def _number(text: str) -> float | None:
    """Return a number, with all its digits where it is whole; None of other texts."""
    number = parse_number(text)
    return int(text) if text.removeprefix("-").isdecimal() and number else number
