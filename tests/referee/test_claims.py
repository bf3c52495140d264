"""What a report claims, and in which order it says so."""

from __future__ import annotations

import re

import numpy as np
import pytest
from referee.case import check, names_of, posed, stored
from referee.plain import FORMATS, Given, draw

SHAPE = (1, 2, 12, 8)


def report_of(inputs, output, dtype="float32", **options):
    return check(stored(output, dtype), posed(inputs, options), time_limit=100)


def place_of(text, words):
    """Return where some words begin in a text, which has them."""
    assert words in text
    return text.index(words)


@pytest.mark.parametrize(("keys", "tells"), [(2, False), (4, True)])
def test_one_independent_number_cannot_tell_a_mistake(keys, tells):
    inputs = draw(0, (1, 4), (keys, 4), (keys, 4))
    weights = Given(inputs).weights()
    weights[..., 0] *= 0.9
    report = report_of(inputs, {"weights": weights / weights.sum(-1, keepdims=True)})
    assert names_of(report) == []
    assert report.diagnosis.tells is tells
    assert ("cannot tell" in str(report)) is not tells


def test_of_nan_it_is_said_where_it_is_and_nothing_more():
    inputs = draw(0, *[SHAPE] * 3)
    wrong = Given(inputs).attend()
    wrong[0, 1, 3, 2] = np.nan
    report = report_of(inputs, wrong)
    assert names_of(report) == []
    assert any("query 3" in words for words in report.diagnosis.findings)
    wrong[0, 1, 3] = np.nan
    assert names_of(report_of(inputs, wrong)) == ["rows_of_nan"]


def test_float64_numbers_of_few_digits_are_not_called_float32():
    inputs = draw(0, *[SHAPE] * 3)
    right = Given(inputs).attend()
    (verdict,) = report_of(inputs, np.round(right, 4), "float64").verdicts
    assert verdict.passed
    assert verdict.format == "5 digits"  # 1.2345 has five
    (verdict,) = report_of(inputs, np.round(1.1 * right, 4), "float64").verdicts
    assert not verdict.passed
    assert "float32" not in verdict.format
    assert report_of(inputs, right, "float64").verdicts[0].format == "float64"


def test_the_diagnosis_stands_before_the_numbers():
    inputs = draw(0, *[SHAPE] * 3)
    text = str(report_of(inputs, Given(inputs).attend(scale=1)))
    assert place_of(text, "unscaled") < place_of(text, "rms error")


def test_the_rule_that_decides_stands_first():
    inputs = draw(0, *[SHAPE] * 3)
    one = Given(inputs).attend()
    one[0, 1, 3, 2] += 1e-5
    text = str(check(stored(one, "float32"), posed(inputs, {}), diagnose=False))
    assert place_of(text, "elements") < place_of(text, "rms error")
    # Each element may err by as much as a key of 300 has; all of them together may not.
    inputs = [FORMATS["bfloat16"](a) for a in draw(0, (1, 2, 40, 32), *[(1, 2, 300, 32)] * 2)]
    g = Given(inputs)
    lost = FORMATS["bfloat16"](g.attend(g.j < 299))
    text = str(check(lost, posed(inputs, {}), diagnose=False))
    assert place_of(text, "rms error") < place_of(text, "elements")


def test_how_many_mistakes_were_tried_is_not_said():
    inputs = draw(0, *[(6, 8)] * 3)
    noise = stored(draw(1, (6, 8))[0], "float32")
    report = check(noise, posed(inputs, {}), time_limit=100)
    assert report.diagnosis.tried > 0
    assert str(report.diagnosis.tried) not in re.findall(r"\d+", str(report))
