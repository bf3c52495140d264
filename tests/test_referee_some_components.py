"""Scores that leave out some components of query and key are told, with how many they take."""

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, softmax

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


def test_others_have_no_name():
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = q[..., ::5].astype("f8") @ k[..., ::5].swapaxes(-1, -2) / np.sqrt(12)
    assert named(ask((q, k, v), softmax(scores) @ v)) == set()
