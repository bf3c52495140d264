"""Mistakes between the product and the mask: scale, score function, softcap, bias and ALiBi."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import alibi_slopes
from attncli.problem.problem import default_scale
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Rows
from attncli.referee.options import scaled, shortest, without_alibi
from attncli.referee.pipeline import (
    Pipeline,
    Run,
    alibi,
    distance_of,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

__all__ = ["ALIBI", "BIAS", "FUNCTION", "PLACES", "SCALES", "SOFTCAP", "off_by_one", "transposed"]

_SHORT = ("bfloat16", "float16")


# Scale.

SCALES = Rows(stages.SCALE, fix="multiply Q·Kᵀ by 1/√D, D being the width of one head")


def _scale(
    name: str,
    scale: Callable[[Problem], float],
    option: Callable[[Problem], str] | None = None,
    **more: Any,
) -> None:
    """Add a row that only has another factor, made of the problem."""

    def change(pipe: Pipeline) -> Pipeline | None:
        factor = scale(pipe.problem)
        # Of a scale at the edge of the range it is nobody's mistake.
        odd = not math.isfinite(factor) or not isinstance(pipe.scale, float)
        same = odd or math.isclose(factor, pipe.scale, rel_tol=1e-12)
        return None if same else pipe.but(scale=float(factor))

    own = option or (lambda problem: scaled(scale(problem), problem))
    SCALES.add(name, change, option=own, **more)


def _width(problem: Problem) -> int:
    return int(problem.query.shape[3])


def _twice(problem: Problem) -> float:
    # With the usual scale this is 1/D, which has its own row.
    twice = problem.scale * problem.scale
    return problem.scale if math.isclose(twice, 1 / _width(problem), rel_tol=1e-12) else twice


def _of_length(problem: Problem, length: int) -> float:
    # 1/√D has its own rows.
    return problem.scale if length == _width(problem) else 1 / math.sqrt(length)


def _scaled_weights(pipe: Pipeline) -> Pipeline | None:
    factor = pipe.scale
    if not isinstance(factor, float) or factor == 1:
        return None
    return pipe.but(scale=1.0).then("after", lambda _, weights: weights * factor)


def _of_the_embeddings(pipe: Pipeline) -> Pipeline | None:
    if pipe.projected is None:
        return None
    return pipe.but(scale=float(pipe.projected["x"].shape[-1] ** -0.5))


SCALES.add("input_width_scale", _of_the_embeddings, projects=True)
_scale("unscaled", lambda _: 1.0)
_scale("scores_zero", lambda _: 0.0)
_scale("scores_negated", lambda p: -p.scale)
_scale("one_over_width", lambda p: 1 / _width(p))
_scale(
    "embedding_scale",
    lambda p: 1 / math.sqrt(p.shape[1] * _width(p)) if p.shape[1] > 1 else p.scale,
)
_scale(
    "scale_ignored",
    lambda p: default_scale(p.score, _width(p)),
    option=lambda p: f"leave {'--plain or ' if p.scale == 1 else ''}--scale out",
)
_scale("scale_inverted", lambda p: 1 / p.scale if p.scale else 1.0)
_scale("scale_of_one_side", lambda p: math.copysign(math.sqrt(abs(p.scale)), p.scale))
_scale("scale_twice", _twice)
_scale("length_scale", lambda p: _of_length(p, p.key.shape[2]))
_scale("value_scale", lambda p: _of_length(p, _width(p) if p.value is None else p.value.shape[3]))
_scale("padded_width_scale", lambda p: _of_length(p, 2 ** math.ceil(math.log2(_width(p)))))
_scale("log2e_without_exp2", lambda p: p.scale / math.log(2))
SCALES.add("scale_after_softmax", _scaled_weights, variant_of=("unscaled",))


# Score function. Each row states its scale, so no mistake of the scale is reported beside it.

FUNCTION = Rows(stages.SCORE_FUNCTION)
_ONE: Callable[[Problem], float] = lambda _: 1.0  # noqa: E731
_OF_WIDTH: Callable[[Problem], float] = lambda p: 1 / math.sqrt(_width(p))  # noqa: E731


def _other_scale(pipe: Pipeline, scale: Callable[[Problem], float] | None) -> float | None:
    """Return the scale that goes with a function; None where it is the problem's own."""
    if scale is None:
        return float(pipe.problem.scale)
    found = float(scale(pipe.problem))
    return None if found == pipe.problem.scale else found


