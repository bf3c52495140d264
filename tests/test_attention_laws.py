"""Laws that hold for attention whatever the numbers are.

Each law says how two problems answer alike, or what every answer has in common, so
none needs expected values.
"""

import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearness import assert_near
from oracle import attention_oracle
from strategies import problems

from attncli import attention
from attncli.errors import AttnWarning

pytestmark = [
    pytest.mark.usefixtures("every_path"),
    pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning"),
]

ALL = ("raw", "capped", "scores", "weights", "context", "lse")
# Tiled and untiled ways to the context may differ; a law has to hold on both.
both_ways = pytest.mark.parametrize("outputs", [("context",), ("weights", "context")])
law = settings(max_examples=6, deadline=None)


def four_axes(seed, *, batch=2, heads=4, groups=2, queries=3, keys=5, width=4):
    random = np.random.default_rng(seed)
    return (
        random.uniform(-2, 2, (batch, heads, queries, width)),
        random.uniform(-2, 2, (batch, groups, keys, width)),
        random.uniform(-2, 2, (batch, groups, keys, 3)),
    )


def every_option(seed, *, batch=2, heads=4, queries=3, keys=5):
    """Return a mask, a bias and each per-head and per-batch option, all at once."""
    random = np.random.default_rng(seed)
    return {
        "mask": random.random((batch, heads, queries, keys)) < 0.8,
        "bias": random.uniform(-2, 2, (batch, heads, queries, keys)),
        "kv_lengths": random.integers(1, keys + 1, batch),
        "query_offset": random.integers(-1, keys, batch),
        "causal": True,
        "sinks": random.uniform(-1, 1, heads),
        "alibi_slopes": random.uniform(0, 1, heads),
        "softcap": 3.0,
        "rope": "interleaved",
    }


def same(found, expected, tolerance=1e-12):
    assert_near(found, expected, rtol=tolerance, atol=tolerance)


seeds = st.integers(0, 2**32)


@given(problems())
@law
def test_rows_sum_to_1_or_less_with_sinks_or_0_where_nothing_is_seen(problem):
    *qkv, options = problem
    answer = attention(*qkv, **options, outputs=ALL)
    sums = answer.weights.sum(axis=-1, dtype=np.float64)
    blind = np.isneginf(answer.scores).all(axis=-1)
    assert (answer.weights >= 0).all()
    assert (sums[blind] == 0).all()
    assert (answer.weights[np.isneginf(answer.scores)] == 0).all()
    if "sinks" in options:
        assert (sums[~blind] < 1).all()
    else:
        same(sums[~blind], 1, 1e-5 if answer.weights.dtype == np.float32 else 1e-12)


@given(problems())
@law
def test_nothing_is_ever_nan(problem):
    *qkv, options = problem
    answer = attention(*qkv, **options, outputs=ALL)
    assert not any(np.isnan(getattr(answer, name)).any() for name in ALL)


@both_ways
@given(seed=seeds, constant=st.floats(-50, 50))
@law
def test_a_constant_added_to_a_row_of_scores_changes_nothing(outputs, seed, constant):
    qkv = four_axes(seed)
    row = np.random.default_rng(seed).uniform(-1, 1, (3, 1)) * constant
    bias = np.random.default_rng(seed).uniform(-1, 1, (3, 5))
    before = attention(*qkv, bias=bias, outputs=(*outputs, "lse"))
    after = attention(*qkv, bias=bias + row, outputs=(*outputs, "lse"))
    same(after.context, before.context)
    same(after.lse, before.lse + row[:, 0])
    if "weights" in outputs:
        same(after.weights, before.weights)


@both_ways
@given(seed=seeds, order=st.permutations(range(5)))
@law
def test_the_order_of_the_keys_changes_nothing(outputs, seed, order):
    query, key, value = four_axes(seed)
    options = {name: every_option(seed)[name] for name in ("mask", "bias", "sinks", "softcap")}
    padding = np.random.default_rng(seed).random((2, 5)) < 0.8
    before = attention(query, key, value, key_padding_mask=padding, **options, outputs=outputs)
    options |= {name: options[name][..., order] for name in ("mask", "bias")}
    key, value, padding = key[:, :, order], value[:, :, order], padding[:, order]
    after = attention(query, key, value, key_padding_mask=padding, **options, outputs=outputs)
    same(after.context, before.context)
    if "weights" in outputs:
        same(after.weights, before.weights[..., order])


@both_ways
@given(
    seed=seeds,
    now=st.integers(0, 4),
    rules=st.sampled_from([{}, {"window": (2, 3)}, {"alibi_slopes": True}, {"softcap": 1.0}]),
)
@law
def test_causal_never_looks_ahead(outputs, seed, now, rules):
    query, key, value = four_axes(seed, queries=5)
    before = attention(query, key, value, causal=True, **rules, outputs=outputs)
    key[:, :, now + 1 :] += 100
    value[:, :, now + 1 :] -= 1000
    query[:, :, now + 1 :] *= -1
    after = attention(query, key, value, causal=True, **rules, outputs=outputs)
    same(after.context[:, :, : now + 1], before.context[:, :, : now + 1])
    if "weights" in outputs:
        assert (after.weights[..., np.triu_indices(5, 1)[0], np.triu_indices(5, 1)[1]] == 0).all()


