"""Products whose factors are rounded to fewer bits than the file has, and summed in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of, tops
from attncli.referee.convention import Convention
from attncli.referee.recipe import vary
from attncli.referee.replacing import replace
from attncli.referee.rounding import PRECISIONS, TF32, Precision, truncated_to_tf32

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["PRODUCTS"]

Array = npt.NDArray[Any]
Rounding = Callable[[Array], Array]
_SHORT = ("bfloat16", "float16")
# Longer keys, in numbers, are not rounded again and again.
_MOST_NUMBERS = 2**21


def _rounded_factors(precision: Precision, rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round query, key and value; the weights too where these have no more bits."""
    problem = recipe.problem
    if not _is_tried(recipe):
        return None
    factors = factors_of(problem)
    rounded = {name: _short(rounding, array) for name, array in factors.items()}
    if not all(np.isfinite(array).all() for array in rounded.values()):
        return None
    changed = replace(vary(recipe, rope=None, **rounded), products=replace(precision, fused=True))
    if all(np.array_equal(rounded[name], factors[name]) for name in factors):
        return replace(changed, after=(*recipe.after, partial(_rounded_exponentials, rounding)))
    return changed


def _rounded_cache(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round only key and value, as a cache of 16 bits holds them."""
    problem = recipe.problem
    if problem.value is None or not _is_tried(recipe):
        return None
    turned = factors_of(problem)
    cache = {name: _short(rounding, turned[name]) for name in ("key", "value")}
    if all(np.array_equal(cache[name], turned[name]) for name in cache):
        return None
    return vary(recipe, rope=None, query=turned["query"], **cache)


def _rounded_weights(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round the weights, as they are stored between softmax and values."""
    if not _is_tried(recipe):
        return None
    return replace(recipe, after=(*recipe.after, lambda _, weights: _short(rounding, weights)))


def _rounded_scores(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round the scores, as they are stored between the first product and the softmax."""
    if not _is_tried(recipe):
        return None
    inner = recipe.softmax
    return replace(recipe, softmax=lambda r, scores: inner(r, _short(rounding, scores)))


def _is_tried(recipe: Recipe) -> bool:
    """Return whether files are float32, and products of query and key what their scores are."""
    problem = recipe.problem
    single = recipe.largest == PRECISIONS["float32"].largest
    short = bool(problem.key.size <= _MOST_NUMBERS)
    return single and short and problem.score in ("dot", "cosine")


def _short(rounding: Rounding, array: Array) -> Array:
    with np.errstate(over="ignore"):
        return rounding(array.astype(np.float32)).astype(np.float64)


def _rounded_exponentials(rounding: Rounding, _: Recipe, weights: Array) -> Array:
    """Round exp(score − maximum), as a kernel holds it when it meets the values."""
    top = tops(weights)
    return _short(rounding, weights / top) * top


def _products(name: str, what: str, precision: Precision, rounding: Rounding) -> Convention:
    return Convention(
        name=f"products_in_{name}",
        topic=topics.PRODUCTS,
        meaning=f"the factors of both products are {what}, and the sums are float32",
        fix='multiply in float32 (Triton: input_precision="ieee"; PyTorch: '
        'torch.set_float32_matmul_precision("highest")), or judge by --rtol and --atol',
        shows="almost any input",
        apply=partial(_rounded_factors, precision, rounding),
        variant_of=tuple(f"{part}_in_{fmt}" for part in ("cache", "weights") for fmt in _SHORT),
    )


def _stored(fmt: str) -> Iterator[Convention]:
    rounding = PRECISIONS[fmt].rounded
    yield Convention(
        name=f"cache_in_{fmt}",
        topic=topics.PRODUCTS,
        meaning=f"key and value are rounded to {fmt}, and all else is float32",
        fix="give key and value as they are after rounding, or keep them in float32",
        shows="almost any input",
        apply=partial(_rounded_cache, rounding),
    )
    yield Convention(
        name=f"weights_in_{fmt}",
        topic=topics.PRODUCTS,
        meaning=f"the weights are rounded to {fmt} before they meet the values, and all else is "
        "float32",
        fix="multiply the weights with the values in float32",
        shows="almost any input",
        apply=partial(_rounded_weights, rounding),
    )

    yield Convention(
        name=f"scores_in_{fmt}",
        topic=topics.STORED_SCORES,
        meaning=f"the scores are rounded to {fmt} before the softmax, and all else is float32",
        fix="keep the scores in float32",
        shows="almost any input",
        apply=partial(_rounded_scores, rounding),
    )


PRODUCTS = (
    *(convention for fmt in _SHORT for convention in _stored(fmt)),
    _products("tf32", "rounded to 11 bits, as in TF32 and float16", TF32, TF32.rounded),
    _products("tf32_truncated", "cut to 11 bits, as in TF32", TF32, truncated_to_tf32),
    _products(
        "bfloat16",
        "rounded to 8 bits, as in bfloat16",
        PRECISIONS["bfloat16"],
        PRECISIONS["bfloat16"].rounded,
    ),
)
