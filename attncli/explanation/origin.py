"""How a query was made from its embedding: the first step, if the inputs were projected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.dtypes import widen
from attncli.explanation.data import QueryMade
from attncli.positions import sinusoidal

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["made_query"]


def made_query(problem: Problem, *, batch: int, head: int, query: int) -> QueryMade | None:
    """Return how one query was made; None if it was given as it is.

    Parameters
    ----------
    problem : Problem
        The whole problem, with all its heads.
    batch, head, query : int
        Within its shape.
    """
    if problem.made_from is None:
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
    bias = given["bq"]
    return QueryMade(
        given=own,
        position=position,
        weight=widen(np.asarray(given["wq"])[:, columns], problem.dtype),
        bias=None if bias is None else widen(bias[columns], problem.dtype),
    )
