"""Steps that are rounded to fewer bits than the file has, beside products summed in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.helpers import factors_of, tops, tops_so_far
from attncli.referee.convention import Convention, then, with_term
from attncli.referee.recipe import distance, vary
from attncli.referee.replacing import replace
from attncli.referee.rounding import PRECISIONS, TF32, Precision, truncated_to_tf32

if TYPE_CHECKING:
    from attncli.referee.recipe import Recipe

__all__ = ["PRODUCTS"]

Array = npt.NDArray[Any]
Rounding = Callable[[Array], Array]
_SHORT = ("bfloat16", "float16")
# TF32 has as many bits.
_FORMATS = {"bfloat16": "bfloat16", "float16": "float16, or to TF32"}
_SETTINGS = 'Triton: input_precision="ieee"; PyTorch: torch.set_float32_matmul_precision("highest")'
_PRODUCT_FIX = f"; if it is TF32, multiply in float32 ({_SETTINGS})"
_INPUTS = {
    "cache": ("key", "value"),
    "query_key": ("query", "key"),
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
}
# Keys whose exponentials are beside one largest score; 0: all of them.
_BLOCKS = (0, 16, 32, 64, 128)
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


def _rounded_inputs(names: tuple[str, ...], rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round only some of query, key and value, as a cache of 16 bits holds the last two."""
    problem = recipe.problem
    if ("value" in names and problem.value is None) or not _is_tried(recipe):
        return None
    turned = factors_of(problem)
    rounded = {name: _short(rounding, turned[name]) for name in names}
    if any(np.array_equal(rounded[name], turned[name]) for name in names):
        return None
    return vary(recipe, rope=None, **{**turned, **rounded})


