"""Sums of 16 bits: how a kernel holds from block to block of keys what it has added up."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import tops, tops_so_far
from attncli.referee.convention import Convention
from attncli.referee.replacing import replace
from attncli.referee.rounding import IN_LOOPS, PRECISIONS

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["SHORT_SUMS"]

Array = npt.NDArray[Any]
# Longer sums that are rounded after each key take longer than all else together.
_MOST_ROUNDINGS = 2**12


class _Holding(NamedTuple):
    """How sums are held.

    Attributes
    ----------
    fmt : str
        float16 or bfloat16.
    block : int
        They are rounded after so many keys; 0: after each, beside the largest score of the row.
    denominator : bool
        So is the denominator, not the sum of the values alone.
    rescaled : bool
        They are rounded also where they are rescaled, before anything is added.
    """

    fmt: str
    block: int
    denominator: bool = False
    rescaled: bool = False

    @property
    def name(self) -> str:
        """The name of the convention."""
        what = "sums" if self.denominator else "accumulator"
        end = f"_of_{self.block}" if self.block else ""
        return f"{'rescaled_' * self.rescaled}{what}_in_{self.fmt}{end}"

    @property
    def meaning(self) -> str:
        """What is rounded, and when."""
        what = "the sum of the values"
        what += " and the denominator are" if self.denominator else " is"
        if not self.block:
            return (
                f"{what} rounded to {self.fmt} after each key, beside the largest score of the row"
            )
        each = "key" if self.block == 1 else f"block of {self.block} keys"
        also = ", and before it where rescaled" if self.rescaled else ""
        return f"{what} rounded to {self.fmt} after each {each}{also}"

    @property
    def simpler(self) -> tuple[str, ...]:
        """The names of those that round less."""
        less = product(*({False, one} for one in (self.denominator, self.rescaled)))
        names = (self._replace(denominator=d, rescaled=r).name for d, r in less)
        return tuple(name for name in names if name != self.name)


def _held(holding: _Holding, weights: Array, value: Array, *, short: bool = False) -> Array:
    """Return the sum of weight · value, with every rounding of exp(score − maximum) · value.

    Parameters
    ----------
    holding : _Holding
    weights : ndarray (B, H, L, S)
    value : ndarray (B or 1, H or 1, S, E)
    short : bool
        The exponentials are rounded before they meet the values, too.
    """
    size, rounded = holding.block or 1, IN_LOOPS[holding.fmt]
    top = tops_so_far(weights, size) if holding.block else tops(weights)
    powers = (weights / top).astype(np.float32)
    if short:
        powers = rounded(powers)
    blocks = _in_blocks(powers, size, axis=3), _in_blocks(value.astype(np.float32), size, axis=2)
    added = blocks[0] @ blocks[1]
    held = np.zeros(added.shape[1:], np.float32)
    for more, factor in zip(added, _factors(top[..., ::size], len(added)), strict=True):
        held = held * factor
        if holding.rescaled:
            held = rounded(held)
        held = rounded(held + more)
    return np.asarray(held * top[..., -1:])


def _factors(tops_then: Array, count: int) -> Array:
    """Return exp(old maximum − new maximum) of so many blocks, (count, B, H, L, 1)."""
    rows = np.moveaxis(np.broadcast_to(tops_then, (*tops_then.shape[:-1], count)), -1, 0)
    before = np.concatenate([rows[:1], rows[:-1]])
    return np.asarray((before / rows)[..., None].astype(np.float32))


def _in_blocks(array: Array, size: int, axis: int) -> Array:
    """Return blocks of keys one after the other, the last one filled with zeros."""
    keys = array.shape[axis]
    ends = [(0, -keys % size if place == axis else 0) for place in range(array.ndim)]
    whole = np.pad(array, ends)
    shape = (*whole.shape[:axis], -1, size, *whole.shape[axis + 1 :])
    return np.moveaxis(whole.reshape(shape), axis, 0)


def _holding(holding: _Holding, recipe: Recipe) -> Recipe | None:
    problem, (*_, keys) = recipe.problem, recipe.problem.shape
    if problem.value is None or not _is_tried(holding, recipe.largest, keys):
        return None
    if holding.denominator and problem.sinks is not None:
        return None
    # Tensor cores take both factors in one format; a loop over the keys multiplies in float32.
    short = holding.block > 1 and PRECISIONS[holding.fmt].holds(problem.value)
    changed = replace(recipe, mix=partial(_held, holding, short=short), codes=True)
    if not holding.denominator:
        return changed
    inner, ones = recipe.softmax, np.ones((1, 1, keys, 1))

    def softmax(own: Recipe, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(own, scores)
        total = _held(holding, weights, ones)
        # A row that sees no key has none.
        total = np.where(total == 0, 1, total)
        return weights / total, lse + np.log(total[..., 0])

    return replace(changed, softmax=softmax)


def _is_tried(holding: _Holding, largest: float, keys: int) -> bool:
    """Return whether files may hold such sums, and keys be so many."""
    wide = largest >= PRECISIONS["float32"].largest
    if not (wide or largest == PRECISIONS[holding.fmt].largest):
        return False
    if holding.block > 1:  # of sizes that hold all keys, the smallest
        return bool(keys > holding.block // 2)
    # In 16 bits, sums beside the largest score of the row are the same where products are rounded.
    return bool(1 < keys <= _MOST_ROUNDINGS) and (wide or holding.block == 1)


_HOLDINGS = tuple(
    _Holding(fmt, block, denominator, rescaled)
    for fmt, block, denominator, rescaled in product(
        IN_LOOPS, (0, 1, 16, 32, 64, 128), (False, True), (False, True)
    )
    # Beside the largest score of the row nothing is rescaled.
    if block or not rescaled
)

SHORT_SUMS = tuple(
    Convention(
        name=holding.name,
        topic=topics.SHORT_SUMS,
        meaning=holding.meaning,
        fix="keep what is added up in float32, and round the quotient once",
        shows="more keys than are added up at once",
        apply=partial(_holding, holding),
        variant_of=holding.simpler,
    )
    for holding in _HOLDINGS
)
