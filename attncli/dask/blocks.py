"""What a worker computes: one block of queries and keys, and the merge of such blocks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.api import attention
from attncli.engine.merging import merge
from attncli.errors import AttnWarning
from attncli.numerics.chunked import Stored
from attncli.problem.shards import placed

if TYPE_CHECKING:
    from collections.abc import Mapping

Array = npt.NDArray[Any]


class Block(NamedTuple):
    """Where a block lies, and the rules that hold for all blocks.

    Attributes
    ----------
    start : (int, int)
        The first query and the first key.
    whole : (int, int)
        All queries and all keys, L and S.
    rules : mapping of str to object
        Options of `attncli.attention` that are no arrays.
    outputs : tuple of str
    """

    start: tuple[int, int]
    whole: tuple[int, int]
    rules: Mapping[str, Any]
    outputs: tuple[str, ...]


def block_outputs(
    block: Block, inputs: list[Array | Stored], names: list[str], arrays: list[Array]
) -> tuple[Array, ...]:
    """Return the outputs of a block, in the order of `Block.outputs`.

    Parameters
    ----------
    block : Block
    inputs : list of ndarray
        Query (B, H, L, D), key (B, G, S, D) and perhaps value, or where they lie.
    names : list of str
    arrays : list of ndarray
        Rules that are arrays, cut to the block. Lengths count from the start of the whole.
    """
    own = [array.read() if isinstance(array, Stored) else array for array in inputs]
    options = dict(block.rules) | dict(zip(names, arrays, strict=True))
    options = placed(options, block.start, block.whole, (own[0].shape[2], own[1].shape[2]))
    with warnings.catch_warnings():
        # A query may see no key of this block, and many of another one.
        warnings.simplefilter("ignore", AttnWarning)
        # Dask has a thread for each block.
        results = attention(*own, outputs=block.outputs, threads=1, **options)
    return tuple(getattr(results, name) for name in block.outputs)


def merged(parts: list[tuple[Array, ...]], sinks: Array | None, dtype: str) -> tuple[Array, ...]:
    """Return (context, lse) over the keys of all parts, or lse alone; sinks count once."""
    if len(parts[0]) == 1:
        parts = [(np.empty((*lse.shape, 0)), lse) for (lse,) in parts]
        return merged(parts, sinks, dtype)[1:]
    pairs = [(context, lse) for context, lse in parts]
    whole = merge(pairs, sinks=sinks, sinks_in="one" if sinks is None else "none")
    return np.asarray(whole.context, dtype), np.asarray(whole.lse, dtype)


def weights_of(scores: Array, rows: tuple[Array, ...]) -> Array:
    """Return exp(scores − lse): the weights of a block under the denominator of the whole."""
    lse = rows[-1]
    shift = np.where(np.isneginf(lse), 0, lse)[..., None]
    return np.asarray(np.exp(scores - shift))
