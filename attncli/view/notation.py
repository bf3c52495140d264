"""How numbers, names and signs are written for people."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from attncli.errors.text import label_text
from attncli.view.labels import shorten
from attncli.view.signs import FORMULA_SIGNS, known

__all__ = ["Notation", "name_of"]

# Columns of a label.
_LABEL_WIDTH = 20
# From here on, numbers have an exponent.
_LARGE = 1e6


@dataclass(frozen=True)
class Notation:
    """How numbers and signs are written: with so many digits after the point, or in ASCII only.

    Very large and very small numbers get an exponent.
    """

    digits: int = 4
    unicode: bool = True

    def cell(self, number: float) -> str:
        """Return a number with all its digits, as it stands in a column.

        Examples
        --------
        >>> Notation().cell(0.5), Notation().cell(3e-7), Notation().cell(-0.0)
        ('0.5000', '3.000e-07', '0.0000')
        """
        number += 0.0  # a zero has no sign
        size = abs(number)
        if not isfinite(number):
            return str(number)
        if 0 < size < 10.0**-self.digits or size >= _LARGE:
            return f"{number:.{max(self.digits - 1, 0)}e}"
        return f"{number:.{self.digits}f}"

    def number(self, number: float) -> str:
        """Return a number without trailing zeros, as it stands in a formula.

        Examples
        --------
        >>> Notation().number(0.5), Notation().number(-2 / 3), Notation().number(3e-7)
        ('0.5', '-0.6667', '3e-07')
        """
        mantissa, power, exponent = self.cell(number).partition("e")
        bare = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{bare}{power}{exponent}"

    def known(self, text: str) -> str:
        """Return words in characters that the terminal has."""
        return known(text, unicode=self.unicode)

    def formula(self, text: str) -> str:
        """Return a formula in characters that the terminal has."""
        return known(text, unicode=self.unicode, signs=FORMULA_SIGNS)


def name_of(kind: str, index: int, label: str | None) -> str:
    """Return what a query or key is called: its label, or its index.

    Examples
    --------
    >>> name_of("k", 3, None), name_of("k", 3, "mat")
    ('k3', 'mat')
    """
    return f"{kind}{index}" if label is None else shorten(label_text(label), _LABEL_WIDTH)
