"""The oracle itself, against numbers worked out by hand.

Expected digits come from closed forms that stand beside them; none was computed by
the oracle or by the engine.
"""

import math

import numpy as np
import pytest
from oracle import alibi_slopes, attention_oracle, rotate

INF = math.inf
E = math.e
# e²/(e² + 2e) and e/(e² + 2e): the softmax of (2, 1, 1).
SOFTMAX_211 = [0.5761168847658291, 0.21194155761708544, 0.21194155761708544]


def close(expected):
    return pytest.approx(np.array(expected, dtype=float), rel=1e-15, abs=1e-15)


def zeros(*shape):
    return np.zeros(shape)


def seen(length, keys, **options):
    """Draw who sees what, a letter a key, from problems whose scores are all 0."""
    q, k = zeros(length, 2), zeros(keys, 2)
    scores = attention_oracle(q, k, zeros(keys, 1), **options)["scores"]
    return ["".join("1" if s > -INF else "." for s in row) for row in scores]


def test_softmax_of_2_1_1():
    answer = attention_oracle([[1.0]], [[2.0], [1.0], [1.0]], [[1, 0], [0, 1], [0, 1]], scale=1)
    assert answer["raw"] == close([[2, 1, 1]])
    assert answer["weights"] == close([SOFTMAX_211])
    assert answer["context"] == close([[SOFTMAX_211[0], 1 - SOFTMAX_211[0]]])
    assert answer["lse"] == close([math.log(E**2 + 2 * E)])


def test_default_scale_is_one_over_root_d():
    assert attention_oracle([[2, 0, 0, 0]], [[3, 0, 0, 0]], [[1]])["raw"] == close([[3]])
    assert attention_oracle([[2, 0]], [[3, 0]], [[1]], scale=0.5)["raw"] == close([[3]])


def test_softcap_comes_before_bias_and_mask():
    answer = attention_oracle(
        [[1]], [[2], [2], [2]], zeros(3, 1), softcap=2, bias=[5, -INF, 0], mask=[1, 1, 0]
    )
    capped = 2 * math.tanh(1)
    assert answer["raw"] == close([[2, 2, 2]])
    assert answer["capped"] == close([[capped] * 3])
    assert answer["scores"] == close([[capped + 5, -INF, -INF]])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"causal": True}, ["1....", "11...", "111.."]),
        ({"causal": True, "causal_align": "bottom-right"}, ["111..", "1111.", "11111"]),
        ({"causal": True, "causal_align": "bottom-right", "kv_lengths": 4}, ["11", "111", "1111"]),
        ({"causal": True, "query_offset": -1}, [".....", "1....", "11..."]),
        ({"window": 1}, ["11...", "111..", ".111."]),
        ({"window": (0, -1)}, ["11111", ".1111", "..111"]),
        ({"window": (None, 1)}, ["11...", "111..", "1111."]),
        ({"window": (1, 0), "causal_align": "bottom-right"}, [".11..", "..11.", "...11"]),
        ({"kv_lengths": 2}, ["11...", "11...", "11..."]),
        ({"query_lengths": 1}, ["11111", ".....", "....."]),
        ({"mask": [[1], [0], [1]], "mask_means": "drop"}, [".....", "11111", "....."]),
        ({"key_padding_mask": [1, 1, 0, 1, 0]}, ["11.1."] * 3),
    ],
)
def test_who_sees_what(options, expected):
    assert seen(3, 5, **options) == [row.ljust(5, ".") for row in expected]


def test_a_row_that_sees_nothing_is_zeros():
    answer = attention_oracle(zeros(1, 1), zeros(2, 1), [[7], [8]], mask=[0, 0])
    assert answer["weights"].tolist() == [[0, 0]]
    assert answer["context"].tolist() == [[0]]
    assert answer["lse"].tolist() == [-INF]


def test_sinks_count_in_the_denominator_only():
    per_head = {"sinks": [0, math.log(2)], "layout": "hsd"}
    answer = attention_oracle(zeros(2, 1, 1), zeros(2, 2, 1), zeros(2, 2, 1) + 6, **per_head)
    assert answer["weights"] == close([[[1 / 3, 1 / 3]], [[1 / 4, 1 / 4]]])
    assert answer["context"] == close([[[4]], [[3]]])
    assert answer["lse"] == close([[math.log(3)], [math.log(4)]])
    nothing = attention_oracle(zeros(2, 1, 1), zeros(2, 2, 1), zeros(2, 2, 1), mask=[0], **per_head)
    assert nothing["weights"].tolist() == [[[0, 0]], [[0, 0]]]
    assert nothing["lse"] == close([[0], [math.log(2)]])


def test_alibi_slopes_of_the_paper():
    assert alibi_slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert alibi_slopes(1) == [1 / 256]
    between = [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert alibi_slopes(12) == [*alibi_slopes(8), *between]
    assert alibi_slopes(3) == [1 / 16, 1 / 256, 1 / 4]


def test_alibi_subtracts_slope_times_distance():
    answer = attention_oracle(
        zeros(2, 2, 1), zeros(2, 3, 1), zeros(2, 3, 1), layout="hsd", alibi_slopes=[1, 10]
    )
    assert answer["scores"][0].tolist() == [[0, -1, -2], [-1, 0, -1]]
    assert answer["scores"][1].tolist() == [[0, -10, -20], [-10, 0, -10]]
    moved = attention_oracle(
        zeros(1, 1), zeros(3, 1), zeros(3, 1), alibi_slopes=[1], query_offset=2
    )
    assert moved["scores"].tolist() == [[-2, -1, 0]]


def test_rope_turns_by_position_times_frequency():
    assert rotate([1, 0], 1, "half", 10000) == close([math.cos(1), math.sin(1)])
    assert rotate([0, 1], 2, "interleaved", 7) == close([-math.sin(2), math.cos(2)])
    # With base 10⁴ and D = 4 the second pair turns by 1/100 a position.
    c1, s1, c2, s2 = math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)
    assert rotate([1, 10, 0, 0], 3, "half", 10000) == close([c1, 10 * c2, s1, 10 * s2])
    assert rotate([1, 0, 10, 0], 3, "interleaved", 10000) == close([c1, s1, 10 * c2, 10 * s2])


def test_grouped_heads_read_their_key_head():
    answer = attention_oracle(
        np.ones((4, 1, 1)), [[[1]], [[2]]], [[[10]], [[20]]], layout="hsd", scale=1
    )
    assert answer["raw"].ravel().tolist() == [1, 1, 2, 2]
    assert answer["context"].ravel().tolist() == [10, 10, 20, 20]


def test_other_scores():
    q, k, v = [[3.0, 4.0]], [[4.0, 3.0], [-6.0, -8.0]], zeros(2, 1)
    assert attention_oracle(q, k, v, score="cosine")["raw"] == close([[0.96, -1]])
    assert attention_oracle(q, k, v, score="cosine", scale=10)["raw"] == close([[9.6, -10]])
    general = attention_oracle(q, k, v, score="general", score_weight=[[0, 1], [0, 0]])
    assert general["raw"] == close([[9, -24]])
    additive = attention_oracle(q, k, v, score="additive", score_vector=[1, 10])
    assert additive["raw"] == close([[11 * math.tanh(7), -math.tanh(3) - 10 * math.tanh(4)]])
    assert attention_oracle([[1, 0]], [[0, 2]], [[1]], score="additive")["raw"] == close(
        [[math.tanh(1) + math.tanh(2)]]
    )
