"""One way over the keys of a block, tile by tile, from the scores to the sums of the softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.panels import across
from attncli.engine.sums import Sums, exponential
from attncli.engine.tile import Rows, fill, silence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.engine.scratch import Scratch

__all__ = ["Sweep", "tiles"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# The keys of a tile that some queries see and others do not (tests/bench/README.md).
_EDGE_COLUMNS = 128


def tiles(span: Span, width: int) -> Iterator[Span]:
    """Cut a span of keys into tiles of a width, the last one as wide as it comes."""
    for start in range(*span, width):
        yield start, min(start + width, span[1])


class Sweep:
    """One way over the keys of a block, from the first tile to the last.

    Parameters
    ----------
    rows : Rows
    weights : ndarray (P · R, S), or None
        Where the weights go, if they are asked for.
    context : ndarray (P, E, R), or None
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
        count, _, panel = rows.query.shape
        self._all = slice(0, count)
        self._values = addend = None
        if context is not None:
            self._values = rows.operands.values(rows.batch, rows.head)
            addend = scratch.buffer("addend", *context.shape)
        sizes, dtype = (count, panel), rows.query.dtype
        self._sums = Sums(sizes, dtype, rows.unit, context, addend, value_factor)
        # What the queries of each panel see, some of them and all of them.
        self._spans: list[Span] = []
        self._cores: list[Span] = []
        # The shift under which each tile of the weights was exponentiated.
        self._tile_shifts: list[tuple[Array, slice, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        if self.rows.skips:
            self._over_panels(span)
        else:
            for columns in tiles(span, self._scratch.tile_columns):
                self._take(columns, self._all)
        self._sums.close()
        if self.weights is not None:
            self.weights[:, : span[0]] = 0
            self.weights[:, span[1] :] = 0
        return self._sums

    def _over_panels(self, span: Span) -> None:
        """Take what every query sees at once, and of the rest only panels that see something."""
        rows, visible = self.rows, self.rows.operands.problem.visible
        for start in range(rows.start, rows.stop, rows.panel):
            own = start, start + rows.panel
            seen = visible.span(rows.batch, *own)
            self._spans.append(seen)
            self._cores.append(visible.core(rows.batch, own, seen))
        first, last = _aligned(visible.core(rows.batch, (rows.start, rows.stop), span))
        if first >= last:
            first = last = span[0]
        for columns in tiles((first, last), self._scratch.tile_columns):
            self._take(columns, self._all)
        width = min(max(_EDGE_COLUMNS, rows.panel), self._scratch.tile_columns)
        for piece in ((span[0], first), (last, span[1])):
            for columns in tiles(piece, width):
                panels = _range(_overlaps(seen, columns) for seen in self._spans)
                self._take(columns, panels)
                if self.weights is not None:
                    self.weights[: panels.start, slice(*columns)] = 0
                    self.weights[panels.stop :, slice(*columns)] = 0

    def _take(self, columns: Span, panels: slice) -> None:
        """Take one tile: some keys, and the queries of some panels."""
        if panels.start >= panels.stop:
            return
        scratch, sums = self._scratch, self._sums
        scratch.pause()
        rows = self.rows if panels == self._all else self.rows.part(panels)
        tile = self._place(columns, panels)
        fill(rows, columns, tile)
        if rows.shifted:
            sums.shift_tile(tile, panels)
            if self.weights is not None:
                self._tile_shifts.append((tile, panels, sums.shift[panels].copy()))
        exponential(tile, rows.unit, tile)
        if rows.hides_late and rows.operands.problem.visible.hides:
            for some in self._edges(columns, panels):
                inner = slice(some.start - panels.start, some.stop - panels.start)
                silence(self.rows.part(some), columns, tile[inner], scratch)
        sums.add(tile, scratch.ones(columns[1] - columns[0]), self._cut(columns), panels)

    def _place(self, columns: Span, panels: slice) -> Array:
        if self.weights is not None:
            return self.weights[panels, slice(*columns)]
        sizes = panels.stop - panels.start, columns[1] - columns[0], self.rows.panel
        return self._scratch.buffer("tile", *sizes)

    def _cut(self, columns: Span) -> Array | None:
        """Return the values of some columns."""
        if self._values is None:
            return None
        values = widen(self._values[columns[0] : columns[1]], self.rows.query.dtype)
        factor = self._sums.value_factor
        return values if factor == 1.0 else np.multiply(values, factor, dtype=values.dtype)

    def _edges(self, columns: Span, panels: slice) -> Iterator[slice]:
        """Give the runs of panels with a query that does not see all of some columns."""
        if not self._cores:
            yield panels
            return
        start = None
        for number in range(panels.start, panels.stop):
            first, last = self._cores[number]
            if not (first <= columns[0] and columns[1] <= last):
                start = number if start is None else start
            elif start is not None:
                yield slice(start, number)
                start = None
        if start is not None:
            yield slice(start, panels.stop)

    def normalise(self, share: Array, shift: Array) -> None:
        """Multiply the weights of each query by its share, and bring all to the final shift."""
        weights = self.weights
        if weights is None:
            return
        if all(np.array_equal(before, shift[some]) for _, some, before in self._tile_shifts):
            np.multiply(weights, share[:, None], out=weights)
            return
        for tile, some, before in self._tile_shifts:
            below = exponential(np.minimum(before - shift[some], 0), self.rows.unit)
            np.multiply(tile, (share[some] * below)[:, None], out=tile)


def _overlaps(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _range(flags: Iterator[bool]) -> slice:
    """Return the slice from the first true flag to the last one."""
    places = [place for place, flag in enumerate(flags) if flag]
    return slice(places[0], places[-1] + 1) if places else slice(0, 0)


def _aligned(span: Span) -> Span:
    """Return the part of a span that begins and ends at multiples of 64: BLAS works in such."""
    return -(-span[0] // 64) * 64, span[1] // 64 * 64
