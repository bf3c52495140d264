"""The softmax as far as it has come: a shift, the sum of exponentials, the weighted sum.

A softmax can run along with the tiles and never hold a row of scores (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe and Staats 2021,
"Self-attention Does Not Need O(n²) Memory"). Subtracting the same shift from all
scores of a row changes nothing but the size of the numbers, so it need not be the
maximum: it is raised only when some score exceeds it by more than the exponential
and the sums can bear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.engine.scratch import Scratch

__all__ = ["Sums", "exponential", "merge", "room"]

Array = npt.NDArray[Any]
# exp(±40) is 4e−18 to 2e17: in float32 (1e−38 to 3e38) sums and products with values
# keep 20 orders of magnitude to both ends. `attncli.engine.block` looks at what comes out.
_ROOM = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}


def room(dtype: np.dtype[Any]) -> float:
    """Return how large a score, in nats, may be when it is exponentiated without a shift."""
    return _ROOM[dtype]


def exponential(scores: Array, unit: float, out: Array | None = None) -> Array:
    """Return exp of scores that are in 1/unit nats."""
    # Single-precision exp2 takes half the time of exp, and is nearer to the truth.
    result: Array = np.exp(scores, out) if unit == 1.0 else np.exp2(scores, out)
    return result


class Sums:
    """Σ exp(s − shift) and Σ exp(s − shift) v over the keys so far; at first over none.

    Parameters
    ----------
    shape : (P, R)
        Panels, and queries of each (`attncli.engine.panels`).
    dtype : dtype
    unit : float
        Scores and shift are in 1/unit nats.
    context : ndarray (P, E, R), optional
        Where to sum up the weighted values, whatever it holds.
    value_factor : float
        The values were multiplied by it.

    Attributes
    ----------
    shift, denominator : ndarray (P, R)
        A denominator of 0 says that the query has seen no key; its shift means nothing.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        unit: float,
        context: Array | None = None,
        value_factor: float = 1.0,
    ) -> None:
        self.unit = unit
        self.value_factor = value_factor
        self.shift, self.denominator = np.zeros((2, *shape), dtype)
        self.context = context
        self._empty = True
        self._all_seeing = [False] * shape[0]

    def add(
        self, tile: Array, values: Array | None, panels: slice, widest: int, scratch: Scratch
    ) -> None:
        """Add the sums of a tile of exponentials.

        Parameters
        ----------
        tile : ndarray (panels, columns, R)
        values : ndarray (columns, E), or None where no context is asked for
        panels : slice
            Whose tile it is.
        widest : int
            Columns of the product with values that suit BLAS.
        scratch : Scratch
        """
        # A product with ones is the quickest sum over keys.
        ones = scratch.ones(tile.shape[1])
        if self._empty and len(tile) == len(self.denominator):
            self._empty = False
            np.matmul(ones, tile, self.denominator)
            if values is not None and self.context is not None:
                _weigh(values, tile, widest, scratch, self.context)
            return
        self.close()
        denominator = self.denominator[panels]
        denominator += np.matmul(ones, tile)
        if values is not None and self.context is not None:
            context = self.context[panels]
            room = scratch.buffer("addend", *context.shape)
            context += _weigh(values, tile, widest, scratch, room)

    def close(self) -> None:
        """Say that the sums are 0 where no tile was added."""
        if self._empty and self.context is not None:
            self.context[...] = 0
        self._empty = False

    def shift_tile(self, tile: Array, panels: slice) -> None:
        """Subtract the shift from a tile, and raise it first where it no longer will do."""
        shift = self.shift[panels]
        if not self._empty:
            np.subtract(tile, shift[:, None], out=tile)
            if all(self._all_seeing[panels]) and tile.max() <= room(tile.dtype) * self.unit:
                return
        step = tile.max(axis=1)
        seeing = None if self._empty else self.denominator[panels] > 0
        if seeing is not None:
            # A query that has seen nothing takes any shift, a lower one too.
            np.maximum(step, 0, out=step, where=seeing)
        self._all_seeing[panels] = (step.min(axis=1) > -np.inf).tolist()
        if not all(self._all_seeing[panels]):
            step[step == -np.inf] = 0
        np.subtract(tile, step[:, None], out=tile)
        shift += step
        if seeing is not None:
            self._bring_down(np.where(seeing, exponential(-step, self.unit), 1), panels)

    def _bring_down(self, factor: Array, panels: slice) -> None:
        self.denominator[panels] *= factor
        if self.context is not None:
            self.context[panels] *= factor[:, None]


def _weigh(values: Array, tile: Array, widest: int, scratch: Scratch, out: Array) -> Array:
    """Write the values, weighted by a tile, into ``out`` (panels, E, R)."""
    columns, width = values.shape
    count = pieces(columns, widest)
    if count == 1:
        return np.matmul(values.T, tile, out)
    panels, _, panel = tile.shape
    size = columns // count
    parts = scratch.buffer("parts", panels, count, width, panel)
    own_values = values.reshape(count, size, width).swapaxes(1, 2)
    np.matmul(own_values, tile.reshape(panels, count, size, panel), parts)
    return np.add.reduce(parts, axis=1, out=out)


def merge(parts: Sequence[Sums]) -> Sums:
    """Return the sums over the keys of all parts, added up in their order."""
    shifts = [np.where(part.denominator > 0, part.shift / part.unit, -np.inf) for part in parts]
    highest = np.maximum.reduce(shifts)
    highest[highest == -np.inf] = 0
    factor = min(part.value_factor for part in parts)
    whole = Sums(highest.shape, highest.dtype, 1.0, value_factor=factor)
    whole.shift = highest
    for part, shift in zip(parts, shifts, strict=True):
        share = np.exp(shift - highest)
        whole.denominator = whole.denominator + share * part.denominator
        if part.context is not None:
            context = part.context * (share * (factor / part.value_factor))[:, None]
            whole.context = context if whole.context is None else whole.context + context
    return whole
