"""The root mean square of vectors made 1: what some models do to each query and key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen

__all__ = ["NORM_EPSILON", "rms_norm"]

Array = npt.NDArray[Any]
NORM_EPSILON = 1e-6


def rms_norm(rows: Array, weight: Array, epsilon: float) -> Array:
    """Return vectors whose root mean square is 1, times a weight.

    Parameters
    ----------
    rows : ndarray (…, n·N)
        N vectors side by side, each normalised by itself.
    weight : ndarray (n,)
    epsilon : float
        Added to the mean square.

    Returns
    -------
    ndarray (…, n·N)
        In the dtype of the rows.

    References
    ----------
    Zhang, Sennrich 2019, "Root Mean Square Layer Normalization", equation 4.

    Examples
    --------
    >>> rms_norm(np.array([[3.0, 4.0], [0.0, 1e200]]), np.array([1.0, 2.0]), 0.0).round(4)
    array([[0.8485, 2.2627],
           [0.    , 2.8284]])
    """
    vectors = rows.reshape(*rows.shape[:-1], -1, len(weight))
    # Powers of 2 round nothing, and with them no square exceeds the range.
    power = np.frexp(np.abs(vectors).max(axis=-1))[1]
    # Rows that are not finite are padding.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        normed = np.ldexp(vectors, -power[..., None])
        squares = np.einsum("...n,...n->...", normed, normed).astype(np.float64)
        root = np.sqrt(squares / len(weight) + np.ldexp(epsilon, -2 * power))
        normed /= root.astype(rows.dtype)[..., None]
        normed *= widen(weight, rows.dtype)
    packed: Array = normed.reshape(rows.shape)
    return packed
