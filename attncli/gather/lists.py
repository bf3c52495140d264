"""Short lists: labels in a file of text, numbers in the place of a file."""

from __future__ import annotations

import os
from pathlib import Path

from attncli.errors import InputError, UsageError
from attncli.loading import split_member
from attncli.loading.number import NumberOverflowError, parse_number
from attncli.loading.source import missing
from attncli.text import printable

__all__ = ["label_file", "number_list"]


def label_file(path: str) -> tuple[str, ...]:
    """Read one label a line; a label may hold anything but a line break.

    Raises
    ------
    InputError
        There is no such file, or it is no text.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123
            text = file.read()
    except FileNotFoundError as error:
        raise missing(Path(path), printable(path)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{printable(path)}: expected labels, one a line; {reason}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{printable(path)}: expected labels, one a line, in UTF-8") from error
    return tuple(text.removesuffix("\n").split("\n"))


def number_list(name: str, text: str) -> list[float] | None:
    """Return the numbers of ``"3,5"``, or None where it names a file instead.

    Raises
    ------
    UsageError
        It is neither; `name` is the option that it was given to.
    """
    try:
        numbers = [parse_number(part.strip()) for part in text.split(",")]
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
