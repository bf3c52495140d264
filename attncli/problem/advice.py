"""Warnings about results that are right, but perhaps not what was meant."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import warn
from attncli.numerics.dtypes import LARGEST_FLOAT16, parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from attncli.problem.problem import Problem

Bools = npt.NDArray[np.bool_]

# A mask of fewer elements than this says nothing about its polarity.
_FEW_CELLS = 20
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
                "that multiplies these inputs in float16 may get inf. Here they are computed "
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
    """Return advice if the opposite mask leaves each query a key, and no other warning said so."""
    visible = problem.visible
    if visible.mask is None or leaves_little(visible.mask_parts()) is not None:
        return ""
    if not _would_show_all(visible.mask_parts()):
        return ""
    return f". The mask hides all keys from some queries: {inverted(problem.mask_means)}"


def leaves_little(seen: Iterable[Bools]) -> float | None:
    """Return the percentage of pairs that a mask lets attend if it is at most 10, else None."""
    attending = cells = 0
    for part in seen:
        attending += int(np.count_nonzero(part))
        cells += part.size
    return 100 * attending / cells if cells >= _FEW_CELLS and attending * 10 <= cells else None


def _would_show_all(seen: Iterable[Bools]) -> bool:
    """Return whether each query would see a key if the mask were inverted.

    One such mask is `torch.nn.Transformer.generate_square_subsequent_mask`, true where hidden.
    """
    return not any(part.all(axis=-1).any() for part in seen)


def inverted(means: str) -> str:
    """Return the hint for a mask that is perhaps inverted; ``means`` is how it was read."""
    read, other = "may attend", "drop"
    if means == "drop":
        read, other = "is hidden, because mask_means is drop", "keep"
    return (
        f"perhaps it is inverted; here true means {read}, and mask_means {other} "
        f"(--mask-means {other}) reads the opposite"
    )