def _rounded_scaled_query(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round the query after it was multiplied with the scale."""
    problem = recipe.problem
    # By a power of two nothing is rounded that was not before.
    if not _is_tried(recipe) or _moves_no_digit(problem.scale):
        return None
    turned = factors_of(problem)
    turned["query"] = _short(rounding, turned["query"] * problem.scale)
    return vary(recipe, rope=None, scale=1.0, **turned)


def _rounded_term(name: str, rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round what is added to the scores."""
    term = recipe.terms.get(name)
    if term is None or not _is_tried(recipe):
        return None
    rounded = _short(rounding, term)
    if np.array_equal(rounded, term):
        return None
    return with_term(recipe, name, rounded)


def _rounded_slopes(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    slopes = recipe.problem.alibi_slopes
    if slopes is None or "alibi" not in recipe.terms or not _is_tried(recipe):
        return None
    rounded = _short(rounding, slopes)
    if np.array_equal(rounded, slopes):
        return None
    term = -rounded[:, None, None] * np.abs(distance(recipe.problem))
    return with_term(recipe, "alibi", term)


def _rounded_weights(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round the weights, as they are stored between softmax and values."""
    if not _is_tried(recipe):
        return None
    return then(recipe, after=lambda _, weights: _short(rounding, weights))


def _rounded_scores(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round the scores, as they are stored between the first product and the softmax."""
    if not _is_tried(recipe):
        return None
    inner = recipe.softmax
    return replace(recipe, softmax=lambda r, scores: inner(r, _short(rounding, scores)))


def _rounded_before_scale(rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round Q·Kᵀ, as a first kernel stores it for a second one that scales it.

    A scale that is a power of two moves no digit: then scores that are rounded are the same.
    """
    problem, inner = recipe.problem, recipe.softmax
    scale = problem.scale
    plain = problem.softcap is None and not recipe.terms
    if not _is_tried(recipe) or not plain or _moves_no_digit(scale):
        return None
    return replace(
        recipe, softmax=lambda r, scores: inner(r, scale * _short(rounding, scores / scale))
    )


def _moves_no_digit(scale: float) -> bool:
    """Return whether a scale is 0 or a power of two, by either sign."""
    return abs(math.frexp(scale)[0]) in (0.0, 0.5)


def _is_tried(recipe: Recipe) -> bool:
    """Return whether files are float32, and products of query and key what their scores are."""
    problem = recipe.problem
    single = recipe.largest == PRECISIONS["float32"].largest
    short = bool(problem.key.size <= _MOST_NUMBERS)
    return single and short and problem.score in ("dot", "cosine")


def _short(rounding: Rounding, array: Array) -> Array:
    with np.errstate(over="ignore"):
        return rounding(array.astype(np.float32)).astype(np.float64)


def _rounded_exponentials(rounding: Rounding, _: Recipe, weights: Array, block: int = 0) -> Array:
    """Round exp(score − maximum), as a kernel holds it when it meets the values."""
    top = tops_so_far(weights, block) if block else tops(weights)
    return _short(rounding, weights / top) * top


def _with_rounded_exponentials(rounding: Rounding, block: int, recipe: Recipe) -> Recipe | None:
    if not _is_tried(recipe) or recipe.problem.shape[3] <= block:
        return None
    return replace(
        recipe, after=(*recipe.after, partial(_rounded_exponentials, rounding, block=block))
    )


def _with_summed_exponentials(rounding: Rounding, block: int, recipe: Recipe) -> Recipe | None:
    """Round exp(score − maximum) before it meets the values, and before it is added up."""
    if not _is_tried(recipe) or recipe.problem.shape[3] <= block:
        return None
    inner = recipe.softmax

    def softmax(own: Recipe, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(own, scores)
        rounded = _rounded_exponentials(rounding, own, weights, block)
        # Beside the denominator before, in which a sink has its share.
        total = 1 + (rounded - weights).sum(axis=-1, keepdims=True)
        return rounded / total, lse + np.log(total[..., 0])

    return replace(recipe, softmax=softmax)


def _rounded_context_product(
    rounding: Rounding, of_exponentials: int | None, recipe: Recipe
) -> Recipe | None:
    """Round values, and weights or exponentials beside the largest of blocks of so many keys."""
    changed = _rounded_inputs(("value",), rounding, recipe)
    if changed is None:
        return None
    if of_exponentials is None:
        return _rounded_weights(rounding, changed)
    return _with_rounded_exponentials(rounding, of_exponentials, changed)


def _products(name: str, what: str, precision: Precision, rounding: Rounding) -> Convention:
    return Convention(
        name=f"products_in_{name}",
        topic=topics.PRODUCTS,
        meaning=f"the factors of both products are {what}, and the sums are float32",
        fix=f"multiply in float32 ({_SETTINGS}), or judge by --rtol and --atol",
        shows="almost any input",
        apply=partial(_rounded_factors, precision, rounding),
        variant_of=tuple(one.name for one in _EXACT),
        roughly=True,
    )


_QUERY_KEY_IN_TF32 = Convention(
    name="query_key_in_tf32_truncated",
    topic=topics.STORED_INPUTS,
    meaning="query and key are cut to 11 bits, as in TF32, and all else is float32",
    fix="give query and key as after cutting, or in float32" + _PRODUCT_FIX,
    shows="almost any input",
    apply=partial(_rounded_inputs, _INPUTS["query_key"], truncated_to_tf32),
)


def _some_inputs(fmt: str) -> Iterator[Convention]:
    for name, names in _INPUTS.items():
        words = " and ".join(names)
        yield Convention(
            name=f"{name}_in_{fmt}",
            # Beside other mistakes a cache is enough.
            topic=topics.PRODUCTS if name == "cache" else topics.STORED_INPUTS,
            meaning=f"{words} {'is' if len(names) == 1 else 'are'} rounded to {_FORMATS[fmt]}, and "
            "all else is float32",
            fix=f"give {words} as after rounding, or in float32"
            + _PRODUCT_FIX * (fmt == "float16" and name == "query_key"),
            shows="almost any input",
            apply=partial(_rounded_inputs, names, PRECISIONS[fmt].rounded),
        )
    yield Convention(
        name=f"scaled_query_in_{fmt}",
        topic=topics.STORED_INPUTS,
        meaning=f"the query is multiplied with the scale and rounded to {fmt} before the product, "
        "and all else is float32",
        fix="scale the scores, or keep the scaled query in float32",
        shows="a scale that is no power of two",
        apply=partial(_rounded_scaled_query, PRECISIONS[fmt].rounded),
    )


def _terms(fmt: str) -> Iterator[Convention]:
    rounding = PRECISIONS[fmt].rounded
    for name, what, apply in (
        ("bias", "the bias is", partial(_rounded_term, "bias", rounding)),
        ("alibi_slopes", "the ALiBi slopes are", partial(_rounded_slopes, rounding)),
        ("alibi", "slope · distance is", partial(_rounded_term, "alibi", rounding)),
    ):
        yield Convention(
            name=f"{name}_in_{fmt}",
            topic=topics.STORED_SCORES,
            meaning=f"{what} rounded to {fmt}, and all else is float32",
            fix="keep what is added to the scores in float32",
            shows=f"a {'bias' if name == 'bias' else 'slope'} with more bits",
            apply=apply,
        )


def _stored(fmt: str) -> Iterator[Convention]:
    rounding = PRECISIONS[fmt].rounded
    yield Convention(
        name=f"weights_in_{fmt}",
        topic=topics.PRODUCTS,
        meaning=f"the weights are rounded to {fmt} before they meet the values, and all else is "
        "float32",
        fix="multiply the weights with the values in float32",
        shows="almost any input",
        apply=partial(_rounded_weights, rounding),
    )
    yield from _stored_exponentials(fmt)
    for name, when, shows, apply in (
        ("scores", "before the softmax", "almost any input", _rounded_scores),
        (
            "unscaled_scores",
            "before they are scaled",
            "a scale that is no power of two",
            _rounded_before_scale,
        ),
    ):
        yield Convention(
            name=f"{name}_in_{fmt}",
            topic=topics.STORED_SCORES,
            meaning=f"the scores are rounded to {fmt} {when}, and all else is float32",
            fix="keep the scores in float32",
            shows=shows,
            apply=partial(apply, rounding),
        )


def _stored_exponentials(fmt: str) -> Iterator[Convention]:
    """Yield how exponentials are rounded before they meet the values, or the denominator, too."""
    rounding = PRECISIONS[fmt].rounded
    for block, (powers, met, rounded) in product(
        _BLOCKS,
        (
            ("exponentials", "the values", _with_rounded_exponentials),
            ("summed_exponentials", "values and denominator", _with_summed_exponentials),
        ),
    ):
        yield Convention(
            name=f"{powers}_in_{fmt}{_of(block)}",
            topic=topics.STORED_EXPONENTIALS,
            meaning=f"{_exponentials(block)} is rounded to {fmt} before it meets {met}, and all "
            "else is float32",
            fix="multiply the exponentials with the values in float32, or judge by --rtol and "
            "--atol, where tensor cores take no others",
            shows="almost any input",
            apply=partial(rounded, rounding, block),
            variant_of=(f"exponentials_in_{fmt}{_of(block)}",) * powers.startswith("summed"),
        )


_ROUNDINGS: dict[str, tuple[str, Rounding]] = {
    "bfloat16": ("rounded to bfloat16", PRECISIONS["bfloat16"].rounded),
    "float16": (f"rounded to {_FORMATS['float16']},", PRECISIONS["float16"].rounded),
    "tf32_truncated": ("cut to 11 bits, as in TF32,", truncated_to_tf32),
}


def _of(block: int) -> str:
    """Return the end of a name."""
    return f"_of_{block}" if block else ""


def _exponentials(block: int) -> str:
    """Return what a kernel multiplies with the values."""
    so_far = f" so far, of blocks of {block} keys" if block else ""
    return f"exp(score − largest score{so_far})"


def _context_products() -> Iterator[Convention]:
    """Yield how only the factors of the second product are rounded: weights, or exponentials."""
    for name, (what, rounding) in _ROUNDINGS.items():
        yield _context_product(f"weights_value_in_{name}", "the weights", what, rounding, None)
        for block in _BLOCKS:
            whole = f"exponentials_value_in_{name}{_of(block)}"
            yield _context_product(whole, _exponentials(block), what, rounding, block)


def _context_product(
    name: str, factor: str, what: str, rounding: Rounding, block: int | None
) -> Convention:
    return Convention(
        name=name,
        topic=topics.STORED_EXPONENTIALS,
        meaning=f"{factor} and the values are {what} where they meet, and all else is float32",
        fix="multiply weights and values in float32" + _PRODUCT_FIX * ("TF32" in what),
        shows="almost any input",
        apply=partial(_rounded_context_product, rounding, block),
    )


# Those that say all that is rounded.
_EXACT = (
    *(each for fmt in _SHORT for made in (_some_inputs, _stored, _terms) for each in made(fmt)),
    _QUERY_KEY_IN_TF32,
    *_context_products(),
)

PRODUCTS = (
    *_EXACT,
    _products("tf32", "rounded to 11 bits, as in TF32 and float16", TF32, TF32.rounded),
    _products("tf32_truncated", "cut to 11 bits, as in TF32", TF32, truncated_to_tf32),
    _products(
        "bfloat16",
        "rounded to 8 bits, as in bfloat16",
        PRECISIONS["bfloat16"],
        PRECISIONS["bfloat16"].rounded,
    ),
)
