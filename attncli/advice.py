"""Warnings about results that are right, but perhaps not what was meant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.dtypes import LARGEST_FLOAT16, magnitude, parts
from attncli.engine import attend
from attncli.polarity import inverted, leaves_little, pairs_of, would_show_all
from attncli.problem import Problem
from attncli.visibility import Visibility
from attncli.warning import warn

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["UNPROJECTED", "advise", "fully_masked_advice"]

UNPROJECTED = (
    "the output projection (wo) needs all heads: the context of a single head is the one before "
    "the projection"
)

# Rows whose scores are looked at together take about 4 MB.
_BLOCK_CELLS = 1_000_000


def advise(problem: Problem) -> None:
    """Warn where float16 inputs have products that float16 cannot hold."""
    if problem.query.dtype == problem.key.dtype == np.float16 and problem.score == "dot":
        width = problem.query.shape[3]
        if width * _largest(problem.query) * _largest(problem.key) <= LARGEST_FLOAT16:
            return
        largest = _largest_product(problem.read())
        if largest > LARGEST_FLOAT16:
            warn(
                f"products of query and key reach {largest:.3g}, beyond float16's 65504: code "
                "that multiplies these inputs in float16 gets inf. Here they are computed in "
                f"{problem.dtype.name}; scale the queries before the product"
            )


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
    """Ask whether the mask is inverted where its opposite leaves no query without a key."""
    visible = problem.visible
    if visible.mask is None or leaves_little(*pairs_of(visible.mask_parts())):
        return ""
    if not would_show_all(visible.mask_parts(), visible.mask.shape):
        return ""
    question = inverted(problem.mask_means)
    return f". The mask hides all keys from some queries, its opposite from none: {question}"


def _largest_product(problem: Problem) -> float:
    """Return the largest |q · k|, or a bound on it where even that fits into float16."""
    from attncli.engine.operands import largest_length  # noqa: PLC0415 - seldom needed

    lengths = [largest_length(array, problem.dtype) for array in (problem.query, problem.key)]
    bound = math.prod(lengths)
    if bound <= LARGEST_FLOAT16:
        return bound
    bare = Problem(
        query=problem.query,
        key=problem.key,
        value=None,
        dtype=problem.dtype,
        layout=problem.layout,
        visible=Visibility(queries=problem.shape[2], keys=problem.shape[3]),
        scale=1.0,
    )
    step = max(1, _BLOCK_CELLS // math.prod((*problem.shape[:2], problem.shape[3])))
    queries = problem.shape[2]
    return max(
        _largest_raw(bare.select(rows=(start, min(start + step, queries))))
        for start in range(0, queries, step)
    )


def _largest_raw(problem: Problem) -> float:
    raw = attend(problem, ("raw",))[0].raw
    return 0.0 if raw is None else max(float(raw.max()), -float(raw.min()))


def _largest(halves: npt.NDArray[Any]) -> float:
    """Return the largest magnitude; infinite or NaN where one is."""
    bits = max(int(np.max(magnitude(part))) for part in parts(halves))
    return float(np.uint16(bits).view(np.float16))
