"""Attention as a pipeline of named stages, so that a mistake is the exchange of one of them.

    inputs → turn → operands → product → scale → cap → bias → alibi → hide → softmax → after
    → mix → finish → output projection → behind → axes

The engine computes only the right answer. Here every stage is a field of `Pipeline`: a few lines on
arrays (B, H, L, S). Rules and terms are functions of indices: a rule tells whether query i of head
h in batch entry b sees key j, and a term gives the number that is added to that score. So a
pipeline describes the whole problem; `evaluate` computes any part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.referee.formats import FLOAT64, Array, Bools, Ints, Precision
from attncli.referee.run import Outputs, Run, Stage, mix, softmax_over, turn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.output import OutputProjection
    from attncli.problem.problem import Problem, Rope

# A score below the first belongs to a hidden key: BERT writes −10,000, most others the second.
LEAST_SEEN, USUAL_FILL = -1000.0, -1e9
ORDER = ("scale", "cap", "bias", "alibi", "hide")
Rule = Callable[[Run], Bools]
Term = Callable[[Run], Array]
Finish = Callable[[Run, Outputs], Outputs]
# From rows (·, ·, n, D), their positions and the rotary embedding to rotated rows.
Turn = Callable[[Array, Array, "Rope"], Array]


@dataclass(frozen=True)
class FileFacts:
    """Facts about the files that some mistakes depend on."""

    names: frozenset[str] = frozenset()  # the outputs that are judged
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: float = FLOAT64.largest  # the largest number in the format of the files
    resolution: float = 0.0  # the absolute tolerance: smaller differences cannot be seen
    fill: float = USUAL_FILL  # the score of hidden keys in a file of scores
    averaged: bool = False  # the weights are the mean of the heads
    # Results for the whole problem, shared by several mistakes.
    memory: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pipeline:
    """How a problem is solved, stage by stage. Arrays are float64."""

    problem: Problem  # as it was posed, in the axes of the user
    query: Array  # (B, H, L, D)
    key: Array  # (B or 1, G, S, D)
    value: Array | None  # (B or 1, G, S, E)
    # By input: the batch entry and the head that each head reads, (B, H) each, if not its own.
    places: Mapping[str, tuple[Ints, Ints]] = field(default_factory=dict)
    rope: Rope | None = None
    query_positions: Array  # (B or 1, L)
    key_positions: Array  # (B or 1, S)
    turn: Turn  # how rows are rotated
    turn_key: Turn | None = None  # how keys are rotated, if not like queries
    operands: tuple[tuple[str, Stage], ...] = ()  # changes of an input before it is multiplied
    score: str = "dot"
    score_weight: Array | None = None
    score_vector: Array | None = None
    scale: Any = 1.0  # a number, or one for each head (H,)
    softcap: float | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)  # which keys a query sees
    terms: Mapping[str, Term] = field(default_factory=dict)  # by step: the added numbers
    order: tuple[str, ...] = ORDER  # the steps from the product to the scores
    steps: Mapping[str, Stage] = field(default_factory=dict)  # steps that replace the usual ones
    fill: float = -np.inf  # the score of a hidden key
    sinks: Array | None = None  # (H,)
    softmax: Callable[[Run, Array], tuple[Array, Array]]  # scores to weights and lse (B, H, L)
    after: tuple[Stage, ...] = ()  # changes of the weights before they multiply the values
    mix: Callable[[Run, Array, Array], Array]  # weights and values to the context
    finish: tuple[Finish, ...] = ()  # changes of the outputs before the output projection
    behind: tuple[Finish, ...] = ()  # changes of the outputs after the output projection
    output: OutputProjection | None = None
    axes: Callable[[Problem, str, Array], Array]  # brings an output into the axes of the user
    products: Precision | None = None  # the format of factors, if narrower than the files'
    codes: bool = False  # numbers are rounded to few codes; a number halfway may go either way
    in_turn: bool = False  # sums add one term at a time, as a loop does
    projected: Mapping[str, Any] | None = None  # the arguments of `attncli.project`, if used
    file: FileFacts

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, L, S)."""
        return (*self.query.shape[:3], self.key.shape[2])

    @property
    def width(self) -> int:
        """D, the width of a query and a key."""
        return int(self.query.shape[3])

    @property
    def offsets(self) -> Ints:
        """The position of the first query of each batch entry, (B or 1,)."""
        return np.array(self.problem.visible.offsets)

    def but(self, **changes: Any) -> Pipeline:
        """Return the pipeline with other stages."""
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"no stage is called {', '.join(sorted(changes.keys() - _FIELDS))}")
        made = object.__new__(Pipeline)
        made.__dict__.update(self.__dict__ | changes)
        return made

    def with_rule(self, name: str, rule: Rule | None) -> Pipeline:
        """Return the pipeline with this rule replaced or removed."""
        rules = {n: r for n, r in self.rules.items() if n != name}
        return self.but(rules=rules if rule is None else {**self.rules, name: rule})

    def with_term(self, name: str, term: Term) -> Pipeline:
        """Return the pipeline with this term added or replaced."""
        return self.but(terms={**self.terms, name: term})

    def with_step(self, name: str, step: Stage, before: str | None) -> Pipeline:
        """Return the pipeline with a new step, or with a step replaced and moved."""
        return self.moved(name, before).but(steps={**self.steps, name: step})

    def moved(self, name: str, before: str | None) -> Pipeline:
        """Return the pipeline with a step moved before another one, or to the end."""
        order = [n for n in self.order if n != name]
        at = len(order) if before is None else order.index(before)
        return self.but(order=(*order[:at], name, *order[at:]))

    def then(self, stage: str, change: Callable[..., Any] | tuple[str, Any]) -> Pipeline:
        """Return the pipeline with one more change in after, finish, behind or operands."""
        return self.but(**{stage: (*getattr(self, stage), change)})


