"""Queries that see no key: their sums are 0, and rightly so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.sweep import tiles
from attncli.visibility import cut

if TYPE_CHECKING:
    from attncli.engine.tile import Rows

__all__ = ["are_blind"]

_COLUMNS = 1024


def are_blind(rows: Rows, asked: npt.NDArray[np.bool_], span: tuple[int, int]) -> bool:
    """Return whether rules and bias hide every key of a span from some queries.

    Parameters
    ----------
    rows : Rows
    asked : ndarray of bool (N, queries)
        Which queries of each head.
    span : (start, stop)
    """
    return rows.may_be_blind and not any(
        _see_any(rows, rows.head + number, some, columns)
        for number, some in enumerate(asked)
        if some.any()
        for columns in tiles(span, _COLUMNS)
    )


def _see_any(rows: Rows, head: int, some: npt.NDArray[np.bool_], columns: tuple[int, int]) -> bool:
    problem = rows.operands.problem
    place: Any = rows.batch, head, (rows.start, rows.stop), columns
    shape = len(some), columns[1] - columns[0]
    seen = problem.visible.tile(*place)
    if problem.bias is not None:
        let_in = widen(cut(problem.bias, *place), problem.dtype) > -np.inf
        seen = let_in if seen is None else seen & let_in
    return seen is None or bool(np.broadcast_to(seen, shape)[some].any())
