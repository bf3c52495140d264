"""Formulas in two languages at once: text for a terminal, and LaTeX for Markdown."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.text import label_text, printable
from attncli.view.labels import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from attncli.view.limits import Limits

# Columns of a label in a formula.
_LABEL_WIDTH = 20
# Up to _ALL terms or numbers are all shown; of more, the _LARGEST terms or _FIRST numbers.
_ALL, _LARGEST, _FIRST = 12, 4, 8
# Most terms on a line of LaTeX, and in the numerator of a fraction.
_A_LINE, _IN_FRACTION = 4, 2
# The text before and behind the argument of a function, then the same in LaTeX.
_CALLS = {
    "abs": ("|", "|", r"\lvert ", r" \rvert"),
    "sqrt": ("√", "", r"\sqrt{", "}"),
    "sum": ("Σ ", "", r"\sum ", ""),
    "exp": ("exp(", ")", "e^{", "}"),
}


@dataclass(frozen=True)
class Formula:
    """A part of a formula in pieces, between which a line may break; ``+ - * /`` join two.

    The kind, such as ``sum`` or ``negative``, decides about brackets. The LaTeX works in MathJax
    and KaTeX. It holds nothing that Markdown would read as markup: no double backslash, no
    asterisk, no tag.
    """

    text: tuple[str, ...]
    latex: tuple[str, ...]
    kind: str = "name"

    @property
    def line(self) -> str:
        """The text on one line."""
        return " ".join(self.text)

    @property
    def tex(self) -> str:
        """The LaTeX on one line."""
        return " ".join(self.latex)

    def __add__(self, other: Formula) -> Formula:
        """Return the sum."""
        if other.kind == "negative":
            return self._and("- ", other._opposite)
        return self._and("+ ", other)

    def __sub__(self, other: Formula) -> Formula:
        """Return the difference."""
        if other.kind == "negative":
            return self._and("+ ", other._opposite)
        return self._and("- ", other.bracketed("sum"))

    def _and(self, sign: str, term: Formula) -> Formula:
        text, latex = (*self.text, *_glued(sign, term.text)), _glued(sign, term.latex)
        return Formula(text, (*self.latex, *latex), "sum")

    @property
    def _opposite(self) -> Formula:
        """A negative number without its sign."""
        return Formula((self.text[0][1:],), (self.latex[0][1:],), "number")

    def __mul__(self, other: Formula) -> Formula:
        """Return the product; numbers stand close together."""
        dot = "·" if {self.kind, other.kind} <= {"number", "negative"} else " · "
        one, two = self.bracketed("sum"), other.bracketed("sum")
        text, latex = _glued(one.text, dot, two.text), _glued(one.latex, r" \cdot ", two.latex)
        return Formula(text, latex, "product")

    def __truediv__(self, other: Formula) -> Formula:
        """Return the quotient; in LaTeX it is a fraction unless the upper part is long."""
        above, below = self.bracketed("sum"), other.bracketed("sum", "product", "quotient")
        latex = _glued(above.latex, " / ", below.latex)
        if len(self.latex) <= _IN_FRACTION:
            latex = (rf"\frac{{{self.tex}}}{{{other.tex}}}",)
        return Formula(_glued(above.text, " / ", below.text), latex, "quotient")

    def bracketed(self, *kinds: str) -> Formula:
        """Return the formula in brackets if it is of these kinds or a negative number."""
        if self.kind not in ("negative", *kinds):
            return self
        return Formula(_glued("(", self.text, ")"), _glued("(", self.latex, ")"))

    def tagged(self, text: str, latex: str) -> Formula:
        """Return the formula with words behind it, or below it in LaTeX."""
        below = rf"\underbrace{{{self.tex}}}_{{{latex}}}"
        return Formula(_glued(self.text, f" ({text})"), (below,))


@dataclass(frozen=True)
class Equation:
    """A left side, one or more sides that equal it, and words behind them."""

    left: Formula
    sides: tuple[Formula, ...]
    words: str = ""


@dataclass(frozen=True)
class Numbers:
    """Writes numbers as formulas, with the digits that the limits set."""

    limits: Limits

    def __call__(self, value: float) -> Formula:
        """Return a number."""
        text = self.limits.number(float(value))
        mantissa, power, exponent = text.partition("e")
        latex = rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if power else mantissa
        if math.isinf(value):
            latex = text.replace("inf", r"\infty")
        return Formula((text,), (latex,), "negative" if text.startswith("-") else "number")

    def row(self, values: npt.NDArray[Any]) -> Formula:
        """Return a row of numbers in brackets; a long one is cut."""
        shown = values if len(values) <= _ALL else values[:_FIRST]
        numbers = [self(value) for value in shown.tolist()]
        if len(shown) < len(values):
            numbers.append(named(f"… {len(values) - len(shown)} more", r"\ldots"))
        *texts, last = (one.line for one in numbers)
        pieces = _glued("(", (*(f"{text}," for text in texts), last), ")")
        latex = ", ".join(one.tex for one in numbers)
        return Formula(pieces, (rf"\left({latex}\right)",))

    def total(
        self,
        terms: Sequence[Formula],
        sizes: Sequence[float],
        tags: Sequence[Formula],
        *,
        rest: tuple[int, float] = (0, 0.0),
        order: Sequence[float] | None = None,
    ) -> list[Formula]:
        """Return the terms of a sum; of many terms, the largest and the total of the others.

        `rest` is the number and the total of terms that are not listed. `order` replaces the sizes
        when the largest terms are chosen.
        """
        kept, (more, left) = list(terms), rest
        if len(terms) > _ALL:
            by = np.abs(sizes if order is None else order)
            largest = np.sort(np.argsort(-by, kind="stable")[:_LARGEST]).tolist()
            kept = [terms[i].tagged(tags[i].line, tags[i].tex) for i in largest]
            more += len(terms) - len(kept)
            left += float(np.delete(np.array(sizes), largest).sum())
        if more:
            kept.append(self._left_out(left, more))
        return kept

    def _left_out(self, total: float, count: int) -> Formula:
        number = self(abs(total)).tagged(f"{count:,} more", rf"\text{{{count} more}}")
        if total >= 0:
            return number
        return Formula((f"-{number.line}",), (f"-{number.tex}",), "negative")


def latex_equation(equation: Equation) -> str:
    """Return an equation in LaTeX, on several lines where a side has many terms."""
    left, sides = equation.left.tex, [side.latex for side in equation.sides]
    if all(len(side) <= _A_LINE for side in sides):
        return " = ".join([left, *map(" ".join, sides)])
    lines = []
    for number, side in enumerate(sides):
        for at in range(0, len(side), _A_LINE):
            start = r"&\quad {}" if at else "&= " if number else f"{left} &= "
            lines.append(start + " ".join(side[at : at + _A_LINE]))
    return "\\begin{aligned}\n" + " \\cr\n".join(lines) + "\n\\end{aligned}"


def added(terms: Iterable[Formula]) -> Formula:
    """Return the sum of one or more terms."""
    return reduce(add, terms)


def call(name: str, of: Formula) -> Formula:
    """Return a function of a formula: exp, ln, tanh, sin, cos, sqrt, abs or sum."""
    usual = f"{name}(", ")", rf"\{name}\left(", r"\right)"
    before, behind, opening, closing = _CALLS.get(name, usual)
    text = of.bracketed("sum").text if name == "sqrt" else of.text
    return Formula(_glued(before, text, behind), (f"{opening}{of.tex}{closing}",))


def named(text: str, latex: str) -> Formula:
    """Return a name, in both languages."""
    return Formula((text,), (latex,))


def roman(word: str, index: int | None = None) -> Formula:
    """Return a word as a name, perhaps with an index."""
    latex = rf"\mathrm{{{word}}}" if len(word) > 1 else word
    if index is None:
        return named(word, latex)
    return named(f"{word}[{index}]", f"{latex}_{{{index}}}")


def name_of(kind: str, index: int, label: str | None, *, several: bool = False) -> Formula:
    """Return the name of a query or key: its label or index, both if `several` share the label."""
    numbered = f"{kind}_{{{index}}}"
    if label is None:
        return named(f"{kind}{index}", numbered)
    text, latex = shorten(label_text(label), _LABEL_WIDTH), _latex_text(label)
    if several:
        text, latex = f"{text} ({index})", f"{latex}_{{{index}}}"
    return named(text, latex if label.strip() else numbered)


# Outside \text these read the same to every renderer; inside, no two agree.
_SIGNS = {
    "\\": r"\backslash ", "{": r"\lbrace ", "}": r"\rbrace ", "_": r"\_", "$": r"\$",
    "#": r"\#", "%": r"\%", "&": r"\&", "^": r"{}^{\wedge}", "~": r"\sim ", "*": r"\ast ",
    "`": r"\grave{\ }", "<": "{<}", ">": "{>}", "|": r"\vert ",
}  # fmt: skip


def _latex_text(text: str) -> str:
    pieces = re.split(r"([\\{}_$#%&^~*`<>|])", shorten(printable(text), _LABEL_WIDTH))
    return "".join(_SIGNS.get(piece) or rf"\text{{{piece}}}" for piece in pieces if piece)


def _glued(*parts: str | tuple[str, ...]) -> tuple[str, ...]:
    """Join texts and pieces to pieces; a line may break between two pieces."""
    pieces = [""]
    for part in parts:
        first, *others = (part,) if isinstance(part, str) else part
        pieces[-1] += first
        pieces += others
    return tuple(pieces)
