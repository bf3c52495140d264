"""Files of one batch entry or head beside a problem of several."""

import numpy as np
import pytest
from referee_numpy import ask, draw, named, plain, softmax

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


def test_parts_that_differ_or_are_wrong_are_no_part():
    q, k, v = draw(0, *[SHAPE] * 3)
    right = plain(q, k, v)
    assert named(ask((q, k, v), draw(1, SHAPE)[0][0])) == set()
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8))
    report = ask((q, k, v), {"context": right[0], "weights": weights[1]})
    assert [e.outputs for e in report.diagnosis.explanations] == [("context",), ("weights",)]
