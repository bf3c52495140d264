"""Long text of plain numbers, read by the quickest parser of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["quick_json", "quick_table"]

# Shorter text is read by NumPy or Python itself sooner than the parser is imported.
_LONG = 2**16
# What is read at once: its numbers are objects of Python's for a while.
_BLOCK = 2**18
_PLAIN = b"0123456789+-.eE \n"


def quick_json(text: str) -> Any:
    """Parse long JSON as `json.loads` does.

    Parameters
    ----------
    text : str

    Returns
    -------
    object
        None where it is short, ``null``, or holds what JSON does not: the word ``NaN``, half a
        surrogate pair, a number beyond float64. Whole numbers of more than 64 bits are float.
    """
    if len(text) < _LONG:
        return None
    try:
        return _parsed(text)
    except ValueError:
        return None


def quick_table(data: bytes, delimiter: str) -> npt.NDArray[np.float64] | None:
    """Read a large table whose cells are all numbers as JSON writes them.

    Parameters
    ----------
    data : bytes
        Lines of cells.
    delimiter : str
        What stands between two cells.

    Returns
    -------
    ndarray (lines, cells) of float64, or None
        None where it is short, ragged, or holds anything else, which a more
        patient reader may still take for a table: blank lines, ``+1``, ``.5``, ``nan``.
    """
    if len(data) < _LONG:
        return None
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    data = data.strip(b"\n")
    if data.translate(None, _PLAIN + delimiter.encode()):
        return None
    if delimiter != ",":
        data = data.replace(delimiter.encode(), b",")
    parts: list[npt.NDArray[np.float64]] = []
    for lines in _blocks(data):
        part = _part(lines)
        if part is None or part.shape[1:] != (parts or [part])[0].shape[1:]:
            return None
        parts.append(part)
    return np.concatenate(parts)


def _blocks(data: bytes) -> Iterator[bytes]:
    """Cut lines into blocks, each without its last line end."""
    start = 0
    while start < len(data):
        end = data.find(b"\n", start + _BLOCK) % (len(data) + 1)
        yield data[start:end]
        start = end + 1


def _part(lines: bytes) -> npt.NDArray[np.float64] | None:
    text = b"[[%b]]" % lines.replace(b"\n", b"],[")
    try:
        values = np.array(_parsed(text), np.float64)
    except ValueError:  # no JSON, or lines of other lengths
        return None
    # As a whole number, -0 has lost its sign.
    signed = not values.all() and any(zero in text for zero in (b"-0,", b"-0]", b"-0 "))
    return None if signed or values.ndim != 2 else values


def _parsed(text: str | bytes) -> Any:
    import orjson  # noqa: PLC0415 - most runs read nothing long

    return orjson.loads(text)
