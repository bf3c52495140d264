"""Weights and scores of a few queries at a time, for callers that read every row once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine import attend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem import Problem

__all__ = ["RowBlock", "count_blocks", "row_blocks"]

# Most weights in a block: 16 MB in float64, and as much for the scores.
_CELLS = 1 << 21


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some queries of one head.

    Attributes
    ----------
    start : int
        Index of the first of them.
    offset : int
        Added to an index, it gives the query's position among the keys.
    weights, scores : ndarray (rows, S)
        The scores of hidden keys are −inf.
    fully_masked : int
        How many of the queries see no key, not counting padding.
    """

    start: int
    offset: int
    weights: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    fully_masked: int


def row_blocks(
    problem: Problem, batch: int, head: int, rows: tuple[int, int], threads: int | None
) -> Iterator[RowBlock]:
    """Yield some rows of one head in blocks that take little memory.

    Does not warn of queries that see no key; `RowBlock.fully_masked` counts them.
    """
    step = _step(problem)
    offset = problem.visible.offset(batch)
    for start in range(*rows, step):
        part = problem.select(batch=batch, head=head, rows=(start, min(start + step, rows[1])))
        answer, fully_masked = attend(part, ("weights", "scores"), threads=threads)
        weights, scores = (
            np.asarray(array).reshape(part.shape[2:]) for array in (answer.weights, answer.scores)
        )
        yield RowBlock(start, offset, weights, scores, fully_masked)


def count_blocks(problem: Problem, rows: tuple[int, int]) -> int:
    """Return how many blocks `row_blocks` yields for each head."""
    return -(-(rows[1] - rows[0]) // _step(problem))


def _step(problem: Problem) -> int:
    return max(1, _CELLS // problem.shape[3])
