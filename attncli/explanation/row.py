"""Solve one query and keep its whole row, from which its keys are listed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine import attend
from attncli.engine.operands import prepare, rotated
from attncli.engine.plan import suits_formula
from attncli.errors import DataError
from attncli.errors.names import OUTPUTS
from attncli.numerics.dtypes import widen

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

__all__ = ["QueryRow", "follow"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
# The place of the one query of a problem.
_ONLY = (0, 0, 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class QueryRow:
    """One query's arithmetic over all keys; arrays are (S,) unless noted.

    What is not named here is as in `attncli.explanation.data`.

    Attributes
    ----------
    problem : Problem
        Of one batch entry, one head and one query.
    query : int
        Its index before it was selected.
    key : ndarray (S, D)
        Rotated where there is rope; otherwise as stored.
    exponentials : ndarray (S,) of float64
    """

    problem: Problem
    query: int
    rotated: Array  # (D,)
    compared: Array  # (D,)
    key: Array  # (S, D)
    raw: Array
    capped: Array
    scores: Array
    weights: Array
    lse: float
    context: Array | None  # (E,)
    bias: Array
    slope: float | None
    sink: float | None
    shift: float
    exponentials: Floats
    sink_exponential: float


def follow(whole: Problem, batch: int, head: int, query: int, *, threads: int | None) -> QueryRow:
    """Solve one query of a problem, and work out what the engine does not keep.

    Parameters
    ----------
    whole : Problem
    batch, head, query : int
        Within its shape.
    threads : int, optional
    """
    problem = whole.select(batch=batch, head=head, rows=(query, query + 1))
    # The last bits of a product depend on how many rows it has, and one may decide how a number
    # with few digits, such as 1.195, is rounded.
    found = _of_whole(whole, (batch, head, query), threads) or _solved(problem, _ONLY, threads)
    # Unit length and W are shown apart from the vectors on which they act.
    plain = rotated(problem)
    turned = widen(plain.query[0, 0, 0], problem.dtype)
    compared = prepare(problem).query[0, 0, 0] if problem.score == "general" else turned
    sink = None if problem.sinks is None else float(problem.sinks[0])
    top = max(float(found["scores"].max()), -math.inf if sink is None else sink)
    shift = 0.0 if top == -math.inf else top
    return QueryRow(
        problem=problem,
        query=query,
        rotated=turned,
        compared=widen(compared, problem.dtype),
        key=plain.key[0, 0],
        raw=found["raw"],
        capped=found["capped"],
        scores=found["scores"],
        weights=found["weights"],
        lse=float(found["lse"][0]),
        context=found.get("context"),
        bias=_bias(problem),
        slope=None if problem.alibi_slopes is None else float(problem.alibi_slopes[0]),
        sink=sink,
        shift=shift,
        exponentials=np.exp(found["scores"].astype(np.float64) - shift),
        sink_exponential=0.0 if sink is None else math.exp(sink - shift),
    )


def _of_whole(
    problem: Problem, place: tuple[int, int, int], threads: int | None
) -> dict[str, Array] | None:
    """Return the engine's numbers of one query as the whole answer has them, to the last bit.

    None where that takes long, or where scores of another query exceed the range.
    """
    if not suits_formula(problem):
        return None
    try:
        return _solved(problem, place, threads)
    except DataError:
        return None


def _solved(problem: Problem, place: tuple[int, int, int], threads: int | None) -> dict[str, Array]:
    """Return the engine's numbers of a batch entry, head and query."""
    names = [name for name in OUTPUTS if name != "context" or problem.value is not None]
    answer, _ = attend(problem, names, threads=threads)
    found = {}
    for name in names:
        array = getattr(answer, name)
        if name == "context":
            array = problem.layout.split(array, problem.shape[1], name)
        found[name] = array.reshape(*problem.shape[:3], -1)[place]
    return found


def _bias(problem: Problem) -> Array:
    keys = problem.shape[3]
    if problem.bias is None:
        return np.zeros(keys, problem.dtype)
    return np.broadcast_to(widen(problem.bias[0, 0, 0], problem.dtype), keys)
