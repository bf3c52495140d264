"""Problem in, attention out: no checks of arguments, no files, no printing.

There are two paths. The tiled one (`attncli.engine.flash`) never holds a row of scores. The formula
(`attncli.engine.formula`) computes some heads or queries at a time, and every output with a number
for each query and key. `attncli.engine.plan` chooses the path, and cuts the problem into parts.

The same input gives the same bits on any number of threads. Heads and batch entries do not change
the bits of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.formula import attend_part
from attncli.engine.operands import NotFiniteError, Operands, prepare
from attncli.engine.panels import Scratch
from attncli.engine.plan import (
    formula_parts,
    is_serial,
    is_tiled,
    repays_threads,
    tiled_parts,
    tiling_of,
)
from attncli.numerics.threads.blas import single_blas_thread
from attncli.numerics.threads.cores import available_cores
from attncli.problem.result import Attention

if TYPE_CHECKING:
    from attncli.engine.score_rules import Place
    from attncli.numerics.threads.pool import Work
    from attncli.problem.problem import Problem

__all__ = ["Progress", "attend", "result_shapes"]

Array = npt.NDArray[Any]
Progress = Callable[[int, int], None]


def attend(
    problem: Problem,
    outputs: Collection[str],
    *,
    threads: int | None = None,
    into: Mapping[str, Array] | None = None,
    progress: Progress | None = None,
) -> tuple[Attention, int]:
    """Compute the outputs asked for, and nothing else.

    Parameters
    ----------
    problem : Problem
    outputs : collection of str
        Names of `attncli.errors.names.OUTPUTS`.
    threads : int, optional
        The most threads to use; by default one for each core that the process may use.
    into : mapping of str to ndarray, optional
        Arrays of `result_shapes` to write into, such as memory-mapped files.
    progress : callable, optional
        Called from any thread with the numbers of parts done and of all parts.

    Returns
    -------
    attention : Attention
    fully_masked : int
        How many (batch, head, query) see no key, not counting padded queries.

    Raises
    ------
    DataError
        The score of a key that is seen exceeds the range of the computing dtype; or query, key or
        value, if still unread, is not finite.
    """
    if problem.unread is not None and _may_hide(problem, outputs):
        problem = problem.read()
    if not outputs and not problem.visible.hides and problem.bias is None:
        return Attention(), 0  # nothing to compute, and every query sees a key
    results = {
        name: into[name] if into and name in into else np.empty(shape, problem.dtype)
        for name, shape in result_shapes(problem, outputs).items()
    }
    with np.errstate(all="ignore"):  # in helping threads, too
        try:
            fully_masked = _fill(problem, results, threads, progress)
        except NotFiniteError:
            # Check the inputs to name the wrong number, unless no query sees it.
            problem = problem.read()
            fully_masked = _fill(problem, results, threads, progress)
    layout = problem.layout
    for name, array in results.items():
        results[name] = layout.join(array) if name == "context" else layout.drop(array)
    return Attention(**results), fully_masked - _padded(problem)


def result_shapes(problem: Problem, outputs: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each output in (B, H, …) axes."""
    shape = problem.shape
    width = 0 if problem.value is None else problem.value.shape[3]
    other = {"context": (*shape[:3], width), "lse": shape[:3]}
    return {name: other.get(name, shape) for name in outputs}


def _may_hide(problem: Problem, outputs: Collection[str]) -> bool:
    """Return whether NaN or inf in an input might not show in any result."""
    # tanh(inf) is 1, and values affect only the context.
    return not problem.is_product or (problem.value is not None and "context" not in outputs)


def _fill(
    problem: Problem,
    results: dict[str, Array],
    threads: int | None,
    progress: Progress | None,
) -> int:
    """Fill the results, and return how many rows are fully masked."""
    serial = is_serial(problem)
    with nullcontext() if serial else single_blas_thread():
        operands = prepare(problem)
        tiled = is_tiled(problem, results)
        parts = tiled_parts(problem) if tiled else formula_parts(problem, results)
        queue = _counted(parts, progress)
        work = _tiled(operands, results) if tiled else _by_formula(operands, results)
        count = 1 if serial or len(parts) == 1 else min(threads or available_cores(), len(parts))
        if count == 1 or not repays_threads(problem, count):
            return work(queue, lambda: None)  # Ctrl-C comes to this thread itself

        # Imported late, so that a program with only a small problem starts faster.
        from attncli.numerics.threads.pool import spread  # noqa: PLC0415

        return spread(work, queue, count)


def _by_formula(operands: Operands, results: dict[str, Array]) -> Work[Place]:
    """Return a function that computes the parts that it is given."""

    def work(queue: Iterable[Place], _: Callable[[], None]) -> int:
        with Scratch(operands.problem.dtype) as scratch:
            return sum([attend_part(operands, part, results, scratch) for part in queue])

    return work


def _tiled(operands: Operands, results: dict[str, Array]) -> Work[Place]:
    """Return a function that computes the parts that it is given, tile by tile."""
    from attncli.engine.flash import attend_block  # noqa: PLC0415 - as above

    tiling = tiling_of(operands.problem)

    def work(queue: Iterable[Place], check_stopped: Callable[[], None]) -> int:
        with Scratch(operands.problem.dtype) as scratch:
            blocks = (
                attend_block(operands, part, tiling, results, scratch, check_stopped)
                for part in queue
            )
            return sum(blocks)

    return work


def _counted(parts: list[Place], progress: Progress | None) -> Iterator[Place]:
    for done, part in enumerate(parts):
        if progress is not None:
            progress(done, len(parts))
        yield part
    if progress is not None:
        progress(len(parts), len(parts))


def _padded(problem: Problem) -> int:
    """Return how many (batch, head, query) are padded."""
    batch, heads, queries, _ = problem.shape
    lengths = problem.visible.query_lengths
    if lengths is None:
        return 0
    each = lengths if len(lengths) == batch else lengths * batch
    return heads * sum(queries - length for length in each)
