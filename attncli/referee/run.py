"""Evaluate a pipeline on a part of a problem, in a given precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import turned
from attncli.referee.formats import FLOAT64, Array, Bools, Ints, Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Rope
    from attncli.referee.pipeline import Pipeline

Outputs = dict[str, Array]
# From the run and an array to the changed array.
Stage = Callable[["Run", Array], Array]
# How many products are held at once while a sum is made term by term; how many numbers a `Memory`
# keeps before it forgets all of them.
_AT_ONCE, _REMEMBERED = 2**18, 2**22
_ROWS_AT_A_TIME = 256
# A `Memory` compares these by value, and all else by identity.
_BY_VALUE = frozenset([str, float, int, tuple])
_LOWEST = {np.dtype(kind): np.finfo(kind).min for kind in (np.float32, np.float64)}


class Part(NamedTuple):
    """A batch entry, a head and a range of queries; None for all."""

    batch: int | None = None
    head: int | None = None
    rows: tuple[int, int] | None = None

    @property
    def index(self) -> tuple[slice, slice, slice]:  # type: ignore[override]
        """The index of the part in arrays (B, H, L, …)."""

        def one(at: int | None) -> slice:
            return slice(None) if at is None else slice(at, at + 1)

        rows = slice(None) if self.rows is None else slice(*self.rows)
        return one(self.batch), one(self.head), rows

    def of(self, array: Array) -> Array:
        """Return the part of an array (B or 1, H or 1, L or 1, …)."""
        own = zip(array.shape, self.index, strict=False)
        return np.asarray(array[tuple(slice(None) if n == 1 else each for n, each in own)])


WHOLE = Part()


def by_query(pipe: Pipeline, heads: int, number_of: Callable[[Run], Array]) -> Array:
    """Return one number for each query, (B, heads, L), computed for a few queries at a time."""
    batch, _, queries, _ = pipe.shape
    numbers = np.empty((batch, heads, queries))
    for b, h, start in product(range(batch), range(heads), range(0, queries, _ROWS_AT_A_TIME)):
        part = Part(b, h, (start, start + _ROWS_AT_A_TIME))
        numbers[part.index] = number_of(Run(pipe, part, FLOAT64, None))
    return numbers


class Memory:
    """Results on one part in float64 that pipelines share."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[tuple[object, ...], Any]] = {}
        self._numbers = 0

    def of(self, name: str, made_of: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """Return the result for a name and the objects it is made of; it is computed once."""
        # Arrays and functions are identified by their ids, so they are kept alive.
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
    """A pipeline on one part of its problem: the argument of every stage."""

    def __init__(
        self, pipe: Pipeline, part: Part, precision: Precision, memory: Memory | None
    ) -> None:
        self.pipe, self.part, self.precision = pipe, part, precision
        # The indices of the part, each along its own of four axes.
        self.b, self.h, self.i, self.j = _mesh(pipe.shape, part)
        self.memory = memory or Memory()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the scores, (B, H, L, S)."""
        return self.b.size, self.h.size, self.i.size, self.j.size

    def by_entry(self, numbers: Sequence[int] | Array) -> Array:
        """Return one number for each batch entry, (B or 1,), as (B or 1, 1, 1, 1)."""
        return self.part.of(np.asarray(numbers)[:, None, None, None])

    def by_head(self, numbers: Array) -> Array:
        """Return one number for each head, (H,), as (1, H, 1, 1)."""
        return self.part.of(np.asarray(numbers)[None, :, None, None])

    def called(self, of_indices: Callable[[Run], Array]) -> Array:
        """Return the values of a function of indices on the part, computed once."""
        made_of = of_indices, self.pipe.shape
        made: Array = self.memory.of("rule", made_of, lambda: np.array(of_indices(self)))
        return made

    @property
    def scale(self) -> Any:
        """The scale: a number, or one for each head, (1, H, 1, 1)."""
        scale = self.pipe.scale
        return self.by_head(scale) if isinstance(scale, np.ndarray) else np.float64(scale)

    @property
    def seen(self) -> Bools:
        """The keys that each query sees under all rules."""
        return self.seen_by(*self.pipe.rules)

    def seen_by(self, *names: str) -> Bools:
        """Return the keys that each query sees under these rules, (B, H, L, S)."""
        if not names:
            return np.ones((1, 1, 1, 1), np.bool_)
        rules = [self.pipe.rules[name] for name in names]

        def all_of_them() -> Bools:
            return np.array(reduce(np.logical_and, map(self.called, rules)))

        both: Bools = self.memory.of("seen", (*rules, self.pipe.shape), all_of_them)
        return both

    def input(self, name: str) -> Array:
        """Return the part of query, key or value; a head that all query heads share comes once."""
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
        """Return query, key or value, rotated, changed and rounded for the product."""
        pipe = self.pipe
        changes = [change for target, change in pipe.operands if target == name]
        scored = name != "value" and (pipe.rope is not None or pipe.score in ("cosine", "general"))
        if self.precision is FLOAT64 and not (scored or changes):
            return self.input(name)
        positions = pipe.query_positions if name == "query" else pipe.key_positions
        made_of = (getattr(pipe, name), positions, pipe.turn, pipe.turn_key, *changes, pipe.rope)
        made_of += (pipe.score, pipe.score_weight, pipe.query, *pipe.places.get(name, ()))
        made: Array = self.memory.of(name, made_of, lambda: np.array(self._made(name, changes)))
        return made

    def positions(self, name: str) -> Array:
        """Return the positions of the part's queries or keys, (B or 1, 1, n)."""
        own = self.pipe.query_positions if name == "query" else self.pipe.key_positions
        own = own if len(own) == 1 else own[self.part.index[0]]
        return own[:, None, self.part.index[2] if name == "query" else slice(None)]

    def _made(self, name: str, changes: list[Stage]) -> Array:
        pipe, precision = self.pipe, self.precision
        rows = precision.rounded(self.input(name))
        if name != "value" and pipe.rope is not None:
            turn = pipe.turn_key or pipe.turn if name == "key" else pipe.turn
            rows = turn(rows, self.positions(name), pipe.rope)
        for change in changes:
            rows = change(self, rows)
        if name != "value" and pipe.score == "cosine":
            rows = unit_rows(rows)
        if name == "query" and pipe.score_weight is not None:
            rows = rows @ pipe.score_weight.astype(rows.dtype)
        return precision.rounded(rows)


def evaluate(
    pipe: Pipeline,
    part: Part = WHOLE,
    precision: Precision = FLOAT64,
    *,
    fold: bool = False,  # multiply the query by the scale, not the product: it rounds otherwise
    memory: Memory | None = None,
) -> Outputs:
    """Return every output (B, H or 1, L, ·) of a part, rounded after every step."""
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
    pipe = run.pipe
    if fold and pipe.order[0] == "scale" and pipe.score != "additive":
        return _steps(run, _product(run, fold=True), pipe.order[1:])
    product_of = pipe.score, run.operand("query"), run.operand("key"), pipe.score_vector
    raw = run.memory.of("product", product_of, lambda: np.array(_product(run)))
    made_of: tuple[Any, ...] = (raw, pipe.scale, pipe.softcap, pipe.order, pipe.fill)
    for each in (pipe.terms, pipe.rules, pipe.steps):
        made_of += (tuple(each), *each.values())
    made: dict[str, Array] = run.memory.of("scores", made_of, lambda: _steps(run, raw, pipe.order))
    return made


def _steps(run: Run, scores: Array, order: Sequence[str]) -> dict[str, Array]:
    stages = {"scale": scores}
    for name in order:
        step = run.pipe.steps.get(name) or _STEPS.get(name) or _adding(name)
        scores = run.precision.score(step(run, scores))
        stages[name] = scores
    return stages | {"scores": scores}


def _product(run: Run, *, fold: bool = False) -> Array:
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
    """Return left (B, H, L, N) · right (B or 1, G, N, M), by BLAS or term by term (``in_turn``)."""
    times = left.shape[1] // right.shape[1]
    if times > 1:  # the left heads that share a right head become rows of one product
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


def mix(run: Run, weights: Array, value: Array) -> Array:
    """Return weights · values."""
    return together(weights, value, in_turn=run.pipe.in_turn)


def _projected(run: Run, context: Array) -> Array:
    """Return the context after the output projection, (B, 1, L, out); padded queries are 0."""
    output, precision = run.pipe.output, run.precision
    if output is None or (rows := joined_heads(context)).shape[-1] != len(output.weight):
        return context  # a mistake that changes the width has no output
    made = precision.rounded(rows @ precision.rounded(widen(output.weight, precision.computing)))
    if output.bias is not None:
        bias = precision.rounded(widen(output.bias, precision.computing))
        made = precision.rounded(made + bias)
    if "query_lengths" in run.pipe.rules:
        made = np.where(run.seen_by("query_lengths")[..., :1], made, 0)
    return made


def joined_heads(context: Array) -> Array:
    """Return (B, H, L, E) as (B, 1, L, H · E)."""
    batch, _, rows, _ = context.shape
    return context.swapaxes(1, 2).reshape(batch, 1, rows, -1)


# Steps from the product to the scores.


def _scale(run: Run, scores: Array) -> Array:
    return np.asarray(scores * run.scale.astype(scores.dtype))


def _cap(run: Run, scores: Array) -> Array:
    cap = run.pipe.softcap
    return scores if cap is None else cap * np.tanh(scores / cap)


def _hide(run: Run, scores: Array) -> Array:
    if not run.pipe.rules:
        return scores
    return np.where(run.seen, scores, scores.dtype.type(run.pipe.fill))


def _adding(name: str) -> Stage:
    def add(run: Run, scores: Array) -> Array:
        if name not in run.pipe.terms:
            return scores
        term = run.called(run.pipe.terms[name])
        return np.asarray(scores + term.astype(scores.dtype, copy=False))

    return add


_STEPS: dict[str, Stage] = {"scale": _scale, "cap": _cap, "hide": _hide}


def limited(array: Array, largest: float) -> Array:
    """Return numbers, with infinity in the place of those too large for a format."""
    return np.where(np.abs(array) > largest, np.copysign(np.inf, array), array)


def softmax_over(run: Run, scores: Array, axis: int = -1) -> tuple[Array, Array]:
    """Return weights and lse; a fully masked row gets weights 0 and lse −inf."""
    sinks = run.pipe.sinks if axis == -1 else None
    top = np.maximum.reduce(scores, axis, keepdims=True)
    if sinks is not None:
        sink = run.by_head(sinks).astype(scores.dtype)
        top = np.maximum(top, sink)
    shift = np.maximum(top, _LOWEST[scores.dtype])
    share = scores - shift
    np.exp(share, out=share)
    if run.pipe.in_turn:
        total = np.take(np.cumsum(share, axis), [-1], axis)
    else:  # in pairs
        total = np.add.reduce(share, axis, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sink - shift)
    # A total is 0, or at least 1: the largest score contributes exp(0).
    weights = np.divide(share, np.maximum(total, 1), out=share)
    if axis == -1:
        return weights, (np.log(total) + shift)[..., 0]
    # Over another axis, a query has no denominator of its own: return the usual lse.
    return weights, softmax_over(run, scores)[1]


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


def turned_inputs(pipe: Pipeline) -> Pipeline:
    """Return a pipeline without rotary embedding, whose inputs are rotated already."""
    if pipe.rope is None:
        return pipe
    plain = pipe.but(score="dot", score_weight=None, operands=(), places={})
    run = Run(plain, WHOLE, FLOAT64, None)
    return pipe.but(rope=None, query=run.operand("query"), key=run.operand("key"))
