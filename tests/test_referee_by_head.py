"""Slopes and scales that differ from head to head are told, each head's factor for itself."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, scaled, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

SHAPE = (2, 4, 10, 8)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625])
APART = np.abs(np.arange(10)[:, None] - np.arange(10))
TRIL = np.tri(10, dtype=bool)


@pytest.mark.parametrize("dtype", long_but(["float32", "float64", "float16"], "float32"))
@pytest.mark.parametrize(
    ("factors", "words"),
    [
        ([2, 1, 0, 0], "head 0 times 2; head 2 times 0; head 3 times 0"),
        ([1, 1, 0.3, 1], "head to head: head 2 times 0.3"),
    ],
)
def test_slopes(factors, words, dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, *[SHAPE] * 3))
    slopes = SLOPES * np.array(factors)
    scores = np.where(TRIL, scaled(q, k) - slopes[:, None, None] * APART, -np.inf)
    convention = only(ask((q, k, v), softmax(scores) @ v, dtype, causal=True, alibi_slopes=SLOPES))
    assert convention.name == "slopes_by_head"
    assert words in convention.meaning


@pytest.mark.parametrize("slopes", [[0.1, 0.2, 0.3, 0.4], [0.3] * 4, [0.0, 0.004, 3.0, 0.0]])
@pytest.mark.parametrize("causal", long_but([True, False], True))
def test_slopes_that_nobody_stated(slopes, causal):
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = scaled(q, k) - np.array(slopes)[:, None, None] * APART
    wrong = softmax(np.where(TRIL | (not causal), scores, -np.inf)) @ v
    report = ask((q, k, v), wrong, causal=causal)
    convention = only(report)
    assert convention.name == "alibi_unasked_with_other_slopes"
    assert f"head 2 has the slope {slopes[2]:g}" in convention.meaning
    listed = ",".join(f"{slope:g}" for slope in slopes)
    assert report.diagnosis.explanations[0].options == (f"--alibi-slopes {listed}",)


def test_a_slope_that_nobody_stated_of_one_head():
    q, k, v = draw(0, *[(1, 1, 10, 8)] * 3)
    wrong = softmax(scaled(q, k) - 0.3 * APART) @ v
    report = ask((q, k, v), wrong)
    assert only(report).name == "alibi_unasked_with_other_slopes"
    assert report.diagnosis.explanations[0].options == ("--alibi-slopes 0.3",)


@pytest.mark.parametrize("seed", SEEDS)
def test_scales(seed):
    """As where one head's scale of quantized keys stands for those of the others."""
    q, k, v = draw(seed, *[SHAPE] * 3)
    factors = np.array([1, 1.25, 0.8, 1.1])[:, None, None]
    weights = softmax(scaled(q, k) * factors)
    for given in ({"weights": weights}, {"context": weights @ v}):
        convention = only(ask((q, k, v), given))
        assert convention.name == "scale_by_head"
        assert "head 1 times 1.25; head 2 times 0.8; head 3 times 1.1" in convention.meaning


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_of_one_head_is_no_scale(seed):
    q, k, v = draw(seed, *[(1, 3, 10, 8)] * 3)
    weights = softmax(scaled(q, k) * np.array([1, 1.25, 0.8])[:, None, None])
    weights[:, 2] = np.random.default_rng(seed).dirichlet(np.ones(10), (1, 10))
    report = ask((q, k, v), weights @ v)
    assert named(report) <= {"another_scale"}  # which is true of head 1 alone
    assert all(explanation.fails_at for explanation in report.diagnosis.explanations)


@pytest.mark.parametrize("seed", SEEDS)
def test_slopes_that_nobody_asked_for(seed):
    q, k, v = draw(seed, *[SHAPE] * 3)
    slopes = 2.0 ** -(2 * np.arange(1, 5))  # the paper's for 4 heads
    wrong = softmax(scaled(q, k) - slopes[:, None, None] * APART) @ v
    report = ask((q, k, v), wrong)
    assert named(report) == {"alibi_unasked"}
    assert report.diagnosis.explanations[0].options == ("--alibi",)
