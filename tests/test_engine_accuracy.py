"""Speed is not paid for with accuracy: no output is further off than the plain formula's, by much.

The truth is computed in float64 (float32 under test) or in extended precision (float64).
"""

import numpy as np
import pytest
from nearness import assert_near

from attncli import attention

pytestmark = pytest.mark.usefixtures("processors")

ALL = ("raw", "scores", "weights", "context", "lse")
WAYS = [ALL, ("weights", "context", "lse"), ("context", "lse"), ("context",)]
TRUTH = {"float32": np.float64, "float64": np.longdouble}


def formula(query, key, value, scale, bias=0):
    """Return every output by the formula as textbooks write it, in the inputs' precision."""
    scale = query.dtype.type(scale)
    raw = query @ key.swapaxes(-1, -2) * scale
    scores = raw + query.dtype.type(bias)
    top = scores.max(-1, keepdims=True)
    # In place: memory that is new each time takes as long as the exponentials.
    weights = scores - top
    np.exp(weights, out=weights)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    lse = (np.log(total) + top)[..., 0]
    return {
        "raw": raw,
        "scores": scores,
        "weights": weights,
        "context": weights @ value,
        "lse": lse,
    }


def inputs(dtype, shape, spread, seed=0):
    random = np.random.default_rng(seed)
    query, key, value = random.standard_normal((3, *shape))
    # The spread of a product of two rows of `width` normal numbers is √width.
    factor = np.sqrt(spread / np.sqrt(shape[-1]))
    return [x.astype(dtype) for x in (query * factor, key * factor, value)]


def assert_as_near_as_the_formula(qkv, dtype, outputs, scale=1.0, bias=0, heads=None, **options):
    """Look at a part of the queries, and of the heads: extended precision takes its time."""
    query, key, value = (x[:heads] for x in qkv)
    # Every place of a panel is among them.
    rows = slice(None, None, 3 if query.shape[1] > 100 else 1)
    judged = query[:, rows], key, value
    bias = bias[rows] if np.ndim(bias) else bias
    truth = formula(*(x.astype(TRUTH[dtype]) for x in judged), scale, bias)
    plain = formula(*judged, scale, bias)
    answer = attention(*qkv, layout="hsd", scale=scale, outputs=outputs, **options)
    eps = float(np.finfo(dtype).eps)
    for name in outputs:
        size = float(np.abs(truth[name]).max())
        error = float(np.abs(getattr(answer, name)[:heads, rows] - truth[name]).max())
        allowed = 4 * float(np.abs(plain[name] - truth[name]).max()) + eps * size
        assert error <= allowed, (
            f"{name}: off by {error:.3g}, the formula's error allows {allowed:.3g}"
        )


