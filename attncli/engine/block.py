"""Some queries of a head, or of a few, against all their keys, tile by tile.

There is one way to make a tile. Where weights are asked for, a tile is over all keys of a few
queries, and is written to the result when it is normalised; otherwise it is over some
keys, is summed up and is forgotten.

Where a bound proves that no score can overflow the exponential, no shift is needed:
exp(s) / Σ exp(s) is the same with any. Where no such bound is known, scores are watched as
they come, and all is done again with a shift if one of them is too high, or a sum too small.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.care import Care, remedy
from attncli.engine.exponentials import TooHighError, depth, height, quickest_unit
from attncli.engine.panels import Grain, across, lying
from attncli.engine.sums import merge
from attncli.engine.sweep import Sweep, tiles
from attncli.engine.tile import Rows, fill
from attncli.names import SCORE_STAGES

if TYPE_CHECKING:
    from attncli.engine.operands import Operands
    from attncli.engine.scratch import Scratch
    from attncli.engine.sums import Sums
    from attncli.problem import Problem

__all__ = ["Block", "Part", "Span", "attend_part"]

Array = npt.NDArray[Any]
Span = tuple[int, int]

# To look at all keys for a bound takes few queries as long as to do without it.
_FEW_QUERIES = 16


@dataclass(eq=False, slots=True)
class Block:
    """Queries start:stop of one head or of several, and where their results go.

    Attributes
    ----------
    batch : int
    heads : (first, last + 1)
    start, stop : int
    panel : int
        Queries of a panel: all are full.
    grain : Grain
    results : dict of str to ndarray
        The block's own rows of each output asked for: (N, rows, S), (N, rows, E) or (N, rows).
    spans : list of (start, stop)
        The keys of its parts. More than one only where no L × S output is asked for.
    exact : bool
        Whether to do without what pays for long problems alone: bounds and bits.
    """

    batch: int
    heads: Span
    start: int
    stop: int
    panel: int
    grain: Grain
    results: dict[str, Array]
    spans: list[Span]
    exact: bool
    _sums: dict[int, Sums] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def room_for_context(self, scratch: Scratch) -> Array | None:
        """Return where a part may sum up its weighted values; None if they are not asked for."""
        context = self.results.get("context")
        if context is None:
            return None
        shape = across(context, self.panel).shape
        if len(self.spans) == 1:
            return lying(partial(scratch.buffer, "context"), shape, self.grain)
        return np.empty(shape, context.dtype)

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
    rows, sums = _sweep(operands, block, block.spans[number], scratch)
    whole = block.deliver(number, sums)
    return 0 if whole is None else _finish(block, rows, whole)


def _sweep(operands: Operands, block: Block, span: Span, scratch: Scratch) -> tuple[Rows, Sums]:
    """Sum up a span of keys; again, and with more care, where the sums need it."""
    weights, context = block.results.get("weights"), block.room_for_context(scratch)
    care = Care()
    rows = _rows(operands, block, scratch, care)
    if rows.keep:
        _fill_hidden(rows, span, scratch)
    while True:
        sweep = Sweep(rows, weights, context, scratch, value_factor=care.value_factor)
        near = _within_reach(block, rows, span)
        try:
            sums = sweep.over(near)
            sums.unfelt |= near != span
            more = remedy(context, sums, rows, span, care)
        except TooHighError:
            more = care._replace(shifted=True)
        if more == care:
            return rows, sums
        care = more
        rows = _rows(operands, block, scratch, care)


def _rows(operands: Operands, block: Block, scratch: Scratch, care: Care) -> Rows:
    """Return the block's queries, and what is known of their scores."""
    problem = operands.problem
    keep = {name: block.results[name] for name in SCORE_STAGES if name in block.results}
    bound = _bound(operands, block)
    extent = _extent(problem, block.heads[0], bound)
    bounded = extent <= height(problem.dtype)
    small = care.small or "weights" in block.results
    exact = block.exact or small or problem.sinks is not None
    watched = not (care.shifted or bounded or exact)
    shifted = care.shifted or not (bounded or watched)
    # Half of what a shift leaves is too small for exp2, which then takes ten times as long; and
    # large scores lose a digit when they are turned into bits.
    unit = 1.0 if shifted or block.exact or keep else quickest_unit(problem.dtype)
    own = operands.query[block.batch, slice(*block.heads), block.start : block.stop]
    query = across(widen(own, problem.dtype), block.panel)
    if problem.score != "additive":
        room = lying(partial(scratch.buffer, "query"), query.shape, block.grain)
        query = np.multiply(query, problem.scale * unit, room)
    if block.grain.piece:
        key = operands.turned_keys(block.batch, block.heads, scratch)
    else:
        key = operands.keys(block.batch, block.heads)
    value = operands.values(block.batch, block.heads) if "context" in block.results else None
    return Rows(
        operands=operands,
        batch=block.batch,
        head=block.heads[0],
        start=block.start,
        stop=block.stop,
        query=query,
        key=key,
        value=value,
        unit=unit,
        keep=keep,
        may_overflow=not bound * unit < _HALF_OF_ALL[problem.dtype],
        shifted=shifted,
        watched=watched,
        deep=not extent <= depth(problem.dtype),
        small=small,
        grain=block.grain,
    )


