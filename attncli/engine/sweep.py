"""One pass over the keys of a block, tile by tile, from scores to the sums of the softmax."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.calls import carry_out
from attncli.engine.exponentials import (
    exp_flush_negligible,
    exp_flush_subnormal,
    exp_raise_negligible,
    exponential_of,
    has_negligible,
    raise_if_nearly_too_high,
)
from attncli.engine.panels import as_panels
from attncli.engine.strategy import Shift
from attncli.engine.sums import Sums
from attncli.engine.tile import Rows, score_calls, zero_calls
from attncli.engine.window_steps import window_steps
from attncli.threads.cores import core_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from attncli.engine.calls import Call
    from attncli.engine.scratch import Scratch
    from attncli.engine.strategy import Strategy
    from attncli.problem.visibility import Visibility

__all__ = ["Sweep", "tiles"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Measured (tests/bench/README.md). Keys in a tile at the edge of a band, where panels differ.
_EDGE_COLUMNS = 128
# Bytes of a tile of weights that is computed in a buffer of its own: twice those of a core's
# cache, if known, but at least and at most these.
_ROWS_BYTES = 2**21, 2**22


def tiles(span: Span, most: int) -> Iterator[Span]:
    """Cut a span of keys into tiles of at most ``most`` keys, all but the last equally wide."""
    keys = span[1] - span[0]
    if keys <= most:
        if keys > 0:
            yield span
        return
    # BLAS is fastest on multiples of 16.
    width = min(most, -(-keys // -(-keys // most) // 16) * 16)
    for start in range(*span, width):
        yield start, min(start + width, span[1])


class Sweep:
    """One pass over the keys of a block, from the first tile to the last.

    Parameters
    ----------
    rows : Rows
    weights : ndarray (N, P · R, S), or None
        Where the weights go, if asked for; each tile then spans all keys.
    context : ndarray (N, P, E, R), or None
        Receives the weighted sum of the values, if the context is asked for.
    scratch : Scratch
    value_factor : float
        Multiplies the values.
    """

    def __init__(
        self,
        rows: Rows,
        weights: Array | None,
        context: Array | None,
        scratch: Scratch,
        *,
        value_factor: float = 1.0,
    ) -> None:
        self.rows = rows
        self.weights = None if weights is None else as_panels(weights, rows.panel)
        self._scratch = scratch
        heads, self._count, _, panel = rows.query.shape
        self._sums = Sums(
            (heads, self._count, panel),
            rows.query.dtype,
            unit=rows.strategy.unit,
            headroom=rows.strategy.headroom,
            layout=rows.layout,
            context=context,
            value_factor=value_factor,
            sinks=rows.sinks,
            may_be_empty=rows.may_be_fully_masked,
        )

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        rows = self.rows
        if self.weights is not None:
            carry_out(self._over_rows(self.weights, span))
            return self._sums
        steps = window_steps(rows, span) if rows.skips_hidden else None
        if steps is not None:
            return self._over_window_steps(*steps)
        if rows.skips_hidden:
            carry_out(self._over_band(span))
        else:
            every = slice(0, self._count)
            hidden = [every] if rows.operands.problem.visible.hides else []
            carry_out(self._over_tiles(every, span, hidden))
        self._sums.close()
        return self._sums

    def _over_rows(self, weights: Array, span: Span) -> Iterator[Call]:
        """Compute a few panels at a time, each with all keys it sees, and write their weights."""
        rows, visible = self.rows, self.rows.operands.problem.visible
        heads, count, _, panel = rows.query.shape
        step = 1
        if rows.layout.chunk:
            step = max(1, _rows_bytes() // (heads * panel * weights.shape[2] * weights.itemsize))
        for first in range(0, count, step):
            panels = slice(first, min(first + step, count))
            some, own = rows.part(panels), weights[:, panels]
            seen = visible.span(some.batch, some.start, some.stop) if rows.skips_hidden else span
            for unseen in (own[:, :, : seen[0]], own[:, :, seen[1] :]):
                if unseen.size:
                    yield np.copyto, (unseen, 0)
            if seen[0] < seen[1]:
                yield from self._weigh(some, panels, seen, own[:, :, slice(*seen)])
            elif self._sums.context is not None:
                yield np.copyto, (self._sums.context[:, panels], 0)

    def _weigh(self, rows: Rows, panels: slice, columns: Span, weights: Array) -> Iterator[Call]:
        """Write the sums and the weights of some panels, from one tile over all columns."""
        scratch, sums = self._scratch, self._sums
        heads, count, _, panel = rows.query.shape
        tile = weights
        if rows.layout.chunk:  # a buffer that stays in the cache; the result is written once
            tile = scratch.padded("tile", heads, count, panel, columns[1] - columns[0])
            tile = tile.swapaxes(2, 3)
        yield scratch.check_stopped, ()
        yield from score_calls(rows, columns, tile, scratch)
        # Weights keep what is tiny: nothing is raised.
        yield self._exponential(rows, panels, tile, infinite=True)
        if rows.masks_after_exp and rows.operands.problem.visible.hides:
            yield from zero_calls(rows, columns, tile, scratch)
        yield from sums.settings(tile, self._values(columns), panels, scratch)
        yield sums.normalise, (tile, panels, weights)

    def _over_band(self, span: Span) -> Iterator[Call]:
        """Compute the keys that every query sees, then the others without panels that see none."""
        rows, visible = self.rows, self.rows.operands.problem.visible
        first, last = _aligned(visible.core(rows.batch, (rows.start, rows.stop), span))
        if first >= last:
            first = last = span[0]
        yield from self._over_tiles(slice(0, self._count), (first, last), [])
        ends = itertools.pairwise(range(rows.start, rows.stop + 1, rows.panel))
        reaches = [_Reach(visible, rows.batch, own) for own in ends]
        width = self._scratch.tile_columns
        if self._count > 1:
            width = min(width, max(_EDGE_COLUMNS, rows.panel))
        for columns in itertools.chain(
            tiles((span[0], first), width), tiles((last, span[1]), width)
        ):
            seeing = [number for number, reach in enumerate(reaches) if reach.meets(columns)]
            if seeing:
                # Of packed sequences, some panels in between may see none of these keys.
                between = range(seeing[0], seeing[-1] + 1)
                hidden = _runs(number for number in between if not reaches[number].covers(columns))
                panels = slice(between.start, between.stop)
                yield from self._over_tiles(panels, columns, list(hidden))

    def _over_tiles(self, panels: slice, span: Span, hidden: list[slice]) -> Iterator[Call]:
        """Compute the tiles of some panels and keys, and zero what runs of panels do not see."""
        if span[0] >= span[1]:
            return
        scratch, sums = self._scratch, self._sums
        rows = self.rows.part(panels)
        masked = [(run, self.rows.part(run)) for run in hidden] if rows.masks_after_exp else []
        infinite = rows.has_infinite_scores(hides=bool(hidden))
        heads, count, _, panel = rows.query.shape
        watched = rows.strategy.shift is Shift.WATCHED
        for columns in tiles(span, scratch.tile_columns):
            tile = scratch.buffer("tile", heads, count, columns[1] - columns[0], panel)
            yield scratch.check_stopped, ()
            yield from score_calls(rows, columns, tile, scratch)
            if watched and columns[0] == span[0]:
                yield raise_if_nearly_too_high, (tile, rows.strategy.unit)
            yield self._exponential(rows, panels, tile, infinite=infinite)
            for run, some in masked:
                own = tile[:, run.start - panels.start : run.stop - panels.start]
                yield from zero_calls(some, columns, own, scratch)
            yield from sums.additions(tile, self._values(columns), panels, scratch)
            if watched:
                yield sums.raise_if_too_high, (panels,)

    def _exponential(self, rows: Rows, panels: slice, tile: Array, *, infinite: bool) -> Call:
        """Return the call that exponentiates a tile in place, by the strategy of its rows."""
        strategy = rows.strategy
        if strategy.shift is Shift.APPLIED or strategy.may_underflow:
            shift = partial(self._sums.shift_tile, tile, panels, first=self._sums.empty)
            # What is hidden has to become 0; the rest may be as negligible as it likes.
            unfelt = exp_flush_negligible if infinite else exp_raise_negligible
            return self._exponentiate, (strategy, tile, shift, unfelt)
        return exponential_of(strategy.unit), (tile, tile)

    def _exponentiate(
        self,
        strategy: Strategy,
        tile: Array,
        shift: Callable[[], None],
        unfelt: Callable[[Array, float, Scratch], None],
    ) -> None:
        """Exponentiate a tile in place where scores may be beyond what `exp` takes."""
        shifted = strategy.shift is Shift.APPLIED
        if shifted:
            shift()
        if shifted and strategy.keep_tiny:
            exp_flush_subnormal(tile, self._scratch)
        elif shifted or has_negligible(tile, strategy.unit):
            unfelt(tile, strategy.unit, self._scratch)
            self._sums.flushed = True
        else:
            exponential_of(strategy.unit)(tile, tile)

    def _over_window_steps(self, steps: Rows, seen: Span) -> Sums:
        """Compute the steps of a window at once, as heads of one tile."""
        context = self._sums.context
        if context is not None:
            context = context.reshape(len(steps.query), -1, *context.shape[2:])
        factor = self._sums.value_factor
        sweep = Sweep(steps, None, context, self._scratch, value_factor=factor)
        every = slice(0, sweep._count)
        carry_out(sweep._over_tiles(every, seen, [every]))
        return sweep._sums.as_one_head()

    def _values(self, columns: Span) -> Array | None:
        """Return the values of some columns, as stored."""
        value = self.rows.value
        return None if value is None else value[..., columns[0] : columns[1], :]


def _rows_bytes() -> int:
    least, most = _ROWS_BYTES
    return min(max(least, 2 * core_cache()), most)


class _Reach:
    """The keys that any of some queries sees, and those that all of them see."""

    def __init__(self, visible: Visibility, batch: int, rows: Span) -> None:
        self._any = visible.span(batch, *rows)
        self._all = visible.core(batch, rows, self._any)

    def meets(self, columns: Span) -> bool:
        return self._any[0] < columns[1] and columns[0] < self._any[1]

    def covers(self, columns: Span) -> bool:
        return self._all[0] <= columns[0] and columns[1] <= self._all[1]


def _runs(numbers: Iterable[int]) -> Iterator[slice]:
    """Yield runs of consecutive numbers as slices."""
    start = stop = None
    for number in numbers:
        if start is not None and number != stop:
            yield slice(start, stop)
            start = None
        start = number if start is None else start
        stop = number + 1
    if start is not None:
        yield slice(start, stop)


def _aligned(span: Span) -> Span:
    """Return a span shrunk to multiples of 64, the block size of BLAS kernels."""
    return -(-span[0] // 64) * 64, span[1] // 64 * 64
