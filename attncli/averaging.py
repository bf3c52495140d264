"""Weights as the mean of the heads: what `torch.nn.MultiheadAttention` gives by default."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.advice import advise, blind_advice
from attncli.api import solve
from attncli.arguments import warn
from attncli.engine import attend
from attncli.errors import UsageError
from attncli.result import Attention

if TYPE_CHECKING:
    from collections.abc import Collection

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
    problem: Problem, *, threads: int | None = None
) -> tuple[npt.NDArray[Any], int]:
    """Return the mean of the weights over the heads, holding two heads at most.

    Parameters
    ----------
    problem : Problem
        With a head axis.
    threads : int, optional

    Returns
    -------
    weights : ndarray (L, S) or (B, L, S)
        Rows sum to 1 where those of every head do.
    blind : int
        How many (batch, head, query) see no key.
    """
    heads = problem.shape[1]
    total, blind = None, 0
    for head in range(heads):
        answer, unseeing = attend(problem.select(head=head), ("weights",), threads=threads)
        weights = np.asarray(answer.weights)
        total = weights if total is None else np.add(total, weights, out=total)
        blind += unseeing
    return np.asarray(total) / heads, blind


def solve_averaged(
    problem: Problem, outputs: Collection[str], *, threads: int | None = None
) -> Attention:
    """Return what `attncli.solve` does, with the mean of the heads in the place of weights.

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
    if "weights" not in outputs:  # queries that see no key are counted all the same
        return solve(problem, others, threads=threads)
    answer = solve(problem, others, threads=threads) if others else Attention()
    if not others:
        advise(problem)
    weights, blind = average_weights(problem, threads=threads)
    if blind and not others:
        warn(blind_advice(problem, blind))
    return replace(answer, weights=weights)
