"""Tables of plain numbers, or of labels and plain numbers: whole, or block by block."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.loading.number import is_numeric
from attncli.loading.quick import quick_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.loading.headings import Headings

__all__ = ["plain_blocks", "plain_table"]

# What is read at once; small enough for the cache.
_BLOCK = 2**18
_INFINITIES = re.compile(rb"inf(?:inity)?", re.IGNORECASE)


class Block(NamedTuple):
    """Some rows of a table.

    Attributes
    ----------
    labels : list of str
        Of the rows, if they have any.
    values : ndarray (rows, cells) of float64
    end : int
        Where the block ends in the data.
    """

    labels: list[str]
    values: npt.NDArray[np.float64]
    end: int


def plain_table(data: bytes, delimiter: str) -> npt.NDArray[np.float64] | None:
    """Read a table of nothing but numbers at once.

    Parameters
    ----------
    data : bytes
    delimiter : str

    Returns
    -------
    ndarray (rows, cells) of float64, or None
        None where it is no such table.
    """
    if not data.isascii() or not data or data.isspace():
        return None
    quick = quick_table(data, delimiter)
    if quick is not None:
        return quick
    try:
        # A stream, not the path: by the path, NumPy would unpack archives and open URLs.
        values = np.loadtxt(io.BytesIO(data), delimiter=delimiter, comments=None, ndmin=2)
    except ValueError:
        return None
    # NumPy reads 1e400 as inf; an honest inf is spelt out.
    infinite = int(np.isinf(values).sum())
    honest = not infinite or infinite == len(_INFINITIES.findall(data))
    return values if honest else None


def plain_blocks(
    data: bytes, delimiter: str, headings: Headings, start: int, width: int
) -> Iterator[Block]:
    """Yield blocks of rows until one is not plain, or the last line has no end.

    Parameters
    ----------
    data : bytes
    delimiter : str
    headings : Headings
        Whether rows begin with labels, and these may be numbers.
    start : int
        Where the first row begins.
    width : int
        The cells of a row, its label counted.

    Yields
    ------
    Block
    """
    while end := (data.rfind(b"\n", start, start + _BLOCK) + 1 or data.find(b"\n", start) + 1):
        block = data[start:end]
        if not block.isspace():
            labels, numbers = _parted(block, delimiter) if headings.column else ([], block)
            values = plain_table(numbers, delimiter)
            if values is None or values.shape[1] != width - headings.column:
                return
            if headings.column and not _are_labels(labels, len(values), headings):
                return
            yield Block(labels, values, end)
        start = end


def _parted(block: bytes, delimiter: str) -> tuple[list[str], bytes]:
    """Part lines into their first cells and the rest; nothing where that takes more to tell."""
    if b'"' in block:
        return [], b""
    lines = [line for line in block.replace(b"\r\n", b"\n").split(b"\n") if line.strip(b" ")]
    parts = [line.partition(delimiter.encode()) for line in lines]
    try:
        labels = [label.decode() for label, _, _ in parts]
    except UnicodeDecodeError:
        return [], b""
    return labels, b"\n".join(rest for _, _, rest in parts)


def _are_labels(labels: list[str], count: int, headings: Headings) -> bool:
    """Return whether there are so many labels, and none that is a number by mistake."""
    return len(labels) == count and (headings.certain or not any(map(is_numeric, labels)))