@both_ways
@pytest.mark.parametrize("filler", [np.nan, np.inf, 1e300], ids=str)
@pytest.mark.parametrize(
    "hiding",
    [
        {"kv_lengths": 3},
        {"kv_lengths": [3, 3], "bias": np.ones((3, 5)), "softcap": 2.0},
        {"key_padding_mask": [1, 1, 1, 0, 0]},
        {"mask": [True, True, True, False, False]},
        {"mask": np.arange(5) >= 3, "mask_means": "drop", "sinks": [0, 1, 2, 3]},
        {"causal": True, "causal_align": "top-left"},
        {"window": (-1, 0), "alibi_slopes": True},
        {"window": (1, 0), "rope": "half", "query_offset": 0},
        {"kv_lengths": 3, "query_lengths": 2, "score": "cosine"},
        {"kv_lengths": 3, "score": "additive"},
        {"kv_lengths": 3, "score": "general", "score_weight": np.eye(4)},
    ],
    ids="-".join,
)
def test_nan_and_inf_in_keys_that_nobody_sees_change_nothing(outputs, hiding, filler):
    query, key, value = four_axes(0)
    clean = attention_oracle(query, key, value, **hiding)
    key[:, :, 3:] = filler
    value[:, :, 3, 0] = value[:, :, 4] = filler
    answer = attention(query, key, value, **hiding, outputs=(*outputs, "lse"))
    same(answer.context, clean["context"])
    same(answer.lse, clean["lse"])
    if "weights" in outputs:
        same(answer.weights, clean["weights"])


@both_ways
@given(seed=seeds)
@law
def test_a_batch_is_its_single_problems(outputs, seed):
    qkv, options = four_axes(seed), every_option(seed)
    whole = attention(*qkv, **options, outputs=outputs)
    per_batch = ("mask", "bias", "kv_lengths", "query_offset")
    for b in range(2):
        own = {name: options[name][b : b + 1] for name in per_batch}
        single = attention(*(x[b : b + 1] for x in qkv), **options | own, outputs=outputs)
        same(whole.context[b], single.context[0])
        if "weights" in outputs:
            same(whole.weights[b], single.weights[0])


@both_ways
@given(seed=seeds)
@law
def test_a_head_is_a_problem_of_its_own(outputs, seed):
    qkv, options = four_axes(seed), every_option(seed)
    whole = attention(*qkv, **options, outputs=outputs)
    for h in range(4):
        own = {name: options[name][:, h] for name in ("mask", "bias")}
        own |= {name: options[name][h : h + 1] for name in ("sinks", "alibi_slopes")}
        three = qkv[0][:, h], qkv[1][:, h // 2], qkv[2][:, h // 2]
        single = attention(*three, **options | own, outputs=outputs)
        same(whole.context[:, h], single.context)
        if "weights" in outputs:
            same(whole.weights[:, h], single.weights)


LAYOUTS = ("sd", "bsd", "hsd", "sbd", "shd", "bhsd", "bshd", "sbhd")


def laid_out(array, layout):
    """Return an array (B, H, L, D) in another layout: its first entry or head if that has none."""
    for axis, letter in ((1, "h"), (0, "b")):
        array = array if letter in layout else array.take(0, axis)
    mine = [letter for letter in "bhsd" if letter in layout]
    return array.transpose([mine.index(letter) for letter in layout])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_transposes(layout):
    qkv = four_axes(0, groups=4)
    usual = attention(*qkv)
    found = attention(*(laid_out(array, layout) for array in qkv), layout=layout)
    same(found.context, laid_out(usual.context, layout))
    same(found.weights, laid_out(usual.weights, layout.replace("s", "").replace("d", "") + "sd"))


@both_ways
@given(seed=seeds)
@law
def test_packed_heads_are_reshapes(outputs, seed):
    qkv, options = four_axes(seed), every_option(seed)
    usual = attention(*qkv, **options, outputs=outputs)
    flat = [x.transpose(0, 2, 1, 3).reshape(2, x.shape[2], -1) for x in qkv]
    packed = attention(*flat, heads=4, kv_heads=2, **options, outputs=outputs)
    same(packed.context.reshape(2, 3, 4, 3).transpose(0, 2, 1, 3), usual.context)
    turned = [x.swapaxes(0, 1) for x in flat]
    by_time = attention(*turned, layout="sbd", heads=4, kv_heads=2, **options, outputs=outputs)
    same(by_time.context, packed.context.swapaxes(0, 1))


@both_ways
@pytest.mark.parametrize(
    ("options", "blind"),
    [
        ({}, 0),
        ({"query_lengths": 1}, 0),
        ({"mask": [[True], [False], [False]]}, 2),
        ({"mask": [[True], [False], [False]], "query_lengths": 2}, 1),
        ({"bias": np.full((3, 1), -np.inf)}, 3),
        ({"causal": True, "query_offset": -2, "sinks": [0.0]}, 2),
    ],
    ids=str,
)
def test_rows_that_see_nothing_are_counted_once_without_padded_queries(outputs, options, blind):
    qkv = np.ones((3, 2)), np.ones((4, 2)), np.ones((4, 1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attention(*qkv, **options, outputs=outputs)
    counts = [re.findall(r"\d+", str(w.message))[0] for w in caught]
    assert counts == [str(blind)] * (blind > 0)
    assert all(w.category is AttnWarning for w in caught)
