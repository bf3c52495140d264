"""Rows of NaN beside another mistake: the rest is explained without them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attncli.referee.fitted.unwritten import nan_rows_told
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from attncli.referee.comparison import Judged
    from attncli.referee.question import Question
    from attncli.referee.report import Cause

__all__ = ["beside_nan_rows", "without_nan_rows"]

Bools = npt.NDArray[np.bool_]


def without_nan_rows(question: Question) -> Question | None:
    """Return the question in which rows that are NaN, and should not be, are no errors.

    None where there are no such rows, or single numbers are NaN, too, or all else is right.

    Parameters
    ----------
    question : Question
    """
    rows = _nan_rows(question)
    if rows is None:
        return None
    outputs = {
        name: _without(judged, rows[name]) if name in rows else judged
        for name, judged in question.outputs.items()
    }
    wrong = any(one.wrong is not None and one.wrong.any() for one in outputs.values())
    return replace(question, outputs=outputs, nan_rows=rows) if wrong else None


def beside_nan_rows(cause: Cause, rest: Question) -> Cause:
    """Return a cause of what is left without them, as `without_nan_rows` has it, with them told."""
    rows = rest.nan_rows
    counts = sum(int(np.count_nonzero(each)) for each in rows.values())
    told = nan_rows_told(counts, sum(each.size for each in rows.values()))
    return replace(cause, conventions=(*cause.conventions, told))


def _nan_rows(question: Question) -> dict[str, Bools] | None:
    """Return which rows (B, H, L) of each output are NaN although the answer is a number."""
    if len(question.shaped) < len(question.outputs):
        return None
    found: dict[str, Bools] = {}
    for name, file in question.shaped.items():
        answer = canonical(question.problem, name, question.outputs[name].answer)
        odd = np.asarray(np.isnan(file) & np.isfinite(answer))
        rows = np.asarray(odd.all(axis=-1))
        if (odd & ~rows[..., None]).any():
            return None
        if rows.any():
            found[name] = rows
    return found or None


def _without(judged: Judged, rows: Bools) -> Judged:
    errors = judged.errors
    if errors is None:
        return judged
    return replace(judged, errors=replace(errors, error=np.where(rows[..., None], 0, errors.error)))
