"""Weights averaged over the heads, as `torch.nn.MultiheadAttention` returns by default."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.advice import advise, fully_masked_advice
from attncli.api import solve
from attncli.engine import attend
from attncli.errors import UsageError
from attncli.result import Attention
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.engine import Progress
    from attncli.problem import Problem

__all__ = ["average_weights", "refuse_without_heads", "solve_averaged"]


def refuse_without_heads(axes: str) -> None:
    """Raise a `UsageError` where there is no head axis to average over."""
    if "h" not in axes:
        raise UsageError(
            "average_heads (--average-heads): there is no head axis to average",
            hint="cut packed inputs with heads (--heads), and pick no head",
        )


def average_weights(
    problem: Problem, *, threads: int | None = None, progress: Progress | None = None
) -> tuple[npt.NDArray[Any], int]:
    """Return the mean of the weights over the heads, holding at most two heads at once.

    Parameters
    ----------
    problem : Problem
        With a head axis.
    threads : int, optional
    progress : callable, optional
        Called with the heads done and the heads in all.

    Returns
    -------
    weights : ndarray (L, S) or (B, L, S)
        Rows sum to 1 if those of every head do.
    fully_masked : int
        How many (batch, head, query) see no key.
    """
    heads = problem.shape[1]
    total, fully_masked = None, 0
    for head in range(heads):
        answer, masked = attend(problem.select(head=head), ("weights",), threads=threads)
        weights = np.asarray(answer.weights)
        total = weights if total is None else np.add(total, weights, out=total)
        fully_masked += masked
        if progress is not None:
            progress(head + 1, heads)
    return np.asarray(total) / heads, fully_masked


def solve_averaged(
    problem: Problem,
    outputs: Collection[str],
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Attention:
    """Return the same as `attncli.solve`, but with weights averaged over the heads.

    Parameters
    ----------
    problem : Problem
    outputs : collection of str
    threads : int, optional
    progress : callable, optional
        As for `average_weights`.

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
    if "weights" not in outputs:  # `solve` still warns of queries that see no key
        return solve(problem, others, threads=threads)
    answer = solve(problem, others, threads=threads) if others else Attention()
    if not others:
        advise(problem)
    weights, fully_masked = average_weights(problem, threads=threads, progress=progress)
    if fully_masked and not others:
        warn(fully_masked_advice(problem, fully_masked))
    return replace(answer, weights=weights)
