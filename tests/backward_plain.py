"""A backward pass in plain NumPy and float64 that can make one mistake, which it is told by name.

Nothing here uses the package: tests measure it. `CASES` has each name with the rules of a problem
in which it shows.
"""

from __future__ import annotations

import numpy as np
from referee.plain import as_bfloat16, as_float16, rotate

__all__ = ["ALIKE", "CASES", "Problem", "backward"]

FORMATS = {"bfloat16": as_bfloat16, "float16": as_float16}


class Problem:
    """A random problem with some rules, by the names of `attncli.attention`."""

    def __init__(self, seed, *, dtype="float32", dlse=False, shape=None, **rules):
        random = np.random.default_rng(seed)
        self.batch, self.heads, self.groups, self.queries, self.keys, self.width = shape or (
            *(2, 4, 2, 40, 40, 16),
        )
        rows = (self.batch, self.heads, self.queries)
        wide = self.batch, self.groups, self.keys
        short = FORMATS.get(dtype, lambda array: np.asarray(array, dtype).astype("f8"))
        self.query = short(random.normal(size=(*rows, self.width)))
        self.key = short(random.normal(size=(*wide, self.width)))
        self.value = short(random.normal(size=(*wide, self.width)))
        self.dcontext = short(random.normal(size=(*rows, self.width)))
        self.dlse = random.normal(size=rows) if dlse else np.zeros(rows)
        self.rules = {
            name: rule(random, self) if callable(rule) else rule for name, rule in rules.items()
        }
        self.dtype, self.short, self.has_dlse = dtype, short, dlse

    @property
    def scale(self):
        return self.rules.get("scale", self.width**-0.5)

    def offsets(self):
        offset = self.rules.get("query_offset", 0)
        return np.broadcast_to(offset, self.batch)[:, None, None, None]


def hidden(p, slip):
    """Return which keys the backward pass hides, (B, H, L, S)."""
    offsets = p.offsets()
    behind = np.arange(p.queries)[:, None] + offsets - np.arange(p.keys)
    found = np.zeros((p.batch, p.heads, p.queries, p.keys), bool)
    if "causal" in p.rules and slip != "causal_missing_in_backward":
        found |= behind < 0
    if "window" in p.rules and slip != "window_missing_in_backward":
        left, right = p.rules["window"]
        found |= (behind > left) | (-behind > right)
    if "mask" in p.rules and slip != "mask_missing_in_backward":
        found |= ~p.rules["mask"]
    if "kv_lengths" in p.rules and slip != "kv_lengths_missing_in_backward":
        found |= np.arange(p.keys) >= np.array(p.rules["kv_lengths"])[:, None, None, None]
    if "query_lengths" in p.rules:
        last = np.array(p.rules["query_lengths"])[:, None, None, None]
        found |= np.arange(p.queries)[:, None] >= last
    return found


def scores_of(p, slip, scale):
    """Return scores, and the derivative of the softcap."""
    share = p.heads // p.groups
    query, key = p.query, p.key
    if "rope" in p.rules and slip != "rope_missing_in_backward":
        query = rotate(query, np.arange(p.queries), p.rules["rope"])
        key = rotate(key, np.arange(p.keys), p.rules["rope"])
    if slip == "factors_in_tf32":
        query, key = tf32(query), tf32(key)
    scores = scale * query @ np.repeat(key, share, 1).swapaxes(-1, -2)
    slope = 1.0
    if "softcap" in p.rules and slip != "softcap_missing_in_backward":
        scores = p.rules["softcap"] * np.tanh(scores / p.rules["softcap"])
        slope = 1 - (scores / p.rules["softcap"]) ** 2
    if "bias" in p.rules and slip != "bias_missing_in_backward":
        scores = scores + p.rules["bias"]
    if "alibi_slopes" in p.rules and slip != "alibi_missing_in_backward":
        far = np.abs(np.arange(p.queries)[:, None] - np.arange(p.keys))
        scores = scores - np.asarray(p.rules["alibi_slopes"])[:, None, None] * far
    return np.where(hidden(p, slip), -np.inf, scores), slope, (query, key)


