"""Mistakes between the product and the mask: scale, score function, softcap, bias and ALiBi."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import alibi_slopes
from attncli.problem.problem import default_scale
from attncli.referee.mistakes.table import Rows, after, altered, given, require, without
from attncli.referee.options import scaled, shortest
from attncli.referee.pipeline import Pipeline, alibi, distance_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array
    from attncli.referee.run import Run

    Factor = Callable[[Problem], float]

ROWS = Rows()


# Wrong ways to read a mask or a bias.


def transposed(array: Array) -> Array:
    """Transpose a square matrix or table (…, L, S)."""
    rows, columns = array.shape[-2:]
    require(rows == columns > 1)
    return array.swapaxes(-1, -2)


def first_of(array: Array, axis: int) -> Array:
    """Use the first slice along an axis for all."""
    require(array.shape[axis] > 1)
    return np.take(array, [0], axis=axis)


def off_by_one(array: Array, step: int, axis: int) -> Array:
    """Read the neighbouring row of a table (…, L, S), or for axis −1 the neighbour in memory."""
    require(array.shape[axis] > 1)
    if axis == 2:
        return np.roll(array, step, axis=2)
    return np.roll(array.reshape(*array.shape[:2], -1), step, axis=-1).reshape(array.shape)


# From the neighbour that is read instead to the change of the table.
PLACES: dict[str, Any] = {
    "next_key": (off_by_one, -1, 3),
    "next_query": (off_by_one, -1, 2),
    "previous_key": (off_by_one, 1, 3),
    "previous_query": (off_by_one, 1, 2),
}


# Scale: another factor, computed from the problem.


def _width(problem: Problem) -> int:
    return int(problem.query.shape[3])


def _twice(problem: Problem) -> float:
    """Return scale², unless it is 1/D, which has its own row in the table."""
    twice = problem.scale * problem.scale
    return problem.scale if math.isclose(twice, 1 / _width(problem), rel_tol=1e-12) else twice


def _of_length(problem: Problem, length: int) -> float:
    """Return 1/√length, unless it is the usual scale."""
    return problem.scale if length == _width(problem) else 1 / math.sqrt(length)


def _scaled_by(pipe: Pipeline, factor: Factor) -> Pipeline:
    made = factor(pipe.problem)
    # An infinite scale is not a likely mistake.
    require(math.isfinite(made), isinstance(pipe.scale, float))
    require(not math.isclose(made, pipe.scale, rel_tol=1e-12))
    return pipe.but(scale=float(made))


_FACTORS: dict[str, Factor] = {
    "unscaled": lambda _: 1.0,
    "scores_zero": lambda _: 0.0,
    "scores_negated": lambda p: -p.scale,
    "one_over_width": lambda p: 1 / _width(p),
    "embedding_scale": lambda p: _of_length(p, p.shape[1] * _width(p)),
    "scale_inverted": lambda p: 1 / p.scale if p.scale else 1.0,
    "scale_of_one_side": lambda p: math.copysign(math.sqrt(abs(p.scale)), p.scale),
    "scale_twice": _twice,
    "length_scale": lambda p: _of_length(p, p.key.shape[2]),
    "value_scale": lambda p: _of_length(p, (p.query if p.value is None else p.value).shape[3]),
    "padded_width_scale": lambda p: _of_length(p, 2 ** math.ceil(math.log2(_width(p)))),
    "log2e_without_exp2": lambda p: p.scale / math.log(2),
}
ROWS.family(
    "{}",
    _scaled_by,
    _FACTORS,
    option=lambda name: lambda problem: scaled(_FACTORS[name](problem), problem),
)
ROWS.add(
    "scale_ignored",
    *(_scaled_by, lambda p: default_scale(p.score, _width(p))),
    option=lambda p: f"leave {'--plain or ' if p.scale == 1 else ''}--scale out",
)
ROWS.add(
    "input_width_scale",
    lambda pipe: pipe.but(scale=float(given(pipe.projected)["x"].shape[-1] ** -0.5)),
)
ROWS.add(
    "scale_after_softmax",
    lambda pipe: after(pipe.but(scale=1.0), lambda weights: weights * pipe.scale),
    when=lambda pipe: isinstance(pipe.scale, float) and pipe.scale != 1,
)


# Score function. Each row states its scale, so no mistake of the scale is reported with it.


def _one(_: Problem) -> float:
    return 1.0


def _of_width(problem: Problem) -> float:
    return 1 / math.sqrt(_width(problem))


def _other_scale(pipe: Pipeline, factor: Factor | None) -> float:
    """Return the problem's scale, or this factor if it differs from the scale."""
    own = float(pipe.problem.scale)
    made = own if factor is None else factor(pipe.problem)
    require(factor is None or made != own)
    return made