def _instead(asked: str, done: str, scale: Any = None, **changes: Any) -> Change:
    """Return the change to another score function than the one that is asked for."""

    def change(pipe: Pipeline) -> Pipeline | None:
        own = _other_scale(pipe, scale)
        if pipe.score != asked or own is None or pipe.width != pipe.key.shape[3]:
            return None
        return pipe.but(score=done, scale=own, **changes)

    return change


def _normed(epsilon: float, scale: Any) -> Change:
    """Divide query and key by the root of their mean square."""

    def norm(rows: Array) -> Array:
        mean = np.mean(np.square(rows), axis=-1, keepdims=True) + epsilon
        return np.asarray(rows / np.sqrt(np.maximum(mean, np.finfo(np.float64).tiny)))

    def change(pipe: Pipeline) -> Pipeline | None:
        own = _other_scale(pipe, scale)
        if pipe.score != "dot" or own is None:
            return None
        return pipe.but(scale=own, query=norm(pipe.query), key=norm(pipe.key))

    return change


def _asking_for(score: str, scale: Any) -> Callable[[Problem], str]:
    """Return how a score function is asked for at a scale."""

    def option(problem: Problem) -> str:
        default = 1.0 if score == "cosine" else _OF_WIDTH(problem)
        number: float = problem.scale if scale is None else scale(problem)
        # What is given already stays given.
        same = number == default and problem.scale in (default, number)
        return f"--score {score}" + ("" if same else f" --scale {shortest(number)}")

    return option


def _one_side(side: str) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.score != "cosine" or pipe.rope is not None:
            return None
        rows = getattr(pipe, side)
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
        return pipe.but(score="dot", **{side: rows / np.where(length == 0, 1, length)})

    return change


def _add_functions() -> None:
    for scale, ending in ((None, ""), (_ONE, "_unscaled")):
        FUNCTION.add(
            f"cosine_unasked{ending}",
            _instead("dot", "cosine", scale),
            option=_asking_for("cosine", scale),
        )
    before: list[str] = []
    for scale, ending in ((None, ""), (_ONE, "_unscaled")):
        for epsilon, size in ((0.0, ""), (1e-6, "1e-6"), (1e-5, "1e-5")):
            name = f"query_key_normed{ending}{size and '_' + size.replace('-', '_')}"
            FUNCTION.add(name, _normed(epsilon, scale), variant_of=tuple(before))
            before.append(name)
    for scale, ending in ((None, ""), (_OF_WIDTH, "_scaled")):
        FUNCTION.add(
            f"dot_for_cosine{ending}",
            _instead("cosine", "dot", scale),
            option=_asking_for("dot", scale),
        )
        FUNCTION.add(
            f"score_weight_missing{ending}", _instead("general", "dot", scale, score_weight=None)
        )


_add_functions()
FUNCTION.add("{}_alone_divided", _one_side, values=("query", "key"))
FUNCTION.add(
    "score_weight_transposed",
    lambda pipe: (
        None
        if pipe.score_weight is None or pipe.score_weight.shape[0] != pipe.score_weight.shape[1]
        else pipe.but(score_weight=pipe.score_weight.T)
    ),
)


# Softcap.

SOFTCAP = Rows(stages.SOFTCAP)


def _cap_as(cap: Callable[[Array, float], Array]) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        size = pipe.softcap
        if size is None or "cap" not in pipe.order:
            return None
        return pipe.but(steps={**pipe.steps, "cap": lambda _, scores: cap(scores, size)})

    return change


def _cap_before(step: str | None) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.softcap is None or not {"cap", step or "cap"} <= set(pipe.order):
            return None
        if step is None and not pipe.rules:
            return None  # there is nothing to hide
        return pipe.moved("cap", before=step)

    return change


SOFTCAP.add(
    "softcap_missing",
    lambda pipe: None if pipe.softcap is None else pipe.but(softcap=None),
    option="leave --softcap out",
)
SOFTCAP.add("softcap_before_scale", _cap_before("scale"))
SOFTCAP.add("softcap_after_mask", _cap_before(None))
SOFTCAP.add("softcap_after_bias", _cap_before("hide"))
SOFTCAP.add("softcap_undivided", _cap_as(lambda scores, cap: cap * np.tanh(scores)))
SOFTCAP.add("softcap_unmultiplied", _cap_as(lambda scores, cap: np.tanh(scores / cap)))
SOFTCAP.add("softcap_clipped", _cap_as(lambda scores, cap: np.clip(scores, -cap, cap)))


# Bias.

BIAS = Rows(stages.BIAS)


def _bias(pipe: Pipeline) -> Array | None:
    return None if pipe.problem.bias is None else np.asarray(pipe.problem.bias, np.float64)


