"""Warnings about results that are right, but perhaps not what was meant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.dtypes import LARGEST_FLOAT16, parts
from attncli.polarity import inverted, leaves_little, would_show_all
from attncli.warning import warn

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.problem import Problem

__all__ = ["UNPROJECTED", "advise", "fully_masked_advice"]

UNPROJECTED = (
    "the output projection (wo) needs all heads: the context of a single head is the one before "
    "the projection"
)


def advise(problem: Problem) -> None:
    """Warn where products of float16 inputs may be beyond float16."""
    if problem.query.dtype == problem.key.dtype == np.float16 and problem.score == "dot":
        # |q · k| ≤ |q| |k|, by Cauchy and Schwarz; NaN compares as false.
        largest = _longest(problem.query) * _longest(problem.key)
        if LARGEST_FLOAT16 < largest < np.inf:
            warn(
                f"products of query and key may reach {largest:.3g}, beyond float16's 65504: code "
                "that multiplies these inputs in float16 perhaps gets inf. Here they are computed "
                f"in {problem.dtype.name}"
            )


def _longest(rows: npt.NDArray[Any]) -> float:
    """Return the largest length of the rows (…, D)."""
    wide = (part.astype(np.float32) for part in parts(rows))
    squares = [float(np.einsum("...d,...d->...", part, part).max()) for part in wide]
    return math.sqrt(max(squares))


def fully_masked_advice(problem: Problem, fully_masked: int) -> str:
    """Return the warning that counts the queries that see no key."""
    batch, heads, queries, _ = problem.shape
    count = batch * heads * queries
    rows = ("query" if count == 1 else "queries") + (" sees" if fully_masked == 1 else " see")
    zero = "weights and context are 0 there, not NaN"
    if problem.output is not None and problem.output.bias is not None:
        zero += "; the output projection adds its bias"
    return f"{fully_masked} of {count} {rows} no key: {zero}{_of_polarity(problem)}"


def _of_polarity(problem: Problem) -> str:
    """Say where the mask's opposite leaves no query without a key, and nothing else told of it."""
    visible = problem.visible
    if visible.mask is None or leaves_little(visible.mask_parts()) is not None:
        return ""
    if not would_show_all(visible.mask_parts()):
        return ""
    return f". The mask hides all keys from some queries: {inverted(problem.mask_means)}"
