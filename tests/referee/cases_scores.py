"""Scale, exchanged inputs, score functions, softmax, softcap, bias, ALiBi and sinks."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.plain import log_sum, softmax

ROOT = 8**-0.5


def _beside_maximum(g):
    return np.exp(g.scores() - g.scores().max(-1, keepdims=True)).sum(-1)


cases = family("scale", shapes=((2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 5)))
cases["passes"] = lambda g: g.attend()
cases["unscaled"] = lambda g: g.attend(scale=1)
cases["scores_negated"] = lambda g: g.attend(scale=-ROOT)
cases["one_over_width"] = lambda g: g.attend(scale=1 / 8)
cases["embedding_scale"] = lambda g: g.attend(scale=1 / np.sqrt(32))
cases["scale_inverted"] = lambda g: g.attend(scale=np.sqrt(8))
cases["scale_of_one_side"] = lambda g: g.attend(scale=8**-0.25)
cases["length_scale"] = lambda g: g.attend(scale=1 / np.sqrt(6))
cases["value_scale"] = lambda g: g.attend(scale=1 / np.sqrt(5))
cases["scale_after_softmax"] = lambda g: softmax(g.scores(scale=1)) / np.sqrt(8) @ g.v
cases["log2e_without_exp2"] = lambda g: g.attend(scale=np.log2(np.e) * ROOT)
cases["unscaled+softmax_base_2"] = lambda g: g.attend(scale=np.log(2))
cases["another_scale @ 0.001"] = lambda g: g.attend(scale=0.001)
cases["another_scale @ 0.29"] = lambda g: g.attend(scale=0.29)
cases["another_scale @ 12"] = lambda g: g.attend(scale=12)
cases["another_scale @ negative"] = lambda g: g.attend(scale=-0.31)
cases["another_scale @ weights and lse"] = lambda g: {
    "weights": softmax(g.scores(scale=0.41)),
    "lse": log_sum(g.scores(scale=0.41)),
}
cases["unscaled @ weights"] = lambda g: {"weights": g.weights(scale=1)}
cases["unscaled|lse_unscaled @ lse"] = lambda g: {"lse": log_sum(g.scores(scale=1))}
cases["scores_zero"] = lambda g: np.broadcast_to(g.v.mean(-2, keepdims=True), (*g.q.shape[:3], 5))
for dtype in ("float64", "float16", "bfloat16"):
    cases = family(f"scale/{dtype}", dtype=dtype, shapes=(2, 4, 12, 16))
    cases["passes"] = lambda g: g.attend()
    cases["unscaled"] = lambda g: g.attend(scale=1)
    cases["another_scale"] = lambda g: g.attend(scale=0.29)

cases = family("scale/given", options={"scale": 0.7})
cases["scale_ignored"] = lambda g: g.attend()
cases["scale_twice"] = lambda g: g.attend(scale=0.49)
cases["unscaled"] = lambda g: g.attend(scale=1)

cases = family("scale/wide", shapes=((2, 4, 6, 40), (2, 2, 9, 40)))
cases["padded_width_scale"] = lambda g: g.attend(scale=1 / 8)
cases["unscaled @ grouped"] = lambda g: g.attend(scale=1)

cases = family("scale/slices", shapes=(1, 2, 190, 8))
cases["unscaled"] = lambda g: g.attend(scale=1)
cases["embedding_scale"] = lambda g: g.attend(scale=1 / 4)

cases = family("scale/2-D", shapes=((7, 8), (9, 8), (9, 5)))
cases["unscaled"] = lambda g: g.attend(scale=1)
cases["one_over_width"] = lambda g: g.attend(scale=1 / 8)
cases["another_scale"] = lambda g: g.attend(scale=0.6)

cases = family("inputs")
cases["query_key_exchanged"] = lambda g: g.attend(q=g.k, k=g.q)
cases["key_value_exchanged"] = lambda g: g.attend(k=g.v, v=g.k)
cases["query_value_exchanged"] = lambda g: g.attend(q=g.v, v=g.q)
cases["key_as_value"] = lambda g: g.attend(v=g.k)
cases["query_as_key"] = lambda g: g.attend(k=g.q)
cases["value_as_key"] = lambda g: g.attend(k=g.v)
cases["key_as_query"] = lambda g: g.attend(q=g.k)
cases["value_as_query"] = lambda g: g.attend(q=g.v)
cases["query_as_value"] = lambda g: g.attend(v=g.q)
cases["inputs_in_the_order_key_value_query"] = lambda g: g.attend(q=g.k, k=g.v, v=g.q)
cases["inputs_in_the_order_value_query_key"] = lambda g: g.attend(q=g.v, k=g.q, v=g.k)
cases["query_added"] = lambda g: g.attend() + g.q
cases["value_added"] = lambda g: g.attend() + g.v
cases["context_is_key"] = lambda g: g.inputs[1]
cases["context_is_value"] = lambda g: g.inputs[2]

cases = family("inputs/other shapes", shapes=((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)))
cases["key_as_value"] = lambda g: g.attend(v=g.k)

cases = family("inputs/other rows", shapes=((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4)))
cases["key_as_query"] = lambda g: g.attend(q=g.k)

cases = family("inputs/causal", options={"causal": True}, shapes=(2, 4, 9, 8))
cases["query_key_exchanged"] = lambda g: g.attend(g.tril, q=g.k, k=g.q)
cases["key_value_exchanged"] = lambda g: g.attend(g.tril, k=g.v, v=g.k)

cases = family("softmax")
cases["softmax_over_queries"] = lambda g: softmax(g.scores(), -2) @ g.v
cases["softmax_over_heads"] = lambda g: softmax(g.scores(), 1) @ g.v
cases["softmax_over_batch"] = lambda g: softmax(g.scores(), 0) @ g.v
cases["softmax_over_all"] = lambda g: softmax(g.scores(), (-2, -1)) @ g.v
cases["softmax_base_2"] = lambda g: softmax(g.scores() * np.log(2)) @ g.v
cases["softmax_twice"] = lambda g: softmax(softmax(g.scores())) @ g.v
cases["softmax_left_out"] = lambda g: g.scores() @ g.v
cases["softmax_exponentials"] = lambda g: np.exp(g.scores()) @ g.v
cases["scores_divided_by_their_sum"] = lambda g: (
    g.scores() / g.scores().sum(-1, keepdims=True) @ g.v
)
cases["sigmoid"] = lambda g: 1 / (1 + np.exp(-g.scores())) @ g.v
cases["softmax_not_normalised"] = lambda g: (
    np.exp(g.scores() - g.scores().max(-1, keepdims=True)) @ g.v
)
cases["weights_transposed"] = lambda g: softmax(g.scores()).swapaxes(-1, -2) @ g.v
cases["log_softmax"] = lambda g: np.log(softmax(g.scores())) @ g.v
cases["relu"] = lambda g: np.maximum(g.scores(), 0) @ g.v
cases["relu_divided_by_length"] = lambda g: np.maximum(g.scores(), 0) / 6 @ g.v
cases["sinks_unasked"] = lambda g: g.attend(sinks=np.zeros(4))
cases["values_summed"] = lambda g: (
    softmax(g.scores()).sum(-1, keepdims=True) * g.v.sum(-2, keepdims=True)
)
cases["softmax_over_queries @ weights"] = lambda g: {"weights": softmax(g.scores(), -2)}

cases = family("softmax/causal", options={"causal": True}, shapes=(2, 4, 9, 8))
cases["softmax_over_queries"] = lambda g: softmax(np.where(g.tril, g.scores(), -np.inf), -2) @ g.v
cases["softmax_over_heads"] = lambda g: (
    np.nan_to_num(softmax(np.where(g.tril, g.scores(), -np.inf), 1)) @ g.v
)
cases["softmax_base_2"] = lambda g: g.attend(g.tril, scores=g.scores() * np.log(2))
cases["hidden_after_softmax"] = lambda g: (softmax(g.scores()) * g.tril) @ g.v
cases["filled_after_softmax|scores_zero+filled_after_softmax"] = lambda g: (
    np.where(g.tril, softmax(g.scores()), -1e9) @ g.v
)
cases["relu"] = lambda g: np.where(g.tril, np.maximum(g.scores(), 0), 0) @ g.v
cases["sigmoid"] = lambda g: np.where(g.tril, 1 / (1 + np.exp(-g.scores())), 0) @ g.v

cases = family("softmax/square", shapes=((7, 8), (7, 8), (7, 5)))
cases["denominators_of_other_rows"] = lambda g: (
    np.exp(g.scores()) / np.exp(g.scores()).sum(-1) @ g.v
)
cases["maxima_of_other_rows"] = lambda g: _maxima_of_other_rows(g.scores()) @ g.v
cases["log_softmax"] = lambda g: np.log(softmax(g.scores())) @ g.v
cases["weights_are_logarithms"] = lambda g: {"weights": np.log(softmax(g.scores()))}
cases["products_of_sums"] = lambda g: softmax(g.q.sum(1)[:, None] * g.k.sum(1) * ROOT) @ g.v


def _maxima_of_other_rows(scores):
    powers = np.exp(scores - scores.max(-1))
    return powers / powers.sum(-1, keepdims=True)


def _without_maximum(g, dtype, *, last):
    powers = np.exp(g.scores().astype(dtype))
    total = powers.sum(-1, keepdims=True)
    v = g.v.astype("f4")
    return (powers.astype("f4") @ v) / total if last else (powers / total).astype("f4") @ v


cases = family(
    "softmax/overflow", shapes=(1, 2, 40, 8), change=lambda a: [6 * a[0], 6 * a[1], 30 * a[2]]
)
cases["softmax_without_maximum"] = lambda g: _without_maximum(g, "f4", last=False)
cases["softmax_without_maximum_divided_last"] = lambda g: _without_maximum(g, "f4", last=True)

cases = family("softmax/overflow float16", dtype="float16", change=lambda a: [8 * a[0], a[1], a[2]])
cases["softmax_without_maximum"] = lambda g: _without_maximum(g, "f2", last=False)

cases = family("softmax/denominator", dtype="float64")
cases["epsilon_1e_2"] = lambda g: _denominator(g, lambda p: p.sum(-1) + 1e-2)
cases["epsilon_1e_5"] = lambda g: _denominator(g, lambda p: p.sum(-1) + 1e-5)
cases["epsilon_added"] = lambda g: _denominator(g, lambda p: p.sum(-1) + 0.1)
cases["sinks_unasked_unshifted"] = lambda g: _denominator(g, lambda p: p.sum(-1) + 1)


def _denominator(g, total):
    powers = np.exp(g.scores() - g.scores().max(-1, keepdims=True))
    return powers / total(powers)[..., None] @ g.v


CAP = 0.8


def _capped(scores, cap=CAP):
    return cap * np.tanh(scores / cap)


def _causal(g, scores):
    return g.attend(g.tril, scores=scores)


cases = family(
    "softcap", options=lambda r: {"softcap": CAP, "bias": r.normal(size=(6, 6)), "causal": True}
)
cases["softcap_missing"] = lambda g: _causal(g, g.scores() + g["bias"])
cases["softcap_after_mask"] = lambda g: (
    softmax(_capped(np.where(g.tril, g.scores() + g["bias"], -np.inf))) @ g.v
)
cases["softcap_after_bias|bias_before_softcap"] = lambda g: _causal(
    g, _capped(g.scores() + g["bias"])
)
cases["softcap_before_scale"] = lambda g: _causal(g, _capped(g.scores(scale=1)) * ROOT + g["bias"])
cases["softcap_undivided"] = lambda g: _causal(g, CAP * np.tanh(g.scores()) + g["bias"])
cases["softcap_unmultiplied"] = lambda g: _causal(g, np.tanh(g.scores() / CAP) + g["bias"])
cases["softcap_clipped"] = lambda g: _causal(g, np.clip(g.scores(), -CAP, CAP) + g["bias"])
cases["another_softcap"] = lambda g: _causal(g, _capped(g.scores(), 2.3) + g["bias"])

cases = family("softcap/unasked", shapes=(1, 2, 12, 8))
cases["softcap_unasked"] = lambda g: g.attend(cap=0.7)

cases = family("bias", options=lambda r: {"bias": r.normal(size=(6, 6)), "causal": True})
cases["passes"] = lambda g: _causal(g, g.scores() + g["bias"])
cases["bias_ignored"] = lambda g: _causal(g, g.scores())
cases["bias_subtracted"] = lambda g: _causal(g, g.scores() - g["bias"])
cases["bias_twice"] = lambda g: _causal(g, g.scores() + 2 * g["bias"])
cases["bias_multiplied"] = lambda g: _causal(g, g.scores() * g["bias"])
cases["bias_transposed"] = lambda g: _causal(g, g.scores() + g["bias"].T)
cases["bias_scaled"] = lambda g: _causal(g, (g.scores(scale=1) + g["bias"]) * ROOT)
cases["bias_of_next_key"] = lambda g: _causal(g, g.scores() + _beside(g["bias"], -1))
cases["bias_of_previous_key"] = lambda g: _causal(g, g.scores() + _beside(g["bias"], 1))
cases["bias_of_next_query"] = lambda g: _causal(g, g.scores() + np.roll(g["bias"], -1, 0))
cases["bias_of_first_query"] = lambda g: _causal(g, g.scores() + g["bias"][:1])
cases["bias_after_softmax"] = lambda g: (
    (softmax(np.where(g.tril, g.scores(), -np.inf)) + g["bias"]) @ g.v
)
cases["another_bias_factor"] = lambda g: _causal(g, g.scores() + 0.1 * g["bias"])


def _beside(table, step):
    """Return the numbers so many places away in memory."""
    return np.roll(table.ravel(), step).reshape(table.shape)


cases = family("bias/heads", options=lambda r: {"bias": r.normal(size=(4, 6, 6))})
cases["bias_of_first_head"] = lambda g: g.attend(add=g["bias"][:1])
cases["inputs_misplaced"] = lambda g: g.attend(add=g["bias"][[0, 3, 2, 1]])
cases["bias_ignored+unscaled"] = lambda g: g.attend(scale=1)

SLOPES = np.array([0.5, 0.25, 0.125, 1.0])
_S = SLOPES[:, None, None]
PAPER = 2.0 ** -(2 * np.arange(1, 5))


def _far(g, offset=0):
    return np.abs(g.i + offset - g.j)


cases = family("alibi", options={"alibi_slopes": SLOPES})
cases["passes"] = lambda g: g.attend(add=-_S * _far(g))
cases["alibi_ignored"] = lambda g: g.attend()
cases["alibi_signed|alibi_positional"] = lambda g: g.attend(add=_S * g.j)
cases["alibi_signed_backwards"] = lambda g: g.attend(add=-_S * g.j)
cases["alibi_added"] = lambda g: g.attend(add=_S * _far(g))
cases["alibi_slopes_reversed"] = lambda g: g.attend(add=-_S[::-1] * _far(g))
cases["alibi_scaled"] = lambda g: g.attend(add=-_S * _far(g) * ROOT)
cases["alibi_slope_of_first_head"] = lambda g: g.attend(add=-_S[0] * _far(g))
cases["another_alibi_factor"] = lambda g: g.attend(add=-0.35 * _S * _far(g))
cases["inputs_misplaced"] = lambda g: g.attend(add=-_S[[0, 3, 2, 1]] * _far(g))
cases["alibi_ignored+unscaled"] = lambda g: g.attend(scale=1)

cases = family("alibi/offset", options={"alibi_slopes": SLOPES, "query_offset": 2})
cases["alibi_without_offset"] = lambda g: g.attend(add=-_S * _far(g))

cases = family("alibi/paper", options={"alibi_slopes": True})
cases["alibi_slopes_from_zero"] = lambda g: g.attend(add=-_h(4 * PAPER) * _far(g))
cases["alibi_slopes_halved"] = lambda g: g.attend(add=-_h(2.0 ** -np.arange(1, 5)) * _far(g))

cases = family("alibi/6 heads", shapes=(1, 6, 6, 8), options={"alibi_slopes": True})
cases["alibi_slopes_plain"] = lambda g: g.attend(
    add=-_h(2.0 ** (-8 / 6 * np.arange(1, 7))) * _far(g)
)
cases["passes"] = lambda g: g.attend(add=-_h([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]) * _far(g))

cases = family("alibi/unasked")
cases["alibi_unasked"] = lambda g: g.attend(add=-_h(PAPER) * _far(g))

cases = family("alibi/causal", options={"alibi_slopes": SLOPES, "causal": True})
cases["alibi_ignored"] = lambda g: g.tril
cases["alibi_slope_of_first_head"] = lambda g: g.attend(g.tril, add=-_S[0] * _far(g))
cases["alibi_added|alibi_signed_backwards"] = lambda g: g.attend(g.tril, add=_S * _far(g))


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
cases = family("sinks", options={"sinks": SINKS})
cases["passes"] = lambda g: g.attend(sinks=SINKS)
cases["sinks_ignored"] = lambda g: g.attend()
cases["sinks_as_first_key"] = lambda g: _first_key(g, _K)
cases["sinks_added_to_first_key"] = lambda g: _first_key(g, g.scores()[..., :1] + _K)
cases["sinks_negated"] = lambda g: g.attend(sinks=-SINKS)
cases["sinks_without_exp"] = lambda g: _over(g, _K)
cases["sinks_unshifted"] = lambda g: _over(g, np.exp(_K))
cases["sinks_of_0"] = lambda g: g.attend(sinks=0 * SINKS)
cases["sinks_twice"] = lambda g: g.attend(sinks=SINKS + np.log(2))
cases["sinks_scaled"] = lambda g: g.attend(sinks=SINKS * ROOT)
cases["sink_of_first_head"] = lambda g: g.attend(sinks=SINKS[0] + np.zeros(4))
cases["inputs_misplaced"] = lambda g: g.attend(sinks=SINKS[[0, 3, 2, 1]])
cases["another_sink"] = lambda g: g.attend(sinks=[0.5, 1.5, 0.75, 1.25])
cases["sinks_in_wrong_column"] = lambda g: (
    softmax(np.concatenate([np.broadcast_to(_K, (2, 4, 6, 1)), g.scores()], -1))[..., :-1] @ g.v
)
cases["sinks_as_last_column"] = lambda g: {
    "weights": softmax(np.concatenate([g.scores(), np.broadcast_to(_K, (2, 4, 6, 1))], -1))
}
cases["sinks_ignored+unscaled"] = lambda g: g.attend(scale=1)

cases = family("sinks/unasked", shapes=(1, 4, 10, 8))
cases["another_sink"] = lambda g: g.attend(sinks=SINKS)

cases = family("sinks/counted", shapes=((1, 4, 6, 32), (1, 4, 96, 32)), options={"sinks": SINKS})
cases["sinks_counted"] = lambda g: g.attend(sinks=SINKS + np.log(3))

W = np.random.default_rng(5).normal(size=(4, 4))


def _unit(rows):
    return rows / np.sqrt((rows**2).sum(-1, keepdims=True))


def _rms(rows, epsilon=0.0):
    return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + epsilon)


cases = family("score", shapes=(2, 2, 8, 4), options={"scale": 3.0})
cases["cosine_unasked"] = lambda g: g.attend(q=_unit(g.q), k=_unit(g.k), scale=3)

cases = family("score/plain", shapes=(2, 2, 8, 4))
cases["cosine_unasked_unscaled"] = lambda g: g.attend(q=_unit(g.q), k=_unit(g.k), scale=1)
cases["cosine_at_another_scale"] = lambda g: g.attend(q=_unit(g.q), k=_unit(g.k), scale=20)
cases["query_key_normed"] = lambda g: g.attend(q=_rms(g.q), k=_rms(g.k))
cases["query_key_normed_unscaled"] = lambda g: g.attend(q=_rms(g.q), k=_rms(g.k), scale=1)

cases = family("score/cosine", shapes=(2, 2, 8, 4), options={"score": "cosine", "scale": 3.0})
cases["dot_for_cosine"] = lambda g: g.attend(scale=3)

cases = family(
    "score/general", shapes=(2, 2, 8, 4), options={"score": "general", "score_weight": W}
)
cases["score_weight_missing"] = lambda g: g.attend(scale=1)
cases["score_weight_missing_scaled"] = lambda g: g.attend()
cases["score_weight_transposed"] = lambda g: g.attend(q=g.q @ W.T, scale=1)

cases = family("lse", output="lse")
cases["lse_base_2"] = lambda g: log_sum(g.scores()) / np.log(2)
cases["lse_times_ln_2"] = lambda g: log_sum(g.scores()) * np.log(2)
cases["lse_unscaled|unscaled"] = lambda g: log_sum(g.scores(scale=1))
cases["lse_without_maximum"] = lambda g: log_sum(g.scores()) - g.scores().max(-1)
cases["lse_not_logarithm"] = lambda g: np.exp(log_sum(g.scores()))
cases["lse_untransposed"] = lambda g: log_sum(g.scores()).swapaxes(1, 2).reshape(2, 4, 6)
cases["lse_negative"] = lambda g: -log_sum(g.scores())
cases["lse_base_10"] = lambda g: log_sum(g.scores()) / np.log(10)
cases["lse_is_maximum"] = lambda g: g.scores().max(-1)
cases["lse_of_sum_alone"] = _beside_maximum
cases["lse_sum_subtracted"] = lambda g: g.scores().max(-1) - np.log(_beside_maximum(g))
cases["lse_maximum_in_base_2"] = lambda g: (
    g.scores().max(-1) / np.log(2) + np.log(_beside_maximum(g))
)
cases["lse_sum_in_base_2"] = lambda g: g.scores().max(-1) + np.log2(_beside_maximum(g))
cases["lse_sum_not_logarithm"] = lambda g: g.scores().max(-1) + _beside_maximum(g)
cases["lse_maximum_unscaled"] = lambda g: g.scores(scale=1).max(-1) + np.log(_beside_maximum(g))

cases = family("lse/sinks", options={"sinks": SINKS})
cases["lse_without_sinks"] = lambda g: {
    "context": g.attend(sinks=SINKS),
    "lse": log_sum(g.scores()),
}
_BLIND = {"causal": True, "causal_align": "bottom-right"}
for _name, _number in (("inf", np.inf), ("zero", 0.0), ("nan", np.nan)):
    cases = family(
        f"lse/blind {_name}", shapes=((1, 2, 9, 16), (1, 2, 6, 16)), options=_BLIND, output="lse"
    )
    cases[f"lse_of_blind_rows_{_name}"] = lambda g, n=_number: np.where(
        np.isneginf(_lse_behind(g)), n, _lse_behind(g)
    )


def _lse_behind(g):
    scores = np.where(g.j <= g.i - 3, g.scores(), -np.inf)
    return np.nan_to_num(log_sum(scores), nan=-np.inf, neginf=-np.inf)


def _beside_right(g, **outputs):
    return {"context": g.attend(g.tril, cap=2), **outputs}


def _hidden(g, scores):
    return np.where(g.tril, scores, -np.inf)


cases = family("stages", options={"causal": True, "softcap": 2.0})
cases["scores_are_raw"] = lambda g: _beside_right(g, scores=g.scores())
cases["scores_are_capped"] = lambda g: _beside_right(g, scores=_capped(g.scores(), 2))
cases["raw_hidden"] = lambda g: _beside_right(g, raw=_hidden(g, g.scores()))
cases["raw_are_scores"] = lambda g: _beside_right(g, raw=_hidden(g, _capped(g.scores(), 2)))
cases["capped_are_scores"] = lambda g: _beside_right(g, capped=_hidden(g, _capped(g.scores(), 2)))
cases["scores_are_weights"] = lambda g: _beside_right(g, scores=g.weights(g.tril, cap=2))
cases["weights_are_scores"] = lambda g: _beside_right(g, weights=_hidden(g, _capped(g.scores(), 2)))

cases = family("stages/plain")
cases["scores_unscaled"] = lambda g: {"context": g.attend(), "scores": g.scores(scale=1)}
cases["unscaled @ of two"] = lambda g: {"context": g.attend(), "weights": g.weights(scale=1)}

cases = family("bias/memory", options=lambda r: {"bias": r.normal(size=(2, 4, 6, 6))})
cases["bias_viewed_heads_first"] = lambda g: g.attend(
    add=g["bias"].transpose(0, 2, 3, 1).reshape(2, 4, 6, 6)
)
cases["bias_viewed_heads_last"] = lambda g: g.attend(
    add=g["bias"].reshape(2, 6, 6, 4).transpose(0, 3, 1, 2)
)
