"""The numbers that are fitted: a scale, a softcap, a base, factors of heads and of queries."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.names import HIDING_RULES
from attncli.numerics.dtypes import widen
from attncli.referee.fits.numbers import Quantity
from attncli.referee.fits.table import told
from attncli.referee.options import scaled, shortest
from attncli.referee.pipeline import Pipeline, alibi

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array
    from attncli.referee.run import Run

__all__ = ["QUANTITIES", "SCALE"]

# Of a factor with few digits.
_NEAR = 5e-3


def _stated(part: str) -> Callable[[Problem], float | None]:
    """Return 1, the factor that is right, where a problem has some part."""
    return lambda problem: None if getattr(problem, part) is None else 1.0


def _or_base_2(found: str, right: str) -> tuple[str, str, str]:
    """Say what a factor of about ln 2 comes from."""
    is_ln_2 = math.isclose(float(found) / float(right), math.log(2), rel_tol=_NEAR)
    words = ": ln 2 times it, as if 2^x were taken and the scale alone multiplied with log₂ e"
    return found, right, words if is_ln_2 else ""


def _with_base(pipe: Pipeline, base: float) -> Pipeline:
    return pipe if pipe.rope is None else pipe.but(rope=pipe.rope._replace(base=base))


def _positions_times(pipe: Pipeline, factor: float) -> Pipeline:
    if pipe.rope is None:
        return pipe
    frequencies = factor * pipe.rope.of_width(pipe.width)
    return pipe.but(rope=pipe.rope._replace(frequencies=tuple(frequencies.tolist())))


def _hides(problem: Problem) -> float | None:
    """Return a number to begin with, where a rule may hide keys."""
    given = (getattr(problem.visible, rule) for rule in HIDING_RULES if rule != "query_lengths")
    return -10.0 if any(rule is not None and rule is not False for rule in given) else None


def _lowered(pipe: Pipeline, score: float) -> Pipeline:
    """Return the pipeline in which each rule adds a number to the scores that it hides."""
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


def _output_bias(problem: Problem) -> float | None:
    return None if problem.output is None or problem.output.bias is None else 1.0


def _output_bias_times(pipe: Pipeline, factor: float) -> Pipeline:
    output = pipe.output
    if output is None or output.bias is None:
        return pipe
    return pipe.but(output=replace(output, bias=widen(output.bias, np.float64) * factor))


def _factors(axis: int) -> Callable[[Pipeline, Array], Pipeline]:
    """Return what multiplies the scaled scores with a number for each head or query."""

    def put(pipe: Pipeline, factors: Array) -> Pipeline:
        own = factors.reshape((1, -1, 1, 1) if axis == 1 else (1, 1, -1, 1))
        first = pipe.order[pipe.order.index("scale") + 1] if "scale" in pipe.order[:-1] else None
        return pipe.with_step(
            "factors", lambda run, s: s * run.part.of(own).astype(s.dtype), before=first
        )

    return put


def _slopes_times(pipe: Pipeline, factors: Array) -> Pipeline:
    return pipe.with_term("alibi", alibi(pipe.problem.alibi_slopes * factors, pipe.offsets))


def _by(noun: str) -> Callable[[Array], tuple[str]]:
    """Say which heads or queries have which factors."""

    def words(numbers: Array) -> tuple[str]:
        pairs = ((f"{noun} {n}", f"{one:.6g}") for n, one in enumerate(numbers) if one != 1)
        return (told(pairs, "times"),)

    return words


SCALE = Quantity(
    "another_scale",
    lambda problem: problem.scale,
    lambda pipe, scale: pipe.but(scale=scale),
    option=scaled,
    negative=True,
)
QUANTITIES = (
    SCALE,
    Quantity(
        "cosine_at_another_scale",
        lambda problem: 1.0 if problem.score == "dot" else None,
        lambda pipe, scale: pipe.but(score="cosine", scale=scale),
        option=lambda scale, _: f"--score cosine --scale {shortest(scale)}",
    ),
    Quantity("output_bias_repeated", _output_bias, _output_bias_times),
    Quantity(
        "another_softcap",
        lambda problem: problem.softcap,
        lambda pipe, cap: pipe.but(softcap=cap),
        words=_or_base_2,
        option=lambda cap, _: f"--softcap {shortest(cap)}",
    ),
    Quantity(
        "softcap_unasked",
        lambda problem: 1.0 if problem.softcap is None else None,
        lambda pipe, cap: pipe.but(softcap=cap),
        option=lambda cap, _: f"--softcap {shortest(cap)}",
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
    Quantity("slopes_by_head", _stated("alibi_slopes"), _slopes_times, axis=1, words=_by("head")),
    Quantity("scale_by_head", _stated("query"), _factors(1), axis=1, words=_by("head")),
    Quantity("scale_by_query", _stated("query"), _factors(2), axis=2, words=_by("query")),
)
