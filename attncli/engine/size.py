"""Which problems are small, which repay threads, and where BLAS uses one thread anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["is_serial", "is_small", "repays_threads", "suits_formula", "work_of_entry"]

# Up to this many multiplications, a shift is applied whatever the scores, in nats: then the weight
# of an only key is 1, as on paper, which is worth a fifth of the time.
_SMALL_WORK = 1_000_000
# Up to this many, the formula as it stands is quicker than blocks and tiles.
_FORMULA_WORK = 8_000_000
# Measured (tests/bench/README.md). Waking other threads and waiting for them takes as long as this
# many multiplications, and reading a number of key or value as long as so many.
_WAKING, _READING = 30_000_000, 9
# OpenBLAS uses several threads for products with more multiplications than this: of two
# matrices, and of a vector and a matrix (SMP_THRESHOLD_MIN in its interface).
_SERIAL_MATRICES = 2**18
_SERIAL_VECTOR = 9_000


def is_small(problem: Problem) -> bool:
    """Return whether a problem is so small that it needs neither threads nor score bounds."""
    return _work(problem) <= _SMALL_WORK


def suits_formula(problem: Problem) -> bool:
    """Return whether blocks and tiles would cost more than they save."""
    return _work(problem) <= _FORMULA_WORK


def repays_threads(problem: Problem, threads: int) -> bool:
    """Return whether several threads save more time than it takes to wake them and to wait."""
    batch, heads, queries, keys = problem.shape
    reads = batch * problem.key.shape[1] * _READING
    work: int = (batch * heads * queries + reads) * keys * _widths(problem)
    return work - work // threads > _WAKING


def is_serial(problem: Problem) -> bool:
    """Return whether BLAS uses one thread for every product, whatever its setting.

    Otherwise the setting has to be changed, because the last bits of a sum depend on how many
    threads BLAS uses, and because these would mostly wait for each other.
    """
    _, heads, queries, keys = problem.shape
    rows = heads // problem.key.shape[1] * queries
    width = problem.query.shape[3]
    if problem.value is not None:
        width = max(width, problem.value.shape[3])
    work = rows * keys * width
    return work <= (_SERIAL_MATRICES if rows > 1 else _SERIAL_VECTOR) and problem.score == "dot"


def work_of_entry(problem: Problem) -> int:
    """Return how many multiplications the two products of one batch entry take."""
    _, heads, queries, keys = problem.shape
    return heads * queries * keys * _widths(problem)


def _work(problem: Problem) -> int:
    work: int = len(problem.query) * work_of_entry(problem)
    return work


def _widths(problem: Problem) -> int:
    """Return D + E: the multiplications for each pair of query and key."""
    width: int = problem.query.shape[3]
    return width + (0 if problem.value is None else problem.value.shape[3])
