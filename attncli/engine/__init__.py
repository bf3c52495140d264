"""Problem in, attention out: no checks, no files, no printing.

The queries are cut into blocks of one head or a few, and the keys of a block into tiles
(`attncli.engine.plan`); `attncli.engine.block` computes a block. Small problems are computed at
once instead (`attncli.engine.at_once`), and few queries over many keys some heads at a time
(`attncli.engine.decoding`).

The same input gives the same bits on any number of threads: blocks do not depend on that number,
and the heads that the formula computes at once do not affect each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.at_once import attend_at_once, suits_at_once
from attncli.engine.decoding import attend_few, few_parts, is_few
from attncli.engine.folding import folded
from attncli.engine.refusals import NotFiniteError
from attncli.engine.size import is_serial, is_small, repays_threads
from attncli.problem.result import Attention

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.threads.workers import Work

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
    into = into or {}
    with np.errstate(all="ignore"):
        try:
            results, fully_masked = _compute(problem, outputs, threads, into, progress)
        except NotFiniteError:
            problem = problem.read()
            results, fully_masked = _compute(problem, outputs, threads, into, progress)
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
    # tanh(inf) is 1, and values only show in the context.
    return not problem.is_product or (problem.value is not None and "context" not in outputs)


def _compute(
    problem: Problem,
    outputs: Collection[str],
    threads: int | None,
    into: Mapping[str, Array],
    progress: Progress | None,
) -> tuple[dict[str, Array], int]:
    """Return the results, (B, H, L, ...), and how many rows are fully masked."""
    at_once = _at_once(problem, outputs) if suits_at_once(problem) else None
    if at_once is not None:
        results, fully_masked = at_once
        for name, room in into.items():
            np.copyto(room, results[name])
            results[name] = room
        if progress is not None:
            progress(1, 1)
        return results, fully_masked
    results = {
        name: into[name] if name in into else np.empty(shape, problem.dtype)
        for name, shape in result_shapes(problem, outputs).items()
    }
    return results, _fill(*folded(problem, results), threads, progress)


def _at_once(problem: Problem, outputs: Collection[str]) -> tuple[dict[str, Array], int] | None:
    if is_serial(problem):
        return attend_at_once(problem, outputs, one_blas_thread=False)

    # Imported late, so that a program with only a small problem starts faster.
    from attncli.threads.blas import single_blas_thread  # noqa: PLC0415

    with single_blas_thread():
        return attend_at_once(problem, outputs, one_blas_thread=True)


def _fill(
    problem: Problem,
    results: dict[str, Array],
    threads: int | None,
    progress: Progress | None,
) -> int:
    """Fill the results, and return how many rows are fully masked."""
    if is_serial(problem):
        return _run_here(problem, results, progress)

    # Imported late, so that a program with only a small problem starts faster.
    from attncli.threads.blas import single_blas_thread  # noqa: PLC0415

    with single_blas_thread():
        if is_small(problem):
            return _run_here(problem, results, progress)
        return _run_threads(problem, results, threads, progress)


def _run_here(problem: Problem, results: dict[str, Array], progress: Progress | None) -> int:
    parts, compute = _parts(problem, results, 1)
    return compute(_queue(parts, progress), lambda: None)


def _run_threads(
    problem: Problem,
    results: dict[str, Array],
    threads: int | None,
    progress: Progress | None,
) -> int:
    from attncli.threads.cores import available_cores  # noqa: PLC0415
    from attncli.threads.workers import spread  # noqa: PLC0415

    count = threads or available_cores()
    if not repays_threads(problem, count):
        return _run_here(problem, results, progress)
    parts, compute = _parts(problem, results, count)

    def work(queue: Iterable[Any], check_stopped: Callable[[], None]) -> int:
        # NumPy's error state is thread-local.
        with np.errstate(all="ignore"):
            return compute(queue, check_stopped)

    queue = _queue(parts, progress)
    return spread(work, queue, min(count, len(parts)), pinned=progress is None)


def _parts(
    problem: Problem, results: dict[str, Array], threads: int
) -> tuple[list[Any], Work[Any]]:
    """Return the parts of a problem, and a function that computes the parts it is given."""
    # The formula views several heads of a result as one, so results must be contiguous.
    if is_few(problem) and all(array.flags.c_contiguous for array in results.values()):
        return _parts_of_few(problem, results, threads)

    from attncli.engine.schedule import schedule_blocks  # noqa: PLC0415

    return schedule_blocks(problem, results)


def _parts_of_few(
    problem: Problem, results: dict[str, Array], threads: int
) -> tuple[list[Any], Work[Any]]:
    def compute(queue: Iterable[Any], check_stopped: Callable[[], None]) -> int:
        for part in queue:
            check_stopped()
            attend_few(problem, results, part)
        return 0

    return few_parts(problem, threads), compute


def _queue(parts: list[Any], progress: Progress | None) -> Iterator[Any]:
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
