"""Panels: some queries side by side, so that their index is the last axis of every array.

A tile of scores is (N, P, C, R): N heads, P panels of R queries each, C keys. Where a
matrix has a row for each query, `across` shows it that way without a copy. Products of
such small matrices need no packing where BLAS has kernels for them, and sums and maxima
over keys run along R.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PANEL", "across", "lying", "multiply"]

Array = npt.NDArray[Any]

# Queries of a panel, where products of small matrices are the fastest.
PANEL = 64


def across(matrix: Array, panel: int) -> Array:
    """Return matrices of a row for each query as (..., P, columns, R), a view.

    Parameters
    ----------
    matrix : ndarray (..., P · R, columns) or (..., 1, columns)
        One row says the same of all queries.
    panel : int
        R.

    Returns
    -------
    ndarray (..., P, columns, R) or (..., 1, columns, 1)
    """
    *lead, count, columns = matrix.shape
    rows = 1 if count == 1 else panel
    view: Array = np.reshape(matrix, (*lead, count // rows, rows, columns)).swapaxes(-2, -1)
    return view


def lying(make: Callable[..., Array], shape: tuple[int, ...]) -> Array:
    """Return room for (N, P, columns, R) as it is multiplied fastest.

    Other panels than those of `PANEL` lie as they are read and written: by the row.
    """
    heads, panels, columns, panel = shape
    if panel == PANEL:
        return make(*shape)
    return make(heads, panels, panel, columns).swapaxes(2, 3)


def multiply(left: Array, right: Array, out: Array) -> Array:
    """Write the products of matrices with the panels of their heads into ``out``.

    Parameters
    ----------
    left : ndarray (G, a, b)
        N is a multiple of G: so many heads in a row share a matrix.
    right : ndarray (N, P, b, R)
    out : ndarray (N, P, a, R)
    """
    groups = len(left)
    if groups == 1:
        np.matmul(left[0], right, out)
    elif groups == len(right):
        np.matmul(left[:, None], right, out)
    else:
        each = len(right) // groups
        np.matmul(left[:, None, None], _grouped(right, groups, each), _grouped(out, groups, each))
    return out


def _grouped(array: Array, groups: int, each: int) -> Array:
    """Return a view of (N, ...) as (G, N / G, ...)."""
    view: Array = np.reshape(array, (groups, each, *array.shape[1:]))
    return view
