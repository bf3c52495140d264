"""Files of a part of the answer: a batch entry, a head, some queries; or with more than it."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

SHAPE = (2, 3, 6, 8)


def told(report):
    (explanation,) = report.diagnosis.explanations
    assert explanation.name == "one_part"
    return explanation.conventions[0].meaning.removeprefix(
        "the numbers are right, but the file holds "
    )


@pytest.mark.parametrize(
    ("pick", "words"),
    [
        (np.s_[1, 2], "only batch 1, head 2"),
        (np.s_[0], "only batch 0"),
        (np.s_[:, 1], "only head 1"),
    ],
)
def test_a_part_of_the_context_and_of_the_weights(pick, words):
    q, k, v = draw(0, *[SHAPE] * 3)
    assert told(ask((q, k, v), plain(q, k, v)[pick])) == words
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8))
    both = {"context": plain(q, k, v)[pick], "weights": weights[pick]}
    assert told(ask((q, k, v), both)) == words


def test_a_part_where_the_heads_come_after_the_sequence():
    q, k, v = draw(0, *[SHAPE] * 3)
    inputs = [array.transpose(0, 2, 1, 3) for array in (q, k, v)]
    answer = plain(q, k, v).transpose(0, 2, 1, 3)
    assert told(ask(inputs, answer[1], layout="bshd")) == "only batch 1"
    assert told(ask(inputs, answer[:, :, 2], layout="bshd")) == "only head 2"


def test_a_part_of_a_large_answer():
    shape = (1, 4, 800, 4)
    q, k, v = draw(0, *[shape] * 3)
    assert told(ask((q, k, v), plain(q, k, v)[0, 3])) == "only batch 0, head 3"


@pytest.mark.usefixtures("one_mistake")
def test_parts_that_differ_or_are_wrong_are_no_part():
    q, k, v = draw(0, *[SHAPE] * 3)
    right = plain(q, k, v)
    assert named(ask((q, k, v), draw(1, SHAPE)[0][0])) == set()
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8))
    report = ask((q, k, v), {"context": right[0], "weights": weights[1]})
    assert [e.outputs for e in report.diagnosis.explanations] == [("context",), ("weights",)]


def of_another_length(report):
    (explanation,) = report.diagnosis.explanations
    assert explanation.name == "other_length"
    return explanation.conventions[0].meaning.removeprefix("the numbers are right, but the file ")


PICKS = {
    "the first four": (np.s_[:, :, :4], "holds only queries 0 to 3"),
    "the last two": (np.s_[:, :, 4:], "holds only queries 4 to 5"),
    "the last": (np.s_[:, :, 5:], "holds only query 5"),
    "the last, without its axis": (np.s_[:, :, -1], "holds only query 5"),
    "the first, without its axis": (np.s_[:, :, 0], "holds only query 0"),
    "heads": (np.s_[:, :2], "holds only heads 0 to 1"),
    "batch": (np.s_[1:], "holds only batch entry 1"),
    "columns": (np.s_[..., :6], "holds only columns 0 to 5"),
}


@pytest.mark.parametrize("name", PICKS)
def test_some_queries_heads_or_columns(name):
    q, k, v = draw(0, *[SHAPE] * 3)
    pick, words = PICKS[name]
    assert of_another_length(ask((q, k, v), plain(q, k, v)[pick])) == words


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize(
    "name", long_but(PICKS, "the last two", "the last, without its axis", "heads")
)
def test_wrong_numbers_are_not_some_of_the_right_ones(name):
    q, k, v = draw(0, *[SHAPE] * 3)
    wrong = plain(q, k, v)[PICKS[name][0]] + 0.01
    assert "other_length" not in named(ask((q, k, v), wrong))


@pytest.mark.parametrize(
    ("pad", "words"),
    [
        (((0, 0), (0, 0), (0, 2), (0, 0)), "has 2 queries more behind them"),
        (((0, 0), (0, 0), (3, 0), (0, 0)), "has 3 queries more before them"),
        (((0, 0), (0, 0), (0, 0), (0, 1)), "has 1 column more behind them"),
        (((0, 1), (0, 0), (0, 0), (0, 0)), "has 1 batch entry more behind them"),
    ],
)
@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_a_padded_file(pad, words, fill):
    q, k, v = draw(0, *[SHAPE] * 3)
    padded = np.pad(plain(q, k, v), pad, constant_values=fill)
    assert of_another_length(ask((q, k, v), padded)) == words


def test_axes_are_named_as_in_the_layout_of_the_user():
    q, k, v = draw(0, *[SHAPE] * 3)
    inputs = [array.transpose(0, 2, 1, 3) for array in (q, k, v)]
    answer = plain(q, k, v).transpose(0, 2, 1, 3)
    found = of_another_length(ask(inputs, answer[:, :4], layout="bshd"))
    assert found == "holds only queries 0 to 3"
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8))
    found = of_another_length(ask((q, k, v), {"weights": np.pad(weights, [(0, 0)] * 3 + [(0, 2)])}))
    assert found == "has 2 keys more behind them"
    both = {"context": plain(q, k, v)[:, :, :4], "weights": weights[:, :, :4]}
    assert of_another_length(ask((q, k, v), both)) == "holds only queries 0 to 3"


def test_few_numbers_are_enough_where_they_are_exact():
    q, k, v = draw(0, (3, 4), (3, 4), (3, 2))
    assert of_another_length(ask((q, k, v), plain(q, k, v)[:2])) == "holds only queries 0 to 1"


def test_queries_of_a_large_answer():
    q, k, v = draw(0, *[(1, 4, 800, 4)] * 3)
    found = of_another_length(ask((q, k, v), plain(q, k, v)[:, :, :700]))
    assert found == "holds only queries 0 to 699"
