"""Read JSON: matrices, and problems as a mapping of them."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from attncli.errors import InputError
from attncli.errors.text import quoted
from attncli.loading.documents import Document, Path, contents
from attncli.loading.number import NumberOverflowError
from attncli.loading.source import MOST_CELLS, no_collection, open_source, too_many_cells

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.loading.contents import Contents
    from attncli.loading.source import Source

__all__ = ["json_tree", "read", "read_settings"]

# A key takes as much time and memory as so many cells.
_CELLS_A_KEY = 3
# The largest float64 has 309 digits.
_MOST_DIGITS = 400
_BLANK = re.compile(r"[ \t\n\r,:]*")
_SCAN: Callable[[str, int], tuple[Any, int]]
_SCAN = vars(json.JSONDecoder(parse_int=lambda _: 0))["scan_once"]


class _TwinError(Exception):
    """A key that stands twice in a mapping; raised inside the parser, which knows no place."""


def read(source: Source) -> Contents:
    """Read a JSON document: nested lists are arrays, a mapping is a problem, ``null`` is −inf."""
    document = Document(source, source.text(), _find)
    with no_collection():
        return contents(document, _tree(document))


def json_tree(source: Source, text: str) -> Any:
    """Parse JSON that is no problem, of bounded size."""
    return _tree(Document(source, text, _find))


def read_settings(file: str, what: str) -> dict[str, Any]:
    """Return the entries of a mapping in JSON, the settings of another program, as they are."""
    source = open_source(file)
    found = json_tree(source, source.text())
    if not isinstance(found, dict):
        raise InputError(f"{source.name}: expected {what}, a mapping in which each key stands once")
    return found


def _tree(document: Document) -> Any:
    text = document.text
    cells = text.count(",") + text.count("[") + _CELLS_A_KEY * text.count(":")
    if cells > MOST_CELLS:
        raise too_many_cells(document.source.name, cells)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_int=_whole, parse_float=_number)
    except json.JSONDecodeError as error:
        what = f"this is not JSON: {error.msg}"
        raise document.refusal(what, error.pos) from error
    except RecursionError as error:
        raise document.too_deep(0) from error
    except NumberOverflowError as error:
        raise document.refusal(str(error), max(text.find(error.text), 0)) from error
    except _TwinError as error:
        what = f"the key {quoted(str(error))} appears here a second time"
        key = json.dumps(str(error))
        first = text.find(key) + 1
        raise document.refusal(what, max(text.find(key, first), first - 1)) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise _TwinError(Counter(key for key, _ in pairs).most_common(1)[0][0])
    return entries


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise NumberOverflowError(text)
    return int(text)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # 1e400; the word Infinity does not come here
        raise NumberOverflowError(text)
    return value


def _find(document: Document, path: Path) -> int:
    """Return the offset of an item in a text that is JSON: what stands before it is skipped."""
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
