"""Near the ends of the number format: nothing small is lost because of what is large elsewhere.

float32 goes from 1e-38 to 3e38, and float64 is the oracle; a loop with `math.fsum` where that
is not enough.
"""

import math

import numpy as np
import pytest

from attncli import attention

pytestmark = pytest.mark.usefixtures("processors")

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


@pytest.mark.parametrize(("queries", "keys"), [(512, 4096), (20, 65_536), (1, IN_PARTS)])
@pytest.mark.parametrize("top", [98, 104, 110, 120])
def test_large_values_whose_scores_are_high_until_a_higher_one_comes(queries, keys, top):
    """The highest score rises by more than float32 has powers of e for, the sums' own do not."""
    query, key = np.ones((queries, 1), "f4"), np.zeros((keys, 1), "f4")
    key[keys // 3 : keys // 2] = 39
    key[-512:] = top
    value = np.zeros((keys, 2), "f4")
    value[:, 1] = 1
    value[keys // 3 : keys // 2, 0] = 1e30
    answer = attention(query, key, value, layout="sd", scale=1, outputs=("context",))
    near(answer.context, plain(query[:1], key, value).repeat(queries, 0), rtol=2e-5, atol=1e-36)


@pytest.mark.parametrize("rules", [{}, {"bias": np.zeros((1, 1))}, {"sinks": [-50.0]}])
@pytest.mark.parametrize(("queries", "keys"), [(600, 8192), (20, 70_000), (5, 40_000)])
@pytest.mark.parametrize(
    ("dtype", "high", "top", "size"),
    [
        *[("float32", 39, 119.5, 1e30), ("float32", 39, 119.5, 1e20)],
        *[("float64", 290, 970, 1e300), ("float64", 290, 970, 1e200)],
    ],
)
def test_sums_that_overflow_before_a_higher_score_comes(
    dtype, high, top, size, queries, keys, rules
):
    """Exponentials that are negligible beside it count, times such values."""
    first, behind = keys * 3 // 8, keys // 2 - 97
    query, key, value = (np.ones((n, w), dtype) for n, w in ((queries, 1), (keys, 1), (keys, 2)))
    key[:] = 0
    key[first:behind], key[behind : behind + 256] = high, top
    value[:, 0] = 0
    value[first:behind, 0] = size
    answer = attention(
        query[None], key[None], value[None], layout="hsd", scale=1, outputs=("context",), **rules
    )
    scores = key[:, 0].astype(np.longdouble) - top
    weights = np.exp(scores) / np.exp(scores).sum()
    near(answer.context[0, :, 0], float(weights @ value[:, 0].astype(np.longdouble)), rtol=1e-3)


@pytest.mark.parametrize("score", [50.0, 200.0])
@pytest.mark.parametrize(("queries", "keys"), [(1, 2000), (70, 2000), (70, 30_000), (1, IN_PARTS)])
def test_a_last_key_that_outweighs_large_values(queries, keys, score):
    query, key = np.ones((queries, 1), np.float32), np.zeros((keys, 1), np.float32)
    value = np.full((keys, 1), 3e38, np.float32)
    key[-1], value[-1] = score, 1e-34
    answer = attention(query, key, value, scale=1, outputs=("context",))
    near(answer.context, plain(query, key, value), rtol=1e-4)


@pytest.mark.parametrize("outputs", OUTPUTS, ids="-".join)
@pytest.mark.parametrize("length", [3, 600])
@pytest.mark.parametrize("sink", [10.0, 35.0, 85.0, 95.0, 150.0])
def test_a_sink_that_leaves_little_of_large_values(length, sink, outputs):
    query, key, value = inputs(length, length, size=0.1)
    value = np.float32(1e37) * (1 + np.abs(value))
    answer = attention(query, key, value, scale=1, sinks=[sink], outputs=outputs)
    near(answer.context, plain(query, key, value, sink=sink), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("score", [-30.0, -1e4, -1e9, -1e17])
@pytest.mark.parametrize("length", [1, 300])
def test_a_sink_far_above_all_scores_keeps_its_digits_in_the_lse(length, score, dtype):
    query = np.zeros((length, 2), dtype)
    answer = attention(query, query, bias=[[score]], sinks=[0.7], outputs=("lse",))
    eps = np.finfo(dtype).eps
    near(answer.lse, math.log(math.exp(0.7) + length * math.exp(score)), rtol=2 * eps)


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


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(n, marks=pytest.mark.long) for n in range(12, 900))]
)
def test_values_of_all_sizes(seed):
    """Against float64, where weights below 1e-38 are not 0."""
    random = np.random.default_rng(seed)
    queries, keys = (int(random.choice([1, 5, 40, 300, 700])) for _ in range(2))
    width, columns = (int(random.choice([1, 3, 8])) for _ in range(2))
    query, key, _ = inputs(queries, keys, width, size=10 ** random.uniform(-3, 2.5))
    extent = random.choice([1, keys]), random.choice([1, columns])
    sizes = 10 ** random.uniform(random.uniform(-36, 38), 38.5, extent)
    value = (random.uniform(-1, 1, (keys, columns)) * sizes).astype(np.float32)
    sink = float(random.choice([-np.inf, random.uniform(-100, 300)]))
    causal = bool(random.integers(2))
    outputs = OUTPUTS[random.integers(2)]
    options = {"causal": True, "causal_align": "top-left"} if causal else {}
    if sink > -np.inf:
        options["sinks"] = [sink]
    answer = attention(query, key, value, scale=1, outputs=outputs, **options)

    seen = np.tri(queries, keys, dtype=bool) if causal else None
    expected, of_sizes = (plain(query, key, x, sink, seen) for x in (value, np.abs(value)))
    highest = np.abs(query.astype(float) @ key.T).max() + (0 if sink == -np.inf else abs(sink))
    error = 1.2e-7 * (100 + keys + 20 * highest * (width + 1)) * of_sizes
    lost = 5e-38 * keys * (1 + np.abs(value).max(0).astype(float))
    assert (np.abs(answer.context - expected) <= error + lost).all()
