"""Scale, exchanged inputs, score functions, softmax, softcap, bias, ALiBi and sinks."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.plain import log_sum, softmax

ROOT = 8**-0.5


def _beside_maximum(g):
    return np.exp(g.scores() - g.scores().max(-1, keepdims=True)).sum(-1)


family(
    "scale",
    {
        "passes": lambda g: g.attend(),
        "unscaled": lambda g: g.attend(scale=1),
        "scores_negated": lambda g: g.attend(scale=-ROOT),
        "one_over_width": lambda g: g.attend(scale=1 / 8),
        "embedding_scale": lambda g: g.attend(scale=1 / np.sqrt(32)),
        "scale_inverted": lambda g: g.attend(scale=np.sqrt(8)),
        "scale_of_one_side": lambda g: g.attend(scale=8**-0.25),
        "length_scale": lambda g: g.attend(scale=1 / np.sqrt(6)),
        "value_scale": lambda g: g.attend(scale=1 / np.sqrt(5)),
        "scale_after_softmax": lambda g: softmax(g.scores(scale=1)) / np.sqrt(8) @ g.v,
        "log2e_without_exp2": lambda g: g.attend(scale=np.log2(np.e) * ROOT),
        "unscaled+softmax_base_2": lambda g: g.attend(scale=np.log(2)),
        "another_scale @ 0.001": lambda g: g.attend(scale=0.001),
        "another_scale @ 0.29": lambda g: g.attend(scale=0.29),
        "another_scale @ 12": lambda g: g.attend(scale=12),
        "another_scale @ negative": lambda g: g.attend(scale=-0.31),
        "another_scale @ weights and lse": lambda g: {
            "weights": softmax(g.scores(scale=0.41)),
            "lse": log_sum(g.scores(scale=0.41)),
        },
        "unscaled @ weights": lambda g: {"weights": g.weights(scale=1)},
        "unscaled|lse_unscaled @ lse": lambda g: {"lse": log_sum(g.scores(scale=1))},
        "scores_zero": lambda g: np.broadcast_to(g.v.mean(-2, keepdims=True), (*g.q.shape[:3], 5)),
    },
    shapes=((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 5)),
)
for dtype in ("float64", "float16", "bfloat16"):
    family(
        f"scale/{dtype}",
        {
            "passes": lambda g: g.attend(),
            "unscaled": lambda g: g.attend(scale=1),
            "another_scale": lambda g: g.attend(scale=0.29),
        },
        dtype=dtype,
        shapes=(2, 4, 12, 16),
    )
family(
    "scale/given",
    {
        "scale_ignored": lambda g: g.attend(),
        "scale_twice": lambda g: g.attend(scale=0.49),
        "unscaled": lambda g: g.attend(scale=1),
    },
    options={"scale": 0.7},
)
family(
    "scale/wide",
    {
        "padded_width_scale": lambda g: g.attend(scale=1 / 8),
        "unscaled @ grouped": lambda g: g.attend(scale=1),
    },
    shapes=((2, 4, 6, 40), (2, 2, 9, 40)),
)
family(
    "scale/slices",
    {"unscaled": lambda g: g.attend(scale=1), "embedding_scale": lambda g: g.attend(scale=1 / 4)},
    shapes=(1, 2, 190, 8),
)
family(
    "scale/2-D",
    {
        "unscaled": lambda g: g.attend(scale=1),
        "one_over_width": lambda g: g.attend(scale=1 / 8),
        "another_scale": lambda g: g.attend(scale=0.6),
    },
    shapes=((7, 8), (9, 8), (9, 5)),
)

family(
    "inputs",
    {
        "query_key_exchanged": lambda g: g.attend(q=g.k, k=g.q),
        "key_value_exchanged": lambda g: g.attend(k=g.v, v=g.k),
        "query_value_exchanged": lambda g: g.attend(q=g.v, v=g.q),
        "key_as_value": lambda g: g.attend(v=g.k),
        "query_as_key": lambda g: g.attend(k=g.q),
        "value_as_key": lambda g: g.attend(k=g.v),
        "key_as_query": lambda g: g.attend(q=g.k),
        "value_as_query": lambda g: g.attend(q=g.v),
        "query_as_value": lambda g: g.attend(v=g.q),
        "inputs_in_the_order_key_value_query": lambda g: g.attend(q=g.k, k=g.v, v=g.q),
        "inputs_in_the_order_value_query_key": lambda g: g.attend(q=g.v, k=g.q, v=g.k),
        "query_added": lambda g: g.attend() + g.q,
        "value_added": lambda g: g.attend() + g.v,
        "context_is_key": lambda g: g.inputs[1],
        "context_is_value": lambda g: g.inputs[2],
    },
)
family(
    "inputs/other shapes",
    {"key_as_value": lambda g: g.attend(v=g.k)},
    shapes=((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)),
)
family(
    "inputs/other rows",
    {"key_as_query": lambda g: g.attend(q=g.k)},
    shapes=((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)),
)
family(
    "inputs/causal",
    {
        "query_key_exchanged": lambda g: g.attend(g.tril, q=g.k, k=g.q),
        "key_value_exchanged": lambda g: g.attend(g.tril, k=g.v, v=g.k),
    },
    options={"causal": True},
    shapes=(2, 4, 9, 8),
)

family(
    "softmax",
    {
        "softmax_over_queries": lambda g: softmax(g.scores(), -2) @ g.v,
        "softmax_over_heads": lambda g: softmax(g.scores(), 1) @ g.v,
        "softmax_over_batch": lambda g: softmax(g.scores(), 0) @ g.v,
        "softmax_over_all": lambda g: softmax(g.scores(), (-2, -1)) @ g.v,
        "softmax_base_2": lambda g: softmax(g.scores() * np.log(2)) @ g.v,
        "softmax_twice": lambda g: softmax(softmax(g.scores())) @ g.v,
        "softmax_left_out": lambda g: g.scores() @ g.v,
        "softmax_exponentials": lambda g: np.exp(g.scores()) @ g.v,
        "scores_divided_by_their_sum": lambda g: (
            g.scores() / g.scores().sum(-1, keepdims=True) @ g.v
        ),
        "sigmoid": lambda g: 1 / (1 + np.exp(-g.scores())) @ g.v,
        "softmax_not_normalised": lambda g: (
            np.exp(g.scores() - g.scores().max(-1, keepdims=True)) @ g.v
        ),
        "weights_transposed": lambda g: softmax(g.scores()).swapaxes(-1, -2) @ g.v,
        "log_softmax": lambda g: np.log(softmax(g.scores())) @ g.v,
        "relu": lambda g: np.maximum(g.scores(), 0) @ g.v,
        "relu_divided_by_length": lambda g: np.maximum(g.scores(), 0) / 6 @ g.v,
        "sinks_unasked": lambda g: g.attend(sinks=np.zeros(4)),
        "values_summed": lambda g: (
            softmax(g.scores()).sum(-1, keepdims=True) * g.v.sum(-2, keepdims=True)
        ),
        "softmax_over_queries @ weights": lambda g: {"weights": softmax(g.scores(), -2)},
        "weights_averaged_before_values": lambda g: (
            softmax(g.scores()).mean(1, keepdims=True) @ g.v
        ),
    },
)
family(
    "softmax/causal",
    {
        "softmax_over_queries": lambda g: softmax(np.where(g.tril, g.scores(), -np.inf), -2) @ g.v,
        "softmax_over_heads": lambda g: (
            np.nan_to_num(softmax(np.where(g.tril, g.scores(), -np.inf), 1)) @ g.v
        ),
        "softmax_base_2": lambda g: g.attend(g.tril, scores=g.scores() * np.log(2)),
        "hidden_after_softmax": lambda g: (softmax(g.scores()) * g.tril) @ g.v,
        "filled_after_softmax|scores_zero+filled_after_softmax": lambda g: (
            np.where(g.tril, softmax(g.scores()), -1e9) @ g.v
        ),
        "relu": lambda g: np.where(g.tril, np.maximum(g.scores(), 0), 0) @ g.v,
        "sigmoid": lambda g: np.where(g.tril, 1 / (1 + np.exp(-g.scores())), 0) @ g.v,
    },
    options={"causal": True},
    shapes=(2, 4, 9, 8),
)
family(
    "softmax/square",
    {
        "denominators_of_other_rows": lambda g: (
            np.exp(g.scores()) / np.exp(g.scores()).sum(-1) @ g.v
        ),
        "maxima_of_other_rows": lambda g: _maxima_of_other_rows(g.scores()) @ g.v,
        "log_softmax": lambda g: np.log(softmax(g.scores())) @ g.v,
        "weights_are_logarithms": lambda g: {"weights": np.log(softmax(g.scores()))},
        "products_of_sums": lambda g: softmax(g.q.sum(1)[:, None] * g.k.sum(1) * ROOT) @ g.v,
    },
    shapes=((7, 8), (7, 8), (7, 5)),
)


def _maxima_of_other_rows(scores):
    powers = np.exp(scores - scores.max(-1))
    return powers / powers.sum(-1, keepdims=True)


def _without_maximum(g, dtype, *, last):
    powers = np.exp(g.scores().astype(dtype))
    total = powers.sum(-1, keepdims=True)
    v = g.v.astype("f4")
    return (powers.astype("f4") @ v) / total if last else (powers / total).astype("f4") @ v


family(
    "softmax/overflow",
    {
        "softmax_without_maximum": lambda g: _without_maximum(g, "f4", last=False),
        "softmax_without_maximum_divided_last": lambda g: _without_maximum(g, "f4", last=True),
    },
    shapes=(1, 2, 40, 8),
    change=lambda a: [6 * a[0], 6 * a[1], 30 * a[2]],
)
family(
    "softmax/overflow float16",
    {"softmax_without_maximum": lambda g: _without_maximum(g, "f2", last=False)},
    dtype="float16",
    change=lambda a: [8 * a[0], a[1], a[2]],
)

family(
    "softmax/denominator",
    {
        "epsilon_1e_2": lambda g: _denominator(g, lambda p: p.sum(-1) + 1e-2),
        "epsilon_1e_5": lambda g: _denominator(g, lambda p: p.sum(-1) + 1e-5),
        "epsilon_added": lambda g: _denominator(g, lambda p: p.sum(-1) + 0.1),
        "sinks_unasked_unshifted": lambda g: _denominator(g, lambda p: p.sum(-1) + 1),
        "last_key_uncounted": lambda g: _denominator(g, lambda p: p[..., :-1].sum(-1)),
        "first_key_uncounted": lambda g: _denominator(g, lambda p: p[..., 1:].sum(-1)),
    },
    dtype="float64",
)


def _denominator(g, total):
    powers = np.exp(g.scores() - g.scores().max(-1, keepdims=True))
    return powers / total(powers)[..., None] @ g.v


CAP = 0.8


def _capped(scores, cap=CAP):
    return cap * np.tanh(scores / cap)


def _causal(g, scores):
    return g.attend(g.tril, scores=scores)


family(
    "softcap",
    {
        "softcap_missing": lambda g: _causal(g, g.scores() + g["bias"]),
        "softcap_after_mask": lambda g: (
            softmax(_capped(np.where(g.tril, g.scores() + g["bias"], -np.inf))) @ g.v
        ),
        "softcap_after_bias|bias_before_softcap": lambda g: _causal(
            g, _capped(g.scores() + g["bias"])
        ),
        "softcap_before_scale": lambda g: _causal(g, _capped(g.scores(scale=1)) * ROOT + g["bias"]),
        "softcap_undivided": lambda g: _causal(g, CAP * np.tanh(g.scores()) + g["bias"]),
        "softcap_unmultiplied": lambda g: _causal(g, np.tanh(g.scores() / CAP) + g["bias"]),
        "softcap_clipped": lambda g: _causal(g, np.clip(g.scores(), -CAP, CAP) + g["bias"]),
        "another_softcap": lambda g: _causal(g, _capped(g.scores(), 2.3) + g["bias"]),
    },
    options=lambda r: {"softcap": CAP, "bias": r.normal(size=(6, 6)), "causal": True},
)
family(
    "softcap/unasked",
    {"softcap_unasked": lambda g: g.attend(cap=0.7)},
    shapes=(1, 2, 12, 8),
)
family(
    "bias",
    {
        "passes": lambda g: _causal(g, g.scores() + g["bias"]),
        "bias_ignored": lambda g: _causal(g, g.scores()),
        "bias_subtracted": lambda g: _causal(g, g.scores() - g["bias"]),
        "bias_twice": lambda g: _causal(g, g.scores() + 2 * g["bias"]),
        "bias_multiplied": lambda g: _causal(g, g.scores() * g["bias"]),
        "bias_transposed": lambda g: _causal(g, g.scores() + g["bias"].T),
        "bias_scaled": lambda g: _causal(g, (g.scores(scale=1) + g["bias"]) * ROOT),
        "bias_of_next_key": lambda g: _causal(g, g.scores() + _beside(g["bias"], -1)),
        "bias_of_previous_key": lambda g: _causal(g, g.scores() + _beside(g["bias"], 1)),
        "bias_of_next_query": lambda g: _causal(g, g.scores() + np.roll(g["bias"], -1, 0)),
        "bias_of_first_query": lambda g: _causal(g, g.scores() + g["bias"][:1]),
        "bias_after_softmax": lambda g: (
            (softmax(np.where(g.tril, g.scores(), -np.inf)) + g["bias"]) @ g.v
        ),
        "another_bias_factor": lambda g: _causal(g, g.scores() + 0.1 * g["bias"]),
    },
    options=lambda r: {"bias": r.normal(size=(6, 6)), "causal": True},
)


def _beside(table, step):
    """Return the numbers so many places away in memory."""
    return np.roll(table.ravel(), step).reshape(table.shape)


family(
    "bias/heads",
    {
        "bias_of_first_head": lambda g: g.attend(add=g["bias"][:1]),
        "inputs_misplaced": lambda g: g.attend(add=g["bias"][[0, 3, 2, 1]]),
        "bias_ignored+unscaled": lambda g: g.attend(scale=1),
    },
    options=lambda r: {"bias": r.normal(size=(4, 6, 6))},
)
family(
    "bias/memory",
    {
        "bias_viewed_heads_first": lambda g: g.attend(
            add=g["bias"].transpose(0, 2, 3, 1).reshape(2, 4, 6, 6)
        ),
        "bias_viewed_heads_last": lambda g: g.attend(
            add=g["bias"].reshape(2, 6, 6, 4).transpose(0, 3, 1, 2)
        ),
    },
    options=lambda r: {"bias": r.normal(size=(2, 4, 6, 6))},
)

SLOPES = np.array([0.5, 0.25, 0.125, 1.0])
_S = SLOPES[:, None, None]
PAPER = 2.0 ** -(2 * np.arange(1, 5))


def _far(g, offset=0):
    return np.abs(g.i + offset - g.j)


family(
    "alibi",
    {
        "passes": lambda g: g.attend(add=-_S * _far(g)),
        "alibi_ignored": lambda g: g.attend(),
        "alibi_signed|alibi_positional": lambda g: g.attend(add=_S * g.j),
        "alibi_signed_backwards": lambda g: g.attend(add=-_S * g.j),
        "alibi_added": lambda g: g.attend(add=_S * _far(g)),
        "alibi_slopes_reversed": lambda g: g.attend(add=-_S[::-1] * _far(g)),
        "alibi_scaled": lambda g: g.attend(add=-_S * _far(g) * ROOT),
        "alibi_slope_of_first_head": lambda g: g.attend(add=-_S[0] * _far(g)),
        "another_alibi_factor": lambda g: g.attend(add=-0.35 * _S * _far(g)),
        "inputs_misplaced": lambda g: g.attend(add=-_S[[0, 3, 2, 1]] * _far(g)),
        "alibi_ignored+unscaled": lambda g: g.attend(scale=1),
    },
    options={"alibi_slopes": SLOPES},
)
family(
    "alibi/offset",
    {"alibi_without_offset": lambda g: g.attend(add=-_S * _far(g))},
    options={"alibi_slopes": SLOPES, "query_offset": 2},
)
family(
    "alibi/paper",
    {
        "alibi_slopes_from_zero": lambda g: g.attend(add=-_h(4 * PAPER) * _far(g)),
        "alibi_slopes_halved": lambda g: g.attend(add=-_h(2.0 ** -np.arange(1, 5)) * _far(g)),
    },
    options={"alibi_slopes": True},
)
family(
    "alibi/6 heads",
    {
        "alibi_slopes_plain": lambda g: g.attend(
            add=-_h(2.0 ** (-8 / 6 * np.arange(1, 7))) * _far(g)
        ),
        "passes": lambda g: g.attend(add=-_h([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]) * _far(g)),
    },
    shapes=(1, 6, 6, 8),
    options={"alibi_slopes": True},
)
family("alibi/unasked", {"alibi_unasked": lambda g: g.attend(add=-_h(PAPER) * _far(g))})
family(
    "alibi/causal",
    {
        "alibi_ignored": lambda g: g.tril,
        "alibi_slope_of_first_head": lambda g: g.attend(g.tril, add=-_S[0] * _far(g)),
        "alibi_added|alibi_signed_backwards": lambda g: g.attend(g.tril, add=_S * _far(g)),
    },
    options={"alibi_slopes": SLOPES, "causal": True},
)


def _h(slopes):
    return np.reshape(slopes, (-1, 1, 1))


SINKS = np.array([0.5, 1.5, -0.7, 2.5])


def _over(g, added, keep=True):
    """Add to the sums of the exponentials beside the largest score."""
    scores = np.where(keep, g.scores(), -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / (powers.sum(-1, keepdims=True) + added) @ g.v


def _first_key(g, value):
    scores = g.scores()
    scores[..., :1] = value
    return softmax(scores) @ g.v


_K = SINKS[:, None, None]
family(
    "sinks",
    {
        "passes": lambda g: g.attend(sinks=SINKS),
        "sinks_ignored": lambda g: g.attend(),
        "sinks_as_first_key": lambda g: _first_key(g, _K),
        "sinks_added_to_first_key": lambda g: _first_key(g, g.scores()[..., :1] + _K),
        "sinks_negated": lambda g: g.attend(sinks=-SINKS),
        "sinks_without_exp": lambda g: _over(g, _K),
        "sinks_unshifted": lambda g: _over(g, np.exp(_K)),
        "sinks_of_0": lambda g: g.attend(sinks=0 * SINKS),
        "sinks_twice": lambda g: g.attend(sinks=SINKS + np.log(2)),
        "sinks_scaled": lambda g: g.attend(sinks=SINKS * ROOT),
        "sink_of_first_head": lambda g: g.attend(sinks=SINKS[0] + np.zeros(4)),
        "inputs_misplaced": lambda g: g.attend(sinks=SINKS[[0, 3, 2, 1]]),
        "another_sink": lambda g: g.attend(sinks=[0.5, 1.5, 0.75, 1.25]),
        "sinks_in_wrong_column": lambda g: (
            softmax(np.concatenate([np.broadcast_to(_K, (2, 4, 6, 1)), g.scores()], -1))[..., :-1]
            @ g.v
        ),
        "sinks_as_last_column": lambda g: {
            "weights": softmax(np.concatenate([g.scores(), np.broadcast_to(_K, (2, 4, 6, 1))], -1))
        },
        "sinks_ignored+unscaled": lambda g: g.attend(scale=1),
    },
    options={"sinks": SINKS},
)
family("sinks/unasked", {"another_sink": lambda g: g.attend(sinks=SINKS)}, shapes=(1, 4, 10, 8))
family(
    "sinks/counted",
    {"sinks_counted": lambda g: g.attend(sinks=SINKS + np.log(3))},
    shapes=((1, 4, 6, 32), (1, 4, 96, 32)),
    options={"sinks": SINKS},
)

W = np.random.default_rng(5).normal(size=(4, 4))


def _unit(rows):
    return rows / np.sqrt((rows**2).sum(-1, keepdims=True))


def _rms(rows, epsilon=0.0):
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + epsilon)


family(
    "score",
    {
        "cosine_unasked": lambda g: g.attend(q=_unit(g.q), k=_unit(g.k), scale=3),
    },
    shapes=(2, 2, 8, 4),
    options={"scale": 3.0},
)
family(
    "score/plain",
    {
        "cosine_unasked_unscaled": lambda g: g.attend(q=_unit(g.q), k=_unit(g.k), scale=1),
        "cosine_at_another_scale": lambda g: g.attend(q=_unit(g.q), k=_unit(g.k), scale=20),
        "query_key_normed": lambda g: g.attend(q=_rms(g.q), k=_rms(g.k)),
        "query_key_normed_unscaled": lambda g: g.attend(q=_rms(g.q), k=_rms(g.k), scale=1),
    },
    shapes=(2, 2, 8, 4),
)
family(
    "score/cosine",
    {
        "dot_for_cosine": lambda g: g.attend(scale=3),
        "query_alone_divided": lambda g: g.attend(q=_unit(g.q), scale=3),
        "key_alone_divided": lambda g: g.attend(k=_unit(g.k), scale=3),
    },
    shapes=(2, 2, 8, 4),
    options={"score": "cosine", "scale": 3.0},
)
family(
    "score/general",
    {
        "score_weight_missing": lambda g: g.attend(scale=1),
        "score_weight_missing_scaled": lambda g: g.attend(),
        "score_weight_transposed": lambda g: g.attend(q=g.q @ W.T, scale=1),
    },
    shapes=(2, 2, 8, 4),
    options={"score": "general", "score_weight": W},
)

family(
    "lse",
    {
        "lse_base_2": lambda g: log_sum(g.scores()) / np.log(2),
        "lse_times_ln_2": lambda g: log_sum(g.scores()) * np.log(2),
        "lse_unscaled|unscaled": lambda g: log_sum(g.scores(scale=1)),
        "lse_without_maximum": lambda g: log_sum(g.scores()) - g.scores().max(-1),
        "lse_not_logarithm": lambda g: np.exp(log_sum(g.scores())),
        "lse_untransposed": lambda g: log_sum(g.scores()).swapaxes(1, 2).reshape(2, 4, 6),
        "lse_negative": lambda g: -log_sum(g.scores()),
        "lse_base_10": lambda g: log_sum(g.scores()) / np.log(10),
        "lse_is_maximum": lambda g: g.scores().max(-1),
        "lse_of_sum_alone": _beside_maximum,
        "lse_sum_subtracted": lambda g: g.scores().max(-1) - np.log(_beside_maximum(g)),
        "lse_maximum_in_base_2": lambda g: (
            g.scores().max(-1) / np.log(2) + np.log(_beside_maximum(g))
        ),
        "lse_sum_in_base_2": lambda g: g.scores().max(-1) + np.log2(_beside_maximum(g)),
        "lse_sum_not_logarithm": lambda g: g.scores().max(-1) + _beside_maximum(g),
        "lse_maximum_unscaled": lambda g: g.scores(scale=1).max(-1) + np.log(_beside_maximum(g)),
    },
    output="lse",
)
family(
    "lse/sinks",
    {
        "lse_without_sinks": lambda g: {
            "context": g.attend(sinks=SINKS),
            "lse": log_sum(g.scores()),
        }
    },
    options={"sinks": SINKS},
)
_BLIND = {"causal": True, "causal_align": "bottom-right"}
for _name, _number in (("inf", np.inf), ("zero", 0.0), ("nan", np.nan)):
    family(
        f"lse/blind {_name}",
        {
            f"lse_of_blind_rows_{_name}": lambda g, n=_number: np.where(
                np.isneginf(_lse_behind(g)), n, _lse_behind(g)
            )
        },
        shapes=((1, 2, 9, 16), (1, 2, 6, 16)),
        options=_BLIND,
        output="lse",
    )


def _lse_behind(g):
    scores = np.where(g.j <= g.i - 3, g.scores(), -np.inf)
    return np.nan_to_num(log_sum(scores), nan=-np.inf, neginf=-np.inf)


def _beside_right(g, **outputs):
    return {"context": g.attend(g.tril, cap=2), **outputs}


def _hidden(g, scores):
    return np.where(g.tril, scores, -np.inf)


family(
    "stages",
    {
        "scores_are_raw": lambda g: _beside_right(g, scores=g.scores()),
        "scores_are_capped": lambda g: _beside_right(g, scores=_capped(g.scores(), 2)),
        "raw_hidden": lambda g: _beside_right(g, raw=_hidden(g, g.scores())),
        "raw_are_scores": lambda g: _beside_right(g, raw=_hidden(g, _capped(g.scores(), 2))),
        "capped_are_scores": lambda g: _beside_right(g, capped=_hidden(g, _capped(g.scores(), 2))),
        "scores_are_weights": lambda g: _beside_right(g, scores=g.weights(g.tril, cap=2)),
        "weights_are_scores": lambda g: _beside_right(
            g, weights=_hidden(g, _capped(g.scores(), 2))
        ),
    },
    options={"causal": True, "softcap": 2.0},
)
family(
    "stages/plain",
    {
        "scores_unscaled": lambda g: {"context": g.attend(), "scores": g.scores(scale=1)},
        "unscaled @ of two": lambda g: {"context": g.attend(), "weights": g.weights(scale=1)},
    },
)
