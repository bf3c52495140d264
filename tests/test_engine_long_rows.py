"""Long rows: rounding errors do not grow with the number of keys."""

import numpy as np
import pytest
from test_engine_accuracy import formula

from attncli import attention


@pytest.mark.parametrize("queries", [17, 31, 300])
def test_errors_of_one_sign_do_not_grow_with_the_number_of_keys(queries):
    # Keys that are all alike: each addition errs the same way as the one before it.
    for size in (0.3, 0.7):
        query, key = (np.full((n, 16), size, np.float32) for n in (queries, 16384))
        value = np.ones((16384, 64), np.float32)
        answer = attention(query, key, value, outputs=("context", "lse"))
        exact = 4 * float(np.float32(size)) ** 2 + np.log(16384)
        assert np.abs(answer.context - 1).max() < 1e-5
        assert np.abs(answer.lse - exact).max() < 1e-5


@pytest.mark.parametrize("keys", [240, 1000, 4000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_of_one_sign_are_few_in_weights_too(dtype, keys):
    # NumPy, which adds in pairs, errs by up to 2.6 units here.
    random = np.random.default_rng(1)
    query = random.standard_normal((600, 16)).astype(dtype)
    key = np.repeat(random.standard_normal((1, 16)), keys, axis=0).astype(dtype)
    weights = attention(query, key, outputs=("weights",)).weights
    assert np.abs(weights * keys - 1).max() < 4 * 2.6 * np.finfo(dtype).eps


@pytest.mark.parametrize("outputs", [("weights", "context", "lse"), ("context",)], ids="-".join)
@pytest.mark.parametrize("width", [3, 130])
@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        (1, 40_000),
        pytest.param(1, 131_072, marks=pytest.mark.long),
        (1, 300_000),
        (2, 200_000),
        pytest.param(600, 40_000, marks=pytest.mark.long),
        (100, 40_000),
    ],
)
def test_rounding_errors_do_not_grow_with_the_number_of_keys(queries, keys, width, outputs):
    """Values of one sign, whose rounding errors do not cancel, and weights that add up to 1."""
    random = np.random.default_rng(0)
    query = random.standard_normal((queries, 8), np.float32)
    key = random.standard_normal((keys, 8), np.float32)
    if keys * width > 10_000_000:
        width = 8
    value = 100 + random.standard_normal((keys, width), np.float32)
    answer = attention(query, key, value, outputs=outputs)
    some = slice(None, None, 50)
    truth = formula(*(x.astype(np.float64) for x in (query[some], key, value)), 8**-0.5)
    eps = float(np.finfo(np.float32).eps)
    # A product adds up 4,096 keys at most in sequence.
    np.testing.assert_allclose(answer.context[some], truth["context"], rtol=16 * eps)
    if "weights" in outputs:
        total = answer.weights[some].sum(axis=-1, dtype=np.float64)
        np.testing.assert_allclose(total, 1, rtol=3 * eps)