def _bias_as(change: Callable[[Array], Array | None]) -> Change:
    """Return the change to another bias, made of the right one."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        bias = _bias(pipe)
        new = None if bias is None else change(bias)
        return None if new is None else pipe.with_term("bias", table(new))

    return changed


def transposed(array: Array) -> Array | None:
    """Return a square table (·, ·, L, S) with queries and keys exchanged; None of another."""
    rows, columns = array.shape[2:]
    return array.swapaxes(2, 3) if rows == columns and rows > 1 else None


def off_by_one(place: str) -> Callable[[Array], Array | None]:
    """Return the change of a table (…, L, S) that is read by one place beside its own."""
    step = -1 if place.startswith("next") else 1

    def change(array: Array) -> Array | None:
        *lead, rows, columns = array.shape
        if place.endswith("query"):
            return None if rows == 1 else np.roll(array, step, axis=2)
        flat = array.reshape(*lead, rows * columns)
        return None if columns == 1 else np.roll(flat, step, axis=-1).reshape(array.shape)

    return change


PLACES = (
    ("next_key", "next key (one number on in memory, across the ends of rows)"),
    ("next_query", "next query"),
    ("previous_key", "previous key (one number back in memory, across the ends of rows)"),
    ("previous_query", "previous query"),
)


def _multiplied(pipe: Pipeline) -> Pipeline | None:
    if "bias" not in pipe.terms:
        return None
    return pipe.but(steps={**pipe.steps, "bias": lambda run, scores: scores * run.term("bias")})


def _bias_of_weights(pipe: Pipeline) -> Pipeline | None:
    if "bias" not in pipe.terms:
        return None
    bias = pipe.terms["bias"]
    made = pipe.but(order=tuple(step for step in pipe.order if step != "bias"))
    return made.then("after", lambda run, weights: weights + run.called(bias))


def _moved_bias(before: str) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        capped = before != "cap" or pipe.softcap is not None
        stays = "bias" not in pipe.terms or before not in pipe.order or not capped
        return None if stays else pipe.moved("bias", before=before)

    return change


def _viewed(order: str) -> Change:
    """Return the change that reads a bias without permuting its axes, heads first or last."""

    def change(bias: Array) -> Array | None:
        batch, heads, queries, keys = bias.shape
        if heads == 1:
            return None
        if order == "first":  # it lies in memory as (L, S, H)
            return bias.transpose(0, 2, 3, 1).reshape(batch, heads, queries, keys)
        return bias.reshape(batch, queries, keys, heads).transpose(0, 3, 1, 2)

    def changed(pipe: Pipeline) -> Pipeline | None:
        bias = _bias(pipe)
        whole = bias is not None and bias.shape[1:] == pipe.problem.shape[1:]
        return _bias_as(change)(pipe) if whole else None

    return changed


def _first_of(axis: int) -> Callable[[Array], Array | None]:
    return lambda array: None if array.shape[axis] == 1 else np.take(array, [0], axis=axis)


BIAS.add("bias_ignored", _bias_as(np.zeros_like), option="leave --bias out")
BIAS.add("bias_scaled", _moved_bias("scale"))
BIAS.add("bias_subtracted", _bias_as(np.negative))
BIAS.add("bias_twice", _bias_as(lambda bias: 2 * bias))
BIAS.add("bias_multiplied", _multiplied)
BIAS.add("bias_after_softmax", _bias_of_weights)
BIAS.add("bias_transposed", _bias_as(transposed))
BIAS.add(
    "bias_of_{}",
    lambda place: _bias_as(off_by_one(place[0])),
    values=PLACES,
    stage=stages.BIAS_PLACES,
)
BIAS.add(
    "bias_viewed_heads_{}",
    lambda value: _viewed(value[0]),
    values=(("first", "(L, S, H)", "(H, L, S)"), ("last", "(H, L, S)", "(L, S, H)")),
    stage=stages.BIAS_PLACES,
)
BIAS.add("bias_before_softcap", _moved_bias("cap"))
BIAS.add("bias_of_first_head", _bias_as(_first_of(1)), stage=stages.STRIDES)
BIAS.add("bias_of_first_query", _bias_as(_first_of(2)), stage=stages.STRIDES)


# ALiBi.

ALIBI = Rows(stages.ALIBI)


def _term(term: Callable[[Array, Array], Array], *, from_zero: bool = False) -> Change:
    """Return the change to another term of slope and distance."""

    def change(pipe: Pipeline) -> Pipeline | None:
        slopes = pipe.problem.alibi_slopes
        if slopes is None:
            return None
        offsets = (0,) if from_zero else None
        return pipe.with_term(
            "alibi", lambda run: term(run.by_head(slopes), distance_of(run, offsets))
        )

    return change


def _slopes(of: Callable[[Array, int], Array]) -> Change:
    """Return the change to other slopes: of the number of each head, from 0, and of all heads."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.problem.alibi_slopes is None:
            return None
        heads = pipe.problem.shape[1]
        return pipe.with_term("alibi", alibi(of(np.arange(heads), heads), pipe.offsets))

    return change


