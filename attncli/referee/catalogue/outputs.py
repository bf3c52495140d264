"""Right numbers under the wrong name, or cut to whole ones."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.names import INPUTS, SCORE_STAGES
from attncli.referee import topics
from attncli.referee.convention import Apply, Convention, then
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import Outputs, Recipe, vary
from attncli.referee.replacing import replace

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FEW_DIGITS", "GIVEN", "LSE", "SCORES", "WEIGHTS"]

Array = npt.NDArray[Any]
# Places before or behind the point that are not rounded to.
_FAR = 300


def _finished(change: Callable[[Recipe, Outputs], Outputs]) -> Apply:
    return lambda recipe: then(recipe, finish=change)


def _lse_as(change: Callable[[Recipe, Outputs], Array]) -> Apply:
    return _finished(lambda recipe, outputs: {**outputs, "lse": change(recipe, outputs)})


def _lse_of(**changes: Any) -> Callable[[Recipe, Outputs], Array]:
    """Take the lse of the same recipe with a changed problem."""
    return lambda recipe, _: evaluate(replace(vary(recipe, **changes), finish=()))["lse"]


def _largest(outputs: Outputs) -> Array:
    """Return the largest score of each row, (B, H, L, 1); 0 where it sees no key."""
    top = outputs["scores"].max(-1, keepdims=True)
    return np.where(np.isneginf(top), 0, top)


def _without_maximum(_: Recipe, outputs: Outputs) -> Array:
    return outputs["lse"] - _largest(outputs)


def _put_together(join: Callable[[Array, Array], Array]) -> Apply:
    """Make an `apply` whose lse is made of the largest score and ln Σ exp(score − largest)."""

    def lse(_: Recipe, outputs: Outputs) -> Array:
        top = _largest(outputs)
        return join(top, outputs["lse"] - top)

    return _lse_as(lse)


def _of_blind_rows(number: float) -> Apply:
    """Make an `apply` whose lse of a query that sees no key is a number, not −inf."""

    def lse(_: Recipe, outputs: Outputs) -> Array:
        return np.where(np.isneginf(outputs["lse"]), number, outputs["lse"])

    def apply(recipe: Recipe) -> Recipe | None:
        # A sink counts in every row.
        if recipe.problem.sinks is not None or recipe.seen.any(axis=-1).all():
            return None
        return _lse_as(lse)(recipe)

    return apply


def _untransposed(_: Recipe, outputs: Outputs) -> Array:
    """Write (B, L, H) in memory where (B, H, L) is read."""
    lse = outputs["lse"]
    return lse.swapaxes(1, 2).reshape(lse.shape)


def _with_the_unscaled_maximum(recipe: Recipe) -> Recipe | None:
    scale = recipe.problem.scale
    if scale in (0, 1):
        return None
    return _put_together(lambda top, rest: top / scale + rest)(recipe)


_lse = partial(
    Convention,
    topic=topics.LSE,
    fix="write ln Σ exp(score) over the seen keys, sink included",
    shows="almost any input",
)


LSE = (
    _lse(
        "lse_base_2",
        "the lse is a logarithm to base 2",
        _lse_as(lambda _, outputs: outputs["lse"] / math.log(2.0)),
    ),
    _lse(
        "lse_times_ln_2",
        "the lse is multiplied by ln 2, as if it were a logarithm to base 2",
        _lse_as(lambda _, outputs: outputs["lse"] * math.log(2.0)),
    ),
    _lse(
        "lse_unscaled",
        "the lse is that of the scores before the scale",
        _lse_as(_lse_of(scale=1.0)),
        shows="a scale other than 1",
    ),
    _lse(
        "lse_without_sinks",
        "the lse leaves the sinks out",
        lambda recipe: (
            None if recipe.problem.sinks is None else _lse_as(_lse_of(sinks=None))(recipe)
        ),
        shows="sinks",
    ),
    _lse(
        "lse_without_maximum",
        "the row's maximum was not added back to the lse",
        _lse_as(_without_maximum),
    ),
    _lse(
        "lse_not_logarithm",
        "the file holds the denominator itself, not its logarithm",
        _lse_as(lambda _, outputs: np.exp(outputs["lse"])),
    ),
    _lse(
        "lse_untransposed",
        "the lse lies in memory as (B, L, H), and is read as (B, H, L)",
        _lse_as(_untransposed),
        fix="write it by head, or transpose it: lse.transpose(1, 2)",
        shows="several heads and queries",
        needs=frozenset({"heads", "rows"}),
    ),
    _lse(
        "lse_is_maximum",
        "the file holds the largest score of each row, without the logarithm of the sum",
        _lse_as(lambda _, outputs: outputs["scores"].max(-1, keepdims=True)),
    ),
    *(
        _lse(f"lse_{name}", meaning, _put_together(join))
        for name, meaning, join in (
            (
                "maximum_in_base_2",
                "the row's maximum is in units of base 2, the logarithm of the sum is not",
                lambda top, rest: top / math.log(2.0) + rest,
            ),
            (
                "sum_in_base_2",
                "the logarithm of the sum is to base 2, the row's maximum is not",
                lambda top, rest: top + rest / math.log(2.0),
            ),
            (
                "sum_subtracted",
                "the logarithm of the sum is subtracted from the row's maximum",
                lambda top, rest: top - rest,
            ),
            (
                "of_sum_alone",
                "the file holds the sum of exp(score − maximum), and not its logarithm",
                lambda _, rest: np.exp(rest),
            ),
            (
                "sum_not_logarithm",
                "the sum is added to the row's maximum, not its logarithm",
                lambda top, rest: top + np.exp(rest),
            ),
            (
                "base_10",
                "the lse is a logarithm to base 10",
                lambda top, rest: (top + rest) / math.log(10.0),
            ),
        )
    ),
    _lse(
        "lse_maximum_unscaled",
        "the row's maximum that is added to the lse is that of the scores before the scale",
        _with_the_unscaled_maximum,
        shows="a scale other than 1",
    ),
    _lse(
        "lse_negative",
        "the lse has the wrong sign",
        _lse_as(lambda _, outputs: -outputs["lse"]),
    ),
    *(
        _lse(
            f"lse_of_blind_rows_{name}",
            f"the lse of queries that see no key is {words}, where −inf is right",
            _of_blind_rows(number),
            fix="write −inf, the logarithm of an empty sum: as a part of the keys, such a row then "
            "counts nothing",
            shows="a query that sees no key",
            topic=topics.LSE_OF_BLIND_ROWS,
        )
        for name, words, number in (
            ("inf", "+inf, as in FlashAttention 2", math.inf),
            ("zero", "0", 0.0),
            ("nan", "NaN", math.nan),
        )
    ),
)


def _of_input(name: str) -> Apply:
    """Make an `apply` that gives an input out as the context, where it has its shape."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem, whole = recipe.problem, getattr(recipe.whole, name)
        shape = None if whole is None else (*recipe.whole.shape[:3], whole.shape[3])
        if whole is None or whole.shape != shape or problem.output is not None:
            return None
        rows = slice(None) if name == "query" else slice(recipe.start, None)
        given = getattr(problem, name)[:, :, rows][:, :, : problem.shape[2]]
        return _finished(lambda _, outputs: {**outputs, "context": given})(recipe)

    return apply


