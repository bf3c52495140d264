"""`solve`: the outputs of a problem, with the advice on results that are right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli import arguments
from attncli.advice import advise, fully_masked_advice
from attncli.calling import by_known_names
from attncli.engine import Progress, attend, result_shapes
from attncli.errors import UsageError
from attncli.names import OUTPUTS
from attncli.problem import posed_problem
from attncli.text import did_you_mean
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from attncli.problem import Problem
    from attncli.result import Attention

__all__ = ["solve"]


@by_known_names
def solve(
    problem: Problem,
    outputs: str | Collection[str] | None = None,
    *,
    threads: int | None = None,
    into: Mapping[str, npt.NDArray[Any]] | None = None,
    progress: Progress | None = None,
) -> Attention:
    """Compute the outputs of a problem that was posed before.

    Parameters
    ----------
    problem : Problem
        From `attncli.pose` or `attncli.load`.
    outputs, threads
        As in `attention`.
    into : mapping of str to ndarray, optional
        Arrays to compute outputs into, such as memory-mapped files: (B, H, L, S), for context
        (B, H, L, E), for lse (B, H, L), in the computing dtype. None may share memory with an
        input, which later blocks still read.
    progress : callable, optional
        Called from any thread with blocks done and blocks in all.

    Returns
    -------
    Attention
        Its arrays are views of those that were given; of packed heads the context is a copy.

    Raises
    ------
    UsageError
        An output is unknown, or context is asked for without a value; an array of ``into`` is not
        as above; or ``problem``, ``threads`` or ``progress`` is not what it should be.
    DataError
        A score, or the context after its projection, exceeds the range of the computing dtype; or
        query, key or value, where the problem was posed unread, is not finite.

    Warns
    -----
    AttnWarning
        Some queries see no key, or float16 inputs have products beyond float16.
    """
    posed_problem(problem)
    outputs = _outputs_of(problem, outputs)
    if into is not None:
        _check_room(problem, outputs, into)
    if progress is not None and not callable(progress):
        raise UsageError(f"progress: expected a function; found {arguments.shown(progress)}")
    threads = arguments.thread_count(threads)
    advise(problem)
    answer, fully_masked = attend(problem, outputs, threads=threads, into=into, progress=progress)
    if fully_masked:
        warn(fully_masked_advice(problem, fully_masked))
    if problem.output is None or answer.context is None:
        return answer
    return replace(answer, context=problem.projected(answer.context, threads=threads))


def _check_room(
    problem: Problem, outputs: Collection[str], into: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Refuse arrays that the outputs cannot be computed into."""
    if not isinstance(into, Mapping):
        raise UsageError(f"into: expected a mapping of arrays; found {arguments.shown(into)}")
    shapes = result_shapes(problem, outputs)
    inputs = problem.arrays
    for name, array in into.items():
        if name not in shapes:
            raise UsageError(f"into: expected outputs that are asked for; found {name!r}")
        if name == "context" and problem.output is not None:
            raise UsageError("into: the context is projected (wo), and not computed into an array")
        found = getattr(array, "shape", None), getattr(array, "dtype", None)
        if found != (shapes[name], problem.dtype) or not array.flags.writeable:
            raise UsageError(
                f"into: expected a writable array of {problem.dtype.name} and of shape "
                f"{arguments.shape_text(shapes[name])} for {name}"
            )
        if any(np.may_share_memory(array, given) for given in inputs):
            raise UsageError(f"into: the array for {name} shares memory with an input")
    for one, other in combinations(into, 2):
        if np.may_share_memory(into[one], into[other]):
            raise UsageError(f"into: the arrays for {one} and {other} share memory")


def _outputs_of(problem: Problem, outputs: object) -> Collection[str]:
    """Return the outputs that are asked for, one or several; by default all that are usual."""
    if outputs is None:
        return ("weights",) if problem.value is None else ("weights", "context")
    asked = (outputs,) if isinstance(outputs, str) else outputs
    if not isinstance(asked, (tuple, Sequence, AbstractSet)):
        raise UsageError(_no_output(asked))
    for name in asked:
        if not isinstance(name, str) or name not in OUTPUTS:
            hint = did_you_mean(name, OUTPUTS) if isinstance(name, str) else None
            raise UsageError(_no_output(name), hint=hint)
    if "context" in asked and problem.value is None:
        raise UsageError(
            "the context needs a value",
            hint="give value, or ask for weights only (outputs, --show)",
        )
    return asked


def _no_output(found: object) -> str:
    return f"outputs: expected names of {', '.join(OUTPUTS)}; found {arguments.shown(found)}"
