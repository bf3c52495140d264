"""Mistakes of kernels that cut the keys into parts, and put the parts' results together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import SIZES
from attncli.referee.convention import Apply, Convention
from attncli.referee.stages import softmax_over

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["SPLITS"]

Array = npt.NDArray[Any]
Share = Callable[[Array], Array]
_PARTS = (2, 3, 4, 8)
# Keys in, where they are cut.
Cuts = Callable[[int], list[int]]


def _merged(cuts: Cuts, share: Share, *, kept: bool) -> Apply:
    """Make an `apply` in which each part has a softmax of its own.

    Parameters
    ----------
    cuts : callable
    share : callable
        The lse of each part (..., parts) in, by what its weights are multiplied out.
    kept : bool
        One part is kept as it is.
    """

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        pieces = np.array_split(scores, cuts(scores.shape[-1]), axis=-1)
        made = [softmax_over(recipe, piece) for piece in pieces]
        shares = share(np.stack([lse for _, lse in made], axis=-1))
        weights = [w * shares[..., n, None] for n, (w, _) in enumerate(made)]
        return np.concatenate(weights, axis=-1), softmax_over(recipe, scores)[1]

    def apply(recipe: Recipe) -> Recipe | None:
        # A sink would have to be counted in one of the parts.
        keys = recipe.problem.shape[3]
        places = cuts(keys)
        if not places or recipe.problem.sinks is not None:
            return None
        # A lost block of a usual size has a name of its own.
        if kept and (keys - places[0] in SIZES or places[-1] in SIZES):
            return None
        return replace(recipe, softmax=softmax)

    return apply


def _into(parts: int) -> Cuts:
    """Cut keys into so many parts, nowhere where there are fewer keys."""

    def cuts(keys: int) -> list[int]:
        length = -(-keys // parts)
        return list(range(length, keys, length)) if keys >= parts else []

    return cuts


def _of(size: int) -> Cuts:
    """Cut keys into blocks of a size; where these are few parts, they have another name."""

    def cuts(keys: int) -> list[int]:
        places = list(range(size, keys, size))
        return [] if any(places == _into(parts)(keys) for parts in _PARTS) else places

    return cuts


def _mean(lse: Array) -> Array:
    return np.full_like(lse, 1 / lse.shape[-1])


def _by_powers_of_two(lse: Array) -> Array:
    return _normalised(lse, np.exp2)


def _normalised(lse: Array, power: Callable[[Array], Array]) -> Array:
    top = lse.max(-1, keepdims=True)
    powers = power(lse - np.where(np.isneginf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return np.asarray(powers / np.where(total == 0, 1, total))


def _of_base_two(lse: Array) -> Array:
    return _normalised(lse / math.log(2), np.exp)


def _only(index: int) -> Share:
    def share(lse: Array) -> Array:
        alone = np.zeros_like(lse)
        alone[..., index] = 1
        return alone

    return share


_MISTAKES: tuple[tuple[str, str, Share], ...] = (
    ("averaged", "their results are averaged", _mean),
    ("added", "their results are added up", np.ones_like),
    ("merged_in_base_2", "their results are merged by 2^lse", _by_powers_of_two),
    (
        "merged_by_lse_of_base_2",
        "their results are merged by exp(lse) of an lse in base 2",
        _of_base_two,
    ),
    ("first_kept", "only the result of the first is kept", _only(0)),
    ("last_kept", "only the result of the last is kept", _only(-1)),
)

_WAYS: tuple[tuple[str, str, Cuts], ...] = (
    *((f"{parts}", f"{parts} parts", _into(parts)) for parts in _PARTS),
    *((f"blocks_of_{size}", f"blocks of {size}", _of(size)) for size in SIZES),
)

SPLITS = tuple(
    Convention(
        f"splits_of_{way}_{name}",
        f"the keys are cut into {parts}, each with a softmax of its own, and {what}",
        _merged(cuts, share, kept=name.endswith("kept")),
        topic=topics.SPLITS,
        fix="multiply the result of each part by exp(lse of the part − lse of all), and add up",
        shows="parts of different weight",
    )
    for way, parts, cuts in _WAYS
    for name, what, share in _MISTAKES
)
