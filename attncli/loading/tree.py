"""The tree of a YAML or JSON document: lists that are arrays, named or alone.

A parser hands in events and `build` makes the tree, within bounds: nothing here
recurses deeper than `MAX_DEPTH`, and nothing is expanded.
"""

from __future__ import annotations

import gc
import itertools
import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from attncli.errors import InputError
from attncli.loading.contents import Unread
from attncli.loading.number import NumberOverflowError, is_numeric, parse_number
from attncli.loading.regular import Regularity
from attncli.names import LABELS, SUMMARIES
from attncli.text import quoted, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.loading.source import Source

__all__ = [
    "MAX_DEPTH",
    "MAX_ENTRIES",
    "MAX_EVENTS",
    "Document",
    "Event",
    "at_most",
    "build",
    "no_collection",
]

# Four axes in a mapping need five levels; the rest is room for a better message.
MAX_DEPTH = 32
# A problem has a dozen entries, a document of results no more.
MAX_ENTRIES = 10_000
# What Python looks at one by one takes a second or two.
MAX_EVENTS = 750_000
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_WORDS |= {"True": True, "False": False, "TRUE": True, "FALSE": False, "Null": None, "NULL": None}
_DOTTED = re.compile(r"[-+]?\.(?:inf|nan)", re.IGNORECASE)

_MAPPING_INSIDE = "expected numbers, words or lists; found a mapping"

# What a parser found: one of ``[ ] { } value``, its text, whether that was plain
# (not quoted, so that it may be a number), and its offset in the document.
Event = tuple[str, str, bool, int]


class Document(NamedTuple):
    """A text with a name, which can say where in it something is wrong."""

    source: Source
    text: str

    def refusal(self, what: str, offset: int, *, hint: str | None = None) -> InputError:
        """Return the error that names the file, the line and the column."""
        before = self.text[:offset]
        line, column = before.count("\n") + 1, offset - before.rfind("\n")
        msg = f"{self.source.name}: line {line}, column {column}: {what}"
        return InputError(msg, hint=hint)

    def mapping_inside(self, offset: int) -> InputError:
        """Return the error for a mapping where numbers should be."""
        json = self.source.suffix == ".json"
        rows = 'pandas: to_json(orient="values") writes rows of numbers, but NaN as null: -inf'
        hint = rows if json else None
        return self.refusal(_MAPPING_INSIDE, offset, hint=hint)

    def too_deep(self, offset: int) -> InputError:
        """Return the error for lists beyond `MAX_DEPTH`."""
        return self.refusal(f"lists are nested deeper than {MAX_DEPTH} levels", offset)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector still while a tree grows.

    A tree has no cycles to collect, and looking for them again and again as it
    grows takes five times as long as parsing it.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def at_most(
    document: Document, events: Iterator[Event], what: str, *, hint: str | None = None
) -> Iterator[Event]:
    """Yield the events, but after `MAX_EVENTS` of them raise an error that says `what`."""
    yield from itertools.islice(events, MAX_EVENTS)
    for _, _, _, offset in events:
        raise document.refusal(what, offset, hint=hint)


def build(document: Document, events: Iterator[Event]) -> list[Any] | dict[str, Any]:
    """Make the tree of the first value among the events: a list, or a mapping of lists.

    Every list in it is regular: of one shape and one kind, as an array is.

    Raises
    ------
    InputError
        For a lone value, a mapping in a mapping or list, a key twice, absurd depth,
        and for lists that are ragged, empty or mixed.
    """
    kind, text, _, offset = next(events)
    if kind == "[":
        return _List(document, events, labels=False).read(offset)
    if kind == "{":
        return _mapping(document, events)
    what = f"expected a list or a mapping; found the single value {quoted(text)}"
    raise document.refusal(what, offset)


def _mapping(document: Document, events: Iterator[Event]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for kind, name, _, offset in events:
        if kind == "}":
            break
        if kind != "value":
            raise document.refusal("expected a word as the key; found a list or a mapping", offset)
        if len(entries) >= MAX_ENTRIES:
            raise document.refusal(f"expected at most {MAX_ENTRIES:,} entries; found more", offset)
        if name in entries:
            raise document.refusal(f"the key {quoted(name)} appears here a second time", offset)
        read = _summary if name in SUMMARIES else partial(_entry, labels=name in LABELS)
        entries[name] = read(document, events)
    return entries


def _summary(document: Document, events: Iterator[Event]) -> object:
    """Pass over an entry with mappings in it; read any other."""
    ahead = [next(events)]
    if ahead[0][0] == "[":
        ahead.append(next(events))
    if ahead[-1][0] != "{":
        return _entry(document, itertools.chain(ahead, events), labels=False)
    depth = len(ahead)
    while depth:
        kind, _, _, offset = next(events)
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(kind, 0)
        if depth > MAX_DEPTH:
            raise document.too_deep(offset)
    return Unread()


def _entry(document: Document, events: Iterator[Event], *, labels: bool) -> object:
    kind, text, plain, offset = next(events)
    if kind == "[":
        return _List(document, events, labels=labels).read(offset)
    if kind == "{":
        raise document.mapping_inside(offset)
    return _scalar(document, text, offset) if plain else text


class _List:
    """Reads one list with all the lists in it."""

    def __init__(self, document: Document, events: Iterator[Event], *, labels: bool) -> None:
        self._document, self._events, self._labels = document, events, labels
        self._regular = Regularity(document)

    def read(self, offset: int, depth: int = 1) -> list[Any]:
        if depth > MAX_DEPTH:
            raise self._document.too_deep(offset)
        self._regular.opened(depth, offset)
        items: list[Any] = []
        for kind, text, plain, at in self._events:
            if kind == "]":
                break
            if kind == "{":
                raise self._document.mapping_inside(at)
            if kind == "[":
                items.append(self.read(at, depth + 1))
            else:
                items.append(self._item(text, at, depth, plain=plain))
        self._regular.closed(len(items), depth, offset)
        return items

    def _item(self, text: str, offset: int, depth: int, *, plain: bool) -> object:
        if plain and not text:  # YAML's empty item: as null it would be read as −inf
            raise self._document.refusal("expected a number or a word; found nothing", offset)
        word = self._labels or not plain
        item = text if word else _scalar(self._document, text, offset)
        self._regular.item(item, depth, offset)
        return item


def _scalar(document: Document, text: str, offset: int) -> object:
    if text in _WORDS:
        return _WORDS[text]
    try:
        number = parse_number(text)
    except NumberOverflowError as error:
        raise document.refusal(str(error), offset) from None
    if number is not None:
        whole = whole_number(text)
        return number if whole is None else whole
    if _DOTTED.fullmatch(text):
        return float(text.replace(".", "", 1))
    if is_numeric(text):
        what = f"expected a number in digits 0 to 9, without underscores; found {quoted(text)}"
        raise document.refusal(what, offset, hint="if it is a word, put it in quotes")
    return text
