"""Two mistakes at one step that do not exclude each other, and orders of all three inputs."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax


def turned(rows, start, pairing, base=10000.0):
    """Rotate rows (…, S, D), the first at position `start`."""
    width = rows.shape[-1]
    angle = np.outer(start + np.arange(rows.shape[-2]), base ** (-np.arange(0, width, 2) / width))
    first, second = np.s_[..., : width // 2], np.s_[..., width // 2 :]
    if pairing == "interleaved":
        first, second = np.s_[..., ::2], np.s_[..., 1::2]
    made = np.empty(rows.shape)
    made[first] = rows[first] * np.cos(angle) - rows[second] * np.sin(angle)
    made[second] = rows[second] * np.cos(angle) + rows[first] * np.sin(angle)
    return made


ROPE = {
    "rope_pairing+rope_without_offset": {"pairing": "interleaved", "start": 0},
    "rope_pairing+rope_query_late": {"pairing": "interleaved", "start": 6},
    "rope_pairing+rope_base_500000": {"pairing": "interleaved", "base": 500_000.0},
    "rope_base_500000+rope_without_offset": {"start": 0, "base": 500_000.0},
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", long_but(ROPE, next(iter(ROPE))))
def test_two_mistakes_with_a_rotary_embedding(seed, name):
    q, k, v = draw(seed, (1, 2, 6, 8), (1, 2, 11, 8), (1, 2, 11, 8))
    how = {"start": 5, "pairing": "half", "base": 10000.0} | ROPE[name]
    keys = turned(k, 0, how["pairing"], how["base"])
    wrong = plain(turned(q, **how), keys, v)
    assert named(ask((q, k, v), wrong, rope="half", query_offset=5)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("axis", "what"), long_but([(-2, "queries"), (1, "heads"), (0, "batch")], (1, "heads"))
)
def test_another_axis_and_another_base(seed, axis, what):
    q, k, v = draw(seed)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(8)
    wrong = softmax(scores.astype("f8") * np.log(2), axis) @ v
    assert named(ask((q, k, v), wrong)) == {f"softmax_over_{what}+softmax_base_2"}


def packed(rows):
    """Return (B, H, L, D) as (B, L, H·D)."""
    return rows.transpose(0, 2, 1, 3).reshape(rows.shape[0], rows.shape[2], -1)


def interleaved(rows, heads):
    """Cut (B, L, D·H) into heads that take every H-th column."""
    batch, length, width = rows.shape
    return rows.reshape(batch, length, width // heads, heads).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("seed", SEEDS)
def test_heads_that_are_tiled_and_cut_or_joined_in_another_way(seed):
    q, k, v = draw(seed, (2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    given = [packed(array) for array in (q, k, v)]
    heads = {"heads": 4, "kv_heads": 2}
    wrong = plain(q, np.tile(k, (1, 2, 1, 1)), np.tile(v, (1, 2, 1, 1)))
    report = ask(given, wrong.reshape(2, 6, 32), **heads)
    assert named(report) == {"heads_reshaped_out+heads_tiled"}
    cut = [interleaved(a, n) for a, n in zip(given, (4, 2, 2), strict=True)]
    wrong = plain(cut[0], np.tile(cut[1], (1, 2, 1, 1)), np.tile(cut[2], (1, 2, 1, 1)))
    joined = wrong.transpose(0, 2, 3, 1).reshape(2, 6, 32)
    assert named(ask(given, joined, **heads)) == {"heads_interleaved+heads_tiled"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("asked", "offset", "name"),
    [
        ("top-left", 4, "causal_bottom_right_strict"),
        ("bottom-right", 0, "causal_top_left_strict"),
    ],
)
def test_the_other_corner_without_its_diagonal(seed, asked, offset, name):
    q, k, v = draw(seed, (1, 2, 6, 8), (1, 2, 10, 8), (1, 2, 10, 8))
    i, j = np.indices((6, 10))
    report = ask((q, k, v), plain(q, k, v, j < i + offset), causal=True, causal_align=asked)
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rule", long_but(["key_padding_mask", "kv_lengths"], "kv_lengths"))
def test_padding_on_queries_and_inverted(seed, rule):
    q, k, v = draw(seed, *[(2, 2, 6, 8)] * 3)
    lengths = np.array([4, 5])
    real = np.arange(6) < lengths[:, None]
    given = real if rule == "key_padding_mask" else lengths
    wrong = plain(q, k, v, ~real[:, None, :, None])
    assert named(ask((q, k, v), wrong, **{rule: given})) == {f"{rule}_on_queries+{rule}_inverted"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "name", ["inputs_in_the_order_key_value_query", "inputs_in_the_order_value_query_key"]
)
def test_all_three_inputs_in_another_order(seed, name):
    order = name.split("_")[-3:]
    given = dict(zip(("query", "key", "value"), draw(seed), strict=True))
    wrong = plain(*(given[name] for name in order))
    report = ask(given.values(), wrong)
    assert named(report) == {name}
    letters = " ".join(word[0].upper() for word in order)
    assert f"give query, key and value in the order {letters}" in str(report)
