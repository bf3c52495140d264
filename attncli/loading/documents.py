"""Read JSON documents; the lists of a JSON or YAML document become arrays."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.errors import InputError
from attncli.errors.names import LABELS, SUMMARIES
from attncli.errors.text import counted, number_hint, printable, quoted
from attncli.loading.contents import Contents, LoadedArray, LoadedMapping, Unread
from attncli.loading.number import NumberOverflowError, is_numeric, printed_alike
from attncli.loading.source import MOST_CELLS, no_collection, open_source, too_many_cells

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from attncli.loading.source import Source

# Levels of lists. A problem has at most five: a mapping, and arrays of four axes. Deeper arrays are
# read so that the error can say how many axes are allowed.
MAX_DEPTH = 32
# Entries of a mapping; a problem and a file of results have about a dozen.
_MAX_ENTRIES = 10_000

_NUMBERS = {int, float, type(None)}
# A list that was saved as a text: by json.dumps twice, or by str() of an array.
_ARRAY_TEXT = re.compile(r"\s*(?:tensor\(|array\()?\[[^\]]*\d.*\]\)?\s*", re.DOTALL)
_QUOTED = (
    "the array is in quotation marks: write it as a list, in Python x.tolist(), and call json.dump "
    "once, without default=str"
)
# A key takes as much time and memory as three cells.
_CELLS_A_KEY = 3

_BLANK = re.compile(r"[ \t\n\r,:]*")
# Reads the JSON value at an offset, and returns it with the offset of its end.
_SCAN: Callable[[str, int], tuple[Any, int]]
_SCAN = vars(json.JSONDecoder(parse_int=lambda _: 0))["scan_once"]
# Names and indices that lead to an item of a tree.
Path = list[str | int]


class Document(NamedTuple):
    """A text with its source; ``find`` returns the offset of the item at a `Path`."""

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


def read(source: Source) -> Contents:
    """Read a JSON document: nested lists are arrays, a mapping is a problem, ``null`` is −inf."""
    document = Document(source, source.text(), _find)
    with no_collection():
        return contents(document, _tree(document))


def json_tree(source: Source, text: str) -> Any:
    """Parse JSON that is not a problem, within the same limits."""
    return _tree(Document(source, text, _find))


def read_settings(file: str, what: str) -> dict[str, Any]:
    """Return the JSON mapping in a file of another program."""
    source = open_source(file)
    found = json_tree(source, source.text())
    if not isinstance(found, dict):
        raise InputError(f"{source.name}: expected {what}, which is a JSON mapping")
    return found


def _tree(document: Document) -> Any:
    text = document.text
    cells = text.count(",") + text.count("[") + _CELLS_A_KEY * text.count(":")
    if cells > MOST_CELLS:
        raise too_many_cells(document.source.name, cells)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            twin = Counter(key for key, _ in pairs).most_common(1)[0][0]
            what, key = f"the key {quoted(twin)} appears here a second time", json.dumps(twin)
            first = text.find(key) + 1
            raise document.refusal(what, max(text.find(key, first), first - 1))
        return entries

    try:
        return json.loads(text, object_pairs_hook=once, parse_int=_whole, parse_float=_number)
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg}"
        raise document.refusal(what, error.pos) from error
    except RecursionError as error:
        raise document.too_deep(0) from error
    except NumberOverflowError as error:
        raise document.refusal(str(error), max(text.find(error.text), 0)) from error


def _whole(text: str) -> int:
    _number(text)
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # 1e400; json reads the word Infinity elsewhere
        raise NumberOverflowError(text)
    return value


def _find(document: Document, path: Path) -> int:
    """Return the offset of an item in JSON text; it skips the items before."""
    text, place = document.text, _behind_blanks(document.text, 0)
    for step in path:
        place = _behind_blanks(text, place + 1)
        for at in range(len(text)):
            if isinstance(step, str):
                key, place = _SCAN(text, place)
                place = _behind_blanks(text, place)
            if step in (at, key if isinstance(step, str) else at):
                break
            place = _behind_blanks(text, _SCAN(text, place)[1])
    return place


def _behind_blanks(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return place if found is None else found.end()


def contents(document: Document, root: object) -> Contents:
    """Turn the tree of a document into an array or a mapping."""
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
    first = value[0] if isinstance(value, list) and value else value
    if name in SUMMARIES and isinstance(first, dict):
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

    if isinstance(value, str) and name not in LABELS and _ARRAY_TEXT.fullmatch(value):
        what = f"expected an array; found the text {quoted(value)}"
        raise document.refusal(what, [name], hint=_QUOTED)
    return value


def _array(document: Document, nested: list[Any], path: Path) -> npt.NDArray[Any] | list[str]:
    """Turn nested lists into one array, or a flat list of words into labels."""
    shape, flat = _flattened(document, nested, path)
    kinds = set(map(type, flat))
    if kinds == {str} and len(shape) == 1:
        return flat
    expected = {bool} if isinstance(flat[0], bool) else _NUMBERS
    if not kinds <= expected:
        at = next(at for at, item in enumerate(flat) if type(item) not in expected)
        wanted = "true or false" if bool in expected else "a number"
        raise _unlike(document, wanted, flat[at], _place(path, shape, at))
    if type(None) in kinds:
        flat = [-np.inf if item is None else item for item in flat]
    return np.array(flat, np.bool_ if kinds == {bool} else np.float64).reshape(shape)


def _flattened(document: Document, nested: list[Any], path: Path) -> tuple[list[int], list[Any]]:
    """Return the shape and the items; all lists of a level must have the same length."""
    shape, flat = [len(nested)], nested
    while flat and isinstance(flat[0], list):
        lengths = [len(item) if isinstance(item, list) else -1 for item in flat]
        wanted = counted(lengths[0], "item")
        if lengths.count(lengths[0]) < len(lengths):
            at = next(at for at, length in enumerate(lengths) if length != lengths[0])
            place = _place(path, shape, at)
            if lengths[at] < 0:
                raise _unlike(document, f"a list of {wanted}", flat[at], place)
            what = f"expected {wanted}, as in the first list; found {lengths[at]}"
            raise document.refusal(what, place)
        if len(shape) == MAX_DEPTH:
            raise document.too_deep(path)
        shape.append(lengths[0])
        flat = list(chain.from_iterable(flat))
    if not flat:
        place = [*path, *[0] * (len(shape) - 1)]
        raise document.refusal("expected numbers; found an empty list", place)
    return shape, flat


def _place(path: Path, shape: list[int], at: int) -> Path:
    return [*path, *map(int, np.unravel_index(at, shape))]


def _unlike(document: Document, expected: str, item: object, place: Path) -> InputError:
    if isinstance(item, dict):
        return _mapping_inside(document, place)
    found = "a list" if isinstance(item, list) else _shown(item)
    hint = None
    if isinstance(item, str):
        quotes = "write numbers without quotation marks"
        hint = quotes if is_numeric(item) else number_hint(item)
    return document.refusal(f"expected {expected}; found {found}", place, hint=hint)


def _shown(item: object) -> str:
    return quoted(item) if isinstance(item, str) else json.dumps(item)


def _mapping_inside(document: Document, where: Path) -> InputError:
    return document.refusal("expected numbers, words or lists; found a mapping", where)
