"""The context before its output projection, as far as a projected one tells it.

Where no two contexts have the same projection, the file tells the context of every head, and
what can be read off heads can be read off it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import vary

if TYPE_CHECKING:
    from attncli.referee.case import Case

__all__ = ["unprojected"]

Array = npt.NDArray[Any]
# Beyond this, mean of the singular values times mean of their reciprocals, roundings are all
# there is.
_MOST_CONDITION = 1e4
# Undone in half a second.
_MOST_COLUMNS = 2048
# Most errors are less than this share of what is tolerated.
_NOTHING = 1 / 2


def _inverse(weight: Array) -> Array | None:
    """Return what undoes a projection (H·E, out), (out, H·E); None where nearly nothing does."""
    try:
        if weight.shape[0] == weight.shape[1]:
            inverse = np.linalg.inv(weight)
        else:
            orthogonal, triangular = np.linalg.qr(weight.T)
            inverse = orthogonal @ np.linalg.inv(triangular).T
    except np.linalg.LinAlgError:
        return None
    condition = np.linalg.norm(weight) * np.linalg.norm(inverse) / len(weight)
    return inverse if condition <= _MOST_CONDITION else None


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
    if output is None or "context" not in case.files or not case.comparable:
        return None
    weight = widen(output.weight, np.float64)
    file = case.canonical("context")[:, 0]
    if len(weight) > min(weight.shape[1], _MOST_COLUMNS) or not np.isfinite(file).all():
        return None
    inverse = _inverse(weight)
    if inverse is None:
        return None
    bias = 0.0 if output.bias is None else widen(output.bias, np.float64)
    joined = (file - bias) @ inverse
    if "query_lengths" in case.recipe.rules:  # padded queries are 0 behind the projection, too
        joined = np.where(case.recipe.rules["query_lengths"][:, 0, :, :1], joined, 0)
    batch, heads, queries, _ = problem.shape
    context = joined.reshape(batch, queries, heads, -1).transpose(0, 2, 1, 3)
    # As large as the errors of a row are on average, whose directions are any.
    resolution = case.recipe.resolution * float(np.linalg.norm(inverse)) / len(weight) ** 0.5
    recipe = vary(case.recipe, output=None)
    recipe = replace(recipe, whole=replace(recipe.whole, output=None), resolution=resolution)
    # What cannot be told from 0 was 0, if anything was.
    context[np.abs(context) <= _NOTHING * resolution] = 0
    return replace(
        case,
        recipe=recipe,
        files={"context": context},
        right=evaluate(recipe, known=case.stages),
        whole=False,
        errors={},
    )
