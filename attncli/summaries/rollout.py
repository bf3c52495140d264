"""Attention of all layers together: how much of each input token reaches each token.

References
----------
Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3 (rollout).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

Array: TypeAlias = npt.NDArray[Any]


def rollout(layers: Iterable[tuple[str, Array]], *, residual: bool = True) -> tuple[Array, int]:
    """Return the product of the layers' weights, averaged over the heads, and the layer count.

    A layer has a name for errors, and weights (B, H, L, L). With the residual connection, half of
    each token comes past the layer, so the weights are averaged with the identity matrix. Rows of
    the product (B, L, L) add up to 1; without the residual, a fully masked query has a row of 0.
    """
    rolled, count = None, 0
    for name, weights in layers:
        layer = _mixing(name, weights, residual=residual)
        if rolled is not None and rolled.shape != layer.shape:
            raise ShapeError(
                f"rollout needs layers of one shape; {name} has {layer.shape[0]} batch entries and "
                f"{layer.shape[1]} tokens, the layers before it {rolled.shape[0]} and "
                f"{rolled.shape[1]}"
            )
        rolled = layer if rolled is None else layer @ rolled
        count += 1
    if rolled is None or count == 1:
        raise UsageError(
            f"rollout needs several layers; found {count}",
            hint="give a folder of recorded layers, weights (layers, B, H, L, S), or a file of "
            "weights for each layer",
        )
    return rolled, count


def _mixing(name: str, weights: Array, *, residual: bool) -> Array:
    """Return the weights (B, L, L) with which a layer mixes its tokens; rows add up to 1."""
    queries, keys = weights.shape[-2:]
    if queries != keys:
        raise ShapeError(
            f"rollout needs as many queries as keys, the tokens of self-attention; {name} has "
            f"{queries} and {keys}"
        )
    mean: Array = weights.mean(axis=1, dtype=np.float64)
    if residual:
        mean = (mean + np.eye(keys)) / 2
    sums: Array = mean.sum(axis=-1, keepdims=True)
    return mean / np.where(sums > 0, sums, 1)
