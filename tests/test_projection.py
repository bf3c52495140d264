"""Projections against sums of products in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_oracle import linear, positions
from oracle import attention_oracle
from threadpoolctl import threadpool_limits

from attncli import (
    AttnWarning,
    DataError,
    ShapeError,
    UsageError,
    check,
    pose,
    project,
    solve,
)
from attncli.numerics.positions import sinusoidal


def drawn(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def layer(seed, width, query, key, value):
    sizes = {"q": query, "k": key, "v": value}
    weights = {f"w{c}": drawn((seed, n), width, size) for n, (c, size) in enumerate(sizes.items())}
    biases = {f"b{c}": drawn((seed, 9, n), size) for n, (c, size) in enumerate(sizes.items())}
    return weights, biases


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 4)])
def test_self_attention_is_x_times_w_plus_b(shape):
    x, (weights, biases) = drawn(1, *shape), layer(2, 4, 6, 6, 8)
    made = project(x, **weights, **biases)
    for letter, name in zip("qkv", ("query", "key", "value"), strict=True):
        expected = linear(x, weights[f"w{letter}"], biases[f"b{letter}"])
        np.testing.assert_allclose(getattr(made, name), expected, rtol=0, atol=1e-13)


def test_cross_attention_takes_keys_and_values_from_their_sources():
    x, keys, values = drawn(1, 3, 4), drawn(2, 5, 4), drawn(3, 5, 4)
    weights, _ = layer(4, 4, 6, 6, 2)
    made = project(x, **weights, key_source=keys, value_source=values)
    np.testing.assert_allclose(made.key, linear(keys, weights["wk"]), atol=1e-13)
    np.testing.assert_allclose(made.value, linear(values, weights["wv"]), atol=1e-13)
    # Without a source of their own the values come from where the keys come from.
    made = project(x, **weights, key_source=keys)
    np.testing.assert_allclose(made.value, linear(keys, weights["wv"]), atol=1e-13)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 33))
def test_sinusoidal_is_the_formula_of_the_paper(length, width):
    np.testing.assert_allclose(
        sinusoidal(length, width), positions(length, width), rtol=0, atol=1e-12
    )


def test_positions_are_added_to_every_source_first():
    x, keys, (weights, _) = drawn(1, 2, 3, 4), drawn(2, 2, 5, 4), layer(2, 4, 6, 6, 8)
    made = project(x, **weights, key_source=keys, positions="sinusoidal")
    np.testing.assert_allclose(made.query, linear(x + positions(3, 4), weights["wq"]), atol=1e-12)
    np.testing.assert_allclose(
        made.value, linear(keys + positions(5, 4), weights["wv"]), atol=1e-12
    )


@pytest.mark.parametrize(
    ("of_x", "of_w", "precision", "expected"),
    [
        (np.float32, np.float32, None, np.float32),
        (np.float16, np.float16, None, np.float32),
        (np.float32, np.float64, None, np.float64),
        (np.int64, np.float32, None, np.float64),
        (np.float32, np.float32, "float64", np.float64),
        (np.float64, np.float64, "float32", np.float32),
    ],
)
def test_computing_dtype(of_x, of_w, precision, expected):
    x, w = np.ones((3, 2), of_x), np.ones((2, 2), of_w)
    assert project(x, wq=w, wk=w, precision=precision).query.dtype == expected


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_output_projection_mixes_the_heads_of_the_context(kv_heads):
    shared = 3 if kv_heads else 6
    x, (weights, _) = drawn(1, 2, 5, 4), layer(2, 4, 6, shared, shared)
    made = project(x, **weights)
    wo, bo = drawn(3, 6, 7), drawn(4, 7)
    answer = solve(pose(made.query, made.key, made.value, heads=2, kv_heads=kv_heads, wo=wo, bo=bo))
    expected = attention_oracle(made.query, made.key, made.value, heads=2, kv_heads=kv_heads)
    np.testing.assert_allclose(answer.weights, expected["weights"], atol=1e-12)
    np.testing.assert_allclose(answer.context, linear(expected["context"], wo, bo), atol=1e-12)


W = np.ones((4, 4))
X = np.ones((3, 4))


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (
            ShapeError,
            r"wq: expected 4 rows",
            {"wq": np.ones((5, 4))},
        ),
        (ShapeError, "fits the other way round", {"wk": np.ones((6, 4))}),
        (ShapeError, r"wv: expected a matrix \(in, out\)", {"wv": np.ones(4)}),
        (ShapeError, r"bq: expected 4 numbers, the columns of wq", {"bq": np.ones(3)}),
        (ShapeError, r"x: expected embeddings", {"x": np.ones(4)}),
        (ShapeError, r"key_source has shape \(3, 5\)", {"key_source": np.ones((3, 5))}),
        (DataError, r"x: expected finite numbers; found nan at index \(0, 0\)", {"x": X * np.nan}),
        (DataError, r"wq: expected finite numbers; found inf", {"wq": W * np.inf}),
        (DataError, r"bk: expected finite numbers; found nan", {"bk": np.full(4, np.nan)}),
        (UsageError, "bv is for x · wv, but wv is missing", {"bv": np.ones(4)}),
        (UsageError, "k_norm is for x · wk, but wk is missing", {"wk": None, "k_norm": [1.0]}),
        (UsageError, "none of them is given", {"wq": None, "wk": None}),
        (
            UsageError,
            "positions: expected one of sinusoidal; found 'learned'",
            {"positions": "learned"},
        ),
    ],
)
def test_errors_say_what_and_where(error, words, arguments):
    with pytest.raises(error, match=words):
        project(**{"x": X, "wq": W, "wk": W} | arguments)


def test_a_projection_that_is_not_given_leaves_its_source_as_it_is():
    x, keys, values, wq = drawn(1, 3, 4), drawn(2, 5, 6), drawn(3, 5, 2), drawn(4, 4, 6)
    made = project(x, wq=wq, key_source=keys, value_source=values)
    np.testing.assert_allclose(made.query, linear(x, wq, None), atol=1e-12)
    np.testing.assert_array_equal(made.key, keys)
    np.testing.assert_array_equal(made.value, values)
    assert project(x, wq=wq).value is None


@pytest.mark.parametrize("batch", [None, 2])
def test_padded_queries_stay_0_where_the_output_has_a_bias(batch):
    draw = np.random.default_rng(0).standard_normal
    query, key, value = (draw((*(() if batch is None else (batch,)), 3, 2)) for _ in range(3))
    problem = pose(query, key, value, wo=draw((2, 4)), bo=draw(4), query_lengths=2)
    context = solve(problem).context
    assert not context[..., 2:, :].any()
    assert context[..., :2, :].all()
    assert check(context, problem).passed
    wrong = np.where(context == 0, problem.output.bias, context)
    assert not check(wrong, problem, diagnose=False).passed


def test_blind_queries_have_the_bias_of_the_output_alone():
    problem = pose(np.eye(2), np.eye(2), np.eye(2), wo=np.eye(2), bo=[7, 8], kv_lengths=0)
    with pytest.warns(AttnWarning, match="are 0 there, not NaN; the output projection adds its"):
        assert solve(problem).context.tolist() == [[7, 8]] * 2


@pytest.mark.parametrize("what", ["x", "wq"])
def test_projections_beyond_the_range_are_refused(what):
    given = {"x": X, "wq": np.eye(4), "wk": np.eye(4)}
    given[what] = given[what] * 1e300
    with pytest.raises(DataError, match=r"x · wq exceeds the range of float32") as caught:
        project(**given, precision="float32")
    assert "float64" in caught.value.hint
    assert np.isfinite(project(**given).query).all()


# Rows, in, out: each of them large, none a multiple of the pieces that threads take.
@pytest.mark.parametrize(
    ("rows", "width", "out"), [(2500, 70, 800), (700, 90, 2300), (9, 4100, 4100)]
)
def test_has_the_same_bits_on_1_2_3_and_7_threads(rows, width, out):
    x, matrix = (drawn(1, *shape).astype("f4") for shape in ((rows, width), (width, out)))
    one, *others = [project(x, wq=matrix, threads=threads).query for threads in (1, 2, 3, 7)]
    for limit in (1, 2):
        with threadpool_limits(limit):
            others.append(project(x, wq=matrix).query)
    assert all(np.array_equal(one, other) for other in others)
    # Sums of products by einsum, which asks no BLAS.
    some = x[::7].astype(float), matrix[:, ::3].astype(float)
    size = np.einsum("ri,io->ro", *map(abs, some))
    off = abs(one[::7, ::3] - np.einsum("ri,io->ro", *some))
    assert np.all(off <= np.finfo(np.float32).eps * np.sqrt(width) * size)
