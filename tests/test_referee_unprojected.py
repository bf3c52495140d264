"""Mistakes of single heads are read off a context behind its output projection."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake  # noqa: F401 - a fixture

B, H, L, D = SHAPE = (1, 4, 24, 16)
TRIL = np.tri(L, dtype=bool)


def packed(array):
    return array.swapaxes(1, 2).reshape(B, -1, H * D)


def dropped_out(context):
    kept = np.random.default_rng(1).random(context.shape) > 0.25
    return context * kept / 0.75


MISTAKES = {
    "two heads exchanged": (
        lambda q, k, v: plain(q, k, v)[:, [1, 0, 2, 3]],
        "outputs_misplaced",
        "head 0 is head 1; head 1 is head 0",
    ),
    "all heads are the last": (
        lambda q, k, v: plain(q, k, v)[:, [3] * 4],
        "outputs_misplaced",
        "head 0 is head 3",
    ),
    "values of head 0": (
        lambda q, k, v: plain(q, k, v[:, [0] * 4]),
        "inputs_misplaced",
        "head 1 reads the values of head 0",
    ),
    "queries of other heads": (
        lambda q, k, v: plain(q[:, [1, 0, 3, 2]], k, v),
        "inputs_misplaced",
        "head 0 reads the queries of head 1",
    ),
    "one head not written": (
        lambda q, k, v: plain(q, k, v) * np.array([1, 1, 0, 1])[:, None, None],
        "heads_not_written",
        "head 2 is 0",
    ),
    "a scale of each head": (
        lambda q, k, v: plain(q * np.array([1, 2, 0.5, 1])[:, None, None], k, v),
        "scale_by_head",
        "head 1 times 2; head 2 times 0.5",
    ),
    "dropout before the projection": (
        lambda q, k, v: dropped_out(plain(q, k, v)),
        "output_dropout",
        "divided by 1 − 0.25",
    ),
    "a mask in one head": (
        lambda q, k, v: plain(q, k, v, TRIL | (np.arange(H) > 0)[:, None, None]),
        "another_mask",
        "it hides what should be seen: 276 of 2,304 pairs",
    ),
}


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_heads_before_their_projection(mistake, seed):
    make, name, words = MISTAKES[mistake]
    q, k, v = draw(seed, *[SHAPE] * 3)
    weight, bias = draw(seed + 1, (H * D, H * D), (H * D,))
    wrong = packed(make(q, k, v)) @ weight.astype("f8") + bias
    options = {"heads": H, "wo": weight, "bo": bias}
    inputs = [packed(array) for array in (q, k, v)]
    right = packed(plain(q, k, v)) @ weight.astype("f8") + bias
    assert ask(inputs, right, **options).passed
    report = ask(inputs, wrong, **options)
    (explanation,) = report.diagnosis.explanations
    (convention,) = explanation.conventions
    assert convention.name == name
    assert words in convention.meaning


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("width", long_but([H * D + 16, H * D - 1], H * D - 1))
def test_a_projection_tells_the_heads_if_it_is_wide_enough(width):
    q, k, v = draw(0, *[SHAPE] * 3)
    (weight,) = draw(1, (H * D, width))
    wrong = packed(plain(q, k, v)[:, [1, 0, 2, 3]]) @ weight.astype("f8")
    report = ask([packed(array) for array in (q, k, v)], wrong, heads=H, wo=weight)
    assert named(report) == ({"outputs_misplaced"} if width > H * D else set())


@pytest.mark.usefixtures("one_mistake")
def test_a_projection_that_forgets_a_direction_tells_nothing():
    q, k, v = draw(0, *[SHAPE] * 3)
    (weight,) = draw(1, (H * D, H * D))
    weight[3] = weight[4]
    wrong = packed(plain(q, k, v)[:, [1, 0, 2, 3]]) @ weight.astype("f8")
    assert named(ask([packed(a) for a in (q, k, v)], wrong, heads=H, wo=weight)) == set()


def test_queries_of_other_heads_without_a_projection():
    q, k, v = draw(0)
    report = ask((q, k, v), plain(q[:, [1, 0, 2, 3]], k, v))
    (convention,) = report.diagnosis.explanations[0].conventions
    assert "head 0 reads the queries of head 1" in convention.meaning


def test_padded_queries_before_their_projection():
    q, k, v = draw(0, *[SHAPE] * 3)
    weight, bias = draw(1, (H * D, H * D), (H * D,))
    real = np.arange(L) < np.array([20])[:, None]
    context = plain(q, k, v)[:, [1, 0, 2, 3]]
    wrong = np.where(real[..., None], packed(context) @ weight.astype("f8") + bias, 0)
    inputs = [packed(array) for array in (q, k, v)]
    report = ask(inputs, wrong, heads=H, wo=weight, bo=bias, query_lengths=[20])
    assert named(report) == {"outputs_misplaced"}
