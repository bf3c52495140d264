"""The one number grammar of all text formats."""

from __future__ import annotations

import math
import re

from attncli.text import quoted

__all__ = [
    "DECIMAL_POINTS",
    "MINUS",
    "TRUTHS",
    "NumberOverflowError",
    "begins_as_number",
    "has_decimal_comma",
    "is_date",
    "is_decorated",
    "is_error",
    "is_foreign",
    "is_hole",
    "is_numeric",
    "is_truth",
    "parse_number",
]

# A hint.
DECIMAL_POINTS = "write decimal points instead of decimal commas"
# Words that may mean true or false, lower case; also as spreadsheets in other languages save them.
TRUTHS = {
    *("true", "false", "t", "f", "yes", "no", "y", "n", "on", "off"),
    *("wahr", "falsch", "vrai", "faux", "verdadero", "falso", "vero", "waar", "onwaar"),
}
_DECIMAL_COMMA = r"\s*[-+]?\d*,\d+(?:[eE][-+]?\d+)?\s*"
# 1,234.5 and 1 234, with any space between, and 1.234,5; 1,234,567 and 1,23,456, as in India.
_THOUSANDS = (
    r"\s*[-+]?\d{1,3}(?:(?:(?:,\d{3})+(?=\.)|(?:[\u00a0\u2009\u202f' ]\d{3})+)(?:\.\d*)?"
    r"|(?:[.\u00a0\u2009\u202f' ]\d{3})+,\d+|(?:,\d{2,3})+,\d{3}(?:\.\d*)?|(?:\.\d{3}){2,})\s*"
)
# Signs that stand for a minus in text that was set.
MINUS = str.maketrans(dict.fromkeys("\u2212\u2013\u2014\u2012\u2010\u2011", "-"))
_INFINITY = "\u221e"
_GROUPED = r"\d{1,3}(?:[,.' ]\d{2,3})+(?:[.,]\d+)?"
_PLAIN = rf"[-+]?(?:{_GROUPED}|\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?"
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
# In English, German, French and Spanish.
_MONTH = (
    r"(?:jan|feb|f\u00e9v|mar|m\u00e4r|mrz|apr|avr|abr|may|mai|jun|juin|jul|juil|aug|ao\u00fb|ago"
    r"|sep|oct|okt|nov|dec|dez|d\u00e9c|dic|ene)[^\W\d_]{0,6}\.?"
)
# 1-Feb, 01. Feb 24, Jan-02, 01.02.2024, 2/1/24, 01.02. and 2024-02-01 00:00:00.
_DATE = re.compile(
    rf"\d{{1,2}}(?:\. ?|[ /-]){_MONTH}(?:[ ./-]*\d{{2,4}})?|{_MONTH}[ /-]?\d{{1,4}}(?:,? \d{{4}})?"
    r"|\d{1,2}([./-])\d{1,2}\1\d{2,4}|\d{1,2}\.\d{1,2}\."
    r"|\d{4}([./-])\d{1,2}\2\d{1,2}(?:[T ][\d:.]+)?",
    re.IGNORECASE,
)

# What stands for a number that is missing.
_HOLES = {"na", "n/a", "<na>", "nan", "null", "none", "nil", "missing", "-", "--", "?", "."}
# A sheet's column that is too narrow.
_NARROW = re.compile("#{2,}")
# ="1", '1, “1”, <0.01, ~3 and $5, after any character that is not seen.
_BEFORE = (
    "=<>\u2264\u2265\u2248~\"'\u2018\u2019\u201c\u201d( "
    "\u200b\u200e\u200f\u2060\ufeff$\u20ac\u00a3\u00a5"
)
_BEGUN = re.compile(r"[-+]?(?P<digits>\d+(?P<point>[.,]\d*)?|[.,]\d+)(?P<rest>.*)")
_PLAIN_GROUPED = re.compile(rf"[-+]?{_GROUPED}\W*$")
# Letters of a unit, or of nothing that is a word.
_UNIT = 3


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
    """Whether a word is a number with separators of thousands, or signs of typography.

    Examples
    --------
    >>> is_decorated("1,234.5"), is_decorated("\u22120.5"), is_decorated("1,234")
    (True, True, False)
    """
    plain = text.translate(MINUS).strip()
    if re.fullmatch(_THOUSANDS, plain) is not None or plain.lstrip("-+") == _INFINITY:
        return True
    return plain != text.strip() and is_numeric(plain)


def is_hole(text: str) -> bool:
    """Whether a word stands for a number that is missing, as well as for itself.

    Examples
    --------
    >>> is_hole("NA"), is_hole("#####"), is_hole("none of them")
    (True, True, False)
    """
    bare = text.strip().lower()
    return bare in _HOLES or _NARROW.fullmatch(bare) is not None


def begins_as_number(text: str) -> bool:
    """Whether a word begins as a number, and goes on as hardly any name does.

    Examples
    --------
    >>> begins_as_number('="1"'), begins_as_number("1.5 dB"), begins_as_number("0x1F")
    (True, True, True)
    >>> begins_as_number("2nd"), begins_as_number("3D"), begins_as_number("2-gram of words")
    (False, False, False)
    """
    bare = text.lstrip(_BEFORE).translate(MINUS)
    found = _BEGUN.fullmatch(bare.strip())
    if found is None:
        return False
    rest = found["rest"]
    if found["digits"] == "0" and rest[:1] in ("x", "b", "o"):
        return True
    if _PLAIN_GROUPED.match(bare):
        return True
    letters = sum(map(str.isalpha, rest))
    return letters <= _UNIT and (found["point"] is not None or not rest[:1].isalnum())


def is_foreign(text: str) -> bool:
    """Whether a word may be a number as spreadsheets or other languages write it.

    Examples
    --------
    >>> is_foreign("50%"), is_foreign("1.0D+00"), is_foreign("3D"), is_foreign("#1")
    (True, True, False, False)
    """
    return re.fullmatch(_FOREIGN, text.strip()) is not None


def is_date(text: str) -> bool:
    """Whether a word is a date, as a spreadsheet makes of 1.2 or 1-2.

    Examples
    --------
    >>> is_date("01. Feb"), is_date("Jan 02"), is_date("2/1/2024"), is_date("1.2")
    (True, True, True, False)
    """
    return _DATE.fullmatch(text.strip()) is not None


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
