"""Whether a mask looks as if it were meant the other way round, and a bias as if it were a mask."""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import parts

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["inverted", "leaves_little", "looks_like_mask", "pairs_of", "would_show_all"]

Bools = npt.NDArray[np.bool_]

# Below so many cells a mask says nothing about its polarity.
_FEW_CELLS = 20
# And below so many, numbers say nothing about what they are.
_FEW_NUMBERS = 4
# So many rows are enough to tell what the others are.
_MOST_ROWS = 1000


def pairs_of(seen: Iterable[Bools]) -> tuple[int, int]:
    """Return how many pairs a mask, given part by part, lets attend, and of how many."""
    attending = cells = 0
    for part in seen:
        attending += int(np.count_nonzero(part))
        cells += part.size
    return attending, cells


def leaves_little(attending: int, cells: int) -> bool:
    """Return whether a mask lets at most a tenth of the pairs attend."""
    return cells >= _FEW_CELLS and attending * 10 <= cells


def would_show_all(seen: Iterable[Bools], shape: tuple[int, ...]) -> bool:
    """Return whether a mask leaves some query without a key, and its opposite none.

    So does the mask of `torch.nn.Transformer.generate_square_subsequent_mask`, which is true
    where a key is hidden. A small mask has to hide every query from itself as well, as this does.

    Parameters
    ----------
    seen : iterable of ndarray of bool (…, S)
        Whole rows, part by part; a small mask in one part, (…, L, S).
    shape : (…, L, S)
        Of all of it.
    """
    queries, keys = shape[-2:]
    few = math.prod(shape) < _FEW_CELLS
    if queries == 1 or (few and queries != keys):
        return False
    blind = False
    for part in seen:
        if few and _sees_itself(part):
            return False
        if part.all(axis=-1).any():
            return False
        blind |= not part.any(axis=-1).all()
    return blind


def _sees_itself(seen: Bools) -> bool:
    """Return whether some query of a square mask sees the key of its own place."""
    return bool(np.diagonal(seen, axis1=-2, axis2=-1).any())


def looks_like_mask(numbers: npt.NDArray[Any]) -> bool:
    """Return whether numbers are those of a causal mask or of padding.

    In each row, ones come before zeros.

    Parameters
    ----------
    numbers : ndarray (…, S)
    """
    keys = numbers.shape[-1] if numbers.ndim else 0
    if numbers.size < _FEW_NUMBERS or keys < 2:
        return False
    lengths = set()
    # A row at a time: a bias may be as large as the weights, and most are told by the first.
    for place in islice(np.ndindex(numbers.shape[:-1]), _MOST_ROWS):
        row = numbers[place]
        ones = int(np.count_nonzero(row == 1))
        if not (ones and (row[:ones] == 1).all() and (row[ones:] == 0).all()):
            return False
        lengths.add(ones)
    # One key alone gets a bonus more likely.
    if lengths in ({keys}, {1}):
        return False
    return all(bool(((part == 0) | (part == 1)).all()) for part in parts(numbers))


def inverted(means: str) -> str:
    """Ask whether a mask has the other polarity.

    Parameters
    ----------
    means : {"keep", "drop"}
        How it was read.
    """
    read, other = "may attend", "drop"
    if means == "drop":
        read, other = "is hidden, because mask_means is drop", "keep"
    return (
        f"is it inverted? Here true means {read}; mask_means {other} (--mask-means {other}) reads "
        "the opposite"
    )
