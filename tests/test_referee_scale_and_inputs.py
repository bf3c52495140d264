"""Wrong scales and exchanged inputs are named, each made by its own line of NumPy."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("unscaled", 1),
        ("scores_negated", -(8**-0.5)),
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


@pytest.mark.parametrize("lead", [(), (2, 3)])
def test_inputs_that_give_the_context_another_shape(lead):
    """Keys have another width than values, and are more than the queries."""
    q, k, v = draw(0, (*lead, 5, 8), (*lead, 7, 8), (*lead, 7, 4))
    assert named(ask((q, k, v), plain(q, k, k))) == {"key_as_value"}
    assert named(ask((q, k, v), plain(k, k, v))) == {"key_as_query"}
    padding = np.arange(7) < 4
    report = ask((q, k, v), plain(q, k, k, padding), key_padding_mask=padding)
    assert named(report) == {"key_as_value"}
    # A mask is for the queries; it says nothing about rows of keys.
    mask = np.tri(5, 7, dtype=bool)
    assert named(ask((q, k, v), plain(k, k, v), mask=mask)) == set()


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


@pytest.mark.parametrize("seed", SEEDS)
def test_the_scale_of_a_width_that_is_filled_up(seed):
    q, k, v = draw(seed, *[(2, 4, 6, 40)] * 3)
    assert named(ask((q, k, v), plain(q, k, v, scale=1 / 8))) == {"padded_width_scale"}


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_in_bits_under_exp(seed):
    q, k, v = draw(seed)
    wrong = plain(q, k, v, scale=np.log2(np.e) / np.sqrt(8))
    assert named(ask((q, k, v), wrong)) == {"log2e_without_exp2"}


class TestAnotherScale:
    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize(
        "scale", long_but([0.001, 0.03, 0.29, 0.36, 0.5, 4, 12, -0.354], 0.001, 0.36, 12, -0.354)
    )
    def test_is_found(self, seed, scale):
        q, k, v = draw(seed)
        wrong = plain(q, k, v, scale=scale)
        report = ask((q, k, v), wrong)
        assert named(report) == {"another_scale"}
        (explanation,) = report.diagnosis.explanations
        assert f"about {scale:g}, where 0.3536 is right" in str(report)
        assert explanation.options == (f"--scale {scale:g}",)
        assert explanation.error < 1e-5

    def test_is_told_in_digits_that_show_the_difference(self):
        q, k, v = draw(0, dtype="float64")
        report = ask((q, k, v), plain(q, k, v, scale=0.1247665), "float64", scale=0.124767)
        assert "the scale is about 0.1247665, where 0.124767 is right" in str(report)

    @pytest.mark.parametrize("scale", long_but([0.3, 0.123456, 0.3571], 0.123456))
    def test_is_found_in_float64_to_its_last_digits(self, scale):
        q, k, v = draw(0, dtype="float64")
        report = ask((q, k, v), plain(q, k, v, scale=scale), "float64")
        (explanation,) = report.diagnosis.explanations
        assert explanation.options == (f"--scale {scale}",)
        assert explanation.error < 1e-14

    def test_the_option_reproduces_it(self):
        q, k, v = draw(0)
        wrong = plain(q, k, v, scale=np.pi / 10)
        (explanation,) = ask((q, k, v), wrong).diagnosis.explanations
        scale = float(explanation.options[0].split()[1])
        assert ask((q, k, v), wrong, scale=scale).passed

    def test_is_found_in_weights_and_in_lse(self):
        q, k, v = draw(0)
        scores = 0.41 * q.astype("f8") @ k.swapaxes(-1, -2)
        outputs = {"weights": softmax(scores), "lse": np.log(np.exp(scores).sum(-1))}
        assert named(ask((q, k, v), outputs)) == {"another_scale"}

    def test_needs_more_than_a_few_numbers(self):
        # Of two keys, some scale gives any weights whose order is right.
        wrong = [[0.9, 0.1]]
        report = ask(([[1.0]], [[2.0], [1.0]]), {"weights": wrong}, "float64", scale=1)
        assert not report.passed
        assert named(report) == set()

    def test_two_known_mistakes_come_before_it(self):
        q, k, v = draw(0)
        wrong = plain(q, k, v, scale=np.log(2))
        assert named(ask((q, k, v), wrong)) == {"unscaled+softmax_base_2"}


@pytest.mark.parametrize("seed", SEEDS)
def test_lost_scores(seed):
    q, k, v = draw(seed)
    wrong = np.broadcast_to(v.mean(axis=-2, keepdims=True), v.shape)
    assert named(ask((q, k, v), wrong)) == {"scores_zero"}


@pytest.mark.parametrize("seed", SEEDS)
def test_transposed_weights(seed):
    q, k, v = draw(seed)
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8))
    assert named(ask((q, k, v), weights.swapaxes(-1, -2) @ v)) == {"weights_transposed"}
