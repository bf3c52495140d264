"""Mistakes in the softmax, in what stands in its place, and in its sinks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Rows
from attncli.referee.options import scaled
from attncli.referee.pipeline import Outputs, Pipeline, Run, limited, softmax_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem

__all__ = ["SINKS", "SOFTMAX", "exponentials", "with_epsilon"]

Result = tuple[Array, Array]
_LN2 = math.log(2.0)
_SINGLE = PRECISIONS["float32"].largest

SOFTMAX = Rows(stages.SOFTMAX)


def exponentials(scores: Array, shift: Array) -> Array:
    """Return exp(score − shift), 1 where both are −inf."""
    powers: Array = np.exp(scores - np.where(np.isneginf(shift), 0, shift))
    return powers


def divided(array: Array, total: Array) -> Array:
    """Return an array divided by its total; 0 where that is 0."""
    return np.where(total == 0, 0, array / total)


def _as(
    softmax: Callable[[Run, Array], Result], when: Callable[[Pipeline], bool] | None = None
) -> Change:
    """Return the change to another softmax, where a pipeline has what it is about."""
    return lambda pipe: pipe.but(softmax=softmax) if when is None or when(pipe) else None


def _weights(make: Callable[[Array], Array]) -> Change:
    """Return the change to weights that are made of the scores in another way."""
    return _as(lambda run, scores: (make(scores), softmax_over(run, scores)[1]))


def _several(axis: int) -> Callable[[Pipeline], bool]:
    return lambda pipe: pipe.shape[axis] > 1


def _over(*axes: int) -> Callable[[Run, Array], Result]:
    """Let the softmax run over several axes together."""

    def softmax(run: Run, scores: Array) -> Result:
        powers = exponentials(scores, scores.max(axes, keepdims=True))
        return divided(powers, powers.sum(axes, keepdims=True)), softmax_over(run, scores)[1]

    return softmax


def _over_one(axis: int) -> Callable[[Run, Array], Result]:
    return lambda run, scores: softmax_over(run, scores, axis)


SOFTMAX.add(
    "softmax_over_{}",
    # Of one query, all weights are 1.
    lambda value: _as(_over_one(value[1]), None if value[0] == "queries" else _several(value[2])),
    values=(("queries", -2, 2), ("heads", 1, 1), ("batch", 0, 0)),
    needs="rows heads batch",
)
SOFTMAX.add("softmax_over_all", _as(_over(-2, -1), _several(2)), needs="rows")
SOFTMAX.add(
    "softmax_over_{}_and_{}",
    lambda value: _as(
        _over(*value[2]), lambda pipe: all(pipe.shape[axis] > 1 for axis in value[2])
    ),
    values=(
        ("batch", "queries", (0, 2)),
        ("heads", "queries", (1, 2)),
        ("batch", "heads", (0, 1)),
    ),
    needs="batch heads rows",
)
SOFTMAX.add(
    "softmax_over_batch_heads_and_queries",
    _as(_over(0, 1, 2), lambda pipe: pipe.shape[0] > 1 and pipe.shape[1] > 1),
    needs="batch heads rows",
)


def _no_maximum(value: tuple[str, str, str, str]) -> Change:
    """Exponentiate scores as they are, and overflow; in float32 or not, dividing first or last."""
    single, last = bool(value[0]), bool(value[1])

    def change(pipe: Pipeline) -> Pipeline | None:
        largest = _SINGLE if single else pipe.file.largest
        if single and pipe.file.largest >= largest:
            return None

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

        made = pipe.but(softmax=softmax)
        return made.but(finish=(divide, *pipe.finish)) if last else made

    return change


SOFTMAX.add(
    "softmax_without_maximum{}{}",
    _no_maximum,
    values=[
        (single, last, words, what)
        for single, words in (("", ""), ("_in_float32", " in float32"))
        for last, what in (
            ("", "exp"),
            ("_divided_last", "exp, or its product with the values,"),
        )
    ],
    variant_of=lambda value: ("softmax_without_maximum",) * any(value[:2]),
)


def _overflowing(pipe: Pipeline) -> Pipeline | None:
    """Store the product in float16 before it is scaled."""
    if pipe.order[0] != "scale" or pipe.scale == 1:
        return None
    largest = PRECISIONS["float16"].largest
    return pipe.with_step("overflow", lambda _, scores: limited(scores, largest), before="scale")


SOFTMAX.add("product_overflows_float16", _overflowing)


def _twice(run: Run, scores: Array) -> Result:
    weights, lse = softmax_over(run, scores)
    plain = Run(run.pipe.but(sinks=None), run.part, run.precision, run.memory)
    return softmax_over(plain, np.where(run.seen, weights, -np.inf))[0], lse


SOFTMAX.add("softmax_twice", _as(_twice))


def _square(pipe: Pipeline) -> bool:
    return pipe.shape[2] == pipe.shape[3] > 1


SOFTMAX.add(
    "weights_transposed",
    lambda pipe: (
        pipe.then("after", lambda _, weights: weights.swapaxes(-1, -2)) if _square(pipe) else None
    ),
    needs="rows",
)
SOFTMAX.add("softmax_exponentials", _weights(np.exp))


def _column(array: Array) -> Array:
    return array.swapaxes(-1, -2)


def _lost_axis(value: tuple[str, str, Callable[[Array], Array], bool]) -> Change:
    """Spread a vector of one number a row over the rows: the largest scores, the sums, or both."""
    _, _, shift, total = value

    def softmax(run: Run, scores: Array) -> Result:
        top = scores.max(-1, keepdims=True)
        powers = np.exp(scores - shift(np.where(np.isneginf(top), 0, top)))
        sums = powers.sum(-1, keepdims=True)
        return divided(powers, _column(sums) if total else sums), softmax_over(run, scores)[1]

    return _as(softmax, lambda pipe: _square(pipe) and pipe.sinks is None)


SOFTMAX.add(
    "{}_of_other_rows",
    _lost_axis,
    values=(
        ("denominators", "the exponentials are divided by their sums", np.zeros_like, True),
        (
            "denominators_beside_maxima",
            "the exponentials, taken beside the maxima, are divided by their sums",
            np.asarray,
            True,
        ),
        ("maxima", "the maxima are subtracted", _column, False),
        (
            "maxima_and_denominators",
            "the maxima are subtracted, and the exponentials divided by their sums,",
            _column,
            True,
        ),
    ),
    stage=stages.LOST_AXES,
    needs="rows",
)


def _logarithms(run: Run, scores: Array) -> Result:
    lse = softmax_over(run, scores)[1]
    return np.where(np.isneginf(scores), 0, scores - lse[..., None]), lse


def _seen_scores(scores: Array) -> Array:
    return np.where(np.isneginf(scores), 0, scores)


def _by_their_sum(array: Array) -> Array:
    return divided(array, array.sum(-1, keepdims=True))


SOFTMAX.add(
    "log_softmax", _as(_logarithms), stage=stages.LOST_AXES, variant_of=("weights_are_logarithms",)
)
SOFTMAX.add(
    "scores_divided_by_their_sum", _weights(lambda scores: _by_their_sum(_seen_scores(scores)))
)
SOFTMAX.add("sigmoid", _weights(lambda scores: 1 / (1 + np.exp(-scores))))
SOFTMAX.add("softmax_left_out", _weights(_seen_scores))
SOFTMAX.add(
    "softmax_not_normalised",
    _weights(
        lambda scores: np.where(
            np.isneginf(scores), 0, np.exp(scores - scores.max(-1, keepdims=True))
        )
    ),
)


def _base_two(pipe: Pipeline) -> Pipeline:
    """Take powers of 2, along whatever axis the softmax runs."""
    inner = pipe.softmax
    sinks = None if pipe.sinks is None else pipe.sinks * _LN2

    def softmax(run: Run, scores: Array) -> Result:
        own = Run(run.pipe.but(sinks=sinks), run.part, run.precision, run.memory)
        weights, lse = inner(own, scores * scores.dtype.type(_LN2))
        return weights, lse / _LN2

    return pipe.but(softmax=softmax)


def _of_powers(problem: Problem) -> str:
    extras = (problem.softcap, problem.bias, problem.alibi_slopes, problem.sinks)
    return scaled(problem.scale * _LN2, problem) if all(e is None for e in extras) else ""


SOFTMAX.add("softmax_base_2", _base_two, stage=stages.SOFTMAX_BASE, option=_of_powers)
for _name, _divide in (
    ("", np.asarray),
    ("_divided_by_their_sum", _by_their_sum),
    ("_divided_by_length", lambda rectified: rectified / rectified.shape[-1]),
):
    SOFTMAX.add(
        f"relu{_name}",
        _weights(lambda scores, divide=_divide: divide(np.maximum(scores, 0))),  # type: ignore[misc]
    )


# What is added to the denominator, or left out of it.


def with_epsilon(epsilon: float) -> Change:
    """Return the change that adds a number to the sums of exp(score − maximum)."""

    def softmax(run: Run, scores: Array) -> Result:
        weights, lse = softmax_over(run, scores)
        total = exponentials(lse[..., None], scores.max(-1, keepdims=True))
        return weights * (total / (total + epsilon)), lse

    return _as(softmax)


def _one_beside_the_maximum(run: Run, scores: Array) -> Result:
    """Add 1 to the sums of exp(score − maximum), as if the maximum were a sink."""
    top = scores.max(-1, keepdims=True)
    weights, lse = softmax_over(run, scores)
    with_one = np.logaddexp(lse, np.where(np.isneginf(top), 0, top)[..., 0])
    return weights * np.exp(lse - with_one)[..., None], with_one


def _uncounted(which: str) -> Change:
    """Leave the first or the last key that a query sees out of its sum."""

    def softmax(run: Run, scores: Array) -> Result:
        weights, lse = softmax_over(run, scores)
        seen = scores > -np.inf
        last = seen.shape[-1] - 1 - seen[..., ::-1].argmax(-1)
        key = last if which == "last" else seen.argmax(-1)
        rest = 1 - np.take_along_axis(weights, key[..., None], -1)
        return weights / rest, lse + np.log(rest[..., 0])

    return _as(softmax, _several(3))


SOFTMAX.add(
    "epsilon_{}",
    lambda value: with_epsilon(float(value[1])),
    values=[(f"1e_{n}", f"{10.0**-n:g}") for n in range(2, 7)],
    stage=stages.EPSILON,
)
SOFTMAX.add(
    "sinks_unasked_unshifted",
    _as(_one_beside_the_maximum, lambda pipe: pipe.sinks is None),
    stage=stages.EPSILON,
)
SOFTMAX.add("{}_key_uncounted", _uncounted, values=("last", "first"), stage=stages.EPSILON)


# A letter or a bracket in the wrong place.


def _values_summed(pipe: Pipeline) -> Pipeline:
    def mix(_: Run, weights: Array, value: Array) -> Array:
        value = np.repeat(value, weights.shape[1] // value.shape[1], axis=1)
        sums: Array = weights.sum(axis=-1, keepdims=True) * value.sum(axis=-2, keepdims=True)
        return sums

    return pipe.but(mix=mix)


def _products_of_sums(pipe: Pipeline) -> Pipeline:
    def summed(_: Run, rows: Array) -> Array:
        # The product of two such vectors has a term for each component.
        same = rows.sum(axis=-1, keepdims=True) / math.sqrt(rows.shape[-1])
        return np.broadcast_to(same, rows.shape)

    return pipe.then("operands", ("query", summed)).then("operands", ("key", summed))


SOFTMAX.add("values_summed", _values_summed, stage=stages.MISTYPED)
SOFTMAX.add("products_of_sums", _products_of_sums, stage=stages.MISTYPED)


# Sinks, logits that count only in the denominator.

SINKS = Rows(stages.SINKS)


def _sinks_as(change: Callable[[Array, Pipeline], Array | None]) -> Change:
    """Return the change to other sinks, made of the right ones."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        new = None if pipe.sinks is None else change(pipe.sinks, pipe)
        return None if new is None else pipe.but(sinks=new)

    return changed


