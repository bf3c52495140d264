"""Every output of every problem hypothesis can think of equals the oracle's."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearness import assert_near
from oracle import attention_oracle
from strategies import near_tile_edges, problems

from attncli import DataError, attention
from attncli.numerics.dtypes import as_bfloat16

pytestmark = [
    pytest.mark.usefixtures("every_path"),
    pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning"),
]

OUTPUTS = ("raw", "capped", "scores", "weights", "context", "lse")
# The scores that are kept decide how the work is cut: with weights, without, with neither.
WAYS = [OUTPUTS, ("weights", "context", "lse"), ("context", "lse")]
RTOL = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-5}


def largest(array):
    finite = np.abs(array[np.isfinite(array)])
    return finite.max(initial=0.0)


def floors(expected, value, rtol):
    """Return how far each output may be off where the numbers that made it cancel.

    A score is a sum of terms no larger than `size`, so its error goes with `size` even
    where the sum is near 0; a context goes with the largest value in the same way.
    Weights are sums of positive numbers: they have no such excuse, only exp's own, by
    which an error of a score becomes a relative error of its weight.
    """
    raw, scores = expected["raw"], expected["scores"]
    size = max(1.0, largest(raw) + largest(np.where(np.isfinite(scores), scores - raw, 0)))
    floor = dict.fromkeys(OUTPUTS, size * rtol)
    return floor | {"weights": 1e-30, "context": largest(np.asarray(value, float)) * rtol}


def assert_matches(answer, expected, value, dtype, outputs=OUTPUTS):
    rtol = RTOL[np.dtype(dtype)]
    atol = floors(expected, value, rtol)
    for name in OUTPUTS:
        found = getattr(answer, name)
        if name not in outputs:
            assert found is None, f"{name} was not asked for"
            continue
        assert found.dtype == dtype, name
        assert found.shape == expected[name].shape, name
        assert np.array_equal(found == -np.inf, expected[name] == -np.inf), name
        assert_near(found, expected[name], rtol=rtol, atol=atol[name], err_msg=name)


def computing_dtype(problem, precision):
    if precision is not None:
        return np.dtype(precision)
    if problem.query.dtype.kind == "i":
        return np.dtype(np.float64)
    return np.result_type(problem.query, np.float32)


class TestEveryOutputEqualsTheOracle:
    @given(problems(), st.sampled_from([None, None, "float32", "float64"]))
    @settings(max_examples=25, deadline=None)
    def test_all_outputs_at_once(self, problem, precision):
        self.check(problem, precision, OUTPUTS, ("context",))

    @pytest.mark.long
    @given(
        problems(),
        st.sampled_from([None, "float32", "float64"]),
        st.sets(st.sampled_from(OUTPUTS), min_size=1),
    )
    @settings(max_examples=20_000, deadline=None)
    def test_thousands(self, problem, precision, outputs):
        self.check(problem, precision, tuple(outputs))

    @staticmethod
    def check(problem, precision, *choices, **how):
        *qkv, options = problem
        dtype = computing_dtype(problem, precision)
        expected = attention_oracle(*qkv, **options)
        for outputs in choices:
            answer = attention(*qkv, **options, precision=precision, outputs=outputs, **how)
            assert_matches(answer, expected, qkv[2], dtype, outputs)


def random_problem(*, batch=1, heads=1, groups=1, queries=3, keys=4, width=2, seed=0):
    random = np.random.default_rng(seed)
    return (
        random.uniform(-2, 2, (batch, heads, queries, width)),
        random.uniform(-2, 2, (batch, groups, keys, width)),
        random.uniform(-2, 2, (batch, groups, keys, 2)),
    )


RULES = [
    {},
    {"causal": True, "causal_align": "bottom-right", "softcap": 2.0},
    {"causal": True, "query_offset": -7, "sinks": [0.5], "alibi_slopes": [0.01]},
    {"window": (260, 13), "query_offset": 100, "rope": "half"},
    {"kv_lengths": [517], "query_lengths": [131], "scale": 3},
]


# The oracle takes its time, and its answer is one for all ways to compute.
@cache
def under_rules(index):
    """Return a problem of several tiles, and the oracle's answer."""
    qkv = random_problem(queries=133, keys=523)
    return qkv, attention_oracle(*qkv, **RULES[index])


