"""The running state of a softmax: a shift, the sum of exponentials and the weighted sum.

A softmax can be computed tile by tile without ever holding a row of scores (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax"; Rabe and Staats 2021,
"Self-attention Does Not Need O(n²) Memory"). Every shift gives the same result, so it need
not be the running maximum: it is only raised when a score exceeds it by more than the
exponential and the sums can bear.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.calls import carry_out
from attncli.engine.exponentials import TooHighError, exponential_of, score_ceiling
from attncli.engine.panels import add_up, allocate, row_max, sum_in_chunks
from attncli.engine.rules import factors_with_sinks
from attncli.numerics.dtypes import widen
from attncli.numerics.finite import all_finite, within_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.engine.calls import Call
    from attncli.engine.panels import TileLayout
    from attncli.engine.scratch import Scratch

__all__ = ["REDUCTION", "Sums", "merge", "outweighs_flushed"]

Array = npt.NDArray[Any]
# Keys that one product adds up in sequence.
_PIECE = 128
# What values are multiplied by where their weighted sum exceeds the range: times it, sums of any
# number of the largest values are finite, whatever the shift.
REDUCTION = {np.dtype(np.float32): 2.0**-100, np.dtype(np.float64): 2.0**-500}
# Logarithms of factors that are far above the smallest number.
_SMALLEST_FACTOR = {np.dtype(np.float32): -80.0, np.dtype(np.float64): -700.0}
_LEAST_SUM = {np.dtype(np.float32): 1e-12, np.dtype(np.float64): 1e-250}


def outweighs_flushed(denominators: Array) -> bool:
    """Return whether exponentials flushed to 0, or raised, are negligible in these denominators."""
    return bool(denominators.min() > _LEAST_SUM[denominators.dtype])


class Sums:
    """Σ exp(s − shift) and Σ exp(s − shift) v over the keys added so far.

    Parameters
    ----------
    shape : (N, P, R)
        Heads, panels, and queries of each (`attncli.engine.panels`).
    dtype : dtype
    unit : float
        Scores and shift are in 1/unit nats.
    headroom : float
        By how much scores may exceed the shift, in nats, before it is raised.
    layout : TileLayout
        The layout of tiles and context.
    context : ndarray (N, P, E, R), optional
        Receives the weighted sum of the values; need not be initialised.
    value_factor : float
        Multiplies the values.
    sinks : ndarray (N, 1, 1), optional
        Logits, in nats, that count in the denominators only.
    may_be_empty : bool
        Whether some query may see no key.

    Attributes
    ----------
    reduced : ndarray (N, P, E, R), or None
        The context of values times `REDUCTION`, where the context itself exceeds the range of
        its dtype. Weights may still bring it back.
    shift, denominator : ndarray (N, P, R)
        A denominator of 0 means that the query has seen no key; its shift is then arbitrary.
    flushed : bool
        Whether negligible exponentials may have been flushed to 0, or raised.
    empty : bool
        Whether no tile has been asked for yet: the first one sets the sums, others add to them.
    forgot_not_finite : bool
        Whether an infinite or NaN sum of weighted values has been lost in a product with 0. It was
        beyond the range, or a value is not finite, so unread inputs have to be looked at.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        unit: float,
        headroom: float,
        layout: TileLayout,
        context: Array | None = None,
        value_factor: float = 1.0,
        sinks: Array | None = None,
        may_be_empty: bool = False,
    ) -> None:
        self.sinks = sinks
        self.may_be_empty = may_be_empty
        self.unit = unit
        self.headroom = headroom
        self.layout = layout
        self.value_factor = value_factor
        self.shift, self.denominator = np.zeros((2, *shape), dtype)
        self.context = context
        self.reduced: Array | None = None
        self.flushed = False
        self.empty = True
        self.forgot_not_finite = False
        self._have_shift = [False] * shape[1]

    def additions(
        self, tile: Array, values: Array | None, panels: slice, scratch: Scratch
    ) -> Iterator[Call]:
        """Yield the calls that add the sums of a tile of exponentials.

        Parameters
        ----------
        tile : ndarray (N, panels, columns, R)
        values : ndarray (..., columns, E), or None
            From `attncli.engine.panels.by_query_head`, as stored; None where no context is asked
            for.
        panels : slice
            The panels that the tile belongs to.
        scratch : Scratch
        """
        if self.empty:
            self.empty = False
            if tile.shape[1] == self.denominator.shape[1]:
                yield from self.settings(tile, values, panels, scratch)
                return
            yield self._clear, ()
        denominator = self.denominator[:, panels]
        total = scratch.buffer("total", *denominator.shape)
        yield _total(tile, total, scratch)
        yield np.add, (denominator, total, denominator)
        if values is not None and self.context is not None:
            context = self.context[:, panels]
            addend = allocate(partial(scratch.buffer, "addend"), context.shape, self.layout)
            yield from self._weighted(tile, values, addend, scratch)
            yield np.add, (context, addend, context)

    def settings(
        self, tile: Array, values: Array | None, panels: slice, scratch: Scratch
    ) -> Iterator[Call]:
        """Yield the calls that set the sums of some panels to those of their first tile.

        Parameters are those of `additions`.
        """
        yield _total(tile, self.denominator[:, panels], scratch)
        if values is not None and self.context is not None:
            yield from self._weighted(tile, values, self.context[:, panels], scratch)

    def _weighted(self, tile: Array, values: Array, out: Array, scratch: Scratch) -> Iterator[Call]:
        """Yield the calls that write the sums of weighted values."""
        if values.dtype != tile.dtype or self.value_factor != 1.0:
            yield self._convert_and_weigh, (tile, values, out, scratch)
        else:
            yield from sum_in_chunks(values, tile, out, self.layout.chunk, scratch)

    def _convert_and_weigh(self, tile: Array, values: Array, out: Array, scratch: Scratch) -> None:
        values = widen(values, tile.dtype)
        if self.value_factor != 1.0:
            values = np.multiply(values, self.value_factor, dtype=values.dtype)
        carry_out(sum_in_chunks(values, tile, out, self.layout.chunk, scratch))

    def reciprocal(self, panels: slice = slice(None)) -> Array:
        """Return 1 / denominator, sink included, which turns exponentials into weights.

        Returns
        -------
        ndarray (N, panels, R)
            0 where a query sees no key.
        """
        seen = total = self.denominator[:, panels]
        if self.sinks is not None:
            above = self._above_shift(self.sinks, panels)
            total = total + exponential_of(self.unit)(above)
        reciprocal: Array = 1 / total
        if self.may_be_empty:
            reciprocal[seen == 0] = 0
        return reciprocal

    def divide(self) -> Array:
        """Divide the context by its denominators, sink included, in place.

        Returns
        -------
        ndarray (N, P, E, R)
            The context.
        """
        context = np.asarray(self.context)
        factors = self._factors()
        for factor in factors:
            np.multiply(context, factor[:, :, None], context)
        if self.reduced is not None:
            beyond = ~np.isfinite(context)
            wide = (np.broadcast_to(factor[:, :, None], context.shape) for factor in factors)
            exact = _product(
                self.reduced[beyond],
                np.asarray(1 / REDUCTION[context.dtype], context.dtype),
                *(factor[beyond] for factor in wide),
            )
            context[beyond] = within_range(exact)
        return context

    def _factors(self) -> list[Array]:
        """Return what turns sums into means: two factors where one would be too small."""
        if self.sinks is None:
            return [self.reciprocal()]
        above = self._above_shift(self.sinks, slice(None)) / self.unit
        if not above.max() > score_ceiling(above.dtype):
            return [self.reciprocal()]
        return [*factors_with_sinks(self.denominator, above)]

    def _above_shift(self, sinks: Array, panels: slice) -> Array:
        """Return by how much the sinks (N, 1, 1) are above the shift, in 1/unit nats."""
        above: Array = (sinks * self.unit).astype(self.shift.dtype) - self.shift[:, panels]
        return above

    def normalise(self, tile: Array, panels: slice, out: Array) -> None:
        """Write the weights of some panels, whose exponentials are a tile."""
        np.multiply(tile, self.reciprocal(panels)[:, :, None], out=out)

    def close(self) -> None:
        """Set the context to 0 if no tile was added."""
        if self.empty:
            self._clear()

    def _clear(self) -> None:
        if self.context is not None:
            self.context[...] = 0

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

    def shift_tile(self, tile: Array, panels: slice, *, first: bool) -> None:
        """Subtract the shift from a tile, after raising it where the tile is too high for it.

        Parameters
        ----------
        tile : ndarray (N, panels, columns, R)
            In nats, as all scores that are shifted.
        panels : slice
        first : bool
            Whether no tile of these panels has been added before.
        """
        top = row_max(tile)
        shift = self.shift[:, panels]
        seeing = self.denominator[:, panels] > 0
        if not (all(self._have_shift[panels]) and (top - shift).max() <= self.headroom):
            # The shift of a query that has seen no key is arbitrary, so it may also be lowered.
            raised = np.maximum(shift, top, out=top, where=seeing)
            self._have_shift[panels] = (raised.min(axis=(0, 2)) > -np.inf).tolist()
            raised[raised == -np.inf] = 0
            if not first:
                for factor in _exponentials(np.where(seeing, shift - raised, 0)):
                    self._rescale(factor, panels)
            shift[...] = raised
        np.subtract(tile, shift[:, :, None], out=tile)

    def raise_if_too_high(self, panels: slice) -> None:
        """Raise if some scores were too high to be exponentiated without a shift.

        Raises
        ------
        TooHighError
        """
        # The denominator is NaN where a hidden exponential overflowed: inf · 0.
        if not self.denominator[:, panels].max() <= math.exp(score_ceiling(self.denominator.dtype)):
            raise TooHighError

    def _rescale(self, factor: Array, panels: slice) -> None:
        self.denominator[:, panels] *= factor
        if self.context is not None:
            self.forgot_not_finite |= _scale(self.context[:, panels], factor)


