"""Follow a recipe: all outputs of right or deviating attention, rounded to any format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.operands import prepare
from attncli.numerics.dtypes import widen
from attncli.referee.replacing import replace
from attncli.referee.rounding import FLOAT64, Precision
from attncli.referee.stages import CAPS, product_of, shared, step_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.output import OutputProjection
    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["Stages", "evaluate", "projected"]

Array = npt.NDArray[Any]
# Of what is kept of one case, and of what it is made of: 32 MB.
_MOST_NUMBERS = 2**22


class Stages:
    """What the steps from the product to the scores make in float64, for recipes of one case.

    Most of them have a product in common, and more than half of them scores. As many are kept
    as are not large together.
    """

    def __init__(self) -> None:
        # While arrays are kept, no others have their ids.
        self._kept: dict[tuple[object, ...], tuple[Sequence[Array], dict[str, Array]]] = {}
        self._numbers = 0

    def of(self, recipe: Recipe) -> dict[str, Array]:
        """Return what each step makes, the scores last."""
        problem = recipe.problem
        factors = _factors(problem)
        turn = problem.rope, problem.rope and problem.visible.offsets
        product = (*map(id, factors), problem.score, turn)
        if product not in self._kept:
            self._keep(product, factors, {"scale": _product(problem, FLOAT64, fold=False)})
        scores = self._kept[product][1]["scale"]
        arrays = (*recipe.terms.values(), *recipe.rules.values())
        steps = problem.scale, problem.softcap, recipe.order, recipe.fill, *recipe.terms
        key = (product, *steps, *map(id, arrays))
        if key not in self._kept:
            made = _steps(recipe, FLOAT64, scores, recipe.order)
            self._keep(key, (*factors, *arrays), made)
        return self._kept[key][1]

    def _keep(
        self, key: tuple[object, ...], given: Sequence[Array], made: dict[str, Array]
    ) -> None:
        for array in made.values():
            array.flags.writeable = False
        own = sum(array.size for array in (*made.values(), *given))
        if self._numbers + own > _MOST_NUMBERS:
            self._kept.clear()
            self._numbers = 0
        self._numbers += own
        self._kept[key] = given, made


def _factors(problem: Problem) -> list[Array]:
    """Return the arrays that products are made of."""
    arrays = problem.query, problem.key, problem.score_weight, problem.score_vector
    return [array for array in arrays if array is not None]


def evaluate(
    recipe: Recipe,
    precision: Precision = FLOAT64,
    *,
    fold: bool = False,
    known: Stages | None = None,
) -> Outputs:
    """Follow a recipe, rounding after every step.

    Parameters
    ----------
    recipe : Recipe
    precision : Precision
    fold : bool
        Multiply the query with the scale instead of the product: the same in exact
        arithmetic, other roundings.
    known : Stages, optional
        Of the case that the recipe is tried on; what it holds is read only.

    Returns
    -------
    dict of str to ndarray
        raw, capped, scores, weights (B, H, L, S); context (B, H, L, E), or (B, 1, L, out) with
        an output projection; lse (B, H, L, 1).
    """
    with np.errstate(all="ignore"):
        stages = _stages(recipe, precision, fold=fold) if known is None else known.of(recipe)
        outputs = _outputs(recipe, precision, stages)
        for finish in recipe.finish:
            outputs = finish(recipe, outputs)
        if "context" in outputs:
            outputs = outputs | {"context": _after_projection(recipe, precision, outputs)}
        for finish in recipe.behind:
            outputs = finish(recipe, outputs)
    return outputs


def _stages(recipe: Recipe, precision: Precision, *, fold: bool) -> dict[str, Array]:
    """Return what each step from the product to the scores makes, the scores last."""
    problem = recipe.problem
    fold = fold and recipe.order[0] == "scale" and problem.is_product
    product = _product(problem, precision, fold=fold, one_by_one=recipe.one_by_one)
    return _steps(recipe, precision, product, recipe.order[1:] if fold else recipe.order)


def _steps(
    recipe: Recipe, precision: Precision, scores: Array, order: Sequence[str]
) -> dict[str, Array]:
    """Return the product and what each step makes of it, the scores last."""
    stages = {"scale": scores}
    for step in order:
        scores = precision.score(step_function(step)(recipe, scores))
        stages["cap" if step in CAPS else step] = scores
    return stages | {"scores": scores}


def _outputs(recipe: Recipe, precision: Precision, stages: dict[str, Array]) -> Outputs:
    """Return all outputs, the context before its projection."""
    problem = recipe.problem
    weights, lse = recipe.softmax(recipe, stages["scores"])
    for change in recipe.after:
        weights = change(recipe, weights)
    weights = precision.rounded(weights)
    outputs = {
        "raw": precision.rounded(stages["scale"]),
        "capped": precision.rounded(stages.get("cap", stages["scale"])),
        "scores": precision.rounded(stages["scores"]),
        "weights": weights,
        "lse": precision.rounded(lse[..., None]),
    }
    if problem.value is not None:
        value = precision.rounded(widen(problem.value, precision.computing))
        outputs["context"] = precision.rounded(_mixed(recipe, weights, value))
    return outputs


def _after_projection(recipe: Recipe, precision: Precision, outputs: Outputs) -> Array:
    """Return the context after its output projection, if there is one; padded queries are 0."""
    output = recipe.problem.output
    made = projected(output, outputs["context"], precision)
    if output is not None and "query_lengths" in recipe.rules:
        made = np.where(recipe.rules["query_lengths"][..., :1], made, 0)
    return made


def _mixed(recipe: Recipe, weights: Array, value: Array) -> Array:
    """Return the sum of the values, each times its weight."""
    if recipe.mix is np.matmul:
        return product_of(weights, value, one_by_one=recipe.one_by_one)
    return recipe.mix(weights, shared(recipe.problem, value))


def projected(
    output: OutputProjection | None, context: Array, precision: Precision = FLOAT64
) -> Array:
    """Return the context after its output projection, (B, 1, L, out): no heads are left.

    Parameters
    ----------
    output : OutputProjection or None
        None leaves the context as it is.
    context : ndarray (B, H, L, E)
    precision : Precision
        Of the products.
    """
    if output is None:
        return context
    batch, heads, rows, width = context.shape
    weight = precision.rounded(widen(output.weight, precision.computing))
    if heads * width != len(weight):  # a convention that changes the width has no output
        return context
    joined = context.transpose(0, 2, 1, 3).reshape(batch, 1, rows, heads * width)
    made = precision.rounded(joined @ weight)
    if output.bias is None:
        return made
    return precision.rounded(made + precision.rounded(widen(output.bias, precision.computing)))


def _product(
    problem: Problem, precision: Precision, *, fold: bool, one_by_one: bool = False
) -> Array:
    """Return Q Kᵀ, or another score function, unscaled."""
    query, key = (
        precision.rounded(widen(array, precision.computing))
        for array in (problem.query, problem.key)
    )
    rounded = replace(problem, dtype=precision.computing, query=query, key=key)
    operands = prepare(rounded, angles=precision.computing)
    query = precision.rounded(operands.query)
    key = precision.rounded(operands.key)
    if not problem.is_product:
        key = shared(problem, key)
        vector = widen(np.asarray(problem.score_vector), precision.computing)
        return precision.score(np.tanh(query[..., None, :] + key[..., None, :, :]) @ vector)
    if fold:
        query = precision.score(query * precision.computing.type(problem.scale))
    return precision.score(product_of(query, key.swapaxes(-1, -2), one_by_one=one_by_one))
