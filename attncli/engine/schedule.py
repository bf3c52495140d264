"""The parts of a problem that threads draw from, and the function that computes them."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.engine.block import attend_part
from attncli.engine.operands import prepare
from attncli.engine.plan import plan_blocks
from attncli.engine.scratch import Scratch
from attncli.engine.size import is_small

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from attncli.engine.parts import Part
    from attncli.problem.problem import Problem
    from attncli.threads.workers import Work

__all__ = ["schedule_blocks"]

# NumPy's buffer size: a multiple of 16, and less than most rows of weights hold.
_ROW_NUMBERS = 64


def schedule_blocks(
    problem: Problem, results: dict[str, npt.NDArray[Any]]
) -> tuple[list[Part], Work[Part]]:
    """Return the parts of a problem, and a function that computes the parts it is given.

    Parameters
    ----------
    problem : Problem
    results : dict of str to ndarray (B, H, L, ...)
        An array for each output asked for.
    """
    operands = prepare(problem)
    small = is_small(problem)
    parts, columns = plan_blocks(problem, results, small=small)

    def compute(queue: Iterable[Part], check_stopped: Callable[[], None]) -> int:
        scratch = Scratch(problem.dtype, columns, check_stopped)
        try:
            with _short_ufunc_buffers() if "weights" in results else nullcontext():
                return sum([attend_part(operands, part, scratch) for part in queue])
        finally:
            scratch.release()

    return parts, compute


@contextmanager
def _short_ufunc_buffers() -> Iterator[None]:
    """Shorten the buffer of NumPy's ufuncs, and restore it afterwards.

    By default they buffer 8,192 numbers. Where that spans several rows which are not contiguous,
    or which broadcast an operand, NumPy copies them first and takes twice as long.
    """
    before = np.getbufsize()
    try:
        np.setbufsize(_ROW_NUMBERS)
        yield
    finally:
        np.setbufsize(before)