def _total(tile: Array, out: Array, scratch: Scratch) -> Call:
    """Return the call that writes the sum over the keys of a tile, (N, panels, R).

    A product with ones is the fastest way.
    """
    keys = tile.shape[2]
    if keys <= _PIECE:
        return np.matmul, (scratch.ones(keys), tile, out)
    return _sum_in_pieces, (tile, out, scratch)


def _sum_in_pieces(tile: Array, out: Array, scratch: Scratch) -> None:
    """Write the sum over the keys of a tile.

    BLAS adds one key after the other, so rounding errors of one sign grow with their number.
    """
    keys = tile.shape[2]
    pieces = keys // _PIECE
    whole = pieces * _PIECE
    cut = tile[:, :, :whole].reshape(*tile.shape[:2], pieces, _PIECE, tile.shape[3])
    add_up(np.matmul(scratch.ones(_PIECE), cut), out)
    if whole < keys:
        out += np.matmul(scratch.ones(keys - whole), tile[:, :, whole:])


def merge(parts: Sequence[Sums]) -> Sums:
    """Return the sums over the keys of all parts, added up in the order of the parts."""
    shifts = [np.where(part.denominator > 0, part.shift / part.unit, -np.inf) for part in parts]
    highest = np.max(shifts, axis=0)
    highest[highest == -np.inf] = 0
    first = parts[0]
    whole = Sums(
        highest.shape,
        highest.dtype,
        unit=1.0,
        headroom=first.headroom,
        layout=first.layout,
        sinks=first.sinks,
        may_be_empty=first.may_be_empty,
    )
    whole.shift = highest
    shares = [_exponentials(shift - highest) for shift in shifts]
    for part, factors in zip(parts, shares, strict=True):
        whole.denominator = whole.denominator + math.prod(factors, start=part.denominator)
    contexts = [part.context for part in parts if part.context is not None]
    if contexts:
        whole.context = _weighted_sum(contexts, shares)
        if not all_finite(whole.context):
            whole.reduced = _weighted_sum([_reduced(part) for part in parts], shares)
    return whole


