"""The one number grammar of all text formats."""

from __future__ import annotations

import math
import re

from attncli.text import quoted

__all__ = [
    "DECIMAL_POINTS",
    "TRUTHS",
    "NumberOverflowError",
    "has_decimal_comma",
    "is_decorated",
    "is_error",
    "is_foreign",
    "is_numeric",
    "is_truth",
    "parse_number",
]

# A hint.
DECIMAL_POINTS = "write decimal points instead of decimal commas"
# Words that may mean true or false, lower case.
TRUTHS = {"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off"}
_DECIMAL_COMMA = r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*"
# 1,234.5 and 1 234, with any space between, and 1.234,5; and the minus sign of typography.
_THOUSANDS = (
    r"\s*[-+\u2212]?\d{1,3}(?:(?:(?:,\d{3})+(?=\.)|(?:[\u00a0\u2009\u202f' ]\d{3})+)(?:\.\d*)?"
    r"|(?:[.\u00a0\u2009\u202f' ]\d{3})+,\d+)\s*"
)
_MINUS = "\u2212"
_PLAIN = r"[-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?"
_CURRENCY = "(?:[A-Z]{0,2}\\$|[\u20ac\u00a3\u00a5\u20b9])"
# 50%, €1, 1/2, (1.5) as accountants write -1.5, 1.0D+00 and 1.5f.
_FOREIGN = (
    rf"\(?{_PLAIN} ?[%\u2030]\)?|\({_PLAIN}\)|[-+]?{_CURRENCY} ?{_PLAIN}|{_PLAIN} ?{_CURRENCY}"
    r"|[-+]?\d+/\d+|[-+]?(?:\d+\.\d*|\.\d+)(?:[dD][-+]?\d+|[fF])"
)
# Where a spreadsheet could not compute, in English, German, French and Spanish.
_ERROR = (
    "#[\u00a1\u00bf]?(?:DIV/0|REF|VALUE|NAME|NUM|NULL|SPILL|CALC|WERT|BEZUG|ZAHL|VALEUR|NOM|NOMBRE"
    r"|VALOR)[!?]|#N/[AD]|#NV|#GETTING_DATA|Err:\d+"
)


class NumberOverflowError(Exception):
    """A number written in digits that no float64 can hold, such as 1e400."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{quoted(text.strip())} is beyond the range of float64")


def parse_number(text: str) -> float | None:
    """Read one number: what ``float()`` reads from ASCII without underscores.

    Parameters
    ----------
    text : str
        Spaces around the number are allowed; ``inf`` and ``nan`` are numbers.

    Returns
    -------
    float or None
        None where the text is not a number: a word, a hole, another script's digits.

    Raises
    ------
    NumberOverflowError
        If finite digits would become infinite, as ``float("1e400")`` silently does.

    Examples
    --------
    >>> parse_number("1e-3"), parse_number("010"), parse_number("1_000"), parse_number("१")
    (0.001, 10.0, None, None)
    """
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
    """Whether a word is meant as a number, be it one that `parse_number` refuses.

    Then ``1e400``, ``1_000`` and the digits of other scripts are errors, not names.
    """
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_decimal_comma(text: str) -> bool:
    """Whether a word is a number that is written with a decimal comma: an error, not a name."""
    return re.fullmatch(_DECIMAL_COMMA, text) is not None


def is_decorated(text: str) -> bool:
    """Whether a word is a number with separators of thousands or the minus sign of typography.

    Examples
    --------
    >>> is_decorated("1,234.5"), is_decorated("\u22120.5"), is_decorated("1,234")
    (True, True, False)
    """
    if re.fullmatch(_THOUSANDS, text) is not None:
        return True
    return _MINUS in text and is_numeric(text.replace(_MINUS, "-"))


def is_foreign(text: str) -> bool:
    """Whether a word may be a number as spreadsheets or other languages write it.

    Examples
    --------
    >>> is_foreign("50%"), is_foreign("1.0D+00"), is_foreign("3D"), is_foreign("#1")
    (True, True, False, False)
    """
    return re.fullmatch(_FOREIGN, text.strip()) is not None


def is_error(text: str) -> bool:
    """Whether a word is what a spreadsheet shows where it could not compute.

    Examples
    --------
    >>> is_error("#DIV/0!"), is_error("#wow!")
    (True, False)
    """
    return re.fullmatch(_ERROR, text.strip()) is not None


def is_truth(text: str) -> bool:
    """Whether a word is true or false, as spreadsheets and pandas write booleans."""
    return text.strip().lower() in {"true", "false"}