def _unasked(pipe: Pipeline) -> Pipeline | None:
    if pipe.problem.alibi_slopes is not None or "alibi" in pipe.terms:
        return None
    slopes = np.array(alibi_slopes(pipe.problem.shape[1]))
    return pipe.with_term("alibi", alibi(slopes, pipe.offsets))


def _keys_only(fmt: str | None = None) -> Change:
    """Add slope · j, of only the key, perhaps rounded to a format."""

    def change(pipe: Pipeline) -> Pipeline | None:
        slopes = pipe.problem.alibi_slopes
        if slopes is None:
            return None
        exact = slopes[:, None] * np.arange(pipe.problem.shape[3])
        made = exact if fmt is None else PRECISIONS[fmt].stored(exact)
        if fmt is not None and np.array_equal(made, exact):
            return None
        return pipe.with_term("alibi", table(made[None, :, None]))

    return change


def _in_stored_scores(value: tuple[str, str, str]) -> Change:
    """Round slope · j, and the scores with it; twice where stored before it is added.

    BLOOM's baddbmm stores them once, a product and a sum store them twice.
    """
    stored, twice = PRECISIONS[value[0]].stored, bool(value[1])

    def change(pipe: Pipeline) -> Pipeline | None:
        slopes = pipe.problem.alibi_slopes
        if slopes is None:
            return None
        term = stored(slopes[:, None] * np.arange(pipe.problem.shape[3]))[None, :, None]

        def step(run: Run, scores: Array) -> Array:
            before = stored(scores) if twice else scores
            return np.asarray(stored(before + run.part.of(term))).astype(scores.dtype)

        return pipe.but(steps={**pipe.steps, "alibi": step})

    return change


def _slope_of_first(pipe: Pipeline) -> Pipeline | None:
    slopes = pipe.problem.alibi_slopes
    if slopes is None or len(slopes) == 1:
        return None
    return pipe.with_term("alibi", alibi(np.full_like(slopes, slopes[0]), pipe.offsets))


ALIBI.add(
    "alibi_ignored", _term(lambda _, far: np.zeros_like(far, np.float64)), option=without_alibi
)
ALIBI.add("alibi_unasked", _unasked, option="--alibi")
ALIBI.add("alibi_signed", _term(lambda slopes, far: -slopes * far))
ALIBI.add(
    "alibi_signed_backwards", _term(lambda slopes, far: slopes * far), variant_of=("alibi_added",)
)
ALIBI.add("alibi_positional", _keys_only())
ALIBI.add(
    "alibi_positional_in_scores_of_{}{}",
    _in_stored_scores,
    values=[
        (fmt, *how)
        for fmt in _SHORT
        for how in (("", "when"), ("_stored_twice", "before and when"))
    ],
    stage=stages.ALIBI_STORED,
    variant_of=lambda value: (f"alibi_positional_in_scores_of_{value[0]}",) * bool(value[1]),
)
ALIBI.add("alibi_positional_in_{}", _keys_only, values=_SHORT)
ALIBI.add("alibi_added", _term(lambda slopes, far: slopes * np.abs(far)))
ALIBI.add(
    "alibi_scaled",
    lambda pipe: pipe.moved("alibi", before="scale") if "alibi" in pipe.terms else None,
)
ALIBI.add("alibi_without_offset", _term(lambda slopes, far: -slopes * np.abs(far), from_zero=True))
ALIBI.add(
    "alibi_slopes_reversed",
    lambda pipe: (
        None
        if pipe.problem.alibi_slopes is None
        else pipe.with_term("alibi", alibi(pipe.problem.alibi_slopes[::-1], pipe.offsets))
    ),
)
ALIBI.add("alibi_slopes_plain", _slopes(lambda head, heads: 2.0 ** (-8.0 * (head + 1) / heads)))
ALIBI.add("alibi_slopes_from_zero", _slopes(lambda head, heads: 2.0 ** (-8.0 * head / heads)))
ALIBI.add("alibi_slopes_halved", _slopes(lambda head, _: 2.0 ** -(head + 1.0)))
ALIBI.add("alibi_slope_of_first_head", _slope_of_first, stage=stages.STRIDES)
