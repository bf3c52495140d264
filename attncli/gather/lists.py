"""Short lists: labels in a file of text, numbers in the place of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from attncli.errors import InputError, UsageError
from attncli.loading import read, read_array, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.loading.number import NumberOverflowError, parse_number
from attncli.loading.source import open_source
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.loading.source import Source

__all__ = ["check_labels", "is_meant_as_file", "label_file", "label_member", "number_list"]

# A million labels of sixteen letters.
_MOST_BYTES = 16 * 2**20
# A longer one would be neither in a table nor in a picture.
_LONGEST = 1000
_YAML = (".yaml", ".yml")
_SUFFIXES = (".txt", ".json", *_YAML, ".csv", ".tsv", ".tok", ".npz")


def label_file(path: str) -> tuple[str, ...]:
    """Read the label on each line, which may hold anything, or a list of labels in JSON or YAML.

    Raises
    ------
    InputError
        There is no such file, or it is no text.
    """
    source = open_source(path)
    if source.size > _MOST_BYTES:
        raise InputError(
            f"{source.name}: expected at most {_MOST_BYTES:,} bytes of labels; "
            f"found {source.size:,}"
        )
    text = source.text().replace("\r\n", "\n").replace("\r", "\n")
    return _listed(source, text) or tuple(text.removesuffix("\n").split("\n"))


def _listed(source: Source, text: str) -> tuple[str, ...] | None:
    """Return the words of a list in JSON or YAML, as tokenizers' tokens are saved; None of lines.

    Raises
    ------
    InputError
        A file that is named as JSON or YAML holds something else than words and numbers.
    """
    if source.suffix not in (".json", *_YAML):
        words = _from_json(text, number=float) if text.lstrip().startswith("[") else None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(words)
        return None
    found = _from_yaml(text) if source.suffix in _YAML else _from_json(text, number=str)
    if isinstance(found, dict):
        raise InputError(
            f"{source.name}: expected a list of labels; found a mapping",
            hint=f"name one of its entries, as {source.name}#tokens",
        )
    if not isinstance(found, list):
        return None
    strange = [repr(word) for word in found if not isinstance(word, str)]
    if strange:
        raise InputError(f"{source.name}: expected a list of words; found {strange[0]:.40} in it")
    return tuple(found)


def _from_json(text: str, *, number: Callable[[str], object]) -> object:
    """Return what JSON says, and what is made of its numbers; None where it is none."""
    import json  # noqa: PLC0415 - labels seldom are

    try:
        return json.loads(text, parse_int=number, parse_float=number, parse_constant=number)
    except (ValueError, RecursionError):
        return None


def _from_yaml(text: str) -> object:
    """Return what YAML says, every scalar as it is written; None where it is none."""
    import yaml  # noqa: PLC0415 - as above

    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it makes nothing but text
    except (yaml.YAMLError, RecursionError):
        return None


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
        raise UsageError(f"{name}: {error} is beyond the range of float64") from None
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
