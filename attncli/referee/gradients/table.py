"""The mistakes of a backward pass: each a name, its words, and the change of a step.

The words stand in ``words.csv``, under the name or the name of the family, with {} for the
parameter. A change takes the right `Model` and returns the deviating one. Where a mistake makes no
sense, it changes no number, and so explains nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import turned
from attncli.referee.formats import PRECISIONS, TF32, Array
from attncli.referee.gradients.model import Model, summed
from attncli.referee.mistakes.table import Mistake, Stage
from attncli.referee.pipeline import pipeline_of
from attncli.referee.run import together

if TYPE_CHECKING:
    from attncli.referee.pipeline import Pipeline

__all__ = ["table"]

_BACKWARD = Stage(alone=True)
_SHORT = ("bfloat16", "float16")
# Keys or queries of a block, and terms of a sum that a kernel adds at once.
_SIZES, _AT_ONCE = (16, 32, 64, 128), 64
_LN2 = float(np.log(2))
_RESULTS = ("dquery", "dkey", "dvalue", "dbias", "dsinks")
_ENDS = ("first", "last")
_RULES = ("causal", "window", "mask", "key_padding_mask", "kv_lengths", "segment_ids")

Row = tuple[str, Callable[..., Model], Iterable[Any] | None]


@lru_cache
def table() -> tuple[Mistake, ...]:
    """Return all mistakes, in the order in which they are tried."""
    with Path(__file__).with_name("words.csv").open(encoding="utf-8", newline="") as file:
        words: dict[str, dict[str, Any]] = {row.pop("family"): row for row in csv.DictReader(file)}
    return tuple(
        Mistake(
            name=family.format(value),
            change=change if values is None else partial(change, value),  # type: ignore[arg-type]
            stage=_BACKWARD,
            family=family,
            # Sums in another order move a few numbers by one rounding.
            roughly=values is _SHORT or family == "factors_in_tf32",
            **{text: told.format(value) for text, told in words[family].items()},
        )
        for family, change, values in _rows()
        for value in (values or ("",))
    )


def _rows() -> Iterator[Row]:
    """Yield the name of each family, its change, and the values of its parameter."""
    factors = ("dquery", "dkey", "dquery_and_dkey")
    yield "scale_missing_in_{}", partial(_rescaled, -1), factors
    yield "scale_twice_in_{}", partial(_rescaled, 1), factors
    yield "delta_missing", lambda m: m.then(delta=lambda _, delta: 0 * delta), None
    yield "delta_unnormalised", lambda m: m.then(delta=_unnormalised), None
    yield "delta_of_{}_batch_entry", partial(_other_delta, 0), ("previous", "next", "first")
    yield "delta_of_{}_head", partial(_other_delta, 1), ("previous", "next", "first")
    yield "dlse_ignored", lambda m: m.then(delta=lambda m, d: d + m.given.dlse), None
    yield "dlse_added", lambda m: m.then(delta=lambda m, d: d + 2 * m.given.dlse), None
    yield "{}_missing_in_backward", _missing, (*_RULES, "bias", "alibi", "softcap", "rope")
    yield "softcap_derivative_missing", lambda m: m.but(draw=lambda m: m["dscores"]), None
    yield "lse_in_base_2", lambda m: m.then(lse=lambda _, lse: lse / _LN2), None
    yield "lse_read_as_base_2", lambda m: m.then(lse=lambda _, lse: lse * _LN2), None
    yield "lse_of_unscaled_scores", partial(_other_lse, {"scale": 1.0}), None
    yield "lse_saved_without_sinks", partial(_other_lse, {"sinks": None}), None
    yield "heads_of_a_group_averaged", lambda m: _by_heads(m, partial(_grouped, np.mean)), None
    yield "{}_head_of_a_group_only", _one_head, _ENDS
    yield "heads_grouped_the_other_way", lambda m: _by_heads(m, _other_way), None
    yield (
        "dkey_and_dvalue_exchanged",
        lambda m: m.but(dkey=lambda _: m["dvalue"], dvalue=lambda _: m["dkey"]),
        None,
    )
    for which in _ENDS:
        yield f"dquery_of_{which}_block_of_{{}}_only", partial(_of_keys, which), _SIZES
        yield f"dkey_of_{which}_block_of_{{}}_only", partial(_of_queries, which), _SIZES
    yield "value_columns_beyond_the_key_ignored", _few_columns, None
    yield "dvalue_columns_beyond_the_key_missing", lambda m: m.then(dvalue=_as_wide), None
    yield "backward_weights_in_{}", partial(_rounded, ("factor",)), _SHORT
    yield "dscores_in_{}", partial(_rounded, ("draw",)), _SHORT
    yield "weights_and_dscores_in_{}", partial(_rounded, ("factor", "draw")), _SHORT
    yield "scaled_keys_in_{}", _rounded_keys, _SHORT
    yield "sums_in_{}", _rounded_sums, _SHORT
    yield "factors_in_tf32", _in_tf32, None
    yield "dropout_ignored_in_backward", partial(_dropped, "none"), None
    yield "dropout_scale_missing_in_backward", partial(_dropped, "unscaled"), None
    yield "dropout_in_both_passes", partial(_dropped, "both"), None
    yield "rope_not_undone", partial(_turned, 1), None
    yield "rope_undone_the_wrong_way", partial(_turned, 2), None
    yield "offset_of_first_entry_in_backward", _first_offset, None
    yield "dsinks_zero", lambda m: m.then(dsinks=lambda _, made: 0 * made), None
    yield "dsinks_negated", lambda m: m.then(dsinks=lambda _, made: -made), None
    yield "dsinks_of_{}_query_only", _sinks_of_one, _ENDS
    yield "dsinks_not_summed", lambda m: m.but(dsinks=lambda m: m["sink_terms"]), None
    yield "dbias_not_summed", lambda m: m.but(dbias=lambda m: m["dscores"]), None
    yield "dbias_of_{}_part_only", _bias_of_one, _ENDS
    yield "nan_from_queries_without_keys", lambda m: m.then(weights=_blind_nan), None
    yield "nan_from_hidden_{}", _hidden_nan, ("keys", "values", "queries", "dcontext")
    yield "mean_over_{}", _mean, ("elements", "queries", "batch_entries")
    yield "loss_scale_{}_not_undone", _times, [2**n for n in range(1, 25)]


# Mistakes of scale, delta and lse, and rules that the backward pass ignores.


def _rescaled(power: int, which: str, model: Model) -> Model:
    factor = np.power(model["backward"].scale, float(power))
    names = (f"{name}_operand" for name in which.split("_and_"))
    return model.then(**dict.fromkeys(names, lambda _, made: made * factor))


def _unnormalised(model: Model, delta: Array) -> Array:
    top = model["made"]["scores"].max(axis=-1, keepdims=True)
    return np.asarray(delta * np.exp(model["lse"] - np.where(np.isfinite(top), top, 0)))


def _other_delta(axis: int, which: str, model: Model) -> Model:
    def change(_: Model, delta: Array) -> Array:
        if which == "first":
            return np.broadcast_to(np.take(delta, [0], axis), delta.shape)
        return np.roll(delta, 1 if which == "previous" else -1, axis)

    return model.then(delta=change)


def _in_backward(model: Model, pipe: Pipeline) -> Model:
    return model.but(backward=lambda _: pipe)


def _other_lse(changes: dict[str, Any], model: Model) -> Model:
    pipe = model["forward"].but(**changes)
    plain = model.but(forward=lambda _: pipe)
    return model.but(lse=lambda _: plain["lse"])


def _missing(rule: str, model: Model) -> Model:
    pipe: Pipeline = model["backward"]
    if rule in ("softcap", "rope"):
        return _in_backward(model, pipe.but(**{rule: None}))
    if rule in _RULES:
        return _in_backward(model, pipe.with_rule(rule, None))
    return _in_backward(model, pipe.but(terms={n: t for n, t in pipe.terms.items() if n != rule}))


def _first_offset(model: Model) -> Model:
    visible = model.problem.visible
    first = replace(model.problem, visible=visible._replace(offsets=visible.offsets[:1]))
    return _in_backward(model, pipeline_of(first))


def _turned(times: int, model: Model) -> Model:
    """Rotate the gradients of query and key so many times after they were rotated back."""
    rope, run = model["backward"].rope, model.run
    if rope is None:
        return model

    def change(name: str) -> Callable[[Model, Array], Array]:
        def further(_: Model, made: Array) -> Array:
            angles = run.positions(name)[..., None] * rope.of_width(made.shape[-1])
            return turned(made, times * angles, rope.pairing)

        return further

    return model.then(dquery=change("query"), dkey=change("key"))


# Heads, blocks and columns.


def _by_heads(model: Model, kept: Callable[[Model, Array], Array]) -> Model:
    """Return the model with another sum over the heads that share a key head."""

    def step(name: str, of: str) -> Callable[[Model], Array]:
        return lambda m: summed(kept(m, m[f"{name}_heads"]), 1, len(getattr(m.problem, of)))

    return model.but(dkey_operand=step("dkey", "key"), dvalue_operand=step("dvalue", "value"))


def _grouped(of: Callable[..., Array], model: Model, rows: Array) -> Array:
    batch, _, *rest = rows.shape
    return of(rows.reshape(batch, -1, model.share, *rest), axis=2)


def _one_head(which: str, model: Model) -> Model:
    first = 0 if which == "first" else model.share - 1
    return _by_heads(model, lambda _, rows: rows[:, first :: model.share])


def _other_way(model: Model, rows: Array) -> Array:
    batch, heads, *rest = rows.shape
    return np.asarray(rows.reshape(batch, model.share, heads // model.share, *rest).sum(axis=1))


def _block(which: str, size: int, length: int) -> Array:
    """Return 1 for the places of the first or the last block, and 0 for the others."""
    start = 0 if which == "first" else (length - 1) // size * size
    places = np.arange(length)
    return np.asarray((start <= places) & (places < start + size))


def _of_keys(which: str, size: int, model: Model) -> Model:
    kept = _block(which, size, model.problem.shape[3])
    cut = model.then(draw=lambda _, draw: draw * kept)
    return model.but(dquery_operand=lambda _: cut["dquery_operand"])


def _of_queries(which: str, size: int, model: Model) -> Model:
    kept = _block(which, size, model.problem.shape[2])[:, None]
    cut = model.then(draw=lambda _, draw: draw * kept)
    return model.but(dkey_heads=lambda _: cut["dkey_heads"])


def _few_columns(model: Model) -> Model:
    some = slice(model.problem.key.shape[3])
    return model.but(
        dweights=lambda m: together(
            m["dcontext"][..., some], m["value"][..., some].swapaxes(-1, -2)
        )
    )


def _as_wide(model: Model, made: Array) -> Array:
    return np.asarray(made * (np.arange(made.shape[3]) < model.problem.key.shape[3]))


# Formats.


def _rounded(steps: tuple[str, ...], fmt: str, model: Model) -> Model:
    stored = PRECISIONS[fmt].stored
    return model.then(**dict.fromkeys(steps, lambda _, made: stored(made)))


def _rounded_keys(fmt: str, model: Model) -> Model:
    """Round keys that are multiplied with the scale before the exponential."""
    scale, stored = model["backward"].scale, PRECISIONS[fmt].stored
    change = "key", lambda _, key: stored(key * scale) / scale
    rounded = _in_backward(model, model["backward"].then("operands", change))
    return model.but(weights=lambda _: rounded["weights"])


def _rounded_sums(fmt: str, model: Model) -> Model:
    stored = PRECISIONS[fmt].stored

    def times(left: Array, right: Array) -> Array:
        total: Any = 0.0
        for start in range(0, left.shape[-1], _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            total = stored(total + together(left[..., part], right[..., part, :]))
        return np.asarray(total)

    return model.but(times=lambda _: times)


def _in_tf32(model: Model) -> Model:
    def stored(_: Any, rows: Array) -> Array:
        return TF32.stored(rows)

    pipe = model["backward"]
    for name in ("query", "key", "value"):
        pipe = pipe.then("operands", (name, stored))
    both = model.but(forward=lambda _: pipe, backward=lambda _: pipe)
    return both.then(**dict.fromkeys(("dcontext", "factor", "draw"), stored))


def _dropped(backward: str, model: Model) -> Model:
    """Drop weights: those that are 0 in the weights that are judged beside the gradients."""
    found, weights = model.given.outputs.get("weights"), model["weights"]
    if found is None or found.shape != weights.shape or not found.any():
        return model
    kept = found != 0
    factor = float(np.median(found[kept] / weights[kept]))
    dropped = together(factor * kept * weights, model["value"])
    used = {"none": 1.0, "unscaled": kept, "both": factor * kept}[backward]
    return model.but(context=lambda _: dropped).then(
        factor=lambda _, made: made * used, dweights=lambda _, made: made * used
    )


# Sinks, bias, NaN and factors of all gradients.


def _sinks_of_one(which: str, model: Model) -> Model:
    at = [0 if which == "first" else -1]
    return model.but(dsinks=lambda m: m["sink_terms"][:, :, at].sum(axis=0, keepdims=True))


def _bias_of_one(which: str, model: Model) -> Model:
    """Return the gradient of the bias from one part of the first axis along which it is shared."""
    at = [0 if which == "first" else -1]

    def step(m: Model) -> Array:
        sizes = zip(m.problem.shape, np.asarray(m.problem.bias).shape, strict=True)
        axes = [axis for axis, (every, own) in enumerate(sizes) if own < every] or [0]
        part = np.take(m["dscores"], at, axes[0])
        return np.asarray(part.sum(axis=tuple(axes[1:]), keepdims=True))

    return model.but(dbias=step)


def _blind_nan(model: Model, weights: Array) -> Array:
    return np.where(np.isneginf(model["lse"]), np.nan, weights)


def _hidden_nan(which: str, model: Model) -> Model:
    """Let what stands in hidden places be NaN, and be multiplied with 0."""
    seen = np.broadcast_to(model.run.seen, model.problem.shape)
    of_keys = which in ("keys", "values")
    hidden = np.asarray(~seen.any(axis=(1, 2) if of_keys else 3))
    places = hidden[:, None, :, None] if of_keys else hidden[..., None]
    name = {"keys": "key", "values": "value", "queries": "query"}.get(which, which)
    return model.then(**{name: lambda _, rows: np.where(places, np.nan, rows)})


def _mean(over: str, model: Model) -> Model:
    batch, _, queries, _ = model.problem.shape
    counts = {"elements": model.given.dcontext.size, "queries": batch * queries}
    return _times(1 / counts.get(over, batch), model)


def _times(factor: float, model: Model) -> Model:
    return model.then(**dict.fromkeys(_RESULTS, lambda _, made: factor * made))
