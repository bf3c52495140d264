"""Some queries of one head against all their keys: softmax and the weighted sum, tile by tile.

There is one way through the tiles. Where weights are asked for, a tile lies in the
result and is normalised there when its row is done; otherwise it lies in a buffer and
is forgotten.

Where a bound proves that no score can overflow the exponential, no shift is needed:
exp(s) / Σ exp(s) is the same with any.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.sums import Sums, exponential, merge, room
from attncli.engine.tile import NotFiniteError, Rows, fill
from attncli.finite import all_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.engine.operands import Operands

__all__ = ["Block", "Part", "Scratch", "attend_part"]

Array = npt.NDArray[Any]
Span = tuple[int, int]

_BITS = 1 / math.log(2)
# Sums of squares of contexts outside these were made of numbers near the ends of float32.
_SOUND = (1e-30, math.inf)
# With values of up to 3e38, sums over any number of keys stay finite.
_SHRINK = 2.0**-40


@dataclass(eq=False)
class Block:
    """Queries start:stop of one head, and where their results go.

    Attributes
    ----------
    batch, head, start, stop : int
    results : dict of str to ndarray
        The block's own rows of each output asked for: (rows, S), (rows, E) or (rows,).
    spans : list of (start, stop)
        The keys of its parts. More than one only where no L × S output is asked for.
    exact : bool
        Whether to do without what pays for long problems alone: bounds and bits.
    """

    batch: int
    head: int
    start: int
    stop: int
    results: dict[str, Array]
    spans: list[Span]
    exact: bool
    _sums: dict[int, Sums] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def deliver(self, part: int, sums: Sums) -> Sums | None:
        """Take the sums of a part; return those of the whole when it was the last."""
        if len(self.spans) == 1:
            return sums
        with self._lock:
            self._sums[part] = sums
            if len(self._sums) < len(self.spans):
                return None
        return merge([self._sums[n] for n in range(len(self.spans))])


Part = tuple[Block, int]


class Scratch:
    """The buffers of one worker, made once and used for every tile.

    Parameters
    ----------
    dtype : dtype
    tile_columns : int
    pause : callable
        Called before each tile; raises to stop the work.
    """

    def __init__(self, dtype: np.dtype[Any], tile_columns: int, pause: Callable[[], None]) -> None:
        self.tile_columns = tile_columns
        self.ones = np.ones(tile_columns, dtype)
        self.pause = pause
        self._buffers: dict[str, Array] = {}

    def buffer(self, name: str, rows: int, columns: int) -> Array:
        """Return a contiguous buffer (rows, columns); the last one of its name is overwritten."""
        held = self._buffers.get(name)
        if held is None or held.size < rows * columns:
            held = self._buffers[name] = np.empty(rows * columns, self.ones.dtype)
        return held[: rows * columns].reshape(rows, columns)


def attend_part(operands: Operands, part: Part, scratch: Scratch) -> int:
    """Compute a block's part, and its results when it is the last one.

    Returns
    -------
    int
        How many queries of a finished block see no key.

    Raises
    ------
    DataError
        A score exceeds the range of the computing dtype.
    NotFiniteError
        A score or a sum is not finite, and key and value are still unread.
    """
    block, number = part
    span = block.spans[number]
    rows, shifting = _rows(operands, block)
    _fill_hidden(rows, span)
    sweep = _Sweep(rows, block, scratch, shifting=shifting)
    sums = sweep.over(span)
    if sums.context is not None and not _sound(sums.context, shifting=shifting):
        if operands.problem.unread is not None and not all_finite(sums.context):
            raise NotFiniteError
        sweep = _Sweep(rows, block, scratch, shifting=True, value_factor=_SHRINK)
        sums = sweep.over(span)
    whole = block.deliver(number, sums)
    return 0 if whole is None else _finish(operands, block, whole, sweep)


def _rows(operands: Operands, block: Block) -> tuple[Rows, bool]:
    """Return the block's queries, and whether their scores need a shift."""
    problem = operands.problem
    place = block.batch, block.head, block.start, block.stop
    keep = {name: block.results[name] for name in _KEPT if name in block.results}
    unit = 1.0 if block.exact or keep or problem.bias is not None else _BITS
    factor = unit * (1.0 if problem.score == "additive" else problem.scale)
    query = operands.query_rows(*place, factor)
    bound = math.inf
    if problem.score == "additive":
        bound = float(np.abs(np.asarray(problem.score_vector)).sum()) * abs(problem.scale)
    elif not block.exact:
        bound = operands.bound(block.batch, block.head, query) / unit
    overflows = not bound * unit < np.finfo(problem.dtype).max / 2
    rows = Rows(operands, *place, query, unit, keep, overflows)
    return rows, _needs_shift(rows, bound)


_KEPT = ("raw", "capped", "scores")


def _needs_shift(rows: Rows, bound: float) -> bool:
    problem = rows.operands.problem
    if problem.bias is not None or problem.slopes is not None:
        return True
    if problem.sinks is not None and abs(problem.sinks[rows.head]) > room(problem.dtype):
        return True
    capped = bound if problem.softcap is None else min(bound, problem.softcap)
    return not capped <= room(problem.dtype)


