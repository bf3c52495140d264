"""Short batch entries are computed together, and each as by itself."""

import numpy as np
import pytest
from nearness import assert_near
from process import long_but

from attncli import attention, pose, solve
from attncli.engine import folding

OUTPUTS = [("context", "lse"), ("weights", "context"), ("scores", "weights", "context", "lse")]
pytestmark = [
    pytest.mark.usefixtures("kernels", "in_blocks"),
    pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning"),
]
B, H, L, S, D = 6, 4, 70, 90, 8


def inputs(*, groups=H, dtype="float32", batch=B):
    random = np.random.default_rng(11)
    query = random.standard_normal((batch, H, L, D)).astype(dtype)
    key = random.standard_normal((batch, groups, S, D)).astype(dtype)
    value = random.standard_normal((batch, groups, S, 5)).astype(dtype)
    return query, key, value


def rule(name):
    """Return options, and what they add to the scores of (B, H, L, S)."""
    random = np.random.default_rng(12)
    behind = np.arange(L)[:, None] - np.arange(S)
    mask, bias = random.random((B, H, L, S)) < 0.6, random.standard_normal((B, H, L, S))
    slopes, lengths = np.array([0.5, 0.25, 0.1, 0.01]), random.integers(1, S, B)
    padding, queries = mask[:, 0, 0, :], random.integers(1, L, B)
    rows = np.arange(L)[:, None] < queries[:, None, None, None]
    ids, kv_ids = np.sort(random.integers(0, 4, (B, L))), np.sort(random.integers(0, 4, (B, S)))
    together = ids[:, None, :, None] == kv_ids[:, None, None, :]
    hidden = {
        "causal": ({"causal": True, "query_offset": 3}, behind + 3 >= 0),
        "window": ({"window": (20, 9), "query_offset": 0}, (behind <= 20) & (behind >= -9)),
        "mask": ({"mask": mask[0, 0]}, mask[0, 0]),
        "mask of each": ({"mask": mask}, mask),
        "mask of heads": ({"mask": mask[:1]}, mask[:1]),
        "mask of entries": ({"mask": mask[:, :1]}, mask[:, :1]),
        "key padding": ({"key_padding_mask": padding}, padding[:, None, None]),
        "masked key padding": (
            {"key_padding_mask": padding, "mask": mask[0], "kv_lengths": [80]},
            padding[:, None, None] & mask[0] & (np.arange(S) < 80),
        ),
        "one length": ({"kv_lengths": [50] * B}, np.arange(S) < 50),
        "lengths": ({"kv_lengths": lengths}, np.arange(S) < lengths[:, None, None, None]),
        "lengths beside padding": (
            {"key_padding_mask": padding[0], "kv_lengths": lengths},
            padding[0] & (np.arange(S) < lengths[:, None, None, None]),
        ),
        "segments": ({"segment_ids": ids[0], "kv_segment_ids": kv_ids[0]}, together[0]),
        "segments of each": ({"segment_ids": ids, "kv_segment_ids": kv_ids}, together),
        "lengths of both": (
            {"kv_lengths": lengths, "query_lengths": queries},
            rows & (np.arange(S) < lengths[:, None, None, None]),
        ),
    }
    if name in hidden:
        options, seen = hidden[name]
        return options, np.where(seen, 0, -np.inf)
    return {
        "nothing": ({}, 0),
        "bias": ({"bias": bias[0, 0]}, bias[0, 0]),
        "bias of each": ({"bias": bias}, bias),
        "bias of heads": ({"bias": bias[:1]}, bias[:1]),
        "slopes": (
            {"alibi_slopes": slopes, "query_offset": 0},
            -slopes[:, None, None] * np.abs(behind),
        ),
        "sinks": ({"sinks": [1.0, -2.0, 3.0, 0.0]}, 0),
    }[name]


RULES = [
    "nothing",
    *("causal", "window", "slopes", "sinks", "bias", "bias of each", "bias of heads"),
    *("mask", "mask of each", "mask of heads", "mask of entries"),
    *("key padding", "masked key padding", "one length", "lengths", "lengths of both"),
    *("lengths beside padding", "segments", "segments of each"),
]
# These would have to be repeated, or to become masks.
APART_IF_LONG = {name for name in RULES if "of heads" in name or "of entries" in name} | {
    "key padding", "masked key padding", "lengths", "lengths of both", "lengths beside padding",
    "segments of each",
}  # fmt: skip


def expected(query, key, value, added, sinks=None):
    share = query.shape[1] // key.shape[1]
    wide = [x.astype(float).repeat(n, axis=1) for x, n in ((key, share), (value, share))]
    scores = query.astype(float) @ wide[0].swapaxes(-1, -2) / np.sqrt(D) + added
    sinks = np.full(H, -np.inf) if sinks is None else np.array(sinks)
    highest = np.maximum(scores.max(-1, keepdims=True), sinks[:, None, None])
    highest = np.where(np.isneginf(highest), 0, highest)
    powers = np.exp(scores - highest)
    total = powers.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - highest)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + highest)[..., 0]
    weights = powers / np.where(total == 0, 1, total)
    return {"scores": scores, "weights": weights, "context": weights @ wide[1], "lse": lse}


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("name", RULES)
def test_each_entry_is_as_by_itself(name, groups, outputs, short, planned, monkeypatch):
    if not short:
        monkeypatch.setattr(folding, "_SHORT_WORK", 0)
    qkv = inputs(groups=groups)
    options, added = rule(name)
    answer = attention(*qkv, **options, outputs=outputs, threads=1)
    together = short or name not in APART_IF_LONG
    assert {block.batch for block in planned} == ({0} if together else set(range(B)))
    right = expected(*qkv, added, options.get("sinks"))
    for output in outputs:
        found = getattr(answer, output)
        assert_near(found, right[output], rtol=1e-4, atol=1e-5, err_msg=output)


