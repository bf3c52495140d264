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

from attncli.engine.exponentials import TooHighError, exponential, height
from attncli.engine.panels import highest, lying, sum_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.engine.panels import Grain
    from attncli.engine.scratch import Scratch
    from attncli.engine.tile import Rows

__all__ = ["Sums", "is_felt", "merge"]

Array = npt.NDArray[Any]
# So many keys are added up one after the other, and as many tiles have at most as a rule.
_PIECE = 512
_LEAST_SUM = {np.dtype(np.float32): 1e-12, np.dtype(np.float64): 1e-250}


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
    unfelt : bool
        Whether exponentials may be left out that no denominator feels.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
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
        self.unfelt = False
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
        denominator += _total(tile, scratch)
        if values is not None and self.context is not None:
            context = self.context[:, panels]
            room = lying(partial(scratch.buffer, "addend"), context.shape, self.grain)
            context += sum_up(values, tile, room, self.grain, scratch)

    def put(self, tile: Array, values: Array | None, panels: slice, scratch: Scratch) -> None:
        """Write the sums of a tile, as in `add`, that is the first of its panels."""
        _total(tile, scratch, self.denominator[:, panels])
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

    def refuse_high(self, panels: slice) -> None:
        """Say so if some scores were too high to be exponentiated without a shift.

        Raises
        ------
        TooHighError
        """
        # It is NaN where one overflowed that is hidden.
        if not self.denominator[:, panels].max() <= math.exp(height(self.denominator.dtype)):
            raise TooHighError

    def _will_do(self, above: Array) -> bool:
        """Return whether scores so far above the shift may be exponentiated and summed up."""
        # Values that had to be made smaller leave no room.
        most = height(above.dtype) if self.value_factor == 1.0 else 0.0
        return bool(above.max() <= most * self.unit)

    def _bring_down(self, factor: Array, panels: slice) -> None:
        self.denominator[:, panels] *= factor
        if self.context is not None:
            self.context[:, panels] *= factor[:, :, None]


def _total(tile: Array, scratch: Scratch, out: Array | None = None) -> Array:
    """Return the sum over the keys of a tile, (N, panels, R).

    A product with ones is the quickest. It adds one key after the other, so that errors of one
    sign grow with their number: therefore piece by piece.
    """
    keys = tile.shape[2]
    pieces = keys // _PIECE
    if pieces < 2:
        return np.asarray(np.matmul(scratch.ones(keys), tile, out))
    whole = pieces * _PIECE
    cut = tile[:, :, :whole].reshape(*tile.shape[:2], pieces, _PIECE, tile.shape[3])
    sums = np.matmul(scratch.ones(_PIECE), cut)
    out = np.empty_like(sums[:, :, 0]) if out is None else out
    total = np.add.reduce(sums, axis=2, out=out)
    if whole < keys:
        total += np.matmul(scratch.ones(keys - whole), tile[:, :, whole:])
    return np.asarray(total)


def merge(parts: Sequence[Sums]) -> Sums:
    """Return the sums over the keys of all parts, added up in their order."""
    shifts = [np.where(part.denominator > 0, part.shift / part.unit, -np.inf) for part in parts]
    highest = np.max(shifts, axis=0)
    highest[highest == -np.inf] = 0
    # So the sum of all is no larger than the largest part.
    factor = min(part.value_factor for part in parts) * 2.0 ** -math.ceil(math.log2(len(parts)))
    whole = Sums(highest.shape, highest.dtype, unit=1.0, grain=parts[0].grain, value_factor=factor)
    whole.shift = highest
    for part, shift in zip(parts, shifts, strict=True):
        share = np.exp(shift - highest)
        whole.denominator = whole.denominator + share * part.denominator
        if part.context is not None:
            context = part.context * (share * (factor / part.value_factor))[:, :, None]
            whole.context = context if whole.context is None else whole.context + context
    return whole
