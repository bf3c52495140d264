"""An explanation as Markdown with LaTeX formulas, for a lecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors.text import counted
from attncli.explanation.formulas import Equation, Latex
from attncli.explanation.keys import markdown_keys
from attncli.explanation.steps import facts, sections, title
from attncli.view.limits import Limits
from attncli.view.markdown import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.explanation.data import Explanation

__all__ = ["as_markdown"]


def as_markdown(explanation: Explanation, *, digits: int = 4) -> str:
    """Return an explanation as Markdown with formulas in LaTeX.

    Long sums keep their largest terms and wide vectors their first, and say so.

    Parameters
    ----------
    explanation : Explanation
    digits : int
        Digits after the point.
    """
    return "\n\n".join(_blocks(explanation, Limits(digits=digits))) + "\n"


def _blocks(explanation: Explanation, limits: Limits) -> Iterator[str]:
    latex = Latex(limits)
    yield f"# {words(title(explanation))}"
    told = [*facts(explanation), f"shown with {counted(limits.digits, 'decimal')}"]
    yield _sentence(", ".join(told))
    for section in sections(explanation):
        if section.title:
            yield f"## {section.title}"
        for part in section.rule:
            yield _block(part, latex)
        for part in section.parts:
            yield _block(part, latex)
            if isinstance(part, Equation) and part.words:
                yield _sentence(part.words)
        if section.table:
            yield markdown_keys(explanation, limits)


def _block(part: Equation | str, latex: Latex) -> str:
    return _sentence(part) if isinstance(part, str) else f"$$\n{latex.equation(part)}\n$$"


def _sentence(text: str) -> str:
    text = words(text)
    return f"{text[0].upper()}{text[1:]}."
