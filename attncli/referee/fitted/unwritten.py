"""Rows of a file that hold nothing but zeros, as if no block of the kernel had written them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Convention
from attncli.referee.fitted.another_number import comparable
from attncli.referee.fitted.found_weights import by_part, canonical_file
from attncli.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.referee.case import Case
    from attncli.referee.recipe import Outputs, Recipe

__all__ = ["unwritten"]

Bools = npt.NDArray[np.bool_]
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
    rows = {case.recipe.part: _empty_rows(case) for case in cases}
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
        apply=by_part(rows, _emptied),
    )


def _empty_rows(case: Case) -> dict[str, Bools]:
    """Return which rows of each output are empty and should not be, (B, H, L, 1)."""
    return {
        name: (canonical_file(case, name) == 0).all(-1, keepdims=True)
        & (case.right[name] != 0).any(-1, keepdims=True)
        for name in _OUTPUTS
        if name in case.files and canonical_file(case, name).shape == case.right[name].shape
    }


def _emptied(recipe: Recipe, empty: Mapping[str, Bools]) -> Recipe:
    def finish(_: Recipe, outputs: Outputs) -> Outputs:
        return {**outputs, **{n: np.where(rows, 0, outputs[n]) for n, rows in empty.items()}}

    return replace(recipe, behind=(*recipe.behind, finish))
