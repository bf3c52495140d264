"""How all text formats write numbers, and how mistyped numbers look."""

from __future__ import annotations

import math
import re

from attncli.errors.text import quoted

DECIMAL_POINTS = "write decimal points instead of decimal commas"
_DECIMAL_COMMA = r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*"
# Texts for a missing number, in lower case.
_HOLES = {"", "na", "n/a", "<na>", "nan", "null", "none", "nil", "missing", "-", "--", "?", "."}
# Error values of spreadsheets, such as #DIV/0!, and the #### of a column that is too narrow.
_ERROR = re.compile(r"#[^\W\d_¡¿]?.*[!?]|#N/?[AVD]|#{2,}|Err:\d+", re.IGNORECASE)
_HEX = re.compile(r"0[xbo]", re.IGNORECASE)
# Signs that may stand before a number: of a formula, a currency, a quotation, a comparison.
_BEFORE = "=<>≤≥≈~\"'‘’“”( -+−–—$€£¥\u200b\u200e\u200f\u2060\ufeff"
# Digits with separators, then the rest of the text.
_BEGUN = re.compile(r"(?P<number>[\d.,' \u00a0\u202f]*\d[.,]?|∞)(?P<rest>.*)", re.DOTALL)
# The most letters behind a number that are a unit, as in 1.5 dB; more letters are a word.
_UNIT = 3

# Characters at the beginning of a text that show how its numbers are printed.
_BEGINNING = 2**13
_PRINTED = re.compile(
    r"(?<![\w.])([-+]?\d+(?:\.(\d*))?(e[-+]?\d+)?)(?![\w.])", re.ASCII | re.IGNORECASE
)


class NumberOverflowError(Exception):
    """A number is beyond the range of float64, such as 1e400."""

    def __init__(self, text: str) -> None:
        self.text = text
        super().__init__(f"{quoted(text.strip())} is beyond the range of float64")


def parse_number(text: str) -> float | None:
    """Return the number that ``float()`` reads from ASCII without underscores, or None."""
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    if math.isinf(value) and any(map(str.isdigit, text)):
        raise NumberOverflowError(text)
    return value


def is_numeric(text: str) -> bool:
    """Whether ``float()`` reads a text, even if `parse_number` refuses it."""
    if text[:1].isalpha() and text[0] not in "iInN":  # a word, but for inf and nan: most labels
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_decimal_comma(text: str) -> bool:
    """Whether a text is a number with a decimal comma."""
    return re.fullmatch(_DECIMAL_COMMA, text) is not None


def is_hole(text: str) -> bool:
    """Whether a text stands for a missing number."""
    return text.strip().lower() in _HOLES


def is_attempt(text: str) -> bool:
    """Whether a text is, or looks like, a number: 50%, 1.5 dB, NA, #DIV/0!."""
    bare = text.strip()
    if is_numeric(bare) or is_hole(bare) or _ERROR.fullmatch(bare) or _HEX.match(bare):
        return True
    found = _BEGUN.fullmatch(bare.lstrip(_BEFORE))
    if found is None:
        return False
    number, rest = found["number"], found["rest"]
    short = sum(map(str.isalpha, rest)) <= _UNIT
    return short and not (number.isdecimal() and rest[:1].isalnum())


def is_truth(text: str) -> bool:
    """Whether a text is true or false, as spreadsheets and pandas write booleans."""
    return text.strip().lower() in {"true", "false"}


def printed_alike(text: str) -> str | None:
    """Return the C format that printed the first numbers of a text, such as ``%.2f``, or None.

    All of them have the same number of decimals, and at least one of them was rounded or padded,
    as 0.50 and 0.731 were. 0.25 and 0.75 may be exact.
    """
    found = _PRINTED.findall(text[:_BEGINNING])
    # The last number may be cut in two.
    found = found[:-1] if len(text) > _BEGINNING else found
    kinds = {(len(decimals), bool(exponent)) for _, decimals, exponent in found}
    if len(kinds) != 1:
        return None
    ((decimals, exponents),) = kinds
    if exponents:
        return f"%.{decimals}e" if decimals else None
    shortened = any(number.endswith("0") or float(number) * 8 % 1 for number, *_ in found)
    # A single decimal shows no rounding: 3.0 may be an exact whole number.
    return f"%.{decimals}f" if shortened and decimals > 1 else None
