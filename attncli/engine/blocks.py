"""A problem's blocks, and the way to compute any of them with the memory of a worker."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.engine.block import attend_part
from attncli.engine.operands import prepare
from attncli.engine.plan import cut_up
from attncli.engine.scratch import Scratch
from attncli.engine.size import is_small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from attncli.engine.block import Part
    from attncli.engine.workers import Work
    from attncli.problem import Problem

__all__ = ["in_blocks"]

# A multiple of 16, and less than most rows are long.
_ROW_NUMBERS = 64


def in_blocks(
    problem: Problem, results: dict[str, npt.NDArray[Any]]
) -> tuple[list[Part], Work[Part]]:
    """Return the parts of a problem, and what computes those that it is given.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)
        Where each output asked for goes.
    """
    operands = prepare(problem)
    if problem.score != "additive" and not is_small(problem):
        operands.bound_all()
    parts, columns = cut_up(problem, results)

    def compute(queue: Iterable[Part], pause: Callable[[], None]) -> int:
        scratch = Scratch(problem.dtype, columns, pause)
        try:
            with _ufuncs_by_the_row() if "weights" in results else nullcontext():
                return sum([attend_part(operands, part, scratch) for part in queue])
        finally:
            scratch.give_back()

    return parts, compute


@contextmanager
def _ufuncs_by_the_row() -> Iterator[None]:
    """Let NumPy's loops take short pieces of a row, and give back what they had.

    They take 8,192 numbers at a time. Where those are of several rows that do not lie in one piece,
    or that share an operand for each row, they are copied first, which takes as long again.
    """
    before = np.getbufsize()
    try:
        np.setbufsize(_ROW_NUMBERS)
        yield
    finally:
        np.setbufsize(before)
