"""Solve one query and keep its whole row, from which its keys are listed."""

from __future__ import annotations

import math
from contextlib import suppress
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

__all__ = ["QueryRow"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


class QueryRow:
    """One query of one head, solved, with arrays (S,) over all keys; the key is rotated (S, D)."""

    def __init__(
        self, whole: Problem, batch: int, head: int, query: int, *, threads: int | None
    ) -> None:
        problem = whole.select(batch=batch, head=head, rows=(query, query + 1))
        self.problem, self.query = problem, query
        found: dict[str, Array] = {}
        # The last bits of a product depend on how many rows it has, and one may decide how a
        # number with few digits, such as 1.195, is rounded.
        if suits_formula(whole):
            with suppress(DataError):  # of the scores of another query
                found = _solved(whole, (batch, head, query), threads)
        found = found or _solved(problem, (0, 0, 0), threads)
        self.raw, self.capped, self.scores = found["raw"], found["capped"], found["scores"]
        self.weights, self.lse = found["weights"], float(found["lse"][0])
        self.context = found.get("context")
        # Unit length and W are shown apart from the vectors on which they act.
        plain = rotated(problem)
        self.key = plain.key[0, 0]
        self.rotated = widen(plain.query[0, 0, 0], problem.dtype)
        general = problem.score == "general"
        compared = prepare(problem).query[0, 0, 0] if general else self.rotated
        self.compared: Array = widen(compared, problem.dtype)
        self.bias: Array = np.zeros_like(self.scores)
        if problem.bias is not None:
            row = widen(problem.bias[0, 0, 0], problem.dtype)
            self.bias = np.broadcast_to(row, self.scores.shape)
        slopes, sinks = problem.alibi_slopes, problem.sinks
        self.slope = None if slopes is None else float(slopes[0])
        self.sink = None if sinks is None else float(sinks[0])
        top = max(float(self.scores.max()), -math.inf if self.sink is None else self.sink)
        self.shift = 0.0 if top == -math.inf else top
        exponentials: Floats = np.exp(self.scores.astype(np.float64) - self.shift)
        self.exponentials = exponentials
        self.sink_exponential = 0.0 if self.sink is None else math.exp(self.sink - self.shift)


def _solved(problem: Problem, place: tuple[int, int, int], threads: int | None) -> dict[str, Array]:
    names = [name for name in OUTPUTS if name != "context" or problem.value is not None]
    answer, _ = attend(problem, names, threads=threads)
    found = {}
    for name in names:
        array = getattr(answer, name)
        if name == "context":
            array = problem.layout.split(array, problem.shape[1], name)
        found[name] = array.reshape(*problem.shape[:3], -1)[place]
    return found
