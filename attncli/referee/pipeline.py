"""Attention as a pipeline of named stages, so that a mistake is the exchange of one of them.

    inputs → turn → operands → product → scale → cap → bias → alibi → hide → softmax → after
    → mix → finish → output projection → behind → axes

The engine computes the right answer and nothing else. Here every stage is a few lines on arrays
(B, H, L, S), and a field of `Pipeline`. Rules and terms are functions of indices: a rule says
whether query i of head h in batch entry b sees key j, a term what is added to that score. So
a pipeline is always of the whole problem; `evaluate` follows it on any part that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import turned
from attncli.referee.formats import FLOAT64, Array, Bools, Ints, Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.output import OutputProjection
    from attncli.problem.problem import Problem, Rope

__all__ = [
    "LEAST_SEEN",
    "USUAL_FILL",
    "WHOLE",
    "FileFacts",
    "Finish",
    "Memory",
    "Outputs",
    "Part",
    "Pipeline",
    "Rule",
    "Run",
    "Stage",
    "alibi",
    "band",
    "causal",
    "distance_of",
    "evaluate",
    "keys_of",
    "lengths_of",
    "limited",
    "measured",
    "pipeline_of",
    "present",
    "query_rows",
    "softmax_over",
    "table",
    "together",
    "turn",
    "turned_inputs",
]

# A score below the first belongs to a hidden key: BERT masks with −10,000, others with the second.
LEAST_SEEN, USUAL_FILL = -1000.0, -1e9
ORDER = ("scale", "cap", "bias", "alibi", "hide")
Outputs = dict[str, Array]
# What a stage is given, and what it changes, in; the change out.
Stage = Callable[["Run", Array], Array]
Rule = Callable[["Run"], Bools]
Term = Callable[["Run"], Array]
Finish = Callable[["Run", Outputs], Outputs]
# Rows (·, ·, n, D), their positions, and the rotary embedding in; rotated rows out.
Turn = Callable[[Array, Array, "Rope"], Array]
# How many products are held at once while a sum is made term by term, and how many numbers a
# `Memory` keeps before it forgets all of them.
_AT_ONCE, _REMEMBERED = 2**18, 2**22
# What a `Memory` tells apart by its value.
_BY_VALUE = frozenset([str, float, int, tuple])
_LOWEST = {np.dtype(kind): np.finfo(kind).min for kind in (np.float32, np.float64)}


class Part(NamedTuple):
    """A batch entry, a head and a range of queries; None for all."""

    batch: int | None = None
    head: int | None = None
    rows: tuple[int, int] | None = None

    @property
    def index(self) -> tuple[slice, slice, slice]:  # type: ignore[override]
        """The index of the part in what is (B, H, L, …)."""

        def one(at: int | None) -> slice:
            return slice(None) if at is None else slice(at, at + 1)

        rows = slice(None) if self.rows is None else slice(*self.rows)
        return one(self.batch), one(self.head), rows

    def of(self, array: Array) -> Array:
        """Return the part of an array (B or 1, H or 1, L or 1, …)."""
        own = zip(array.shape, self.index, strict=False)
        return np.asarray(array[tuple(slice(None) if n == 1 else each for n, each in own)])


WHOLE = Part()


@dataclass(frozen=True)
class FileFacts:
    """What the files show, which some mistakes ask for."""

    names: frozenset[str] = frozenset()  # the outputs that are judged
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    largest: float = FLOAT64.largest  # what is larger overflows in the format of the files
    resolution: float = 0.0  # the absolute tolerance: the files show nothing smaller
    fill: float = USUAL_FILL  # the score of hidden keys in a file of scores
    averaged: bool = False  # the weights are the mean of the heads
    # What several mistakes work out of the whole problem.
    memory: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class Pipeline:
    """How a problem is solved, stage by stage. Arrays are of float64."""

    problem: Problem  # as it was posed: what is right, and the axes of the user
    query: Array  # (B, H, L, D)
    key: Array  # (B or 1, G, S, D)
    value: Array | None  # (B or 1, G, S, E)
    # The batch entry and the head (B, H each) of an input that each head reads, if not its own.
    places: Mapping[str, tuple[Ints, Ints]] = field(default_factory=dict)
    rope: Rope | None = None
    query_positions: Array  # (B or 1, L)
    key_positions: Array  # (B or 1, S)
    turn: Turn  # how rows are rotated
    turn_key: Turn | None = None  # how keys are, if otherwise
    operands: tuple[tuple[str, Stage], ...] = ()  # changes of an input before it is multiplied
    score: str = "dot"
    score_weight: Array | None = None
    score_vector: Array | None = None
    scale: Any = 1.0  # a number, or (H, 1, 1)
    softcap: float | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict)  # who sees whom
    terms: Mapping[str, Term] = field(default_factory=dict)  # what a step of that name adds
    order: tuple[str, ...] = ORDER  # the steps from the product to the scores
    steps: Mapping[str, Stage] = field(default_factory=dict)  # steps that do something unusual
    fill: float = -np.inf  # the score of a hidden key
    sinks: Array | None = None  # (H,)
    softmax: Callable[[Run, Array], tuple[Array, Array]]  # scores to weights and lse (B, H, L)
    after: tuple[Stage, ...] = ()  # changes of the weights before they meet the values
    mix: Callable[[Run, Array, Array], Array]  # weights and values to the context
    finish: tuple[Finish, ...] = ()  # changes of the outputs before the output projection
    behind: tuple[Finish, ...] = ()  # changes of the outputs behind it
    output: OutputProjection | None = None
    axes: Callable[[Problem, str, Array], Array]  # an output in the axes of the user
    products: Precision | None = None  # the format of factors, if narrower than that of the files
    codes: bool = False  # numbers were put into few codes: what lies between may go either way
    in_turn: bool = False  # sums are made a term after the other, as a loop does
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
        """What is added to the index of a query to give its position, (B or 1,)."""
        return np.array(self.problem.visible.offsets)

    def but(self, **changes: Any) -> Pipeline:
        """Return the pipeline with some stages exchanged."""
        if not changes.keys() <= _FIELDS:
            raise TypeError(f"no stage is called {', '.join(sorted(changes.keys() - _FIELDS))}")
        made = object.__new__(Pipeline)
        made.__dict__.update(self.__dict__ | changes)
        return made

    def with_rule(self, name: str, rule: Rule | None) -> Pipeline:
        """Return the pipeline with a rule, in the place of that name; without it for None."""
        rules = {n: r for n, r in self.rules.items() if n != name}
        return self.but(rules=rules if rule is None else {**self.rules, name: rule})

    def with_term(self, name: str, term: Term) -> Pipeline:
        """Return the pipeline with what a step adds to the scores, in the place of that name."""
        return self.but(terms={**self.terms, name: term})

    def with_step(self, name: str, step: Stage, before: str | None) -> Pipeline:
        """Return the pipeline with a step more, or the same one elsewhere."""
        return self.moved(name, before).but(steps={**self.steps, name: step})

    def moved(self, name: str, before: str | None) -> Pipeline:
        """Return the pipeline with a step moved before another one, or to the end."""
        order = [n for n in self.order if n != name]
        at = len(order) if before is None else order.index(before)
        return self.but(order=(*order[:at], name, *order[at:]))

    def then(self, stage: str, change: Callable[..., Any] | tuple[str, Any]) -> Pipeline:
        """Return the pipeline with one more change in `after`, `finish`, `behind` or operands."""
        return self.but(**{stage: (*getattr(self, stage), change)})


_FIELDS = frozenset(each.name for each in fields(Pipeline))


class Memory:
    """What was worked out of one part in float64, for all pipelines that share it.

    Most pipelines have the product in common, and many the scores.
    """

    def __init__(self) -> None:
        self._known: dict[object, tuple[tuple[object, ...], Any]] = {}
        self._numbers = 0

    def of(self, name: str, made_of: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """Return what was made before under a name of the same objects; what is new is made."""
        # Arrays and functions are told apart by their ids, and kept alive.
        key = (name, *[each if type(each) in _BY_VALUE else id(each) for each in made_of])
        if key not in self._known:
            made = make()
            arrays = made.values() if isinstance(made, dict) else (made,)
            for array in arrays:
                array.flags.writeable = False
            self._numbers += sum(array.size for array in arrays)
            if self._numbers > _REMEMBERED:
                self._known.clear()
                self._numbers = sum(array.size for array in arrays)
            self._known[key] = made_of, made
        return self._known[key][1]


@lru_cache(maxsize=256)
def _mesh(shape: tuple[int, ...], part: Part) -> tuple[Ints, ...]:
    cut = zip(shape, (*part.index, slice(None)), strict=True)
    return np.ix_(*(np.arange(count)[own] for count, own in cut))


class Run:
    """A pipeline followed on one part: what its stages are given.

    b, h, i and j are the indices of the part, each along its own of four axes.
    """

    def __init__(
        self, pipe: Pipeline, part: Part, precision: Precision, memory: Memory | None
    ) -> None:
        self.pipe, self.part, self.precision = pipe, part, precision
        self.b, self.h, self.i, self.j = _mesh(pipe.shape, part)
        self.memory = memory or Memory()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the scores."""
        return self.b.size, self.h.size, self.i.size, self.j.size

    def by_entry(self, numbers: Sequence[int] | Array) -> Array:
        """Return one number of each batch entry (B or 1,) as (B or 1, 1, 1, 1)."""
        return self.part.of(np.asarray(numbers)[:, None, None, None])

    def by_head(self, numbers: Array) -> Array:
        """Return one number of each head (H,) as (1, H, 1, 1)."""
        return self.part.of(np.asarray(numbers)[None, :, None, None])

    def rule(self, name: str) -> Bools:
        """Return what a rule lets attend, broadcast to (B, H, L, S)."""
        return self.called(self.pipe.rules[name])

    def term(self, name: str) -> Array:
        """Return what a step adds."""
        return self.called(self.pipe.terms[name])

    def called(self, of_indices: Callable[[Run], Array]) -> Array:
        """Return what a function of indices makes of the part, once."""
        made_of = of_indices, self.pipe.shape
        made: Array = self.memory.of("rule", made_of, lambda: np.array(of_indices(self)))
        return made

    @property
    def seen(self) -> Bools:
        """Which keys each query sees, every rule together."""
        return self.seen_by(*self.pipe.rules)

    def seen_by(self, *names: str) -> Bools:
        """Return which keys some rules leave."""
        if not names:
            return np.ones((1, 1, 1, 1), np.bool_)
        rules = [self.pipe.rules[name] for name in names]

        def all_of_them() -> Bools:
            return np.array(reduce(np.logical_and, map(self.called, rules)))

        both: Bools = self.memory.of("seen", (*rules, self.pipe.shape), all_of_them)
        return both

    def input(self, name: str) -> Array:
        """Return a part of query, key or value as it is given, for each head; shared ones once."""
        array: Array = getattr(self.pipe, name)
        places = self.pipe.places.get(name)
        batch, head, rows = self.part.index
        if places is not None:
            entry, group = (index[batch, head] for index in places)
            array = array[entry, group]
        else:
            array = array if len(array) == 1 else array[batch]
            shared = self.pipe.query.shape[1] // array.shape[1]
            if self.part.head is not None:
                head = slice(self.part.head // shared, self.part.head // shared + 1)
            array = array[:, head]
        return array[:, :, rows] if name == "query" else array

    def operand(self, name: str) -> Array:
        """Return query, key or value as it is multiplied: rotated and changed; rounded."""
        pipe = self.pipe
        changes = [change for target, change in pipe.operands if target == name]
        turns = name != "value" and pipe.rope is not None
        if self.precision is not FLOAT64:
            return self.prepared(name, changes, turns=turns)
        if not (turns or changes or (pipe.score in _LENGTHS and name != "value")):
            return self.input(name)
        positions = pipe.query_positions if name == "query" else pipe.key_positions
        made_of = (getattr(pipe, name), positions, pipe.turn, pipe.turn_key, *changes, pipe.rope)
        made_of += (pipe.score, pipe.score_weight, pipe.query, *pipe.places.get(name, ()))
        made: Array = self.memory.of(
            name, made_of, lambda: np.array(self.prepared(name, changes, turns=turns))
        )
        return made

    def positions(self, name: str) -> Array:
        """Return where the queries or the keys of the part stand, (B or 1, 1, n)."""
        own = self.pipe.query_positions if name == "query" else self.pipe.key_positions
        own = own if len(own) == 1 else own[self.part.index[0]]
        return own[:, None, self.part.index[2] if name == "query" else slice(None)]

    def prepared(self, name: str, changes: list[Stage], *, turns: bool) -> Array:
        """Return an input of the part as the scores, or the sum of the values, take it."""
        pipe, precision = self.pipe, self.precision
        rows = precision.rounded(self.input(name))
        if turns and pipe.rope is not None:
            turn = pipe.turn_key or pipe.turn if name == "key" else pipe.turn
            rows = turn(rows, self.positions(name), pipe.rope)
        for change in changes:
            rows = change(self, rows)
        if name != "value" and pipe.score == "cosine":
            rows = unit_rows(rows)
        if name == "query" and pipe.score_weight is not None:
            rows = rows @ pipe.score_weight.astype(rows.dtype)
        return precision.rounded(rows)


_LENGTHS = ("cosine", "general")


def evaluate(
    pipe: Pipeline,
    part: Part = WHOLE,
    precision: Precision = FLOAT64,
    *,
    fold: bool = False,
    memory: Memory | None = None,
) -> Outputs:
    """Follow a pipeline on a part, rounding after every step.

    Parameters
    ----------
    pipe : Pipeline
    part : Part
    precision : Precision
    fold : bool
        Multiply the query with the scale instead of the product: the same in exact arithmetic,
        other roundings.
    memory : Memory, optional
        Of the part; what it holds is read only.

    Returns
    -------
    dict of str to ndarray
        raw, capped, scores, weights (B, H, L, S); context (B, H, L, E), or (B, 1, L, out) with an
        output projection; lse (B, H, L, 1).
    """
    with np.errstate(all="ignore"):
        run = Run(pipe, part, precision, memory)
        outputs = _outputs(run, _stages(run, fold=fold))
        for finish in pipe.finish:
            outputs = finish(run, outputs)
        if "context" in outputs:
            outputs = outputs | {"context": _projected(run, outputs["context"])}
        for finish in pipe.behind:
            outputs = finish(run, outputs)
    return outputs


def _stages(run: Run, *, fold: bool) -> dict[str, Array]:
    """Return what each step from the product to the scores makes, the scores last."""
    pipe = run.pipe
    if run.precision is not FLOAT64:
        fold = fold and pipe.order[0] == "scale" and pipe.score != "additive"
        return _steps(run, _product(run, fold=fold), pipe.order[1:] if fold else pipe.order)
    product_of = pipe.score, run.operand("query"), run.operand("key"), pipe.score_vector
    product = run.memory.of("product", product_of, lambda: np.array(_product(run)))
    made_of: tuple[Any, ...] = (product, pipe.scale, pipe.softcap, pipe.order, pipe.fill)
    for each in (pipe.terms, pipe.rules, pipe.steps):
        made_of += (tuple(each), *each.values())
    made: dict[str, Array] = run.memory.of(
        "scores", made_of, lambda: _steps(run, product, pipe.order)
    )
    return made


def _steps(run: Run, scores: Array, order: Sequence[str]) -> dict[str, Array]:
    stages = {"scale": scores}
    for name in order:
        step = run.pipe.steps.get(name) or _STEPS.get(name) or adding(name)
        scores = run.precision.score(step(run, scores))
        stages[name] = scores
    return stages | {"scores": scores}


def _product(run: Run, *, fold: bool = False) -> Array:
    """Return Q Kᵀ, or another score function, unscaled."""
    pipe, precision = run.pipe, run.precision
    query, key = run.operand("query"), run.operand("key")
    if pipe.score == "additive":
        key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
        vector = np.asarray(pipe.score_vector).astype(precision.computing)
        return precision.score(np.tanh(query[..., None, :] + key[..., None, :, :]) @ vector)
    if fold:
        query = precision.score(_scale(run, query))
    return precision.score(together(query, key.swapaxes(-1, -2), in_turn=pipe.in_turn))


def together(left: Array, right: Array, *, in_turn: bool = False) -> Array:
    """Return left · right (B, H, L, N) · (B or 1, G, N, M), (B, H, L, M); as BLAS sums, or in turn.

    Heads that share a right one are its rows together: nothing is repeated.
    """
    times = left.shape[1] // right.shape[1]
    if times > 1:
        batch, heads, rows, terms = left.shape
        stacked = left.reshape(batch, heads // times, times * rows, terms)
        return together(stacked, right, in_turn=in_turn).reshape(batch, heads, rows, -1)
    if not in_turn:
        return np.asarray(left @ right)
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*shape, left.shape[-2], right.shape[-1]), left.dtype)
    block = max(1, _AT_ONCE // max(1, total.size))
    for start in range(0, left.shape[-1], block):
        part = slice(start, start + block)
        products = left[..., part, None] * right[..., None, part, :]
        products[..., 0, :] += total
        total = np.cumsum(products, axis=-2, out=products)[..., -1, :]
    return total


def _outputs(run: Run, stages: dict[str, Array]) -> Outputs:
    """Return all outputs, the context before its projection."""
    pipe, precision = run.pipe, run.precision
    weights, lse = pipe.softmax(run, stages["scores"])
    for change in pipe.after:
        weights = change(run, weights)
    weights = precision.rounded(weights)
    outputs = {
        "raw": precision.rounded(stages["scale"]),
        "capped": precision.rounded(stages.get("cap", stages["scale"])),
        "scores": precision.rounded(stages["scores"]),
        "weights": weights,
        "lse": precision.rounded(lse[..., None]),
    }
    if pipe.value is not None:
        outputs["context"] = precision.rounded(pipe.mix(run, weights, run.operand("value")))
    return outputs


def _mix(run: Run, weights: Array, value: Array) -> Array:
    return together(weights, value, in_turn=run.pipe.in_turn)


def _projected(run: Run, context: Array) -> Array:
    """Return the context after its output projection, (B, 1, L, out); padded queries are 0."""
    output, precision = run.pipe.output, run.precision
    if output is None:
        return context
    batch, heads, rows, width = context.shape
    weight = precision.rounded(widen(output.weight, precision.computing))
    if heads * width != len(weight):  # a mistake that changes the width has no output
        return context
    joined = context.transpose(0, 2, 1, 3).reshape(batch, 1, rows, heads * width)
    made = precision.rounded(joined @ weight)
    if output.bias is not None:
        bias = precision.rounded(widen(output.bias, precision.computing))
        made = precision.rounded(made + bias)
    if "query_lengths" in run.pipe.rules:
        made = np.where(run.rule("query_lengths")[..., :1], made, 0)
    return made


# Steps from the product to the scores.


def _scale(run: Run, scores: Array) -> Array:
    scale = run.pipe.scale
    factor = run.by_head(scale) if isinstance(scale, np.ndarray) else np.float64(scale)
    scaled: Array = scores * factor.astype(scores.dtype)
    return scaled


def _cap(run: Run, scores: Array) -> Array:
    cap = run.pipe.softcap
    return scores if cap is None else cap * np.tanh(scores / cap)


def _hide(run: Run, scores: Array) -> Array:
    if not run.pipe.rules:
        return scores
    return np.where(run.seen, scores, scores.dtype.type(run.pipe.fill))


def adding(name: str) -> Stage:
    """Return the step that adds the term of its name, where there is one."""

    def add(run: Run, scores: Array) -> Array:
        if name not in run.pipe.terms:
            return scores
        term: Array = run.term(name).astype(scores.dtype, copy=False)
        return scores + term

    return add


_STEPS: dict[str, Stage] = {"scale": _scale, "cap": _cap, "hide": _hide}


def limited(array: Array, largest: float) -> Array:
    """Return numbers as a format holds them that has none beyond the largest but infinities."""
    return np.where(np.abs(array) > largest, np.copysign(np.inf, array), array)


def softmax_over(run: Run, scores: Array, axis: int = -1) -> tuple[Array, Array]:
    """Return weights and lse, the softmax running over an axis; sinks count where it is the keys.

    Fully masked rows get weights 0 and lse −inf.
    """
    sinks = run.pipe.sinks if axis == -1 else None
    top = np.maximum.reduce(scores, axis, keepdims=True)
    if sinks is not None:
        sink = run.by_head(sinks).astype(scores.dtype)
        top = np.maximum(top, sink)
    shift = np.maximum(top, _LOWEST[scores.dtype])
    share = scores - shift
    np.exp(share, out=share)
    total = total_of(share, axis, in_turn=run.pipe.in_turn)
    if sinks is not None:
        total = total + np.exp(sink - shift)
    # A total is 0, or at least the 1 of what the shift comes from.
    weights = np.divide(share, np.maximum(total, 1), out=share)
    if axis == -1:
        return weights, (np.log(total) + shift)[..., 0]
    # Over another axis no query has a denominator of its own: report the usual lse.
    return weights, softmax_over(run, scores)[1]


def total_of(terms: Array, axis: int = -1, *, in_turn: bool = False) -> Array:
    """Return the sum over an axis, which stays; in pairs, as NumPy does, or in turn."""
    if in_turn:
        return np.take(np.cumsum(terms, axis), [-1], axis)
    return np.asarray(np.add.reduce(terms, axis, keepdims=True))


def turn(rows: Array, positions: Array, rope: Rope) -> Array:
    """Rotate rows (·, ·, n, D) by their positions (·, 1, n)."""
    dtype = rows.dtype
    angles = positions.astype(dtype)[..., None] * rope.of_width(rows.shape[-1]).astype(dtype)
    return turned(rows, angles, rope.pairing)


def unit_rows(rows: Array) -> Array:
    """Return rows scaled to length 1; a row of zeros stays zero."""
    peak = np.abs(rows).max(axis=-1, keepdims=True)
    rows = rows / np.where(peak == 0, 1, peak)
    length = np.sqrt(np.square(rows).sum(axis=-1, keepdims=True))
    return rows / np.where(length == 0, 1, length)


# Rules and terms, as functions of indices.


def causal(offsets: Sequence[int] | Array) -> Rule:
    """Return the rule j ≤ i + offset."""
    return lambda run: run.j <= run.i + run.by_entry(offsets)


def band(left: int | None, right: int | None, offsets: Sequence[int] | Array) -> Rule:
    """Return the rule i + offset − left ≤ j ≤ i + offset + right."""

    def rule(run: Run) -> Bools:
        behind = run.i + run.by_entry(offsets) - run.j
        seen = np.ones((1, 1, 1, 1), np.bool_) if left is None else behind <= left
        return seen if right is None else seen & (behind >= -right)

    return rule


def keys_of(lengths: Sequence[int] | Array) -> Rule:
    """Return the rule j < length of the batch entry."""
    return lambda run: run.j < run.by_entry(lengths)


def query_rows(lengths: Sequence[int] | Array) -> Rule:
    """Return the rule i < length of the batch entry."""
    return lambda run: run.i < run.by_entry(lengths)


def table(array: Array) -> Callable[[Run], Array]:
    """Return a rule or a term that is stated as an array (B or 1, H or 1, L or 1, S or 1)."""
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
    """Return how many real keys each batch entry has."""
    lengths = problem.visible.kv_lengths or problem.shape[3]
    return tuple(np.broadcast_to(lengths, problem.shape[0]).tolist())


def pipeline_of(
    problem: Problem, file: FileFacts | None = None, projected: Mapping[str, Any] | None = None
) -> Pipeline:
    """Return the right pipeline of a problem."""
    visible = problem.visible
    _batch, _, queries, keys = problem.shape
    terms: dict[str, Term] = {}
    if problem.bias is not None:
        terms["bias"] = table(widen(problem.bias, np.float64))
    if problem.alibi_slopes is not None:
        terms["alibi"] = alibi(problem.alibi_slopes, visible.offsets)
    value = None if problem.value is None else widen(problem.value, np.float64)
    return Pipeline(
        problem=problem,
        query=widen(problem.query, np.float64),
        key=widen(problem.key, np.float64),
        value=value,
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
        mix=_mix,
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
    if visible.query_lengths is not None:
        rules["query_lengths"] = query_rows(visible.query_lengths)
    if visible.window is not None:
        rules["window"] = band(*visible.window, visible.offsets)
    if visible.segment_ids is not None:
        rules["segment_ids"] = measured(visible.segment_ids.queries, visible.segment_ids.keys)
    if visible.causal:
        rules["causal"] = causal(visible.offsets)
    return rules


def turned_inputs(pipe: Pipeline) -> Pipeline:
    """Return a pipeline whose whole inputs are rotated already, and have no rotary embedding."""
    if pipe.rope is None:
        return pipe
    plain = pipe.but(score="dot", score_weight=None, operands=(), places={})
    run = Run(plain, WHOLE, FLOAT64, None)
    made = {name: run.prepared(name, [], turns=True) for name in ("query", "key")}
    return pipe.but(rope=None, **made)


def present(problem: Problem, name: str, array: Array) -> Array:
    """Return an output (B, H, …) in the axes of the user."""
    if name == "context":
        return problem.layout.join(array)
    return problem.layout.drop(array[..., 0] if name == "lse" else array)
