"""The mistakes of a backward pass: each a name, its words, and the change of a step.

A change takes the right `Model` and parameters, and returns another model. If a mistake makes no
sense for a problem, it changes no number, and so explains nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.formats import PRECISIONS, TF32, Array
from attncli.referee.mistakes.table import Rows, words_beside
from attncli.referee.run import together

if TYPE_CHECKING:
    from attncli.referee.gradients.model import Model
    from attncli.referee.pipeline import Pipeline

_SHORT = {name: PRECISIONS[name].stored for name in ("bfloat16", "float16")}
# How many keys or queries a block has; how many terms of a sum a kernel adds at once.
_SIZES, _AT_ONCE = (16, 32, 64, 128), 64
_HIDDEN = {"keys": "key", "values": "value", "queries": "query", "dcontext": "dcontext"}
_LN2 = float(np.log(2))
_RESULTS = ("dquery", "dkey", "dvalue", "dbias", "dsinks")
_ENDS = {"first": 0, "last": -1}
_MOVED = {
    "previous": lambda rows, axis: np.roll(rows, 1, axis),
    "next": lambda rows, axis: np.roll(rows, -1, axis),
    "first": lambda rows, axis: np.broadcast_to(np.take(rows, [0], axis), rows.shape),
}
_RULES = {
    "causal": "the causal mask",
    "window": "the window",
    "mask": "the mask",
    **{name: name for name in ("key_padding_mask", "kv_lengths", "segment_ids")},
}
# What a backward pass may ignore, and the words for it.
_IGNORED = _RULES | {
    "bias": "the bias",
    "alibi": "ALiBi",
    "softcap": "the softcap",
    "rope": "the rotary embedding",
}


# Mistakes of scale, delta and lse, and rules that the backward pass ignores.


def _rescaled(model: Model, which: str, power: float) -> Model:
    factor = np.power(model["backward"].scale, power)
    names = (f"{name}_operand" for name in which.split("_and_"))
    return model.through(lambda made: made * factor, *names)


def _unnormalised(model: Model, delta: Array) -> Array:
    top = model["made"]["scores"].max(axis=-1, keepdims=True)
    return np.asarray(delta * np.exp(model["lse"] - np.where(np.isfinite(top), top, 0)))


def _other_lse(model: Model, stage: str, value: Any) -> Model:
    plain = model.by(model["forward"].but(**{stage: value}), "forward")
    return model.but(lse=lambda _: plain["lse"])


def _missing(model: Model, rule: str) -> Model:
    pipe: Pipeline = model["backward"]
    if rule in ("softcap", "rope"):
        return model.by(pipe.but(**{rule: None}), "backward")
    if rule in _RULES:
        return model.by(pipe.with_rule(rule, None), "backward")
    return model.by(pipe.but(terms={n: t for n, t in pipe.terms.items() if n != rule}), "backward")


# Heads and blocks.


def _gathered(model: Model, of: Callable[[Array], Array]) -> Model:
    """Combine the query heads of a key head, (B, G, ·, S, D), by a function other than the sum."""
    return model.but(gathered=lambda _: of)


def _other_way(rows: Array) -> Array:
    batch, groups, share, *rest = rows.shape
    return np.asarray(rows.reshape(batch, share, groups, *rest).sum(axis=1))


def _of_block(model: Model, size: int, axis: int, which: str) -> Model:
    """Sum only the first or last block: of keys (axis 3) for dquery, of queries (2) for dkey."""
    length = model.problem.shape[axis]
    start = 0 if which == "first" else (length - 1) // size * size
    kept = np.arange(length) // size == start // size
    cut = model.then(draw=lambda _, draw: draw * (kept if axis == 3 else kept[:, None]))
    step = "dquery_operand" if axis == 3 else "dkey_heads"
    return model.but(**{step: lambda _: cut[step]})


# Formats.


Stored = Callable[[Array], Array]


def _rounded_sums(model: Model, stored: Stored) -> Model:
    def times(left: Array, right: Array) -> Array:
        total: Any = 0.0
        for start in range(0, left.shape[-1], _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            total = stored(total + together(left[..., part], right[..., part, :]))
        return np.asarray(total)

    return model.but(times=lambda _: times)


def _in_tf32(model: Model) -> Model:
    pipe = model["backward"]
    for name in ("query", "key", "value"):
        pipe = pipe.then("operands", (name, lambda _, rows: TF32.stored(rows)))
    both = model.by(pipe, "forward", "backward")
    return both.through(TF32.stored, "dcontext", "factor", "draw")


def _dropped(model: Model, backward: str) -> Model:
    """Drop the weights that are 0 in the given file of weights."""
    found, weights = model["outputs"].get("weights"), model["weights"]
    if found is None or found.shape != weights.shape or not found.any():
        return model
    kept = found != 0
    factor = float(np.median(found[kept] / weights[kept]))
    dropped = together(factor * kept * weights, model["value"])
    used = {"none": 1.0, "unscaled": kept, "both": factor * kept}[backward]
    other = model.but(context=lambda _: dropped)
    return other.through(lambda made: made * used, "factor", "dweights")


# Sinks, NaN and factors of all gradients.


def _sinks_of_one(model: Model, at: int) -> Model:
    return model.but(dsinks=lambda m: m["sink_terms"][:, :, [at]].sum(axis=0, keepdims=True))


def _hidden_nan(model: Model, name: str) -> Model:
    """Put NaN into hidden rows; they are multiplied by 0."""
    of_keys = name in ("key", "value")
    seen = np.broadcast_to(model.run.seen, model.problem.shape)
    seen = np.expand_dims(seen.any(axis=(1, 2) if of_keys else 3), (1, 3) if of_keys else 3)
    return model.through(lambda rows: np.where(seen, rows, np.nan), name)


def _mean(model: Model, over: str) -> Model:
    batch, _, queries, _ = model.problem.shape
    counts = {"elements": model["dcontext"].size, "queries": batch * queries}
    return _times(model, 1 / counts.get(over, batch))


def _times(model: Model, factor: float) -> Model:
    return model.through(lambda made: factor * made, *_RESULTS)


def _spaced(*names: str) -> dict[tuple[str, str], str]:
    """Return the names as parameters, with their words: the names without underscores."""
    return {(name, name.replace("_", " ")): name for name in names}


ROWS = Rows(words_beside(__file__))
factors = _spaced("dquery", "dkey", "dquery_and_dkey")
ROWS.family("scale_missing_in_{}", partial(_rescaled, power=-1.0), factors)
ROWS.family("scale_twice_in_{}", partial(_rescaled, power=1.0), factors)
ROWS.add("delta_missing", lambda m: m.through(np.zeros_like, "delta"))
ROWS.add("delta_unnormalised", lambda m: m.then(delta=_unnormalised))
ROWS.family(
    "delta_of_{}_batch_entry", lambda m, move: m.through(lambda d: move(d, 0), "delta"), _MOVED
)
ROWS.family("delta_of_{}_head", lambda m, move: m.through(lambda d: move(d, 1), "delta"), _MOVED)
ROWS.add("dlse_ignored", lambda m: m.then(delta=lambda m, d: d + m["dlse"]))
ROWS.add("dlse_added", lambda m: m.then(delta=lambda m, d: d + 2 * m["dlse"]))
ROWS.family("{}_missing_in_backward", _missing, {pair: pair[0] for pair in _IGNORED.items()})
ROWS.add("softcap_derivative_missing", lambda m: m.but(draw=lambda m: m["dscores"]))
ROWS.add("lse_in_base_2", lambda m: m.through(lambda lse: lse / _LN2, "lse"))
ROWS.add("lse_read_as_base_2", lambda m: m.through(lambda lse: lse * _LN2, "lse"))
ROWS.add("lse_of_unscaled_scores", _other_lse, "scale", 1.0)
ROWS.add("lse_saved_without_sinks", _other_lse, "sinks", None)
ROWS.add("heads_of_a_group_averaged", _gathered, lambda rows: rows.mean(axis=2))
ROWS.family("{}_head_of_a_group_only", lambda m, at: _gathered(m, lambda r: r[:, :, at]), _ENDS)
ROWS.add("heads_grouped_the_other_way", _gathered, _other_way)
ROWS.add(
    "dkey_and_dvalue_exchanged",
    lambda m: m.but(dkey=lambda _: m["dvalue"], dvalue=lambda _: m["dkey"]),
)
for which in _ENDS:
    of_keys, of_queries = (partial(_of_block, axis=axis, which=which) for axis in (3, 2))
    ROWS.family(f"dquery_of_{which}_block_of_{{}}_only", of_keys, _SIZES)
    ROWS.family(f"dkey_of_{which}_block_of_{{}}_only", of_queries, _SIZES)
ROWS.family("backward_weights_in_{}", lambda m, stored: m.through(stored, "factor"), _SHORT)
ROWS.family("dscores_in_{}", lambda m, stored: m.through(stored, "draw"), _SHORT)
ROWS.family(
    "weights_and_dscores_in_{}", lambda m, stored: m.through(stored, "factor", "draw"), _SHORT
)
ROWS.family("sums_in_{}", _rounded_sums, _SHORT)
ROWS.add("factors_in_tf32", _in_tf32)
ROWS.add("dropout_ignored_in_backward", _dropped, "none")
ROWS.add("dropout_scale_missing_in_backward", _dropped, "unscaled")
ROWS.add("dropout_in_both_passes", _dropped, "both")
ROWS.add("rope_not_undone", lambda m: m.but(back=lambda _: 0))
ROWS.add("rope_undone_the_wrong_way", lambda m: m.but(back=lambda _: 1))
ROWS.add("dsinks_zero", lambda m: m.through(np.zeros_like, "dsinks"))
ROWS.add("dsinks_negated", lambda m: m.through(np.negative, "dsinks"))
ROWS.family("dsinks_of_{}_query_only", _sinks_of_one, _ENDS)
ROWS.add("dsinks_not_summed", lambda m: m.but(dsinks=lambda m: m["sink_terms"]))
ROWS.add("dbias_not_summed", lambda m: m.but(dbias=lambda m: m["dscores"]))
ROWS.add(
    "nan_from_queries_without_keys",
    lambda m: m.then(weights=lambda m, w: np.where(np.isneginf(m["lse"]), np.nan, w)),
)
ROWS.family("nan_from_hidden_{}", _hidden_nan, _HIDDEN)
ROWS.family("mean_over_{}", _mean, _spaced("elements", "queries", "batch_entries"))
ROWS.family("loss_scale_{}_not_undone", _times, [2**n for n in range(1, 25)])