def _weights_as_context(recipe: Recipe) -> Recipe | None:
    """Give the weights out as the context, where they have its shape."""
    problem = recipe.problem
    if problem.value is None or problem.output is not None:
        return None
    if problem.value.shape[3] != problem.shape[3]:
        return None
    return _finished(lambda _, outputs: {**outputs, "context": outputs["weights"]})(recipe)


_given = partial(Convention, topic=topics.GIVEN, shows="almost any input", late=True)


GIVEN = (
    *(
        _given(
            f"context_is_{name}",
            f"the file holds the {name}, which was given, not the context",
            _of_input(name),
            fix="give the file with the output (--expect)",
        )
        for name in INPUTS
    ),
    _given(
        "context_is_weights",
        "the file holds the weights, not the context",
        _weights_as_context,
        fix="give the file as weights (--expect weights=FILE), or multiply them with the values",
    ),
)


def _log_weights(_: Recipe, outputs: Outputs) -> Outputs:
    with np.errstate(divide="ignore"):
        return {**outputs, "weights": np.log(outputs["weights"])}


def _scores_as_weights(recipe: Recipe) -> Recipe | None:
    """Give the scores out as the weights, where this is not the same as `softmax_left_out`."""
    if recipe.seen.all():
        return None
    return _finished(lambda _, outputs: {**outputs, "weights": outputs["scores"]})(recipe)


WEIGHTS = (
    Convention(
        name="weights_are_scores",
        topic=topics.WEIGHTS,
        meaning="the file of weights holds the scores, from before the softmax",
        fix="write what the softmax gives: the weights of each query add up to 1",
        shows="almost any input",
        apply=_scores_as_weights,
    ),
    Convention(
        name="weights_are_logarithms",
        topic=topics.WEIGHTS,
        meaning="the file holds the logarithms of the weights, as log_softmax gives them",
        fix="write the weights themselves: softmax, or exp of these",
        shows="almost any input",
        apply=_finished(_log_weights),
    ),
)


