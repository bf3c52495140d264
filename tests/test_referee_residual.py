"""A residual connection that is in the file."""

from __future__ import annotations

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax

from attncli import pose, project
from attncli.referee import check


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", long_but([None, 1.0], 1.0))
def test_the_query_is_added(seed, scale):
    q, k, v = draw(seed, (2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    wrong = plain(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), scale=scale) + q
    name = "query_added" if scale is None else "unscaled+query_added"
    assert named(ask((q, k, v), wrong)) == {name}
    assert named(ask((q, k, v[..., :6]), wrong[..., :6])) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_value_is_added(seed):
    q, k, v = draw(seed)
    assert named(ask((q, k, v), plain(q, k, v) + v)) == {"value_added"}
    k, v = k[:, ::2], v[:, ::2]  # two queries share each of them
    wide = np.repeat(v, 2, axis=1)
    assert named(ask((q, k, v), plain(q, np.repeat(k, 2, 1), wide) + wide)) == {"value_added"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("positions", [None, "sinusoidal"])
@pytest.mark.parametrize("output", [False, True])
def test_the_embeddings_are_added(seed, positions, output):
    x, wq, wk, wv, wo = draw(seed, (2, 7, 8), *[(8, 8)] * 4, dtype="float64")
    angles = np.arange(7)[:, None] / 10000 ** (np.arange(0, 8, 2) / 8)
    waves = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(7, 8)
    placed = x if positions is None else x + waves
    q, k, v = ((placed @ w).reshape(2, 7, 2, 4).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
    context = softmax(q @ k.swapaxes(-1, -2) / 2) @ v
    context = context.transpose(0, 2, 1, 3).reshape(2, 7, 8)
    wrong = (context @ wo if output else context) + placed
    made = project(x, wq=wq, wk=wk, wv=wv, positions=positions)
    problem = pose(made.query, made.key, made.value, heads=2, wo=wo if output else None)
    assert named(check(wrong.astype("f4"), problem, projected=made)) == {"embeddings_added"}
