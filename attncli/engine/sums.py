"""The softmax as far as it has come: a shift, the sum of exponentials, the weighted sum.

A softmax can run along with the tiles and never hold a row of scores (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe and Staats 2021,
"Self-attention Does Not Need O(n²) Memory"). Subtracting the same shift from all
scores of a row changes nothing but the size of the numbers, so it need not be the
maximum: it is raised only when some score exceeds it by more than the exponential
and the sums can bear.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import highest, is_turned, lying, sum_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.engine.panels import Grain
    from attncli.engine.scratch import Scratch
    from attncli.engine.tile import Rows

__all__ = [
    "Sums",
    "TooHighError",
    "exponential",
    "exponentiate_felt",
    "exponentiate_normal",
    "is_felt",
    "merge",
    "room",
]

Array = npt.NDArray[Any]
# exp(±40) is 4e−18 to 2e17: in float32 (1e−38 to 3e38) sums and products with values
# keep 20 orders of magnitude to both ends. `attncli.engine.block` looks at what comes out.
_ROOM = {np.dtype(np.float32): 40.0, np.dtype(np.float64): 300.0}

# Far below what sums feel that are larger than the others, and so far above the least number
# that differences stay normal.
_LEAST = {np.dtype(np.float32): 2.0**-99, np.dtype(np.float64): 2.0**-963}
_LEAST_SUM = {np.dtype(np.float32): 1e-12, np.dtype(np.float64): 1e-250}
# A first tile that comes so near to the room is followed by one that exceeds it.
_NEARLY = 0.8


def room(dtype: np.dtype[Any]) -> float:
    """Return how large a score, in nats, may be when it is exponentiated without a shift."""
    return _ROOM[dtype]


def exponential(scores: Array, unit: float, out: Array | None = None) -> Array:
    """Return exp of scores that are in 1/unit nats."""
    # Single-precision exp2 takes half the time of exp, and is nearer to the truth.
    result: Array = np.exp(scores, out) if unit == 1.0 else np.exp2(scores, out)
    return result


def exponentiate_felt(scores: Array, unit: float, scratch: Scratch) -> None:
    """Exponentiate in place, but to 0 what no sum would feel that has a 1 in it, or `is_felt`.

    Exponentials below 1e−38 take ten times as long as others, and products with them a hundred
    times.
    """
    least = _LEAST[scores.dtype]
    _raise_to(math.log(least) * unit, scores, scratch)
    exponential(scores, unit, scores)
    np.subtract(scores, 2 * least, out=scores)
    _raise_to(0.0, scores, scratch)


def exponentiate_normal(scores: Array, scratch: Scratch) -> None:
    """Exponentiate scores in nats in place, but to 0 what would be less than a normal number."""
    least = 2 * float(np.finfo(scores.dtype).tiny)
    lowest = math.log(least)
    if scores.min() >= lowest:
        np.exp(scores, scores)
        return
    _raise_to(lowest, scores, scratch)
    np.exp(scores, scores)
    # Not by subtraction: the small ones keep all their digits.
    normal = (scores > least * (1 + 1e-4)).astype(scores.dtype)
    np.multiply(scores, normal, out=scores)


def _raise_to(least: float, tile: Array, scratch: Scratch) -> None:
    """Put a number in the place of every lower one of a tile."""
    # np.maximum takes four times as long with a single number as with an array.
    columns, panel = tile.shape[2:]
    bound = scratch.same(least, columns, panel if is_turned(tile) else 1)
    np.maximum(tile, bound, out=tile)


class TooHighError(Exception):
    """A score is too high to be exponentiated without a shift."""


def is_felt(denominators: Array) -> bool:
    """Return whether all are so large that they do not feel what was taken to be 0."""
    return bool(denominators.min() > _LEAST_SUM[denominators.dtype])


class Sums:
    """Σ exp(s − shift) and Σ exp(s − shift) v over the keys so far; at first over none.

    Parameters
    ----------
    shape : (N, P, R)
        Heads, panels, and queries of each (`attncli.engine.panels`).
    dtype : dtype
    unit : float
        Scores and shift are in 1/unit nats.
    grain : Grain
        What tiles and context have.
    context : ndarray (N, P, E, R), optional
        Where to sum up the weighted values, whatever it holds.
    value_factor : float
        The values were multiplied by it.

    Attributes
    ----------
    shift, denominator : ndarray (N, P, R)
        A denominator of 0 says that the query has seen no key; its shift means nothing.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        unit: float,
        grain: Grain,
        context: Array | None = None,
        value_factor: float = 1.0,
    ) -> None:
        self.unit = unit
        self.grain = grain
        self.value_factor = value_factor
        self.shift, self.denominator = np.zeros((2, *shape), dtype)
        self.context = context
        self._empty = True
        self._all_seeing = [False] * shape[1]

    def add(self, tile: Array, values: Array | None, panels: slice, scratch: Scratch) -> None:
        """Add the sums of a tile of exponentials.

        Parameters
        ----------
        tile : ndarray (N, panels, columns, R)
        values : ndarray (G, columns, E), or None where no context is asked for
        panels : slice
            Whose tile it is.
        scratch : Scratch
        """
        if self._empty and tile.shape[1] == self.denominator.shape[1]:
            self._empty = False
            self.put(tile, values, panels, scratch)
            return
        self.close()
        denominator = self.denominator[:, panels]
        denominator += np.matmul(scratch.ones(tile.shape[2]), tile)
        if values is not None and self.context is not None:
            context = self.context[:, panels]
            room = lying(partial(scratch.buffer, "addend"), context.shape, self.grain)
            context += sum_up(values, tile, room, self.grain, scratch)

    def put(self, tile: Array, values: Array | None, panels: slice, scratch: Scratch) -> None:
        """Write the sums of a tile, as in `add`, that is the first of its panels."""
        # A product with ones is the quickest sum over keys.
        np.matmul(scratch.ones(tile.shape[2]), tile, self.denominator[:, panels])
        if values is not None and self.context is not None:
            sum_up(values, tile, self.context[:, panels], self.grain, scratch)

    def share(self, rows: Rows, panels: slice = slice(None)) -> Array:
        """Return what exponentials and sums have to be multiplied with: 1 over the denominator.

        Returns
        -------
        ndarray (N, panels, R)
            0 where a query sees no key.
        """
        seen = total = self.denominator[:, panels]
        if rows.sink is not None:
            above = total.dtype.type(rows.sink * self.unit) - self.shift[:, panels]
            total = total + exponential(above, self.unit)
        share: Array = 1 / total
        if rows.may_be_blind:
            share[seen == 0] = 0
        return share

    def close(self) -> None:
        """Say that the sums are 0 where no tile was added."""
        if self._empty and self.context is not None:
            self.context[...] = 0
        self._empty = False

    def as_one_head(self) -> Sums:
        """Return these sums with the panels of all heads as those of one."""
        context, panel = self.context, self.denominator.shape[2]
        if context is not None:
            context = context.reshape(1, -1, *context.shape[2:])
        one = copy.copy(self)
        one.context = context
        one.shift, one.denominator = (
            array.reshape(1, -1, panel) for array in (self.shift, self.denominator)
        )
        return one

    def shift_tile(self, tile: Array, panels: slice) -> None:
        """Subtract the shift from a tile; where it no longer will do, raise it first."""
        top = highest(tile)
        shift = self.shift[:, panels]
        seeing = self.denominator[:, panels] > 0
        if not (all(self._all_seeing[panels]) and self._will_do(top - shift)):
            # A query that has seen nothing takes any shift, a lower one too.
            raised = np.maximum(shift, top, out=top, where=seeing)
            self._all_seeing[panels] = (raised.min(axis=(0, 2)) > -np.inf).tolist()
            raised[raised == -np.inf] = 0
            if not self._empty:
                self._bring_down(
                    np.where(seeing, exponential(shift - raised, self.unit), 1), panels
                )
            shift[...] = raised
        np.subtract(tile, shift[:, :, None], out=tile)

    def exponentiate_watched(self, tile: Array, scratch: Scratch) -> None:
        """Exponentiate a tile in place without a shift, if no score is too high for it.

        Raises
        ------
        TooHighError
            One is; or, in the first tile, so nearly that one of the others will be.
        """
        most = room(tile.dtype) * self.unit
        if not tile.max() <= (_NEARLY * most if self._empty else most):
            raise TooHighError
        if tile.min() < math.log(_LEAST[tile.dtype]) * self.unit:
            exponentiate_felt(tile, self.unit, scratch)
        else:
            exponential(tile, self.unit, tile)

    def _will_do(self, above: Array) -> bool:
        """Return whether scores so far above the shift may be exponentiated and summed up."""
        # Values that had to be made smaller leave no room.
        most = room(above.dtype) if self.value_factor == 1.0 else 0.0
        return bool(above.max() <= most * self.unit)

    def _bring_down(self, factor: Array, panels: slice) -> None:
        self.denominator[:, panels] *= factor
        if self.context is not None:
            self.context[:, panels] *= factor[:, :, None]


def merge(parts: Sequence[Sums]) -> Sums:
    """Return the sums over the keys of all parts, added up in their order."""
    shifts = [np.where(part.denominator > 0, part.shift / part.unit, -np.inf) for part in parts]
    highest = np.maximum.reduce(shifts)
    highest[highest == -np.inf] = 0
    # So the sum of all is no larger than the largest part.
    factor = min(part.value_factor for part in parts) * 2.0 ** -math.ceil(math.log2(len(parts)))
    whole = Sums(highest.shape, highest.dtype, 1.0, parts[0].grain, value_factor=factor)
    whole.shift = highest
    for part, shift in zip(parts, shifts, strict=True):
        share = np.exp(shift - highest)
        whole.denominator = whole.denominator + share * part.denominator
        if part.context is not None:
            context = part.context * (share * (factor / part.value_factor))[:, :, None]
            whole.context = context if whole.context is None else whole.context + context
    return whole
