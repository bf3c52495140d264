"""One block: some queries of one head or several, against all their keys, tile by tile.

Where weights are asked for, a tile spans all keys of a few queries, and is normalised in the
result. Otherwise a tile spans some keys, and is discarded once it is summed up.

A block is first computed with the fastest strategy that looks safe (`attncli.engine.strategy`),
and again with more safeguards if its scores or sums show that it was not
(`attncli.engine.retry`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.calls import carry_out
from attncli.engine.exponentials import TooHighError, score_floor
from attncli.engine.panels import allocate, as_panels, by_query_head, paired
from attncli.engine.retry import loses_digits_of_lse, overflows, safeguards_needed
from attncli.engine.rules import log_denominators
from attncli.engine.strategy import ProductsTooHighError, Safeguards, Shift, choose_strategy
from attncli.engine.sums import REDUCTION
from attncli.engine.sweep import Sweep, tiles
from attncli.engine.tile import Rows, rules_of, score_calls
from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen

if TYPE_CHECKING:
    from attncli.engine.operands import Operands
    from attncli.engine.parts import Block, Part, Span
    from attncli.engine.scratch import Scratch
    from attncli.engine.sums import Sums

__all__ = ["attend_part"]

Array = npt.NDArray[Any]
_NO_SAFEGUARDS = Safeguards()
# Of stages that no softmax needs.
_KEYS_AT_A_TIME = 4096


def attend_part(operands: Operands, part: Part, scratch: Scratch) -> int:
    """Compute one part of a block, and the block's results if it is the last one.

    Returns
    -------
    int
        How many queries of the block are fully masked; 0 if other parts are still missing.

    Raises
    ------
    DataError
        A score exceeds the range of the computing dtype.
    NotFiniteError
        A score or a sum is not finite, and query, key and value are still unread.
    """
    block, number = part
    rows, sums = _sum_up(operands, block, block.spans[number], scratch)
    whole = block.deliver(number, sums)
    return 0 if whole is None else _finish(block, rows, whole)


def _sum_up(operands: Operands, block: Block, span: Span, scratch: Scratch) -> tuple[Rows, Sums]:
    """Sum up a span of keys, again with more safeguards until the sums are good."""
    weights, context = block.results.get("weights"), block.context_buffer(scratch)
    safeguards = _NO_SAFEGUARDS
    rows = _make_rows(operands, block, scratch, safeguards)
    filled = not rows.keep
    while True:
        near = _within_reach(rows, span)
        try:
            if not filled:
                _fill_hidden(rows, span, scratch)
                filled = True
            sums = Sweep(rows, weights, context, scratch).over(near)
            sums.flushed |= near != span
            needed = safeguards_needed(context, sums, rows, span, safeguards)
            if "lse" in block.results and loses_digits_of_lse(sums, rows):
                needed = needed._replace(shifted=True, highest=True)
        except ProductsTooHighError:
            needed = safeguards._replace(scaled_first=True)
        except TooHighError:
            needed = safeguards._replace(shifted=True)
        if needed == safeguards:
            break
        safeguards = needed
        rows = _make_rows(operands, block, scratch, safeguards)
    if context is not None and overflows(context, sums, rows):
        sums.reduced = np.empty_like(context)
        factor = REDUCTION[context.dtype]
        Sweep(rows, weights, sums.reduced, scratch, value_factor=factor).over(near)
    return rows, sums


def _make_rows(operands: Operands, block: Block, scratch: Scratch, safeguards: Safeguards) -> Rows:
    """Return the block's queries, keys and values, ready for the tiles."""
    problem = operands.problem
    keep = {name: block.results[name] for name in SCORE_STAGES if name in block.results}
    strategy = choose_strategy(operands, block, safeguards, keeps_stages=bool(keep))
    own = operands.query[block.batch, slice(*block.heads), block.start : block.stop]
    own = widen(own, problem.dtype)
    factor = problem.scale * strategy.unit
    if problem.is_product:
        query = _scaled(own, 1.0 if strategy.scaled_last else factor, block, scratch)
    else:
        query = as_panels(own, block.panel)
    if block.layout.chunk:
        key = operands.transposed_keys(block.batch, block.heads, scratch)
    else:
        key = operands.keys(block.batch, block.heads)
    value = operands.values(block.batch, block.heads) if "context" in block.results else None
    heads = len(query)
    return Rows(
        operands=operands,
        batch=block.batch,
        heads=block.heads,
        start=block.start,
        stop=block.start + block.panels * block.panel,
        query=query,
        key=by_query_head(key, heads),
        value=None if value is None else by_query_head(value, heads),
        keep=keep,
        strategy=strategy,
        layout=block.layout,
        rules=rules_of(problem, strategy, keep),
        # An array of one number takes less time than a number.
        last_factor=np.array([factor], problem.dtype) if strategy.scaled_last else None,
    )


