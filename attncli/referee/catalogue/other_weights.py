"""What stands in the place of the softmax, and what is added to its denominator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of, of_context, with_epsilon
from attncli.referee.convention import Apply, Convention, then
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace
from attncli.referee.stages import softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.referee.recipe import Recipe

__all__ = ["OTHER_WEIGHTS"]

Array = npt.NDArray[Any]
# Smaller ones do not show in float32.
_EPSILONS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


def _rectified(divide: Callable[[Array], Array]) -> Apply:
    """Make an `apply` whose weights are max(score, 0), divided by something."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        return divide(np.maximum(scores, 0)), softmax_over(recipe, scores)[1]

    return lambda recipe: replace(recipe, softmax=softmax)


def _by_their_sum(rectified: Array) -> Array:
    total = rectified.sum(-1, keepdims=True)
    return np.where(total == 0, 0, rectified / total)


_relu = partial(
    Convention,
    topic=topics.SOFTMAX,
    fix="take the softmax over the keys",
    shows="scores below 0",
)


def _one_behind_the_maximum(recipe: Recipe) -> Recipe | None:
    """Add 1 to the sums of exp(score − maximum), as if the maximum were a sink."""
    if recipe.problem.sinks is not None:
        return None

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        top = scores.max(-1, keepdims=True)
        weights, lse = softmax_over(recipe, scores)
        with_one = np.logaddexp(lse, np.where(np.isneginf(top), 0, top)[..., 0])
        return weights * np.exp(lse - with_one)[..., None], with_one

    return replace(recipe, softmax=softmax)


def _values_summed(recipe: Recipe) -> Recipe:
    """Multiply the sum of a row's weights with the sum of all values."""

    def mix(weights: Array, value: Array) -> Array:
        sums: Array = weights.sum(axis=-1, keepdims=True) * value.sum(axis=-2, keepdims=True)
        return sums

    return replace(recipe, mix=mix)


def _products_of_sums(recipe: Recipe) -> Recipe:
    """Multiply the sum of each query with the sum of each key."""
    turned = factors_of(recipe.problem)
    query, key = (
        np.broadcast_to(turned[name].sum(axis=-1, keepdims=True), turned[name].shape)
        for name in ("query", "key")
    )
    # The product of two such vectors has a term for each component.
    return vary(recipe, rope=None, query=query / query.shape[-1], key=key)


def _of_all_products(axis: int) -> Apply:
    """Make an `apply` whose context is the softmax of the scores times the values."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        return scores, softmax_over(recipe, scores)[1]

    def normalised(recipe: Recipe, context: Array) -> Array:
        return softmax_over(vary(recipe, sinks=None), context, axis)[0]

    def apply(recipe: Recipe) -> Recipe | None:
        if recipe.rules:  # −inf times a value is no number
            return None
        made = replace(recipe, softmax=softmax)
        return then(made, finish=of_context(normalised))

    return apply


def _uncounted(*, last: bool) -> Apply:
    """Make an `apply` that leaves the first or the last key that a query sees out of its sum."""

    def softmax(recipe: Recipe, scores: Array) -> tuple[Array, Array]:
        weights, lse = softmax_over(recipe, scores)
        seen = scores > -np.inf
        key = seen.shape[-1] - 1 - seen[..., ::-1].argmax(-1) if last else seen.argmax(-1)
        rest = 1 - np.take_along_axis(weights, key[..., None], -1)
        return weights / rest, lse + np.log(rest[..., 0])

    return lambda recipe: replace(recipe, softmax=softmax) if recipe.problem.shape[3] > 1 else None


def _epsilons() -> Iterator[Convention]:
    for epsilon in _EPSILONS:
        yield Convention(
            f"epsilon_{epsilon:.0e}".replace("-0", "_"),
            f"{epsilon:g} is added to the sum of the exponentials before it divides them",
            with_epsilon(epsilon),
            topic=topics.EPSILON,
            fix="divide by the sum itself: beside its maximum it is at least 1",
            shows="almost any input",
        )


OTHER_WEIGHTS = (
    _relu(
        "relu",
        "the weights are the scores above 0, and 0 elsewhere: relu(scores), without a softmax",
        _rectified(np.asarray),
    ),
    _relu(
        "relu_divided_by_their_sum",
        "the weights are relu(scores), divided by the sum of each row, without exp",
        _rectified(_by_their_sum),
    ),
    _relu(
        "relu_divided_by_length",
        "the weights are relu(scores) divided by the number of keys, without a softmax",
        _rectified(lambda rectified: rectified / rectified.shape[-1]),
    ),
    *_epsilons(),
    Convention(
        "values_summed",
        "the context is the sum of all values: weights and values share no index, as in "
        "einsum('ij,kd->id')",
        _values_summed,
        topic=topics.MISTYPED,
        fix="sum over the keys that both have: einsum('ij,jd->id')",
        shows="more than one key",
    ),
    Convention(
        "products_of_sums",
        "the sums of query and key are multiplied: they share no index, as in einsum('qd,ke->qk')",
        _products_of_sums,
        topic=topics.MISTYPED,
        fix="sum over the components that both have: einsum('qd,kd->qk')",
        shows="more than one component",
    ),
    *(
        Convention(
            name,
            f"the softmax is taken of Q·Kᵀ·V, scaled, {along}: softmax(Q·Kᵀ/√D · V)",
            _of_all_products(axis),
            topic=topics.MISTYPED,
            fix="close the bracket of the softmax before the values: softmax(Q·Kᵀ/√D) · V",
            shows="almost any input",
        )
        for name, along, axis in (
            ("softmax_of_products_with_values", "along its columns", -1),
            ("softmax_of_products_with_values_over_queries", "along the queries", -2),
        )
    ),
    Convention(
        "sinks_unasked_unshifted",
        "1 is added to the denominator after the row's maximum was subtracted: it stands for a "
        "sink as large as the largest score (softmax1 adds exp(−maximum))",
        _one_behind_the_maximum,
        topic=topics.EPSILON,
        fix="divide by the sum of the exponentials only",
        shows="almost any input",
    ),
    *(
        Convention(
            f"{which}_key_uncounted",
            f"the {which} key that a query sees is left out of its denominator, not of the values",
            _uncounted(last=which == "last"),
            topic=topics.EPSILON,
            fix="sum the exponentials of the very keys whose values are summed",
            shows="almost any input",
        )
        for which in ("last", "first")
    ),
)
