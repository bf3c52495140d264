"""The mistakes of a backward pass: each a name, its words, and the change of a step.

The words stand in ``words.csv``, under the name or the name of the family, with {} for the
parameter. A change takes the right `Model` and returns the deviating one, or None where it makes no
sense. Mistakes of the forward pass that change only a rule are those of the other table: they are
tried in both passes, and in the backward pass alone.
"""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import turned
from attncli.referee.formats import PRECISIONS, TF32, Array
from attncli.referee.gradients.model import summed
from attncli.referee.mistakes.table import Mistake, Stage
from attncli.referee.pipeline import pipeline_of, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from attncli.referee.gradients.model import Model

__all__ = ["table"]

_BACKWARD = Stage(alone=True)
_RESULTS = ("dquery", "dkey", "dvalue", "dbias", "dsinks")
_SHORT = ("bfloat16", "float16")
# Keys or queries of a block.
_SIZES = (16, 32, 64, 128)
_LN2 = math.log(2)


@lru_cache
def table() -> tuple[Mistake, ...]:
    """Return all mistakes, in the order in which they are tried."""
    with Path(__file__).with_name("words.csv").open(encoding="utf-8", newline="") as file:
        words: dict[str, dict[str, Any]] = {row.pop("family"): row for row in csv.DictReader(file)}
    return tuple(
        Mistake(
            name=family.format(value) if value is not None else family,
            change=change if value is None else partial(change, value),
            stage=_BACKWARD,
            family=family,
            # Sums in another order move a few numbers by one rounding.
            roughly=values is _SHORT or family == "factors_in_tf32",
            **{text: told.format(value) for text, told in words[family].items()},
        )
        for family, change, values in _rows()
        for value in (values or (None,))
    )


def _rows() -> Iterator[tuple[str, Callable[..., Any], Iterable[Any] | None]]:
    """Yield the name of each family, its change, and the values of its parameter."""
    yield "scale_missing_in_{}", _unscaled, ("dquery", "dkey", "dquery_and_dkey")
    yield "scale_twice_in_{}", _scaled_twice, ("dquery", "dkey", "dquery_and_dkey")
    yield "delta_missing", lambda m: m.then(delta=lambda _, delta: 0 * delta), None
    yield "delta_unnormalised", _unnormalised, None
    yield "delta_of_{}_batch_entry", partial(_other_delta, 0), ("previous", "next", "first")
    yield "delta_of_{}_head", partial(_other_delta, 1), ("previous", "next", "first")
    yield "dlse_ignored", partial(_dlse, 0), None
    yield "dlse_added", partial(_dlse, -1), None
    yield (
        "{}_missing_in_backward",
        _missing,
        (
            *("causal", "window", "mask", "key_padding_mask", "kv_lengths", "segment_ids"),
            *("bias", "alibi", "softcap", "rope"),
        ),
    )
    yield "softcap_derivative_missing", _no_derivative, None
    yield "lse_in_base_2", lambda m: m.then(lse=lambda _, lse: lse / _LN2), None
    yield "lse_read_as_base_2", lambda m: m.then(lse=lambda _, lse: lse * _LN2), None
    yield "lse_of_unscaled_scores", _unscaled_lse, None
    yield "lse_without_sinks", _sinkless_lse, None
    yield "heads_of_a_group_averaged", _averaged, None
    yield "{}_head_of_a_group_only", _one_head, ("first", "last")
    yield "heads_grouped_the_other_way", _grouped_otherwise, None
    yield "dkey_and_dvalue_exchanged", _exchanged, None
    for step, name in (("dquery", "dquery"), ("dkey_heads", "dkey")):
        for which in ("first", "last"):
            own = partial(_one_block, step, which)
            yield name + "_of_" + which + "_block_of_{}_only", own, _SIZES
    yield "value_columns_beyond_the_key_ignored", _few_columns, None
    yield "dvalue_columns_beyond_the_key_missing", _few_dvalue_columns, None
    yield "weights_in_{}", partial(_rounded, ("factor",)), _SHORT
    yield "dscores_in_{}", partial(_rounded, ("draw",)), _SHORT
    yield "weights_and_dscores_in_{}", partial(_rounded, ("factor", "draw")), _SHORT
    yield "scaled_keys_in_{}", _rounded_keys, _SHORT
    yield "sums_in_{}", _rounded_sums, _SHORT
    yield "factors_in_tf32", _in_tf32, None
    yield "dropout_ignored_in_backward", _undropped, None
    yield "dropout_scale_missing_in_backward", _dropped_unscaled, None
    yield "dropout_in_both_passes", _dropped, None
    yield "rope_not_undone", partial(_turned, 0), None
    yield "rope_undone_the_wrong_way", partial(_turned, 1), None
    yield "offset_of_first_entry_in_backward", _first_offset, None
    yield "dsinks_zero", lambda m: _of_sinks(m, lambda _, made: 0 * made), None
    yield "dsinks_negated", lambda m: _of_sinks(m, lambda _, made: -made), None
    yield "dsinks_of_{}_query_only", _sinks_of_one, ("first", "last")
    yield "dsinks_not_summed", _sinks_not_summed, None
    yield "dbias_not_summed", _bias_not_summed, None
    yield "dbias_of_{}_part_only", _bias_of_one, ("first", "last")
    yield "nan_from_queries_without_keys", _blind_nan, None
    yield "nan_from_hidden_{}", _hidden_nan, ("keys", "values", "queries", "dcontext")
    yield "mean_over_{}", _mean, ("elements", "queries", "batch_entries")
    yield "loss_scale_{}_not_undone", _loss_scale, [2**n for n in range(1, 25)]