def _stage_from(name: str, stage: str) -> Apply:
    return _finished(lambda _, outputs: {**outputs, name: outputs[stage]})


def _hidden_raw(recipe: Recipe) -> Recipe | None:
    """Put −inf into the raw scores of hidden keys, where softcap and bias make these differ."""
    if recipe.seen.all():
        return None

    def hide(recipe: Recipe, outputs: Outputs) -> Outputs:
        return {**outputs, "raw": np.where(recipe.seen, outputs["raw"], -np.inf)}

    return _finished(hide)(recipe)


def _less_maximum(_: Recipe, outputs: Outputs) -> Outputs:
    return {**outputs, "scores": outputs["scores"] - _largest(outputs)}


def _unscaled_scores(recipe: Recipe, outputs: Outputs) -> Outputs:
    changed = evaluate(replace(vary(recipe, scale=1.0), finish=()))
    return {**outputs, **{name: changed[name] for name in SCORE_STAGES}}


_score = partial(Convention, topic=topics.SCORES, fix="write the scores that the softmax gets")


SCORES = (
    _score(
        "scores_are_raw",
        "the file of scores holds scale · Q·Kᵀ, before softcap, bias and mask",
        _stage_from("scores", "raw"),
        shows="any rule",
    ),
    _score(
        "scores_are_capped",
        "the file of scores holds scores before bias and mask",
        _stage_from("scores", "capped"),
        shows="a bias or a mask",
    ),
    _score(
        "raw_are_scores",
        "the file of raw scores holds those behind softcap, bias and mask",
        _stage_from("raw", "scores"),
        fix="write scale · Q·Kᵀ, before softcap, bias and mask",
        shows="any rule",
    ),
    _score(
        "raw_hidden",
        "the file of raw scores holds −inf for hidden keys, though they are those before the mask",
        _hidden_raw,
        fix="write scale · Q·Kᵀ, before softcap, bias and mask",
        shows="a softcap or a bias, and any hidden key",
        variant_of=("raw_are_scores",),
    ),
    _score(
        "capped_are_scores",
        "the file of capped scores holds those behind bias and mask",
        _stage_from("capped", "scores"),
        fix="write the scores behind the softcap, before bias and mask",
        shows="a bias or a mask",
    ),
    _score(
        "scores_are_weights",
        "the file of scores holds the weights, from behind the softmax",
        _stage_from("scores", "weights"),
        shows="almost any input",
    ),
    _score(
        "scores_less_maximum",
        "the file of scores holds the scores less the largest of their row",
        _finished(_less_maximum),
        shows="almost any input",
    ),
    _score(
        "scores_unscaled",
        "the file of scores holds unscaled scores, although the softmax got scaled ones",
        _finished(_unscaled_scores),
        shows="a scale other than 1",
    ),
)


def _cut_to(cut: Callable[[Array], Array]) -> Apply:
    return _finished(lambda _, outputs: {name: cut(output) for name, output in outputs.items()})


def _to_one_decimal(array: Array) -> Array:
    return array.round(1)


def _to_digits(count: int, array: Array) -> Array:
    """Return each number as ``%.2g`` writes it, or with another count of digits."""
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.floor(np.log10(np.abs(array)))
    decimals = count - 1 - np.where(np.abs(places) < _FAR, places, 0)
    unit = 10.0 ** np.abs(decimals)  # a whole number, which floats hold
    large = decimals < 0
    return np.asarray(np.where(large, np.rint(array / unit) * unit, np.rint(array * unit) / unit))


_digits = partial(
    Convention,
    topic=topics.FEW_DIGITS,
    fix="write the numbers as floats",
    shows="almost any input",
)


FEW_DIGITS = (
    _digits(
        "cast_to_integers",
        "the numbers are cast to integers: what is behind the point is cut off",
        _cut_to(np.trunc),
        whole=True,
    ),
    _digits(
        "rounded_to_integers", "the numbers are rounded to integers", _cut_to(np.rint), whole=True
    ),
    *(
        _digits(
            f"rounded_to_{name}",
            f"the numbers are right, and rounded to {words}",
            _cut_to(cut),
            fix="write more digits: nine (%.9g) hold all of float32, seventeen all of float64",
        )
        for name, words, cut in (
            ("1_decimal", "one digit after the point", _to_one_decimal),
            ("1_digit", "one significant digit", partial(_to_digits, 1)),
            ("2_digits", "two significant digits", partial(_to_digits, 2)),
        )
    ),
)
