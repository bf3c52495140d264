"""Some queries of one head against all their keys: softmax and the weighted sum, tile by tile.

Two ways through the same tiles. Where weights are asked for, the scores of a row
are written into the result and turned into weights there. Otherwise a tile is used
and forgotten, and the softmax runs along (Milakov and Gimelshein 2018, "Online
normalizer calculation for softmax"; Rabe and Staats 2021, "Self-attention Does Not
Need O(n²) Memory"): the sums so far are scaled down whenever a larger maximum turns
up.

Where a bound proves that no score can overflow the exponential, no maximum is
looked for: exp(s) / Σ exp(s) is the same as with any shift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import Operands
from attncli.engine.tile import Rows, fill

__all__ = ["Block", "Scratch", "attend_block"]

Array = npt.NDArray[Any]

# |score| up to this needs no shift. exp(±20) leaves the sums and products of float32
# (1e−38 to 3e38) far from both ends, and so float64.
_SAFE_SCORE = 20.0


@dataclass(frozen=True, eq=False)
class Block:
    """Queries start:stop of one head, and where their results go.

    Attributes
    ----------
    batch, head, start, stop : int
    results : dict of str to ndarray
        The block's own rows of each output asked for: (rows, S), (rows, E) or (rows,).
    bound : float
        What no raw score of this head can exceed in magnitude.
    """

    batch: int
    head: int
    start: int
    stop: int
    results: dict[str, Array]
    bound: float


@dataclass(eq=False)
class Scratch:
    """The buffers of one worker, made once and used for every tile."""

    dtype: np.dtype[Any]
    tile_columns: int
    ones: Array = field(init=False)
    _tile: Array = field(init=False)

    def __post_init__(self) -> None:
        self.ones = np.ones(self.tile_columns, self.dtype)
        self._tile = np.empty(0, self.dtype)

    def tile(self, rows: int, columns: int) -> Array:
        """Return a contiguous buffer (rows, columns); the last one is overwritten."""
        if self._tile.size < rows * columns:
            self._tile = np.empty(rows * self.tile_columns, self.dtype)
        return self._tile[: rows * columns].reshape(rows, columns)


@dataclass(eq=False)
class _Sums:
    """The softmax so far: shift (rows,), Σ exp(s − shift) (rows,), Σ exp(s − shift) v (rows, E)."""

    shift: Array
    denominator: Array
    context: Array


def attend_block(operands: Operands, block: Block, scratch: Scratch) -> int:
    """Compute a block's results.

    Returns
    -------
    int
        How many of its queries see no key.
    """
    problem = operands.problem
    rows = Rows(
        operands,
        block.batch,
        block.head,
        block.start,
        block.stop,
        operands.query_rows(block.batch, block.head, block.start, block.stop),
        {
            name: block.results[name]
            for name in ("raw", "capped", "scores")
            if name in block.results
        },
        may_overflow=not block.bound < np.finfo(problem.dtype).max / 2,
    )
    span = problem.visible.span(block.batch, block.start, block.stop)
    _fill_hidden(rows, span)
    with np.errstate(all="ignore"):
        if "weights" in block.results:
            sums = _with_weights(rows, span, block, scratch)
        else:
            sums = _streaming(rows, span, block, scratch)
        return _finish(rows, block, sums)


def _fill_hidden(rows: Rows, span: tuple[int, int]) -> None:
    """Write the outputs for the keys outside the span: tiles that softmax never needs."""
    keys = rows.operands.key.shape[2]
    outside = [part for part in ((0, span[0]), (span[1], keys)) if part[0] < part[1]]
    for first, last in outside:
        if "raw" in rows.keep or "capped" in rows.keep:
            for columns in _tiles((first, last), 4096):
                tile = np.empty((len(rows.query), columns[1] - columns[0]), rows.query.dtype)
                fill(rows, columns, tile)
        elif "scores" in rows.keep:
            rows.keep["scores"][:, first:last] = -np.inf


def _tiles(span: tuple[int, int], width: int) -> Iterator[tuple[int, int]]:
    for start in range(*span, width):
        yield start, min(start + width, span[1])


def _needs_shift(rows: Rows, block: Block) -> bool:
    problem = rows.operands.problem
    if problem.bias is not None or problem.slopes is not None:
        return True
    if problem.sinks is not None and abs(problem.sinks[block.head]) > _SAFE_SCORE:
        return True
    capped = block.bound if problem.softcap is None else min(block.bound, problem.softcap)
    return not capped <= _SAFE_SCORE


def _with_weights(rows: Rows, span: tuple[int, int], block: Block, scratch: Scratch) -> _Sums:
    """Exponentiate the scores in the result itself; `_finish` normalises them there."""
    weights = block.results["weights"]
    weights[:, : span[0]] = 0
    weights[:, span[1] :] = 0
    seen = weights[:, slice(*span)]
    for columns in _tiles(span, scratch.tile_columns):
        fill(rows, columns, weights[:, slice(*columns)])
    shift = np.zeros(len(weights), weights.dtype)
    if _needs_shift(rows, block) and seen.shape[1]:
        np.max(seen, axis=1, out=shift)
        shift[shift == -np.inf] = 0
        np.subtract(seen, shift[:, None], out=seen)
    np.exp(seen, out=seen)
    denominator = np.zeros_like(shift)
    context = np.zeros((len(weights), _value_width(rows)), weights.dtype)
    for first, last in _tiles(span, scratch.tile_columns):
        part = weights[:, first:last]
        denominator += part @ scratch.ones[: last - first]
        if "context" in block.results:
            context += part @ rows.operands.value_rows(rows.batch, rows.head, first, last)
    return _Sums(shift, denominator, context)


def _streaming(rows: Rows, span: tuple[int, int], block: Block, scratch: Scratch) -> _Sums:
    dtype = rows.query.dtype
    count = len(rows.query)
    shifting = _needs_shift(rows, block)
    sums = _Sums(
        np.full(count, -np.inf if shifting else 0, dtype),
        np.zeros(count, dtype),
        np.zeros((count, _value_width(rows)), dtype),
    )
    for first, last in _tiles(span, scratch.tile_columns):
        tile = scratch.tile(count, last - first)
        fill(rows, (first, last), tile)
        if shifting:
            _shift(sums, tile)
        np.exp(tile, out=tile)
        sums.denominator += tile @ scratch.ones[: last - first]
        if "context" in block.results:
            sums.context += tile @ rows.operands.value_rows(rows.batch, rows.head, first, last)
    sums.shift[sums.shift == -np.inf] = 0
    return sums


def _shift(sums: _Sums, tile: Array) -> None:
    """Subtract the running maximum from a tile, and bring the sums so far to the same shift."""
    highest = np.maximum(sums.shift, tile.max(axis=1))
    # A row that has seen no key so far keeps −inf as its maximum; −inf − (−inf) is NaN.
    subtract = np.where(highest == -np.inf, 0, highest)
    factor = np.exp(sums.shift - subtract)
    sums.denominator *= factor
    sums.context *= factor[:, None]
    sums.shift = highest
    np.subtract(tile, subtract[:, None], out=tile)


def _value_width(rows: Rows) -> int:
    value = rows.operands.problem.value
    return 0 if value is None else int(value.shape[3])


def _finish(rows: Rows, block: Block, sums: _Sums) -> int:
    """Divide by the denominator, sink included, and write what was asked for."""
    problem = rows.operands.problem
    blind = sums.denominator == 0
    total = sums.denominator
    log_total = np.log(total) + sums.shift
    if problem.sinks is not None:
        sink = problem.dtype.type(problem.sinks[block.head])
        total = total + np.exp(sink - sums.shift)
        log_total = np.logaddexp(log_total, sink)
    share = np.where(blind, 0, 1 / np.where(blind, 1, total)).astype(problem.dtype, copy=False)
    if "weights" in block.results:
        block.results["weights"] *= share[:, None]
    if "context" in block.results:
        np.multiply(sums.context, share[:, None], out=block.results["context"])
    if "lse" in block.results:
        block.results["lse"][...] = log_total
    return int(np.count_nonzero(blind))
