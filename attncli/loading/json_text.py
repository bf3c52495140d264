"""Read JSON: matrices, and problems as a mapping of them."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import InputError
from attncli.loading.contents import Contents, LoadedArray, LoadedMapping
from attncli.loading.json_rows import (
    MOST_NUMBERS,
    MOST_ROWS,
    events,
    in_range,
    nearly_json,
    read_rows,
    some_events,
)
from attncli.loading.pack import Unpackable, contents
from attncli.loading.printed import printed_alike
from attncli.loading.quick import quick_json
from attncli.loading.tree import (
    MAX_DEPTH,
    MAX_ENTRIES,
    Document,
    build,
    no_collection,
)
from attncli.names import LABELS

if TYPE_CHECKING:
    from attncli.loading.source import Source

__all__ = ["bounded_json", "read_json"]

# Bytes that take 500 MB until a mistake at their end is found.
_LONGEST = 112 * 2**20
# Of numbers in lists: 400 MB as objects of Python's.
_MOST_ITEMS, _MOST_LISTS = 5_000_000, 1_500_000
# A problem has some forty, the header of a checkpoint four for each tensor.
_MOST_KEYS = 1_000_000
_WORDS = {True: "true", False: "false", None: "null"}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
# Possessive, and matching at the end too, so that no text makes the search quadratic.
_NESTING = re.compile(r'[^"\[\]{}]*+("(?:[^"\\]|\\.)*+"?|[\[\]{}]|\Z)', re.DOTALL)


def read_json(source: Source) -> Contents:
    """Read a JSON document: nested lists are arrays, a mapping is a problem.

    ``null`` in a list of numbers is −inf, as ``attncli compute --format json``
    writes it; the words ``NaN`` and ``Infinity`` are numbers.

    Parameters
    ----------
    source : Source

    Returns
    -------
    LoadedArray or LoadedMapping

    Raises
    ------
    InputError
        With the line and column of what is not JSON, or not numbers.
    """
    document = Document(source, source.text(_LONGEST))
    with no_collection():
        return _contents(document)


def _contents(document: Document) -> Contents:
    rows = read_rows(document)
    if rows is not None:
        return LoadedArray(rows, document.source.name, printed=printed_alike(document.text))
    _check_counts(document)
    root = bounded_json(document)
    try:
        if root is None or (isinstance(root, dict) and len(root) > MAX_ENTRIES):
            raise Unpackable
        if isinstance(root, dict):
            _keep_label_words(document, root)
        found = contents(document, root)
        if _infinite(found):
            json.loads(document.text, parse_float=in_range)
    except Unpackable:
        # Slower, but it knows the place of every item: for what is rare, or wrong.
        return contents(document, build(document, some_events(document, events(document.text))))
    return found


def bounded_json(document: Document) -> Any:
    """Parse JSON of bounded depth and size; None where `build` must look at it instead.

    Raises
    ------
    InputError
        With the line and column, if it is not JSON or nested too deeply.
    """
    # The quick count first: without its words, a long document is another one.
    _check_keys(document, document.text.count('":'))
    bare = _STRING.sub("", document.text)
    keys = bare.count(":")
    _check_keys(document, keys)
    _check_depth(document, bare)
    root = quick_json(document.text)
    # Fewer keys than there are colons: one stands twice, or a mapping is in another one.
    if keys == (len(root) if isinstance(root, dict) else 0) and isinstance(root, list | dict):
        return root
    try:
        root = json.loads(document.text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg}"
        raise document.refusal(
            what, error.pos, hint=nearly_json(document.text, error.msg, error.pos)
        ) from error
    except (Unpackable, ValueError):  # a key twice, or an integer of thousands of digits
        return None
    return root if isinstance(root, list | dict) else None


def _check_counts(document: Document) -> None:
    """Refuse a document whose tree would take more memory than is decent."""
    text = document.text
    items, lists = text.count(",") + 1, text.count("[") + text.count("{")
    if items > _MOST_ITEMS or lists > _MOST_LISTS:
        msg = (
            f"{document.source.name}: expected at most {_MOST_ITEMS:,} numbers in "
            f"{_MOST_LISTS:,} lists, or a single matrix of {MOST_NUMBERS:,} in {MOST_ROWS:,} rows; "
            f"found {items:,} in {lists:,}"
        )
        hint = "save large arrays as NPY or NPZ, which a problem in JSON may name"
        raise InputError(msg, hint=hint)


def _keep_label_words(document: Document, root: dict[str, Any]) -> None:
    """Turn labels that are numbers back into what is written, as ``1e3`` or ``2.0``."""
    named = [name for name in LABELS if _has_numbers(root, name)]
    if named:
        written = json.loads(document.text, parse_int=str, parse_float=str, parse_constant=str)
        root |= {name: [_WORDS.get(item, item) for item in written[name]] for name in named}


def _has_numbers(root: dict[str, Any], name: str) -> bool:
    value = root.get(name)
    return isinstance(value, list) and not any(isinstance(item, list | dict) for item in value)


def _check_keys(document: Document, keys: int) -> None:
    """Refuse more keys than any problem has: each takes as much memory as ten numbers."""
    if keys > _MOST_KEYS:
        raise InputError(
            f"{document.source.name}: expected at most {_MOST_KEYS:,} keys in all mappings "
            f"together; found {keys:,}"
        )


def _check_depth(document: Document, bare: str) -> None:
    # Only where the quick look finds brackets too deep is their place worth searching.
    if _deepest(bare) <= MAX_DEPTH:
        return
    depth = 0
    for match in _NESTING.finditer(document.text):
        bracket = match[1]
        if bracket in {"[", "{"}:
            depth += 1
        elif bracket in {"]", "}"}:
            depth -= 1
        if depth > MAX_DEPTH:
            raise document.too_deep(match.start(1))


def _deepest(text: str) -> int:
    brackets = text.encode().translate(None, _NO_BRACKETS)
    codes = np.frombuffer(brackets, np.uint8)
    opens = (codes == ord("[")) | (codes == ord("{"))
    steps = np.where(opens, np.int8(1), np.int8(-1))
    return int(np.max(steps.cumsum(dtype=np.int32), initial=0))


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise Unpackable
    return entries


def _infinite(found: Contents) -> bool:
    values = found.entries.values() if isinstance(found, LoadedMapping) else [found]
    return any(
        np.isinf(value.values).any()
        if isinstance(value, LoadedArray)
        else isinstance(value, float) and np.isinf(value)
        for value in values
    )
