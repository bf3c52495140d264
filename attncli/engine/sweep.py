"""One way over the keys of a block, tile by tile, from the scores to the sums of the softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
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
    weights : ndarray (rows, S), or None
        Where the weights go, if they are asked for.
    context : ndarray (rows, E), or None
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
        self.weights = weights
        self._scratch = scratch
        count, dtype = rows.query.shape[0], rows.query.dtype
        self._values = addend = None
        if context is not None:
            self._values = rows.operands.values(rows.batch, rows.head)
            addend = scratch.buffer("addend", *context.shape)
        self._sums = Sums(count, dtype, rows.unit, context, addend, value_factor)
        # The shift under which each tile of the weights was exponentiated.
        self._tile_shifts: list[tuple[Array, slice, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        if self.rows.cuts_in_strips:
            self._over_strips(span)
        else:
            self._over_tiles(self.rows, self._sums, span)
            self._close(self.rows, self._sums, span)
        return self._sums

    def _over_strips(self, span: Span) -> None:
        """Take what every query sees at once, and the rest in strips of a few queries.

        So little is computed that no query sees.
        """
        rows = self.rows
        visible = rows.operands.problem.visible
        core = _aligned(visible.core(rows.batch, (rows.start, rows.stop), span))
        self._over_tiles(rows, self._sums, core)
        for strip in rows.strips(_STRIP_ROWS):
            first, last = visible.span(rows.batch, strip.start, strip.stop)
            first, last = max(first, span[0]), min(last, span[1])
            sums = self._sums.of_rows(strip.start - rows.start, strip.stop - rows.start)
            some = core[0] < core[1]
            for piece in ((first, core[0]), (core[1], last)) if some else ((first, last),):
                self._over_tiles(strip, sums, piece)
            self._close(strip, sums, (first, last))

    def _over_tiles(self, rows: Rows, sums: Sums, span: Span) -> None:
        scratch = self._scratch
        silenced = _silenced(rows, span)
        for columns in tiles(span, scratch.tile_columns):
            scratch.pause()
            tile = self._place(rows, columns)
            fill(rows, columns, tile)
            if rows.shifted:
                sums.shift_tile(tile)
                if self.weights is not None:
                    self._tile_shifts.append((tile, self._own(rows), sums.shift.copy()))
            exponential(tile, rows.unit, tile)
            if any(start < columns[1] and columns[0] < stop for start, stop in silenced):
                silence(rows, columns, tile, scratch)
            sums.add(tile, scratch.ones(columns[1] - columns[0]), self._cut(columns))

    def _close(self, rows: Rows, sums: Sums, span: Span) -> None:
        """Say that rows have seen all keys of a span: the others have no weight."""
        sums.close()
        if self.weights is not None:
            weights = self.weights[self._own(rows)]
            weights[:, : span[0]] = 0
            weights[:, span[1] :] = 0

    def _own(self, rows: Rows) -> slice:
        return slice(rows.start - self.rows.start, rows.stop - self.rows.start)

    def _place(self, rows: Rows, columns: Span) -> Array:
        if self.weights is not None:
            return self.weights[self._own(rows), columns[0] : columns[1]]
        # Column-major: BLAS multiplies faster, and NumPy finds the maxima of rows faster.
        return self._scratch.buffer("tile", len(rows.query), columns[1] - columns[0], "F")

    def _cut(self, columns: Span) -> Array | None:
        """Return the values of some columns."""
        if self._values is None:
            return None
        values = widen(self._values[columns[0] : columns[1]], self.rows.query.dtype)
        factor = self._sums.value_factor
        return values if factor == 1.0 else np.multiply(values, factor, dtype=values.dtype)

    def normalise(self, weights: Array, share: Array, shift: Array) -> None:
        """Multiply each row by its share, and bring every tile to the final shift."""
        if all(np.array_equal(before, shift[rows]) for _, rows, before in self._tile_shifts):
            np.multiply(weights, share[:, None], out=weights)
            return
        for tile, rows, before in self._tile_shifts:
            below = exponential(np.minimum(before - shift[rows], 0), self.rows.unit)
            np.multiply(tile, (share[rows] * below)[:, None], out=tile)


def _silenced(rows: Rows, span: Span) -> list[Span]:
    """Return the columns of a span where some keys have to be silenced."""
    visible = rows.operands.problem.visible
    if not (rows.hides_late and visible.hides) or span[0] >= span[1]:
        return []
    return visible.edges(rows.batch, (rows.start, rows.stop), span)


def _aligned(span: Span) -> Span:
    """Return the part of a span that begins and ends at multiples of 64: BLAS works in such."""
    return -(-span[0] // 64) * 64, span[1] // 64 * 64
