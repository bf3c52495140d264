"""The tree of a JSON or YAML document becomes arrays: every list is one, named or alone."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.errors.names import LABELS, SUMMARIES
from attncli.errors.text import counted, number_hint, printable, quoted
from attncli.loading.contents import Contents, LoadedArray, LoadedMapping, Unread
from attncli.loading.number import is_numeric, printed_alike

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from attncli.loading.source import Source

__all__ = ["MAX_DEPTH", "Document", "Path", "contents"]

# Four axes in a mapping need five levels; the rest is room for a better message.
MAX_DEPTH = 32
# A problem has a dozen entries, a document of results no more.
_MAX_ENTRIES = 10_000
_FLOAT_MAX = int(np.finfo(np.float64).max)
_NUMBERS = {int, float, type(None)}
# A list that became text: twice through json.dumps, or through str() of an array.
_ARRAY_TEXT = re.compile(r"\s*(?:tensor\(|array\()?\[[^\]]*\d.*\]\)?\s*", re.DOTALL)
_QUOTED = (
    "the array is in quotation marks: write it as a list, in Python x.tolist(), and make JSON of "
    "it once (json.dump without default=str)"
)

# Names and indices that lead to an item of a tree.
Path = list[str | int]


class Document(NamedTuple):
    """A text with a name, which can say where in it something is wrong.

    Attributes
    ----------
    source : Source
    text : str
    find : callable
        Takes the document and a `Path`, and returns the offset of the item in the text.
    """

    source: Source
    text: str
    find: Callable[[Document, Path], int]

    def refusal(self, what: str, where: int | Path, *, hint: str | None = None) -> InputError:
        """Return the error that names the file, the line and the column."""
        offset = where if isinstance(where, int) else self.find(self, where)
        line = self.text.count("\n", 0, offset) + 1
        column = offset - self.text.rfind("\n", 0, offset)
        return InputError(f"{self.source.name}: line {line}, column {column}: {what}", hint=hint)

    def too_deep(self, where: int | Path) -> InputError:
        """Return the error for lists beyond `MAX_DEPTH`."""
        return self.refusal(f"lists are nested deeper than {MAX_DEPTH} levels", where)


def contents(document: Document, root: object) -> Contents:
    """Turn the tree of a document into what its file holds.

    Parameters
    ----------
    document : Document
    root : list, dict or single value
        Numbers (None is −inf, as attncli writes it in JSON), booleans and str, in lists and
        mappings.

    Raises
    ------
    InputError
        With the line and column of what is ragged, empty, mixed, or a mapping where none may be.
    """
    source = document.source
    if isinstance(root, dict):
        if len(root) > _MAX_ENTRIES:
            raise document.refusal(f"expected at most {_MAX_ENTRIES:,} entries; found more", [])
        entries = {
            name: Unread() if name in source.skipped else _entry(document, name, value)
            for name, value in root.items()
        }
        return LoadedMapping(entries, source.name, source.folder)
    if not isinstance(root, list):
        what = f"expected a list or a mapping; found the single value {_shown(root)}"
        hint = _QUOTED if isinstance(root, str) and _ARRAY_TEXT.fullmatch(root) else None
        raise document.refusal(what, [], hint=hint)
    found = _array(document, root, [])
    if isinstance(found, list):
        raise InputError(f"{source.name}: expected numbers; found a list of words")
    return LoadedArray(found, source.name, printed=printed_alike(document.text))


def _entry(document: Document, name: str, value: object) -> object:
    if name in SUMMARIES and isinstance(
        value[0] if isinstance(value, list) and value else value, dict
    ):
        return Unread()
    if isinstance(value, dict):
        raise _mapping_inside(document, [name])
    if isinstance(value, list):
        if name in LABELS and not any(isinstance(item, list | dict) for item in value) and value:
            return [item if isinstance(item, str) else json.dumps(item) for item in value]
        found = _array(document, value, [name])
        if isinstance(found, list):
            return found
        return LoadedArray(found, f"{document.source.name}#{printable(name)}")
    if isinstance(value, int) and abs(value) > _FLOAT_MAX:
        raise document.refusal(f"{quoted(str(value))} is beyond the range of float64", [name])
    if isinstance(value, str) and name not in LABELS and _ARRAY_TEXT.fullmatch(value):
        raise document.refusal(
            f"expected an array; found the text {quoted(value)}", [name], hint=_QUOTED
        )
    return value


def _array(document: Document, nested: list[Any], path: Path) -> npt.NDArray[Any] | list[str]:
    """Turn nested lists into one array, or a flat list of words into labels."""
    found = _packed(nested)
    if found is None:
        for quick in (True, False):  # the second time for an integer beyond float64
            _Misfit(document, path, quick=quick).search(nested, 1)
        raise document.refusal("expected numbers within the range of float64", path)
    return found


def _packed(nested: list[Any]) -> npt.NDArray[Any] | list[str] | None:
    """Return nested lists as an array, or as words; None where they are not one array."""
    shape, flat = [len(nested)], nested
    while flat and isinstance(flat[0], list):
        if set(map(type, flat)) != {list} or len(lengths := set(map(len, flat))) > 1:
            return None
        shape += lengths
        flat = list(chain.from_iterable(flat))
    kinds = set(map(type, flat))
    if kinds == {str} and len(shape) == 1:
        return list(flat)
    if (
        len(shape) > MAX_DEPTH
        or not kinds
        or not (kinds == {bool} or kinds <= {int, float, type(None)})
    ):
        return None
    if type(None) in kinds:
        flat = [-np.inf if item is None else item for item in flat]
    try:
        return np.array(flat, np.bool_ if kinds == {bool} else np.float64).reshape(shape)
    except OverflowError:  # an integer of more than 308 digits
        return None


class _Misfit:
    """Finds the first place where nested lists are not one array.

    The first items set the shape and the kind that all others must have.
    """

    def __init__(self, document: Document, path: Path, *, quick: bool) -> None:
        self._document, self._path, self._quick = document, [*path], quick
        self._lengths: dict[int, int] = {}  # by depth
        self._leaf_depth = 0
        self._first: tuple[object, Path] = (None, [])

    def search(self, items: list[Any], depth: int) -> None:
        """Raise the `InputError` of the first item that does not fit, if there is one."""
        if depth > MAX_DEPTH:
            raise self._document.too_deep(self._path)
        if self._leaf_depth and depth > self._leaf_depth:
            raise self._error(f"expected {_kind(self._first[0])}; found a list")
        if not items:
            raise self._error("expected numbers; found an empty list")
        self._path.append(0)
        for at, item in enumerate(items):
            if (
                self._quick
                and depth == self._leaf_depth
                and type(item) is type(items[0]) is not str
            ):
                continue
            self._path[-1] = at
            if isinstance(item, list):
                if not self._is_alike(item, depth + 1):
                    self.search(item, depth + 1)
            else:
                self._item(item, depth)
        self._path.pop()
        expected = self._lengths.setdefault(depth, len(items))
        if len(items) != expected:
            wanted = counted(expected, "item")
            raise self._error(f"expected {wanted}, as in the first list; found {len(items)}")

    def _is_alike(self, items: list[Any], depth: int) -> bool:
        """Whether a list is numbers, and as long as those before: most are, and soon passed."""
        return (
            self._quick
            and depth == self._leaf_depth
            and len(items) == self._lengths.get(depth)
            and {*map(type, items)} <= _NUMBERS
            and type(self._first[0]) in _NUMBERS
        )

    def _item(self, item: object, depth: int) -> None:
        if isinstance(item, dict):
            raise _mapping_inside(self._document, self._path)
        if not self._leaf_depth:
            self._leaf_depth, self._first = depth, (item, [*self._path])
        first, place = self._first
        if depth < self._leaf_depth:
            wanted = counted(self._lengths[depth + 1], "item")
            raise self._error(f"expected a list of {wanted}; found {_shown(item)}")
        if isinstance(item, str) and depth > 1:
            raise self._error(f"expected a number; found {_shown(item)}", _hint(item))
        if isinstance(item, int) and abs(item) > _FLOAT_MAX:
            raise self._error(f"{quoted(str(item))} is beyond the range of float64")
        if _kind(item) != _kind(first):
            if isinstance(first, str):  # one word among numbers is the likelier mistake
                self._path, item, first = place, first, item
            raise self._error(f"expected {_kind(first)}; found {_shown(item)}", _hint(item))

    def _error(self, what: str, hint: str | None = None) -> InputError:
        return self._document.refusal(what, self._path, hint=hint)


def _kind(item: object) -> str:
    if isinstance(item, str):
        return "a word"
    return "true or false" if isinstance(item, bool) else "a number"


def _shown(item: object) -> str:
    return quoted(item) if isinstance(item, str) else json.dumps(item)


def _hint(item: object) -> str | None:
    """Return what was meant by a word where a number should be, as far as it is known."""
    if not isinstance(item, str):
        return None
    if is_numeric(item):
        return "write numbers without quotation marks"
    return "of a window, null or -1 is unbounded" if item.lower() == "none" else number_hint(item)


def _mapping_inside(document: Document, where: Path) -> InputError:
    hint = None
    if document.source.suffix == ".json":
        hint = 'pandas: to_json(orient="values") writes rows of numbers, but NaN as null: -inf'
    return document.refusal("expected numbers, words or lists; found a mapping", where, hint=hint)
