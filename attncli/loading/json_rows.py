"""Read a long JSON list of lists part by part.

Its tree as a whole would take ten times the memory of the text, and to find a short
row in it item by item would take longer than to read it.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.loading.pack import Unpackable, pack
from attncli.loading.quick import quick_json
from attncli.loading.tree import MAX_DEPTH, Document, Event, at_most, build

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MOST_NUMBERS",
    "MOST_ROWS",
    "events",
    "in_range",
    "nearly_json",
    "read_rows",
    "some_events",
]

# Shorter documents are parsed at once.
_LONG = 4 * 2**20
_PART = 2**20
# At a tenth of a microsecond for an item, and a fifth for a list.
MOST_NUMBERS, MOST_ROWS = 8_000_000, 2_100_000
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]|[^\s\[\]{},:"]++', re.DOTALL)
_COMMA = re.compile(r"\s*,")
# [[1. 0.] and [[1., 0.]: numbers that end with a point, or with blanks between them.
_PRINTED = re.compile(r"\s*\[[\s\[]*[-+\d][\d.e+-]*(?:\.\s*,|\s+[-+\d])")


def nearly_json(text: str, message: str, place: int) -> str | None:
    """Return a hint on a text that is nearly JSON, or None.

    Parameters
    ----------
    text : str
    message : str
        What the parser says.
    place : int
        Where it says so.
    """
    if message == "Extra data" and text[place] in "[{":
        return "JSON lines are not read: put everything into one document"
    if _PRINTED.match(text):
        return 'this is a printed array: save it, in Python: numpy.save("q.npy", q)'
    return None


def events(text: str, start: int = 0, end: int | None = None) -> Iterator[Event]:
    """Yield what `build` takes, from a text that is known to be JSON."""
    for match in _TOKEN.finditer(text, start, len(text) if end is None else end):
        word, offset = match[0], match.start()
        if word in "[]{}":
            yield word, "", False, offset
        elif word.startswith('"'):
            yield "value", json.loads(word), False, offset
        else:
            yield "value", word, True, offset


def some_events(document: Document, found: Iterator[Event]) -> Iterator[Event]:
    """Yield the events of a document that has a mistake, as far as it is worth looking."""
    what = (
        "after this comes a list of another length or kind, a number beyond the range of float64, "
        "or a duplicate key"
    )
    return at_most(
        document, found, what, hint="the exact place is not searched for in so long a file"
    )


def in_range(text: str) -> float:
    """Return a number in JSON, unless float64 would make it infinite."""
    if np.isinf(value := float(text)):  # 1e400; the word Infinity does not come here
        raise Unpackable
    return value


def read_rows(document: Document) -> npt.NDArray[Any] | None:
    """Return a long list of lists of numbers as an array; None for any other document.

    Raises
    ------
    InputError
        With the line and column of what is not JSON, or not of one shape.
    """
    text = document.text
    # Brackets inside words would be counted as lists.
    if len(text) < _LONG or '"' in text or "{" in text or not text.isascii():
        return None
    if text.count(",") >= MOST_NUMBERS or text.count("[") > MOST_ROWS + 1:
        return None
    spans = _spans(text)
    if spans is None:
        return None
    parts: list[npt.NDArray[Any]] = []
    for start, end in spans:
        part = _part(document, start, end)
        first = parts[0] if parts else part
        if part is None or first is None or _kind(part) != _kind(first):
            _refuse(document, spans[0], (start, end))
            return None
        parts.append(part)
    return np.concatenate(parts)


def _kind(part: npt.NDArray[Any]) -> tuple[object, ...]:
    return (part.dtype, *part.shape[1:])


def _spans(text: str) -> list[tuple[int, int]] | None:
    """Return where runs of whole rows begin and end; None where that cannot be told."""
    ends = _row_ends(text)
    if not len(ends):
        return None
    chosen = np.searchsorted(ends, np.arange(0, len(text), _PART))
    cuts = np.unique(np.append(ends[chosen[chosen < len(ends)]], ends[-1])).tolist()
    start, spans = text.index("[") + 1, []
    for cut in cuts:
        spans.append((start, cut + 1))
        comma = _COMMA.match(text, cut + 1)
        if comma is None:
            # The list ends here, or something is wrong that a parser shall tell.
            whole = cut == cuts[-1] and text[cut + 1 :].strip() == "]"
            return spans if whole else None
        start = comma.end()
    return None


def _row_ends(text: str) -> npt.NDArray[np.intp]:
    """Return the places of the brackets that close the lists in the outermost list."""
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    places = np.flatnonzero((codes == ord("[")) | (codes == ord("]")))
    opens = codes[places] == ord("[")
    depth = np.where(opens, np.int8(1), np.int8(-1)).cumsum(dtype=np.int32)
    nested = text.lstrip().startswith("[") and depth[-1] == 0 and np.max(depth) <= MAX_DEPTH
    return places[(depth == 1) & ~opens] if nested else places[:0]


def _part(document: Document, start: int, end: int) -> npt.NDArray[Any] | None:
    """Return a run of rows as an array; None where they are not one."""
    text = f"[{document.text[start:end]}]"
    try:
        # Not JSON, or NaN or 1e400, which Python's reader tells apart.
        nested = quick_json(text)
        part = pack(json.loads(text) if nested is None else nested)
        if isinstance(part, np.ndarray) and np.isinf(part).any():
            json.loads(text, parse_float=in_range)
    except json.JSONDecodeError as error:
        what, place = f"this is not JSON: {error.msg}", start + error.pos - 1
        hint = nearly_json(document.text, error.msg, place)
        raise document.refusal(what, place, hint=hint) from error
    except (Unpackable, ValueError):  # ValueError: an integer of thousands of digits
        return None
    return part if isinstance(part, np.ndarray) else None


def _refuse(document: Document, first: tuple[int, int], wrong: tuple[int, int]) -> None:
    """Raise what is wrong in a run of rows, seen after the first row of all."""
    text = document.text
    end = text.index("]", first[0]) + 1
    depth = text.count("[", first[0], end)
    # The first row ends where all the lists that it opens are closed again.
    while depth > text.count("]", first[0], end):
        end = text.index("]", end) + 1
        depth = text.count("[", first[0], end)
    head = events(text, first[0], end) if wrong != first else iter(())
    opened, closed = ("[", "", False, first[0] - 1), ("]", "", False, wrong[1])
    found = itertools.chain([opened], head, events(text, *wrong), [closed])
    build(document, some_events(document, found))
