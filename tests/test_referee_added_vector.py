"""A vector is added to all contexts: a bias of the value's projection, and its like."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures


def told(report):
    (explanation,) = report.diagnosis.explanations
    (convention,) = explanation.conventions
    assert convention.name == "added_vector"
    return convention.meaning


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("batch", "heads", "groups", "queries", "keys"),
    [(1, 1, 1, 5, 7), (2, 4, 2, 6, 9), (4, 2, 2, 1, 50), (1, 4, 4, 50, 50)],
)
def test_a_value_without_its_bias(seed, batch, heads, groups, queries, keys):
    shapes = (batch, heads, queries, 8), (batch, groups, keys, 8), (batch, groups, keys, 8)
    q, k, v = draw(seed, *shapes)
    (bias,) = draw(seed + 100, (groups, 1, 8))
    own = heads // groups
    right = plain(q, np.repeat(k, own, 1), np.repeat(v + bias, own, 1))
    meaning = told(ask((q, k, v), right))
    assert f"({bias[0, 0, 0]:.3g}, {bias[0, 0, 1]:.3g}, {bias[0, 0, 2]:.3g}, …)" in meaning
    assert ("each head" in meaning) is (heads > 1)


def test_each_batch_entry_has_its_own_where_it_takes_the_place_of_a_head():
    q, k, v = draw(0, *[(8, 20, 16)] * 3)
    (bias,) = draw(1, (8, 1, 16))
    meaning = told(ask((q, k, v), plain(q, k, v + bias)))
    assert "each batch entry adds a vector of its own" in meaning


def test_of_several_heads_and_batch_entries_each_has_its_own():
    q, k, v = draw(0, *[(3, 2, 20, 8)] * 3)
    (point,) = draw(1, (3, 2, 1, 8))
    meaning = told(ask((q, k, v), plain(q, k, v + point)))
    assert meaning.startswith("each head of each batch entry adds a vector of its own")
    assert f"head 0 of batch entry 0 ({point[0, 0, 0, 0]:.3g}" in meaning


@pytest.mark.parametrize("dtype", long_but(["f4", "f2"], "f4"))
@pytest.mark.parametrize(
    ("words", "added"),
    [
        ("the first value is added to", lambda v: v[:, :, :1]),
        ("the last value is added to", lambda v: v[:, :, -1:]),
        ("the mean of the values is added to", lambda v: v.mean(2, keepdims=True)),
        ("the mean of the values is subtracted from", lambda v: -v.mean(2, keepdims=True)),
    ],
)
def test_a_value_that_is_added_once_more_is_said_to_be_one(words, added, dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, (2, 4, 30, 8), *[(2, 2, 20, 8)] * 2))
    right = plain(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1))
    wrong = right + np.repeat(added(v.astype("f8")), 2, 1)
    assert told(ask((q, k, v), wrong, dtype)) == f"{words} every context"


def test_a_number_added_to_all_is_told_as_one():
    q, k, v = draw(0, *[(1, 2, 32, 32)] * 3)
    report = ask([array.astype("f2") for array in (q, k, v)], plain(q, k, v) + 0.25, "f2")
    assert "about 0.25 is added to every number" in told(report)


def test_a_small_shift_in_16_bits_does_not_hide():
    """The largest errors are those of roundings, but all are shifted to one side."""
    q, k, v = (array.astype("f2") for array in draw(0, *[(1, 1, 128, 64)] * 3))
    report = ask((q, k, v), plain(q, k, v) + 0.0012, "f2")
    assert "about 0.0012 is added" in told(report)


def test_queries_that_see_no_key_are_zeros_all_the_same():
    q, k, v = draw(0, *[(2, 2, 6, 8)] * 3)
    (bias,) = draw(1, (2, 1, 8))
    keep = np.tri(6, dtype=bool) & (np.arange(6) >= 2)[:, None]
    wrong = np.where(keep.any(-1)[:, None], plain(q, k, v + bias, keep), 0)
    assert "each head" in told(ask((q, k, v), wrong, mask=keep))


def test_behind_an_output_projection():
    q, k, v = draw(0, *[(1, 6, 16)] * 3)
    weight, bias = draw(1, (16, 10), (10,))
    heads = [array.reshape(1, 6, 2, 8).swapaxes(1, 2) for array in (q, k, v)]
    joined = plain(*heads).swapaxes(1, 2).reshape(1, 6, 16) @ weight.astype("f8")
    report = ask((q, k, v), joined + bias, wo=weight, heads=2)
    assert f"a vector is added to every context ({bias[0]:.3g}" in told(report)


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", long_but(range(5), 0))
@pytest.mark.parametrize("queries", [1, 2, 40])
def test_noise_has_no_name(seed, queries):
    q, k, v = draw(seed, (1, 2, queries, 8), (1, 2, 30, 8), (1, 2, 30, 8))
    (noise,) = draw(seed + 50, (1, 2, queries, 8))
    assert named(ask((q, k, v), plain(q, k, v) + noise)) == set()


@pytest.mark.usefixtures("one_mistake")
def test_one_query_may_be_anything():
    q, k, v = draw(0, (1, 1, 1, 8), (1, 1, 9, 8), (1, 1, 9, 8))
    assert "added_vector" not in named(ask((q, k, v), plain(q, k, v) + 0.1))


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_queries_that_are_all_alike_show_no_vector(dtype):
    """Any mistake adds the same to each of them."""
    q, k, v = np.ones((1, 2, 16, 32), "f4"), *draw(0, *[(1, 2, 64, 32)] * 2)
    q, k, v = (array.astype(dtype) for array in (q, k, v))
    rounded = np.round(2 * k.astype("f8")) / 2
    assert "added_vector" not in named(ask((q, k, v), plain(q, rounded, v), dtype))


def test_a_factor_says_more_than_a_vector():
    q, k, v = (x.astype("f2") for x in draw(0, (1, 2, 8, 64), *[(1, 2, 24, 64)] * 2))
    q, v = (q * np.float16(0.05)), v + np.float16(3)
    assert named(ask((q, k, v), plain(q, k, v) / 1.02, "f2")) == {"another_factor"}
