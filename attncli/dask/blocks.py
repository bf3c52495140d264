"""What a worker does: compute a block of queries and keys, merge blocks, and write a block."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.api import solve
from attncli.engine.merging import merge
from attncli.errors import AttnWarning
from attncli.numerics.chunked import Stored
from attncli.problem.posing import pose
from attncli.problem.shards import Shard, placed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]


class Block(NamedTuple):
    """Some queries and keys of some batch entries and heads.

    Attributes
    ----------
    start : (int, int)
        The first query and the first key.
    whole : (int, int)
        All queries and all keys, L and S.
    rules : mapping of str to object
        Rules of the whole that are no arrays.
    inputs : tuple of ndarray
        Query (B, H, L, D), key (B, G, S, D) and perhaps value, or where they lie on disk.
    names : tuple of str
        The rules that are arrays.
    arrays : tuple of ndarray
        These rules, cut to the block. Lengths count from the start of the whole.
    """

    start: tuple[int, int]
    whole: tuple[int, int]
    rules: Mapping[str, Any]
    inputs: tuple[Array | Stored, ...]
    names: tuple[str, ...]
    arrays: tuple[Array, ...]

    def problem(self) -> Problem:
        """Return the problem of the block, which the engine cuts as it cuts the whole."""
        own = [array.read() if isinstance(array, Stored) else array for array in self.inputs]
        rules = {**self.rules, **dict(zip(self.names, self.arrays, strict=True))}
        counts = own[0].shape[2], own[1].shape[2]
        posed = pose(*own, **placed(rules, self.start, self.whole, counts))
        return replace(posed, shard=Shard(*self.start, queries=self.whole[0]))


def block_outputs(outputs: tuple[str, ...], *block: Any) -> tuple[Array, ...]:
    """Return some outputs of a block, which is given by its attributes."""
    with warnings.catch_warnings():
        # A query may see no key of this block, and many keys of another one.
        warnings.simplefilter("ignore", AttnWarning)
        # Dask has a thread for each block.
        results = solve(Block(*block).problem(), outputs, threads=1)
    return tuple(getattr(results, name) for name in outputs)


def merged(parts: list[tuple[Array, ...]], sinks: Array | None, dtype: str) -> tuple[Array, ...]:
    """Return (context, lse) over the keys of all parts, or lse alone; sinks count once."""
    if len(parts[0]) == 1:
        parts = [(np.empty((*lse.shape, 0)), lse) for (lse,) in parts]
        return merged(parts, sinks, dtype)[1:]
    pairs = [(context, lse) for context, lse in parts]
    whole = merge(pairs, sinks=sinks, sinks_in="one" if sinks is None else "none")
    return np.asarray(whole.context, dtype), np.asarray(whole.lse, dtype)


def block_weights(scores: tuple[Array], rows: tuple[Array, ...]) -> Array:
    """Return exp(scores − lse): the weights of a block, whose queries see other keys, too."""
    lse = rows[-1]
    shift = np.where(np.isneginf(lse), 0, lse)[..., None]
    return np.asarray(np.exp(scores[0] - shift))


def write_block(target: Any, place: list[slice], block: Array) -> Array:
    """Write a block into an array of Zarr, and return next to nothing: workers keep no results."""
    target[tuple(place)] = block
    return np.ones((1,) * block.ndim, bool)
