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
        self._tile_shifts: list[tuple[Span, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        rows, sums, scratch = self.rows, self._sums, self._scratch
        silenced = self._silenced(span)
        for columns in tiles(span, scratch.tile_columns):
            scratch.pause()
            tile = self._place(columns)
            fill(rows, columns, tile)
            if rows.shifted:
                sums.shift_tile(tile)
                if self.weights is not None:
                    self._tile_shifts.append((columns, sums.shift))
            exponential(tile, rows.unit, tile)
            if any(start < columns[1] and columns[0] < stop for start, stop in silenced):
                silence(rows, columns, tile, scratch)
            sums.add(tile, scratch.ones(columns[1] - columns[0]), self._cut(columns))
        if self.weights is not None:
            self.weights[:, : span[0]] = 0
            self.weights[:, span[1] :] = 0
        return sums.close()

    def _silenced(self, span: Span) -> list[Span]:
        """Return the columns of a span where some keys have to be silenced."""
        rows = self.rows
        visible = rows.operands.problem.visible
        if not (rows.hides_late and visible.hides):
            return []
        return visible.edges(rows.batch, (rows.start, rows.stop), span)

    def _place(self, columns: Span) -> Array:
        if self.weights is not None:
            return self.weights[:, columns[0] : columns[1]]
        # Column-major: BLAS multiplies faster, and NumPy finds the maxima of rows faster.
        width = columns[1] - columns[0]
        return self._scratch.buffer("tile", len(self.rows.query), width, "F")

    def _cut(self, columns: Span) -> Array | None:
        """Return the values of some columns."""
        if self._values is None:
            return None
        values = widen(self._values[columns[0] : columns[1]], self.rows.query.dtype)
        factor = self._sums.value_factor
        return values if factor == 1.0 else np.multiply(values, factor, dtype=values.dtype)

    def normalise(self, weights: Array, share: Array, shift: Array) -> None:
        """Multiply each row by its share, and bring every tile to the final shift."""
        if all(before is shift for _, before in self._tile_shifts):
            np.multiply(weights, share[:, None], out=weights)
            return
        for columns, before in self._tile_shifts:
            part = weights[:, slice(*columns)]
            factor = share * exponential(np.minimum(before - shift, 0), self.rows.unit)
            np.multiply(part, factor[:, None], out=part)