def _with_column(softmax: Callable[[Run, Array, Array], Result]) -> Change:
    """Return the change to a softmax that gets the sinks as (1, H, 1, 1)."""
    return _as(
        lambda run, scores: softmax(run, scores, run.by_head(np.asarray(run.pipe.sinks))),
        lambda pipe: pipe.sinks is not None,
    )


def _plain(run: Run, scores: Array) -> Result:
    return softmax_over(Run(run.pipe.but(sinks=None), run.part, run.precision, run.memory), scores)


def _in_the_first(run: Run, scores: Array, sinks: Array) -> Result:
    changed = scores.copy()
    changed[..., :1] = sinks
    return _plain(run, changed)


def _on_the_first(run: Run, scores: Array, sinks: Array) -> Result:
    changed = scores.copy()
    changed[..., :1] += sinks
    return _plain(run, changed)


def _wrong_column(run: Run, scores: Array, sinks: Array) -> Result:
    column = np.broadcast_to(sinks, (*scores.shape[:-1], 1))
    weights, lse = _plain(run, np.concatenate([column, scores], axis=-1))
    return weights[..., :-1], lse


def _added(add: Callable[[Array], Array]) -> Callable[[Run, Array, Array], Result]:
    """Add something to sums of exp(score − maximum)."""

    def softmax(_: Run, scores: Array, sinks: Array) -> Result:
        top = scores.max(-1, keepdims=True)
        shift = np.where(np.isneginf(top), 0, top)
        share = np.exp(scores - shift)
        total = share.sum(-1, keepdims=True) + add(sinks)
        return share / total, (np.log(total) + shift)[..., 0]

    return softmax