def _weighted_sum(contexts: Sequence[Array], shares: Sequence[Sequence[Array]]) -> Array:
    """Return the sum of contexts (N, P, E, R), times the shares (N, P, R) of their parts."""
    total = np.zeros_like(contexts[0])
    for context, factors in zip(contexts, shares, strict=True):
        addend = context.copy()
        for factor in factors:
            _scale(addend, factor)
        total += addend
    return total


def _exponentials(logarithms: Array) -> list[Array]:
    """Return factors whose product is exp of numbers up to 0: one, or two where it is too small.

    What is multiplied with it may be so large that the product is not small.
    """
    least = _SMALLEST_FACTOR[logarithms.dtype]
    if logarithms.min(initial=0, where=logarithms > -np.inf) >= least:
        return [np.exp(logarithms)]
    first = np.maximum(logarithms, least)
    with np.errstate(invalid="ignore"):
        return [np.exp(first), np.exp(logarithms - first)]


def _scale(context: Array, factor: Array) -> bool:
    """Multiply a context (N, P, E, R) by factors (N, P, R) in place; 0 times anything is 0.

    Returns
    -------
    bool
        Whether anything that was not finite has become 0.
    """
    context *= factor[:, :, None]
    zero = (factor == 0)[:, :, None]
    if not zero.any():
        return False
    not_finite = bool((np.isnan(context) & zero).any())
    np.copyto(context, 0, where=zero)
    return not_finite


def _product(*factors: Array) -> Array:
    """Return a product that may be of any size on the way to its last factor."""
    mantissas, exponents = zip(*map(np.frexp, factors), strict=True)
    product: Array = np.ldexp(math.prod(mantissas[1:], start=mantissas[0]), sum(exponents))
    return product


def _reduced(part: Sums) -> Array:
    """Return the context of values times `REDUCTION`."""
    if part.reduced is not None:
        return part.reduced
    context = np.asarray(part.context)
    reduced: Array = np.multiply(context, REDUCTION[context.dtype], dtype=context.dtype)
    return reduced
