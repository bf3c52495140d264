"""The context before its output projection, as far as a projected one tells it.

Where no two contexts have the same projection, the file tells the context of every head, and
what can be read off heads can be read off it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee.evaluation import evaluate
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.referee.recipe import vary
from attncli.referee.verdict import root_mean_square

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["unprojected"]

Array = npt.NDArray[Any]
# With a smallest singular value of less than this share of the largest, roundings are all there is.
_DEPENDENT = 1e-4
# Most errors are less than this share of what is tolerated.
_NOTHING = 1 / 2


def unprojected(case: Case) -> Case | None:
    """Return the same case without its output projection.

    Parameters
    ----------
    case : Case
        With all heads.

    Returns
    -------
    Case or None
        None where there is no such projection, or the file does not tell what was projected.
    """
    problem = case.recipe.problem
    output = problem.output
    if output is None or "context" not in case.files or not comparable(case):
        return None
    batch, heads, queries, _ = problem.shape
    weight = widen(output.weight, np.float64)
    file = canonical_file(case, "context")[:, 0]
    if len(weight) > weight.shape[1] or not np.isfinite(file).all():
        return None
    lengths = np.linalg.svd(weight, compute_uv=False)
    if lengths.min() <= _DEPENDENT * lengths.max():
        return None
    bias = 0.0 if output.bias is None else widen(output.bias, np.float64)
    joined = (file - bias) @ np.linalg.pinv(weight)
    context = joined.reshape(batch, queries, heads, -1).transpose(0, 2, 1, 3)
    resolution = case.recipe.resolution * root_mean_square(1 / lengths)
    recipe = vary(case.recipe, output=None)
    recipe = replace(recipe, whole=replace(recipe.whole, output=None), resolution=resolution)
    # What cannot be told from 0 was 0, if anything was.
    context[np.abs(context) <= _NOTHING * resolution] = 0
    return replace(
        case,
        recipe=recipe,
        files={"context": context},
        right=evaluate(recipe, products=case.products),
        whole=False,
        errors={},
    )