def _scored_by(pipe: Pipeline, asked: str, done: str, factor: Factor | None) -> Pipeline:
    require(pipe.score == asked, pipe.width == pipe.key.shape[3])
    return pipe.but(score=done, scale=_other_scale(pipe, factor), score_weight=None)


def _normed(pipe: Pipeline, epsilon: float, factor: Factor | None) -> Pipeline:
    """Divide the rows of query and key by their root mean squares."""

    def norm(rows: Array) -> Array:
        mean = np.mean(np.square(rows), axis=-1, keepdims=True) + epsilon
        return np.asarray(rows / np.sqrt(np.maximum(mean, np.finfo(np.float64).tiny)))

    require(pipe.score == "dot")
    return pipe.but(scale=_other_scale(pipe, factor), query=norm(pipe.query), key=norm(pipe.key))


def _asking_for(asked: str, score: str, factor: Factor | None) -> Callable[[Problem], str]:
    def option(problem: Problem) -> str:
        if asked == "general":
            return ""
        default = 1.0 if score == "cosine" else _of_width(problem)
        number: float = problem.scale if factor is None else factor(problem)
        # No --scale is needed if the default is right and the problem states no other scale.
        same = number == default and problem.scale in (default, number)
        return f"--score {score}" + ("" if same else f" --scale {shortest(number)}")

    return option


_SCORES: dict[str, tuple[str, str, Factor | None]] = {
    "cosine_unasked": ("dot", "cosine", None),
    "cosine_unasked_unscaled": ("dot", "cosine", _one),
    "dot_for_cosine": ("cosine", "dot", None),
    "dot_for_cosine_scaled": ("cosine", "dot", _of_width),
    "score_weight_missing": ("general", "dot", None),
    "score_weight_missing_scaled": ("general", "dot", _of_width),
}
# From the end of the name and its words to the epsilon under the root and the scale.
_NORMED: dict[tuple[str, str], tuple[float, Factor | None]] = {
    ("", ""): (0.0, None),
    ("_1e_6", " (epsilon 1e-6)"): (1e-6, None),
    ("_1e_5", " (epsilon 1e-5)"): (1e-5, None),
    ("_unscaled", ", and the scores are not scaled"): (0.0, _one),
}
ROWS.family("{}", _scored_by, _SCORES, option=lambda name: _asking_for(*_SCORES[name]))
ROWS.family("query_key_normed{}", _normed, _NORMED)
ROWS.add("score_weight_transposed", altered, "score_weight", transposed)


# Softcap, bias and ALiBi: steps that are computed otherwise, or come earlier or later.


def _step_as(pipe: Pipeline, step: str, do: Callable[[Run, Array], Array]) -> Pipeline:
    require(step in pipe.terms or (step == "cap" and pipe.softcap is not None))
    return pipe.but(steps={**pipe.steps, step: do})


def _before(pipe: Pipeline, step: str, other: str | None) -> Pipeline:
    """Move a step before another one; None: after the mask."""
    require({step, other or step} <= set(pipe.order), step == "cap" or step in pipe.terms)
    require("cap" not in (step, other) or pipe.softcap is not None, other or pipe.rules)
    return pipe.moved(step, before=other)


ROWS.add("softcap_missing", without, "softcap", option="leave --softcap out")
ROWS.add("softcap_before_scale", _before, "cap", "scale")
ROWS.add("softcap_after_bias", _before, "cap", "hide")
ROWS.add("softcap_after_mask", _before, "cap", None)
ROWS.add("bias_before_softcap", _before, "bias", "cap")
ROWS.add("bias_scaled", _before, "bias", "scale")
ROWS.add("alibi_scaled", _before, "alibi", "scale")
ROWS.add("softcap_undivided", _step_as, "cap", lambda run, x: run.pipe.softcap * np.tanh(x))
ROWS.add("softcap_unmultiplied", _step_as, "cap", lambda run, x: np.tanh(x / run.pipe.softcap))
ROWS.add(
    "softcap_clipped",
    *(_step_as, "cap", lambda run, x: np.clip(x, -run.pipe.softcap, run.pipe.softcap)),
)
ROWS.add(
    "bias_multiplied",
    _step_as,
    "bias",
    lambda run, scores: scores * run.called(run.pipe.terms["bias"]),
)


