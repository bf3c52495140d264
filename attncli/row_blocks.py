"""Weights and scores of some queries at a time, for those who look at every row once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine import attend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem import Problem

__all__ = ["RowBlock", "count_blocks", "place", "row_blocks"]

# Weights and scores of a block are 16 MB each in float64.
_CELLS = 1 << 21


@dataclass(frozen=True, eq=False)
class RowBlock:
    """Some queries of one head.

    Attributes
    ----------
    start : int
        Index of the first of them.
    offset : int
        What is added to an index to give the position among the keys.
    weights, scores : ndarray (rows, S)
        The scores of hidden keys are −inf.
    blind : int
        How many of the queries see no key; those of padding do not count.
    """

    start: int
    offset: int
    weights: npt.NDArray[Any]
    scores: npt.NDArray[Any]
    blind: int


def row_blocks(
    problem: Problem, batch: int, head: int, rows: tuple[int, int], threads: int | None = None
) -> Iterator[RowBlock]:
    """Yield the rows start:stop of one head, so many at a time as fit into little memory.

    Nothing warns of queries that see no key.
    """
    step = _step(problem)
    offset = problem.visible.offset(batch)
    for start in range(*rows, step):
        part = problem.select(batch=batch, head=head, rows=(start, min(start + step, rows[1])))
        answer, blind = attend(part, ("weights", "scores"), threads=threads)
        weights, scores = (
            np.asarray(array).reshape(part.shape[2:]) for array in (answer.weights, answer.scores)
        )
        yield RowBlock(start, offset, weights, scores, blind)


def count_blocks(problem: Problem, rows: tuple[int, int]) -> int:
    """Return how many blocks `row_blocks` yields of each head."""
    return -(-(rows[1] - rows[0]) // _step(problem))


def _step(problem: Problem) -> int:
    return max(1, _CELLS // problem.shape[3])


def place(problem: Problem, batch: int, head: int) -> tuple[int | None, int | None]:
    """Return batch and head as results name them: None for an axis that the inputs lack."""
    axes = problem.layout.weight_axes
    return batch if "b" in axes else None, head if "h" in axes else None