# Scale, delta and lse.


def _named(which: str) -> tuple[str, ...]:
    return tuple(f"{name}_operand" for name in which.split("_and_"))


def _unscaled(which: str, model: Model) -> Model | None:
    scale = model.backward.scale
    if np.all(scale == 1) or np.any(scale == 0):
        return None
    return model.then(**dict.fromkeys(_named(which), lambda _, made: made / scale))


def _scaled_twice(which: str, model: Model) -> Model | None:
    scale = model.backward.scale
    if np.all(scale == 1):
        return None
    return model.then(**dict.fromkeys(_named(which), lambda _, made: made * scale))


def _unnormalised(model: Model) -> Model:
    def change(model: Model, delta: Array) -> Array:
        top = model["made"]["scores"].max(axis=-1, keepdims=True)
        return np.asarray(delta * np.exp(model["lse"] - np.where(np.isfinite(top), top, 0)))

    return model.then(delta=change)


def _other_delta(axis: int, which: str, model: Model) -> Model | None:
    if model.problem.shape[axis] == 1:
        return None

    def change(_: Model, delta: Array) -> Array:
        if which == "first":
            return np.broadcast_to(np.take(delta, [0], axis), delta.shape)
        return np.roll(delta, 1 if which == "previous" else -1, axis)

    return model.then(delta=change)


def _dlse(times: int, model: Model) -> Model | None:
    dlse = model.given.dlse
    if dlse is None or not dlse.any():
        return None
    # The right delta holds −dlse.
    return model.then(delta=lambda _, delta: delta + (1 - times) * dlse[..., None])


def _unscaled_lse(model: Model) -> Model | None:
    if np.all(model.forward.scale == 1):
        return None
    plain = model.but(forward=model.forward.but(scale=1.0))
    return model.but(lse=lambda _: plain["lse"])


def _sinkless_lse(model: Model) -> Model | None:
    if model.problem.sinks is None:
        return None
    plain = model.but(forward=model.forward.but(sinks=None))
    return model.but(lse=lambda _: plain["lse"])


# Rules that the backward pass does not know.


def _missing(rule: str, model: Model) -> Model | None:
    pipe = model.backward
    if rule == "softcap":
        return None if pipe.softcap is None else model.but(backward=pipe.but(softcap=None))
    if rule == "rope":
        return None if pipe.rope is None else model.but(backward=pipe.but(rope=None))
    if rule in pipe.rules:
        return model.but(backward=pipe.with_rule(rule, None))
    if rule in pipe.terms:
        terms = {name: term for name, term in pipe.terms.items() if name != rule}
        return model.but(backward=pipe.but(terms=terms))
    return None


def _no_derivative(model: Model) -> Model | None:
    if model.backward.softcap is None:
        return None
    return model.but(draw=lambda m: m["dscores"])


def _first_offset(model: Model) -> Model | None:
    visible = model.problem.visible
    if len(set(visible.offsets)) == 1:
        return None
    first = replace(model.problem, visible=visible._replace(offsets=visible.offsets[:1]))
    return model.but(backward=pipeline_of(first))


def _turned(times: int, model: Model) -> Model | None:
    """Rotate the gradients of query and key: not at all, or as query and key are."""
    rope, run = model.backward.rope, model.run
    if rope is None:
        return None

    def change(name: str) -> Callable[[Model, Array], Array]:
        def further(_: Model, made: Array) -> Array:
            angles = run.positions(name)[..., None] * rope.of_width(made.shape[-1])
            return turned(made, (1 + times) * angles, rope.pairing)

        return further

    return model.then(dquery=change("query"), dkey=change("key"))


