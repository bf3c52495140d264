"""Judging a context that went through an output projection, whose heads are no more."""

from __future__ import annotations

import numpy as np
import pytest

from attncli import pose, project
from attncli.referee import check

HEADS, WIDTH = 4, 32


def made(tokens, batch=2):
    draw = np.random.default_rng(tokens).normal
    weights = {f"w{c}": draw(size=(WIDTH, WIDTH)) / WIDTH**0.5 for c in "qkv"}
    wo, bo = draw(size=(WIDTH, WIDTH)) / WIDTH**0.5, draw(size=WIDTH)
    return project(draw(size=(batch, tokens, WIDTH)), **weights), wo, bo


def plain(layer, dtype, scale):
    """Return the weights and the output of the layer by plain NumPy, all in one dtype."""
    inputs, wo, bo = layer
    q, k, v = (
        array.reshape(*array.shape[:2], HEADS, -1).transpose(0, 2, 1, 3).astype(dtype)
        for array in (inputs.query, inputs.key, inputs.value)
    )
    scores = (q @ k.swapaxes(-1, -2) * dtype(scale)).astype(dtype)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (powers / powers.sum(axis=-1, keepdims=True)).astype(dtype)
    context = (weights @ v).transpose(0, 2, 1, 3).reshape(inputs.query.shape)
    return weights, (context @ wo.astype(dtype) + bo.astype(dtype)).astype(dtype)


def posed(layer, **options):
    inputs, wo, bo = layer
    return pose(inputs.query, inputs.key, inputs.value, heads=HEADS, wo=wo, bo=bo, **options)


RIGHT = (WIDTH / HEADS) ** -0.5


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("tokens", [6, 150])
def test_right_outputs_pass(dtype, tokens):
    layer = made(tokens)
    assert check(plain(layer, dtype, RIGHT)[1], posed(layer)).passed


@pytest.mark.parametrize("tokens", [6, 150])
@pytest.mark.parametrize("with_weights", [False, True])
def test_wrong_scale_is_named(tokens, with_weights):
    layer = made(tokens)
    weights, output = plain(layer, np.float32, 1.0)
    given = {"context": output, "weights": weights} if with_weights else output
    report = check(given, posed(layer))
    assert not report.passed
    assert [found.name for found in report.diagnosis.explanations] == ["unscaled"]


def test_rows_are_told_where_each_head_has_its_own_mask():
    layer = made(6)
    mask = np.ones((2, HEADS, 6, 6), bool)
    mask[:, :, 0, 5] = False
    output = plain(layer, np.float64, RIGHT)[1]
    assert not check(output, posed(layer, mask=mask)).passed
