"""Mistakes that the tolerance of a 16-bit format hides are told, and right outputs are not."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import check, pose


def bfloat16(array):
    bits = array.astype("f4").view("u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view([("bfloat16", "<u2")])


def float32(stored):
    return (stored.view("<u2").astype("u4") << 16).view("f4")


def inputs(seed, *shapes):
    """Return a problem in bfloat16 and its numbers in float32."""
    stored = [bfloat16(array) for array in draw(seed, *shapes or [(1, 2, 64, 32)] * 3)]
    return pose(*stored), [float32(array) for array in stored]


def plain_in_bfloat16(q, k, v):
    """Store every intermediate result."""
    scores = float32(bfloat16(q @ k.swapaxes(-1, -2)))
    scores = float32(bfloat16(scores * np.float32(q.shape[-1] ** -0.5)))
    return bfloat16(float32(bfloat16(softmax(scores))) @ v)


@pytest.mark.parametrize("seed", long_but(range(10), 0, 1, 2))
@pytest.mark.parametrize("formula", [plain_in_bfloat16, lambda q, k, v: bfloat16(plain(q, k, v))])
def test_roundings_have_no_name(seed, formula):
    problem, arrays = inputs(seed)
    report = check(formula(*arrays), problem)
    assert report.passed
    assert report.diagnosis is None


@pytest.mark.parametrize(
    "seed",
    long_but([3368, 20948, 36178, 39569, 40177, 108725, 129776, 153255], 3368, 40177, 153255),
)
def test_roundings_that_look_like_a_mistake_where_few_keys_are_seen(seed):
    """One of ten thousand such problems, in which the roundings of the scores have a name."""
    stored = [bfloat16(array) for array in draw(seed, *[(1, 1, n, 64) for n in (5, 7, 7)])]
    q, k, v = map(float32, stored)
    scores = float32(bfloat16(float32(bfloat16(q @ k.swapaxes(-1, -2))) * np.float32(0.5)))
    distance = np.abs(np.arange(5)[:, None] - np.arange(7)).astype("f4")
    scores = np.where(np.tri(5, 7, dtype=bool), float32(bfloat16(scores - distance)), -np.inf)
    context = bfloat16(float32(bfloat16(softmax(scores))) @ v)
    rules = {"causal": True, "causal_align": "top-left", "alibi_slopes": [1.0], "scale": 0.5}
    report = check(context, pose(*stored, **rules))
    assert report.passed
    assert report.diagnosis is None


def test_a_recipe_that_makes_the_same_numbers_explains_nothing():
    # Without the maximum of a row no exponential overflows here, and all is as it was.
    random = np.random.default_rng(14)
    stored = [
        random.normal(mean, size, (2, 1, rows, 2)).astype("f2")
        for mean, size, rows in ((0, 3, 257), (0, 1, 128), (100, 1, 128))
    ]
    q, k, v = (array.astype("f4") for array in stored)
    scores = (q @ k.swapaxes(-1, -2)).astype("f2") * np.float16(2**-0.5)
    scores = np.where(np.tri(257, 128, dtype=bool), scores.astype("f4"), -np.inf)
    weights = softmax(scores).astype("f2")
    outputs = {
        "context": (weights.astype("f4") @ v).astype("f2"),
        "weights": weights,
        "lse": np.log(np.exp(scores).sum(-1)).astype("f2"),
    }
    report = check(outputs, pose(*stored, causal=True, causal_align="top-left"))
    assert report.passed
    assert report.diagnosis is None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "mistake", "heads", "queries", "keys"),
    [
        ("another_scale", lambda q, k, v: plain(q, k, v, scale=1.01 / 8), 1, 64, 150),
        pytest.param(
            *("another_factor", lambda q, k, v: 1.015 * plain(q, k, v), 1, 64, 150),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *("last_key_lost", lambda q, k, v: plain(q, k[:, :, :-1], v[:, :, :-1]), 8, 1, 1000),
            marks=pytest.mark.long,
        ),
        ("last_key_lost", lambda q, k, v: plain(q, k[:, :, :-1], v[:, :, :-1]), 1, 64, 4096),
    ],
)
def test_a_small_mistake_passes_and_is_told(seed, name, mistake, heads, queries, keys):
    shapes = [(1, heads, rows, 64) for rows in (queries, keys, keys)]
    problem, arrays = inputs(seed, *shapes)
    wrong = bfloat16(mistake(*arrays))
    report = check(wrong, problem)
    assert report.passed
    assert named(report) == {name}
    assert report.diagnosis.tolerated
    assert "context: ok" in str(report)
    assert "diagnosis: the errors are within tolerance" in str(report)
    assert check(wrong, problem, diagnose=False).diagnosis is None


def test_scores_in_a_16_bit_file_are_rounded_once():
    problem, (q, k, _) = inputs(0)
    raw = bfloat16(q.astype("f8") @ k.swapaxes(-1, -2) * 32**-0.5)
    report = check({"raw": raw}, problem)
    assert report.passed
    assert report.diagnosis is None


def test_a_tolerance_that_is_given_is_all_that_counts():
    problem, arrays = inputs(0)
    wrong = bfloat16(1.015 * plain(*arrays))
    assert check(wrong, problem, atol=0.1).diagnosis is None


@pytest.mark.parametrize("factor", [0.5, 2, -1, 1 / 0.9])
def test_a_factor_of_any_size(factor):
    q, k, v = draw(0)
    report = check((factor * plain(q, k, v)).astype("f4"), pose(q, k, v))
    assert named(report) == {"another_factor"}
    (explanation,) = report.diagnosis.explanations
    assert explanation.error < 1e-6
    assert f"about {factor:.4g}" in explanation.conventions[0].meaning[:40]


@pytest.mark.usefixtures("one_mistake")
def test_a_factor_is_of_context_and_weights_alone():
    q, k, v = draw(0, *[(1, 1, 20, 8)] * 3)
    lse = np.log(np.exp(q.astype("f8") @ k.swapaxes(-1, -2) * 8**-0.5).sum(-1))
    report = check({"lse": (1.25 * lse).astype("f4")}, pose(q, k, v))
    assert not report.passed
    assert "another_factor" not in named(report)


def test_noise_beside_a_row_without_digits_is_not_float32():
    """In float32 the row whose keys all have −1e9 rounds by its own size; the others do not."""
    q, k, v = draw(0, (6, 3), (5, 3), (5, 3), dtype="float64")
    bias = np.zeros((6, 5))
    bias[2] = -1e9
    report = check(np.random.default_rng(1).normal(size=(6, 3)), pose(q, k, v, bias=bias))
    assert not report.passed
    assert named(report) == set()
