"""The numbers that are fitted: scales, bases, factors, sinks, a vector, and a few choices."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Literal

import numpy as np

from attncli.errors.names import HIDING_RULES
from attncli.errors.text import counted
from attncli.numerics.dtypes import widen
from attncli.referee.fits.numbers import Choice, Quantity, chosen, fitted
from attncli.referee.fits.table import at_first, told
from attncli.referee.mistakes.softmax import with_epsilon
from attncli.referee.options import scaled, shortest
from attncli.referee.pipeline import Pipeline, alibi

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array
    from attncli.referee.parts import Case
    from attncli.referee.run import Outputs, Run

# A factor counts as ln 2 if it differs by at most this share.
_NEAR = 5e-3
# A vector whose elements differ by less than this share is reported as one number.
_ALIKE = 0.01
# Components may be cut off after any of this many parts of a head, or after a block of this size.
_PARTS, _BLOCKS = 32, (16, 64)
# All shifts of fewer positions are tried, and a few larger ones.
_NEAR_STEPS = 64


def _stated(part: str) -> Callable[[Problem], float | None]:
    """Return 1, the right factor, if the problem states this part."""
    return lambda problem: None if getattr(problem, part) is None else 1.0


def _or_base_2(found: str, right: str) -> tuple[str, str, str]:
    """Explain a factor of about ln 2."""
    is_ln_2 = math.isclose(float(found) / float(right), math.log(2), rel_tol=_NEAR)
    words = ": ln 2 times it, as if the softmax used exp2 and only the scale had the factor log2(e)"
    return found, right, words if is_ln_2 else ""


def _with_base(pipe: Pipeline, base: float) -> Pipeline:
    return pipe if pipe.rope is None else pipe.but(rope=pipe.rope._replace(base=base))


def _positions_times(pipe: Pipeline, factor: float) -> Pipeline:
    if pipe.rope is None:
        return pipe
    frequencies = factor * pipe.rope.of_width(pipe.width)
    return pipe.but(rope=pipe.rope._replace(frequencies=tuple(frequencies.tolist())))


def _hides(problem: Problem) -> float | None:
    """Return the first number to try, if a rule may hide keys."""
    given = (getattr(problem.visible, rule) for rule in HIDING_RULES if rule != "query_lengths")
    return -10.0 if any(rule is not None and rule is not False for rule in given) else None


def _lowered(pipe: Pipeline, score: float) -> Pipeline:
    """Let each rule add a number to the scores of hidden keys, and hide nothing."""
    rules = {name: rule for name, rule in pipe.rules.items() if name != "query_lengths"}
    kept = {name: rule for name, rule in pipe.rules.items() if name not in rules}

    def step(run: Run, scores: Array) -> Array:
        hidden = sum(np.where(run.called(rule), 0.0, score) for rule in rules.values())
        return np.asarray(scores + hidden).astype(scores.dtype)

    return pipe.but(rules=kept).with_step("lower", step, before=None)


def _times(name: str) -> Callable[[Pipeline, float], Pipeline]:
    def put(pipe: Pipeline, factor: float) -> Pipeline:
        own = pipe.terms.get(name)
        return pipe if own is None else pipe.with_term(name, lambda run: factor * run.called(own))

    return put


def _output_bias_times(pipe: Pipeline, factor: float) -> Pipeline:
    output = pipe.output
    if output is None or output.bias is None:
        return pipe
    return pipe.but(output=replace(output, bias=widen(output.bias, np.float64) * factor))


def _factors(axis: int) -> Callable[[Pipeline, Array], Pipeline]:
    """Return a change that multiplies scaled scores by one factor for each head or query."""

    def put(pipe: Pipeline, factors: Array) -> Pipeline:
        own = factors.reshape((1, -1, 1, 1) if axis == 1 else (1, 1, -1, 1))
        first = pipe.order[pipe.order.index("scale") + 1] if "scale" in pipe.order[:-1] else None
        return pipe.with_step(
            "factors", lambda run, s: s * run.part.of(own).astype(s.dtype), before=first
        )

    return put


def _slopes_times(pipe: Pipeline, factors: Array) -> Pipeline:
    return pipe.with_term("alibi", alibi(pipe.problem.alibi_slopes * factors, pipe.offsets))


def _by(noun: str, verb: str = "times") -> Callable[[Array, Array], tuple[str]]:
    def words(numbers: Array, usual: Array) -> tuple[str]:
        pairs = [(f"{noun} {n}", f"{numbers[n]:.6g}") for n in np.flatnonzero(numbers != usual)]
        return (told(pairs, verb),)

    return words


# Numbers that are added to denominators (sinks, an epsilon, keys of zeros) or to contexts.


def _sinks_of(pipe: Pipeline) -> Array:
    return np.full(pipe.shape[1], -np.inf) if pipe.sinks is None else pipe.sinks


def _with_zeros(pipe: Pipeline, count: float) -> Pipeline:
    return pipe.but(sinks=np.logaddexp(_sinks_of(pipe), np.log(max(count, 0))))


def _sinks_again(pipe: Pipeline, count: float) -> Pipeline:
    return pipe.but(sinks=_sinks_of(pipe) + np.log(max(count, 0)))


def _sinks_option(sinks: Array, problem: Problem) -> str:
    statable = problem.sinks is None and np.isfinite(sinks).all()
    return f"--sinks={','.join(map(shortest, sinks))}" if statable else ""


def _multiplied(pipe: Pipeline, factor: float) -> Pipeline:
    """Multiply context and weights, after the output projection."""

    def times(_: Run, outputs: Outputs) -> Outputs:
        return outputs | {n: outputs[n] * factor for n in ("context", "weights") if n in outputs}

    return pipe.then("behind", times)


def _with_vector(pipe: Pipeline, numbers: Array) -> Pipeline:
    """Add one vector for each head and batch entry to the context, as if to its values."""
    heads = pipe.shape[1] if pipe.output is None else 1
    vectors = numbers.reshape(pipe.shape[0], heads, 1, -1)

    def add(run: Run, outputs: Outputs) -> Outputs:
        context = outputs["context"]
        seeing = context.any(axis=-1, keepdims=True)
        return outputs | {"context": np.where(seeing, context + run.part.of(vectors), context)}

    return pipe.then("behind", add)


def _vector_told(numbers: Array, _: Array) -> tuple[str]:
    if numbers.std() <= _ALIKE * abs(numbers.mean()):
        return (f"about {numbers.mean():.3g}",)
    return (f"a vector that begins with {numbers[0]:.3g}",)


SCALE = Quantity(
    "another_scale",
    lambda problem: problem.scale,
    lambda pipe, scale: pipe.but(scale=scale),
    option=scaled,
    negative=True,
)
SOFTCAP = Quantity(
    "another_softcap",
    lambda problem: problem.softcap,
    lambda pipe, cap: pipe.but(softcap=cap),
    words=_or_base_2,
    option=lambda cap, _: f"--softcap {shortest(cap)}",
)
QUANTITIES = (
    SCALE,
    Quantity(
        "cosine_at_another_scale",
        lambda problem: 1.0 if problem.score == "dot" else None,
        lambda pipe, scale: pipe.but(score="cosine", scale=scale),
        option=lambda scale, _: f"--score cosine --scale {shortest(scale)}",
    ),
    Quantity("output_bias_repeated", _stated("output"), _output_bias_times),
    SOFTCAP,
    replace(
        SOFTCAP,
        name="softcap_unasked",
        right=lambda problem: 1.0 if problem.softcap is None else None,
        words=lambda *both: both,
    ),
    Quantity(
        "another_rope_base",
        lambda p: None if p.rope is None or p.rope.frequencies else p.rope.base,
        _with_base,
        turns=True,
        option=lambda base, _: f"--rope-base {shortest(base)}",
    ),
    Quantity("rope_positions_scaled", _stated("rope"), _positions_times, turns=True),
    Quantity("hidden_scores_lowered", _hides, _lowered),
    Quantity("hidden_scores_set", _hides, lambda pipe, score: pipe.but(fill=score)),
    Quantity("another_alibi_factor", _stated("alibi_slopes"), _times("alibi"), words=_or_base_2),
    Quantity("another_bias_factor", _stated("bias"), _times("bias"), words=_or_base_2),
    Quantity(
        "slopes_by_head", _stated("alibi_slopes"), _slopes_times, axes=(1,), words=_by("head")
    ),
    Quantity("scale_by_head", _stated("query"), _factors(1), axes=(1,), words=_by("head")),
    Quantity("scale_by_query", _stated("query"), _factors(2), axes=(2,), words=_by("query")),
    Quantity("another_factor", _stated("query"), _multiplied, linear=True),
    Quantity(
        "added_vector",
        _stated("value"),
        _with_vector,
        axes=(0, 1, 3),
        output="context",
        words=_vector_told,
        linear=True,
        usual=lambda _: np.zeros(1),
    ),
    Quantity("zeros_counted", _stated("query"), _with_zeros, least=1),
    Quantity(
        "epsilon_added",
        lambda problem: 1.0 if problem.sinks is None else None,
        with_epsilon,
    ),
    Quantity("sinks_counted", _stated("sinks"), _sinks_again, least=2),
    Quantity(
        "another_sink",
        _stated("query"),
        lambda pipe, sinks: pipe.but(sinks=sinks),
        axes=(1,),
        words=_by("head", "has"),
        option=_sinks_option,
        negative=True,
        usual=_sinks_of,
    ),
)


# Parameters with only a few possible values.


# Scores from only some components of query and key, at the stated scale or 1/√(their count).


def _components(case: Case) -> Iterable[tuple[slice, bool]]:
    width = case.pipe.width
    if case.pipe.score not in ("dot", "cosine"):
        return ()
    counts = {width - 1, *range(0, width, max(1, width // _PARTS))}
    counts |= {count for block in _BLOCKS for count in range(block, width, block)}
    ends = [part for n in sorted(counts - {0}) for part in (slice(0, n), slice(width - n, width))]
    usual = case.pipe.score == "dot" and math.isclose(case.problem.scale, width**-0.5)
    return product(ends, (False, True) if usual else (False,))


def _of_components(pipe: Pipeline, value: tuple[slice, bool]) -> Pipeline:
    """Use only some components of the rotated query and key."""
    part, with_scale = value

    def cut(_: Run, rows: Array) -> Array:
        return rows[..., part]

    made = pipe.then("operands", ("query", cut)).then("operands", ("key", cut))
    return made.but(scale=float((part.stop - part.start) ** -0.5)) if with_scale else made


def _components_told(value: tuple[slice, bool], pipe: Pipeline) -> tuple[str, ...]:
    part, with_scale = value
    count = part.stop - part.start
    which = f"{'first' if part.start == 0 else 'last'} {count}"
    return which, str(pipe.width), f", and scaled by 1/√{count}" if with_scale else ""


# Positions of the rotary embedding that are a few off.


def _steps(case: Case) -> Iterable[int]:
    if case.pipe.rope is None:
        return ()
    _, _, queries, keys = case.problem.shape
    far = {queries, keys, abs(keys - queries), *(2**n for n in range(6, keys.bit_length()))}
    steps = sorted({*range(1, _NEAR_STEPS), *far} - {0})
    return (sign * step for step in steps for sign in (-1, 1))


# An input that is written row by row and read column by column, or vice versa.

Order = Literal["C", "F"]
_WAYS = "column by column", "row by row"


def _read_otherwise(pipe: Pipeline, order: Order, name: str) -> Pipeline | None:
    array, layout = getattr(pipe, name), pipe.problem.layout
    if array is None or (array.shape[0] != pipe.shape[0] and "b" in layout.axes):
        return None
    joined = layout.join(array)
    poured = joined.ravel(order=order).reshape(joined.shape, order="C" if order == "F" else "F")
    return pipe.but(**{name: layout.split(poured, array.shape[1], name)})


CHOICES = (
    Choice(
        name="some_components",
        values=_components,
        put=_of_components,
        words=_components_told,
    ),
    Choice(
        name="rope_queries_moved",
        values=_steps,
        put=lambda pipe, step: pipe.but(query_positions=pipe.query_positions + step),
        words=lambda step, _: (counted(abs(step), "position"), "late" if step > 0 else "early"),
    ),
    *(
        Choice(
            name=f"{name}_memory_order",
            values=lambda case: ("F", "C") if case.whole else (),
            put=partial(_read_otherwise, name=name),
            words=lambda order, _: _WAYS if order == "F" else _WAYS[::-1],
        )
        for name in ("value", "key", "query")
    ),
)
FITTINGS = (
    *(at_first(partial(fitted, one), one.name) for one in QUANTITIES),
    *(at_first(partial(chosen, one), one.name) for one in CHOICES),
)
