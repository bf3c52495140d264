"""What a formula in the place of a number comes to: the hint names the right number."""

from __future__ import annotations

import math

import pytest

from attncli.formulas import formula_value, number_hint


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/8", 1 / 8),
        ("1/3", 1 / 3),
        ("1/sqrt(8)", 1 / math.sqrt(8)),
        ("1 / math.sqrt( 64 )", 1 / 8),
        ("1/np.sqrt(64)", 1 / 8),
        ("1/√2", 1 / math.sqrt(2)),
        ("sqrt(2)", math.sqrt(2)),
        ("64**-0.5", 1 / 8),
        ("64^(-0.5)", 1 / 8),
        ("1/64**0.5", 1 / 8),
        ("-1e0/.5", -2.0),
        ("0.5", 0.5),
    ],
)
def test_simple_formulas_come_to_their_value(text: str, value: float) -> None:
    assert formula_value(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "abc", "1/0", "1/sqrt(D)", "1/2/3", "1/8 + 1", "9**9**9", "9**999", "0**-1", "१/२", "inf"],
)
def test_others_have_none(text: str) -> None:
    assert formula_value(text) is None


def test_a_hint_pretends_nothing() -> None:
    assert number_hint("1/8") == "write its value: 0.125"
    assert number_hint("1/sqrt(8)") == f"write its value: {1 / math.sqrt(8)!r}"
    assert number_hint("1/sqrt(D)") == "formulas are not computed: write the number itself"
    assert number_hint("0.5") == "write the number without quotation marks: 0.5"
    assert number_hint("half") is None
