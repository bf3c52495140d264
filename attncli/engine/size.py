"""Which problems are small."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["is_small"]

# Below so many multiplications threads and bounds cost more than they bring.
_SMALL_WORK = 4_000_000


def is_small(problem: Problem) -> bool:
    """Return whether threads would cost more than they bring."""
    batch, heads, queries, keys = problem.shape
    return batch * heads * queries * keys * _widths(problem) <= _SMALL_WORK


def _widths(problem: Problem) -> int:
    """Return D + E: how many multiplications a pair of query and key takes."""
    width: int = problem.query.shape[3]
    return width + (0 if problem.value is None else problem.value.shape[3])
