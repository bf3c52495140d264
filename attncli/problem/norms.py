"""RMS norm, which some models apply to each query and key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen

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
    # Rows that are not finite are padding.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        own, _, root = _in_own_size(vectors, epsilon)
        own /= root.astype(rows.dtype)[..., None]
        own *= widen(weight, rows.dtype)
    packed: Array = own.reshape(rows.shape)
    return packed


def root_mean_square(vector: Array, epsilon: float) -> float:
    """Return √(mean of squares + ε) of a vector (n,)."""
    with np.errstate(over="ignore"):
        _, power, root = _in_own_size(vector.astype(np.float64), epsilon)
        return float(np.ldexp(root, power))


def _in_own_size(
    vectors: Array, epsilon: float
) -> tuple[Array, npt.NDArray[Any], npt.NDArray[np.float64]]:
    """Return vectors (…, n) divided by powers of 2, these powers, and their root mean squares.

    Dividing by a power of 2 rounds nothing, and keeps the squares within the range.
    """
    power = np.frexp(np.abs(vectors).max(axis=-1))[1]
    own = np.ldexp(vectors, -power[..., None])
    squares = np.einsum("...n,...n->...", own, own).astype(np.float64)
    return own, power, np.sqrt(squares / vectors.shape[-1] + np.ldexp(epsilon, -2 * power))
