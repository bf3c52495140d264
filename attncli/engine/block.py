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
from attncli.engine.exponentials import TooHighError, depth
from attncli.engine.panels import Grain, across, lying
from attncli.engine.strategy import Shift, choose_strategy
from attncli.engine.sums import merge
from attncli.engine.sweep import Sweep, tiles
from attncli.engine.tile import Rows, fill
from attncli.names import SCORE_STAGES

if TYPE_CHECKING:
    from attncli.engine.operands import Operands
    from attncli.engine.scratch import Scratch
    from attncli.engine.sums import Sums

__all__ = ["Block", "Part", "Span", "attend_part"]

Array = npt.NDArray[Any]
Span = tuple[int, int]


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
    skip_bounds : bool
        Skip score bounds and base-2 exponentials, which only pay off on large problems.
    """

    batch: int
    heads: Span
    start: int
    stop: int
    panel: int
    grain: Grain
    results: dict[str, Array]
    spans: list[Span]
    skip_bounds: bool
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
        near = _within_reach(rows, span)
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
    """Return the block's queries, keys and values, ready for the tiles."""
    problem = operands.problem
    strategy = choose_strategy(operands, block, care)
    own = operands.query[block.batch, slice(*block.heads), block.start : block.stop]
    query = across(widen(own, problem.dtype), block.panel)
    if problem.score != "additive":
        room = lying(partial(scratch.buffer, "query"), query.shape, block.grain)
        query = np.multiply(query, problem.scale * strategy.unit, room)
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
        keep={name: block.results[name] for name in SCORE_STAGES if name in block.results},
        strategy=strategy,
        grain=block.grain,
    )


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


def _within_reach(rows: Rows, span: Span) -> Span:
    """Return the keys of a span that are not, by ALiBi, too far from all queries to be felt."""
    problem = rows.operands.problem
    slope = 0.0 if problem.slopes is None else float(problem.slopes[rows.head])
    if (
        not (rows.strategy.shift is Shift.WATCHED and slope > 0)
        or rows.keep
        or problem.bias is not None
    ):
        return span
    highest = min(rows.strategy.bound, problem.softcap or math.inf)
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
