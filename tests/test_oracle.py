"""The oracle itself, against numbers worked out by hand.

Expected digits come from closed forms that stand beside them; none was computed by
the oracle or by the engine.
"""

import math

import numpy as np
import pytest
from oracle import alibi_slopes, attention_2d, attention_oracle, rotate

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


def test_attention_2d_gives_the_same_numbers():
    weights, context = attention_2d([[1.0]], [[2.0], [1.0], [1.0]], [[1], [0], [0]])
    assert weights == [close(SOFTMAX_211)]
    assert context == [close(SOFTMAX_211[:1])]


def test_attention_2d_scales_and_hides():
    weights, context = attention_2d(
        [[2, 0, 0, 0], [2, 0, 0, 0]],
        [[2, 0, 0, 0], [1, 0, 0, 0]],
        [[10], [20]],
        seen=[[True, True], [False, False]],
    )
    assert weights == [close([E / (E + 1), 1 / (E + 1)]), [0, 0]]
    assert context == [close([(10 * E + 20) / (E + 1)]), [0]]


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
        ({"window": 0}, ["1....", ".1...", "..1.."]),
        ({"window": (0, -1)}, ["11111", ".1111", "..111"]),
        ({"window": (None, 1)}, ["11...", "111..", "1111."]),
        ({"window": (1, 0), "causal_align": "bottom-right"}, [".11..", "..11.", "...11"]),
        ({"window": (1, 1), "causal": True, "query_offset": 2}, [".11..", "..11.", "...11"]),
        ({"kv_lengths": 2}, ["11...", "11...", "11..."]),
        ({"query_lengths": 1}, ["11111", ".....", "....."]),
        ({"mask": [[1, 0, 0, 0, 1]]}, ["1...1"] * 3),
        ({"mask": [[1], [0], [1]], "mask_means": "drop"}, [".....", "11111", "....."]),
        ({"key_padding_mask": [1, 1, 0, 1, 0]}, ["11.1."] * 3),
        ({"key_padding_mask": [1, 1, 0, 1, 0], "mask_means": "drop"}, ["..1.1"] * 3),
        ({"causal": True, "mask": [0, 1, 1, 1, 1]}, [".....", ".1...", ".11.."]),
    ],
)
def test_who_sees_what(options, expected):
    assert seen(3, 5, **options) == [row.ljust(5, ".") for row in expected]


def test_lengths_and_offsets_are_read_per_batch():
    answer = attention_oracle(
        zeros(2, 1, 1), zeros(2, 3, 1), zeros(2, 3, 1), causal=True, query_offset=[0, 1]
    )
    assert answer["weights"].tolist() == [[[1, 0, 0]], [[0.5, 0.5, 0]]]
    answer = attention_oracle(
        zeros(2, 2, 1),
        zeros(2, 3, 1),
        zeros(2, 3, 1),
        causal=True,
        causal_align="bottom-right",
        kv_lengths=[3, 2],
        query_lengths=[2, 1],
    )
    third = 1 / 3
    assert answer["weights"][0] == close([[0.5, 0.5, 0], [third, third, third]])
    assert answer["weights"][1].tolist() == [[1, 0, 0], [0, 0, 0]]
    assert answer["lse"][1].tolist() == [0, -INF]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((3,), lambda b, h, i, j: j),
        ((2, 1), lambda b, h, i, j: 10 * i),
        ((4, 2, 3), lambda b, h, i, j: 100 * h + 10 * i + j),
        ((4, 1, 1), lambda b, h, i, j: 100 * h),
        ((2, 1, 1, 3), lambda b, h, i, j: 1000 * b + j),
    ],
)
def test_bias_broadcasts_from_the_right(shape, expected):
    indices = np.indices(shape)[::-1]
    bias = sum(10**place * index for place, index in enumerate(indices))
    key = zeros(2, 4, 3, 1)
    scores = attention_oracle(zeros(2, 4, 2, 1), key, key, bias=bias)["scores"]
    assert all(scores[cell] == expected(*cell) for cell in np.ndindex(2, 4, 2, 3))


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


def test_rope_scores_depend_on_the_distance():
    # The product of two unit vectors turned apart by i + offset − j is its cosine.
    answer = attention_oracle(
        [[1, 0]], [[1, 0], [1, 0]], zeros(2, 1), scale=1, rope="half", query_offset=3
    )
    assert answer["raw"] == close([[math.cos(3), math.cos(2)]])


def test_grouped_heads_read_their_key_head():
    answer = attention_oracle(
        np.ones((4, 1, 1)), [[[1]], [[2]]], [[[10]], [[20]]], layout="hsd", scale=1
    )
    assert answer["raw"].ravel().tolist() == [1, 1, 2, 2]
    assert answer["context"].ravel().tolist() == [10, 10, 20, 20]


def test_packed_heads_are_cut_from_the_width():
    answer = attention_oracle([[1, 2, 3, 4]], [[1, 1]], [[5, 6]], heads=4, kv_heads=2, scale=1)
    assert answer["raw"].tolist() == [[[1]], [[2]], [[3]], [[4]]]
    assert answer["context"].tolist() == [[5, 5, 6, 6]]
    assert answer["lse"].shape == (4, 1)


@pytest.mark.parametrize(
    ("layout", "query", "key", "value", "weights", "context"),
    [
        ("sd", (3, 2), (5, 2), (5, 4), (3, 5), (3, 4)),
        ("bsd", (2, 3, 2), (2, 5, 2), (2, 5, 4), (2, 3, 5), (2, 3, 4)),
        ("hsd", (6, 3, 2), (2, 5, 2), (2, 5, 4), (6, 3, 5), (6, 3, 4)),
        ("shd", (3, 6, 2), (5, 2, 2), (5, 2, 4), (6, 3, 5), (3, 6, 4)),
        ("bhsd", (2, 6, 3, 2), (2, 3, 5, 2), (2, 3, 5, 4), (2, 6, 3, 5), (2, 6, 3, 4)),
        ("bshd", (2, 3, 6, 2), (2, 5, 3, 2), (2, 5, 3, 4), (2, 6, 3, 5), (2, 3, 6, 4)),
    ],
)
def test_shapes_of_every_layout(layout, query, key, value, weights, context):
    answer = attention_oracle(zeros(*query), zeros(*key), zeros(*value), layout=layout)
    assert answer["weights"].shape == answer["raw"].shape == weights
    assert answer["lse"].shape == weights[:-1]
    assert answer["context"].shape == context


def test_layout_names_the_axes_of_the_numbers():
    # Query head h at position i is 10·i + h; the only key is 1.
    query = [[[0], [1]], [[10], [11]], [[20], [21]]]
    answer = attention_oracle(query, [[[1], [1]]], [[[1], [2]]], layout="shd", scale=1)
    assert answer["raw"].tolist() == [[[0], [10], [20]], [[1], [11], [21]]]
    assert answer["context"].tolist() == [[[1], [2]]] * 3


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


def test_fewer_frequencies_turn_fewer_components():
    cosine, sine = math.cos(0.6), math.sin(0.6)
    turned = [2 * cosine - 5 * sine, 3, 4, 5 * cosine + 2 * sine]
    # Pair 0 of one is (0, 1), in both pairings.
    for pairing in ("half", "interleaved"):
        found = rotate([2, 5, 3, 4], 3, pairing, 0, [0.2])
        assert found == close([turned[0], turned[3], 3, 4])
    found = rotate([2, 3, 5, 4, 7], 3, "half", 0, [0.2, 0])
    assert found == close([turned[0], 3, turned[3], 4, 7])