def lse_of(p, scores, *, sinks=True):
    columns = [scores]
    if "sinks" in p.rules and sinks:
        sink = np.asarray(p.rules["sinks"])[:, None, None]
        columns.append(np.broadcast_to(sink, (*scores.shape[:3], 1)))
    return np.logaddexp.reduce(np.concatenate(columns, -1), axis=-1, keepdims=True)


def tf32(array):
    bits = np.asarray(array, "f4").view("u4")
    return ((bits + 0xFFF + (bits >> 13 & 1)) & 0xFFFFE000).view("f4").astype("f8")


def backward(p, slip=""):
    """Return the gradients by name, and with dropout the outputs, too."""
    with np.errstate(all="ignore"):
        return _backward(p, slip)


def _backward(p, slip):
    share, scale = p.heads // p.groups, p.scale
    # A mistake in the format of factors is made in both passes.
    scores, _, _ = scores_of(p, slip if slip == "factors_in_tf32" else "", scale)
    lse = lse_of(p, scores)
    if slip == "lse_of_unscaled_scores":
        lse = lse_of(p, scores_of(p, "", 1.0)[0])
    if slip == "lse_saved_without_sinks":
        lse = lse_of(p, scores, sinks=False)
    value, dcontext = np.repeat(p.value, share, 1), p.dcontext
    if slip == "factors_in_tf32":
        value, dcontext = tf32(value), tf32(dcontext)
    whole = np.exp(scores - np.where(np.isneginf(lse_of(p, scores)), 0, lse_of(p, scores)))
    outputs, kept = {}, 1.0
    if slip.startswith("dropout"):
        mask = np.random.default_rng(0).random(whole.shape) > 0.25
        kept = mask / 0.75
        outputs = {"weights": whole * kept}
    context = (whole * kept) @ value
    if outputs:
        outputs["context"] = context
    again, slope, (query, key) = scores_of(p, slip, scale)
    factor = {"lse_in_base_2": 1 / np.log(2), "lse_read_as_base_2": np.log(2)}.get(slip, 1.0)
    if slip == "nan_from_queries_without_keys":
        weights = np.exp(again - factor * lse)
    else:
        weights = np.exp(again - np.where(np.isneginf(lse), np.inf, factor * lse))
    if slip == "nan_from_hidden_dcontext":
        dcontext = np.where(hidden(p, "").all(-1, keepdims=True), np.nan, dcontext)
    if slip == "dropout_ignored_in_backward":
        kept = 1.0
    if slip == "dropout_scale_missing_in_backward":
        kept = mask * 1.0
    delta = (dcontext * context).sum(-1, keepdims=True)
    delta = changed_delta(p, slip, delta, scores, lse)
    if slip != "dlse_ignored":
        delta = delta - p.dlse[..., None] * (-1 if slip == "dlse_added" else 1)
    dweights = kept * (dcontext @ value.swapaxes(-1, -2))
    dscores = weights * (dweights - delta)
    draw = dscores if slip == "softcap_derivative_missing" else dscores * slope
    used = weights * kept
    for name in ("bfloat16", "float16"):
        used = FORMATS[name](used) if slip in both("backward_weights", name) else used
        draw = FORMATS[name](draw) if slip in both("dscores", name) else draw
    if slip == "factors_in_tf32":
        used, draw = tf32(used), tf32(draw)
    made = products(p, slip, (query, key), (used, draw, dcontext))
    made |= of_rules(p, slip, dscores, lse, delta)
    return {**outputs, **of_all(p, slip, made)}


def both(what, name):
    return {f"{what}_in_{name}", f"weights_and_dscores_in_{name}"}


def changed_delta(p, slip, delta, scores, lse):
    if slip == "delta_missing":
        return 0 * delta
    if slip == "delta_unnormalised":
        return delta * np.exp(lse - scores.max(-1, keepdims=True))
    for axis, name in ((0, "batch_entry"), (1, "head")):
        for turn, which in ((1, "previous"), (-1, "next")):
            if slip == f"delta_of_{which}_{name}":
                return np.roll(delta, turn, axis)
        if slip == f"delta_of_first_{name}":
            return np.repeat(delta.take([0], axis), delta.shape[axis], axis)
    return delta


