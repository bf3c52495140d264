"""Fully masked rows: queries that see no key, for which a denominator of 0 is right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.sweep import tiles
from attncli.numerics.dtypes import widen
from attncli.problem.visibility import cut

if TYPE_CHECKING:
    from attncli.engine.tile import Rows

__all__ = ["are_fully_masked"]

_COLUMNS = 1024


def are_fully_masked(rows: Rows, chosen: npt.NDArray[np.bool_], span: tuple[int, int]) -> bool:
    """Return whether rules and bias hide every key of a span from each of the chosen queries.

    Parameters
    ----------
    rows : Rows
    chosen : ndarray of bool (N, queries)
        Which queries of each head to look at.
    span : (start, stop)
    """
    return rows.may_be_fully_masked and not any(
        _see_any(rows, rows.heads[0] + number, some, columns)
        for number, some in enumerate(chosen)
        if some.any()
        for columns in tiles(span, _COLUMNS)
    )


def _see_any(rows: Rows, head: int, some: npt.NDArray[np.bool_], columns: tuple[int, int]) -> bool:
    """Return whether any of some queries (one bool for each) sees any key of some columns."""
    problem = rows.operands.problem
    place: Any = rows.batch, head, (rows.start, rows.stop), columns
    shape = len(some), columns[1] - columns[0]
    seen = problem.visible.tile(*place)
    if problem.bias is not None:
        let_in = widen(cut(problem.bias, *place), problem.dtype) > -np.inf
        seen = let_in if seen is None else seen & let_in
    return seen is None or bool(np.broadcast_to(seen, shape)[some].any())
