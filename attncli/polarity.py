"""Whether a mask was perhaps meant the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["inverted", "leaves_little", "would_show_all"]

Bools = npt.NDArray[np.bool_]

# Below so many cells a mask says nothing about its polarity.
_FEW_CELLS = 20


def leaves_little(seen: Iterable[Bools]) -> float | None:
    """Return how many percent of the pairs a mask lets attend, if it is a tenth or less."""
    attending = cells = 0
    for part in seen:
        attending += int(np.count_nonzero(part))
        cells += part.size
    return 100 * attending / cells if cells >= _FEW_CELLS and attending * 10 <= cells else None


def would_show_all(seen: Iterable[Bools]) -> bool:
    """Return whether a mask's opposite would leave no query without a key.

    So does that of `torch.nn.Transformer.generate_square_subsequent_mask`, true where hidden.
    """
    return not any(part.all(axis=-1).any() for part in seen)


def inverted(means: str) -> str:
    """Say how a mask of the other polarity is read; ``means`` is how it was read."""
    read, other = "may attend", "drop"
    if means == "drop":
        read, other = "is hidden, because mask_means is drop", "keep"
    return (
        f"perhaps it is inverted; here true means {read}, and mask_means {other} "
        f"(--mask-means {other}) reads the opposite"
    )
