"""Weights averaged over the heads, as `torch.nn.MultiheadAttention` returns by default."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.api import solve
from attncli.engine import attend
from attncli.errors import UsageError, warn
from attncli.problem.advice import advise, fully_masked_advice
from attncli.problem.result import Attention

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from attncli.engine import Progress
    from attncli.problem.problem import Problem

__all__ = ["average_weights", "refuse_without_heads", "solve_averaged"]

# Weights of one head that are held at once, but for so many queries at least.
_HELD, _LEAST_ROWS = 2**22, 256


def refuse_without_heads(axes: str) -> None:
    """Raise a `UsageError` where there is no head axis to average over."""
    if "h" not in axes:
        raise UsageError(
            "average_heads (--average-heads): there is no head axis to average",
            hint="cut packed inputs with heads (--heads), and pick no head",
        )


def average_weights(
    problem: Problem,
    *,
    threads: int | None,
    progress: Progress | None = None,
    into: npt.NDArray[Any] | None = None,
) -> tuple[npt.NDArray[Any], int]:
    """Return the mean of the weights over the heads, holding little beside it.

    Parameters
    ----------
    problem : Problem
        With a head axis.
    threads : int or None
    progress : callable, optional
        Called with the parts done and the parts in all.
    into : ndarray, optional
        Receives the mean, such as a memory-mapped file.

    Returns
    -------
    weights : ndarray (L, S) or (B, L, S)
        Rows sum to 1 if those of every head do.
    fully_masked : int
        How many (batch, head, query) see no key.
    """
    heads = problem.shape[1]
    mean = np.empty(problem.output_shapes["mean weights"], problem.dtype) if into is None else into
    fully_masked, done = 0, 0
    blocks = list(_blocks(problem))
    for rows in blocks:
        own = mean[..., slice(*rows), :]
        for head in range(heads):
            part = problem.select(head=head, rows=rows)
            answer, masked = attend(part, ("weights",), threads=threads)
            np.add(own if head else 0, np.asarray(answer.weights), out=own)
            fully_masked += masked
            done += 1
            if progress is not None:
                progress(done, heads * len(blocks))
        np.divide(own, heads, out=own)
    return mean, fully_masked


def _blocks(problem: Problem) -> Iterator[tuple[int, int]]:
    """Yield ranges of queries whose weights of one head are few enough to be held."""
    batch, _, queries, keys = problem.shape
    most = max(_LEAST_ROWS, _HELD // (batch * keys))
    for start in range(0, queries, most):
        yield start, min(start + most, queries)


def solve_averaged(
    problem: Problem,
    outputs: Collection[str],
    *,
    threads: int | None,
    progress: Progress | None = None,
    into: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Attention:
    """Return the same as `attncli.solve`, but with weights averaged over the heads.

    Parameters
    ----------
    problem : Problem
    outputs : collection of str
    threads : int or None
    progress : callable, optional
        As for `average_weights`.
    into : mapping of str to ndarray, optional
        Arrays to compute into: the mean in its shape, others as `attncli.solve` takes them.

    Raises
    ------
    UsageError
        There is no head axis.

    Warns
    -----
    AttnWarning
        As `attncli.solve`.
    """
    refuse_without_heads(problem.layout.weight_axes)
    others = [name for name in outputs if name != "weights"]
    rooms = dict(into or {})
    mean = rooms.pop("weights", None)
    if "weights" not in outputs:  # `solve` still warns of queries that see no key
        return solve(problem, others, threads=threads, into=rooms)
    answer = solve(problem, others, threads=threads, into=rooms) if others else Attention()
    if not others:
        advise(problem)
    weights, fully_masked = average_weights(problem, threads=threads, progress=progress, into=mean)
    if fully_masked and not others:
        warn(fully_masked_advice(problem, fully_masked))
    return replace(answer, weights=weights)
