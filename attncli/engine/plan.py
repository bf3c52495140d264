"""How a problem is cut into blocks and parts: by its sizes alone, whoever does the work.

So the same input gives the same bits on any number of threads.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.engine.blas import multiplies_unpacked
from attncli.engine.block import Block, Part, Span

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from attncli.problem import Problem

__all__ = ["cut_up", "is_small", "tile_columns", "widths"]

Array = npt.NDArray[Any]

# Measured (tests/bench/README.md). A block of 512 queries leaves room for a tile in 2 MB
# of cache; those of 256 are used where there would be few blocks.
_BLOCK_ROWS = 512
_FEW_ROWS = 256
_TILE_BYTES = 2**20
_LEAST_COLUMNS = 128
# Where BLAS multiplies small matrices without packing, panels of so many queries, so long
# as a product takes no more multiplications than this.
_PANEL_ROWS = 64
_SMALL_PRODUCT = 1_000_000
_LEAST_SMALL = 48
# Otherwise a panel is the whole block, or, where it may skip keys, so many queries.
_SKIPPING_ROWS = 256
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
    """Return how many keys a tile takes."""
    return _sizes(problem, results).columns


def cut_up(problem: Problem, results: dict[str, Array]) -> list[Part]:
    """Return the parts of all blocks, those with the most keys first within a head.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)
        Where each output asked for goes.
    """
    batch, heads, queries, _ = problem.shape
    small = is_small(problem)
    sizes = _sizes(problem, results)
    blocks = list(_blocks(queries, sizes))
    wanted = -(-_ENOUGH_PARTS // (batch * heads * len(blocks)))
    if not results.keys() <= _WITHOUT_ROWS_OF_KEYS:
        wanted = 1
    parts: list[Part] = []
    for b in range(batch):
        for h in range(heads):
            for start, stop in reversed(blocks):
                panel = min(sizes.panel, stop - start)
                own = {name: array[b, h, start:stop] for name, array in results.items()}
                spans = _spans(problem.visible.span(b, start, stop), wanted)
                block = Block(b, h, start, stop, panel, sizes.widest, own, spans, small)
                parts.extend((block, number) for number in range(len(spans)))
    return parts


_WITHOUT_ROWS_OF_KEYS = {"context", "lse"}


class _Sizes(NamedTuple):
    """How many queries a block and a panel take, and how many keys a tile and a product."""

    rows: int
    panel: int
    columns: int
    widest: int


def _sizes(problem: Problem, results: Container[str]) -> _Sizes:
    batch, heads, queries, keys = problem.shape
    itemsize = problem.dtype.itemsize
    rows = _BLOCK_ROWS if batch * heads * queries >= _ENOUGH_PARTS * _BLOCK_ROWS else _FEW_ROWS
    room = _TILE_BYTES // itemsize // min(queries, rows)
    if not any(name in results for name in _ROWS_OF_KEYS):
        widest = min(room, _SMALL_PRODUCT // (_PANEL_ROWS * _width(problem))) // 16 * 16
        if widest >= _LEAST_SMALL and not is_small(problem) and multiplies_unpacked():
            columns = keys if keys <= room else room // widest * widest
            return _Sizes(rows, _PANEL_ROWS, columns, widest)
    if "weights" in results:
        rows = max(32, min(rows, _WEIGHT_BYTES // itemsize // keys))
    panel = min(rows, _SKIPPING_ROWS) if problem.visible.banded else rows
    columns = keys if "weights" in results else min(keys, max(_LEAST_COLUMNS, room))
    return _Sizes(rows // panel * panel, panel, columns, widest=keys)


_ROWS_OF_KEYS = ("weights", "raw", "capped", "scores")


def _width(problem: Problem) -> int:
    """Return the larger of D and E."""
    width: int = problem.query.shape[3]
    return width if problem.value is None else max(width, problem.value.shape[3])


def _blocks(queries: int, sizes: _Sizes) -> Iterator[Span]:
    """Cut the queries into blocks of full panels, and one of what is left."""
    for start in range(0, queries, sizes.rows):
        stop = min(start + sizes.rows, queries)
        whole = stop - (stop - start) % sizes.panel
        if start < whole:
            yield start, whole
        if whole < stop:
            yield whole, stop


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
