"""Read a file of labels, such as the tokens that a tokenizer saved."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import TYPE_CHECKING

from attncli.errors import InputError
from attncli.errors.text import printable
from attncli.loading.yaml_text import yaml_words

if TYPE_CHECKING:
    from attncli.loading.source import Source

# Bytes: room for a million labels of sixteen letters.
_MOST_BYTES = 16 * 2**20
_JSON_LIST = re.compile(r'\s*\[\s*"')
_YAML, _TABLES = (".yaml", ".yml"), (".csv", ".tsv")
# No label holds the last separator: with it, each line is one cell.
_SEPARATORS = (",", ";", "\t", "\x1f")


def read_words(source: Source) -> tuple[str, ...]:
    """Read one label from each line, or a list in JSON, YAML or CSV."""
    text = source.text_bytes(_MOST_BYTES).decode().replace("\r\n", "\n").replace("\r", "\n")
    return _listed(source, text) or tuple(text.removesuffix("\n").split("\n"))


def _listed(source: Source, text: str) -> tuple[str, ...] | None:
    if source.suffix in _YAML:
        return _words(source, yaml_words(source, text))
    if source.suffix == ".json":
        return _words(source, _from_json(text))
    found = _from_json(text) if _JSON_LIST.match(text) else None
    if isinstance(found, list):
        return _words(source, found)
    return _from_table(text) if source.suffix in _TABLES else None


def _words(source: Source, found: object) -> tuple[str, ...] | None:
    """Return the words of a list; refuse a mapping, and a list of other items."""
    if isinstance(found, dict):
        lists = [str(name) for name, entry in found.items() if isinstance(entry, list)]
        hint = f"name one of its entries, as {source.name}#{printable(lists[0])}" if lists else None
        raise InputError(f"{source.name}: expected a list of labels; found a mapping", hint=hint)
    if not isinstance(found, list):
        return None
    for word in found:
        if not isinstance(word, str):
            raise InputError(f"{source.name}: expected a list of words; found {word!r:.40} in it")
    return tuple(found)


def _from_table(text: str) -> tuple[str, ...] | None:
    """Return the first column of a CSV text if all other columns are empty, or None."""
    for separator in _SEPARATORS:
        lines = io.StringIO(text, newline="")
        try:
            rows = [row or [""] for row in csv.reader(lines, delimiter=separator, strict=True)]
        except csv.Error:
            continue
        even = len({len(row) for row in rows if row != [""]}) == 1
        if even and any(row[0] for row in rows) and not any(any(row[1:]) for row in rows):
            return tuple(row[0] for row in rows)
    return None


def _from_json(text: str) -> object:
    """Parse JSON, with numbers as text; None for other texts."""
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return None
