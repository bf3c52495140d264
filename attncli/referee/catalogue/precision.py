"""Numbers of too few digits on the way: sums of float16, scores and weights of few decimals."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import tops
from attncli.referee.convention import Convention, then
from attncli.referee.replacing import replace
from attncli.referee.stages import over_heads, softmax_over
from attncli.text import counted

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["PRECISION"]

Array = npt.NDArray[Any]


def _float16_sum(weights: Array, value: Array) -> Array:
    """Add up in float16, a key at a time."""
    shares, rows = weights.astype(np.float16), value.astype(np.float16)
    total = np.zeros(np.broadcast_shapes(weights[..., :1].shape, value[..., :1, :].shape), "f2")
    for key in range(weights.shape[-1]):
        total = total + shares[..., key, None] * rows[..., key, None, :]
    return total.astype(weights.dtype)


def _float16_sum_divided_later(weights: Array, value: Array) -> Array:
    """Add up exp(score − maximum) · value in float16, and divide then."""
    top = tops(weights)
    return _float16_sum(weights / top, value) * top


def _float16_denominator(recipe: Recipe) -> Recipe | None:
    """Add up the denominator in float16, a key at a time."""
    if recipe.problem.sinks is not None:
        return None
    return then(recipe, after=lambda _, weights: _divided_in_float16(weights))


def _divided_in_float16(weights: Array) -> Array:
    powers = weights / tops(weights)
    total = _float16_sum(powers, np.ones((1, 1, powers.shape[-1], 1)))
    return powers / np.where(total == 0, 1, total)


def _both_in_float16(recipe: Recipe) -> Recipe | None:
    """Add up numerator and denominator in float16."""
    changed = _float16_denominator(recipe)
    return None if changed is None else replace(changed, mix=_float16_sum_divided_later)


def _rounded_weights(digits: int, recipe: Recipe) -> Recipe:
    return then(recipe, after=lambda _, weights: np.round(weights, digits))


def _rounded_scores(digits: int, recipe: Recipe) -> Recipe:
    def softmax(own: Recipe, scores: Array) -> tuple[Array, Array]:
        return softmax_over(own, np.round(scores, digits))

    return replace(recipe, softmax=softmax)


def _rounded_exponentials(digits: int, recipe: Recipe) -> Recipe:
    """Round exp(score), of which no maximum is subtracted by hand."""

    def softmax(own: Recipe, scores: Array) -> tuple[Array, Array]:
        sinks = own.problem.sinks
        beside = None if sinks is None else np.round(np.exp(over_heads(sinks)), digits)
        return _divided(np.round(np.exp(scores), digits), beside=beside)

    return replace(recipe, softmax=softmax)


def _rounded_steps(digits: int, recipe: Recipe) -> Recipe | None:
    """Round products, scores, exponentials, their sums and the weights."""
    problem, scale = recipe.problem, recipe.problem.scale
    if recipe.terms or problem.softcap is not None or problem.sinks is not None or scale == 0:
        return None

    def softmax(_: Recipe, scores: Array) -> tuple[Array, Array]:
        scores = np.round(np.round(scores / scale, digits) * scale, digits)
        weights, lse = _divided(np.round(np.exp(scores), digits), digits)
        return np.round(weights, digits), lse

    return replace(recipe, softmax=softmax)


def _divided(
    powers: Array, digits: int | None = None, beside: Array | None = None
) -> tuple[Array, Array]:
    """Return powers divided by their sum, rounded if asked for, and its logarithm."""
    total = powers.sum(axis=-1, keepdims=True)
    total = total if beside is None else total + beside
    total = total if digits is None else np.round(total, digits)
    with np.errstate(divide="ignore"):
        lse = np.log(total)[..., 0]
    return powers / np.where(total == 0, 1, total), lse


_precision = partial(Convention, topic=topics.PRECISION)
_sum = partial(_precision, shows="many keys")

PRECISION = (
    _sum(
        "float16_accumulation",
        "the weighted sum is accumulated in float16, key after key",
        lambda recipe: replace(recipe, mix=_float16_sum),
        fix="accumulate in float32, and round the sum once",
    ),
    _sum(
        "float16_accumulation_divided_later",
        "the weighted sum is accumulated in float16, key after key, and divided by the "
        "denominator then",
        lambda recipe: replace(recipe, mix=_float16_sum_divided_later),
        fix="accumulate in float32, and round the quotient once",
    ),
    _sum(
        "float16_denominator",
        "the denominator is accumulated in float16, key after key",
        _float16_denominator,
        fix="accumulate the denominator in float32",
    ),
    _sum(
        "float16_accumulation_of_both",
        "numerator and denominator are both accumulated in float16, key after key",
        _both_in_float16,
        fix="accumulate both in float32, and round the quotient once",
    ),
    *(
        _precision(
            f"weights_rounded_to_{digits}_decimals",
            f"the weights are rounded to {counted(digits, 'decimal')} before they meet the values",
            partial(_rounded_weights, digits),
            fix="go on with all digits of the weights, and round what is shown",
            shows="almost any input",
        )
        for digits in (1, 2, 3, 4)
    ),
    *(
        Convention(
            f"scores_rounded_to_{digits}_decimals",
            f"the scores are rounded to {counted(digits, 'decimal')} before the softmax",
            partial(_rounded_scores, digits),
            topic=topics.FEW_DIGITS,
            fix="go on with all digits of the scores, and round what is shown",
            shows="almost any input",
        )
        for digits in (1, 2, 3, 4)
    ),
    *(
        Convention(
            f"{name}_rounded_to_{digits}_decimals",
            f"{what} rounded to {counted(digits, 'decimal')}, as by hand",
            partial(rounded, digits),
            topic=topics.FEW_DIGITS,
            fix="go on with all digits, and round what is shown",
            shows="almost any input",
            variant_of=tuple(f"{one}_rounded_to_{digits}_decimals" for one in simpler),
        )
        for name, what, rounded, simpler in (
            (
                "exponentials",
                "the exponentials of the scores are",
                _rounded_exponentials,
                ("weights",),
            ),
            (
                "steps",
                "products, scores, exponentials, their sums and the weights are all",
                _rounded_steps,
                ("weights", "scores", "exponentials"),
            ),
        )
        for digits in (1, 2, 3, 4)
    ),
)
