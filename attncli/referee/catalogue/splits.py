"""Mistakes of kernels that cut the keys into parts, and put the parts' results together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES
from attncli.referee.convention import Apply, Convention
from attncli.referee.options import stated, with_first_keys
from attncli.referee.replacing import replace
from attncli.referee.stages import softmax_over

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["SPLITS"]

Array = npt.NDArray[Any]
# Each part's lse and largest score (..., parts) in, by what its weights are multiplied out.
Share = Callable[[Array, Array], Array]
_PARTS = (2, 3, 4, 8)
# Of which parts are made up where a kernel goes on in whole ones, the largest first.
_BLOCKS = (128, 64, 32, 16)
Gone = Callable[[int, list[int]], set[int]]
# Keys in, where they are cut.
Cuts = Callable[[int], list[int]]


def _merged(cuts: Cuts, share: Share, *, least: int, gone: Gone | None) -> Apply:
    """Make an `apply` in which each part has a softmax of its own.

    Parameters
    ----------
    cuts : callable
    share : callable
    least : int
        So many parts there have to be.
    gone : callable, optional
        The number of keys and where they are cut in, how many keys are left out, or would be
        if the last part were whole.
    """

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        pieces = np.array_split(scores, cuts(scores.shape[-1]), axis=-1)
        made = [softmax_over(recipe, piece) for piece in pieces]
        tops = np.stack([piece.max(-1) for piece in pieces], axis=-1)
        shares = share(np.stack([lse for _, lse in made], axis=-1), tops)
        weights = [w * shares[..., n, None] for n, (w, _) in enumerate(made)]
        return np.concatenate(weights, axis=-1), softmax_over(recipe, scores)[1]

    def apply(recipe: Recipe) -> Recipe | None:
        # A sink would have to be counted in one of the parts.
        keys = recipe.problem.shape[3]
        places = cuts(keys)
        if len(places) < least - 1 or recipe.problem.sinks is not None:
            return None
        if len(places) == keys - 1:  # nobody cuts into single keys: it has other names
            return None
        # A lost key, or a lost block of a usual size, has a name of its own.
        last_blocks = {(keys - 1) % size + 1 for size in SIZES}
        if gone is not None and gone(keys, places) & {1, *SIZES, *last_blocks}:
            return None
        return replace(recipe, softmax=softmax)

    return apply


def _into(parts: int, block: int = 1) -> Cuts:
    """Cut keys into so many parts of whole blocks, nowhere where there are fewer blocks."""

    def cuts(keys: int) -> list[int]:
        blocks = -(-keys // block)
        length = -(-blocks // parts) * block
        return list(range(length, keys, length)) if blocks >= parts else []

    return cuts


def _of(size: int) -> Cuts:
    """Cut keys into blocks of a size."""
    return lambda keys: list(range(size, keys, size))


class _Way(NamedTuple):
    """A way to cut the keys.

    Attributes
    ----------
    name, parts : str
        For machines, and as a sentence says it.
    cuts : callable
    of_blocks : bool
        Parts of a usual size, however many they are.
    """

    name: str
    parts: str
    cuts: Cuts
    of_blocks: bool = False


def _each_once(ways: Iterable[_Way]) -> Iterator[_Way]:
    """Let each way cut nothing where one before it makes the same cuts."""
    earlier: list[Cuts] = []
    for way in ways:
        yield way._replace(cuts=_unless(way.cuts, tuple(earlier)))
        earlier.append(way.cuts)


def _unless(cuts: Cuts, others: tuple[Cuts, ...]) -> Cuts:
    @cache
    def only(keys: int) -> list[int]:
        places = cuts(keys)
        return [] if any(places == other(keys) for other in others) else places

    return only


def _mean(lse: Array, _: Array) -> Array:
    return np.full_like(lse, 1 / lse.shape[-1])


def _mean_in_turn(lse: Array, _: Array) -> Array:
    """Return the shares of (… ((o₁ + o₂) / 2 + o₃) / 2 …)."""
    halves = 0.5 ** np.arange(lse.shape[-1], 0, -1.0)
    halves[0] *= 2
    return np.broadcast_to(halves, lse.shape)


def _sum(lse: Array, _: Array) -> Array:
    return np.ones_like(lse)


def _by_maxima(_: Array, tops: Array) -> Array:
    return _normalised(tops, np.exp)


def _in_proportion(sizes: Array) -> Array:
    total = sizes.sum(-1, keepdims=True)
    return np.asarray(sizes / np.where(total == 0, 1, total))


def _by_lse(lse: Array, _: Array) -> Array:
    return _in_proportion(np.where(np.isneginf(lse), 0, lse))


def _undivided(lse: Array, _: Array) -> Array:
    top = lse.max(-1, keepdims=True)
    return np.asarray(np.exp(lse - np.where(np.isneginf(top), 0, top)))


def _by_powers_of_two(lse: Array, _: Array) -> Array:
    return _normalised(lse, np.exp2)


def _normalised(lse: Array, power: Callable[[Array], Array]) -> Array:
    top = lse.max(-1, keepdims=True)
    return _in_proportion(power(lse - np.where(np.isneginf(top), 0, top)))


def _of_base_two(lse: Array, _: Array) -> Array:
    return _normalised(lse / math.log(2), np.exp)


def _only(index: int) -> Share:
    def share(lse: Array, _: Array) -> Array:
        alone = np.zeros_like(lse)
        alone[..., index] = 1
        return alone

    return share


def _without(index: int) -> Share:
    def share(lse: Array, _: Array) -> Array:
        others = lse.copy()
        others[..., index] = -np.inf
        return _normalised(others, np.exp)

    return share


class _Mistake(NamedTuple):
    """A way to put the results of parts together.

    Attributes
    ----------
    name, meaning : str
    share : callable
        By what the weights of each part are multiplied.
    least : int
        Of fewer parts it is nothing, or has another name.
    gone : callable, optional
        Which keys it leaves out, see `_merged`.
    of_blocks : bool
        It has no other name where the parts are blocks.
    kept : callable, optional
        How many keys, the first, it leaves.
    """

    name: str
    meaning: str
    share: Share
    least: int = 2
    gone: Gone | None = None
    of_blocks: bool = True
    kept: Callable[[list[int]], int] | None = None


def _all_but_one(keys: int, places: list[int]) -> set[int]:
    return {keys - places[0], places[-1]}


_MISTAKES = (
    _Mistake("averaged", "their results are averaged", _mean),
    _Mistake(
        "averaged_in_turn", "each result is averaged with those before it", _mean_in_turn, least=3
    ),
    _Mistake("added", "their results are added up", _sum),
    _Mistake(
        "merged_by_maxima",
        "their results are merged by exp(largest score), without their denominators",
        _by_maxima,
    ),
    _Mistake("merged_by_lse", "their results are merged by lse, not by exp(lse)", _by_lse),
    _Mistake(
        "merged_undivided",
        "their results are multiplied by exp(lse − largest lse), added, and not divided",
        _undivided,
    ),
    _Mistake("merged_in_base_2", "their results are merged by 2^lse", _by_powers_of_two),
    _Mistake(
        "merged_by_lse_of_base_2",
        "their results are merged by exp(lse) of an lse in base 2",
        _of_base_two,
    ),
    _Mistake(
        "first_kept",
        "only the result of the first is kept",
        _only(0),
        gone=_all_but_one,
        kept=lambda places: places[0],
    ),
    _Mistake("last_kept", "only the result of the last is kept", _only(-1), gone=_all_but_one),
    # Of two parts, the one that is not left out is the one that is kept.
    _Mistake(
        "first_lost",
        "the result of the first is left out",
        _without(0),
        least=3,
        gone=lambda _, places: {places[0]},
        of_blocks=False,
    ),
    _Mistake(
        "last_lost",
        "the result of the last is left out",
        _without(-1),
        least=3,
        gone=lambda keys, places: {keys - places[-1]},
        of_blocks=False,
        kept=lambda places: places[-1],
    ),
)
_WAYS = (
    *(_Way(f"{parts}", f"{parts} parts", _into(parts)) for parts in _PARTS),
    *(_Way(f"blocks_of_{size}", f"blocks of {size}", _of(size), of_blocks=True) for size in SIZES),
    *(
        _Way(
            f"{parts}_of_blocks_of_{size}",
            f"{parts} parts of whole blocks of {size}",
            _into(parts, size),
        )
        for parts in _PARTS
        for size in _BLOCKS
    ),
)
_FIX = "multiply the result of each part by exp(lse of the part − lse of all), and add up"


def _option(way: _Way, mistake: _Mistake) -> Callable[[Problem], str]:
    kept = mistake.kept
    return stated("") if kept is None else with_first_keys(lambda keys: kept(way.cuts(keys)))


SPLITS = tuple(
    Convention(
        f"splits_of_{way.name}_{mistake.name}",
        f"the keys are cut into {way.parts}, each with a softmax of its own, and {mistake.meaning}",
        _merged(way.cuts, mistake.share, least=mistake.least, gone=mistake.gone),
        topic=topics.SPLITS,
        fix=_FIX if mistake.kept is None else f"{_FIX}; if the other keys are padding, state it",
        shows="parts of different weight",
        option=_option(way, mistake),
    )
    for way in _each_once(_WAYS)
    for mistake in _MISTAKES
    if mistake.of_blocks or not way.of_blocks
)