def blocks(slip, name, rows, length):
    """Zero all but the first or the last block of the terms that are summed."""
    for size in (16, 32):
        start = (length - 1) // size * size
        if slip == f"{name}_of_first_block_of_{size}_only":
            rows = rows * (np.arange(length) < size)
        if slip == f"{name}_of_last_block_of_{size}_only":
            rows = rows * (np.arange(length) >= start)
    return rows


def multiplied(slip, left, right):
    for name, short in FORMATS.items():
        if slip == f"sums_in_{name}":
            total = 0.0
            for start in range(0, left.shape[-1], 64):
                part = slice(start, start + 64)
                total = short(total + left[..., part] @ right[..., part, :])
            return total
    return left @ right


def products(p, slip, operands, factors):
    share, scale = p.heads // p.groups, p.scale
    (query, key), (used, draw, dcontext) = operands, factors
    over_keys = blocks(slip, "dquery", draw, p.keys)
    over_queries = blocks(slip, "dkey", draw.swapaxes(-1, -2), p.queries)
    dquery = scale * multiplied(slip, over_keys, np.repeat(key, share, 1))
    dkey = scale * multiplied(slip, over_queries, query)
    dvalue = multiplied(slip, used.swapaxes(-1, -2), dcontext)
    for name in ("dquery", "dkey", "dquery_and_dkey"):
        times = {f"scale_missing_in_{name}": 1 / scale, f"scale_twice_in_{name}": scale}
        if slip in times:
            dquery = dquery * (times[slip] if "dquery" in name else 1)
            dkey = dkey * (times[slip] if "dkey" in name else 1)
    if "rope" in p.rules and slip not in ("rope_not_undone", "rope_missing_in_backward"):
        back = 1 if slip == "rope_undone_the_wrong_way" else -1
        dquery = rotate(dquery, back * np.arange(p.queries), p.rules["rope"])
        dkey = rotate(dkey, back * np.arange(p.keys), p.rules["rope"])
    dkey, dvalue = (gathered(p, slip, rows) for rows in (dkey, dvalue))
    if slip == "dkey_and_dvalue_exchanged":
        dkey, dvalue = dvalue, dkey
    return {"dquery": dquery, "dkey": dkey, "dvalue": dvalue}


def gathered(p, slip, rows):
    share = p.heads // p.groups
    split = rows.reshape(p.batch, p.groups, share, *rows.shape[2:])
    if slip == "first_head_of_a_group_only":
        return split[:, :, 0]
    if slip == "last_head_of_a_group_only":
        return split[:, :, -1]
    if slip == "heads_of_a_group_averaged":
        return split.mean(axis=2)
    if slip == "heads_grouped_the_other_way":
        return rows.reshape(p.batch, share, p.groups, *rows.shape[2:]).sum(axis=1)
    return split.sum(axis=2)


def of_rules(p, slip, dscores, lse, delta):
    made = {}
    if "sinks" in p.rules:
        terms = -np.exp(np.asarray(p.rules["sinks"])[:, None, None] - lse) * delta
        dsinks = terms.sum(axis=(0, 2, 3))
        dsinks = {
            "dsinks_zero": 0 * dsinks,
            "dsinks_negated": -dsinks,
            "dsinks_of_first_query_only": terms[:, :, 0, 0].sum(axis=0),
            "dsinks_of_last_query_only": terms[:, :, -1, 0].sum(axis=0),
            "dsinks_not_summed": terms[..., 0],
        }.get(slip, dsinks)
        made["dsinks"] = dsinks
    if "bias" in p.rules:
        shape = (1,) * (4 - p.rules["bias"].ndim) + p.rules["bias"].shape
        axes = [n for n, size in enumerate(shape) if size == 1 < dscores.shape[n]]
        dbias = dscores.sum(axis=tuple(axes), keepdims=True).reshape(p.rules["bias"].shape)
        if slip == "dbias_not_summed":
            dbias = dscores
        made["dbias"] = dbias
    return made


def of_all(p, slip, made):
    counts = {
        "mean_over_elements": p.dcontext.size,
        "mean_over_queries": p.batch * p.queries,
        "mean_over_batch_entries": p.batch,
    }
    factor = 1 / counts.get(slip, 1)
    if slip.startswith("loss_scale"):
        factor = float(slip.split("_")[2])
    return {name: factor * array for name, array in made.items()}


