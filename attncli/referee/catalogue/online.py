"""Mistakes of an online softmax, which goes over the keys block by block."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES
from attncli.referee.convention import Apply, Convention
from attncli.referee.replacing import replace
from attncli.referee.stages import over_heads, softmax_over

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["ONLINE", "ONLINE_SIZES"]

Array = npt.NDArray[Any]
# Keys that are taken at once: one, or a block.
ONLINE_SIZES = (1, 4, *SIZES)
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


def _added(share: Callable[[Array, _Running], Array], block: int) -> Apply:
    """Make an `apply` whose exponentials are, at the end, what ``share`` makes of the scores."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        run = _running(scores, block)
        shares = share(scores, run)
        sum_ = shares.sum(-1, keepdims=True) + _sink(recipe, run.last)
        return shares / np.where(sum_ == 0, 1, sum_), (np.log(sum_) + run.last)[..., 0]

    return _of_blocks(block, softmax)


def _beside_own(scores: Array, run: _Running) -> Array:
    return _exponentials(scores, run.own) * _exponentials(run.then, run.last)


def _never_rescaled(scores: Array, run: _Running) -> Array:
    return _exponentials(scores, run.own)


def _rescaled_inversely(scores: Array, run: _Running) -> Array:
    return _exponentials(scores, run.then) * _exponentials(run.last, run.then)


def _rescaled_twice(scores: Array, run: _Running) -> Array:
    factors = _exponentials(run.then, run.last)
    return _exponentials(scores, run.then) * factors * factors


def _rescaled_in_base_2(scores: Array, run: _Running) -> Array:
    then, last = run.then * math.log(2), run.last * math.log(2)
    return _exponentials(scores, run.then) * _exponentials(then, last)


def _late(block: int, *, context: bool, total: bool, lost: bool) -> Apply:
    """Make an `apply` that rescales the sums after a block is added, and that block with them.

    Parameters
    ----------
    block : int
    context, total : bool
        So are the sum of the values, and the denominator.
    lost : bool
        The first block is multiplied with exp(−∞ − its maximum), too, which is 0.
    """

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        run = _running(scores, block)
        first = run.then[..., :block]
        before = [np.full_like(first, -np.inf) if lost else first, run.then[..., :-block]]
        factors = _exponentials(np.concatenate(before, axis=-1), run.last)
        fresh = _exponentials(scores, run.last)
        late = _exponentials(scores, run.then) * factors
        shares = late if context else fresh
        sum_ = (late if total else fresh).sum(-1, keepdims=True) + _sink(recipe, run.last)
        with np.errstate(divide="ignore"):  # a row that sees keys of the first block alone
            lse = (np.log(sum_) + run.last)[..., 0]
        return shares / np.where(sum_ == 0, 1, sum_), lse

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


def _last_context(block: int) -> Apply:
    """Make an `apply` whose sum of the values is that of the last block alone."""

    def start(keys: int, size: int = block) -> int:
        return (keys - 1) // size * size

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        weights, lse = softmax_over(recipe, scores)
        keys = scores.shape[-1]
        return np.where(np.arange(keys) >= start(keys), weights, 0), lse

    def apply(recipe: Recipe) -> Recipe | None:
        keys = recipe.problem.shape[3]
        larger = [size for size in ONLINE_SIZES if block < size < keys]
        # Of sizes whose last blocks are the same, the largest is the most likely one.
        if any(start(keys, size) == start(keys) for size in larger):
            return None
        return _of_blocks(block, softmax)(recipe)

    return apply


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


_RESCALE = "multiply both sums with exp(old maximum − new maximum) before a block is added"
_LARGEST = "rows whose largest score is not in the first {block}"
_MORE = "more keys than one {block} has"
# Name, meaning, how it is made, fix, and where it shows.
_MISTAKES: tuple[tuple[str, str, Callable[[int], Apply], str, str], ...] = (
    *(
        (
            f"{name}_stale",
            f"where a {{block}} raises the row's maximum, {what} is not rescaled",
            partial(_online, context=context, total=total),
            _RESCALE,
            _LARGEST,
        )
        for name, what, context, total in (
            ("sums", "what was added up before", True, True),
            ("context", "the sum of the values", True, False),
            ("denominator", "the denominator", False, True),
        )
    ),
    (
        "own_maxima",
        "each {block} is exponentiated beside its own maximum, not beside the row's so far",
        partial(_added, _beside_own),
        "subtract the largest score so far, that of the block included, from its scores",
        "rows whose largest scores fall from one {block} to another",
    ),
    (
        "own_maxima_not_rescaled",
        "each {block} is exponentiated beside its own maximum, and added without being rescaled",
        partial(_added, _never_rescaled),
        _RESCALE,
        "rows whose largest scores differ from one {block} to another",
    ),
    (
        "rescaled_inversely",
        "what was added up before is multiplied with exp(new maximum − old maximum)",
        partial(_added, _rescaled_inversely),
        _RESCALE,
        _LARGEST,
    ),
    (
        "rescaled_twice",
        "what was added up before is rescaled twice where a {block} raises the row's maximum",
        partial(_added, _rescaled_twice),
        _RESCALE,
        _LARGEST,
    ),
    (
        "rescaled_in_base_2",
        "exponentials are of base e, and what was added up before is rescaled in base 2",
        partial(_added, _rescaled_in_base_2),
        "use exp for both; or exp2 for both, and multiply the scale by log2(e)",
        _LARGEST,
    ),
    *(
        (
            f"{name}_rescaled_late{end}",
            f"{what} rescaled after a {{block}} is added, not before{words}",
            partial(_late, context=context, total=total, lost=lost),
            _RESCALE,
            _LARGEST,
        )
        for name, what, context, total in (
            ("sums", "the sums are", True, True),
            ("context", "the sum of the values, not the denominator, is", True, False),
            ("denominator", "the denominator, not the sum of the values, is", False, True),
        )
        for end, words, lost in (
            ("", "; the first one is then lost", True),
            ("_from_second", ", from the second one on", False),
        )
    ),
    (
        "divided_each_time",
        "the sum of the values is divided by the denominator after each {block}",
        _divided_each_time,
        "divide once, after the last block; or multiply by the old denominator first",
        _MORE,
    ),
    (
        "last_denominator",
        "the denominator is that of the last {block} alone",
        _last_denominator,
        "add the exponentials of all blocks to the denominator",
        _MORE,
    ),
    (
        "last_context",
        "the sum of the values is that of the last {block} alone, the denominator that of all",
        _last_context,
        "add the values of each block to what was added up before: acc = acc · alpha + p · V",
        _MORE,
    ),
)

ONLINE = tuple(
    Convention(
        f"online_{name}_{size}",
        meaning.format(block=block),
        make(size),
        topic=topics.ONLINE_SOFTMAX,
        fix=fix,
        shows=shows.format(block=block),
    )
    for size in ONLINE_SIZES
    for block in ("key" if size == 1 else f"block of {size} keys",)
    for name, meaning, make, fix, shows in _MISTAKES
    # A single key beside itself has the exponential 1, whatever its score; and where scores rise
    # from each key to the next, to rescale twice comes to twice the scale.
    if size > 1 or name not in ("own_maxima_not_rescaled", "rescaled_twice")
)
