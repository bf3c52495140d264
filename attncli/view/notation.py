"""How formulas are written for people: numbers, signs, names and vectors."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import TYPE_CHECKING

import numpy as np

from attncli.text import label_text
from attncli.view.labels import shorten, text_width
from attncli.view.signs import FORMULA_SIGNS, known

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from attncli.explanation.data import KeyStep

__all__ = ["Notation", "name_of", "names_of", "vector_pieces"]

_LABEL_WIDTH = 20
_LARGE = 1e6
# This many more digits are better than two notations beside each other.
_MORE_DIGITS = 4
_MORE_ZEROS = 2


@dataclass(frozen=True)
class Notation:
    """How numbers and signs are written.

    Attributes
    ----------
    digits : int
        Digits after the point; very large and very small numbers get an exponent.
    unicode : bool
        Whether the terminal has more than ASCII.
    """

    digits: int = 4
    unicode: bool = True

    def number(self, number: float) -> str:
        """Return a number without trailing zeros.

        Examples
        --------
        >>> Notation().number(0.5), Notation().number(-2 / 3), Notation().number(3e-7)
        ('0.5', '-0.6667', '3e-07')
        >>> Notation().number(5.92e-5)
        '0.0000592'
        """
        size = abs(number)
        # A few zeros are read more easily than a second notation among the others.
        if 10.0 ** -(self.digits + _MORE_ZEROS) <= size < 10.0**-self.digits:
            return _bare(f"{number:.{max(self.digits, 1) - 1 - floor(log10(size))}f}")
        return self._bare_cell(number)

    def numbers(self, numbers: Iterable[float]) -> list[str]:
        """Return numbers as `number` does, but all small ones alike.

        Examples
        --------
        >>> Notation().numbers([0.5, 5.92e-5]), Notation().numbers([0.5, 5.92e-5, 3e-7])
        (['0.5', '0.0000592'], ['0.5', '5.92e-05', '3e-07'])
        """
        numbers = list(numbers)
        texts = list(map(self.number, numbers))
        return list(map(self._bare_cell, numbers)) if any("e-" in t for t in texts) else texts

    def _bare_cell(self, number: float) -> str:
        text = self.cell(number)
        if "e" in text:
            mantissa, exponent = text.split("e")
            return f"{_bare(mantissa)}e{exponent}"
        return _bare(text)

    def cells(self, numbers: Iterable[float]) -> list[str]:
        """Return the numbers of a column as `cell` does, all with an exponent beside a huge one.

        Examples
        --------
        >>> Notation().cells([0.5, 3e-7]), Notation().cells([2e6, 1500.0, 0.0])
        (['0.5000', '3.000e-07'], ['2.000e+06', '1.500e+03', '0.0000'])
        """
        numbers = [number + 0.0 for number in numbers]
        if max((abs(n) for n in numbers if isfinite(n)), default=0.0) < _LARGE:
            return list(map(self.cell, numbers))
        form = f".{max(self.digits - 1, 0)}e"
        return [f"{n:{form}}" if n and isfinite(n) else self.cell(n) for n in numbers]

    def cell(self, number: float) -> str:
        """Return a number with all its digits, so that decimal points line up."""
        if not isfinite(number):
            return {"-inf": "−inf"}.get(str(number), str(number))
        size = abs(number)
        number += 0.0  # a negative zero becomes a plain one
        if size and not 10.0**-self.digits <= size < _LARGE:
            return f"{number:.{max(self.digits - 1, 0)}e}"
        return f"{number:.{self.digits}f}"

    def column(self, numbers: Iterable[float]) -> list[str]:
        """Return the numbers of a column, all in one notation that shows each.

        More digits after the point keep two figures of the smallest number; if four more
        are not enough, all get an exponent.

        Examples
        --------
        >>> Notation().column([0.5, 1.234e-5])
        ['0.500000', '0.000012']
        >>> Notation().column([0.5, 1e-12])
        ['5.000e-01', '1.000e-12']
        """
        numbers = [number + 0.0 for number in numbers]
        sizes = [abs(number) for number in numbers if number and isfinite(number)]
        digits = self.digits
        if sizes and min(sizes) < 10.0**-digits:
            digits = 1 - floor(log10(min(sizes)))
        if digits > self.digits + _MORE_DIGITS or max(sizes, default=0) >= _LARGE:
            form = f".{max(self.digits - 1, 0)}e"
        else:
            form = f".{digits}f"
        return [f"{number:{form}}" if isfinite(number) else self.cell(number) for number in numbers]

    def factor(self, number: float) -> str:
        """Return a number as it stands in a product: in brackets if it is negative."""
        text = self.number(number)
        return f"({text})" if text[0] in "-−" else text

    def plus(self, number: float) -> str:
        """Return a number as the next term of a sum, with its sign before it."""
        text = self.number(number)
        return f"− {text[1:]}" if text[0] in "-−" else f"+ {text}"

    def known(self, text: str) -> str:
        """Return words in characters that the terminal has."""
        return known(text, unicode=self.unicode)

    def formula(self, text: str) -> str:
        """Return a formula in characters that the terminal has."""
        return known(text, unicode=self.unicode, signs=FORMULA_SIGNS)


def _bare(text: str) -> str:
    bare = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if bare in ("-0", "") else bare


def name_of(kind: str, index: int, label: str | None) -> str:
    """Return what a query or key is called in a formula: its label, or its index.

    Examples
    --------
    >>> name_of("k", 3, None), name_of("k", 3, "mat")
    ('k3', 'mat')
    """
    return f"{kind}{index}" if label is None else shorten(label_text(label), _LABEL_WIDTH)


def names_of(steps: Sequence[KeyStep]) -> list[str]:
    """Return a name for each key; the index goes with labels that occur more than once."""
    names = [name_of("k", step.index, step.label) for step in steps]
    return [
        f"{name} ({step.index})" if step.label is not None and names.count(name) > 1 else name
        for name, step in zip(names, steps, strict=True)
    ]


def vector_pieces(
    notation: Notation, vector: npt.NDArray[np.floating], room: int
) -> tuple[str, ...]:
    """Return a row of numbers in brackets: all if they fit on two lines, else the first ones."""
    texts = notation.numbers(vector.tolist())
    ends = np.cumsum([text_width(text) + 2 for text in texts])
    if ends[-1] > 2 * room:
        count = max(1, int(np.searchsorted(ends, room - len("… 99999 more)"), side="right")))
        texts = [*texts[:count], f"… {len(texts) - count} more"]
    texts = [f"{text}," for text in texts[:-1]] + [f"{texts[-1]})"]
    return (f"({texts[0]}", *texts[1:])
