"""One way over the keys of a block, tile by tile, from the scores to the sums of the softmax."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.exponentials import (
    exponential,
    exponentiate_felt,
    exponentiate_normal,
    has_unfelt,
    refuse_nearly_high,
)
from attncli.engine.ladder import ladder
from attncli.engine.panels import across
from attncli.engine.strategy import Shift
from attncli.engine.sums import Sums
from attncli.engine.tile import Rows, fill, silence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from attncli.engine.scratch import Scratch
    from attncli.visibility import Visibility

__all__ = ["Sweep", "tiles"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Measured (tests/bench/README.md). The keys of a tile that some panels do not see.
_EDGE_COLUMNS = 128
# Of a tile of weights that is computed apart.
_ROWS_BYTES = 2**21


def tiles(span: Span, most: int) -> Iterator[Span]:
    """Cut a span of keys into tiles of at most so many, all but the last equally wide."""
    keys = span[1] - span[0]
    if keys <= most:
        if keys > 0:
            yield span
        return
    # Products like multiples of 16.
    width = min(most, -(-keys // -(-keys // most) // 16) * 16)
    for start in range(*span, width):
        yield start, min(start + width, span[1])


class Sweep:
    """One way over the keys of a block, from the first tile to the last.

    Parameters
    ----------
    rows : Rows
    weights : ndarray (N, P · R, S), or None
        Where the weights go, if they are asked for: a tile is over all keys then.
    context : ndarray (N, P, E, R), or None
        Where to sum up the weighted values, if the context is asked for.
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
        self.weights = None if weights is None else across(weights, rows.panel)
        self._scratch = scratch
        heads, self._count, _, panel = rows.query.shape
        self._sums = Sums(
            (heads, self._count, panel),
            rows.query.dtype,
            unit=rows.strategy.unit,
            grain=rows.grain,
            context=context,
            value_factor=value_factor,
        )

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        rows = self.rows
        if self.weights is not None:
            self._over_rows(self.weights, span)
            return self._sums
        steps = ladder(rows, span) if rows.skips else None
        if steps is not None:
            self._climb(*steps)
        elif rows.skips:
            self._over_band(span)
        else:
            every = slice(0, self._count)
            hidden = [every] if rows.operands.problem.visible.hides else []
            self._over_tiles(every, span, hidden)
        self._sums.close()
        return self._sums

    def _over_rows(self, weights: Array, span: Span) -> None:
        """Take a few panels at a time with all keys that they see, and write their weights."""
        rows, visible = self.rows, self.rows.operands.problem.visible
        heads, count, _, panel = rows.query.shape
        step = 1
        if rows.grain.piece:
            step = max(1, _ROWS_BYTES // (heads * panel * weights.shape[2] * weights.itemsize))
        for first in range(0, count, step):
            panels = slice(first, min(first + step, count))
            some, own = rows.part(panels), weights[:, panels]
            seen = visible.span(some.batch, some.start, some.stop) if rows.skips else span
            own[:, :, : seen[0]] = 0
            own[:, :, seen[1] :] = 0
            if seen[0] < seen[1]:
                self._weigh(some, panels, seen, own[:, :, slice(*seen)])
            elif self._sums.context is not None:
                self._sums.context[:, panels] = 0

    def _weigh(self, rows: Rows, panels: slice, columns: Span, weights: Array) -> None:
        """Write the sums of some panels, and their weights, in one piece."""
        scratch, sums = self._scratch, self._sums
        scratch.pause()
        heads, count, _, panel = rows.query.shape
        tile = weights
        if rows.grain.piece:  # computed where it stays in the cache, and written once
            tile = scratch.apart("tile", heads, count, panel, columns[1] - columns[0])
            tile = tile.swapaxes(2, 3)
        fill(rows, columns, tile, scratch)
        self._exponentiate(rows, panels, tile)
        if rows.hides_late and rows.operands.problem.visible.hides:
            silence(rows, columns, tile, scratch)
        sums.put(tile, self._cut(columns), panels, scratch)
        np.multiply(tile, sums.share(rows, panels)[:, :, None], out=weights)

    def _over_band(self, span: Span) -> None:
        """Take what every query sees at once, and the rest without the panels that see nothing."""
        rows, visible = self.rows, self.rows.operands.problem.visible
        first, last = _aligned(visible.core(rows.batch, (rows.start, rows.stop), span))
        if first >= last:
            first = last = span[0]
        self._over_tiles(slice(0, self._count), (first, last), [])
        ends = itertools.pairwise(range(rows.start, rows.stop + 1, rows.panel))
        reaches = [_Reach(visible, rows.batch, own) for own in ends]
        width = self._scratch.tile_columns
        if self._count > 1:
            width = min(width, max(_EDGE_COLUMNS, rows.panel))
        for columns in itertools.chain(
            tiles((span[0], first), width), tiles((last, span[1]), width)
        ):
            seeing = [number for number, reach in enumerate(reaches) if reach.meets(columns)]
            panels = slice(seeing[0], seeing[-1] + 1) if seeing else slice(0, 0)
            hidden = _runs(number for number in seeing if not reaches[number].covers(columns))
            if seeing:
                self._over_tiles(panels, columns, list(hidden))

    def _over_tiles(self, panels: slice, span: Span, hidden: list[slice]) -> None:
        """Take the tiles of some panels and keys; some runs of panels do not see all of those."""
        if span[0] >= span[1]:
            return
        scratch, sums = self._scratch, self._sums
        rows = self.rows.part(panels)
        silenced = [(run, self.rows.part(run)) for run in hidden] if rows.hides_late else []
        heads, count, _, panel = rows.query.shape
        watched = rows.strategy.shift is Shift.WATCHED
        for columns in tiles(span, scratch.tile_columns):
            scratch.pause()
            tile = scratch.buffer("tile", heads, count, columns[1] - columns[0], panel)
            fill(rows, columns, tile, scratch)
            if watched and columns[0] == span[0]:
                refuse_nearly_high(tile, rows.strategy.unit)
            self._exponentiate(rows, panels, tile)
            for run, some in silenced:
                own = tile[:, run.start - panels.start : run.stop - panels.start]
                silence(some, columns, own, scratch)
            sums.add(tile, self._cut(columns), panels, scratch)
            if watched:
                sums.refuse_high(panels)

    def _exponentiate(self, rows: Rows, panels: slice, tile: Array) -> None:
        """Exponentiate a tile of some panels in place, under their shift where they have one."""
        strategy = rows.strategy
        shifted = strategy.shift is Shift.APPLIED
        if shifted:
            self._sums.shift_tile(tile, panels)
        if shifted and strategy.keep_tiny:
            exponentiate_normal(tile, self._scratch)
        elif shifted or (strategy.may_underflow and has_unfelt(tile, strategy.unit)):
            exponentiate_felt(tile, strategy.unit, self._scratch)
            self._sums.unfelt = True
        else:
            exponential(tile, strategy.unit, tile)

    def _climb(self, steps: Rows, seen: Span) -> None:
        """Take the steps of a ladder at once."""
        context = self._sums.context
        if context is not None:
            context = context.reshape(len(steps.query), -1, *context.shape[2:])
        factor = self._sums.value_factor
        climb = Sweep(steps, None, context, self._scratch, value_factor=factor)
        every = slice(0, climb._count)
        climb._over_tiles(every, seen, [every])
        self._sums = climb._sums.as_one_head()

    def _cut(self, columns: Span) -> Array | None:
        """Return the values of some columns."""
        if self.rows.value is None:
            return None
        values = widen(self.rows.value[:, slice(*columns)], self.rows.query.dtype)
        factor = self._sums.value_factor
        return values if factor == 1.0 else np.multiply(values, factor, dtype=values.dtype)


class _Reach:
    """Which keys some queries see: any of them, and all of them."""

    def __init__(self, visible: Visibility, batch: int, rows: Span) -> None:
        self._any = visible.span(batch, *rows)
        self._all = visible.core(batch, rows, self._any)

    def meets(self, columns: Span) -> bool:
        return self._any[0] < columns[1] and columns[0] < self._any[1]

    def covers(self, columns: Span) -> bool:
        return self._all[0] <= columns[0] and columns[1] <= self._all[1]


def _runs(numbers: Iterable[int]) -> Iterator[slice]:
    """Give numbers that follow each other as slices."""
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
    """Return the part of a span that begins and ends at multiples of 64: BLAS works in such."""
    return -(-span[0] // 64) * 64, span[1] // 64 * 64
