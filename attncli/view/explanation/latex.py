r"""Numbers, names and sums as LaTeX, and words as Markdown.

Formulas keep to what LaTeX, MathJax and KaTeX all know, and hold nothing that
Markdown readers take for their own: no ``\\``, no ``*``, no tag.
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

__all__ = ["Latex", "math_name", "math_text", "words"]

_MOST_TERMS = 8
_LABEL_WIDTH = 24
# Outside \text these read the same to every renderer; inside, no two agree.
_MATH = {
    "\\": r"\backslash ", "{": r"\lbrace ", "}": r"\rbrace ", "_": r"\_", "$": r"\$",
    "#": r"\#", "%": r"\%", "&": r"\&", "^": r"{}^{\wedge}", "~": r"\sim ", "*": r"\ast ",
    "`": r"\grave{\ }", "<": "{<}", ">": "{>}", "|": r"\vert ",
}  # fmt: skip
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~$&^@])")


def words(text: str) -> str:
    r"""Return a text that Markdown shows as it is.

    Examples
    --------
    >>> print(words("[CLS] a_b | $x$"))
    \[CLS\] a\_b \| \$x\$
    """
    return _MARKDOWN.sub(r"\\\1", printable(text))


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
    ) -> str:
        """Return a sum: all its terms while they are few, otherwise the largest and the rest.

        If terms are left out, the others carry their tags; one without a tag explains itself.
        """
        left = None
        if len(terms) > _MOST_TERMS:
            chosen, left = largest(np.array(sizes), [1] * len(terms), _MOST_TERMS)
            terms = [_tagged(terms[i], tags[i]) for i in chosen]
        count = (left.count if left else 0) + (rest.count if rest else 0)
        text = " + ".join(terms)
        if not count:
            return text or "0"
        over = self.plus((left.total if left else 0.0) + (rest.total if rest else 0.0))
        note = rf"\underbrace{{{over[2:]}}}_{{\text{{{count} more}}}}"
        return f"{text} {over[0]} {note}" if text else f"{'' if over[0] == '+' else '-'}{note}"


def _tagged(term: str, tag: str | None) -> str:
    return term if tag is None else rf"\underbrace{{{term}}}_{{{tag}}}"
