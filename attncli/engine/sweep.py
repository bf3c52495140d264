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
# Measured (tests/bench/README.md).
_STRIP_ROWS = 256


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
        self._values = None
        if context is not None:
            self._values = rows.operands.values(rows.batch, rows.head)
        sizes, dtype = (count, panel), rows.query.dtype
        self._sums = Sums(sizes, dtype, rows.unit, context, value_factor)
        # The shift under which each tile of the weights was exponentiated.
        self._tile_shifts: list[tuple[Array, slice, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        if self.rows.skips:
            self._over_strips(span)
        else:
            hides = self.rows.operands.problem.visible.hides
            self._over_tiles(self.rows, slice(0, len(self.rows.query)), span, hides=hides)
            self._blank(slice(None), span)
        self._sums.close()
        return self._sums

    def _over_strips(self, span: Span) -> None:
        """Take what every query sees at once, and the rest in strips of a few queries.

        So little is computed that no query sees.
        """
        rows, visible = self.rows, self.rows.operands.problem.visible
        core = _aligned(visible.core(rows.batch, (rows.start, rows.stop), span))
        count = len(rows.query)
        self._over_tiles(rows, slice(0, count), core, hides=False)
        step = max(1, _STRIP_ROWS // rows.panel)
        for start in range(0, count, step):
            panels = slice(start, min(start + step, count))
            strip = rows.part(panels)
            first, last = visible.span(rows.batch, strip.start, strip.stop)
            first, last = max(first, span[0]), min(last, span[1])
            some = core[0] < core[1]
            for piece in ((first, core[0]), (core[1], last)) if some else ((first, last),):
                self._over_tiles(strip, panels, piece, hides=True)
            self._blank(panels, (first, last))

    def _over_tiles(self, rows: Rows, panels: slice, span: Span, *, hides: bool) -> None:
        scratch, sums = self._scratch, self._sums
        silences = hides and rows.hides_late
        for columns in tiles(span, scratch.tile_columns):
            scratch.pause()
            tile = self._place(columns, panels)
            fill(rows, columns, tile)
            if rows.shifted:
                sums.shift_tile(tile, panels)
                if self.weights is not None:
                    self._tile_shifts.append((tile, panels, sums.shift[panels].copy()))
            exponential(tile, rows.unit, tile)
            if silences:
                silence(rows, columns, tile, scratch)
            sums.add(tile, self._cut(columns), panels, rows.widest, scratch)

    def _blank(self, panels: slice, span: Span) -> None:
        """Write that keys outside a span have no weight."""
        if self.weights is not None:
            self.weights[panels, : span[0]] = 0
            self.weights[panels, span[1] :] = 0

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


def _aligned(span: Span) -> Span:
    """Return the part of a span that begins and ends at multiples of 64: BLAS works in such."""
    return -(-span[0] // 64) * 64, span[1] // 64 * 64
