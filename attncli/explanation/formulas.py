"""Formulas as trees, which `Text` writes for a terminal and `Latex` for Markdown."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.text import label_text, printable
from attncli.view.labels import shorten, text_width

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from attncli.view.limits import Limits

__all__ = [
    "Call",
    "Equation",
    "Latex",
    "Letters",
    "Node",
    "Number",
    "Power",
    "Sum",
    "Text",
    "Vector",
    "name_of",
    "roman",
]

# Columns of a label in a formula.
_LABEL_WIDTH = 20
# Lines that a whole sum may take, and one that is cut; columns beyond which a cut one is not read.
_SUM_LINES, _CUT_LINES, _CUT_COLUMNS = 3, 2, 120
# Terms of a sum, or numbers of a vector, that LaTeX shows; terms that stand on one of its lines.
_MOST_TERMS, _A_LINE = 8, 4
# Terms above the line of a fraction.
_IN_FRACTION = 2


class Node:
    """A part of a formula; ``+ - * /`` join two of them to a larger one."""

    def __add__(self, other: Node) -> Sum:
        """Return the sum; the terms of a sum stay side by side."""
        so_far = self if isinstance(self, Sum) else Sum((self,))
        return replace(so_far, terms=(*so_far.terms, other))

    def __sub__(self, other: Node) -> Sum:
        """Return the difference."""
        return self + Minus(other)

    def __mul__(self, other: Node) -> Product:
        """Return the product."""
        return Product((self, other))

    def __truediv__(self, other: Node) -> Quotient:
        """Return the quotient."""
        return Quotient(self, other)


@dataclass(frozen=True)
class Number(Node):
    """A number."""

    value: float


@dataclass(frozen=True)
class Letters(Node):
    """A name, in both languages."""

    text: str
    latex: str


@dataclass(frozen=True, eq=False)
class Vector(Node):
    """A row of numbers in brackets; a long one is cut."""

    values: npt.NDArray[Any]


@dataclass(frozen=True)
class Product(Node):
    """Factors with a dot between them."""

    factors: tuple[Node, ...]


@dataclass(frozen=True)
class Quotient(Node):
    """One node divided by another."""

    top: Node
    bottom: Node


@dataclass(frozen=True)
class Call(Node):
    """A function of one node: exp, ln, tanh, sin, cos, sqrt, abs or sum."""

    name: str
    argument: Node


@dataclass(frozen=True)
class Power(Node):
    """A base with an exponent."""

    base: Node
    exponent: Node


@dataclass(frozen=True)
class Minus(Node):
    """A term of a sum that is subtracted."""

    of: Node


@dataclass(frozen=True, eq=False)
class Sum(Node):
    """Terms that are added, of which the smallest may be left out.

    Attributes
    ----------
    terms : tuple of Node
    sizes : sequence of float
        The value of each term that may be left out; the terms after these always stay.
    tags : sequence of Letters
        What tells these terms apart if some are left out.
    rest : (int, float)
        The number and the total of terms that are not among these.
    order : sequence of float, or None
        By which the largest terms are chosen; their sizes unless given.
    """

    terms: tuple[Node, ...]
    sizes: Sequence[float] = ()
    tags: Sequence[Letters] = ()
    rest: tuple[int, float] = (0, 0.0)
    order: Sequence[float] | None = None


@dataclass(frozen=True)
class Equation:
    """What stands left of the first equals sign, the sides after it, and words behind them."""

    left: Letters
    sides: tuple[Node, ...]
    words: str = ""


def roman(word: str, index: int | None = None) -> Letters:
    """Return a word as a name, perhaps with an index."""
    latex = rf"\mathrm{{{word}}}" if len(word) > 1 else word
    return Letters(
        word if index is None else f"{word}[{index}]",
        latex if index is None else f"{latex}_{{{index}}}",
    )


def name_of(kind: str, index: int, label: str | None, *, several: bool = False) -> Letters:
    """Return what a query or key is called: its label, or its index; both if `several` have it."""
    if label is None:
        return Letters(f"{kind}{index}", f"{kind}_{{{index}}}")
    text = shorten(label_text(label), _LABEL_WIDTH)
    latex = _latex_text(label) if label.strip() else f"{kind}_{{{index}}}"
    if several:
        return Letters(f"{text} ({index})", f"{latex}_{{{index}}}" if label.strip() else latex)
    return Letters(text, latex)


# Outside \text these read the same to every renderer; inside, no two agree.
_SIGNS = {
    "\\": r"\backslash ", "{": r"\lbrace ", "}": r"\rbrace ", "_": r"\_", "$": r"\$",
    "#": r"\#", "%": r"\%", "&": r"\&", "^": r"{}^{\wedge}", "~": r"\sim ", "*": r"\ast ",
    "`": r"\grave{\ }", "<": "{<}", ">": "{>}", "|": r"\vert ",
}  # fmt: skip


def _latex_text(text: str) -> str:
    pieces = re.split(r"([\\{}_$#%&^~*`<>|])", shorten(printable(text), _LABEL_WIDTH))
    return "".join(_SIGNS.get(piece) or rf"\text{{{piece}}}" for piece in pieces if piece)


def _glued(*parts: str | list[str]) -> list[str]:
    """Join texts and lists of pieces, between which a line may break, to one list."""
    pieces = [""]
    for part in parts:
        first, *others = [part] if isinstance(part, str) else part
        pieces[-1] += first
        pieces += others
    return pieces


@dataclass(frozen=True)
class Text:
    """Formulas for a terminal, on lines of so many columns."""

    limits: Limits
    room: int = 0

    def pieces(self, node: Node) -> list[str]:
        """Return a formula in pieces, between which a line may break."""
        write: Callable[[Node], list[str]] = getattr(self, f"_{type(node).__name__.lower()}")
        return write(node)

    def _number(self, node: Number) -> list[str]:
        return [self.limits.number(node.value)]

    def _letters(self, node: Letters) -> list[str]:
        return [node.text]

    def _vector(self, node: Vector) -> list[str]:
        texts = [self.limits.number(value) for value in node.values.tolist()]
        ends = np.cumsum([len(text) + len(", ") for text in texts])
        if ends[-1] > _CUT_LINES * self.room:
            room = self.room - len("... 99999 more)")
            count = max(1, int(np.searchsorted(ends, room, side="right")))
            texts = [*texts[:count], f"… {len(texts) - count} more"]
        return [f"({texts[0]})"] if len(texts) == 1 else _listed(texts)

    def _product(self, node: Product) -> list[str]:
        tight = all(isinstance(factor, Number) for factor in node.factors)
        return self._dotted(node, "·" if tight else " · ")

    def _dotted(self, node: Product, dot: str) -> list[str]:
        first, *others = (self._bracketed(factor, Sum) for factor in node.factors)
        for factor in others:
            first = _glued(first, dot, factor)
        return first

    def _quotient(self, node: Quotient) -> list[str]:
        below = self._bracketed(node.bottom, Sum, Product, Quotient)
        return _glued(self._bracketed(node.top, Sum), " / ", below)

    def _call(self, node: Call) -> list[str]:
        pieces = self.pieces(node.argument)
        atom = isinstance(node.argument, Number | Letters)
        before, behind = {
            "abs": ("|", "|"),
            "sqrt": ("√", "") if atom else ("√(", ")"),
            "sum": ("Σ ", ""),
        }.get(node.name, (f"{node.name}(", ")"))
        return _glued(before, pieces, behind)

    def _power(self, node: Power) -> list[str]:
        return _glued(self.pieces(node.base), "^(", self.pieces(node.exponent), ")")

    def _bracketed(self, node: Node, *kinds: type) -> list[str]:
        """Return a node in brackets if it is of these kinds or a negative number."""
        negative = isinstance(node, Number) and node.value < 0
        pieces = self.pieces(node)
        return _glued("(", pieces, ")") if negative or isinstance(node, kinds) else pieces

    def _sum(self, node: Sum) -> list[str]:
        """Return a sum: all its terms if there is room, else the largest and the rest."""
        terms = [self._term(each) for each in node.terms]
        count, (left_out, total) = len(node.sizes), node.rest
        kept = self._kept(node, [term for _, term in terms[:count]]) if count else None
        if kept is not None:
            gone = np.delete(np.array(node.sizes), kept)
            left_out, total = left_out + len(gone), total + float(gone.sum())
            terms[:count] = [(terms[i][0], self._tagged(terms[i][1], node.tags[i])) for i in kept]
            count = len(kept)
        if left_out:
            sign, (text,) = self._term(Number(total))
            terms.insert(count, (sign, [self._left_out(text, left_out)]))
        pieces: list[str] = []
        for sign, term in terms:
            pieces += _glued(f"{sign} " if pieces else sign.removeprefix("+"), term)
        return pieces

    def _term(self, node: Node) -> tuple[str, list[str]]:
        """Return a term of a sum as its sign and the rest."""
        if isinstance(node, Minus):
            if isinstance(node.of, Number) and node.of.value < 0:
                return "+", self.pieces(Number(-node.of.value))
            return "-", self._bracketed(node.of, Sum)
        if isinstance(node, Number) and node.value < 0:
            return "-", self.pieces(Number(-node.value))
        return "+", self.pieces(node)

    def _kept(self, node: Sum, terms: list[list[str]]) -> list[int] | None:
        """Return which terms of a sum stay; None for all."""
        widths = [text_width("".join(term)) + len(" + ") for term in terms]
        if sum(widths) <= _SUM_LINES * self.room:
            return None
        room = min(_CUT_LINES * self.room, _CUT_COLUMNS)
        # One width for all terms: sums over the same keys or components keep the same ones.
        widest = self.limits.digits * 2 + 14 + max(text_width(tag.text) for tag in node.tags)
        return _largest(node, max(2, room // widest))

    def _tagged(self, term: list[str], tag: Letters) -> list[str]:
        return _glued(term, f" ({tag.text})")

    def _left_out(self, total: str, count: int) -> str:
        return f"{total} ({count:,} more)"


@dataclass(frozen=True)
class Latex(Text):
    r"""Formulas in what LaTeX, MathJax and KaTeX all know.

    They hold nothing that Markdown readers take for their own: no ``\\``, no ``*``, no tag. Lines
    end with ``\cr``.
    """

    def equation(self, equation: Equation) -> str:
        """Return an equation, on several lines where a side has many terms."""
        left = equation.left.latex
        sides = [self.pieces(side) for side in equation.sides]
        if all(len(side) <= _A_LINE for side in sides):
            return " = ".join([left, *(" ".join(side) for side in sides)])
        lines = []
        for number, side in enumerate(sides):
            for at in range(0, len(side), _A_LINE):
                start = r"&\quad {}" if at else "&= " if number else f"{left} &= "
                lines.append(start + " ".join(side[at : at + _A_LINE]))
        return "\\begin{aligned}\n" + " \\cr\n".join(lines) + "\n\\end{aligned}"

    def _number(self, node: Number) -> list[str]:
        if math.isinf(node.value):
            return [r"-\infty" if node.value < 0 else r"\infty"]
        mantissa, power, exponent = self.limits.number(node.value).partition("e")
        return [rf"{mantissa} \cdot 10^{{{int(exponent)}}}" if power else mantissa]

    def _letters(self, node: Letters) -> list[str]:
        return [node.latex]

    def _vector(self, node: Vector) -> list[str]:
        shown = [self._number(Number(value))[0] for value in node.values[:_MOST_TERMS].tolist()]
        shown += [r"\ldots"] if len(node.values) > _MOST_TERMS else []
        return [rf"\left({', '.join(shown)}\right)"]

    def _product(self, node: Product) -> list[str]:
        return self._dotted(node, r" \cdot ")

    def _quotient(self, node: Quotient) -> list[str]:
        above = self.pieces(node.top)
        if len(above) > _IN_FRACTION:
            return super()._quotient(node)
        return [rf"\frac{{{' '.join(above)}}}{{{' '.join(self.pieces(node.bottom))}}}"]

    def _call(self, node: Call) -> list[str]:
        pieces = self.pieces(node.argument)
        before, behind = {
            "abs": (r"\lvert ", r" \rvert"),
            "sqrt": (r"\sqrt{", "}"),
            "sum": (r"\sum ", ""),
            "exp": ("e^{", "}"),
        }.get(node.name, (rf"\{node.name}\left(", r"\right)"))
        return [f"{before}{' '.join(pieces)}{behind}"]

    def _power(self, node: Power) -> list[str]:
        return [f"{' '.join(self.pieces(node.base))}^{{{' '.join(self.pieces(node.exponent))}}}"]

    def _kept(self, node: Sum, terms: list[list[str]]) -> list[int] | None:
        return None if len(terms) <= _MOST_TERMS else _largest(node, _MOST_TERMS)

    def _tagged(self, term: list[str], tag: Letters) -> list[str]:
        return [rf"\underbrace{{{' '.join(term)}}}_{{{tag.latex}}}"]

    def _left_out(self, total: str, count: int) -> str:
        return rf"\underbrace{{{total}}}_{{\text{{{count} more}}}}"


def _listed(texts: list[str]) -> list[str]:
    """Return texts in brackets, with commas."""
    return [f"({texts[0]},", *(f"{text}," for text in texts[1:-1]), f"{texts[-1]})"]


def _largest(node: Sum, count: int) -> list[int]:
    """Return the indices of the largest terms, in their order."""
    sizes = np.abs(np.array(node.sizes if node.order is None else node.order, np.float64))
    chosen: list[int] = np.sort(np.argsort(-sizes, kind="stable")[:count]).tolist()
    return chosen
