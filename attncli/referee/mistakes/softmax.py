"""Mistakes in the softmax and its sinks, and other functions in the place of the softmax."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes.table import Rows, after, altered, given, require, softmaxed, without
from attncli.referee.options import scaled
from attncli.referee.pipeline import Pipeline
from attncli.referee.run import Outputs, Run, limited, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

ROWS = Rows()

Result = tuple[Array, Array]
_LN2 = math.log(2.0)
_SINGLE = PRECISIONS["float32"].largest


def exponentials(scores: Array, shift: Array) -> Array:
    """Return exp(score − shift); 1 where both are −inf."""
    return np.asarray(np.exp(scores - _finite(shift)))


def _finite(shift: Array) -> Array:
    return np.where(np.isneginf(shift), 0, shift)


def _top(scores: Array) -> Array:
    """Return the row max; 0 where a query sees no key."""
    return _finite(scores.max(-1, keepdims=True))


def divided(array: Array, total: Array) -> Array:
    """Return array / total; 0 where the total is 0."""
    return np.where(total == 0, 0, array / total)


def _with_sinks(run: Run, sinks: Array | None = None) -> Run:
    return Run(run.pipe.but(sinks=sinks), run.part, run.precision, run.memory)


def _weights(pipe: Pipeline, make: Callable[[Array], Array]) -> Pipeline:
    return softmaxed(pipe, lambda _run, scores, _weights, lse: (make(scores), lse))


# Softmax over other axes.


def _over(pipe: Pipeline, axes: tuple[int, ...], longer: tuple[int, ...]) -> Pipeline:
    """Let the softmax run over these axes together; the ``longer`` ones must exceed 1."""
    require(*(pipe.shape[axis] > 1 for axis in longer))

    def make(scores: Array) -> Array:
        powers = exponentials(scores, scores.max(axes, keepdims=True))
        return divided(powers, powers.sum(axes, keepdims=True))

    return _weights(pipe, make)


ROWS.add("softmax_over_queries", _over, (2,), ())  # of one query, all weights are 1
ROWS.add("softmax_over_all", _over, (2, 3), (2,))
ROWS.add("softmax_over_batch_heads_and_queries", _over, (0, 1, 2), (0, 1))
ROWS.family("softmax_over_{}", _over, {"heads": ((1,), (1,)), "batch": ((0,), (0,))})
_PAIRS = {("batch", "queries"): (0, 2), ("heads", "queries"): (1, 2), ("batch", "heads"): (0, 1)}
ROWS.family(
    "softmax_over_{}_and_{}", _over, {names: (axes, axes) for names, axes in _PAIRS.items()}
)


# Overflow.


def _no_maximum(pipe: Pipeline, single: str, last: str) -> Pipeline:
    """Exponentiate scores without the row max; divide before or after the sum of values."""
    require(not single or pipe.file.largest < _SINGLE)
    largest = _SINGLE if single else pipe.file.largest

    def softmax(run: Run, scores: Array) -> Result:
        share = limited(np.exp(scores), largest)
        total = share.sum(-1, keepdims=True)
        if run.pipe.sinks is not None:
            total = total + limited(np.exp(run.by_head(run.pipe.sinks)), largest)
        total = limited(total, largest)
        return share if last else divided(share, total), np.log(total)[..., 0]

    def divide(_: Run, outputs: Outputs) -> Outputs:
        total = np.exp(outputs["lse"])
        names = [name for name in ("weights", "context") if name in outputs]
        return outputs | {n: divided(limited(outputs[n], largest), total) for n in names}

    return pipe.but(softmax=softmax, finish=(divide, *pipe.finish) if last else pipe.finish)


ROWS.family(
    "softmax_without_maximum{}{}",
    _no_maximum,
    [(single, last) for single in ("", "_in_float32") for last in ("", "_divided_last")],
)
_LARGEST = PRECISIONS["float16"].largest
ROWS.add(
    "product_overflows_float16",
    *(Pipeline.with_step, "overflow", lambda _, scores: limited(scores, _LARGEST), "scale"),
    when=lambda pipe: pipe.order[0] == "scale" and pipe.scale != 1,
)


# Softmax twice, transposed or along a lost axis, or another function in its place.


def _is_square(pipe: Pipeline) -> bool:
    return pipe.shape[2] == pipe.shape[3] > 1


def _column(array: Array) -> Array:
    return array.swapaxes(-1, -2)


def _lost_axis(
    pipe: Pipeline, shift: Callable[[Array], Array], total: Callable[[Array], Array]
) -> Pipeline:
    """Apply row max, row sum or both along the wrong axis, as a vector over keys."""

    def make(scores: Array) -> Array:
        powers = np.exp(scores - shift(_top(scores)))
        return divided(powers, total(powers.sum(-1, keepdims=True)))

    return _weights(pipe, make)


def _rectified(scores: Array) -> Array:
    return np.maximum(scores, 0)


def _base_two(pipe: Pipeline) -> Pipeline:
    inner = pipe.softmax
    sinks = None if pipe.sinks is None else pipe.sinks * _LN2

    def softmax(run: Run, scores: Array) -> Result:
        weights, lse = inner(_with_sinks(run, sinks), scores * scores.dtype.type(_LN2))
        return weights, lse / _LN2

    return pipe.but(softmax=softmax)


def _of_powers(problem: Problem) -> str:
    extras = (problem.softcap, problem.bias, problem.alibi_slopes, problem.sinks)
    return scaled(problem.scale * _LN2, problem) if all(e is None for e in extras) else ""


ROWS.add(
    "softmax_twice",
    softmaxed,
    lambda run, _, weights, lse: (
        softmax_over(_with_sinks(run), np.where(run.seen, weights, -np.inf))[0],
        lse,
    ),
)
ROWS.add("weights_transposed", after, _column, when=_is_square)
ROWS.family(
    "{}_of_other_rows",
    _lost_axis,
    {
        "denominators": (np.zeros_like, _column),
        "denominators_beside_maxima": (np.asarray, _column),
        "maxima": (_column, np.asarray),
        "maxima_and_denominators": (_column, _column),
    },
    when=lambda pipe: _is_square(pipe) and pipe.sinks is None,
)
ROWS.add(
    "log_softmax",
    softmaxed,
    lambda _, scores, __, lse: (np.where(np.isneginf(scores), 0, scores - lse[..., None]), lse),
)
ROWS.add(
    "scores_divided_by_their_sum",
    *(_weights, lambda scores: divided(_finite(scores), _finite(scores).sum(-1, keepdims=True))),
)
ROWS.add("softmax_exponentials", _weights, np.exp)
ROWS.add("sigmoid", _weights, lambda scores: 1 / (1 + np.exp(-scores)))
ROWS.add("softmax_left_out", _weights, _finite)
ROWS.add("softmax_not_normalised", _weights, lambda scores: np.exp(scores - _top(scores)))
ROWS.add("relu", _weights, _rectified)
ROWS.add("relu_divided_by_length", _weights, lambda scores: _rectified(scores) / scores.shape[-1])
ROWS.add("softmax_base_2", _base_two, option=_of_powers)


# A number that is added to the denominator.


def with_epsilon(pipe: Pipeline, epsilon: float) -> Pipeline:
    """Add a number to the row sums of exp(score − row max)."""

    def change(_: Run, scores: Array, weights: Array, lse: Array) -> Result:
        total = exponentials(lse[..., None], scores.max(-1, keepdims=True))
        return weights * (total / (total + epsilon)), lse

    return softmaxed(pipe, change)


def _has_no_sinks(pipe: Pipeline) -> bool:
    return pipe.sinks is None


ROWS.family(
    "epsilon_{}",
    with_epsilon,
    {(f"1e_{n}", f"{10.0 ** (-n):g}"): float(f"1e-{n}") for n in range(2, 7)},
)


# A letter or a bracket in the wrong place.


def _sums_mixed(_: Run, weights: Array, value: Array) -> Array:
    value = np.repeat(value, weights.shape[1] // value.shape[1], axis=1)
    return np.asarray(weights.sum(-1, keepdims=True) * value.sum(-2, keepdims=True))


def _summed(_: Run, rows: Array) -> Array:
    # The product of two such vectors has a term for each component.
    same = rows.sum(axis=-1, keepdims=True) / math.sqrt(rows.shape[-1])
    return np.broadcast_to(same, rows.shape)


ROWS.add("values_summed", lambda pipe: pipe.but(mix=_sums_mixed))
ROWS.add(
    "products_of_sums",
    lambda pipe: pipe.then("operands", ("query", _summed)).then("operands", ("key", _summed)),
)


# Sinks: logits that count only in the denominator.


def _with_column(pipe: Pipeline, softmax: Callable[[Run, Array, Array], Result]) -> Pipeline:
    """Replace the softmax by a function that gets the sinks as (1, H, 1, 1)."""
    sinks = given(pipe.sinks)
    return pipe.but(softmax=lambda run, scores: softmax(run, scores, run.by_head(sinks)))


def _in_the_first(run: Run, scores: Array, sinks: Array) -> Result:
    changed = scores.copy()
    changed[..., :1] = sinks
    return softmax_over(_with_sinks(run), changed)


def _wrong_column(run: Run, scores: Array, sinks: Array) -> Result:
    column = np.broadcast_to(sinks, (*scores.shape[:-1], 1))
    weights, lse = softmax_over(_with_sinks(run), np.concatenate([column, scores], axis=-1))
    return weights[..., :-1], lse


def _unshifted(_: Run, scores: Array, counted: Array) -> Result:
    """Add a number to the row sums of exp(score − row max)."""
    share = np.exp(scores - _top(scores))
    total = share.sum(-1, keepdims=True) + counted
    return share / total, (np.log(total) + _top(scores))[..., 0]


ROWS.add("sinks_ignored", without, "sinks", option="leave --sinks out")
ROWS.add("sinks_as_first_key", _with_column, _in_the_first)
ROWS.add(
    "sinks_added_to_first_key",
    *(_with_column, lambda run, scores, own: _in_the_first(run, scores, scores[..., :1] + own)),
)
ROWS.add("sinks_in_wrong_column", _with_column, _wrong_column)
ROWS.add("sinks_without_exp", _with_column, _unshifted)
ROWS.add("sinks_unshifted", _with_column, lambda r, s, own: _unshifted(r, s, np.exp(own)))
ROWS.add(
    "sinks_unasked_unshifted",
    lambda pipe: pipe.but(softmax=lambda run, scores: _unshifted(run, scores, np.ones(1))),
    when=_has_no_sinks,
)
ROWS.add(
    "sinks_unasked",
    lambda pipe: pipe.but(sinks=np.zeros(pipe.shape[1])),
    when=_has_no_sinks,
    option=lambda problem: f"--sinks {','.join('0' * problem.shape[1])}",
)
ROWS.add("sinks_in_every_part", lambda pipe: pipe.but(sinks=given(given(pipe.problem.shard).sinks)))
ROWS.add("sinks_negated", altered, "sinks", np.negative)
ROWS.add("sinks_in_base_2", altered, "sinks", lambda sinks: sinks * _LN2)
ROWS.add("sinks_of_0", altered, "sinks", np.zeros_like)
ROWS.add("sinks_twice", altered, "sinks", lambda sinks: sinks + _LN2)
ROWS.add("sinks_scaled", lambda pipe: altered(pipe, "sinks", lambda own: own * pipe.scale))
ROWS.add("sink_of_first_head", altered, "sinks", lambda sinks: np.full_like(sinks, sinks[0]))