@pytest.mark.parametrize("outputs", WAYS, ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
# Scores within what needs no shift, and of about ±1e4.
@pytest.mark.parametrize("spread", [1.0, 8.0, 3000.0])
class TestEveryOutputIsAsNearAsTheFormula:
    def test_where_the_problem_is_cut_into_tiles(self, dtype, outputs, spread):
        qkv = inputs(dtype, (1, 600, 64), spread)
        assert_as_near_as_the_formula(qkv, dtype, outputs)

    def test_where_it_is_computed_at_once(self, dtype, outputs, spread):
        qkv = inputs(dtype, (2, 50, 8), spread)
        assert_as_near_as_the_formula(qkv, dtype, outputs)


@pytest.mark.parametrize("outputs", WAYS[1:], ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("left", "right", "offset"),
    [(None, 0, 0), (300, 0, 0), (40, 30, 0), (None, 100, 70), (590, 580, -10)],
)
def test_bands_of_any_width_in_long_blocks(left, right, offset, dtype, outputs):
    qkv = inputs(dtype, (8, 600, 16), 1.0)
    behind = np.arange(600)[:, None] + offset - np.arange(600)
    seen = (behind >= -right) & (left is None or behind <= left)
    options = {"window": (left, right), "query_offset": offset}
    hidden = np.where(seen, 0, -np.inf)
    assert_as_near_as_the_formula(qkv, dtype, outputs, bias=hidden, heads=1, **options)


@pytest.mark.parametrize("outputs", [("context",), ("weights", "context")], ids="-".join)
class TestTheEndsOfTheNumberFormat:
    """float32 goes from 1e-38 to 3e38: exponentials that were not shifted may leave it."""

    @pytest.mark.parametrize("size", [1e-36, 1e-30, 1e30, 1e36])
    def test_values_of_any_size_give_a_context_of_that_size(self, outputs, size):
        query, key, value = inputs("float32", (1, 600, 64), 9.0)
        expected = formula(*(x.astype(float) for x in (query, key, value)), 1.0)["context"]
        answer = attention(
            query, key, value * np.float32(size), layout="hsd", scale=1, outputs=outputs
        )
        assert_near(answer.context / size, expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("step", [5.0, 60.0])
    def test_scores_that_rise_or_fall_from_tile_to_tile(self, outputs, step):
        key = np.repeat(np.arange(6.0, dtype=np.float32), 600)[None, :, None] * step
        for direction in (1, -1):
            query = np.full((1, 600, 1), direction, np.float32)
            value = np.random.default_rng(0).standard_normal((1, 3600, 4), np.float32)
            answer = attention(query, key, value, layout="hsd", scale=1, outputs=outputs)
            # All queries are alike.
            wide = [x.astype(float) for x in (query[:, :1], key, value)]
            expected = formula(*wide, 1.0)
            context = np.broadcast_to(expected["context"], answer.context.shape)
            assert_near(answer.context, context, rtol=1e-4, atol=1e-6)
            if "weights" in outputs:
                weights = np.broadcast_to(expected["weights"], answer.weights.shape)
                assert_near(answer.weights, weights, rtol=1e-4, atol=1e-37)


@pytest.mark.parametrize("outputs", [ALL, ("context", "lse")], ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("queries", [5, 600])
class TestTheLargestNumbersThatAreTaken:
    """What is added to scores and the scores together stay finite, and the weights are right."""

    def assert_weights(self, expected, queries, dtype, outputs, **options):
        """Compare with weights (L, L), those of the rows that `expected` is given for."""
        *qk, value = inputs(dtype, (1, queries, 8), 1.0)
        answer = attention(*qk, value, layout="hsd", outputs=outputs, **options)
        for name in set(outputs) - {"scores"}:
            assert np.isfinite(getattr(answer, name)).all(), name
        rows = ~np.isnan(expected).any(-1)
        near = {"rtol": 1e-4, "atol": 1e-5}
        if "weights" in outputs:
            assert_near(answer.weights[0, rows], expected[rows], **near)
        if "context" in outputs:
            context = expected[rows] @ value[0]
            assert_near(answer.context[0, rows], context, **near)

    def farthest(self, queries):
        """Return weights that are all on the key that lies farthest, NaN where two do."""
        rows = np.arange(queries)
        weights = np.zeros((queries, queries))
        weights[rows, np.where(2 * rows > queries - 1, 0, queries - 1)] = 1
        weights[2 * rows == queries - 1] = np.nan
        return weights

    def most(self, dtype):
        return float(np.finfo(dtype).max) / 4

    def test_slopes(self, queries, dtype, outputs):
        for sign, weights in ((1, np.eye(queries)), (-1, self.farthest(queries))):
            slope = sign * self.most(dtype) / queries
            self.assert_weights(weights, queries, dtype, outputs, alibi_slopes=[slope])

    def test_a_sink(self, queries, dtype, outputs):
        none = np.zeros((queries, queries))
        self.assert_weights(none, queries, dtype, outputs, sinks=[self.most(dtype)])


LEAST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("outputs", [("context",), ("lse",), ("context", "lse"), ALL], ids="-".join)
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 4096), (8, 4096), (520, 520), (1030, 1030)], ids=str
)
def test_a_bias_of_the_least_number_hides_as_a_mask_does(queries, keys, outputs):
    """The additive mask of Transformers, which has no finite value in bits."""
    random = np.random.default_rng(0)
    query, key, value = (
        random.standard_normal((2, n, 32), np.float32) for n in (queries, keys, keys)
    )
    seen = np.tri(queries, keys, (keys - queries) // 2, dtype=bool)
    bias = np.where(seen, np.float32(0), np.float32(LEAST))
    answer = attention(query, key, value, layout="hsd", bias=bias, outputs=outputs)
    truth = formula(*(x.astype(np.float64) for x in (query, key, value)), 32**-0.5, bias)
    for name in outputs:
        assert_near(getattr(answer, name), truth[name], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("outputs", WAYS, ids="-".join)
@pytest.mark.parametrize("power", [55, 62])
def test_products_beyond_the_range_that_the_scale_brings_back(power, outputs):
    """The numbers have few digits; multiplied before they are scaled, the larger are infinite."""
    random = np.random.default_rng(0)
    query, key, value = random.integers(-8, 9, (3, 1, 600, 8)).astype("f4")
    size = np.float32(2.0**power)
    large = query * size, key * size, value
    scale = 2.0 ** (-2 * power) * 0.3
    answer = attention(*large, layout="hsd", scale=scale, outputs=outputs)
    right = formula(*(x.astype("f8") for x in (query, key, value)), 0.3)
    for name in outputs:
        np.testing.assert_allclose(getattr(answer, name), right[name], rtol=1e-4, atol=1e-4)
