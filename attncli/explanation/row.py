"""The whole row of one query, solved; why it does not see a key; how the query was made."""

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
from attncli.explanation.data import QueryMade, QueryNorm, Reason
from attncli.numerics.dtypes import widen
from attncli.numerics.positions import sinusoidal
from attncli.problem.norms import root_mean_square

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem
    from attncli.problem.visibility import Visibility

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class QueryRow:
    """One solved query of one head: arrays (S,) over all keys, and the rotated keys (S, D)."""

    def __init__(
        self, whole: Problem, batch: int, head: int, query: int, *, threads: int | None
    ) -> None:
        problem = whole.select(batch=batch, head=head, rows=(query, query + 1))
        self.problem, self.query = problem, query
        found: dict[str, Array] = {}
        # The last bits of a product depend on its number of rows. They may decide how a number
        # with few digits, such as 1.195, is rounded.
        if suits_formula(whole):
            with suppress(DataError):  # the scores of another query are out of range
                found = _solved(whole, (batch, head, query), threads)
        found = found or _solved(problem, (0, 0, 0), threads)
        self.raw, self.capped, self.scores = found["raw"], found["capped"], found["scores"]
        self.weights, self.lse = found["weights"], float(found["lse"][0])
        self.context = found.get("context")
        # The explanation shows unit length and W apart from the vectors.
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
        self.hidden_by = _hidden_by(problem.visible, self.bias)
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


def _hidden_by(visible: Visibility, bias: Array) -> dict[str, Bools]:
    """Return which keys each rule hides from the one query of a problem, (S,)."""
    rules = visible.hidden_by(0, 0, (0, 1), (0, visible.keys))
    found = {rule: np.broadcast_to(hidden[0], bias.shape) for rule, hidden in rules}
    return found | {"bias": bias == -np.inf}


def why(rule: str, visible: Visibility, query: int, key: int) -> Reason:
    """Return why a rule hides a key from the one query of a problem."""
    position = visible.offset(0)
    where = f"position {position}"
    if position != query:
        where += f" (query {query} + offset {position - query})"
    match rule:
        case "mask":
            words = f"it does not let query {query} attend to key {key}"
        case "key_padding_mask":
            words = f"it marks key {key} as padding"
        case "kv_lengths":
            valid = visible.length(0)
            words = f"key {key} is padding: only the first {valid} of the keys are valid"
        case "query_lengths":
            words = f"query {query} is padding: it sees no key at all"
        case "causal":
            words = f"key {key} comes after {where}"
        case "window":
            left, right = visible.window or (None, None)
            reach, side = (left, "left") if key < position else (right, "right")
            apart = abs(position - key)
            words = f"key {key} is {apart} to the {side} of {where}, at most {reach}"
        case "segment_ids":
            segments: Any = visible.segment_ids
            own, other = segments.queries[0, 0], segments.keys[0, key]
            words = f"query {query} belongs to segment {own}, and key {key} to segment {other}"
        case _:
            words = "-inf is added to the score"
    return Reason(rule, words)


def made_query(problem: Problem, *, batch: int, head: int, query: int) -> QueryMade | None:
    """Return how a query was made; None if it was not projected."""
    if problem.made_from is None or problem.made_from.arguments["wq"] is None:
        return None
    given = problem.made_from.arguments
    x = np.asarray(given["x"])
    rows = x if x.ndim == 2 else x[batch if len(x) > 1 else 0]
    own = widen(rows[query], problem.dtype)
    position = None
    if given["positions"] is not None:
        position = sinusoidal(1, len(own), first=query)[0].astype(problem.dtype)
    width = problem.query.shape[3]
    columns = slice(head * width, (head + 1) * width)
    weight, bias = np.asarray(given["wq"]), given["bq"]
    return QueryMade(
        given=own,
        position=position,
        weight=widen(weight[:, columns], problem.dtype),
        columns=(columns.start, columns.stop - 1) if weight.shape[1] > width else None,
        bias=None if bias is None else widen(bias[columns], problem.dtype),
        norm=_norm(given, own if position is None else own + position, columns),
    )


def _norm(given: Mapping[str, Any], embedding: Array, columns: slice) -> QueryNorm | None:
    weight = given["q_norm"]
    if weight is None:
        return None
    joint = len(weight) == np.asarray(given["wq"]).shape[1] > columns.stop - columns.start
    all_of = slice(None) if joint else columns
    made = embedding.astype(np.float64) @ widen(np.asarray(given["wq"])[:, all_of], np.float64)
    if given["bq"] is not None:
        made += widen(given["bq"][all_of], np.float64)
    own = made[columns] if joint else made
    return QueryNorm(
        projected=own.astype(embedding.dtype),
        rms=root_mean_square(made, given["norm_eps"]),
        epsilon=given["norm_eps"],
        weight=widen(weight[columns] if joint else weight, embedding.dtype),
        joint=joint,
    )