# Bias.


def _bias_as(pipe: Pipeline, change: Callable[..., Array], *parameters: Any) -> Pipeline:
    bias = np.asarray(given(pipe.problem.bias), np.float64)
    return pipe.with_term("bias", table(change(bias, *parameters)))


def _viewed(bias: Array, order: str) -> Array:
    """Read a bias whose memory has the heads first or last without permuting its axes."""
    _, heads, queries, keys = bias.shape
    require(heads > 1)
    if order == "first":
        return bias.transpose(0, 2, 3, 1).reshape(bias.shape)
    return bias.reshape(-1, queries, keys, heads).transpose(0, 3, 1, 2)


def _bias_of_weights(pipe: Pipeline) -> Pipeline:
    bias = given(pipe.terms.get("bias"))
    made = pipe.but(order=tuple(step for step in pipe.order if step != "bias"))
    return made.then("after", lambda run, weights: weights + run.called(bias))


ROWS.add("bias_ignored", _bias_as, np.zeros_like, option="leave --bias out")
ROWS.add("bias_subtracted", _bias_as, np.negative)
ROWS.add("bias_twice", _bias_as, np.multiply, 2)
ROWS.add("bias_after_softmax", _bias_of_weights)
ROWS.add("bias_transposed", _bias_as, transposed)
ROWS.family("bias_of_{}", _bias_as, PLACES)
ROWS.add("bias_of_first_head", _bias_as, first_of, 1)
ROWS.add("bias_of_first_query", _bias_as, first_of, 2)
ROWS.family(
    "bias_viewed_heads_{}",
    _bias_as,
    {order: (_viewed, order) for order in ("first", "last")},
    when=lambda pipe: given(pipe.problem.bias).shape[1:] == pipe.problem.shape[1:],
)


# ALiBi.


def _alibi_as(pipe: Pipeline, term: Callable[[Array, Run], Array]) -> Pipeline:
    """Replace the ALiBi bias by a function of slopes (1, H, 1, 1) and indices."""
    slopes = given(pipe.problem.alibi_slopes)
    return pipe.with_term("alibi", lambda run: term(run.by_head(slopes), run))


def _slopes(pipe: Pipeline, make: Callable[[Array], Array]) -> Pipeline:
    return pipe.with_term("alibi", alibi(make(given(pipe.problem.alibi_slopes)), pipe.offsets))


def _powers(first: int, heads: int | None = None) -> Callable[[Array], Array]:
    """Return slopes 2^(−8h/H), h counted from ``first``."""
    return lambda slopes: 2.0 ** (-8.0 * (np.arange(len(slopes)) + first) / (heads or len(slopes)))


ROWS.add(
    "alibi_ignored",
    _alibi_as,
    lambda slopes, _: 0.0 * slopes,
    option="leave --alibi and --alibi-slopes out",
)
ROWS.add(
    "alibi_unasked",
    lambda p: p.with_term("alibi", alibi(np.array(alibi_slopes(p.shape[1])), p.offsets)),
    when=lambda pipe: pipe.problem.alibi_slopes is None and "alibi" not in pipe.terms,
    option="--alibi",
)
ROWS.add("alibi_signed", _alibi_as, lambda slopes, run: -slopes * distance_of(run))
ROWS.add("alibi_signed_backwards", _alibi_as, lambda slopes, run: slopes * distance_of(run))
ROWS.add("alibi_positional", _alibi_as, lambda slopes, run: slopes * run.j)
ROWS.add("alibi_added", _alibi_as, lambda slopes, run: slopes * np.abs(distance_of(run)))
ROWS.add(
    "alibi_without_offset",
    *(_alibi_as, lambda slopes, run: -slopes * np.abs(distance_of(run, (0,)))),
)
ROWS.add("alibi_slopes_reversed", _slopes, lambda slopes: slopes[::-1])
ROWS.add("alibi_slopes_plain", _slopes, _powers(1))
ROWS.add("alibi_slopes_from_zero", _slopes, _powers(0))
ROWS.add("alibi_slopes_halved", _slopes, _powers(1, 8))
ROWS.add(
    "alibi_slope_of_first_head",
    *(_slopes, lambda slopes: np.full_like(slopes, slopes[0])),
    when=lambda pipe: pipe.problem.shape[1] > 1,
)
