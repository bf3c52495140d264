r"""Numbers, names and sums as LaTeX.

Formulas keep to what LaTeX, MathJax and KaTeX all know, and hold nothing that
Markdown readers take for their own: no ``\\``, no ``*``, no tag. Lines end with ``\cr``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.text import printable
from attncli.view.explanation.sums import Rest, largest
from attncli.view.labels import shorten
from attncli.view.notation import Notation

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["Latex", "aligned", "equation", "math_name", "math_text"]

_MOST_TERMS = 8
# Terms of a sum that a page has room for, beside a short name on the left and a long one.
_TERMS_A_LINE, _FEWER_TERMS, _SHORT_NAME = 4, 3, 24
_LABEL_WIDTH = 24
# Outside \text these read the same to every renderer; inside, no two agree.
_MATH = {
    "\\": r"\backslash ", "{": r"\lbrace ", "}": r"\rbrace ", "_": r"\_", "$": r"\$",
    "#": r"\#", "%": r"\%", "&": r"\&", "^": r"{}^{\wedge}", "~": r"\sim ", "*": r"\ast ",
    "`": r"\grave{\ }", "<": "{<}", ">": "{>}", "|": r"\vert ",
}  # fmt: skip


def math_text(text: str) -> str:
    r"""Return a text as it stands in a formula.

    Examples
    --------
    >>> print(math_text("a_b"))
    \text{a}\_\text{b}
    """
    pieces = re.split(r"([\\{}_$#%&^~*`<>|])", shorten(printable(text), _LABEL_WIDTH))
    return "".join(_MATH.get(piece) or rf"\text{{{piece}}}" for piece in pieces if piece)


def math_name(letter: str, index: int, label: str | None) -> str:
    """Return what a query or key is called in a formula."""
    if label is None or not label.strip():
        return f"{letter}_{{{index}}}"
    return math_text(label)


@dataclass(frozen=True)
class Latex:
    """How numbers are written in a formula.

    Attributes
    ----------
    digits : int
        Digits after the point.
    """

    digits: int = 4

    def number(self, number: float) -> str:
        r"""Return a number, a very large or small one with a power of ten.

        Examples
        --------
        >>> print(Latex().number(-0.5), Latex().number(3e-7))
        -0.5 3 \cdot 10^{-7}
        """
        text = Notation(self.digits).number(number)
        if text.endswith("inf"):
            return r"-\infty" if text[0] == "−" else r"\infty"
        mantissa, power, exponent = text.partition("e")
        return rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if power else text

    def factor(self, number: float) -> str:
        """Return a number as it stands in a product."""
        text = self.number(number)
        return rf"\left({text}\right)" if text[0] == "-" or "cdot" in text else text

    def plus(self, number: float) -> str:
        """Return a number as the next term of a sum, with its sign before it."""
        text = self.number(number)
        return f"- {text[1:]}" if text[0] == "-" else f"+ {text}"

    def vector(self, vector: npt.NDArray[Any]) -> str:
        """Return a row of numbers in brackets; a long one is cut."""
        shown = [self.number(number) for number in vector[:_MOST_TERMS].tolist()]
        if len(vector) > _MOST_TERMS:
            shown.append(r"\ldots")
        return rf"\left({', '.join(shown)}\right)"

    def total(
        self,
        terms: Sequence[str],
        sizes: Sequence[float],
        rest: Rest | None = None,
        *,
        tags: Sequence[str | None],
    ) -> list[str]:
        """Return a sum in pieces: all its terms while they are few, else the largest and the rest.

        If terms are left out, the others carry their tags; one without a tag explains itself.
        """
        left = None
        if len(terms) > _MOST_TERMS:
            chosen, left = largest(np.array(sizes), [1] * len(terms), _MOST_TERMS)
            terms = [_tagged(terms[i], tags[i]) for i in chosen]
        count = (left.count if left else 0) + (rest.count if rest else 0)
        pieces = [f"+ {term}" if number else term for number, term in enumerate(terms)]
        if not count:
            return pieces or ["0"]
        over = self.plus((left.total if left else 0.0) + (rest.total if rest else 0.0))
        note = rf"\underbrace{{{over[2:]}}}_{{\text{{{count} more}}}}"
        return [
            *pieces,
            f"{over[0]} {note}" if pieces else f"{'' if over[0] == '+' else '-'}{note}",
        ]


def equation(left: str, pieces: Sequence[str], *results: str) -> str:
    """Return left = pieces = results, on several lines where there are many pieces."""
    most = _TERMS_A_LINE if len(left) <= _SHORT_NAME else _FEWER_TERMS
    if len(pieces) <= most:
        return " = ".join([left, " ".join(pieces), *results])
    parts = (pieces[start : start + most] for start in range(0, len(pieces), most))
    first, *others = map(" ".join, parts)
    lines = [f"{left} &= {first}", *(rf"&\quad {{}}{line}" for line in others)]
    return aligned([*lines, *(f"&= {result}" for result in results)])


def aligned(lines: Sequence[str]) -> str:
    """Return lines below each other, aligned where ``&`` stands."""
    text = " \\cr\n".join(lines)
    return f"\\begin{{aligned}}\n{text}\n\\end{{aligned}}"


def _tagged(term: str, tag: str | None) -> str:
    return term if tag is None else rf"\underbrace{{{term}}}_{{{tag}}}"
