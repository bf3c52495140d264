"""Weights without a softmax, an epsilon in its denominator, whole numbers."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax

from attncli import check, pose

CAUSAL = np.tri(6, dtype=bool)


def scaled(q, k, keep=True):
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return np.where(keep, scores, -np.inf)


def last_of(powers):
    """Return the power of the last key that each query sees."""
    rows = (row[row > 0][-1] for row in powers.reshape(-1, powers.shape[-1]))
    return np.fromiter(rows, float).reshape(powers.shape[:-1])


def relu(scores):
    return np.where(scores > 0, scores, 0)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "weigh"),
    [
        ("relu", relu),
        ("relu_divided_by_their_sum", lambda s: relu(s) / (relu(s).sum(-1, keepdims=True) + 1e-30)),
        ("relu_divided_by_length", lambda s: relu(s) / s.shape[-1]),
    ],
)
def test_scores_above_0_as_weights(name, weigh, causal, seed):
    q, k, v = draw(seed)
    wrong = weigh(scaled(q, k, CAUSAL if causal else True)) @ v
    assert named(ask((q, k, v), wrong, causal=causal)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("epsilon", "name"),
    [
        (1e-2, "epsilon_1e_2"),
        (1e-3, "epsilon_1e_3"),
        (1e-5, "epsilon_1e_5"),
        (1e-6, "epsilon_1e_6"),
    ],
)
def test_an_epsilon_in_the_denominator(epsilon, name, causal, seed):
    q, k, v = (x.astype(float) for x in draw(seed))
    scores = scaled(q, k, CAUSAL if causal else True)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    wrong = powers / (powers.sum(-1, keepdims=True) + epsilon) @ v
    assert named(ask((q, k, v), wrong, "float64", causal=causal)) == {name}


@pytest.mark.parametrize("epsilon", long_but([0.1, 0.5, 0.03, 2.5e-4], 0.1))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shifted", [False, True])
def test_any_other_number_in_the_denominator(epsilon, causal, shifted):
    inputs = draw(0)
    q, k, v = (x.astype(float) for x in inputs)
    scores = scaled(q, k, CAUSAL if causal else True)
    powers = np.exp(scores - shifted * scores.max(-1, keepdims=True))
    wrong = powers / (powers.sum(-1, keepdims=True) + epsilon) @ v
    (cause,) = ask(inputs, wrong, causal=causal).diagnosis.explanations
    assert cause.name == "epsilon_added"
    (convention,) = cause.conventions
    exponential = "exp(score − maximum)" if shifted else "exp(score)"
    assert convention.meaning.startswith(f"{epsilon:g} is added to the sum of {exponential} before")
    assert len(cause.options) == (not shifted)
    for option in cause.options:
        sinks = [float(sink) for sink in option.removeprefix("--sinks=").split(",")]
        assert ask(inputs, wrong, causal=causal, sinks=sinks).passed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("sinks_unasked_unshifted", lambda p: p.sum(-1) + 1),
        ("last_key_uncounted", lambda p: p.sum(-1) - last_of(p)),
        ("first_key_uncounted", lambda p: p[..., 1:].sum(-1)),
    ],
)
def test_other_denominators(name, total, causal, seed):
    q, k, v = (x.astype(float) for x in draw(seed))
    scores = scaled(q, k, CAUSAL if causal else True)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        wrong = powers / total(powers)[..., None] @ v
    assert named(ask((q, k, v), wrong, causal=causal)) == {name}


def test_the_lse_beside_a_1_behind_the_maximum_is_explained_too():
    q, k, v = draw(0)
    scores = scaled(q, k)
    top = scores.max(-1)
    powers = np.exp(scores - top[..., None])
    total = powers.sum(-1) + 1
    wrong = {"context": powers / total[..., None] @ v, "lse": top + np.log(total)}
    report = ask((q, k, v), wrong)
    assert named(report) == {"sinks_unasked_unshifted"}
    assert report.diagnosis.unexplained == ()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "cut"), [("cast_to_integers", np.trunc), ("rounded_to_integers", np.round)]
)
def test_whole_numbers(name, cut, seed):
    q, k, v = draw(seed)
    wrong = cut(softmax(scaled(q, k)) @ (20 * v))
    assert named(ask((q, k, 20 * v), wrong, "int64")) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("rounded_to_1_decimal", "%.1f"),
        ("rounded_to_1_digit", "%.1g"),
        ("rounded_to_2_digits", "%.2g"),
    ],
)
def test_few_digits(name, form, seed):
    """In float16, whose numbers are not looked at for digits that were printed."""
    q, k, v = draw(seed)
    context = softmax(scaled(q, k)) @ v
    short = np.vectorize(lambda number: float(form % number))(context)
    assert named(ask((q, k, v), short, "float16")) == {name}


def test_one_decimal_of_few_numbers():
    q, k, v = ([[1.0], [0.5], [-1.0]], [[1.0], [3.0]], [[0.0], [1.0]])
    right = plain(q, k, v)
    assert "rounded_to_1_decimal" in named(ask((q, k, v), right.round(1), "float64"))


def test_two_digits_of_which_three_have_decimals():
    q = [[1, 1], [1.8, -0.4]]
    k = [[0.5, -0.4], [-1.4, -0.7], [0.1, -0.9]]
    v = [[-1.9, 11.2, 5.7], [5.7, 3.5, -1.8], [-18.7, 9.9, -15.1]]
    found = [[-6.1, 9.9, -1.5], [-8, 10, -2.8]]
    assert named(check(found, pose(q, k, v))) == {"rounded_to_2_digits"}
