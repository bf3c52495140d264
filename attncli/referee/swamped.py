"""Queries all of whose keys have a bias that stands for a mask: they are not judged.

A bias of −1e9 takes the digits of the scores: in float32 the numbers near 1e9 are 64 apart. So the
weights of such a row are rounding errors, and what the textbook formula makes of it would become
the tolerance of the whole file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError
from attncli.errors.text import counted
from attncli.problem.visibility import cut
from attncli.referee.pipeline import LEAST_SEEN
from attncli.referee.verdict import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem
    from attncli.referee.formats import File

__all__ = ["swamped_queries", "told", "with_the_answer", "without"]

Bools = npt.NDArray[np.bool_]
# Scores that cannot be closer to each other than this, in nats, carry no information.
_TOO_FAR = 0.5
_ROWS_AT_A_TIME = 256
# The outputs that are made before the bias is added.
_BEFORE = ("raw", "capped")


def swamped_queries(problem: Problem, files: Mapping[str, File]) -> Bools | None:
    """Return the queries all of whose keys have such a bias, (B or 1, H or 1, L or 1), or None.

    Raises
    ------
    DataError
        They are all queries, and the files' format leaves their scores no digits.
    """
    names = [name for name in files if name not in _BEFORE]
    if problem.bias is None or not names:
        return None
    no_digits = -_TOO_FAR / max(files[name].precision.eps for name in names)
    highest = _highest_seen(problem, max(no_digits, LEAST_SEEN))
    if highest is None:
        return None
    swamped: Bools = np.isfinite(highest) & (highest <= max(no_digits, LEAST_SEEN))
    if not swamped.all():
        return swamped if swamped.any() else None
    if (highest <= no_digits).all():
        raise DataError(
            f"{' and '.join(names)}: no query can be judged: the bias of all keys is so large that "
            "the scores lose all digits",
            hint="hide keys with −inf instead, or set a tolerance of your own (--rtol, --atol)",
        )
    return None


def _highest_seen(problem: Problem, least: float) -> npt.NDArray[np.float64] | None:
    """Return the largest bias of the keys that each query sees; None if none is so low."""
    bias = np.asarray(problem.bias)
    if float(bias.min()) > least:
        return None
    if not problem.visible.hides:
        return np.asarray(np.max(bias, axis=-1), np.float64)
    batch, heads, queries, keys = problem.shape
    highest = np.empty((batch, heads, queries))
    for b, h in np.ndindex(batch, heads):
        for start in range(0, queries, _ROWS_AT_A_TIME):
            rows = start, min(start + _ROWS_AT_A_TIME, queries)
            seen = problem.visible.tile(b, h, rows, (0, keys))
            part = cut(bias, b, h, rows, (0, keys))
            highest[b, h, slice(*rows)] = np.max(
                part if seen is None else np.where(seen, part, -np.inf), axis=-1
            )
    return highest


def without(problem: Problem, swamped: Bools) -> Problem:
    """Return the problem with these queries fully masked."""
    return replace(problem, bias=np.where(swamped[..., None], -np.inf, np.asarray(problem.bias)))


def with_the_answer(
    problem: Problem, files: Mapping[str, File], answers: Mapping[str, Any], swamped: Bools
) -> dict[str, File]:
    """Return the files with the answer in the rows of these queries."""
    made = dict(files)
    for name, file in files.items():
        if name in _BEFORE or file.values.shape != answers[name].shape:
            continue
        found, right = (canonical(problem, name, a) for a in (file.values, answers[name]))
        # After an output projection, or an average, the heads are one.
        mixed = found.shape[1] < problem.shape[1]
        rows = np.asarray(swamped.any(axis=1, keepdims=True) if mixed else swamped)
        kept = np.where(rows[..., None], right, found)
        joined = problem.layout.join(kept) if name == "context" else kept
        made[name] = replace(file, values=joined.reshape(file.values.shape))
    return made


def told(problem: Problem, swamped: Bools) -> str:
    """Return the sentence that says how many queries are not judged, and why."""
    everywhere = np.broadcast_to(swamped, problem.shape[:3])
    some = int(np.count_nonzero(everywhere))
    are = "is" if some == 1 else "are"
    return (
        f"{some} of {counted(everywhere.size, 'query', 'queries')} {are} not judged: the bias of "
        "all their keys is so large that the scores lose digits; hide keys with −inf instead"
    )
