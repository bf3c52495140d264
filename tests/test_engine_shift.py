"""Scores that no bound is known of are exponentiated without a shift so long as that is safe."""

import numpy as np
import pytest
from nearness import assert_near

from attncli import DataError, attention

ONLY = ("context", "lse")
QUERIES, KEYS, WIDTH = 320, 1200, 16
pytestmark = [
    pytest.mark.usefixtures("processors"),
    pytest.mark.filterwarnings("ignore:.*no alignment given"),
]


@pytest.fixture(params=["float32", "float64"])
def qkv(request):
    random = np.random.default_rng(3)
    lengths = QUERIES, KEYS, KEYS
    return [random.standard_normal((2, n, WIDTH)).astype(request.param) for n in lengths]


def formula(query, key, value, bias):
    """Return context and lse in float64; where a query sees nothing, 0 and -inf."""
    query, key, value = (array.astype(float) for array in (query, key, value))
    # In place: memory that is new each time takes as long as the exponentials.
    powers = query @ key.swapaxes(1, 2)
    powers /= np.sqrt(WIDTH)
    powers += bias
    highest = powers.max(-1, keepdims=True)
    powers -= np.where(np.isneginf(highest), 0, highest)
    np.exp(powers, out=powers)
    total = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + highest)[..., 0]
    return powers @ value / np.where(total == 0, 1, total), lse


def assert_is_the_formula(qkv, added, **options):
    answer = attention(*qkv, layout="hsd", outputs=ONLY, **options)
    context, lse = formula(*qkv, added)
    near = (
        {"rtol": 2e-4, "atol": 4e-5}
        if qkv[0].dtype == np.float32
        else {"rtol": 1e-10, "atol": 1e-12}
    )
    assert_near(answer.context, context, **near)
    assert_near(answer.lse, lse, **near)


def random_bias():
    return np.random.default_rng(4).standard_normal((2, QUERIES, KEYS))


class TestABias:
    def test_of_moderate_numbers_needs_no_shift(self, qkv):
        bias = 3 * random_bias()
        assert_is_the_formula(qkv, bias, bias=bias)

    @pytest.mark.parametrize("key", [0, 500, KEYS - 1])
    def test_too_high_for_some_keys(self, key, qkv):
        bias = random_bias()
        bias[:, 70:, key] += 1000
        assert_is_the_formula(qkv, bias, bias=bias)

    @pytest.mark.parametrize("low", [-10, -60, -80, -700, -1000])
    def test_low_for_all_keys_of_some_queries(self, low, qkv):
        bias = random_bias()
        bias[:, 100:200] += low
        assert_is_the_formula(qkv, bias, bias=bias)

    @pytest.mark.parametrize("hidden", [-np.inf, -1e9, -75, -650])
    def test_that_hides(self, hidden, qkv):
        bias = np.where(np.random.default_rng(6).random((QUERIES, KEYS)) < 0.3, hidden, 0)
        assert_is_the_formula(qkv, bias, bias=bias)

    def test_that_hides_all_from_some_queries(self, qkv):
        bias = np.zeros((QUERIES, KEYS))
        bias[40:50] = -np.inf
        with pytest.warns(UserWarning, match="20 of 640 queries"):
            assert_is_the_formula(qkv, bias, bias=bias)

    def test_too_high_with_values_at_the_end_of_the_format(self, qkv):
        # Too high for no shift, and not so high that the shift of the first keys is raised.
        query, key, value = qkv
        bias = random_bias()
        key[:, -1] = 0
        bias[:, :, -1] = 41 if query.dtype == np.float32 else 301
        huge = value.dtype.type(np.finfo(value.dtype).max / 50)
        answer = attention(query, key, value * huge, bias=bias, layout="hsd", outputs=ONLY)
        context, _ = formula(*qkv, bias)
        assert_near(answer.context / huge, context, rtol=2e-4, atol=1e-5)


class TestHotScores:
    """|q · k| may exceed what the bound allows though no score does."""

    @pytest.mark.parametrize("factor", [3, 6, 12, 25])
    def test_are_shifted_where_they_must_be(self, factor, qkv):
        query, key, value = qkv
        assert_is_the_formula((query * factor, key, value), 0)

    def test_of_keys_that_are_hidden(self, qkv):
        query, key, value = (array.copy() for array in qkv)
        key[:, 400:] *= 1000
        seen = np.arange(KEYS) < 400
        bias = np.where(seen, 0, -np.inf)
        assert_is_the_formula((query, key, value), bias, key_padding_mask=seen)


@pytest.mark.filterwarnings("ignore::attncli.AttnWarning")
class TestQueriesThatSeeNothing:
    """As those of left padding under the causal rule: their sums are 0, and need no shift."""

    PADDING = np.arange(KEYS) >= 100
    EARLIER = np.arange(KEYS) <= np.arange(QUERIES)[:, None]
    SEEN = PADDING & EARLIER
    BIAS = 3 * np.random.default_rng(10).standard_normal((2, QUERIES, KEYS))

    @pytest.mark.parametrize(
        ("seen", "options"),
        [
            (SEEN, {"key_padding_mask": PADDING, "causal": True}),
            (SEEN, {"mask": SEEN}),
            (SEEN, {"mask": np.broadcast_to(SEEN, (2, QUERIES, KEYS))}),
            (EARLIER & (np.arange(QUERIES) < 250)[:, None], {"query_lengths": 250, "causal": True}),
        ],
    )
    def test_are_no_reason_for_a_shift(self, seen, options, qkv):
        added = np.where(seen, self.BIAS, -np.inf)
        assert_is_the_formula(qkv, added, bias=self.BIAS, **options)


