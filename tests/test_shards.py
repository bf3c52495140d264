"""A part of the queries or of the keys, computed and judged in its place."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import attncli

RANDOM = np.random.default_rng(2)
QUERY, KEY, VALUE = (RANDOM.normal(size=(2, 4, n, 8)) for n in (10, 14, 14))
I, J = np.arange(10)[:, None], np.arange(14)
SINKS = RANDOM.normal(size=4)
MASK, BIAS = RANDOM.random((10, 14)) > 0.2, RANDOM.normal(size=(4, 1, 14))
SLOPES = np.array([0.5, 0.25, 0.1, 1.0])
# The options, the same as scores in plain NumPy, and the numbers of key and query positions.
RULES = {
    "nothing": ({}, 0, True),
    "causal": ({"causal": True, "causal_align": "bottom-right"}, 0, J <= I + 4),
    "window": ({"window": (3, 1), "query_offset": 2}, 0, (J >= I - 1) & (J <= I + 3)),
    "ALiBi": (
        {"alibi_slopes": SLOPES, "query_offset": 4},
        -SLOPES[:, None, None] * np.abs(I + 4 - J),
        True,
    ),
    "mask and bias": ({"mask": MASK, "bias": BIAS}, BIAS, MASK),
    "segments": (
        {"segment_ids": np.repeat([0, 1], 5), "kv_segment_ids": np.repeat([0, 1], 7)},
        0,
        I // 5 == J // 7,
    ),
    "padding": (
        {"kv_lengths": [14, 9], "key_padding_mask": J % 5 > 0},
        0,
        (np.array([14, 9])[:, None, None, None] > J) & (J % 5 > 0),
    ),
}


def by_hand(added, seen, keys, queries=slice(0, 10)):
    """Return context and lse of some keys and queries, in plain NumPy."""
    scores = QUERY @ KEY.swapaxes(2, 3) / np.sqrt(8) + added
    powers = np.where(seen, np.exp(scores), 0)[:, :, queries, keys]
    total = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(powers @ VALUE[:, :, keys] / total), np.log(total[..., 0])


def solved(keys=None, queries=None, arrays=(QUERY, KEY, VALUE), **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", attncli.AttnWarning)
        problem = attncli.pose(*arrays, keys=keys, queries=queries, **options)
        made = attncli.solve(problem, ("context", "lse"))
    return made.context, made.lse


@pytest.mark.parametrize("name", RULES)
def test_a_part_is_that_of_the_whole(name):
    options, added, seen = RULES[name]
    right = by_hand(added, seen, slice(5, 12), slice(3, 9))
    for made, expected in zip(solved((5, 12), (3, 9), **options), right, strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-12, atol=1e-13)


def test_rope_turns_by_the_positions_of_the_whole():
    def turned(rows, places):
        angles = places[:, None] * 10000.0 ** (-np.arange(4) / 4)
        made = (rows[..., :4] + 1j * rows[..., 4:]) * np.exp(1j * angles)
        return np.concatenate([made.real, made.imag], -1)

    scores = turned(QUERY, I[:, 0] + 4) @ turned(KEY, J).swapaxes(2, 3) / np.sqrt(8)
    powers = np.exp(scores)[..., 5:]
    right = powers @ VALUE[:, :, 5:] / powers.sum(-1, keepdims=True)
    made, _ = solved((5, None), rope="half", causal_align="bottom-right")
    np.testing.assert_allclose(made, right, rtol=1e-11, atol=1e-12)


def test_arrays_may_hold_the_part_alone():
    options = {"mask": MASK[2:8, 5:14], "causal": True, "query_offset": 4}
    alone = QUERY[:, :, 2:8], KEY[:, :, 5:14], VALUE[:, :, 5:14]
    seen = MASK & (J <= I + 4)
    made = solved((5, 14), (2, 8), alone, **options)
    for one, right in zip(made, by_hand(0, seen, slice(5, 14), slice(2, 8)), strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-12, atol=1e-13)


def test_merged_parts_count_sinks_once():
    parts = [solved(span, sinks=SINKS) for span in ((0, 5), (5, 9), (9, 14))]
    scores = QUERY @ KEY.swapaxes(2, 3) / np.sqrt(8)
    total = np.exp(scores).sum(-1) + np.exp(SINKS)[:, None]
    made = attncli.merge(parts)
    np.testing.assert_allclose(made.lse, np.log(total), rtol=1e-12)
    np.testing.assert_allclose(made.context, np.exp(scores) @ VALUE / total[..., None], rtol=1e-11)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keys": (5, 20)}, "key"),
        ({"keys": (20, None)}, "20"),
        ({"keys": (5, 5)}, "keys"),
        ({"queries": "0:4"}, "queries"),
        ({"keys": (0, 14), "causal": True, "causal_align": "bottom-right"}, "query_offset"),
        ({"keys": (5, 9), "mask": np.ones((10, 6), bool)}, "mask"),
        ({"keys": (5, 9), "rope": "half", "score": "additive", "query_offset": 0}, "rope"),
    ],
)
def test_parts_that_are_none_are_refused(options, words):
    with pytest.raises(attncli.AttnError, match=words):
        attncli.pose(QUERY, KEY, VALUE, **options)


# --- on the command line -----------------------------------------------------------------------


def test_parts_are_computed_judged_and_merged(folder, attncli):
    np.savez("whole.npz", query=QUERY, key=KEY, value=VALUE, sinks=SINKS)
    rules = ["--causal", "--causal-align", "bottom-right"]
    files = []
    for start, stop in ((0, 6), (6, 14)):
        files.append(f"part{start}.npz")
        words = ["whole.npz", *rules, "--keys", f"{start}:{stop}", "--queries", "2:"]
        attncli("compute", *words, "--show", "context,lse", "--save", files[-1]).good()
        attncli("check", *words, "--expect", files[-1], "--expect", f"lse={files[-1]}").good()
    attncli("merge", *files, "--save", "merged.npz").good()
    judged = ["check", "whole.npz", *rules, "--queries", "2:10", "--expect", "merged.npz"]
    attncli(*judged).good()
    with np.load("merged.npz") as file:
        whole = np.concatenate([np.zeros((2, 4, 2, 8)), file["context"]], 2)
    np.save("all.npy", whole)
    assert attncli(*judged[:-1], "all.npy").code == 0
    np.save("all.npy", whole + 1)
    assert attncli(*judged[:-1], "all.npy").code == 1


@pytest.mark.parametrize("words", ["4", "4:2", "a:b", "-3:4", "4:4"])
def test_a_wrong_range_is_told(words, folder, attncli):
    np.savez("whole.npz", query=QUERY, key=KEY, value=VALUE)
    ran = attncli("compute", "whole.npz", f"--keys={words}")
    assert (ran.code, ran.messages[0][:13]) == (2, "error: --keys")


# --- what was done wrong -----------------------------------------------------------------------


def named(output, **options):
    report = attncli.check(output, attncli.pose(QUERY, KEY, VALUE, **options), time_limit=100)
    return [cause.name for cause in report.diagnosis.explanations]


def test_own_positions_of_a_part_are_named():
    wrong, _ = by_hand(0, J - 5 <= I + 4, slice(5, 14), slice(0, 10))
    assert "positions_of_part" in named(wrong, keys=(5, 14), causal=True, query_offset=4)


def test_sinks_in_a_later_part_are_named():
    scores = (QUERY @ KEY.swapaxes(2, 3) / np.sqrt(8))[..., 5:]
    total = np.exp(scores).sum(-1, keepdims=True) + np.exp(SINKS)[:, None, None]
    wrong = np.exp(scores) @ VALUE[:, :, 5:] / total
    assert "sinks_in_every_part" in named(wrong, keys=(5, 14), sinks=SINKS)


@pytest.mark.parametrize("outputs", ["context", "weights"])
@pytest.mark.parametrize("rules", [{}, {"causal": True, "causal_align": "top-left"}], ids=str)
def test_queries_cut_between_blocks_give_the_bits_of_the_whole(rules, outputs):
    random = np.random.default_rng(3)
    query, key, value = (random.normal(size=(1, 2, rows, 8)) for rows in (1100, 1500, 1500))
    whole = attncli.attention(query, key, value, outputs=outputs, **rules)
    for span in ((0, 512), (512, 1024), (1024, 1100)):
        posed = attncli.pose(query, key, value, queries=span, **rules)
        part = attncli.solve(posed, outputs=outputs)
        same = getattr(whole, outputs)[:, :, slice(*span)]
        np.testing.assert_array_equal(getattr(part, outputs), same)