@pytest.mark.parametrize("rope", [None, "half"])
@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_inputs_whose_axes_are_transposed(rope, score, planned):
    query, key, value = inputs()
    there = [x.transpose(0, 2, 1, 3).copy() for x in (query, key, value)]
    options = {"rope": rope, "score": score, "causal": True, "query_offset": 0, "threads": 1}
    found = attention(*there, layout="bshd", **options).context
    assert {block.batch for block in planned} == {0}
    for entry in range(B):
        alone = attention(query[entry], key[entry], value[entry], layout="hsd", **options)
        assert_near(found[entry].swapaxes(0, 1), alone.context, rtol=1e-4, atol=1e-6)


def test_offsets_that_differ_are_left_apart(planned):
    query, key, value = inputs()
    offsets = np.arange(B) * 4
    answer = attention(query, key, value, causal=True, query_offset=offsets, threads=1)
    assert {block.batch for block in planned} == set(range(B))
    behind = np.arange(L)[:, None] + offsets[:, None, None, None] - np.arange(S)
    right = expected(query, key, value, np.where(behind >= 0, 0, -np.inf))["context"]
    assert_near(answer.context, right, rtol=1e-4, atol=1e-5)


def test_a_rule_that_is_large_is_not_repeated(planned, monkeypatch):
    monkeypatch.setattr(folding, "_MOST_COPIED", B * H * L * S - 1)
    attention(*inputs(), mask=np.ones((H, L, S), bool)[None], threads=1, outputs=("context",))
    assert {block.batch for block in planned} == set(range(B))


def test_keys_for_all_entries_are_not_repeated(planned):
    query, key, value = inputs()
    answer = attention(query, key[:1], value[:1], threads=1, outputs=("context",))
    assert {block.batch for block in planned} == set(range(B))
    right = expected(query, key[:1], value[:1], 0)["context"]
    assert_near(answer.context, right, rtol=1e-4, atol=1e-5)


def test_long_entries_are_left_apart(planned):
    query, key, value = (np.concatenate([x] * 10, axis=2) for x in inputs(batch=2))
    attention(query, key, value, threads=1, outputs=("context",))
    assert {block.batch for block in planned} == {0, 1}


def test_large_inputs_are_not_copied(planned):
    key = np.zeros((2, 40_000, H, D), np.float32)
    query = np.zeros((2, 20, H, D), np.float32)
    attention(query, key, key, layout="bshd", threads=1, outputs=("context",))
    assert {block.batch for block in planned} == {0, 1}


@pytest.mark.parametrize("strided", [False, True])
def test_results_are_written_where_they_should_go(strided):
    qkv = inputs()
    room = np.zeros((2 * B, H, L, S), np.float32)
    into = {"weights": room[::2] if strided else room[:B]}
    answer = solve(pose(*qkv), ("weights", "context"), into=into, threads=1)
    assert np.shares_memory(answer.weights, room)
    right = expected(*qkv, 0)["weights"]
    assert_near(into["weights"], right, rtol=1e-4, atol=1e-6)
    assert strided is bool(room[B:].any())


def test_queries_without_a_key_are_counted():
    with pytest.warns(UserWarning, match=rf"{B * H * 5} of {B * H * L} queries see no key"):
        attention(*inputs(), causal=True, query_offset=-5, threads=1)


def test_padded_queries_are_not_counted(recwarn):
    padded = {"query_lengths": np.arange(B) + 3, "kv_lengths": np.arange(B) + 1}
    answer = attention(*inputs(), **padded, threads=1)
    assert not recwarn.list
    assert not answer.context[0, :, 3:].any()
    assert answer.context[0, :, :3].all()


@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_what_is_not_finite_is_named_where_it_is(name):
    arrays = dict(zip(("query", "key", "value"), inputs(), strict=True))
    arrays[name][4, 2, 60, 1] = np.nan
    with pytest.raises(ValueError, match=rf"^{name}: .* found nan at index \(4, 2, 60, 1\)"):
        attention(**arrays, threads=1)


@pytest.mark.parametrize("outputs", long_but(["context", "weights", "lse"], "context", "weights"))
def test_decoding_a_batch_whose_first_entry_alone_is_full(outputs):
    rng = np.random.default_rng(0)
    query = rng.standard_normal((2, 8, 1, 64)).astype(np.float32)
    key, value = rng.standard_normal((2, 2, 8, 4500, 64)).astype(np.float32)
    lengths = [4500, 3000]
    found = getattr(attention(query, key, value, kv_lengths=lengths, outputs=outputs), outputs)
    for entry, length in enumerate(lengths):
        cut = key[entry : entry + 1, :, :length], value[entry : entry + 1, :, :length]
        right = getattr(attention(query[entry : entry + 1], *cut, outputs=outputs), outputs)
        own = found[entry : entry + 1]
        own = own[..., :length] if outputs == "weights" else own
        np.testing.assert_allclose(own, right, rtol=1e-4, atol=1e-6)
