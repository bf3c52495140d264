"""Queries whose scores lose all digits to a large bias: they cannot be judged.

Where a bias of −1e9 stands for a mask, the weights of a fully masked row are rounding error:
in float32 the numbers near 1e9 are 64 apart, and float16 has none. There the error of the plain
formula is as large as the values, and would become the tolerance of the whole file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.verdict import canonical
from attncli.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem import Problem
    from attncli.referee.comparison import File

__all__ = ["swamped_queries", "told", "with_the_answer", "without"]

Bools = npt.NDArray[np.bool_]
# Scores that cannot be closer than this carry no information.
_TOO_FAR = 0.5
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
    """
    if problem.bias is None:
        return None
    eps = max(file.precision.eps for file in files.values())
    highest = np.max(problem.bias, axis=-1).astype(np.float64)
    swamped: Bools = np.isfinite(highest) & (np.abs(highest) * eps >= _TOO_FAR)
    return swamped if swamped.any() else None


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
    everywhere = np.broadcast_to(swamped, problem.shape[:3])
    some, all_ = int(np.count_nonzero(everywhere)), everywhere.size
    are = "is" if some == 1 else "are"
    return (
        f"{some} of {counted(all_, 'query', 'queries')} {are} not judged: the bias of all their "
        "keys is so large that the scores lose all digits; hide keys with −inf instead"
    )
