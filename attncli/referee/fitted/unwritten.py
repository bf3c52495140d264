"""Rows of a file that hold nothing but zeros, as if no block of the kernel had written them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import canonical_file
from attncli.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Outputs, Part, Recipe

__all__ = ["unwritten"]

Bools = npt.NDArray[np.bool_]
# Of each part of a problem: of each output, which rows are empty (B, H, L, 1).
Rows = dict["Part", dict[str, Bools]]
# A row of one number may be 0 by chance.
_OUTPUTS = ("context", "weights")


def unwritten(cases: Sequence[Case], _: float) -> Convention | None:
    """Return the convention that some rows were not written.

    Parameters
    ----------
    cases : sequence of Case

    Returns
    -------
    Convention or None
        None where no row is 0 that should not be.
    """
    if not all(comparable(case) for case in cases):
        return None
    rows: Rows = {case.recipe.part: _empty_rows(case) for case in cases}
    empty = [mask for masks in rows.values() for mask in masks.values()]
    count = sum(int(np.count_nonzero(mask)) for mask in empty)
    if count == 0:
        return None
    of = sum(mask.size for mask in empty)
    verb = "is" if count == 1 else "are"
    return Convention(
        name="rows_not_written",
        topic=topics.UNWRITTEN,
        meaning=f"{count:,} of {counted(of, 'row')} {verb} 0, as if nothing had been written, "
        "and the others are right",
        fix="write every block of queries, the last one too where it is not full",
        shows="other numbers of queries",
        apply=lambda recipe: _emptied(recipe, rows),
    )


def _empty_rows(case: Case) -> dict[str, Bools]:
    return {
        name: (canonical_file(case, name) == 0).all(-1, keepdims=True)
        & (case.right[name] != 0).any(-1, keepdims=True)
        for name in _OUTPUTS
        if name in case.files and canonical_file(case, name).shape == case.right[name].shape
    }


def _emptied(recipe: Recipe, rows: Rows) -> Recipe | None:
    empty = rows.get(recipe.part)
    if empty is None:  # another part of a large problem
        return None

    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        made: dict[str, Any] = {n: np.where(mask, 0, outputs[n]) for n, mask in empty.items()}
        return {**outputs, **made}

    return replace(recipe, behind=(*recipe.behind, finish))