SINKS.add(
    "sinks_ignored",
    lambda pipe: None if pipe.sinks is None else pipe.but(sinks=None),
    option="leave --sinks out",
)
SINKS.add("sinks_as_first_key", _with_column(_in_the_first))
SINKS.add("sinks_added_to_first_key", _with_column(_on_the_first))
SINKS.add("sinks_in_wrong_column", _with_column(_wrong_column))
SINKS.add("sinks_without_exp", _with_column(_added(np.asarray)))
SINKS.add("sinks_unshifted", _with_column(_added(np.exp)))
SINKS.add("sinks_negated", _sinks_as(lambda sinks, _: -sinks))
SINKS.add(
    "sinks_unasked",
    lambda pipe: pipe.but(sinks=np.zeros(pipe.shape[1])) if pipe.sinks is None else None,
    option=lambda problem: f"--sinks {','.join('0' * problem.shape[1])}",
    variant_of=tuple(f"{rule}_as_zeros" for rule in ("mask", "key_padding_mask", "kv_lengths")),
)
SINKS.add("sinks_in_base_2", _sinks_as(lambda sinks, _: sinks * _LN2))
SINKS.add("sinks_of_0", _sinks_as(lambda sinks, _: 0 * sinks))
SINKS.add("sinks_twice", _sinks_as(lambda sinks, _: sinks + _LN2))
SINKS.add(
    "sinks_scaled",
    _sinks_as(lambda sinks, pipe: None if pipe.scale == 1 else sinks * pipe.problem.scale),
)
SINKS.add(
    "sink_of_first_head",
    _sinks_as(lambda sinks, _: np.full_like(sinks, sinks[0])),
    stage=stages.STRIDES,
)
