"""Queries whose every key has a bias of −1e9: whatever they hold, it excuses no other query."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, softmax

from attncli import DataError

SHAPE = (2, 3, 16, 32)
BIAS = np.zeros((16, 16))
BIAS[12:] = -1e9
WORDS = "queries are not judged: the bias of all their keys is so large"


def outputs(q, k, v):
    """Return weights, context and lse by the formula in float32, as a kernel makes them."""
    scores = q.astype("f4") @ k.astype("f4").swapaxes(-1, -2) / np.float32(32**0.5)
    scores = scores + BIAS.astype("f4")
    top = scores.max(-1, keepdims=True)
    weights = softmax(scores)
    lse = np.log(np.exp(scores - top).sum(-1)) + top[..., 0]
    return {"weights": weights, "context": weights @ v.astype("f4"), "lse": lse, "scores": scores}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_right_ones_pass_whatever_these_queries_hold(dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, *[SHAPE] * 3))
    right = outputs(q, k, v)
    names = ("weights", "context", "lse") if dtype == "float32" else ("weights", "context")
    report = ask((q, k, v), {name: right[name] for name in names}, dtype, bias=BIAS)
    assert report.passed
    assert f"24 of 96 {WORDS}" in str(report)
    for other in (0, np.nan, 5):
        context = right["context"].copy()
        context[:, :, 12:] = other
        assert ask((q, k, v), context, dtype, bias=BIAS).passed


@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float32"))
def test_wrong_ones_fail_and_get_their_names(dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, *[SHAPE] * 3))
    wide = [array.astype("f8") for array in (q, k, v)]
    assert not ask((q, k, v), np.zeros(SHAPE), dtype, bias=BIAS, diagnose=False).passed
    report = ask((q, k, v), plain(*wide, scale=1), dtype, bias=BIAS)
    assert named(report) == {"unscaled"}
    wrong = outputs(q, k, v)["context"]
    wrong[1, 2, 3] += 0.5
    assert not ask((q, k, v), wrong, dtype, bias=BIAS, diagnose=False).passed


def test_packed_heads_and_projected_contexts_have_such_queries_too():
    q, k, v = draw(0, *[SHAPE] * 3)
    packed = [a.transpose(0, 2, 1, 3).reshape(2, 16, 96) for a in (q, k, v)]
    context = outputs(q, k, v)["context"].transpose(0, 2, 1, 3).reshape(2, 16, 96)
    assert ask(packed, context, bias=BIAS, heads=3).passed
    wo = draw(1, (96, 5))[0]
    report = ask(packed, context.astype("f8") @ wo, bias=BIAS, heads=3, wo=wo)
    assert report.passed
    assert WORDS in str(report)
    moved = np.roll(context, 1, axis=1)
    assert not ask(packed, moved, bias=BIAS, heads=3, diagnose=False).passed


def test_where_no_query_can_be_judged_nothing_passes():
    q, k, v = draw(0, *[SHAPE] * 3)
    everywhere = np.full((16, 16), -1e9)
    with pytest.raises(DataError, match=r"context: no query can be judged: the bias of all"):
        ask((q, k, v), np.full(SHAPE, np.nan), bias=everywhere)
    raw = q.astype("f8") @ k.astype("f8").swapaxes(-1, -2) / 32**0.5
    report = ask((q, k, v), {"raw": raw}, bias=everywhere)
    assert report.passed
    assert "not judged" not in str(report)
    report = ask((q, k, v), {"raw": raw + 1}, bias=everywhere, diagnose=False)
    assert not report.passed


def test_numbers_that_are_not_judged_do_not_count_as_equal():
    q, k, _ = draw(0, *[SHAPE] * 3)
    zeros = np.zeros(SHAPE)
    report = ask((q, k, zeros), zeros, bias=BIAS)
    assert "every number that is judged equals the answer" in str(report)


def test_a_bias_in_16_bits_that_hides_all_is_no_number():
    q, k, v = draw(0, *[SHAPE] * 3)
    bias = np.where(np.arange(16)[:, None] < 3, -np.inf, 0).astype(np.float16)
    keep = np.arange(16)[:, None] >= 3
    report = ask((q, k, v), plain(q, k, v, np.broadcast_to(keep, (16, 16))), bias=bias)
    assert report.passed
    assert "not judged" not in str(report)


def test_a_bias_that_leaves_digits_and_tolerances_of_the_user_change_nothing():
    q, k, v = draw(0, *[SHAPE] * 3)
    report = ask((q, k, v), np.zeros(SHAPE), bias=BIAS / 1e6)
    assert "not judged" not in str(report)
    from attncli import pose
    from attncli.referee import check

    report = check(np.zeros(SHAPE, "f4"), pose(q, k, v, bias=BIAS), atol=0.1)
    assert "not judged" not in str(report)
    assert not report.passed
