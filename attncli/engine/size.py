"""Which problems are small, and which so small that BLAS has one thread for them anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["is_serial", "is_small"]

# Below so many multiplications threads and bounds cost more than they bring.
_SMALL_WORK = 4_000_000
# OpenBLAS spreads products over its threads that have more multiplications than this: of two
# matrices, and of a vector and a matrix (SMP_THRESHOLD_MIN in its interface).
_SERIAL_MATRICES = 2**18
_SERIAL_VECTOR = 9_000


def is_small(problem: Problem) -> bool:
    """Return whether threads would cost more than they bring."""
    batch, heads, queries, keys = problem.shape
    return batch * heads * queries * keys * _widths(problem) <= _SMALL_WORK


def is_serial(problem: Problem) -> bool:
    """Return whether BLAS multiplies with one thread, however many it may use.

    More would wait for each other longer than they work, and the last bits of a sum depend on
    how many there are.
    """
    _, heads, queries, keys = problem.shape
    rows = heads // problem.key.shape[1] * queries
    width = problem.query.shape[3]
    if problem.value is not None:
        width = max(width, problem.value.shape[3])
    work = rows * keys * width
    return work <= (_SERIAL_MATRICES if rows > 1 else _SERIAL_VECTOR) and problem.score == "dot"


def _widths(problem: Problem) -> int:
    """Return D + E: how many multiplications a pair of query and key takes."""
    width: int = problem.query.shape[3]
    return width + (0 if problem.value is None else problem.value.shape[3])