class TestBeyondOneTile:
    """Sizes at which an engine that works in tiles has several of them, and ragged ends."""

    @pytest.mark.parametrize(
        "index", range(len(RULES)), ids=lambda index: "-".join(RULES[index]) or "plain"
    )
    def test_of_queries_and_keys(self, index):
        qkv, expected = under_rules(index)
        for outputs in WAYS:
            answer = attention(*qkv, **RULES[index], outputs=outputs)
            assert_matches(answer, expected, qkv[2], np.float64, outputs)

    # ALiBi at such distances gives scores in the hundreds, too large for 1e-5 in float32.
    @given(
        problems(("float64",), lengths=near_tile_edges()),
        st.sampled_from(WAYS),
    )
    @settings(max_examples=10, deadline=None)
    def test_whose_rules_begin_and_end_near_its_edges(self, problem, outputs):
        *qkv, options = problem
        answer = attention(*qkv, **options, outputs=outputs)
        dtype = computing_dtype(problem, None)
        assert_matches(answer, attention_oracle(*qkv, **options), qkv[2], dtype, outputs)


class TestDtypes:
    @pytest.mark.parametrize(
        ("query", "key", "value", "computed"),
        [
            ("float16", "float16", "float16", "float32"),
            ("float16", "float32", "float16", "float32"),
            ("float32", "float32", "float32", "float32"),
            ("float32", "float16", "float64", "float64"),
            ("int8", "int8", "int8", "float64"),
            ("int64", "int64", "int64", "float64"),
        ],
    )
    def test_widest_input_and_at_least_float32(self, query, key, value, computed):
        q, k, v = random_problem(batch=2, heads=2, groups=2)
        qkv = q.astype(query), k.astype(key), v.astype(value)
        answer = attention(*qkv, outputs=OUTPUTS)
        assert_matches(answer, attention_oracle(*qkv), qkv[2], computed)

    @pytest.mark.parametrize("computed", [None, "float64"])
    def test_bfloat16_is_widened_exactly(self, computed):
        # The upper halves of float32: cutting off the lower half keeps a bfloat16's value.
        upper = [(x.astype("<f4").view("<u4") >> 16).astype("<u2") for x in random_problem(batch=2)]
        widened = [(bits.astype("<u4") << 16).view("<f4") for bits in upper]
        answer = attention(*map(as_bfloat16, upper), precision=computed, outputs=OUTPUTS)
        expected = attention_oracle(*widened)
        assert_matches(answer, expected, widened[2], computed or "float32")

    @pytest.mark.parametrize("precision", ["float32", "float64"])
    @pytest.mark.parametrize("given", ["float16", "float32", "float64", "int64"])
    def test_precision_forces_one(self, given, precision):
        qkv = [x.astype(given) for x in random_problem()]
        answer = attention(*qkv, precision=precision, outputs=OUTPUTS)
        assert_matches(answer, attention_oracle(*qkv), qkv[2], precision)

    def test_every_float16_is_widened_exactly(self):
        # One key takes the whole weight, so that the context is its value.
        every = np.arange(2**16, dtype=np.uint16).view(np.float16)
        finite = every[np.isfinite(every)]
        for value in (finite[None], np.asfortranarray(np.tile(finite, (2, 1)))[1:]):
            context = attention(np.ones((1, 1)), np.ones((1, 1)), value).context
            np.testing.assert_array_equal(context, value.astype(np.float64))

    @pytest.mark.parametrize("index", [0, 2**19 - 1, 400_000])
    def test_a_half_that_is_not_finite_is_found(self, index):
        value = np.zeros((1, 2**19), np.float16)
        value[0, index] = np.nan
        with pytest.raises(DataError, match=rf"value: .* found nan at index \(0, {index}\)"):
            attention(np.ones((1, 1)), np.ones((1, 1)), value)

    def test_inputs_stay_as_they_were(self):
        qkv = random_problem()
        copies = [x.copy() for x in qkv]
        attention(*qkv, rope="half", causal=True, causal_align="top-left", scale=3, outputs=OUTPUTS)
        assert all(np.array_equal(x, copy) for x, copy in zip(qkv, copies, strict=True))

    def test_inputs_may_be_views_of_any_stride_and_byte_order(self):
        q, k, v = random_problem(batch=2, heads=2, groups=2, queries=4, keys=6)
        odd = q[:, :, ::-1], np.asfortranarray(k)[:, :, ::2], v[:, :, ::2].astype(">f8")
        answer = attention(*odd, outputs=OUTPUTS)
        assert_matches(answer, attention_oracle(*odd), odd[2], np.float64)
