"""Mistakes of kernels that cut the keys into parts, and put the parts' results together."""

from __future__ import annotations

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
_PARTS = (2, 4, 8)


def _merged(parts: int, share: Share, *, kept: bool) -> Apply:
    """Make an `apply` in which each part has a softmax of its own.

    Parameters
    ----------
    parts : int
    share : callable
        The lse of each part (..., parts) in, by what its weights are multiplied out.
    kept : bool
        One part is kept as it is.
    """

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        pieces = np.array_split(scores, _cuts(scores.shape[-1], parts), axis=-1)
        made = [softmax_over(recipe, piece) for piece in pieces]
        shares = share(np.stack([lse for _, lse in made], axis=-1))
        weights = [w * shares[..., n, None] for n, (w, _) in enumerate(made)]
        return np.concatenate(weights, axis=-1), softmax_over(recipe, scores)[1]

    def apply(recipe: Recipe) -> Recipe | None:
        # A sink would have to be counted in one of the parts.
        keys = recipe.problem.shape[3]
        if keys < parts or recipe.problem.sinks is not None:
            return None
        # A lost block of a usual size has a name of its own.
        if kept and keys % parts == 0 and keys - keys // parts in SIZES:
            return None
        return replace(recipe, softmax=softmax)

    return apply


def _cuts(keys: int, parts: int) -> list[int]:
    length = -(-keys // parts)
    return list(range(length, keys, length))


def _mean(lse: Array) -> Array:
    return np.full_like(lse, 1 / lse.shape[-1])


def _by_powers_of_two(lse: Array) -> Array:
    top = lse.max(-1, keepdims=True)
    powers = np.exp2(lse - np.where(np.isneginf(top), 0, top))
    total = powers.sum(-1, keepdims=True)
    return np.asarray(powers / np.where(total == 0, 1, total))


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
    ("first_kept", "only the result of the first is kept", _only(0)),
    ("last_kept", "only the result of the last is kept", _only(-1)),
)

SPLITS = tuple(
    Convention(
        name=f"splits_of_{parts}_{name}",
        topic=topics.SPLITS,
        meaning=f"the keys are cut into {parts} parts, each with a softmax of its own, and {what}",
        fix="multiply the result of each part by exp(lse of the part − lse of all), and add up",
        shows="parts of different weight",
        apply=_merged(parts, share, kept=name.endswith("kept")),
    )
    for parts in _PARTS
    for name, what, share in _MISTAKES
)
