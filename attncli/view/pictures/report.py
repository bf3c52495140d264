"""The picture of a `CheckReport`: one file minus the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.verdict import canonical
from attncli.summaries.maps import Given
from attncli.view.pictures.making import picture_of
from attncli.view.pictures.picture import Look
from attncli.view.pictures.scale import number_text

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.report import CheckReport, Verdict
    from attncli.view.pictures.picture import Picture


def report_picture(report: CheckReport, problem: Problem, name: str) -> tuple[Picture, int]:
    """Return the picture of an output minus its answer, and how many cells are not finite."""
    (verdict,) = (one for one in report.verdicts if one.name == name)
    difference, hidden = (
        _as_maps(problem, name, array) for array in (report.difference(name), report.hidden(name))
    )
    finite, annotate = np.isfinite(difference), None
    strange = int(np.count_nonzero(~finite))
    title, end = _title_and_end(verdict)
    if strange:
        title += f" ({strange} NaN or infinite, drawn as the strongest)"
        end = end or float(np.abs(difference[finite]).max(initial=0)) or 1.0
        difference = np.nan_to_num(difference, nan=2 * end, posinf=2 * end, neginf=-2 * end)
        annotate = False
    across, labels = _axes(name, problem)
    maps = Given(difference, labels=labels, hidden=hidden)
    maps.names = "Queries", across
    names = "above 0: more than in the answer", "above 0: more"
    look = Look("difference", title=title, vmax=end, annotate=annotate, scale_names=names)
    return picture_of(maps, look), strange


def _as_maps(problem: Problem, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an output as (B, H, rows, columns); the queries of an lse go across."""
    four = canonical(problem, name, array)
    return four.swapaxes(2, 3) if name == "lse" else four


def _axes(name: str, problem: Problem) -> tuple[str, Any]:
    queries, keys = problem.query_labels, problem.key_labels
    if name == "context":
        return "Columns", (queries, None)
    if name == "lse":
        return "Queries", (None, queries)
    return "Keys", (queries, keys)


def _title_and_end(verdict: Verdict) -> tuple[str, float | None]:
    """Return the title, and the end of the scale: the tolerance of a right output, or None."""
    title = f"{verdict.name}: file − answer"
    tolerance = verdict.tolerance
    if not verdict.passed or tolerance is None or tolerance.absolute == 0:
        return title, None
    end = number_text(tolerance.absolute).replace("-", "−")
    return f"{title}, tolerance {end}", tolerance.absolute