_HALF_OF_ALL = {np.dtype(kind): float(np.finfo(kind).max) / 2 for kind in (np.float32, np.float64)}


def _bound(operands: Operands, block: Block) -> float:
    """Return what no raw score of the block's heads can exceed in magnitude; inf if unknown."""
    problem = operands.problem
    if problem.score == "additive":
        return float(np.abs(np.asarray(problem.score_vector)).sum()) * abs(problem.scale)
    if block.exact or block.stop - block.start < _FEW_QUERIES:
        return math.inf
    return operands.bound(block.batch, block.heads) * abs(problem.scale)


def _extent(problem: Problem, head: int, bound: float) -> float:
    """Return what no score, in nats, can exceed in magnitude after all rules; inf if unknown."""
    if problem.bias is not None or problem.slopes is not None:
        return math.inf
    sink = 0.0 if problem.sinks is None else abs(problem.sinks[head])
    capped = bound if problem.softcap is None else min(bound, problem.softcap)
    return max(capped, sink)


def _fill_hidden(rows: Rows, span: Span, scratch: Scratch) -> None:
    """Write the outputs for the keys outside the span: tiles that softmax never needs."""
    keys = rows.key.shape[1]
    outside = [part for part in ((0, span[0]), (span[1], keys)) if part[0] < part[1]]
    for first, last in outside:
        if "raw" in rows.keep or "capped" in rows.keep:
            for columns in tiles((first, last), 4096):
                heads, count, _, panel = rows.query.shape
                sizes = heads, count, columns[1] - columns[0], panel
                fill(rows, columns, np.empty(sizes, rows.query.dtype), scratch)
        else:
            rows.keep["scores"][..., first:last] = -np.inf


def _within_reach(block: Block, rows: Rows, span: Span) -> Span:
    """Return the keys of a span that are not, by ALiBi, too far from all queries to be felt."""
    problem = rows.operands.problem
    slope = 0.0 if problem.slopes is None else float(problem.slopes[rows.head])
    if not (rows.watched and slope > 0) or rows.keep or problem.bias is not None:
        return span
    highest = min(_bound(rows.operands, block), problem.softcap or math.inf)
    reach = (highest + depth(problem.dtype)) / slope
    if not reach < span[1] - span[0]:
        return span
    offset, far = problem.visible.offset(rows.batch), math.ceil(reach)
    first = max(span[0], rows.start + offset - far)
    last = min(span[1], rows.stop + offset + far)
    return (first, last) if first < last else span


def _finish(block: Block, rows: Rows, sums: Sums) -> int:
    """Divide by the denominator, sink included, and write what was asked for."""
    sink = rows.sink
    if "lse" in block.results:
        log_total = np.log(sums.denominator) + sums.shift / sums.unit
        if sink is not None:
            log_total = np.logaddexp(log_total, log_total.dtype.type(sink))
        lse = block.results["lse"]
        lse[...] = log_total.reshape(lse.shape)
    if sums.context is not None:
        out = across(block.results["context"], block.panel)
        np.multiply(sums.context, sums.share(rows)[:, :, None], sums.context)
        np.copyto(out, sums.context)
        if sums.value_factor != 1.0:
            np.divide(out, sums.value_factor, out=out)
    return int(np.count_nonzero(sums.denominator == 0)) if rows.may_be_blind else 0