def _scaled(queries: Array, factor: float, block: Block, scratch: Scratch) -> Array:
    """Return the queries of a block in panels, (N, P, D, R), multiplied by a factor."""
    shape = len(queries), block.panels, queries.shape[2], block.panel
    room = allocate(partial(scratch.buffer, "query"), shape, block.layout)
    beyond = block.panels * block.panel - queries.shape[1]
    if beyond:
        room[:, -1, :, -beyond:] = 0
    for rows, panels in paired(queries, room):
        np.multiply(rows, factor, panels)
    return room


def _fill_hidden(rows: Rows, span: Span, scratch: Scratch) -> None:
    """Write the score stages of the keys outside the span, which the softmax never needs."""
    keys = rows.key.shape[-2]
    outside = [part for part in ((0, span[0]), (span[1], keys)) if part[0] < part[1]]
    for first, last in outside:
        if "raw" in rows.keep or "capped" in rows.keep:
            for columns in tiles((first, last), _KEYS_AT_A_TIME):
                heads, count, _, panel = rows.query.shape
                sizes = heads, count, columns[1] - columns[0], panel
                room = np.empty(sizes, rows.query.dtype)
                carry_out(score_calls(rows, columns, room, scratch))
        else:
            rows.keep["scores"][..., first:last] = -np.inf


def _within_reach(rows: Rows, span: Span) -> Span:
    """Return the span without keys that ALiBi makes negligible for every query.

    `attncli.engine.retry` verifies that afterwards.
    """
    problem = rows.operands.problem
    slopes = problem.alibi_slopes
    slope = 0.0 if slopes is None else float(slopes[slice(*rows.heads)].min())
    if not slope > 0 or rows.keep or problem.bias is not None:
        return span
    if rows.strategy.shift is not Shift.WATCHED:
        return span
    highest = min(rows.strategy.bound, problem.softcap or math.inf)
    reach = (highest - score_floor(problem.dtype)) / slope
    if not reach < span[1] - span[0]:
        return span
    offset, far = problem.visible.offset(rows.batch), math.ceil(reach)
    first = max(span[0], rows.start + offset - far)
    last = min(span[1], rows.stop + offset + far)
    return (first, last) if first < last else span


def _finish(block: Block, rows: Rows, sums: Sums) -> int:
    """Divide by the denominator, sink included, and write the context and lse asked for.

    Returns
    -------
    int
        How many queries are fully masked.
    """
    if "lse" in block.results:
        log_total = log_denominators(sums.denominator, sums.shift / sums.unit, rows.sinks)
        block.results["lse"][...] = _by_query(log_total, block)
    if sums.context is not None:
        out = block.results["context"]
        for own, panels in paired(out, sums.divide()):
            np.copyto(own, panels)
    if not rows.may_be_fully_masked:
        return 0
    return int(np.count_nonzero(_by_query(sums.denominator, block) == 0))


def _by_query(numbers: Array, block: Block) -> Array:
    """Return numbers (N, P, R) as (N, queries)."""
    flat: Array = numbers.reshape(len(numbers), -1)[:, : block.stop - block.start]
    return flat
