"""The tree of a YAML or JSON document, which remembers where everything stood.

A parser hands in events and `build` makes the tree, within bounds: nothing here
recurses deeper than `MAX_DEPTH`, and nothing is expanded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attncli.errors import InputError
from attncli.load.number import NumberOverflowError, is_numeric, parse_number
from attncli.text import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.load.source import Source

__all__ = ["LABEL_NAMES", "MAX_DEPTH", "Branch", "Document", "Event", "build"]

# Four axes in a mapping need five levels; the rest is room for a better message.
MAX_DEPTH = 32
# Under these names every word is a label as it stands, also ``2``, ``true`` and ``null``.
LABEL_NAMES = frozenset({"tokens", "query_labels", "key_labels"})
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_WORDS |= {"True": True, "False": False, "TRUE": True, "FALSE": False, "Null": None, "NULL": None}
_WHOLE = re.compile(r"\s*[-+]?\d+\s*")
_DOTTED = re.compile(r"[-+]?\.(?:inf|nan)", re.IGNORECASE)

# What a parser found: one of ``[ ] { } value``, its text, whether that was plain
# (not quoted, so that it may be a number), and its offset in the document.
Event = tuple[str, str, bool, int]


class Branch(list[Any]):
    """A list of a document that remembers where it and its items began."""

    __slots__ = ("offset", "offsets")

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset
        self.offsets: list[int] = []


@dataclass(frozen=True, eq=False)
class Document:
    """A text with a name, which can say where in it something is wrong."""

    source: Source
    text: str

    def refusal(self, what: str, offset: int, *, hint: str | None = None) -> InputError:
        """Return the error that names the file, the line and the column."""
        before = self.text[:offset]
        line, column = before.count("\n") + 1, offset - before.rfind("\n")
        msg = f"{self.source.name}: line {line}, column {column}: {what}"
        return InputError(msg, hint=hint)


def build(document: Document, events: Iterator[Event]) -> Branch | dict[str, Any]:
    """Make the tree of the first value among the events: a list, or a mapping of lists.

    Raises
    ------
    InputError
        For a lone value, a mapping in a mapping or list, a key twice, absurd depth.
    """
    kind, text, _, offset = next(events)
    if kind == "[":
        return _branch(document, events, offset, depth=1, labels=False)
    if kind == "{":
        return _mapping(document, events)
    what = f"found the single value {quoted(text)}, expected a list or a mapping"
    raise document.refusal(what, offset)


def _mapping(document: Document, events: Iterator[Event]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for kind, name, _, offset in events:
        if kind == "}":
            break
        if kind != "value":
            raise document.refusal("found a list or mapping as a key, expected a word", offset)
        if name in entries:
            raise document.refusal(f"the key {quoted(name)} stands here a second time", offset)
        labels = name in LABEL_NAMES
        entries[name] = _value(document, events, next(events), 1, labels=labels)
    return entries


def _branch(
    document: Document, events: Iterator[Event], offset: int, depth: int, *, labels: bool
) -> Branch:
    if depth > MAX_DEPTH:
        raise document.refusal(f"lists are nested deeper than {MAX_DEPTH} levels", offset)
    branch = Branch(offset)
    for event in events:
        kind, text, plain, at = event
        if kind == "]":
            break
        branch.offsets.append(at)
        if plain and not text:  # YAML's empty item: as null it would be read as −inf
            raise document.refusal("found nothing, expected a number or a word", at)
        whole_word = labels and kind == "value"
        item = text if whole_word else _value(document, events, event, depth + 1, labels=labels)
        branch.append(item)
    return branch


def _value(
    document: Document, events: Iterator[Event], event: Event, depth: int, *, labels: bool
) -> object:
    kind, text, plain, offset = event
    if kind == "value":
        return _scalar(document, text, offset) if plain else text
    if kind == "[":
        return _branch(document, events, offset, depth, labels=labels)
    raise document.refusal("found a mapping inside, expected numbers, words or lists", offset)


def _scalar(document: Document, text: str, offset: int) -> object:
    if text in _WORDS:
        return _WORDS[text]
    try:
        number = parse_number(text)
    except NumberOverflowError:
        raise document.refusal(f"{quoted(text)} is beyond the range of float64", offset) from None
    if number is not None:
        return int(text) if _WHOLE.fullmatch(text) else number
    if _DOTTED.fullmatch(text):
        return float(text.replace(".", "", 1))
    if is_numeric(text):
        what = f"found {quoted(text)}, expected a number of digits 0 to 9 without underscores"
        raise document.refusal(what, offset, hint="if it is a word, put it in quotes")
    return text