# Heads, blocks and columns.


def _averaged(model: Model) -> Model | None:
    share = model.share
    if share == 1:
        return None
    return model.then(
        dkey_operand=lambda _, made: made / share, dvalue_operand=lambda _, made: made / share
    )


def _by_heads(model: Model, kept: Callable[[Array], Array]) -> Model | None:
    """Return the model with another sum over the heads that share a key head."""
    if model.share == 1:
        return None
    steps = {
        f"{name}_operand": lambda m, name=name, of=of: summed(
            kept(m[f"{name}_heads"]), 1, len(getattr(m.problem, of))
        )
        for name, of in (("dkey", "key"), ("dvalue", "value"))
    }
    return model.but(**steps)


def _one_head(which: str, model: Model) -> Model | None:
    first = 0 if which == "first" else model.share - 1
    return _by_heads(model, lambda rows: rows[:, first :: model.share])


def _grouped_otherwise(model: Model) -> Model | None:
    groups = model.problem.key.shape[1]
    if groups == 1:
        return None

    def kept(rows: Array) -> Array:
        batch, _, *rest = rows.shape
        return np.asarray(rows.reshape(batch, -1, groups, *rest).sum(axis=1))

    return _by_heads(model, kept)


def _exchanged(model: Model) -> Model:
    return model.but(dkey=lambda _: model["dvalue"], dvalue=lambda _: model["dkey"])


def _one_block(step: str, which: str, size: int, model: Model) -> Model | None:
    """Return the gradient of query from one block of keys, of keys from one block of queries."""
    axis = 3 if step == "dquery" else 2
    length = model.problem.shape[axis]
    if length <= size:
        return None
    start = 0 if which == "first" else (length - 1) // size * size
    block = np.zeros(length, np.bool_)
    block[start : start + size] = True
    kept = block if axis == 3 else block[:, None]
    made = model.then(draw=lambda _, rows: rows * kept)
    part = "dquery_operand" if step == "dquery" else "dkey_heads"
    return model.but(**{part: lambda _: made[part]})


def _few_columns(model: Model) -> Model | None:
    width = model.problem.key.shape[3]
    if np.asarray(model.problem.value).shape[3] <= width:
        return None
    return model.but(
        dweights=lambda m: together(
            m["dcontext"][..., :width], m["value"][..., :width].swapaxes(-1, -2)
        )
    )


def _few_dvalue_columns(model: Model) -> Model | None:
    width = model.problem.key.shape[3]
    if np.asarray(model.problem.value).shape[3] <= width:
        return None
    kept = np.arange(np.asarray(model.problem.value).shape[3]) < width
    return model.then(dvalue=lambda _, made: made * kept)


# Formats.


def _rounded(steps: tuple[str, ...], fmt: str, model: Model) -> Model:
    stored = PRECISIONS[fmt].stored
    return model.then(**dict.fromkeys(steps, lambda _, made: stored(made)))


def _rounded_keys(fmt: str, model: Model) -> Model | None:
    """Round keys that are multiplied with the scale before the exponential."""
    scale, stored = model.backward.scale, PRECISIONS[fmt].stored
    if np.all(scale == 1) or np.any(scale == 0):
        return None
    pipe = model.backward.then("operands", ("key", lambda _, key: stored(key * scale) / scale))
    rounded = model.but(backward=pipe)
    return model.but(weights=lambda _: rounded["weights"])


def _rounded_sums(fmt: str, model: Model) -> Model:
    """Keep sums in a short format, a block of 64 terms after the other."""
    stored = PRECISIONS[fmt].stored

    def times(left: Array, right: Array) -> Array:
        total: Any = 0.0
        for start in range(0, left.shape[-1], 64):
            part = slice(start, start + 64)
            total = stored(total + together(left[..., part], right[..., part, :]))
        return np.asarray(total)

    return model.but(times=lambda _: times)


def _in_tf32(model: Model) -> Model:
    def stored(_: Any, rows: Array) -> Array:
        return TF32.stored(rows)

    pipe = model.backward
    for name in ("query", "key", "value"):
        pipe = pipe.then("operands", (name, stored))
    factors = dict.fromkeys(("dcontext", "factor", "draw"), stored)
    return model.but(forward=pipe, backward=pipe).then(**factors)


# Dropout: the weights that are judged beside the gradients show which were dropped.


