"""The steps of the formula as it stands in the paper, of which both quick ways are made.

`attncli.engine.at_once` computes small problems with them, `attncli.engine.decoding` few queries
over many keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import LONGEST_PRODUCT, add_up
from attncli.numerics.finite import all_finite

__all__ = ["exponentiate", "grouped_heads", "scaled_product", "weighted_sum"]

Array = npt.NDArray[Any]

# NumPy only releases the interpreter's lock for more than 500 results.
_FREE_RESULTS = 501
_PIECE_KEYS = 256


def scaled_product(
    query: Array, key: Array, scale: float, *, one_blas_thread: bool
) -> tuple[Array, bool]:
    """Return scale · query keyᵀ, (B, G, R, S), and whether all of it is finite.

    The scale comes last, as on paper, so that products of whole numbers are exact; but first where
    products leave the range that it keeps scores in: in those heads alone, so that others are
    rounded in the same way whichever are computed together.
    """
    transposed = key.swapaxes(2, 3)
    if abs(scale) > 1:
        scores = np.multiply(query, scale, dtype=query.dtype) @ transposed
        return scores, all_finite(scores, one_blas_thread=one_blas_thread)
    scores = query @ transposed
    np.multiply(scores, scale, out=scores)
    if all_finite(scores, one_blas_thread=one_blas_thread):
        return scores, True
    beyond = ~np.isfinite(scores).all(axis=(2, 3))
    every = np.broadcast_to(transposed, (*scores.shape[:2], *transposed.shape[2:]))
    scaled = np.multiply(query[beyond], scale, dtype=query.dtype)
    scores[beyond] = scaled @ every[beyond]
    return scores, all_finite(scores, one_blas_thread=one_blas_thread)


def exponentiate(scores: Array, *, may_be_empty: bool = False) -> tuple[Array, Array]:
    """Replace scores by exp(score − the row's highest), and return the highest and the sums.

    Parameters
    ----------
    scores : ndarray (..., S)
    may_be_empty : bool
        Whether all scores of a row may be −inf, because it sees no key; its sum is 0 then.

    Returns
    -------
    highest, total : ndarray (..., 1)
    """
    highest = np.maximum.reduce(scores, axis=-1, keepdims=True)
    if may_be_empty:
        np.copyto(highest, 0, where=highest == -np.inf)
    np.subtract(scores, highest, out=scores)
    np.exp(scores, out=scores)
    return highest, np.add.reduce(scores, axis=-1, keepdims=True)


def weighted_sum(weights: Array, value: Array) -> Array:
    """Return weights @ value, (B, G, R, S) by (B, G, S, E).

    During a product with few results, however long, NumPy holds the interpreter's lock and so
    blocks the other threads. Cutting the keys into pieces makes the results more, and the rounding
    errors of long sums fewer.
    """
    keys = weights.shape[3]
    # Counted for one group, so that the pieces do not depend on how many are computed at once.
    freeing = -(-_FREE_RESULTS // (weights.shape[2] * value.shape[3]))
    pieces = max(freeing if keys >= freeing * _PIECE_KEYS else 1, -(-keys // LONGEST_PRODUCT))
    if pieces == 1:
        return np.asarray(weights @ value)
    step = keys // pieces
    whole = pieces * step
    cut_weights = weights[..., :whole].reshape(*weights.shape[:3], pieces, step)
    cut_value = value[:, :, :whole].reshape(*value.shape[:2], pieces, step, value.shape[3])
    parts = cut_weights.swapaxes(2, 3) @ cut_value
    total = np.empty((*parts.shape[:2], *parts.shape[3:]), parts.dtype)
    add_up(parts, total)
    if whole < keys:
        total += weights[..., whole:] @ value[:, :, whole:]
    return total


def grouped_heads(array: Array, groups: int) -> Array:
    """Return (B, H, L, ...) as (B, G, H/G · L, ...), stacking the heads that share a key."""
    if array.shape[1] == groups:
        return array
    grouped: Array = array.reshape(array.shape[0], groups, -1, *array.shape[3:])
    return grouped
