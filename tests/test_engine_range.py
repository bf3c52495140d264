"""Near the ends of the number format: nothing small is lost because of what is large elsewhere.

float32 goes from 1e-38 to 3e38, and float64 is the oracle; a loop with `math.fsum` where that
is not enough.
"""

import math

import numpy as np
import pytest

from attncli import attention

# One query's keys are cut into parts, whose sums are merged.
IN_PARTS = 140_000
OUTPUTS = [("context",), ("weights", "context")]
near = np.testing.assert_allclose


def plain(query, key, value, sink=-np.inf, seen=None):
    """Return the context of one head, in float64."""
    scores = query.astype(float) @ key.astype(float).T
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    highest = np.maximum(scores.max(1, keepdims=True), sink)
    powers = np.exp(scores - highest)
    return powers @ value.astype(float) / (powers.sum(1, keepdims=True) + np.exp(sink - highest))


def inputs(queries, keys, width=8, size=1.0):
    random = np.random.default_rng(3)
    query = random.standard_normal((queries, width), np.float32) * np.float32(size)
    return query, *random.standard_normal((2, keys, width), np.float32)


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize("size", [1.0, 30.0])
@pytest.mark.parametrize("length", [4, 40, 600])
def test_small_contexts_beside_those_of_hidden_values_that_overflow(length, size, outputs):
    query, key, value = inputs(length, length, size=size)
    half = length // 2
    value = np.abs(value) * np.float32(1e-34)
    value[half:] = 3e38
    answer = attention(query, key, value, causal=True, scale=1, outputs=outputs)
    expected = plain(query, key, value, seen=np.tri(length, dtype=bool))
    assert expected[:half].max() < 1e-33
    near(answer.context[:half], expected[:half], rtol=1e-3 if size > 1 else 1e-5)
    # Weights below 1e-38 are 0, also times 3e38.
    near(answer.context[half:], expected[half:], rtol=1e-3, atol=100)
    assert answer.context[half:].max() > 1e37


@pytest.mark.parametrize(("queries", "keys"), [(1, IN_PARTS), (3, 30_000), (600, 5000)])
def test_small_columns_beside_large_ones(queries, keys):
    query, key, value = inputs(queries, keys)
    value = np.abs(value)
    value[:, 0] = 3e38
    value[:, 1:] *= np.float32(1e-34)
    answer = attention(query, key, value, scale=1, outputs=("context",))
    near(answer.context, plain(query, key, value), rtol=1e-4)


@pytest.mark.parametrize("score", [50.0, 200.0])
@pytest.mark.parametrize(("queries", "keys"), [(1, 2000), (70, 2000), (70, 30_000), (1, IN_PARTS)])
def test_a_last_key_that_outweighs_large_values(queries, keys, score):
    query, key = np.ones((queries, 1), np.float32), np.zeros((keys, 1), np.float32)
    value = np.full((keys, 1), 3e38, np.float32)
    key[-1], value[-1] = score, 1e-34
    answer = attention(query, key, value, scale=1, outputs=("context",))
    near(answer.context, plain(query, key, value), rtol=1e-4)


def test_a_sum_that_overflows_when_parts_are_merged():
    query, key = np.zeros((1, 1), np.float32), np.zeros((IN_PARTS, 1), np.float32)
    value = np.full((IN_PARTS, 1), 4e38 / IN_PARTS, np.float32)  # no half of them does
    answer = attention(query, key, value, outputs=("context",))
    near(answer.context, value[:1], rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
def test_every_value_the_largest_number(dtype, outputs):
    largest = np.finfo(dtype).max / 1.0001
    query, key, _ = (x.astype(dtype) for x in inputs(30, 500))
    value = np.full((500, 2), largest, dtype)
    value[:, 1] *= -1
    answer = attention(query, key, value, outputs=outputs)
    near(answer.context / largest, np.tile([1, -1], (30, 1)), rtol=1e-5)


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize("length", [3, 600])
@pytest.mark.parametrize("sink", [10.0, 85.0, 95.0, 150.0])
def test_a_sink_that_leaves_little_of_large_values(length, sink, outputs):
    query, key, value = inputs(length, length, size=0.1)
    value = np.float32(1e37) * (1 + np.abs(value))
    answer = attention(query, key, value, scale=1, sinks=[sink], outputs=outputs)
    near(answer.context, plain(query, key, value, sink=sink), rtol=1e-5)


def test_sinks_above_some_queries_and_below_others():
    query, key, value = inputs(40, 60, size=1.0)
    query *= np.linspace(0, 100, 40, dtype=np.float32)[:, None]
    value = np.float32(1e37) * (1 + np.abs(value))
    answer = attention(query, key, value, scale=1, sinks=[120.0], outputs=("context",))
    near(answer.context, plain(query, key, value, sink=120.0), rtol=2e-4)


@pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")
def test_a_query_that_sees_no_key_stays_0_under_a_high_sink():
    query, key, value = inputs(3, 3)
    answer = attention(
        query, key, value * np.float32(1e37), mask=np.zeros((3, 3), bool), sinks=[95.0],
        outputs=("context",),
    )  # fmt: skip
    assert not answer.context.any()


@pytest.mark.parametrize("length", [1, 300])
@pytest.mark.parametrize("score", [1e-8, -1e-6, 3e-4, 0.012, -0.5])
@pytest.mark.parametrize("outputs", [("lse",), ("context", "lse")], ids="-".join)
def test_the_lse_of_one_key_is_its_score_to_the_last_digits(length, score, outputs):
    query = np.full((length, 1), score, np.float32)
    key, value = np.ones((2, length, 1), np.float32)
    answer = attention(query, key, value, causal=True, scale=1, softcap=30.0, outputs=outputs)
    expected = 30 * math.tanh(float(query[0, 0]) / 30)
    near(answer.lse[0], expected, rtol=1e-5)
    near(answer.lse, expected + np.log(np.arange(length) + 1.0), rtol=1e-5)