def _kept(model: Model) -> tuple[Array, float] | None:
    """Return which weights were kept, and the factor of these."""
    found = model.given.outputs.get("weights")
    if found is None or found.shape != model["weights"].shape:
        return None
    kept, seen = found != 0, model["weights"] > 0
    if kept[seen].all() or not kept.any():
        return None
    return kept, float(np.median(found[kept] / model["weights"][kept]))


def _with_dropout(model: Model, *, forward: float, backward: Array | float) -> Model:
    """Return the model with delta of a context of dropped weights, and weights as they are kept."""
    kept, _ = _kept(model) or (np.ones(1, np.bool_), 1.0)
    dropped = together(forward * kept * model["weights"], model["value"])
    return model.but(context=lambda _: dropped).then(
        factor=lambda _, made: made * backward, dweights=lambda _, made: made * backward
    )


def _dropped(model: Model) -> Model | None:
    found = _kept(model)
    return found and _with_dropout(model, forward=found[1], backward=found[0] * found[1])


def _undropped(model: Model) -> Model | None:
    found = _kept(model)
    return found and _with_dropout(model, forward=found[1], backward=1.0)


def _dropped_unscaled(model: Model) -> Model | None:
    found = _kept(model)
    return found and _with_dropout(model, forward=found[1], backward=found[0])


# Sinks, bias, NaN and factors of all gradients.


def _of_sinks(model: Model, change: Callable[[Model, Array], Array]) -> Model | None:
    return None if model.problem.sinks is None else model.then(dsinks=change)


def _sink_terms(model: Model) -> Array:
    """Return what each query adds to the gradient of the sinks, (B, H, L, 1)."""
    sinks = np.asarray(model.problem.sinks).reshape(1, -1, 1, 1)
    return np.asarray(-np.exp(sinks - model["lse"]) * model["delta"])


def _sinks_of_one(which: str, model: Model) -> Model | None:
    at = 0 if which == "first" else -1
    return _of_sinks(model, lambda m, _: _sink_terms(m)[:, :, [at]].sum(axis=0, keepdims=True))


def _sinks_not_summed(model: Model) -> Model | None:
    return _of_sinks(model, lambda m, _: _sink_terms(m))


def _shared_axes(model: Model) -> tuple[int, ...]:
    """Return the axes along which the bias is broadcast."""
    bias = model.problem.bias
    sizes = zip(model.problem.shape, () if bias is None else bias.shape, strict=False)
    return tuple(axis for axis, (all_, own) in enumerate(sizes) if own < all_)


def _bias_not_summed(model: Model) -> Model | None:
    return model.but(dbias=lambda m: m["dscores"]) if _shared_axes(model) else None


def _bias_of_one(which: str, model: Model) -> Model | None:
    axes = _shared_axes(model)
    if not axes:
        return None
    at = 0 if which == "first" else -1
    # Of the first axis alone: the others are summed.
    return model.but(
        dbias=lambda m: np.take(m["dscores"], [at], axes[0]).sum(axis=axes[1:], keepdims=True)
    )


def _blind_nan(model: Model) -> Model | None:
    """Let the weights of queries without keys be exp(−inf + inf)."""
    blind = np.isneginf(model["lse"])
    if not blind.any():
        return None
    return model.then(weights=lambda _, made: np.where(blind, np.nan, made))


def _hidden_nan(which: str, model: Model) -> Model | None:
    """Let what stands in hidden places be NaN, and be multiplied with 0."""
    seen = np.broadcast_to(model.run.seen, model.problem.shape)
    of_keys = which in ("keys", "values")
    hidden = np.asarray(~seen.any(axis=(1, 2) if of_keys else 3))
    if not hidden.any():
        return None
    places = hidden[:, None, :, None] if of_keys else hidden[..., None]
    name = {"keys": "key", "values": "value", "queries": "query"}.get(which, which)
    return model.then(**{name: lambda _, rows: np.where(places, np.nan, rows)})


def _mean(over: str, model: Model) -> Model | None:
    batch, heads, queries, _ = model.problem.shape
    width = model.given.dcontext.shape[3]
    counts = {"elements": batch * heads * queries * width, "queries": batch * queries}
    count = counts.get(over, batch)
    return None if count == 1 else _times(model, 1 / count)


def _loss_scale(factor: int, model: Model) -> Model:
    return _times(model, float(factor))


def _times(model: Model, factor: float) -> Model:
    return model.then(**dict.fromkeys(_RESULTS, lambda _, made: factor * made))
