"""Another axis is attended over, the width is cut otherwise, or all read what is of the first."""

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import check, pose

TRIL = np.tri(12, dtype=bool)


def packed(array):
    """Return (B, H, L, D) as (B, L, H·D)."""
    batch, _, rows, _ = array.shape
    return array.transpose(0, 2, 1, 3).reshape(batch, rows, -1)


def cut(array, heads):
    batch, rows, _ = array.shape
    return array.reshape(batch, rows, heads, -1).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_a_layout_that_is_not_stated_with_shared_keys(seed, causal, groups):
    shapes = [(2, 12, heads, 16) for heads in (8, groups, groups)]
    given = draw(seed, *shapes)
    q, k, v = (array.transpose(0, 2, 1, 3) for array in given)
    k, v = (np.repeat(array, 8 // groups, axis=1) for array in (k, v))
    right = plain(q, k, v, TRIL if causal else True).transpose(0, 2, 1, 3)
    report = ask(given, right, causal=causal, causal_align="top-left" if causal else None)
    assert named(report) == {"axes_exchanged"}
    assert report.diagnosis.explanations[0].options == ("--layout bshd",)


@pytest.mark.parametrize("seed", SEEDS)
def test_three_axes_whose_sequence_comes_first(seed):
    given = draw(seed, *[(12, 4, 16)] * 3)
    right = plain(*(array.transpose(1, 0, 2) for array in given)).transpose(1, 0, 2)
    report = ask(given, right)
    assert named(report) == {"batch_attended"}
    assert report.diagnosis.explanations[0].options == ("--layout shd",)
    assert ask(given, right, layout="shd").passed


@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_that_is_taken_for_the_sequence(seed):
    q, k, v = draw(seed, *[(3, 10, 16)] * 3)
    turned = [cut(array.transpose(1, 0, 2), 4) for array in (q, k, v)]
    wrong = packed(plain(*turned)).transpose(1, 0, 2)
    report = ask((q, k, v), wrong, heads=4)
    assert named(report) == {"batch_attended"}
    assert report.diagnosis.explanations[0].options == ()


@pytest.mark.parametrize("average", [False, True])
def test_weights_of_a_batch_that_is_taken_for_the_sequence(average):
    q, k, _ = draw(0, *[(3, 10, 16)] * 3)
    q, k = (cut(array.transpose(1, 0, 2), 4) for array in (q, k))
    powers = np.exp(q.astype("f8") @ k.swapaxes(-1, -2) / 2)
    wrong = powers / powers.sum(-1, keepdims=True)
    given = draw(0, *[(3, 10, 16)] * 3)
    wrong = wrong.mean(1) if average else wrong
    problem = pose(*given, heads=4)
    report = check({"weights": wrong.astype("f4")}, problem, average_heads=average)
    assert named(report) == {"batch_attended"}


def test_a_batch_that_is_taken_for_the_sequence_before_an_output_projection():
    q, k, v = draw(0, *[(3, 10, 16)] * 3)
    weight = draw(1, (16, 16))[0]
    turned = [cut(array.transpose(1, 0, 2), 4) for array in (q, k, v)]
    wrong = packed(plain(*turned)).transpose(1, 0, 2) @ weight
    assert named(check(wrong.astype("f4"), pose(q, k, v, heads=4, wo=weight))) == {"batch_attended"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("asked", "number"), [(4, 1), (4, 2), (4, 8), (None, 4), (None, 12), (6, 3)]
)
def test_another_number_of_heads(seed, asked, number):
    q, k, v = draw(seed, *[(2, 9, 24)] * 3)
    wrong = packed(plain(*(cut(array, number) for array in (q, k, v))))
    report = ask((q, k, v), wrong, heads=asked)
    assert named(report) == {f"heads_{number}"}
    assert report.diagnosis.explanations[0].options == (f"--heads {number}",)
    assert ask((q, k, v), wrong, heads=number).passed


def test_another_number_of_heads_at_the_scale_that_is_stated():
    q, k, v = draw(0, *[(2, 9, 24)] * 3)
    wrong = packed(plain(*(cut(array, 2) for array in (q, k, v)), scale=0.3))
    report = ask((q, k, v), wrong, heads=4, scale=0.3)
    assert named(report) == {"heads_2"}


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_of_the_first_head_or_batch_entry(seed):
    q, k, v = draw(seed, (2, 6, 10, 8), (2, 3, 10, 8), (2, 3, 10, 8))
    one = plain(q, k[:, :1], v[:, :1])
    assert named(ask((q, k, v), one)) == {"keys_of_first_head"}
    k, v = (np.repeat(array, 2, axis=1) for array in (k, v))
    entry = plain(q, k[:1], v[:1])
    assert named(ask((q, k, v), entry)) == {"keys_of_first_batch_entry"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bias_of_the_first_head(seed):
    q, k, v = draw(seed)
    bias = draw(seed + 50, (4, 6, 6))[0]
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8) + bias[:1]
    powers = np.exp(scores)
    wrong = powers / powers.sum(-1, keepdims=True) @ v
    assert named(ask((q, k, v), wrong, bias=bias)) == {"bias_of_first_head"}


@pytest.mark.parametrize("outputs", [("weights",), ("context", "lse"), ("context", "scores")])
@pytest.mark.usefixtures("one_mistake")
def test_heads_that_a_layout_does_not_know_are_not_looked_for_in_other_outputs(outputs):
    q, k, v = draw(0, *[(5, 8)] * 3)
    scores = q.astype("f8") @ k.T / np.sqrt(8)
    right = {"weights": np.exp(scores), "scores": scores, "lse": scores[:, 0], "context": v + 1.0}
    report = ask((q, k, v), {name: right[name] for name in outputs})
    assert not report.passed