def of_sinks(random, p):
    return random.normal(size=p.heads) + 1


def a_mask(random, p):
    return random.random((p.batch, 1, p.queries, p.keys)) < 0.8


def a_bias(random, p):
    return random.normal(size=(p.heads, p.queries, p.keys)).astype("f4").astype("f8")


_PADDED = {"kv_lengths": [25, 31], "query_lengths": [30, 40]}
_LARGER = {"shape": (1, 2, 1, 140, 150, 16)}
_BLOCKS = {"shape": (1, 2, 2, 56, 56, 16)}
# The names that make the same numbers.
ALIKE = [{"nan_from_queries_without_keys", "nan_from_hidden_dcontext"}]
CASES = {
    **{f"scale_missing_in_{n}": {} for n in ("dquery", "dkey", "dquery_and_dkey")},
    **{f"scale_twice_in_{n}": {"causal": True} for n in ("dquery", "dkey", "dquery_and_dkey")},
    "delta_missing": {},
    "delta_unnormalised": {"causal": True},
    **{
        f"delta_of_{n}_batch_entry": {"shape": (3, 2, 2, 40, 40, 16)}
        for n in ("previous", "next", "first")
    },
    **{f"delta_of_{n}_head": {} for n in ("previous", "next", "first")},
    "dlse_ignored": {"dlse": True},
    "dlse_added": {"dlse": True},
    "causal_missing_in_backward": {"causal": True},
    "window_missing_in_backward": {"window": (5, 3)},
    "mask_missing_in_backward": {"mask": a_mask},
    "kv_lengths_missing_in_backward": {"kv_lengths": [25, 31]},
    "bias_missing_in_backward": {"bias": a_bias},
    "alibi_missing_in_backward": {"alibi_slopes": [0.5, 0.25, 0.125, 0.06]},
    "softcap_missing_in_backward": {"softcap": 2.0},
    "softcap_derivative_missing": {"softcap": 2.0},
    "rope_missing_in_backward": {"rope": "half"},
    "lse_in_base_2": {},
    "lse_read_as_base_2": {"causal": True},
    "lse_of_unscaled_scores": {},
    "lse_saved_without_sinks": {"sinks": of_sinks},
    "heads_of_a_group_averaged": {},
    "first_head_of_a_group_only": {},
    "last_head_of_a_group_only": {},
    "heads_grouped_the_other_way": {},
    "dkey_and_dvalue_exchanged": {},
    **{f"dquery_of_{n}_block_of_{s}_only": _BLOCKS for n in ("first", "last") for s in (16, 32)},
    **{f"dkey_of_{n}_block_of_{s}_only": _BLOCKS for n in ("first", "last") for s in (16, 32)},
    **{f"backward_weights_in_{n}": {} for n in FORMATS},
    **{f"dscores_in_{n}": {} for n in FORMATS},
    **{f"weights_and_dscores_in_{n}": {} for n in FORMATS},
    **{f"sums_in_{n}": _LARGER for n in FORMATS},
    "factors_in_tf32": {},
    "dropout_ignored_in_backward": {},
    "dropout_scale_missing_in_backward": {},
    "dropout_in_both_passes": {},
    "rope_not_undone": {"rope": "interleaved"},
    "rope_undone_the_wrong_way": {"rope": "half"},
    "dsinks_zero": {"sinks": of_sinks},
    "dsinks_negated": {"sinks": of_sinks},
    "dsinks_of_first_query_only": {"sinks": of_sinks},
    "dsinks_of_last_query_only": {"sinks": of_sinks},
    "dsinks_not_summed": {"sinks": of_sinks},
    "dbias_not_summed": {"bias": a_bias},
    "nan_from_queries_without_keys": _PADDED,
    "nan_from_hidden_dcontext": _PADDED,
    "mean_over_elements": {},
    "mean_over_queries": {},
    "mean_over_batch_entries": {},
    "loss_scale_1024_not_undone": {},
    "loss_scale_65536_not_undone": {"causal": True},
}
