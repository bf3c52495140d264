"""Numbers of too few digits on the way: sums of 16 bits, scores and weights of few decimals."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted
from attncli.referee import topics
from attncli.referee.catalogue.helpers import tops
from attncli.referee.convention import Convention, then
from attncli.referee.replacing import replace
from attncli.referee.rounding import IN_LOOPS, PRECISIONS
from attncli.referee.stages import over_heads, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.recipe import Recipe

__all__ = ["PRECISION"]

Array = npt.NDArray[Any]


def _short_sum(fmt: str, weights: Array, value: Array) -> Array:
    """Add up in 16 bits, a key at a time; factors and products have no more."""
    rounded = IN_LOOPS[fmt]
    shares, rows = (rounded(array.astype(np.float32)) for array in (weights, value))
    total = np.zeros(np.broadcast_shapes(weights[..., :1].shape, value[..., :1, :].shape), "f4")
    for key in range(weights.shape[-1]):
        total = rounded(total + rounded(shares[..., key, None] * rows[..., key, None, :]))
    return total.astype(weights.dtype)


def _short_sum_divided_later(fmt: str, weights: Array, value: Array) -> Array:
    """Add up exp(score − maximum) · value in 16 bits, and divide then."""
    top = tops(weights)
    return _short_sum(fmt, weights / top, value) * top


def _short_numerator(mix: Callable[[str, Array, Array], Array], fmt: str, recipe: Recipe) -> Recipe:
    return replace(recipe, mix=partial(mix, fmt))


def _short_denominator(fmt: str, recipe: Recipe) -> Recipe | None:
    """Add up the denominator in 16 bits, a key at a time."""
    if recipe.problem.sinks is not None:
        return None
    return then(recipe, after=lambda _, weights: _divided_in(fmt, weights))


def _divided_in(fmt: str, weights: Array) -> Array:
    powers = weights / tops(weights)
    total = _short_sum(fmt, powers, np.ones((1, 1, powers.shape[-1], 1)))
    return powers / np.where(total == 0, 1, total)


def _both_short(fmt: str, recipe: Recipe) -> Recipe | None:
    """Add up numerator and denominator in 16 bits."""
    changed = _short_denominator(fmt, recipe)
    return None if changed is None else _short_numerator(_short_sum_divided_later, fmt, changed)


def _accumulated(
    fmt: str, change: Callable[[str, Recipe], Recipe | None], recipe: Recipe
) -> Recipe | None:
    """Add up in 16 bits, unless the files are of another such format."""
    others = {PRECISIONS[other].largest for other in IN_LOOPS if other != fmt}
    changed = None if recipe.largest in others else change(fmt, recipe)
    return None if changed is None else replace(changed, codes=True)


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
# Name, meaning, fix, and how it is made.
_SUMS: tuple[tuple[str, str, str, Callable[[str, Recipe], Recipe | None]], ...] = (
    (
        "accumulation",
        "the weighted sum is accumulated in {}, key after key",
        "accumulate in float32, and round the sum once",
        partial(_short_numerator, _short_sum),
    ),
    (
        "accumulation_divided_later",
        "the weighted sum is accumulated in {}, key after key, and divided by the denominator then",
        "accumulate in float32, and round the quotient once",
        partial(_short_numerator, _short_sum_divided_later),
    ),
    (
        "denominator",
        "the denominator is accumulated in {}, key after key",
        "accumulate the denominator in float32",
        _short_denominator,
    ),
    (
        "accumulation_of_both",
        "numerator and denominator are both accumulated in {}, key after key",
        "accumulate both in float32, and round the quotient once",
        _both_short,
    ),
)

PRECISION = (
    *(
        Convention(
            f"{fmt}_{name}",
            meaning.format(fmt),
            partial(_accumulated, fmt, change),
            topic=topics.SHORT_SUMS,
            fix=fix,
            shows="many keys",
        )
        for fmt in IN_LOOPS
        for name, meaning, fix, change in _SUMS
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
