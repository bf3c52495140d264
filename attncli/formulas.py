"""Numbers written as small formulas: they are not read, but a hint says what they come to."""

from __future__ import annotations

import math
import re

__all__ = ["formula_value", "number_hint"]

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_ROOT = rf"(?:(?:math\.|np\.)?sqrt\s*\(\s*({_NUMBER})\s*\)|√\s*({_NUMBER}))"
_POWER = rf"({_NUMBER})(?:\s*(?:\*\*|\^)\s*\(?\s*([-+]?{_NUMBER})\s*\)?)?"
_TERM = rf"(?:{_ROOT}|{_POWER})"
_FORMULA = rf"\s*([-+]?)\s*{_TERM}(?:\s*/\s*{_TERM})?\s*"
_SIGNS = ("/", "*", "^", "√", "sqrt")
_LONGEST = 60


def formula_value(text: str) -> float | None:
    """Return what a number, a root, a power or a quotient of two of these comes to.

    Parameters
    ----------
    text : str

    Returns
    -------
    float or None
        None where the text is no such formula, or where no finite number is its value.

    Examples
    --------
    >>> formula_value("1/8"), formula_value("1/sqrt(64)"), formula_value("64**-0.5")
    (0.125, 0.125, 0.125)
    >>> formula_value("1/sqrt(D)"), formula_value("1/0")
    (None, None)
    """
    match = re.fullmatch(_FORMULA, text, re.ASCII) if len(text) <= _LONGEST else None
    if match is None:
        return None
    sign, *parts = match.groups()
    try:
        value = _term(*parts[:4]) / (_term(*parts[4:]) if any(parts[4:]) else 1.0)
    except (OverflowError, ZeroDivisionError):
        return None
    if not math.isfinite(value):
        return None
    return -value if sign == "-" else value


def _term(root: str | None, sign_root: str | None, base: str, exponent: str | None) -> float:
    under = root or sign_root
    if under is not None:
        return math.sqrt(float(under))
    # A positive base to a real power: never complex.
    return float(float(base) ** float(exponent or 1))


def number_hint(text: str) -> str | None:
    """Return how a text in the place of a number should be given; None where nobody can tell.

    Examples
    --------
    >>> number_hint("1/8"), number_hint("0.5")
    ('write its value: 0.125', 'write the number without quotation marks: 0.5')
    """
    value = formula_value(text)
    if value is None:
        is_formula = any(sign in text for sign in _SIGNS)
        return "formulas are not computed: write the number itself" if is_formula else None
    if any(sign in text for sign in _SIGNS):
        return f"write its value: {value!r}"
    return f"write the number without quotation marks: {value:g}"
