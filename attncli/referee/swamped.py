"""Queries that are not judged: all their keys have a huge bias, which stands for a mask.

A bias of −1e9 swallows the digits of the scores: in float32 the numbers near 1e9 are 64 apart. So
the weights of such a row are rounding errors, which would widen the tolerance of the whole file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors import DataError
from attncli.errors.text import counted
from attncli.referee.pipeline import LEAST_SEEN, pipeline_of
from attncli.referee.run import by_query
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools, File
    from attncli.referee.run import Run

# Scores carry no information if neighbouring numbers of the format are farther apart than this.
_TOO_FAR = 0.5
# The outputs that are computed before the bias is added.
_BEFORE = ("raw", "capped")


def swamped_queries(problem: Problem, files: Mapping[str, File]) -> Bools | None:
    """Return the queries that are not judged, (B or 1, H or 1, L or 1); None if all are judged."""
    names = [name for name in files if name not in _BEFORE]
    if problem.bias is None or not names:
        return None
    no_digits = -_TOO_FAR / max(files[name].precision.eps for name in names)
    least = max(no_digits, LEAST_SEEN)
    if np.asarray(problem.bias).min() > least:
        return None
    highest = _highest_seen(problem)
    swamped: Bools = np.isfinite(highest) & (highest <= least)
    if not swamped.all():
        return swamped if swamped.any() else None
    if (highest <= no_digits).all():
        raise DataError(
            f"{' and '.join(names)}: no query can be judged: the bias of all keys is so large that "
            "the scores lose all digits",
            hint="hide keys with −inf instead, or set your own tolerance (--rtol, --atol)",
        )
    return None


def _highest_seen(problem: Problem) -> Array:
    if not problem.visible.hides:
        return np.asarray(np.max(np.asarray(problem.bias), axis=-1), np.float64)
    pipe = pipeline_of(problem)

    def highest(run: Run) -> Array:
        return np.asarray(np.where(run.seen, run.called(pipe.terms["bias"]), -np.inf).max(axis=-1))

    return by_query(pipe, problem.shape[1], highest)


def without(problem: Problem, swamped: Bools) -> tuple[Problem, str]:
    """Return the problem with these queries fully masked, and a sentence for the user."""
    everywhere = np.broadcast_to(swamped, problem.shape[:3])
    some = int(np.count_nonzero(everywhere))
    are = "is" if some == 1 else "are"
    bias = np.where(swamped[..., None], -np.inf, np.asarray(problem.bias))
    return replace(problem, bias=bias), (
        f"{some} of {counted(everywhere.size, 'query', 'queries')} {are} not judged: the bias of "
        "all their keys is so large that the scores lose digits; hide keys with −inf instead"
    )


def with_the_answer(
    problem: Problem, files: Mapping[str, File], answers: Mapping[str, Any], swamped: Bools
) -> dict[str, File]:
    """Return the files in which the rows of these queries hold the answer."""
    made = dict(files)
    for name, file in files.items():
        if name in _BEFORE or file.values.shape != answers[name].shape:
            continue
        found, right = (canonical(problem, name, a) for a in (file.values, answers[name]))
        # Behind an output projection, or an average, there is one head.
        mixed = found.shape[1] < problem.shape[1]
        rows = np.asarray(swamped.any(axis=1, keepdims=True) if mixed else swamped)
        kept = np.where(rows[..., None], right, found)
        joined = problem.layout.join(kept) if name == "context" else kept
        made[name] = replace(file, values=joined.reshape(file.values.shape))
    return made
