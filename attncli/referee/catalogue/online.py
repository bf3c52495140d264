"""Mistakes of an online softmax, which goes over the keys block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES
from attncli.referee.convention import Apply, Convention
from attncli.referee.stages import over_heads, softmax_over

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["ONLINE"]

Array = npt.NDArray[Any]
Softmax = Callable[["Recipe", Array], tuple[Array, Array]]


class _Running(NamedTuple):
    """What an online softmax knows of each score: all (B, H, L, S), or (…, 1) at the end."""

    own: Array  # the largest score of the block
    then: Array  # the largest score so far
    last: Array  # the largest of all


def _running(scores: Array, block: int) -> _Running:
    starts = np.arange(0, scores.shape[-1], block)
    own = np.maximum.reduceat(scores, starts, axis=-1)
    tops = np.maximum.accumulate(own, axis=-1)
    own, then = (np.repeat(each, block, axis=-1)[..., : scores.shape[-1]] for each in (own, tops))
    return _Running(own, then, tops[..., -1:])


def _online(block: int, *, context: bool, total: bool) -> Apply:
    """Make an `apply` that adds blocks up without rescaling what was added up before.

    Parameters
    ----------
    block : int
    context, total : bool
        What is not rescaled: the sum of the values, the sum of the exponentials.
    """

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        run = _running(scores, block)
        fresh, stale = _exponentials(scores, run.last), _exponentials(scores, run.then)
        sum_ = (stale if total else fresh).sum(-1, keepdims=True) + _sink(recipe, run.last)
        weights = (stale if context else fresh) / np.where(sum_ == 0, 1, sum_)
        lse = np.log(sum_) + run.last if total else softmax_over(recipe, scores)[1][..., None]
        return weights, lse[..., 0]

    return _of_blocks(block, softmax)


def _own_maxima(block: int) -> Apply:
    """Make an `apply` that takes the maximum of each block, not of all so far."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        run = _running(scores, block)
        shares = _exponentials(scores, run.own) * _exponentials(run.then, run.last)
        sum_ = shares.sum(-1, keepdims=True) + _sink(recipe, run.last)
        return shares / np.where(sum_ == 0, 1, sum_), (np.log(sum_) + run.last)[..., 0]

    return _of_blocks(block, softmax)


def _divided_each_time(block: int) -> Apply:
    """Make an `apply` that divides the sum of the values after each block."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        run = _running(scores, block)
        starts = np.arange(0, scores.shape[-1], block)
        tops = run.then[..., starts]
        fresh = _exponentials(scores, run.last)
        sums = np.add.reduceat(fresh, starts, axis=-1).cumsum(-1) + _sink(recipe, run.last)
        # Beside the largest score of all these are smaller than beside that of their time.
        sums = sums * _exponentials(run.last, tops)
        later = np.cumprod(np.where(sums == 0, 1, sums)[..., ::-1], axis=-1)[..., ::-1]
        each = np.repeat(later, block, axis=-1)[..., : scores.shape[-1]]
        return fresh / each, softmax_over(recipe, scores)[1]

    return _of_blocks(block, softmax)


def _last_denominator(block: int) -> Apply:
    """Make an `apply` whose denominator is that of the last block alone."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        run = _running(scores, block)
        fresh = _exponentials(scores, run.last)
        start = (scores.shape[-1] - 1) // block * block
        sum_ = fresh[..., start:].sum(-1, keepdims=True) + _sink(recipe, run.last)
        return fresh / np.where(sum_ == 0, 1, sum_), (np.log(sum_) + run.last)[..., 0]

    return _of_blocks(block, softmax)


def _of_blocks(block: int, softmax: Softmax) -> Apply:
    def apply(recipe: Recipe) -> Recipe | None:
        return replace(recipe, softmax=softmax) if recipe.problem.shape[3] > block else None

    return apply


def _sink(recipe: Recipe, shift: Array) -> Array | float:
    sinks = recipe.problem.sinks
    return 0.0 if sinks is None else _exponentials(over_heads(sinks), shift)


def _exponentials(scores: Array, shift: Array) -> Array:
    powers: Array = np.exp(scores - np.where(np.isneginf(shift), 0, shift))
    return powers


_rescaled = partial(
    Convention,
    topic=topics.ONLINE_SOFTMAX,
    fix="multiply both sums with exp(old maximum − new maximum) before a block is added",
)


def _online_of(size: int) -> tuple[Convention, ...]:
    """Return the mistakes of an online softmax that goes over blocks of a size."""
    block, first = ("key", "key") if size == 1 else (f"block of {size} keys", f"{size} keys")
    raised = f"where a {block} raises the row's maximum"
    shows = (
        f"rows whose largest score is not {'that of' if size == 1 else 'among'} the first {first}"
    )
    return (
        _rescaled(
            f"online_sums_stale_{size}",
            f"{raised}, what was added up before is not rescaled",
            _online(size, context=True, total=True),
            shows=shows,
        ),
        _rescaled(
            f"online_context_stale_{size}",
            f"{raised}, the sum of the values is not rescaled",
            _online(size, context=True, total=False),
            shows=shows,
        ),
        _rescaled(
            f"online_denominator_stale_{size}",
            f"{raised}, the denominator is not rescaled",
            _online(size, context=False, total=True),
            shows=shows,
        ),
        _rescaled(
            f"online_own_maxima_{size}",
            f"each {block} is exponentiated beside its own maximum, not beside the row's so far",
            _own_maxima(size),
            fix="subtract the largest score so far, that of the block included, from its scores",
            shows=f"rows whose largest scores fall from one {block} to another",
        ),
        _rescaled(
            f"online_divided_each_time_{size}",
            f"the sum of the values is divided by the denominator after each {block}",
            _divided_each_time(size),
            fix="divide once, after the last block; or multiply by the old denominator first",
            shows=f"more keys than one {block} has",
        ),
        _rescaled(
            f"online_last_denominator_{size}",
            f"the denominator is that of the last {block} alone",
            _last_denominator(size),
            fix="add the exponentials of all blocks to the denominator",
            shows=f"more keys than one {block} has",
        ),
    )


ONLINE = tuple(convention for size in (1, 4, *SIZES) for convention in _online_of(size))
