"""One way over the keys of a block, tile by tile, from the scores to the sums of the softmax."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.ladder import ladder
from attncli.engine.panels import across
from attncli.engine.sums import Sums, drop_smallest, exponential
from attncli.engine.tile import Rows, fill, silence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from attncli.engine.scratch import Scratch
    from attncli.visibility import Visibility

__all__ = ["Sweep", "tiles"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Measured (tests/bench/README.md): the keys of a tile that some panels do not see.
_EDGE_COLUMNS = 128


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
        Where the weights go, if they are asked for.
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
        sizes = heads, self._count, panel
        self._sums = Sums(sizes, rows.query.dtype, rows.unit, context, value_factor)
        # The shift under which each tile of the weights was exponentiated.
        self._tile_shifts: list[tuple[Array, slice, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        rows = self.rows
        steps = ladder(rows, span) if rows.skips and self.weights is None else None
        if steps is not None:
            self._climb(*steps)
        elif rows.skips:
            self._over_band(span)
        else:
            every = slice(0, self._count)
            hidden = [every] if rows.operands.problem.visible.hides else []
            self._over_tiles(every, span, hidden)
        self._sums.close()
        self._blank(slice(None), (0, span[0]))
        self._blank(slice(None), (span[1], rows.key.shape[1]))
        return self._sums

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
            self._blank(slice(0, panels.start), columns)
            self._blank(slice(panels.stop, None), columns)

    def _over_tiles(self, panels: slice, span: Span, hidden: list[slice]) -> None:
        """Take the tiles of some panels and keys; some runs of panels do not see all of those."""
        if span[0] >= span[1]:
            return
        scratch, sums = self._scratch, self._sums
        rows = self.rows.part(panels)
        silenced = [(run, self.rows.part(run)) for run in hidden] if rows.hides_late else []
        for columns in tiles(span, scratch.tile_columns):
            scratch.pause()
            tile = self._place(columns, panels)
            fill(rows, columns, tile)
            if rows.shifted:
                sums.shift_tile(tile, panels)
                if self.weights is not None:
                    self._tile_shifts.append((tile, panels, sums.shift[:, panels].copy()))
            exponential(tile, rows.unit, tile)
            if rows.shifted and self.weights is None:
                drop_smallest(tile)
            for run, some in silenced:
                own = tile[:, run.start - panels.start : run.stop - panels.start]
                silence(some, columns, own, scratch)
            sums.add(tile, self._cut(columns), panels, scratch)

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

    def _blank(self, panels: slice, span: Span) -> None:
        """Write that some keys have no weight."""
        if self.weights is not None:
            self.weights[:, panels, slice(*span)] = 0

    def _place(self, columns: Span, panels: slice) -> Array:
        if self.weights is not None:
            return self.weights[:, panels, slice(*columns)]
        heads, _, _, panel = self.rows.query.shape
        sizes = heads, panels.stop - panels.start, columns[1] - columns[0], panel
        return self._scratch.buffer("tile", *sizes)

    def _cut(self, columns: Span) -> Array | None:
        """Return the values of some columns."""
        if self.rows.value is None:
            return None
        values = widen(self.rows.value[:, slice(*columns)], self.rows.query.dtype)
        factor = self._sums.value_factor
        return values if factor == 1.0 else np.multiply(values, factor, dtype=values.dtype)

    def normalise(self, share: Array, shift: Array) -> None:
        """Multiply the weights of each query by its share, and bring all to the final shift."""
        weights = self.weights
        if weights is None:
            return
        if all(np.array_equal(before, shift[:, some]) for _, some, before in self._tile_shifts):
            np.multiply(weights, share[:, :, None], out=weights)
            return
        for tile, some, before in self._tile_shifts:
            below = exponential(np.minimum(before - shift[:, some], 0), self.rows.unit)
            np.multiply(tile, (share[:, some] * below)[:, :, None], out=tile)


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
