"""Weights averaged over the heads, as `torch.nn.MultiheadAttention` returns by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine import attend
from attncli.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.engine import Progress
    from attncli.problem.problem import Problem

# The most weights of one head that are held at once, and the fewest queries of a block.
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
    """Return the mean of the weights over the heads, with little extra memory.

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
    """Yield ranges of queries, small enough to hold their weights of one head."""
    batch, _, queries, keys = problem.shape
    most = max(_LEAST_ROWS, _HELD // (batch * keys))
    for start in range(0, queries, most):
        yield start, min(start + most, queries)
