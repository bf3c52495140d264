"""How a problem is cut into parts: by the sizes and rules of one head, never by the threads.

So the same input gives the same bits on any number of threads, and beside any other heads. Some
queries of a whole (`Problem.shard`) are cut where the whole is cut, which gives the same bits, too.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attncli.engine.score_rules import Place
from attncli.errors.names import SQUARE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from attncli.problem.problem import Problem

Span = tuple[int, int]

# All measured (docs/design/engine.md). Scores that the formula computes at a time: half a megabyte
# in float32, which stays in a core's cache.
_SCORES = 2**17
# The formula is faster than tiles up to this many scores of a head, or queries of a key head.
SCORES_OF_SHORT_HEAD, FEW_QUERIES = 2**16, 16
# The most multiplications of a problem that is computed at once, in one part.
_AT_ONCE = 8_000_000
# The fewest parts, and blocks of one head, that let all threads end at about the same time.
_ENOUGH_PARTS, _ENOUGH_BLOCKS = 8, 4
# Queries of a strip of weights, and its bytes.
_STRIP_ROWS, _STRIP_BYTES = 512, 2**22
# Queries of a block: usually, and with banded rules or a window, which let it skip keys. Bytes of a
# tile, and its fewest keys.
_BLOCK_ROWS, BANDED_ROWS, _WINDOW_ROWS = 512, 256, 192
TILE_BYTES, LEAST_COLUMNS = 2**20, 64
# If BLAS multiplies small matrices without copying them first: queries of a panel and of a block,
# and multiplications of a product.
PANEL, _PANELLED_ROWS, _SMALL_PRODUCT = 64, 2048, 1_000_000
# Costs, in multiplications: waking other threads and waiting for them, and reading one number of
# key or value.
WAKING, _READING = 30_000_000, 9
# OpenBLAS uses several threads for products with more multiplications than the first number, and
# for sums of squares of more numbers than the second (interface/gemm.c and dot.c).
_SERIAL_PRODUCT, _SERIAL_SUM = 2**18, 8192


class Tiling(NamedTuple):
    """The sizes of tiles.

    Attributes
    ----------
    panel : int
        Queries of a panel.
    columns : int
        Keys of a tile.
    query_major : bool
        Whether the keys of a query lie side by side in memory.
    exponential : (ufunc, float)
        The quickest exponential, and the unit of its argument, in 1/nats.
    """

    panel: int
    columns: int
    query_major: bool
    exponential: tuple[np.ufunc, float]


def is_serial(problem: Problem) -> bool:
    """Return whether BLAS uses one thread for every product, whatever its setting.

    Otherwise the setting has to be changed, because the last bits of a sum depend on how many
    threads BLAS uses.
    """
    batch, heads, queries, keys = problem.shape
    rows = heads // problem.key.shape[1] * queries
    width = max(problem.query.shape[3], 0 if problem.value is None else problem.value.shape[3])
    scores = batch * heads * queries * keys
    small = rows * keys * width <= _SERIAL_PRODUCT and scores <= _SERIAL_SUM
    return small and rows > 1 and problem.score == "dot"


def suits_formula(problem: Problem) -> bool:
    """Return whether the formula computes a whole problem at once."""
    batch, heads, queries, keys = whole_shape(problem)
    scores = batch * heads * queries * keys
    return scores <= _SCORES and scores * _widths(problem) <= _AT_ONCE


def is_tiled(problem: Problem, outputs: Collection[str]) -> bool:
    """Return whether a problem is computed tile by tile, not by the formula."""
    _, heads, queries, keys = whole_shape(problem)
    if not (problem.is_product and set(SQUARE).isdisjoint(outputs)):
        return False
    few = heads // problem.key.shape[1] * queries <= FEW_QUERIES
    return not few and queries * keys > SCORES_OF_SHORT_HEAD


def repays_threads(problem: Problem, threads: int) -> bool:
    """Return whether several threads save more time than it takes to wake them and to wait."""
    batch, heads, queries, keys = problem.shape
    reads = batch * problem.key.shape[1] * _READING
    work: int = (batch * heads * queries + reads) * keys * _widths(problem)
    return work - work // threads > WAKING


def formula_parts(problem: Problem, outputs: Collection[str]) -> list[Place]:
    """Return the parts that the formula computes: some batch entries, heads or queries."""
    batch, heads, queries, keys = whole_shape(problem)
    share = heads // problem.key.shape[1]
    scores, few = queries * keys, share * queries <= FEW_QUERIES
    # Entries that see different keys are computed one by one, each with its own keys.
    together = batch if problem.visible.entries == 1 or not problem.visible.banded else 1
    if suits_formula(problem) and together == batch:
        return [Place(*((0, count) for count in problem.shape))]
    if suits_formula(problem):
        return _grid(problem, 1, heads, queries)
    if scores > _SCORES and not few:
        rows = _SCORES // keys
        if "weights" in outputs:
            rows = min(_rows(problem, _STRIP_ROWS), _STRIP_BYTES // keys // problem.dtype.itemsize)
        return _grid(problem, 1, 1, max(1, rows))
    if share * scores > _SCORES and not few:
        return _grid(problem, 1, max(1, _SCORES // scores), queries)
    # Several whole groups in each part, but enough parts for all threads.
    most = max(share, min(_SCORES // scores, -(-batch * heads // _ENOUGH_PARTS)))
    return _grid(problem, min(together, max(1, most // heads)), most, queries)


def tiled_parts(problem: Problem) -> list[Place]:
    """Return the parts that are computed tile by tile: blocks of queries of one head."""
    return _grid(problem, 1, 1, _block_rows(problem))


def tiling_of(problem: Problem) -> Tiling:
    """Return the sizes of the tiles of `tiled_parts`."""
    rows = _even_step(whole_shape(problem)[2], _block_rows(problem))
    columns = TILE_BYTES // problem.dtype.itemsize // rows
    panels = tiles_in_panels()
    if panels:
        columns = min(columns, 2 * _SMALL_PRODUCT // (PANEL * _widths(problem)))
    columns = max(LEAST_COLUMNS, columns // 16 * 16)
    unit = (np.exp2, 1 / math.log(2)) if panels else (np.exp, 1.0)
    return Tiling(PANEL if panels else rows, columns, not panels, unit)


@cache
def tiles_in_panels() -> bool:
    """Return whether the processor has AVX-512, as far as NumPy knows.

    There BLAS multiplies small matrices without copying them first, and NumPy has a vectorised
    exp2 that takes half the time of exp. Elsewhere exp2 takes twice the time.
    """
    from numpy.lib.introspect import opt_func_info  # noqa: PLC0415 - 1 ms

    kernels = opt_func_info("^exp2$", "^float32$").get("exp2", {})
    return any(not one["current"].startswith("baseline") for one in kernels.values())


def whole_shape(problem: Problem) -> tuple[int, int, int, int]:
    """Return B, H, L and S, where L counts all queries of the whole that a part belongs to."""
    batch, heads, _, keys = problem.shape
    return batch, heads, _place_in_whole(problem)[1], keys


def _place_in_whole(problem: Problem) -> tuple[int, int]:
    """Return the first query of a part, and the number of queries of its whole."""
    shard = problem.shard
    if shard is None or shard.queries is None:
        return 0, problem.shape[2]
    return shard.query, shard.queries


def _block_rows(problem: Problem) -> int:
    """Return the most queries of a block that is computed tile by tile."""
    queries = whole_shape(problem)[2]
    rows = min(queries, _rows(problem, _PANELLED_ROWS if tiles_in_panels() else _BLOCK_ROWS))
    while rows > BANDED_ROWS and -(-queries // rows) < _ENOUGH_BLOCKS:
        rows //= 2
    return rows


def _widths(problem: Problem) -> int:
    """Return D + E: the multiplications for each pair of query and key."""
    width: int = problem.query.shape[3]
    return width + (0 if problem.value is None else problem.value.shape[3])


def _rows(problem: Problem, most: int) -> int:
    visible = problem.visible
    if visible.window is not None:
        return min(most, _WINDOW_ROWS)
    leaves_out = visible.banded or problem.alibi_slopes is not None
    return min(most, BANDED_ROWS) if leaves_out else most


def _grid(problem: Problem, entries: int, heads: int, rows: int) -> list[Place]:
    """Return parts of at most ``entries``, ``heads`` and ``rows`` (queries), each with all keys.

    Heads are whole groups that share a key head, or lie within one group. The last queries come
    first: under the causal rule they see the most keys.
    """
    batch, all_heads, queries, keys = problem.shape
    share = all_heads // problem.key.shape[1]
    heads = heads // share * share if heads >= share else heads
    group = max(heads, share)
    stacks = [
        (start, stop)
        for first, last in _cut(all_heads, group)
        for start, stop in _cut(last - first, heads, first)
    ]
    first_query, all_queries = _place_in_whole(problem)
    step = _even_step(all_queries, rows)
    starts = range(-(first_query % step), queries, step)
    spans = [(max(start, 0), min(start + step, queries)) for start in starts]
    return [
        Place(some, stack, span, (0, keys))
        for some in _cut(batch, entries)
        for stack in stacks
        for span in reversed(spans)
    ]


def _even_step(queries: int, rows: int) -> int:
    """Return the length of about equal spans of the queries: multiples of a panel, if possible."""
    step = -(-queries // -(-queries // rows))
    return min(rows, -(-step // PANEL) * PANEL)


def _cut(length: int, step: int, first: int = 0) -> Iterator[Span]:
    for start in range(first, first + length, step):
        yield start, min(start + step, first + length)
