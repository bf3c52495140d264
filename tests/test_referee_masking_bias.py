"""Biases like −1e9 that stand for a mask: what they leave of scores must excuse nothing."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, softmax

LEAST = float(np.finfo(np.float32).min)


def padded(length, tokens):
    """Return a causal mask; the first tokens of the first batch entry are padding."""
    seen = np.broadcast_to(np.tri(length, dtype=bool), (2, 1, length, length)).copy()
    seen[0, ..., :tokens] = False
    return seen


def scored(q, k, bias, scale):
    """Return the scores as a program makes them in float32."""
    return q @ k.swapaxes(-1, -2) * np.float32(scale) + bias


@pytest.mark.parametrize("low", [-1e9, -3e38, LEAST, -1e4])
@pytest.mark.parametrize("mistake", ["unscaled", "zeros", "noise"])
def test_scores_of_which_most_are_masked(low, mistake):
    q, k, v = draw(0, *[(2, 4, 16, 32)] * 3)
    seen = padded(16, 0)
    seen[1, ..., 8:] = False
    bias = np.where(seen, 0, low).astype("f4")
    right = scored(q, k, bias, 32**-0.5)
    assert ask((q, k, v), {"scores": right}, bias=bias).passed
    wrong = {
        "unscaled": scored(q, k, bias, 1),
        "zeros": np.where(seen, 0, right),
        "noise": np.where(seen, right + draw(1, right.shape)[0], right),
    }[mistake]
    known = mistake == "unscaled"
    report = ask((q, k, v), {"scores": wrong}, diagnose=known, bias=bias)
    assert not report.passed
    if known:
        assert "unscaled" in named(report)


def test_queries_that_only_see_masked_keys_keep_their_weights():
    """The rule hides what is not masked: what the bias leaves of their scores decides."""
    q, k, v = draw(0, *[(1, 2, 8, 16)] * 3)
    bias = np.where(np.arange(8) < 3, -1e9, 0).astype("f4")
    scores = np.where(np.tri(8, dtype=bool), scored(q, k, bias, 0.25), -np.inf)
    outputs = {"scores": scores, "weights": softmax(scores)}
    for names in (["scores", "weights"], ["scores"], ["weights"]):
        files = {name: outputs[name] for name in names}
        assert ask((q, k, v), files, diagnose=False, bias=bias, causal=True).passed
    assert not ask((q, k, v), {"scores": 2 * scores}, diagnose=False, bias=bias, causal=True).passed


def test_masked_scores_themselves_are_judged():
    q, k, v = draw(0, *[(2, 4, 16, 32)] * 3)
    bias = np.where(padded(16, 0), 0, -1e9).astype("f4")
    scores = scored(q, k, bias, 32**-0.5)
    scores[0, 0, 0, 5] = 0
    assert not ask((q, k, v), {"scores": scores}, diagnose=False, bias=bias).passed


@pytest.mark.parametrize("low", long_but([-1e4, -1e6, -4e6, -1e9], -1e4))
def test_a_few_queries_of_padding_excuse_no_others(low):
    q, k, v = draw(0, *[(2, 2, 32, 32)] * 3)
    bias = np.where(padded(32, 2), 0, low).astype("f4")
    weights = softmax(scored(q, k, bias, 32**-0.5))
    assert ask((q, k, v), weights @ v, bias=bias).passed
    for factor in (1.0005, 1.05):
        report = ask((q, k, v), softmax(scored(q, k, bias, 32**-0.5 * factor)) @ v, bias=bias)
        assert not report.passed
        assert named(report) == {"another_scale"}
        if "left out" in report.unjudged:
            assert "4 of 128 queries, all of whose keys have a bias of -1000 or less" in str(report)


def test_a_bias_that_grows_hides_nothing():
    """BLOOM adds slope times j, which is ALiBi but for a constant."""
    q, k, v = (array.astype("f2") for array in draw(0, *[(1, 2, 600, 8)] * 3))
    bias = np.broadcast_to(2.0 * np.arange(600), (1, 2, 600, 600)).astype("f4")
    seen = np.tri(600, dtype=bool)
    scores = np.where(seen, scored(q.astype("f8"), k, bias, 8**-0.5), -np.inf)
    right = softmax(scores) @ v
    assert ask((q, k, v), right, "float16", bias=bias, causal=True).passed
    right[:, 0] = 7
    report = ask((q, k, v), right, "float16", diagnose=False, bias=bias, causal=True)
    assert not report.passed
    assert not report.unjudged
