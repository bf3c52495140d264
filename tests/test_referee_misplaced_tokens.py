"""Keys and values that stand at the places of others under a causal rule, whatever the order."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain
from referee_tried import one_mistake  # noqa: F401 - a fixture

SHAPE = (2, 4, 32, 8)
TRIL = np.tri(32, dtype=bool)
PAGES = np.arange(32).reshape(4, 8)
EXCHANGED = np.array([0, 1, 2, 7, 4, 5, 6, 3, *range(8, 32)])


ORDERS = {
    "token 7 at place 3; token 3 at place 7": EXCHANGED,
    "tokens 8 to 15 at places 0 to 7; tokens 0 to 7 at places 8 to 15; tokens 24": (
        PAGES[[1, 0, 3, 2]].ravel()
    ),
    "tokens 0 to 7 at places 8 to 15; tokens 0 to 7 at places 16 to 23": (
        PAGES[[0, 0, 0, 3]].ravel()
    ),
    "tokens 24 to 31 at places 0 to 7; tokens 0 to 23 at places 8 to 31": np.roll(np.arange(32), 8),
}


@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float16"))
@pytest.mark.parametrize("words", long_but(ORDERS, *list(ORDERS)[::2]))
def test_tokens_in_another_order(words, dtype):
    q, k, v = (array.astype("f2").astype(dtype) for array in draw(0, *[SHAPE] * 3))
    order = ORDERS[words]
    wrong = plain(q, k[:, :, order], v[:, :, order], TRIL)
    convention = only(ask((q, k, v), wrong, dtype, causal=True))
    assert convention.name == "tokens_misplaced"
    assert f"keys and values of other tokens stand at some places: {words}" in convention.meaning


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("side", ["keys", "values"])
def test_one_side_in_another_order(side, seed):
    q, k, v = draw(seed, SHAPE, *[(2, 2, 32, 8)] * 2)
    k_, v_ = (k[:, :, EXCHANGED], v) if side == "keys" else (k, v[:, :, EXCHANGED])
    wrong = plain(q, np.repeat(k_, 2, 1), np.repeat(v_, 2, 1), TRIL)
    convention = only(ask((q, k, v), wrong, causal=True))
    assert f"{side} of other tokens stand at some places: token 7 at place 3" in convention.meaning


def test_each_batch_entry_in_its_own_order():
    q, k, v = draw(0, *[SHAPE] * 3)
    orders = np.array([np.arange(32), EXCHANGED])[:, None, :, None]
    k_, v_ = (np.take_along_axis(array, orders, axis=2) for array in (k, v))
    convention = only(ask((q, k, v), plain(q, k_, v_, TRIL), causal=True))
    assert "token 7 at place 3 of batch entry 1; token 3 at place 7" in convention.meaning


def test_behind_a_rotary_embedding_and_an_output_projection():
    q, k, v = draw(0, *[SHAPE] * 3)
    (weight,) = draw(1, (32, 32))
    angles = np.outer(np.arange(32), 10000.0 ** (-np.arange(4) / 4))

    def turned(x):
        one, other = x[..., :4], x[..., 4:]
        turns = np.cos(angles), np.sin(angles)
        return np.concatenate(
            [one * turns[0] - other * turns[1], other * turns[0] + one * turns[1]], axis=-1
        )

    def packed(array):
        return array.swapaxes(1, 2).reshape(2, 32, 32)

    wrong = plain(turned(q), turned(k)[:, :, EXCHANGED], v[:, :, EXCHANGED], TRIL)
    report = ask(
        [packed(array) for array in (q, k, v)],
        packed(wrong) @ weight.astype("f8"),
        heads=4,
        wo=weight,
        rope="half",
        causal=True,
    )
    assert "token 7 at place 3" in only(report).meaning


@pytest.mark.usefixtures("one_mistake")
def test_tokens_of_another_problem_are_in_no_order():
    q, k, v, other = draw(0, *[SHAPE] * 4)
    assert named(ask((q, k, v), plain(q, k, other, TRIL), causal=True)) == set()