@pytest.mark.parametrize("offset", [0, 600, 5000, 10**6])
def test_keys_that_alibi_puts_far_away(offset, qkv):
    slopes = np.array([0.5, 0.004])
    distance = np.abs(np.arange(QUERIES)[:, None] + offset - np.arange(KEYS))
    bias = -slopes[:, None, None] * distance
    answer = attention(
        *qkv, alibi_slopes=slopes, query_offset=offset, layout="hsd", outputs=("context",)
    )
    context, _ = formula(*qkv, bias)
    # Penalties of 500,000 leave float32 no digits behind the point.
    near = 1e-4 if qkv[0].dtype == np.float64 or offset < 10**6 else 0.2
    assert_near(answer.context, context, rtol=near, atol=near)


class TestALongWayWithAlibi:
    """Keys that are too far from all queries of a block are not even multiplied."""

    LENGTH = 3000
    # Queries at every place of a panel, and the last one.
    JUDGED = slice(4, None, 5)

    @pytest.fixture
    def long(self):
        random = np.random.default_rng(9)
        return [random.standard_normal((1, self.LENGTH, WIDTH)).astype("f") for _ in range(3)]

    def far(self, offset=0):
        rows = np.arange(self.LENGTH)[self.JUDGED, None]
        return np.abs(rows + offset - np.arange(self.LENGTH))

    def formula(self, qkv, added):
        query, key, value = qkv
        return formula(query[:, self.JUDGED], key, value, added)

    @pytest.mark.parametrize("offset", [0, -40])
    def test_only_near_keys_are(self, offset, long):
        self.assert_is_the_formula(long, offset)

    def assert_is_the_formula(self, qkv, offset):
        answer = attention(
            *qkv, alibi_slopes=[0.5], query_offset=offset, layout="hsd", outputs=ONLY
        )
        context, lse = self.formula(qkv, -0.5 * self.far(offset))
        # Penalties of hundreds leave float32 few digits behind the point.
        assert_near(answer.context[:, self.JUDGED], context, rtol=2e-4, atol=4e-4)
        assert_near(answer.lse[:, self.JUDGED], lse, rtol=2e-4, atol=4e-4)

    @pytest.mark.parametrize("place", [700, 2116])
    def test_a_far_key_of_a_high_score_counts(self, place, long):
        """Beyond a block, it scores 30 everywhere: as high as its length allows."""
        query, key, value = long
        query, key = np.zeros_like(query), key / 1000
        query[..., 0], key[0, place] = np.sqrt(WIDTH), 0
        key[0, place, 0] = 30
        answer = attention(query, key, value, alibi_slopes=[0.5], layout="hsd", outputs=ONLY)
        context, lse = self.formula((query, key, value), -0.5 * self.far())
        assert_near(answer.context[:, self.JUDGED], context, rtol=2e-4, atol=4e-4)
        assert_near(answer.lse[:, self.JUDGED], lse, rtol=2e-4, atol=4e-4)

    def test_a_bias_may_bring_far_keys_back(self, long):
        bias = np.zeros((1, self.LENGTH))
        bias[0, -1] = 0.5 * self.LENGTH
        answer = attention(*long, alibi_slopes=[0.5], bias=bias, layout="hsd", outputs=ONLY)
        context, _ = self.formula(long, bias - 0.5 * self.far())
        assert_near(answer.context[:, self.JUDGED], context, rtol=2e-3, atol=1e-3)

    @pytest.mark.parametrize("name", ["key", "value"])
    @pytest.mark.parametrize("outputs", [("context",), ("lse",)])
    @pytest.mark.parametrize("broken", [np.nan, -np.inf])
    def test_a_far_key_that_is_not_finite_is_found(self, name, outputs, broken, long):
        arrays = dict(zip(("query", "key", "value"), long, strict=True))
        arrays["query"] = arrays["query"][:, :700]
        arrays[name][0, 2500, 3] = broken
        with pytest.raises(DataError, match=rf"{name}: .* at index \(0, 2500, 3\)"):
            attention(**arrays, alibi_slopes=[0.5], layout="hsd", outputs=outputs)


class TestValuesOfAllSizes:
    """A weight that no denominator feels counts where its value is large enough."""

    @pytest.fixture
    def one_large(self):
        """Keys of which one has the score -71 less than the others', and a value of 1e38."""
        query, key = np.zeros((1, QUERIES, WIDTH), "f"), np.zeros((1, KEYS, WIDTH), "f")
        value = np.ones((1, KEYS, WIDTH), "f")
        query[..., 0] = 1
        key[0, 700, 0] = -71
        value[0, 700] = 1e38
        return query, key, value

    CONTEXT = 1 + 1e38 * np.exp(-71.0) / (KEYS - 1)

    @pytest.mark.parametrize("height", [0, 100])
    @pytest.mark.parametrize("outputs", [ONLY, ("weights", "context")], ids="-".join)
    def test_hot_scores(self, height, outputs, one_large):
        query, key, value = one_large
        key[..., 0] += height
        answer = attention(query, key, value, scale=1, layout="hsd", outputs=outputs)
        assert_near(answer.context, self.CONTEXT, rtol=1e-4)

    @pytest.mark.parametrize("height", [0, 100])
    def test_a_bias(self, height, one_large):
        query, key, value = one_large
        bias = key[:, :, 0] + np.float32(height)
        answer = attention(query, key * 0, value, bias=bias, layout="hsd", outputs=ONLY)
        assert_near(answer.context, self.CONTEXT, rtol=1e-4)