_FIELDS = frozenset(each.name for each in fields(Pipeline))


def causal(offsets: Sequence[int] | Array) -> Rule:
    """Return the rule j ≤ i + offset."""
    return band(None, 0, offsets)


def band(left: int | None, right: int | None, offsets: Sequence[int] | Array) -> Rule:
    """Return the rule i + offset − left ≤ j ≤ i + offset + right."""

    def rule(run: Run) -> Bools:
        behind = distance_of(run, offsets)
        seen = np.ones((1, 1, 1, 1), np.bool_) if left is None else behind <= left
        return seen if right is None else seen & (behind >= -right)

    return rule


def keys_of(lengths: Sequence[int] | Array) -> Rule:
    """Return the rule j < length of the batch entry."""
    return lambda run: run.j < run.by_entry(lengths)


def table(array: Array) -> Callable[[Run], Array]:
    """Return a rule or a term from an array (B or 1, H or 1, L or 1, S or 1)."""
    return lambda run: run.part.of(array)


def measured(queries: Ints, keys: Ints, seen: Callable[[Array, Array], Bools] = np.equal) -> Rule:
    """Return the rule that compares numbers of queries (B or 1, L) and keys (B or 1, S)."""
    return lambda run: seen(
        run.part.of(queries[:, None, :, None]), run.part.of(keys[:, None, None, :])
    )


def distance_of(run: Run, offsets: Sequence[int] | Array | None = None) -> Array:
    """Return i + offset − j."""
    own = run.pipe.offsets if offsets is None else offsets
    return run.i + run.by_entry(own) - run.j


def alibi(slopes: Array, offsets: Sequence[int] | Array) -> Term:
    """Return the term −slope · |i + offset − j|."""
    return lambda run: -run.by_head(slopes) * np.abs(distance_of(run, offsets))


def lengths_of(problem: Problem) -> tuple[int, ...]:
    """Return the number of real keys in each batch entry."""
    lengths = problem.visible.kv_lengths or problem.shape[3]
    return tuple(np.broadcast_to(lengths, problem.shape[0]).tolist())


def pipeline_of(
    problem: Problem, file: FileFacts | None = None, projected: Mapping[str, Any] | None = None
) -> Pipeline:
    """Return the right pipeline of a problem."""
    visible = problem.visible
    *_, queries, keys = problem.shape
    terms: dict[str, Term] = {}
    if problem.bias is not None:
        terms["bias"] = table(widen(problem.bias, np.float64))
    if problem.alibi_slopes is not None:
        terms["alibi"] = alibi(problem.alibi_slopes, visible.offsets)
    return Pipeline(
        problem=problem,
        query=widen(problem.query, np.float64),
        key=widen(problem.key, np.float64),
        value=_wide(problem.value),
        rope=problem.rope,
        query_positions=np.array(visible.offsets)[:, None] + np.arange(queries),
        key_positions=np.arange(keys)[None],
        turn=turn,
        score=problem.score,
        score_weight=_wide(problem.score_weight),
        score_vector=_wide(problem.score_vector),
        scale=float(problem.scale),
        softcap=problem.softcap,
        rules=_rules(problem),
        terms=terms,
        sinks=problem.sinks,
        softmax=softmax_over,
        mix=mix,
        output=problem.output,
        axes=present,
        projected=projected,
        file=file or FileFacts(),
    )


def _wide(array: Array | None) -> Array | None:
    return None if array is None else widen(np.asarray(array), np.float64)


def _rules(problem: Problem) -> dict[str, Rule]:
    visible = problem.visible
    rules: dict[str, Rule] = {}
    if visible.mask is not None:
        rules["mask"] = table(visible.mask)
    if visible.key_padding_mask is not None:
        rules["key_padding_mask"] = table(visible.key_padding_mask[:, None, None, :])
    if visible.kv_lengths is not None:
        rules["kv_lengths"] = keys_of(visible.kv_lengths)
    if (real := visible.query_lengths) is not None:
        rules["query_lengths"] = lambda run: run.i < run.by_entry(real)
    if visible.window is not None:
        rules["window"] = band(*visible.window, visible.offsets)
    if visible.segment_ids is not None:
        rules["segment_ids"] = measured(visible.segment_ids.queries, visible.segment_ids.keys)
    if visible.causal:
        rules["causal"] = causal(visible.offsets)
    return rules


def present(problem: Problem, name: str, array: Array) -> Array:
    """Return an output (B, H, …) in the axes of the user."""
    if name == "context":
        return problem.layout.join(array)
    return problem.layout.drop(array[..., 0] if name == "lse" else array)
