"""Panels: some queries side by side, so that their index is the last axis of every array.

A tile of scores is (P, C, R): P panels of R queries each, C keys. Where a matrix has a
row for each query, `across` shows it that way without a copy. Products of such small
matrices need no packing where BLAS has kernels for them, and sums and maxima over keys
run along R.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["across", "pieces"]

Array = npt.NDArray[Any]


def across(matrix: Array, panel: int) -> Array:
    """Return a matrix of a row for each query as (P, columns, R), a view.

    Parameters
    ----------
    matrix : ndarray (P · R, columns) or (1, columns)
        One row says the same of all queries.
    panel : int
        R.

    Returns
    -------
    ndarray (P, columns, R) or (1, columns, 1)
    """
    rows = 1 if len(matrix) == 1 else panel
    view: Array = np.reshape(matrix, (-1, rows, matrix.shape[1])).swapaxes(1, 2)
    return view


@lru_cache
def pieces(columns: int, widest: int) -> int:
    """Return in how many equal pieces a product takes the columns of a tile.

    As few as leave none wider than BLAS multiplies without packing; all at once where
    only much smaller pieces are equal.
    """
    least = -(-columns // widest)
    return next((count for count in range(least, 3 * least) if columns % count == 0), 1)
