"""One way over the keys of a block, tile by tile, from the scores to the sums of the softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.sums import Sums, exponential
from attncli.engine.tile import Rows, fill, hide

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
    results : dict of str to ndarray
        The rows' own part of each output asked for.
    scratch : Scratch
    value_factor : float
        Multiplies the values.
    """

    def __init__(
        self,
        rows: Rows,
        results: dict[str, Array],
        scratch: Scratch,
        *,
        value_factor: float = 1.0,
    ) -> None:
        self.rows = rows
        self.weights = results.get("weights")
        self._value_factor = value_factor
        self._wants_context = "context" in results
        self._scratch = scratch
        # The shift under which each tile of the weights was exponentiated.
        self._tile_shifts: list[tuple[Span, Array]] = []

    def over(self, span: Span) -> Sums:
        """Return the sums over a span of keys."""
        sums: Sums | None = None
        for columns in tiles(span, self._scratch.tile_columns):
            self._scratch.pause()
            tile = self._place(columns)
            fill(self.rows, columns, tile)
            if self.rows.shifted:
                sums = self._shifted(sums, tile, columns)
            exponential(tile, self.rows.unit, out=tile)
            if self.rows.hides_late:
                hide(self.rows, columns, tile, 0)
            denominator = tile @ self._scratch.ones(columns[1] - columns[0])
            if sums is None:
                sums = self._nothing()
            sums.add(denominator, self._weighted(tile, columns))
        if self.weights is not None:
            self.weights[:, : span[0]] = 0
            self.weights[:, span[1] :] = 0
        return self._over_none() if sums is None else sums

    def _shifted(self, sums: Sums | None, tile: Array, columns: Span) -> Sums:
        sums = self._nothing() if sums is None else sums
        sums.shift_tile(tile)
        if self.weights is not None:
            self._tile_shifts.append((columns, sums.shift))
        return sums

    def _nothing(self) -> Sums:
        return Sums(len(self.rows.query), self.rows.query.dtype, self.rows.unit, self._value_factor)

    def _over_none(self) -> Sums:
        sums = self._nothing()
        if self._wants_context:
            sums.add(sums.denominator, self._weighted(np.zeros((len(self.rows.query), 0)), (0, 0)))
        return sums

    def _place(self, columns: Span) -> Array:
        if self.weights is not None:
            return self.weights[:, slice(*columns)]
        # Column-major: BLAS multiplies faster, and NumPy finds the maxima of rows faster.
        return self._scratch.buffer("tile", columns[1] - columns[0], len(self.rows.query)).T

    def _weighted(self, tile: Array, columns: Span) -> Array | None:
        if not self._wants_context:
            return None
        values = self.rows.operands.value_rows(self.rows.batch, self.rows.head, *columns)
        if self._value_factor != 1.0:
            values = np.multiply(values, self._value_factor, dtype=values.dtype)
        context: Array = np.matmul(tile, values)
        return context

    def normalise(self, weights: Array, share: Array, shift: Array) -> None:
        """Multiply each row by its share, and bring every tile to the final shift."""
        if all(before is shift for _, before in self._tile_shifts):
            np.multiply(weights, share[:, None], out=weights)
            return
        for columns, before in self._tile_shifts:
            part = weights[:, slice(*columns)]
            factor = share * exponential(np.minimum(before - shift, 0), self.rows.unit)
            np.multiply(part, factor[:, None], out=part)
