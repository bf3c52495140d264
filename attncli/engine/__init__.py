"""Problem in, attention out: no checks, no files, no printing.

The queries of each head are cut into blocks (`attncli.engine.block`), the keys of a
block into tiles (`attncli.engine.tile`). How the work is cut depends on the problem
alone, so the same input gives the same bits on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.engine.block import Block, Scratch, attend_block
from attncli.engine.operands import Operands, prepare
from attncli.engine.workers import available_cores, single_blas_thread, spread
from attncli.problem import Problem
from attncli.result import Attention

__all__ = ["Progress", "attend", "result_shapes"]

Array = npt.NDArray[Any]
Progress = Callable[[int, int], None]

_TILE_CELLS = 256 * 512
_BLOCK_ROWS = 256
_TILE_COLUMNS = 512
# A block with weights: its rows of the result are read four times and should stay in cache.
_WEIGHT_CELLS = 256 * 1024
# Below so many multiplications threads cost more than they bring.
_SMALL_WORK = 4_000_000


def attend(
    problem: Problem,
    outputs: Collection[str],
    *,
    threads: int | None = None,
    into: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
) -> tuple[Attention, int]:
    """Compute the outputs asked for, and nothing else.

    Parameters
    ----------
    problem : Problem
    outputs : collection of str
        Names of `attncli.result.OUTPUTS`.
    threads : int, optional
        At most so many; all cores that the process may use unless given.
    into : mapping of str to ndarray, optional
        Arrays of `result_shapes` to write into, memory-mapped files say.
    progress : callable, optional
        Called from any thread with blocks done and blocks in all.

    Returns
    -------
    attention : Attention
    blind : int
        How many (batch, head, query) see no key; padded queries do not count.
    """
    shapes = result_shapes(problem, outputs)
    results = {
        name: into[name] if into and name in into else np.empty(shape, problem.dtype)
        for name, shape in shapes.items()
    }
    operands = prepare(problem)
    if _work(problem) <= _SMALL_WORK:
        blocks = _blocks(operands, results, bounded=False)
        blind = _run(operands, blocks)
    else:
        with single_blas_thread():
            items = _reported(list(_blocks(operands, results, bounded=True)), progress)
            count = threads or available_cores()
            blind = spread(lambda queue: _run(operands, queue), items, count)
    layout = problem.layout
    finished = {
        name: layout.join(array) if name == "context" else layout.drop(array)
        for name, array in results.items()
    }
    return Attention(**finished), blind - _padded(problem)


def result_shapes(problem: Problem, outputs: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each output in (B, H, …) axes."""
    shape = problem.shape
    width = 0 if problem.value is None else problem.value.shape[3]
    other = {"context": (*shape[:3], width), "lse": shape[:3]}
    return {name: other.get(name, shape) for name in outputs}


def _work(problem: Problem) -> int:
    batch, heads, queries, keys = problem.shape
    width: int = problem.query.shape[3] + (0 if problem.value is None else problem.value.shape[3])
    return batch * heads * queries * keys * width


def _run(operands: Operands, blocks: Iterator[Block]) -> int:
    scratch = Scratch(operands.problem.dtype, _tile_columns(operands.problem))
    return sum(attend_block(operands, block, scratch) for block in blocks)


def _tile_columns(problem: Problem) -> int:
    """Return how many keys a tile takes: few queries leave room for more keys."""
    _, _, queries, keys = problem.shape
    return min(keys, max(_TILE_COLUMNS, _TILE_CELLS // queries))


def _block_rows(problem: Problem, outputs: Collection[str]) -> int:
    if "weights" not in outputs:
        return _BLOCK_ROWS
    return max(32, min(_BLOCK_ROWS, _WEIGHT_CELLS // problem.shape[3]))


def _blocks(operands: Operands, results: dict[str, Array], *, bounded: bool) -> Iterator[Block]:
    batch, heads, queries, _ = operands.problem.shape
    step = _block_rows(operands.problem, results)
    for b in range(batch):
        for h in range(heads):
            # Looking for a bound costs more than it saves where the scores are few.
            bound = operands.bound(b, h) if bounded else np.inf
            for start in range(0, queries, step):
                stop = min(start + step, queries)
                parts = {name: array[b, h, start:stop] for name, array in results.items()}
                yield Block(b, h, start, stop, parts, bound)


def _reported(blocks: list[Block], progress: Progress | None) -> Iterator[Block]:
    for done, block in enumerate(blocks):
        if progress is not None:
            progress(done, len(blocks))
        yield block
    if progress is not None:
        progress(len(blocks), len(blocks))


def _padded(problem: Problem) -> int:
    """Return how many (batch, head, query) are padding."""
    batch, heads, queries, _ = problem.shape
    lengths = problem.visible.query_lengths
    if lengths is None:
        return 0
    each = lengths if len(lengths) == batch else lengths * batch
    return heads * sum(queries - length for length in each)
