"""Scores that leave out some components of query and key are told, with how many they take."""

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

SHAPE = (1, 2, 10, 12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("part", "words"),
    [
        (slice(0, 6), "the first 6 of the 12"),
        (slice(0, 11), "the first 11 of the 12"),
        (slice(8, 12), "the last 4 of the 12"),
    ],
)
def test_some_components(seed, part, words):
    q, k, v = draw(seed, *[SHAPE] * 3)
    scores = q[..., part].astype("f8") @ k[..., part].swapaxes(-1, -2) / np.sqrt(12)
    weights = softmax(np.where(np.tri(10, dtype=bool), scores, -np.inf))
    report = ask((q, k, v), {"context": weights @ v, "weights": weights}, causal=True)
    assert named(report) == {"some_components"}
    assert f"made of {words} components of query and key alone" in str(report)


@pytest.mark.parametrize(
    ("part", "scaled_by", "words"),
    [
        pytest.param(
            *(slice(0, 63), 64, "the first 63 of the 64 components of query and key alone"),
            marks=pytest.mark.long,
        ),
        (slice(1, 64), 64, "the last 63 of the 64 components of query and key alone"),
        (slice(0, 63), 63, "of query and key alone, and scaled by 1/√63"),
        (slice(0, 32), 32, "of query and key alone, and scaled by 1/√32"),
    ],
)
def test_of_wide_heads(part, scaled_by, words):
    q, k, v = draw(0, *[(1, 2, 30, 64)] * 3)
    scores = q[..., part].astype("f8") @ k[..., part].swapaxes(-1, -2) / np.sqrt(scaled_by)
    report = ask((q, k, v), softmax(scores) @ v)
    assert named(report) == {"some_components"}
    assert words in " ".join(str(report).split())


@pytest.mark.usefixtures("one_mistake")
def test_others_have_no_name():
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = q[..., ::5].astype("f8") @ k[..., ::5].swapaxes(-1, -2) / np.sqrt(12)
    assert named(ask((q, k, v), softmax(scores) @ v)) == set()
