"""How a query was made from its embedding: the first step, if the inputs were projected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.explanation.data import QueryMade, QueryNorm
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import sinusoidal
from attncli.problem.norms import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem

__all__ = ["made_query"]

Array = npt.NDArray[Any]


def made_query(problem: Problem, *, batch: int, head: int, query: int) -> QueryMade | None:
    """Return how a query was made; None if it was not projected."""
    if problem.made_from is None or problem.made_from.arguments["wq"] is None:
        return None
    given = problem.made_from.arguments
    x = np.asarray(given["x"])
    rows = x if x.ndim == 2 else x[batch if len(x) > 1 else 0]
    own = widen(rows[query], problem.dtype)
    position = None
    if given["positions"] is not None:
        position = sinusoidal(1, len(own), first=query)[0].astype(problem.dtype)
    width = problem.query.shape[3]
    columns = slice(head * width, (head + 1) * width)
    weight, bias = np.asarray(given["wq"]), given["bq"]
    return QueryMade(
        given=own,
        position=position,
        weight=widen(weight[:, columns], problem.dtype),
        columns=(columns.start, columns.stop - 1) if weight.shape[1] > width else None,
        bias=None if bias is None else widen(bias[columns], problem.dtype),
        norm=_norm(given, own if position is None else own + position, columns),
    )


def _norm(given: Mapping[str, Any], embedding: Array, columns: slice) -> QueryNorm | None:
    weight = given["q_norm"]
    if weight is None:
        return None
    joint = len(weight) == np.asarray(given["wq"]).shape[1] > columns.stop - columns.start
    all_of = slice(None) if joint else columns
    made = embedding.astype(np.float64) @ widen(np.asarray(given["wq"])[:, all_of], np.float64)
    if given["bq"] is not None:
        made += widen(given["bq"][all_of], np.float64)
    own = made[columns] if joint else made
    return QueryNorm(
        projected=own.astype(embedding.dtype),
        rms=root_mean_square(made, given["norm_eps"]),
        epsilon=given["norm_eps"],
        weight=widen(weight[columns] if joint else weight, embedding.dtype),
        joint=joint,
    )
