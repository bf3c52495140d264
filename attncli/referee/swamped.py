"""Queries whose scores lose all digits to a large bias: they cannot be judged.

Where a bias of −1e9 stands for a mask, the weights of a fully masked row are rounding error:
in float32 the numbers near 1e9 are 64 apart, and float16 has none. There the error of the
textbook formula is as large as the values, and would become the tolerance of the whole file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError
from attncli.errors.text import counted
from attncli.numerics.dtypes import widen
from attncli.problem.visibility import cut
from attncli.referee.pipeline import LEAST_SEEN
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem
    from attncli.referee.formats import File

__all__ = [
    "hidden_scores",
    "masked_queries",
    "swamped_queries",
    "told",
    "told_apart",
    "with_the_answer",
    "without",
]

Bools = npt.NDArray[np.bool_]
# Scores that cannot be closer than this carry no information.
_TOO_FAR = 0.5
_ROWS_AT_A_TIME = 256
_WHY = "the bias of all their keys is so large that the scores lose all digits"
# What is made before the bias is added.
_BEFORE = ("raw", "capped")


def swamped_queries(problem: Problem, files: Mapping[str, File]) -> Bools | None:
    """Return the queries all of whose keys have a bias that swamps scores in a file's format.

    Parameters
    ----------
    problem : Problem
    files : mapping of str to File

    Returns
    -------
    ndarray of bool (B or 1, H or 1, L or 1), or None where there is none

    Raises
    ------
    DataError
        They are all queries, so that nothing is left to judge.
    """
    behind = [file.precision.eps for name, file in files.items() if name not in _BEFORE]
    swamped = _below(problem, -_TOO_FAR / max(behind)) if behind else None
    if swamped is not None and swamped.all():
        names = " and ".join(name for name in files if name not in _BEFORE)
        raise DataError(
            f"{names}: no query can be judged: {_WHY}",
            hint="hide keys with −inf instead, or set a tolerance of your own (--rtol, --atol)",
        )
    return swamped


def masked_queries(problem: Problem) -> Bools | None:
    """Return the queries all of whose keys have a bias that stands for a mask.

    Their scores have fewer digits than those of others, so that they are judged apart.
    """
    masked = _below(problem, LEAST_SEEN)
    return None if masked is None or masked.all() else masked


def _below(problem: Problem, least: float) -> Bools | None:
    """Return the queries none of whose keys that they see has a larger bias; None without any."""
    if problem.bias is None or float(np.min(problem.bias)) > least:
        return None
    highest = _highest_seen(problem)
    below: Bools = np.isfinite(highest) & (highest <= least)
    return below if below.any() else None


def _highest_seen(problem: Problem) -> npt.NDArray[np.float64]:
    """Return the largest bias of the keys that each query sees; −inf where it sees none."""
    bias = np.asarray(problem.bias)
    if not problem.visible.hides:
        return np.asarray(np.max(bias, axis=-1), np.float64)
    batch, heads, queries, keys = problem.shape
    highest = np.empty((batch, heads, queries))
    for b, h in np.ndindex(batch, heads):
        for start in range(0, queries, _ROWS_AT_A_TIME):
            rows = start, min(start + _ROWS_AT_A_TIME, queries)
            seen = problem.visible.tile(b, h, rows, (0, keys))
            part = cut(bias, b, h, rows, (0, keys))
            kept = part if seen is None else np.where(seen, part, -np.inf)
            highest[b, h, slice(*rows)] = np.max(kept, axis=-1)
    return highest


def without(problem: Problem, swamped: Bools) -> Problem:
    """Return the problem with these queries fully masked."""
    bias = np.asarray(problem.bias)
    return replace(problem, bias=np.where(swamped[..., None], -np.inf, bias))


def with_the_answer(
    problem: Problem, files: Mapping[str, File], answers: Mapping[str, Any], swamped: Bools
) -> dict[str, File]:
    """Return the files with the answer in the rows of these queries."""
    return {
        name: file
        if name in _BEFORE or file.values.shape != answers[name].shape
        else replace(file, values=_answered(problem, name, file.values, answers[name], swamped))
        for name, file in files.items()
    }


def _answered(
    problem: Problem, name: str, values: npt.NDArray[Any], answer: npt.NDArray[Any], swamped: Bools
) -> npt.NDArray[Any]:
    found, right = (canonical(problem, name, array) for array in (values, answer))
    # After an output projection, or an average, the heads are one.
    mixed = found.shape[1] < problem.shape[1]
    rows = np.any(swamped, axis=1, keepdims=True) if mixed else swamped
    kept = np.where(np.asarray(rows)[..., None], right, found)
    return problem.layout.join(kept) if name == "context" else kept.reshape(values.shape)


def told(problem: Problem, swamped: Bools) -> str:
    """Return the sentence that says how many queries are not judged, and why."""
    some, of = _counts(problem, swamped)
    are = "is" if some == 1 else "are"
    return f"{some} of {of} {are} not judged: {_WHY}; hide keys with −inf instead"


def told_apart(problem: Problem, masked: Bools) -> str:
    """Return the sentence that says how many queries are left out while others are judged."""
    some, of = _counts(problem, masked)
    return (
        f"{some} of {of}, all of whose keys have a bias of {LEAST_SEEN:g} or less, are left out: "
        "their scores have fewer digits"
    )


def _counts(problem: Problem, queries: Bools) -> tuple[int, str]:
    """Return how many queries these are, and in words of how many."""
    everywhere = np.broadcast_to(queries, problem.shape[:3])
    return int(np.count_nonzero(everywhere)), counted(everywhere.size, "query", "queries")


def hidden_scores(
    problem: Problem, files: Mapping[str, File]
) -> tuple[Problem, dict[str, File]] | None:
    """Return problem and files in which a bias like −1e9 beside others is −inf; None if none is.

    What such a bias leaves of a score are no digits; in the tolerance of all scores, it would be
    the largest number. The weights of such keys are 0 in any case.
    """
    file = files.get("scores")
    shape = problem.layout.weights_shape(problem.shape)
    if file is None or problem.bias is None or file.values.shape != shape:
        return None
    bias = widen(np.asarray(problem.bias), np.float64)
    masking = bias <= min(LEAST_SEEN, -_TOO_FAR / file.precision.eps)
    if not masking.any():
        return None
    masking = masking & (_highest_seen(problem)[..., None] > LEAST_SEEN)
    found = canonical(problem, "scores", file.values)
    with np.errstate(over="ignore", invalid="ignore"):
        near = np.abs(found - bias) <= 4 * file.precision.eps * np.abs(bias) - LEAST_SEEN
    hidden = np.where(masking & near, -np.inf, found).reshape(file.values.shape)
    posed = replace(problem, bias=np.where(masking, -np.inf, bias))
    return posed, {**files, "scores": replace(file, values=hidden)}
