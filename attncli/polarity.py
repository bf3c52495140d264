"""Whether a mask looks as if it were meant the other way round."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["inverted", "leaves_little", "would_show_all"]

Bools = npt.NDArray[np.bool_]

# Below so many cells a mask says nothing about its polarity.
_FEW_CELLS = 20


def leaves_little(seen: Bools) -> bool:
    """Return whether a mask lets at most a tenth of the pairs attend."""
    return seen.size >= _FEW_CELLS and int(np.count_nonzero(seen)) * 10 <= seen.size


def would_show_all(seen: Bools) -> bool:
    """Return whether a mask leaves some query without a key, and its opposite none.

    So does the mask of `torch.nn.Transformer.generate_square_subsequent_mask`, which is true
    where a key is hidden.

    Parameters
    ----------
    seen : ndarray of bool (…, L, S)
    """
    if seen.size < _FEW_CELLS or seen.shape[-2] == 1:
        return False
    return not seen.any(axis=-1).all() and not seen.all(axis=-1).any()


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
