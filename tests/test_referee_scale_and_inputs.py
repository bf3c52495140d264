"""Wrong scales and exchanged inputs are named, each made by its own line of NumPy."""

import numpy as np
import pytest
from referee_numpy import ask, draw, named, plain, softmax

SEEDS = [0, 1, 2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("unscaled", 1),
        ("one_over_width", 1 / 8),
        ("embedding_scale", 1 / np.sqrt(32)),
        ("scale_inverted", np.sqrt(8)),
        ("scale_of_one_side", 8 ** (-1 / 4)),
        ("length_scale", 1 / np.sqrt(6)),
        ("value_scale", 1 / np.sqrt(5)),
    ],
)
def test_wrong_factor(seed, name, scale):
    q, k, v = draw(seed, (2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 5))
    assert named(ask((q, k, v), plain(q, k, v, scale=scale))) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "scale"), [("scale_ignored", 8**-0.5), ("scale_twice", 0.49)])
def test_wrong_factor_where_a_scale_is_given(seed, name, scale):
    q, k, v = draw(seed)
    assert named(ask((q, k, v), plain(q, k, v, scale=scale), scale=0.7)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_scale_after_the_softmax(seed):
    q, k, v = draw(seed)
    wrong = (softmax(q @ k.swapaxes(-1, -2)) / np.sqrt(8)) @ v
    assert named(ask((q, k, v), wrong)) == {"scale_after_softmax"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("query_key_exchanged", (1, 0, 2)),
        ("key_value_exchanged", (0, 2, 1)),
        ("query_value_exchanged", (2, 1, 0)),
        ("key_as_value", (0, 1, 1)),
    ],
)
def test_exchanged_inputs(seed, name, order):
    inputs = draw(seed)
    assert named(ask(inputs, plain(*(inputs[i] for i in order)))) == {name}


def test_several_that_agree_are_all_named_and_told_apart():
    # With H = D the scale of the embedding, 1/√(H·D), is 1/D.
    q, k, v = draw(0, *[(1, 4, 5, 4)] * 3)
    report = ask((q, k, v), plain(q, k, v, scale=1 / 4))
    assert named(report) == {"one_over_width", "embedding_scale"}
    assert "more than one head" in report.diagnosis.apart


def test_the_option_makes_attncli_do_the_same():
    q, k, v = draw(3)
    wrong = plain(q, k, v, scale=1 / np.sqrt(32))
    option = ask((q, k, v), wrong).diagnosis.explanations[0].options[0]
    scale = float(option.removeprefix("--scale "))
    assert ask((q, k, v), wrong, scale=scale).passed


def test_one_head_has_no_scale_of_all_heads():
    q, k, v = draw(0, *[(1, 1, 6, 8)] * 3)
    assert named(ask((q, k, v), plain(q, k, v), scale=1)) == {"scale_ignored"}
