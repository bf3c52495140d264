"""Mistakes with sinks, logits that count only in the denominator."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import scaled_sinks
from attncli.referee.convention import Apply, Convention
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace
from attncli.referee.stages import over_heads, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.recipe import Recipe


__all__ = ["SINKS"]

Array = npt.NDArray[Any]
Result = tuple[Array, Array]


def _sinks_as(softmax: Callable[[Recipe, Array, Array], Result]) -> Apply:
    """Make an `apply` for a softmax that gets the sinks as (H, 1, 1)."""

    def apply(recipe: Recipe) -> Recipe | None:
        sinks = recipe.problem.sinks
        if sinks is None:
            return None
        column = over_heads(sinks)
        return replace(recipe, softmax=lambda r, scores: softmax(r, scores, column))

    return apply


def _plain(recipe: Recipe, scores: Array) -> Result:
    return softmax_over(vary(recipe, sinks=None), scores)


def _first_key(recipe: Recipe, scores: Array, sinks: Array) -> Result:
    changed = scores.copy()
    changed[..., :1] = sinks
    return _plain(recipe, changed)


def _on_first_key(recipe: Recipe, scores: Array, sinks: Array) -> Result:
    changed = scores.copy()
    changed[..., :1] += sinks
    return _plain(recipe, changed)


def _wrong_column(recipe: Recipe, scores: Array, sinks: Array) -> Result:
    column = np.broadcast_to(sinks, (*scores.shape[:-1], 1))
    weights, lse = _plain(recipe, np.concatenate([column, scores], axis=-1))
    return weights[..., :-1], lse


def _without_exp(_: Recipe, scores: Array, sinks: Array) -> Result:
    top = scores.max(-1, keepdims=True)
    shift = np.where(np.isneginf(top), 0, top)
    share = np.exp(scores - shift)
    total = share.sum(-1, keepdims=True) + sinks
    return share / total, (np.log(total) + shift)[..., 0]


def _unshifted(_: Recipe, scores: Array, sinks: Array) -> Result:
    top = scores.max(-1, keepdims=True)
    shift = np.where(np.isneginf(top), 0, top)
    share = np.exp(scores - shift)
    total = share.sum(-1, keepdims=True) + np.exp(sinks)
    return share / total, (np.log(total) + shift)[..., 0]


def _scaled(recipe: Recipe) -> Recipe | None:
    scale = recipe.problem.scale
    if recipe.problem.sinks is None or scale == 1:
        return None
    return scaled_sinks(recipe, scale)


def _in_base_2(recipe: Recipe) -> Recipe | None:
    return None if recipe.problem.sinks is None else scaled_sinks(recipe, math.log(2))


def _zero_sink(recipe: Recipe) -> Recipe | None:
    if recipe.problem.sinks is not None:
        return None
    return vary(recipe, sinks=np.zeros(recipe.problem.shape[1]))


_sinks = partial(
    Convention,
    topic=topics.SINKS,
    fix="add exp(sink − maximum) to the denominator, and nothing to the values",
    shows="a sink that is not small compared with the scores",
)


SINKS = (
    _sinks(
        "sinks_ignored",
        "the sinks are ignored",
        lambda r: None if r.problem.sinks is None else vary(r, sinks=None),
        option=lambda _: "leave --sinks out",
    ),
    _sinks(
        "sinks_as_first_key",
        "the sink is used as a token: it takes the place of the first key's score",
        _sinks_as(_first_key),
    ),
    _sinks(
        "sinks_added_to_first_key",
        "the sink is used as a token: it is added to the first key's score",
        _sinks_as(_on_first_key),
    ),
    _sinks(
        "sinks_in_wrong_column",
        "the sink is put before the scores, but the last column is dropped after the softmax",
        _sinks_as(_wrong_column),
    ),
    _sinks(
        "sinks_without_exp",
        "the sink itself is added to the denominator, not exp(sink)",
        _sinks_as(_without_exp),
    ),
    _sinks(
        "sinks_unshifted",
        "exp(sink) is added to the denominator without subtracting the row's maximum",
        _sinks_as(_unshifted),
    ),
    _sinks(
        "sinks_negated",
        "exp(−sink) is added to the denominator: the sinks have the wrong sign",
        lambda recipe: None if recipe.problem.sinks is None else scaled_sinks(recipe, -1),
    ),
    _sinks(
        "sinks_unasked",
        "1 is added to the denominator, as if there were a sink of 0 (softmax1, add_zero_attn)",
        _zero_sink,
        fix="divide by the sum of the exponentials only",
        shows="almost any input",
        option=lambda problem: f"--sinks {','.join('0' * problem.shape[1])}",
        # A key of zeros, of which there is one, adds exp(0), too.
        variant_of=tuple(f"{rule}_as_zeros" for rule in ("mask", "key_padding_mask", "kv_lengths")),
    ),
    _sinks(
        "sinks_in_base_2",
        "2^sink is added to the denominator: before exp2, the scores are multiplied by log2(e), "
        "but the sinks are not",
        _in_base_2,
        fix="multiply the sinks by log2(e) as well, before exp2",
    ),
    _sinks(
        "sinks_of_0",
        "every sink is taken to be 0: 1 is added to the denominator",
        lambda r: None if r.problem.sinks is None else vary(r, sinks=0 * r.problem.sinks),
    ),
    _sinks(
        "sinks_twice",
        "exp(sink) is added to the denominator twice",
        lambda r: None if r.problem.sinks is None else vary(r, sinks=r.problem.sinks + math.log(2)),
        fix="add exp(sink − maximum) once, behind the last block of keys",
    ),
    _sinks("sinks_scaled", "the sinks are scaled like the scores", _scaled),
)
