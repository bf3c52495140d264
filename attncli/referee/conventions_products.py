"""Products whose factors are rounded to fewer bits than the file has, and summed in float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.operands import prepare
from attncli.referee.convention import Convention
from attncli.referee.recipe import vary
from attncli.referee.rounding import PRECISIONS, TF32, Precision, truncated_to_tf32

if TYPE_CHECKING:
    from attncli.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["PRODUCTS"]

Array = npt.NDArray[Any]
Rounding = Callable[[Array], Array]
# More keys than this are not rounded again and again.
_MOST_NUMBERS = 2**21


def _factors(problem: Problem) -> dict[str, Array]:
    """Return what is multiplied with something, in float64: query and key are turned already."""
    operands = prepare(replace(problem, score="dot", score_weight=None))
    given = {"query": operands.query, "key": operands.key, "value": problem.value}
    return {name: widen(a, np.float64) for name, a in given.items() if a is not None}


def _rounded_factors(precision: Precision, rounding: Rounding, recipe: Recipe) -> Recipe | None:
    """Round query, key and value; the weights too where these have no more bits."""
    problem = recipe.problem
    if recipe.largest != PRECISIONS["float32"].largest or problem.score not in ("dot", "cosine"):
        return None
    if problem.key.size > _MOST_NUMBERS:
        return None
    factors = _factors(problem)
    with np.errstate(over="ignore"):
        rounded = {n: rounding(a.astype(np.float32)).astype(np.float64) for n, a in factors.items()}
    if not all(np.isfinite(array).all() for array in rounded.values()):
        return None
    changed = replace(vary(recipe, rope=None, **rounded), products=replace(precision, fused=True))
    if all(np.array_equal(rounded[name], factors[name]) for name in factors):
        return replace(changed, after=(*recipe.after, partial(_rounded_exponentials, rounding)))
    return changed


def _rounded_exponentials(rounding: Rounding, _: Recipe, weights: Array) -> Array:
    """Round exp(score − maximum), as a kernel holds it when it meets the values."""
    top = weights.max(-1, keepdims=True)
    top = np.where(top == 0, 1, top)
    return rounding((weights / top).astype(np.float32)).astype(np.float64) * top


def _products(name: str, what: str, precision: Precision, rounding: Rounding) -> Convention:
    return Convention(
        name=f"products_in_{name}",
        topic="products",
        meaning=f"the factors of both products are {what}, and the sums are float32",
        fix='multiply in float32 (Triton: input_precision="ieee"; PyTorch: '
        'torch.set_float32_matmul_precision("highest")), or judge by --rtol and --atol',
        shows="nearly any inputs",
        apply=partial(_rounded_factors, precision, rounding),
    )


PRODUCTS = (
    _products("tf32", "rounded to 11 bits, as in TF32 and float16", TF32, TF32.rounded),
    _products("tf32_truncated", "cut to 11 bits, as in TF32", TF32, truncated_to_tf32),
    _products(
        "bfloat16",
        "rounded to 8 bits, as in bfloat16",
        PRECISIONS["bfloat16"],
        PRECISIONS["bfloat16"].rounded,
    ),
)
