"""A list of words in a file, as tokenizers' tokens are saved."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from attncli.errors import InputError
from attncli.loading.spreadsheet import separator_line
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.loading.source import Source

__all__ = ["listed_words"]

_YAML, _TABLES = (".yaml", ".yml"), (".csv", ".tsv")
# The last is for one column that nothing ends: no label holds it.
_SEPARATORS = (",", ";", "\t", "\x1f")


def listed_words(source: Source, text: str) -> tuple[str, ...] | None:
    """Return the words of a list in JSON or YAML, or of a column of CSV; None of any other text.

    Parameters
    ----------
    source : Source
        By whose suffix a text is JSON, YAML or CSV; any but the first two may be a list of quoted
        words.
    text : str
        With LF at the ends of its lines.

    Raises
    ------
    InputError
        A file that is named as JSON or YAML holds something else than words and numbers; one of
        CSV, whose first line names the separator, more than one column.
    """
    if source.suffix not in (".json", *_YAML):
        words = _from_json(text, number=float) if text.lstrip().startswith("[") else None
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return tuple(words)
        return _from_table(source, text) if source.suffix in _TABLES else None
    found = _from_yaml(text) if source.suffix in _YAML else _from_json(text, number=str)
    if isinstance(found, dict):
        lists = [str(name) for name, entry in found.items() if isinstance(entry, list)]
        raise InputError(
            f"{source.name}: expected a list of labels; found a mapping",
            hint=f"name one of its entries, as {source.name}#{printable(lists[0])}"
            if lists
            else None,
        )
    if not isinstance(found, list):
        return None
    strange = [repr(word) for word in found if not isinstance(word, str)]
    if strange:
        raise InputError(f"{source.name}: expected a list of words; found {strange[0]:.40} in it")
    return tuple(found)


def _from_table(source: Source, text: str) -> tuple[str, ...] | None:
    """Return the only column of CSV that is not empty; None where it is no CSV."""
    separator, data = separator_line(text.encode())
    if separator is None:
        columns = (_column(_rows(text, each)) for each in _SEPARATORS)
        return next((column for column in columns if column), None)
    rows = _rows(data.decode().removeprefix("\n"), separator)
    for row in rows:
        if any(row[1:]):
            raise InputError(
                f"{source.name}: expected one label in each row; found {printable(row[1])!r} "
                f"behind {printable(row[0])!r}"
            )
    return tuple(row[0] for row in rows) or None


def _rows(text: str, separator: str) -> list[list[str]]:
    """Return the rows of CSV, a blank line as one empty cell; none where it is no CSV."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        return [row or [""] for row in reader]
    except csv.Error:
        return []


def _column(rows: list[list[str]]) -> tuple[str, ...] | None:
    """Return the first cells, where all rows are as long and hold nothing else; None elsewhere."""
    filled = [row for row in rows if row != [""]]
    alone = not any(any(row[1:]) for row in filled) and any(row[0] for row in filled)
    even = len({len(row) for row in filled}) == 1
    return tuple(row[0] for row in rows) if alone and even else None


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
