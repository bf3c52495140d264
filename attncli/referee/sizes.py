"""How large the numbers of each output are, and the terms that are added up to make them.

Terms of either sign may cancel; what is rounded are their sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.names import SCORE_STAGES
from attncli.numerics.dtypes import widen
from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["product_sizes", "through_the_output", "typical_sizes"]

Array = npt.NDArray[Any]


def typical_sizes(recipe: Recipe, exact: Outputs, names: Iterable[str]) -> dict[str, float]:
    """Return the size of a typical element of each output.

    Parameters
    ----------
    recipe : Recipe
    exact : dict
        What `evaluate` gives for it.
    names : iterable of str
        Of outputs.
    """
    sizes = {}
    for name in names:
        array = np.abs(exact[name])
        if name == "context":
            array = _context_sizes(recipe.problem, exact["weights"])
        elif name in SCORE_STAGES and recipe.problem.score == "dot":
            array = np.maximum(array, product_sizes(recipe.problem))
        array = array[np.isfinite(array)]
        sizes[name] = _typical(name, array) if array.size else 0.0
        if name == "lse":  # the logarithm of a sum near 1 carries the error of the sum
            sizes[name] = max(1.0, sizes[name])
    return sizes


def _typical(name: str, sizes: Array) -> float:
    """Return the size of a typical element: of scores, which a bias makes huge, the median."""
    return float(np.median(sizes) if name in SCORE_STAGES else np.max(sizes))


def product_sizes(problem: Problem) -> Array:
    """Return the sums of the sizes of what is added up in each product, scaled (B, H, L, S)."""
    query, key = (np.abs(widen(array, np.float64)) for array in (problem.query, problem.key))
    return np.asarray(abs(problem.scale) * (query @ shared(problem, key).swapaxes(-1, -2)))


def _context_sizes(problem: Problem, weights: Array) -> Array:
    if problem.value is None:
        return np.zeros((*weights.shape[:3], 0))
    values = np.abs(shared(problem, widen(problem.value, np.float64)))
    with np.errstate(invalid="ignore"):  # mistakes may make weights infinite
        return through_the_output(problem, np.abs(weights) @ values)


def through_the_output(problem: Problem, sizes: Array) -> Array:
    """Return the sizes of contexts behind the output projection, where there is one."""
    if problem.output is None:
        return sizes
    batch, heads, rows, width = sizes.shape
    if heads * width != len(problem.output.weight):  # a convention that changes the width
        return sizes
    joined = sizes.transpose(0, 2, 1, 3).reshape(batch, rows, heads * width)
    return np.asarray(joined @ np.abs(widen(problem.output.weight, np.float64)))
