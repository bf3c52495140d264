"""How a problem is cut into blocks and parts: by its sizes, its rules and the kind of machine.

The number of threads plays no role, so the same input gives the same bits on any number.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import LONGEST_PRODUCT, PANEL, TileLayout
from attncli.engine.parts import Block, Part, Span
from attncli.errors.names import SQUARE
from attncli.threads.blas import multiplies_unpacked
from attncli.threads.cores import core_cache

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from attncli.problem.problem import Problem

__all__ = ["plan_blocks"]

Array = npt.NDArray[Any]

_SQUARE = frozenset(SQUARE)

# Measured (tests/bench/README.md). A block has as many queries as leave room for a tile in 2 MB
# of cache; it may take those of several heads if that leaves enough blocks. Threads wait for each
# other between the steps of a tile, so few cores are better off with larger blocks, of float32.
_BLOCK_ROWS = 1024
_LARGE_BLOCK_ROWS = 2048
_FEW_CORES = 3
_STACKED_PARTS = 4
_TILE_BYTES = 2**20
# Where BLAS multiplies small matrices without packing, panels are small and a product takes at
# most this many multiplications, over at least this many keys.
_SMALL_PRODUCT = 1_000_000
_LEAST_SMALL = 64
# With fewer queries in a tile, calls are so short that threads wait for each other.
_LEAST_PANELLED = 512
# Products of smaller panels take longer for each query, as if full ones had so many.
_LEAST_FULL = 54
# Otherwise a panel is the whole block, or this many queries where panels may skip keys.
_WIDE_ROWS = 512
_FEW_ROWS = 256
_SKIPPING_ROWS = 256
_LEAST_COLUMNS = 128
# Where weights are asked for, a tile spans all keys and has at most _WEIGHT_BYTES, or _LEAST_ROWS
# queries. From _FAR_BYTES on, rows of the result collide in the cache; where cores have a cache of
# _LARGE_CACHE, from _VERY_FAR_BYTES on, and blocks may be larger, unless panels skip keys. A
# product then takes _CHUNK_BYTES of key or value, if _WORTH_TRANSPOSING queries or more pay for
# transposing the keys.
_WEIGHT_BYTES = 2**23
_LEAST_ROWS = 32
_FAR_BYTES = 2**12
_LARGE_CACHE = 2**21
_VERY_FAR_BYTES = 2**16
_CHUNK_BYTES = 2**15
_WORTH_TRANSPOSING = 512
# With fewer blocks than this, blocks are smaller, and the keys are cut as well, into parts of at
# least _PART_KEYS.
_ENOUGH_PARTS = 8
_PART_KEYS = 16384


def plan_blocks(
    problem: Problem, results: dict[str, Array], *, small: bool
) -> tuple[list[Part], int]:
    """Return the parts of all blocks, and the number of keys in a tile.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)
        An array for each output asked for.
    small : bool
        Whether `attncli.engine.size.is_small`.

    Returns
    -------
    parts : list of (Block, int)
        Within a head, those with the most keys come first.
    columns : int
    """
    batch, heads, queries, _ = problem.shape
    sizes = _sizes(problem, results, small=small)
    blocks = list(_blocks(queries, sizes))
    each = sizes.heads
    wanted = -(-_ENOUGH_PARTS * each // (batch * heads * len(blocks)))
    if _has_rows_of_keys(results):
        wanted = 1
    parts: list[Part] = []
    for b in range(batch):
        for first in range(0, heads, each):
            stack = first, min(first + each, heads)
            for start, stop in reversed(blocks):
                panel = min(sizes.panel, stop - start)
                own = {name: array[b, slice(*stack), start:stop] for name, array in results.items()}
                block = Block(
                    batch=b,
                    heads=stack,
                    start=start,
                    stop=stop,
                    panel=panel,
                    layout=sizes.layout,
                    results=own,
                    spans=_spans(problem.visible.span(b, start, stop), wanted),
                    small=small,
                )
                parts += [(block, number) for number in range(len(block.spans))]
    return parts, sizes.columns


@dataclass(eq=False, slots=True)
class _Sizes:
    """The sizes of blocks, panels and tiles.

    Attributes
    ----------
    heads, rows : int
        Heads of a block, and queries of each.
    panel : int
        Queries of a panel.
    columns : int
        Keys of a tile.
    layout : TileLayout
    overhangs : bool
        Whether the last panel may have more queries than are left.
    """

    heads: int
    rows: int
    panel: int
    columns: int
    layout: TileLayout
    overhangs: bool = False


def _sizes(problem: Problem, results: Collection[str], *, small: bool) -> _Sizes:
    if "weights" in results:
        return _sizes_of_weights(problem, results)
    queries = problem.shape[2]
    columns = None if small else _panel_columns(problem, results)
    if columns is not None:
        stack, rows = _stack(problem, results, _block_rows(problem))
        if stack * min(queries, rows) >= _LEAST_PANELLED:
            return _sizes_of_panels(problem, stack, rows, columns)
    stack, rows = _stack(problem, results, _WIDE_ROWS)
    skipping = min(rows, _SKIPPING_ROWS) if problem.visible.banded else 0
    rows = _evenly(queries, rows, skipping or PANEL)
    columns = max(_LEAST_COLUMNS, min(_room(problem, stack * min(queries, rows)), LONGEST_PRODUCT))
    return _Sizes(
        heads=stack,
        rows=rows,
        panel=skipping or rows,
        columns=min(columns, problem.shape[3]),
        layout=TileLayout(query_major=True),
    )


def _sizes_of_panels(problem: Problem, stack: int, rows: int, columns: int) -> _Sizes:
    queries, keys = problem.shape[2:]
    overhangs = _may_overhang(problem)
    panel = _overhanging(queries) if overhangs else PANEL
    rows = _evenly(queries, rows, panel)
    return _Sizes(
        heads=stack,
        rows=rows,
        panel=panel,
        columns=min(_room(problem, stack * min(queries, rows)), columns, keys),
        layout=TileLayout(query_major=False),
        overhangs=overhangs,
    )


def _room(problem: Problem, rows: int) -> int:
    """Return how many keys of so many queries a tile has room for."""
    return _TILE_BYTES // problem.dtype.itemsize // rows


def _sizes_of_weights(problem: Problem, results: Collection[str]) -> _Sizes:
    keys = problem.shape[3]
    row_bytes = keys * problem.dtype.itemsize
    large = core_cache() >= _LARGE_CACHE and not problem.visible.banded
    stack, rows = _stack(problem, results, 2 * _WIDE_ROWS if large else _WIDE_ROWS)
    rows = max(_LEAST_ROWS, min(rows, _WEIGHT_BYTES // row_bytes))
    far = row_bytes >= (_VERY_FAR_BYTES if large else _FAR_BYTES)
    chunk = _chunk(problem) if far else 0
    if chunk:
        panel = min(rows, PANEL)
    else:
        panel = min(rows, _SKIPPING_ROWS) if problem.visible.banded else rows
    return _Sizes(
        heads=stack,
        rows=rows // panel * panel,
        panel=panel,
        columns=keys,
        layout=TileLayout(query_major=True, chunk=chunk),
    )


def _chunk(problem: Problem) -> int:
    """Return how many keys a product for weights takes; 0 where cutting them does not pay."""
    worth_a_copy = problem.shape[2] >= _WORTH_TRANSPOSING and problem.is_product
    if not (worth_a_copy and multiplies_unpacked()):
        return 0
    return max(16, _CHUNK_BYTES // (_width(problem) * problem.dtype.itemsize) // 16 * 16)


def _block_rows(problem: Problem) -> int:
    """Return the most queries in a block of small panels."""
    large = _has_few_cores() and problem.dtype.itemsize == np.dtype(np.float32).itemsize
    return _LARGE_BLOCK_ROWS if large else _BLOCK_ROWS


def _fewest(many: int) -> int:
    """Return the fewest blocks worth having: so many, or two on a machine with few cores."""
    return 2 if _has_few_cores() else many


@cache
def _has_few_cores() -> bool:
    """Return whether the machine has few cores, whatever the number of threads asked for."""
    return (os.cpu_count() or 1) <= _FEW_CORES


def _rows(problem: Problem, most: int) -> int:
    """Return how many queries a block takes: fewer than ``most`` if that left too few blocks."""
    batch, heads, queries, _ = problem.shape
    rows = most
    while rows > _FEW_ROWS and batch * heads * -(-queries // rows) < _fewest(_ENOUGH_PARTS):
        rows //= 2
    return rows


def _panel_columns(problem: Problem, results: Collection[str]) -> int | None:
    """Return the most keys in a tile of small panels; None where small panels do not pay."""
    queries = problem.shape[2]
    full = queries % PANEL == 0 or queries >= _BLOCK_ROWS or _may_overhang(problem)
    if not full or _has_rows_of_keys(results):
        return None
    columns: int = _SMALL_PRODUCT // (PANEL * _width(problem)) // 16 * 16
    return columns if columns >= _LEAST_SMALL and multiplies_unpacked() else None


def _may_overhang(problem: Problem) -> bool:
    """Return whether a panel may have more queries than there are: no rule is given for each."""
    rules = problem.visible.mask, problem.bias
    if not problem.is_product or problem.visible.segment_ids is not None:
        return False
    return all(rule is None or rule.shape[2] == 1 for rule in rules)


def _overhanging(queries: int) -> int:
    """Return how many queries a panel has where the last one may have more than are left.

    Where full panels would leave too much room, all are nearly as full, and smaller.
    """
    even = -(-queries // -(-queries // PANEL))
    return even if even < _LEAST_FULL else PANEL


def _evenly(queries: int, most: int, step: int) -> int:
    """Return how many queries a block takes if all take about as many, in steps."""
    blocks = -(-queries // (most // step * step))
    return -(-queries // (blocks * step)) * step


def _has_rows_of_keys(results: Collection[str]) -> bool:
    """Return whether any output asked for is L x S."""
    return not _SQUARE.isdisjoint(results)


def _stack(problem: Problem, results: Collection[str], most: int) -> tuple[int, int]:
    """Return how many heads a block takes at once, and how many queries of each.

    A block takes several heads if they are short; if they are causal, because a block of fewer
    queries computes fewer hidden scores; and if a mask or a bias has to be transposed, which is
    then done once for all heads of the block.
    """
    batch, heads, queries, _ = problem.shape
    rows = _rows(problem, most)
    visible = problem.visible
    transposed = "weights" not in results and (_is_wide(visible.mask) or _is_wide(problem.bias))
    own = _FEW_ROWS if visible.causal or transposed else rows
    parts = batch * heads * -(-queries // own)
    count = min(heads, most // min(queries, own), parts // _fewest(_STACKED_PARTS))
    if count < 2 or not _may_share_tiles(problem):
        return 1, rows
    if batch % 2:  # an even number of stacks suits most numbers of threads
        count = -(-heads // (2 * -(-heads // (2 * count))))
    # A stack is made of whole groups that share a key, or is part of one group.
    share = heads // problem.key.shape[1]
    inside = next(size for size in range(min(count, share), 0, -1) if share % size == 0)
    count = count // share * share if count >= share else inside
    return count, min(rows, max(own, most // count))


def _may_share_tiles(problem: Problem) -> bool:
    """Return whether several heads may share a tile.

    Long heads with a window do not, because `attncli.engine.window_steps` takes one head; nor do
    long heads with slopes, which reach different keys, or with a mask or bias each.
    """
    visible, (_, _, queries, _) = problem.visible, problem.shape
    differ = _differs_by_head(visible.mask) or _differs_by_head(problem.bias)
    alone = differ or visible.window is not None or problem.alibi_slopes is not None
    if alone and queries > _FEW_ROWS:
        return False
    return problem.is_product


def _differs_by_head(rule: Array | None) -> bool:
    return rule is not None and rule.shape[1] > 1


def _is_wide(rule: Array | None) -> bool:
    """Return whether there is a rule and it varies over both queries and keys."""
    return rule is not None and rule.shape[2] > 1 and rule.shape[3] > 1


def _width(problem: Problem) -> int:
    """Return the larger of D and E."""
    width: int = problem.query.shape[3]
    value_width: int = width if problem.value is None else problem.value.shape[3]
    return max(width, value_width)


def _blocks(queries: int, sizes: _Sizes) -> Iterator[Span]:
    """Cut the queries into blocks of full panels, and one block of the remaining queries."""
    for start in range(0, queries, sizes.rows):
        stop = min(start + sizes.rows, queries)
        whole = stop if sizes.overhangs else stop - (stop - start) % sizes.panel
        if start < whole:
            yield start, whole
        if whole < stop:
            yield whole, stop


def _spans(span: Span, wanted: int) -> list[Span]:
    """Cut a span of keys into at most ``wanted`` parts of nearly equal length."""
    count = max(1, min(wanted, (span[1] - span[0]) // _PART_KEYS))
    if count == 1:
        return [span]
    ends = np.linspace(span[0], span[1], count + 1).astype(int).tolist()
    return list(itertools.pairwise(ends))
