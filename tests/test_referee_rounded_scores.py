"""Roundings of scores and angles that the plain formula happens not to make are no mistakes."""

import numpy as np
import pytest
from referee_numpy import named, softmax

from attncli import check, pose


@pytest.mark.parametrize("seed", [855, 1166, 1172, 1693, 1899, 1954])
@pytest.mark.parametrize("output", ["weights", "context"])
def test_hot_scores_may_be_scaled_in_two_halves(seed, output):
    """As torch does, whose scores differ in their last place: these six look worst."""
    random = np.random.default_rng(seed)
    q = (100 * random.standard_normal((4, 3))).astype("f4")
    k, v = random.standard_normal((2, 4, 3)).astype("f4")
    root = np.float32(3**-0.25)
    weights = softmax((q * root) @ (k * root).T)
    expected = {"weights": weights, "context": weights @ v[:, :2]}[output]
    assert check({output: expected}, pose(q, k, v[:, :2])).passed


def turned(rows, first, dtype):
    """Rotate by complex numbers; frequencies are exponentials of logarithms, all in one dtype."""
    width = rows.shape[-1]
    frequencies = np.exp(np.arange(0, width, 2).astype(dtype) * dtype(-np.log(10000) / width))
    angles = (np.arange(len(rows)) + first).astype(dtype)[:, None] * frequencies
    pairs = (rows[:, 0::2] + 1j * rows[:, 1::2]) * (np.cos(angles) + 1j * np.sin(angles))
    return np.stack([pairs.real, pairs.imag], -1).reshape(rows.shape).astype(dtype)


def far_away(seed, first, dtype):
    """Return a problem of queries that stand far behind their keys, and its scores."""
    q, k, v = np.random.default_rng(seed).standard_normal((3, 6, 8)).astype(dtype)
    problem = pose(q, k, v, rope="interleaved", query_offset=first)
    return problem, turned(q, first, dtype) @ turned(k, 0, dtype).T / dtype(8**0.5), v


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("first", [752, 6003, 13194])
@pytest.mark.parametrize("seed", range(4))
def test_angles_of_far_positions_may_be_rounded(seed, first, dtype):
    problem, scores, v = far_away(seed, first, dtype)
    weights = softmax(scores)
    outputs = {"scores": scores, "weights": weights, "context": weights @ v}
    outputs["lse"] = np.log(np.exp(scores).sum(-1))
    for name, output in outputs.items():
        assert check({name: output}, problem).passed, name


def test_a_position_beside_a_far_one_is_still_a_mistake():
    problem, _, v = far_away(0, 6003, np.float64)
    weights = softmax(far_away(0, 6002, np.float64)[1])
    assert not check(weights @ v, problem, diagnose=False).passed


def test_a_mistake_is_named_beside_rounded_angles():
    problem, scores, v = far_away(0, 6003, np.float64)
    assert named(check(softmax(scores * 8**0.5) @ v, problem)) == {"unscaled"}
