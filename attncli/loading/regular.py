"""Whether nested lists are one array, decided while they are read.

Waiting for the end would mean to keep the place of every item, and a long file
with a short row would take minutes and gigabytes to refuse.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from attncli.loading.number import TRUTHS, is_numeric
from attncli.text import counted, number_hint, quoted

if TYPE_CHECKING:
    from attncli.loading.tree import Document

__all__ = ["Regularity"]

_WORDS, _TRUTHS, _NUMBERS = "a word", "true or false", "a number"


class Regularity:
    """The shape and kind that the first items of a list have set for the rest.

    Lists are counted from 1, the outermost; each method raises an `InputError`
    with the place where the promise breaks.

    Parameters
    ----------
    document : Document
        What the errors name.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._lengths: dict[int, int] = {}  # by depth
        self._leaf_depth = 0  # 0 until an item is met
        self._kind = _NUMBERS
        self._first: tuple[object, int] = ("", 0)

    def opened(self, depth: int, offset: int) -> None:
        """Take note of a list that begins."""
        if self._leaf_depth and depth > self._leaf_depth:
            raise self._document.refusal(f"expected {self._kind}; found a list", offset)

    def item(self, item: object, depth: int, offset: int) -> None:
        """Take note of an item in a list of this depth."""
        kind = _kind(item)
        if not self._leaf_depth:
            self._leaf_depth, self._kind, self._first = depth, kind, (item, offset)
        if depth < self._leaf_depth:
            expected = counted(self._lengths[depth + 1], "item")
            what = f"expected a list of {expected}; found {_shown(item)}"
            raise self._document.refusal(what, offset)
        if depth > 1 and kind == _WORDS:
            what = f"expected a number; found {_shown(item)}"
            raise self._document.refusal(what, offset, hint=_hint(item))
        if kind != self._kind:
            raise self._mixed(item, offset)

    def closed(self, count: int, depth: int, offset: int) -> None:
        """Take note of a list that ends, and began at `offset`."""
        if not count:
            raise self._document.refusal("expected numbers; found an empty list", offset)
        expected = self._lengths.setdefault(depth, count)
        if count != expected:
            what = f"expected {counted(expected, 'item')}, as in the first list; found {count}"
            raise self._document.refusal(what, offset)

    def _mixed(self, item: object, offset: int) -> Exception:
        found, expected = item, self._kind
        if expected == _WORDS:  # one word among numbers is the likelier mistake
            (found, offset), expected = self._first, _NUMBERS
        what = f"expected {expected}; found {_shown(found)}"
        return self._document.refusal(what, offset, hint=_hint(found))


def _hint(found: object) -> str | None:
    """Return what was probably meant by a word where a number should be."""
    word = found.lower() if isinstance(found, str) else ""
    if word == "none":
        return "of a window, null or -1 is unbounded"
    if is_numeric(word):
        return "write numbers without quotation marks"
    if word in TRUTHS:
        return "in a mask, write true or false, in every place"
    return number_hint(word)


def _kind(item: object) -> str:
    if isinstance(item, str):
        return _WORDS
    return _TRUTHS if isinstance(item, bool) else _NUMBERS


def _shown(item: object) -> str:
    return quoted(item) if isinstance(item, str) else json.dumps(item)
