"""Whether a mask looks as if it were meant the other way round, and a bias as if it were a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["inverted", "leaves_little", "looks_like_mask", "would_show_all"]

Bools = npt.NDArray[np.bool_]

# Below so many cells a mask says nothing about its polarity.
_FEW_CELLS = 20
# And below so many, numbers say nothing about what they are.
_FEW_NUMBERS = 4


def leaves_little(seen: Bools) -> bool:
    """Return whether a mask lets at most a tenth of the pairs attend."""
    return seen.size >= _FEW_CELLS and int(np.count_nonzero(seen)) * 10 <= seen.size


def would_show_all(seen: Bools) -> bool:
    """Return whether a mask leaves some query without a key, and its opposite none.

    So does the mask of `torch.nn.Transformer.generate_square_subsequent_mask`, which is true
    where a key is hidden. A small mask has to hide every query from itself as well, as this does.

    Parameters
    ----------
    seen : ndarray of bool (…, L, S)
    """
    queries, keys = seen.shape[-2:]
    if queries == 1 or (seen.size < _FEW_CELLS and (queries != keys or _sees_itself(seen))):
        return False
    return not seen.any(axis=-1).all() and not seen.all(axis=-1).any()


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
    if numbers.size < _FEW_NUMBERS or not np.isin(numbers, (0, 1)).all():
        return False
    falls = numbers[..., 1:] < numbers[..., :-1]
    rises = numbers[..., 1:] > numbers[..., :-1]
    return bool((numbers[..., 0] == 1).all() and falls.any() and not rises.any())


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