def _fill_hidden(rows: Rows, span: Span) -> None:
    """Write the outputs for the keys outside the span: tiles that softmax never needs."""
    if not rows.keep:
        return
    keys = rows.operands.key.shape[2]
    outside = [part for part in ((0, span[0]), (span[1], keys)) if part[0] < part[1]]
    for first, last in outside:
        if "raw" in rows.keep or "capped" in rows.keep:
            for columns in _tiles((first, last), 4096):
                tile = np.empty((len(rows.query), columns[1] - columns[0]), rows.query.dtype)
                fill(rows, columns, tile)
        else:
            rows.keep["scores"][:, first:last] = -np.inf


def _tiles(span: Span, width: int) -> Iterator[Span]:
    for start in range(*span, width):
        yield start, min(start + width, span[1])


class _Sweep:
    """One way over the keys of a block, from the first tile to the last."""

    def __init__(
        self,
        rows: Rows,
        block: Block,
        scratch: Scratch,
        *,
        shifting: bool,
        value_factor: float = 1.0,
    ) -> None:
        self.rows = rows
        self.weights = block.results.get("weights")
        self._value_factor = value_factor
        self._wants_context = "context" in block.results
        self._scratch = scratch
        self._shifting = shifting
        # The shift under which each tile of the weights was exponentiated.
        self._tile_shifts: list[tuple[Span, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        rows, scratch = self.rows, self._scratch
        count, dtype = rows.query.shape[0], rows.query.dtype
        sums = self._nothing(count, dtype)
        for columns in _tiles(span, scratch.tile_columns):
            scratch.pause()
            tile = self._place(count, columns)
            fill(rows, columns, tile)
            if self._shifting:
                sums.shift_tile(tile)
                if self.weights is not None:
                    self._tile_shifts.append((columns, sums.shift.copy()))
            exponential(tile, rows.unit, out=tile)
            sums.denominator += tile @ scratch.ones[: columns[1] - columns[0]]
            if sums.context is not None:
                sums.context += self._weighted(tile, columns)
        if self.weights is not None:
            self.weights[:, : span[0]] = 0
            self.weights[:, span[1] :] = 0
        return sums

    def _nothing(self, count: int, dtype: np.dtype[Any]) -> Sums:
        value = self.rows.operands.problem.value
        width = 0 if value is None else value.shape[3]
        context = np.zeros((count, width), dtype) if self._wants_context else None
        shift, denominator = np.zeros((2, count), dtype)
        return Sums(shift, denominator, context, self.rows.unit, self._value_factor)

    def _place(self, count: int, columns: Span) -> Array:
        if self.weights is not None:
            return self.weights[:, slice(*columns)]
        return self._scratch.buffer("tile", count, columns[1] - columns[0])

    def _weighted(self, tile: Array, columns: Span) -> Array:
        values = self.rows.operands.value_rows(self.rows.batch, self.rows.head, *columns)
        if self._value_factor != 1.0:
            values = np.multiply(values, self._value_factor, dtype=values.dtype)
        out = self._scratch.buffer("context", len(tile), values.shape[1])
        return np.matmul(tile, values, out=out)

    def normalise(self, weights: Array, share: Array, shift: Array) -> None:
        """Multiply each row by its share, and bring every tile to the final shift."""
        if all(np.array_equal(shift, before) for _, before in self._tile_shifts):
            np.multiply(weights, share[:, None], out=weights)
            return
        for columns, before in self._tile_shifts:
            part = weights[:, slice(*columns)]
            factor = share * exponential(np.minimum(before - shift, 0), self.rows.unit)
            np.multiply(part, factor[:, None], out=part)


def _sound(context: Array, *, shifting: bool) -> bool:
    """Return whether a sum of values stayed clear of both ends of the number format."""
    square = float(np.vdot(context, context))
    if _SOUND[0] < square < _SOUND[1]:
        return True
    # With a shift only an overflow can do harm.
    return all_finite(context) if shifting else square == 0 and not context.any()


def _finish(operands: Operands, block: Block, sums: Sums, sweep: _Sweep) -> int:
    """Divide by the denominator, sink included, and write what was asked for."""
    problem = operands.problem
    total = sums.denominator
    blind = total == 0
    count = int(np.count_nonzero(blind))
    unit = sums.unit
    sink = None if problem.sinks is None else problem.dtype.type(problem.sinks[block.head] * unit)
    if "lse" in block.results:
        log_total = np.log(total) + sums.shift / unit
        if sink is not None:
            log_total = np.logaddexp(log_total, sink / unit)
        block.results["lse"][...] = log_total
    if sink is not None:
        total = total + exponential(sink - sums.shift, unit)
    share = 1 / total
    if count:
        share[blind] = 0
    if "weights" in block.results:
        sweep.normalise(block.results["weights"], share, sums.shift)
    if sums.context is not None:
        out = np.multiply(sums.context, share[:, None], out=block.results["context"])
        if sums.value_factor != 1.0:
            np.divide(out, sums.value_factor, out=out)
    return count
