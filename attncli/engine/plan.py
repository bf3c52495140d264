"""How a problem is cut into blocks and parts: by its sizes alone, whoever does the work.

So the same input gives the same bits on any number of threads.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.block import Block, Part, Span

if TYPE_CHECKING:
    from collections.abc import Container

    from attncli.problem import Problem

__all__ = ["cut_up", "is_small", "tile_columns", "widths"]

Array = npt.NDArray[Any]

# Measured (tests/bench/README.md): a tile takes half of 2 MB of cache. Products of 512
# queries are faster than those of 256, which are used where there would be few blocks.
_BLOCK_ROWS = 512
_FEW_ROWS = 256
_TILE_BYTES = 2**20
_LEAST_COLUMNS = 128
# Beside a mask the causal rule wastes half of the tile on the diagonal: it should be small.
# Without one, it is cut in strips (`attncli.engine.sweep`).
_DIAGONAL_ROWS = 256
# Where weights are asked for, a tile lies in them, over all keys: what lies in one piece
# is written and read faster than what fits into the cache.
_WEIGHT_BYTES = 2**23
# Below so many multiplications threads and bounds cost more than they bring.
_SMALL_WORK = 4_000_000
# Fewer blocks than this, and the keys are cut too, into parts of at least so many.
_ENOUGH_PARTS = 8
_PART_KEYS = 16384


def is_small(problem: Problem) -> bool:
    """Return whether threads would cost more than they bring."""
    batch, heads, queries, keys = problem.shape
    return batch * heads * queries * keys * widths(problem) <= _SMALL_WORK


def tile_columns(problem: Problem, results: Container[str]) -> int:
    """Return how many keys a tile takes: few queries leave room for more keys."""
    _, _, queries, keys = problem.shape
    if "weights" in results:
        return keys
    rows = min(queries, _rows(problem))
    return min(keys, max(_LEAST_COLUMNS, _TILE_BYTES // problem.dtype.itemsize // rows))


def cut_up(problem: Problem, results: dict[str, Array]) -> list[Part]:
    """Return the parts of all blocks, those with the most keys first within a head.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)
        Where each output asked for goes.
    """
    batch, heads, queries, keys = problem.shape
    step = _rows(problem)
    if "weights" in results:
        step = max(32, min(step, _WEIGHT_BYTES // problem.dtype.itemsize // keys))
    starts = range(0, queries, step)
    small = is_small(problem)
    wanted = -(-_ENOUGH_PARTS // (batch * heads * len(starts)))
    if not results.keys() <= _WITHOUT_ROWS_OF_KEYS:
        wanted = 1
    parts: list[Part] = []
    for b in range(batch):
        for h in range(heads):
            for start in reversed(starts):
                stop = min(start + step, queries)
                own = {name: array[b, h, start:stop] for name, array in results.items()}
                spans = _spans(problem.visible.span(b, start, stop), wanted)
                block = Block(b, h, start, stop, own, spans, small)
                parts.extend((block, number) for number in range(len(spans)))
    return parts


_WITHOUT_ROWS_OF_KEYS = {"context", "lse"}


def _rows(problem: Problem) -> int:
    if (problem.visible.causal or problem.visible.window) and not problem.visible.is_one_interval:
        return _DIAGONAL_ROWS
    batch, heads, queries, _ = problem.shape
    return _BLOCK_ROWS if batch * heads * queries >= _ENOUGH_PARTS * _BLOCK_ROWS else _FEW_ROWS


def widths(problem: Problem) -> int:
    """Return D + E: how many multiplications a pair of query and key takes."""
    width: int = problem.query.shape[3]
    return width + (0 if problem.value is None else problem.value.shape[3])


def _spans(span: Span, wanted: int) -> list[Span]:
    """Cut a span of keys into at most so many parts of nearly equal length."""
    count = max(1, min(wanted, (span[1] - span[0]) // _PART_KEYS))
    if count == 1:
        return [span]
    ends = np.linspace(span[0], span[1], count + 1).astype(int).tolist()
    return list(itertools.pairwise(ends))
