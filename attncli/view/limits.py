"""How much of a result is shown, and how numbers and signs are written for people."""

from __future__ import annotations

from math import isfinite
from typing import Literal, NamedTuple, TypeAlias

from attncli.errors.text import in_ascii

# The colours that a terminal has.
Depth: TypeAlias = Literal["none", "256", "truecolor"]
# From here on, numbers have an exponent.
_LARGE = 1e6
# Replacements of signs in terminals that have ASCII only.
_SIGNS = {
    " · ": ", ", "…": "...", "−": "-", "×": "x", "≤": "<=", "≥": ">=", "→": "->", "—": "-",
    "“": '"', "”": '"', "␣": "_",
}  # fmt: skip
# In formulas a dot multiplies; elsewhere it stands between two words.
_FORMULA_SIGNS = {
    "·": "*", "√": "sqrt ", "‖": "|", "Σ": "sum", "ᵀ": "^T",
    **{sign: instead for sign, instead in _SIGNS.items() if "·" not in sign},
}  # fmt: skip


class Limits(NamedTuple):
    """How much is shown, and in which way; None is all, or no edge."""

    rows: int | None = None  # of a matrix, at most
    columns: int | None = None
    heads: int | None = None  # at most this many tables of each output, or maps
    width: int | None = None  # columns of the terminal
    height: int | None = None  # lines of the terminal
    digits: int = 4  # after the point
    unicode: bool = True  # whether stdout takes more than ASCII
    depth: Depth = "none"
    stacked: bool = False  # columns that do not fit are shown below the others, not left out
    markdown: bool = False  # each part is a block of Markdown, without colours and without an edge

    def known(self, text: str) -> str:
        """Return a text in characters that stdout takes; to be called before measuring it."""
        return text if self.unicode else in_ascii(text, _SIGNS)

    def formula(self, text: str) -> str:
        """Return a formula in characters that stdout takes."""
        return text if self.unicode else in_ascii(text, _FORMULA_SIGNS)

    def cell(self, number: float) -> str:
        """Return a number with `digits` decimals; very large and very small ones get an exponent.

        Examples
        --------
        >>> Limits().cell(0.5), Limits().cell(3e-7), Limits().cell(-0.0)
        ('0.5000', '3.000e-07', '0.0000')
        """
        size = abs(number)
        if not isfinite(number):
            return str(number)
        if 0 < size < 10.0**-self.digits or size >= _LARGE:
            return f"{number:.{max(self.digits - 1, 0)}e}"
        return f"{number:z.{self.digits}f}"  # a zero has no sign

    def number(self, number: float) -> str:
        """Return a number without trailing zeros, as it stands in a formula.

        Examples
        --------
        >>> Limits().number(0.5), Limits().number(-2 / 3), Limits().number(3e-7)
        ('0.5', '-0.6667', '3e-07')
        """
        mantissa, power, exponent = self.cell(number).partition("e")
        bare = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{bare}{power}{exponent}"
