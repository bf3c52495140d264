"""The picture of a `CheckReport`: one file minus the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee.verdict import canonical
from attncli.view.pictures.differences import difference_picture
from attncli.view.pictures.scale import number_text

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.report import CheckReport, Verdict
    from attncli.view.pictures.picture import Picture

__all__ = ["report_picture"]

Array = npt.NDArray[Any]


class ReportPicture(NamedTuple):
    """A picture, and what its reader must know.

    Attributes
    ----------
    picture : Picture
    strange : int
        How many elements of the difference are NaN or infinite: they have no number.
    """

    picture: Picture
    strange: int


def report_picture(report: CheckReport, problem: Problem, name: str) -> ReportPicture:
    """Return the picture of an output minus its answer, symmetric around 0.

    Parameters
    ----------
    report : CheckReport
    problem : Problem
        That the report is about.
    name : str
        The output.

    Raises
    ------
    ShapeError
        The file has another shape than the answer.
    """
    (verdict,) = (one for one in report.verdicts if one.name == name)
    difference = report.difference(name)
    strange = int(np.count_nonzero(~np.isfinite(difference)))
    ends = _ends(verdict)
    if strange:
        ends["title"] += f" ({strange} NaN or infinite, drawn as the strongest)"
    shown, hidden = (_as_maps(problem, name, array) for array in (difference, report.hidden(name)))
    made = difference_picture(shown, hidden=hidden, **_named_axes(name, problem), **ends)
    return ReportPicture(made, strange)


def _as_maps(problem: Problem, name: str, array: Array) -> Array:
    """Return an output as (B, H, rows, columns): the lse as rows, for queries go across."""
    four = canonical(problem, name, array)
    return four.swapaxes(2, 3) if name == "lse" else four


def _named_axes(name: str, problem: Problem) -> dict[str, Any]:
    """Return what rows and columns of an output are."""
    queries, keys = problem.query_labels, problem.key_labels
    if name == "context":
        return {"query_labels": queries, "columns_are": "Columns"}
    if name == "lse":
        return {"key_labels": queries, "columns_are": "Queries"}
    return {"query_labels": queries, "key_labels": keys}


def _ends(verdict: Verdict) -> dict[str, Any]:
    """Return the title, and a scale on which what is tolerated looks harmless."""
    title = f"{verdict.name}: file − answer"
    tolerance = verdict.tolerance
    if not verdict.passed or tolerance is None or tolerance.absolute == 0:
        return {"title": title}
    end = tolerance.absolute
    return {"title": f"{title}, tolerance {number_text(end)}", "vmax": end}
