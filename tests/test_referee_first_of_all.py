"""What belongs to one batch entry, or one head, is taken for all; and score functions mixed up."""

from __future__ import annotations

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, plain, scaled, softmax

J = np.arange(8)


def lengths_of(*lengths):
    return np.array(lengths)[:, None, None, None] > J


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lengths", [(4, 8), (3, 8), (2, 7), (6, 4), (5, 5, 8)])
def test_lengths_of_the_first_entry(seed, lengths):
    q, k, v = draw(seed, *[(len(lengths), 2, 8, 4)] * 3)
    wrong = plain(q, k, v, lengths_of(*[lengths[0]] * len(lengths)))
    assert "kv_lengths_of_first_entry" in named(ask((q, k, v), wrong, kv_lengths=lengths))


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_of_the_first_entry(seed):
    q, k, v = draw(seed, *[(3, 2, 8, 4)] * 3)
    mask = np.array([[1, 1, 0, 1, 1, 0, 0, 1], [1] * 8, [0, 1] * 4], bool)
    wrong = plain(q, k, v, mask[:1, None, None, :])
    assert named(ask((q, k, v), wrong, key_padding_mask=mask)) == {
        "key_padding_mask_of_first_entry"
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_lengths_of_the_longest_entry(seed):
    q, k, v = draw(seed, *[(3, 2, 8, 4)] * 3)
    wrong = plain(q, k, v, lengths_of(6, 6, 6))
    assert named(ask((q, k, v), wrong, kv_lengths=[2, 6, 3])) == {"lengths_of_longest"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
def test_the_first_slope_and_the_first_sink(seed, causal):
    q, k, v = draw(seed, *[(2, 4, 8, 4)] * 3)
    seen = (J[:, None] >= J) | (not causal)
    slopes, sinks = np.array([0.5, 0.25, 0.125, 0.0625]), np.array([0.5, -1.0, 1.5, 0.0])
    scores = np.where(seen, scaled(q, k) - 0.5 * abs(J[:, None] - J), -np.inf)
    given = {"alibi_slopes": slopes, "causal": causal}
    assert named(ask((q, k, v), softmax(scores) @ v, **given)) == {"alibi_slope_of_first_head"}
    exponentials = np.where(seen, np.exp(scaled(q, k)), 0)
    wrong = exponentials / (exponentials.sum(-1, keepdims=True) + np.exp(0.5)) @ v
    assert named(ask((q, k, v), wrong, sinks=sinks, causal=causal)) == {"sink_of_first_head"}


@pytest.mark.parametrize("seed", SEEDS)
def test_alibi_that_favours_earlier_keys(seed):
    q, k, v = draw(seed, *[(1, 2, 8, 4)] * 3)
    wrong = softmax(scaled(q, k) + 0.25 * (J[:, None] - J)) @ v
    assert named(ask((q, k, v), wrong, alibi_slopes=[0.25, 0.25])) == {"alibi_signed_backwards"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_sink_to_the_base_of_2(seed, causal):
    q, k, v = draw(seed, *[(2, 2, 8, 4)] * 3)
    seen = (J[:, None] >= J) | (not causal)
    powers = np.where(seen, 2.0 ** (scaled(q, k) * np.log2(np.e)), 0)
    wrong = powers / (powers.sum(-1, keepdims=True) + 2.0**1.8) @ v
    assert named(ask((q, k, v), wrong, sinks=[1.8, 1.8], causal=causal)) == {"sinks_in_base_2"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_mask_filled_with_a_large_positive_number(seed):
    q, k, v = draw(seed, *[(2, 2, 8, 4)] * 3)
    keep = np.random.default_rng(seed).random((8, 8)) < 0.6
    wrong = softmax(np.where(keep, scaled(q, k), 1e9)) @ v
    assert named(ask((q, k, v), wrong, mask=keep)) == {"hidden_positive"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_strict_causal_mask_that_nobody_asked_for(seed):
    q, k, v = draw(seed, *[(1, 2, 8, 4)] * 3)
    wrong = plain(q, k, v, J[:, None] > J)
    assert named(ask((q, k, v), wrong)) == {"causal_unasked_strict"}


def unit(x):
    return x / np.sqrt((x.astype("f8") ** 2).sum(-1, keepdims=True))


def rms_norm(x):
    return x / np.sqrt((x.astype("f8") ** 2).mean(-1, keepdims=True))


def rms_norm_of(epsilon):
    return lambda x: x / np.sqrt((x.astype("f8") ** 2).mean(-1, keepdims=True) + epsilon)


W = np.random.default_rng(5).normal(size=(4, 4))


SCORE_OPTIONS = {
    "cosine_unasked": ("--score cosine --scale 3",),
    "cosine_unasked_unscaled": ("--score cosine --scale 1",),
    "cosine_at_another_scale": ("--score cosine --scale 20",),
    "dot_for_cosine": ("--score dot --scale 3",),
    "dot_for_cosine_scaled": ("--score dot --scale 0.5",),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "given", "query", "key", "scale"),
    [
        ("cosine_unasked", {"scale": 3.0}, unit, unit, 3.0),
        ("query_key_normed", {}, rms_norm, rms_norm, 0.5),
        ("cosine_unasked_unscaled", {}, unit, unit, 1.0),
        ("cosine_at_another_scale", {}, unit, unit, 20.0),
        ("query_key_normed_unscaled", {}, rms_norm, rms_norm, 1.0),
        ("query_key_normed_1e_6", {}, rms_norm_of(1e-6), rms_norm_of(1e-6), 0.5),
        ("query_key_normed_1e_5", {}, rms_norm_of(1e-5), rms_norm_of(1e-5), 0.5),
        ("query_key_normed_unscaled_1e_6", {}, rms_norm_of(1e-6), rms_norm_of(1e-6), 1.0),
        ("query_key_normed_unscaled_1e_5", {}, rms_norm_of(1e-5), rms_norm_of(1e-5), 1.0),
        ("dot_for_cosine_scaled", {"score": "cosine"}, None, None, 0.5),
        ("score_weight_missing_scaled", {"score": "general", "score_weight": W}, None, None, 0.5),
        ("dot_for_cosine", {"score": "cosine", "scale": 3.0}, None, None, 3.0),
        ("query_alone_divided", {"score": "cosine", "scale": 3.0}, unit, None, 3.0),
        ("key_alone_divided", {"score": "cosine", "scale": 3.0}, None, unit, 3.0),
        ("score_weight_missing", {"score": "general", "score_weight": W}, None, None, 1.0),
        (
            "score_weight_transposed",
            {"score": "general", "score_weight": W},
            lambda q: q @ W.T,
            None,
            1.0,
        ),
    ],
)
def test_another_score_function(seed, name, given, query, key, scale):
    q, k, v = draw(seed, *[(2, 2, 8, 4)] * 3)
    wrong = plain(query(q) if query else q, key(k) if key else k, v, scale=scale)
    dtype = "float64" if "1e_" in name else "float32"
    report = ask((q, k, v), wrong, dtype, **given)
    assert named(report) == {name}
    options = report.diagnosis.explanations[0].options
    assert options == SCORE_OPTIONS.get(name, ())
    if options:  # the same problem with these passes
        words = options[0].split()
        asked = given | {"score": words[1], "scale": float(words[3]) if words[3:] else None}
        assert ask((q, k, v), wrong, dtype, **asked).passed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shape", [(2, 5, 3, 4), (1, 6, 2, 4)])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_a_transpose_forgotten_at_the_end(seed, shape, scale):
    """Of (B, L, H, D) the context is left as (B, H, L, D)."""
    q, k, v = draw(seed, *[shape] * 3)
    q_, k_, v_ = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
    report = ask((q, k, v), plain(q_, k_, v_, scale=scale), layout="bshd")
    assert named(report) == {"axes_bhlx" if scale == 0.5 else "unscaled+axes_bhlx"}
    lse = np.log(np.exp(scaled(q_, k_)).sum(-1)).transpose(0, 2, 1)
    assert named(ask((q, k, v), {"lse": lse}, layout="bshd")) == {"axes_blhx"}
