"""Contexts of fewer columns than keys do not show weights, but what dropout does to them."""

import re

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, softmax

from attncli import pose
from attncli.referee import check

SHAPE = (1, 2, 100, 16)
TOLD = "the errors look like those of dropout with p about"


def weighed(q, k):
    return softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))


def findings(inputs, context, dtype="float32", **options):
    report = check(context.astype(dtype), pose(*inputs, **options), time_limit=0.05)
    assert not report.passed
    return "\n".join(report.diagnosis.findings)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("p", long_but([0.1, 0.2, 0.5], 0.2))
def test_dropout_of_more_keys_than_columns(p, dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, *[SHAPE] * 3))
    kept = np.random.default_rng(1).random((1, 2, 100, 100)) >= p
    dropped = weighed(q, k) * kept / (1 - p) @ v
    told = re.search(TOLD + r" (\S+): was it left on\?", findings((q, k, v), dropped, dtype))
    assert float(told[1]) == pytest.approx(p, abs=0.02)


@pytest.mark.parametrize("p", long_but([0.1, 0.2, 0.5], 0.2))
def test_dropout_that_nobody_makes_up_for(p):
    q, k, v = draw(0, *[SHAPE] * 3)
    kept = np.random.default_rng(1).random((1, 2, 100, 100)) >= p
    told = findings((q, k, v), weighed(q, k) * kept @ v)
    share = re.search(TOLD + r" (\S+) whose other weights are not divided by 1 − p", told)[1]
    assert float(share) == pytest.approx(p, abs=0.04)


def test_dropout_of_a_large_causal_problem():
    q, k, v = draw(0, *[(1, 2, 512, 16)] * 3)
    seen = np.tri(512, dtype=bool)
    weights = softmax(np.where(seen, q.astype("f8") @ k.swapaxes(-1, -2) / 2, -np.inf))
    kept = np.random.default_rng(1).random(weights.shape) >= 0.1
    dropped = weights * kept / 0.9 @ v
    assert f"{TOLD} 0.1" in findings((q, k, v), dropped, causal=True, scale=0.5)


def errors(name, weights, v):
    """Return errors as large as those of dropout, but not like them."""
    right = weights @ v
    noise = np.random.default_rng(1).standard_normal
    size = 0.3 * np.linalg.norm(weights, axis=-1, keepdims=True)
    if name == "as large in every direction":
        return right + size * noise(right.shape)
    if name == "the same in every query":
        return right + size * noise((1, 2, 1, 16))
    if name == "of keys that are lost":
        return weights[..., 20:] @ v[..., 20:, :]
    if name == "what is right":
        return 1.3 * right + 1e-3 * noise(right.shape)
    if name == "less than what is right":
        return 0.8 * right + 1e-3 * noise(right.shape)
    return right + np.where(np.arange(100)[:, None] < 50, 0.1, 3) * (
        weights * 0.3 * noise(weights.shape) @ v
    )  # larger in the last queries


@pytest.mark.parametrize(
    "name",
    [
        "as large in every direction",
        "the same in every query",
        "of keys that are lost",
        "what is right",
        "less than what is right",
        "larger in the last queries",
    ],
)
def test_other_errors_are_not_like_that(name):
    q, k, v = draw(0, *[SHAPE] * 3)
    assert TOLD not in findings((q, k, v), errors(name, weighed(q, k), v))


def test_what_all_queries_make_of_the_same_keys_is_no_dropout():
    q, k, v = draw(0, *[SHAPE] * 3)
    q *= 0.3
    twice = np.r_[:20, :20, 40:100]
    assert TOLD not in findings((q, k, v), weighed(q, k) @ v[..., twice, :])


def test_where_too_little_is_seen_nothing_is_told():
    q, k, v = draw(0, (1, 1, 4, 60), *[(1, 1, 70, 60)] * 2)
    kept = np.random.default_rng(1).random((1, 1, 4, 70)) >= 0.2
    for weights in (weighed(q, k), np.zeros((1, 1, 4, 70))):
        assert TOLD not in findings((q, k, v), weights * kept @ v)


def test_of_noise_where_dropout_would_make_noise_nothing_is_told():
    q, k, v = draw(0, (1, 2, 100, 4), *[(1, 2, 1000, 4)] * 2)
    q *= 0.01
    weights = weighed(q, k)
    size = 0.3 * np.linalg.norm(weights) / np.sqrt(200)
    noise = np.random.default_rng(1).standard_normal((1, 2, 100, 4))
    assert TOLD not in findings((q, k, v), weights @ v + size * noise)


def test_what_is_explained_is_not_also_like_dropout():
    q, k, v = draw(0, *[(1, 2, 12, 16)] * 3)
    kept = np.random.default_rng(1).random((1, 2, 12, 12)) >= 0.2
    report = ask((q, k, v), weighed(q, k) * kept / 0.8 @ v)
    assert named(report) == {"dropout"}
    assert TOLD not in str(report)
