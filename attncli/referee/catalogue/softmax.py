"""Mistakes in the softmax itself."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import scaled_sinks
from attncli.referee.convention import Apply, Convention, then
from attncli.referee.options import scaled
from attncli.referee.recipe import Outputs, Recipe, vary
from attncli.referee.replacing import replace
from attncli.referee.rounding import PRECISIONS
from attncli.referee.stages import limited, over_heads, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SOFTMAX"]

Array = npt.NDArray[Any]
Result = tuple[Array, Array]
_LN2 = math.log(2.0)
_OVERFLOWS = "softmax_without_maximum"
_SINGLE = PRECISIONS["float32"]


def _softmax_as(softmax: Callable[[Recipe, Array], Result]) -> Apply:
    return lambda recipe: replace(recipe, softmax=softmax)


def _over_queries(recipe: Recipe, scores: Array) -> Result:
    return softmax_over(recipe, scores, axis=-2)


def _over_all_queries(recipe: Recipe) -> Recipe | None:
    return None if recipe.problem.shape[2] == 1 else replace(recipe, softmax=_over_all)


def _over_heads(recipe: Recipe) -> Recipe | None:
    if recipe.problem.shape[1] == 1:
        return None
    return replace(recipe, softmax=lambda r, scores: softmax_over(r, scores, axis=1))


def _over_batch(recipe: Recipe) -> Recipe | None:
    if recipe.problem.shape[0] == 1:
        return None
    return replace(recipe, softmax=lambda r, scores: softmax_over(r, scores, axis=0))


def _base_two(recipe: Recipe) -> Recipe:
    """Take powers of 2, along whatever axis the softmax runs."""
    inner = recipe.softmax

    def softmax(recipe: Recipe, scores: Array) -> Result:
        weights, lse = inner(scaled_sinks(recipe, _LN2), scores * scores.dtype.type(_LN2))
        return weights, lse / _LN2

    return replace(recipe, softmax=softmax)


def _twice(recipe: Recipe, scores: Array) -> Result:
    weights, lse = softmax_over(recipe, scores)
    again, _ = softmax_over(vary(recipe, sinks=None), np.where(recipe.seen, weights, -np.inf))
    return again, lse


def _transposed(recipe: Recipe) -> Recipe | None:
    _, _, queries, keys = recipe.problem.shape
    if queries != keys or keys == 1:
        return None
    return then(recipe, after=lambda _, weights: weights.swapaxes(-1, -2))


def _left_out(recipe: Recipe, scores: Array) -> Result:
    _, lse = softmax_over(recipe, scores)
    return np.where(np.isneginf(scores), 0, scores), lse


def _undivided(recipe: Recipe, scores: Array) -> Result:
    _weights, lse = softmax_over(recipe, scores)
    top = scores.max(-1, keepdims=True)
    return np.where(np.isneginf(scores), 0, np.exp(scores - top)), lse


def _exponentials(recipe: Recipe, scores: Array) -> Result:
    return np.exp(scores), softmax_over(recipe, scores)[1]


def _over_all(recipe: Recipe, scores: Array) -> Result:
    """Let the softmax run over queries and keys together, as without an axis."""
    top = scores.max((-2, -1), keepdims=True)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum((-2, -1), keepdims=True)
    return _divided(powers, total), softmax_over(recipe, scores)[1]


def _broadcast(shift: Callable[[Array], Array], *, total: bool) -> Apply:
    """Make an `apply` in which a vector of one number a row is spread over the rows.

    Parameters
    ----------
    shift : callable
        The largest score of each row (..., L, 1) in, what is subtracted out.
    total : bool
        The sums of the exponentials lost their axis, too.
    """

    def softmax(recipe: Recipe, scores: Array) -> Result:
        top = scores.max(-1, keepdims=True)
        powers = np.exp(scores - shift(np.where(np.isneginf(top), 0, top)))
        sums = powers.sum(-1, keepdims=True)
        weights = _divided(powers, _spread(sums) if total else sums)
        return weights, softmax_over(recipe, scores)[1]

    def apply(recipe: Recipe) -> Recipe | None:
        _, _, queries, keys = recipe.problem.shape
        square = queries == keys > 1 and recipe.problem.sinks is None
        return replace(recipe, softmax=softmax) if square else None

    return apply


def _spread(column: Array) -> Array:
    return column.swapaxes(-1, -2)


def _logarithms(recipe: Recipe, scores: Array) -> Result:
    lse = softmax_over(recipe, scores)[1]
    return np.where(np.isneginf(scores), 0, scores - lse[..., None]), lse


def _by_their_sum(recipe: Recipe, scores: Array) -> Result:
    seen = np.where(np.isneginf(scores), 0, scores)
    return _divided(seen, seen.sum(-1, keepdims=True)), softmax_over(recipe, scores)[1]


def _sigmoid(recipe: Recipe, scores: Array) -> Result:
    return 1 / (1 + np.exp(-scores)), softmax_over(recipe, scores)[1]


def _no_maximum(*, single: bool, last: bool) -> Apply:
    """Make an `apply` that exponentiates scores as they are, and overflows.

    Parameters
    ----------
    single : bool
        In float32, though the file has a narrower format.
    last : bool
        The sum of the values is divided, not the exponentials.
    """

    def apply(recipe: Recipe) -> Recipe | None:
        largest = _SINGLE.largest if single else recipe.largest
        if single and recipe.largest >= largest:
            return None

        def softmax(recipe: Recipe, scores: Array) -> Result:
            share = limited(np.exp(scores), largest)
            total = share.sum(-1, keepdims=True)
            sinks = recipe.problem.sinks
            if sinks is not None:
                total = total + limited(np.exp(over_heads(sinks)), largest)
            total = limited(total, largest)
            weights = share if last else _divided(share, total)
            return weights, np.log(total)[..., 0]

        def divide(_: Recipe, outputs: Outputs) -> Outputs:
            total = np.exp(outputs["lse"])
            made: Outputs = {
                name: _divided(limited(outputs[name], largest), total)
                for name in ("weights", "context")
                if name in outputs
            }
            return {**outputs, **made}

        finish = (divide, *recipe.finish) if last else recipe.finish
        return replace(recipe, softmax=softmax, finish=finish)

    return apply


def _overflowing(recipe: Recipe) -> Recipe | None:
    """Store the product in float16 before it is scaled."""
    if recipe.order[0] != "scale" or recipe.problem.scale == 1:
        return None
    return replace(recipe, order=("overflow", *recipe.order))


def _divided(array: Array, total: Array) -> Array:
    return np.where(total == 0, 0, array / total)


_softmax = partial(
    Convention,
    topic=topics.SOFTMAX,
    fix="normalise over the keys, the last axis of the scores",
    shows="more than one key",
)


def _without_maximum() -> Iterator[Convention]:
    """Yield the mistake in the format of the file or in float32, divided first or last."""
    for single, format_ in ((False, ""), (True, " in float32")):
        for last, what in ((False, "exp"), (True, "exp, or its product with the values,")):
            name = f"{_OVERFLOWS}{'_in_float32' if single else ''}{'_divided_last' if last else ''}"
            yield _softmax(
                name,
                f"the softmax{format_} does not subtract the row's maximum: {what} overflows to "
                "inf, and inf / inf is NaN",
                _no_maximum(single=single, last=last),
                fix="subtract each row's largest score before exp",
                shows="scores beyond the range of exp (88 in float32, 11 in float16)",
                variant_of=() if name == _OVERFLOWS else (_OVERFLOWS,),
            )


SOFTMAX = (
    _softmax(
        "softmax_over_queries",
        "the softmax runs over the queries instead of the keys",
        _softmax_as(_over_queries),
        shows="more than one query",
        needs=frozenset({"rows"}),
    ),
    _softmax(
        "softmax_over_all",
        "the softmax runs over queries and keys together: the weights of a whole head sum to 1",
        _over_all_queries,
        fix="normalise each row by itself: name the axis, and keep it (axis=-1, keepdims=True)",
        shows="more than one query",
        needs=frozenset({"rows"}),
    ),
    _softmax(
        "softmax_over_heads",
        "the softmax runs over the heads instead of the keys",
        _over_heads,
        shows="more than one head",
        needs=frozenset({"heads"}),
    ),
    _softmax(
        "softmax_over_batch",
        "the softmax runs over the batch instead of the keys",
        _over_batch,
        fix="name the axis: softmax(scores, dim=-1); without dim, PyTorch takes the first of three",
        shows="more than one batch entry",
        needs=frozenset({"batch"}),
    ),
    *_without_maximum(),
    _softmax(
        "product_overflows_float16",
        "the product of query and key is stored in float16 before it is scaled: beyond 65504 it "
        "becomes inf, and the softmax NaN",
        _overflowing,
        fix="multiply the query by the scale first, or keep the product in float32",
        shows="products beyond 65504",
    ),
    _softmax(
        "softmax_twice",
        "the softmax is applied twice, to scores and then to weights",
        _softmax_as(_twice),
        fix="apply the softmax once (some loss functions bring their own)",
    ),
    _softmax(
        "weights_transposed",
        "the weights are transposed before they meet the values",
        _transposed,
        fix="multiply the weights (L, S) with the values (S, E) as they are",
        shows="as many queries as keys",
        needs=frozenset({"rows"}),
    ),
    _softmax(
        "softmax_exponentials",
        "the exponentials of the scores are used as weights, not divided by their sum",
        _softmax_as(_exponentials),
        fix="divide the exponentials of a row by their sum",
    ),
    *(
        _softmax(
            f"{name}_of_other_rows",
            f"{what} as a vector without the axis that it was taken over, so that column j gets "
            "that of row j",
            _broadcast(shift, total=total),
            topic=topics.LOST_AXES,
            fix="keep the axis: max(axis=-1, keepdims=True), sum(axis=-1, keepdims=True)",
            shows="as many queries as keys",
            needs=frozenset({"rows"}),
        )
        for name, what, shift, total in (
            ("denominators", "the exponentials are divided by their sums", np.zeros_like, True),
            (
                "denominators_beside_maxima",
                "the exponentials, taken beside the maxima, are divided by their sums",
                np.asarray,
                True,
            ),
            ("maxima", "the maxima are subtracted", _spread, False),
            (
                "maxima_and_denominators",
                "the maxima are subtracted, and the exponentials divided by their sums,",
                _spread,
                True,
            ),
        )
    ),
    _softmax(
        "log_softmax",
        "the weights are the logarithms of a softmax",
        _softmax_as(_logarithms),
        topic=topics.LOST_AXES,
        fix="use softmax, not log_softmax",
        variant_of=("weights_are_logarithms",),
    ),
    _softmax(
        "scores_divided_by_their_sum",
        "the scores themselves are divided by their sum, without exp",
        _softmax_as(_by_their_sum),
        fix="exponentiate the scores first",
    ),
    _softmax(
        "sigmoid",
        "each weight is the sigmoid of its score: no denominator is shared by the row",
        _softmax_as(_sigmoid),
        fix="take the softmax over the keys",
    ),
    _softmax(
        "softmax_left_out",
        "the softmax is left out: the scores are used as weights",
        _softmax_as(_left_out),
        fix="apply the softmax over the keys",
    ),
    _softmax(
        "softmax_not_normalised",
        "the exponentials of the scores less the highest one of each row are used as weights, not "
        "divided by their sum",
        _softmax_as(_undivided),
        fix="divide each row by its sum",
    ),
    _softmax(
        "softmax_base_2",
        "the softmax is made of powers of 2, not of e",
        _base_two,
        fix="use exp, or multiply the scores by log2(e) before exp2",
        topic=topics.SOFTMAX_BASE,
        option=lambda p: scaled(p.scale * _LN2, p) if _is_plain(p) else "",
    ),
)


def _is_plain(problem: Any) -> bool:
    """Return whether the scores are the scaled product and nothing else."""
    extras = (problem.softcap, problem.bias, problem.alibi_slopes, problem.sinks)
    return all(extra is None for extra in extras)
