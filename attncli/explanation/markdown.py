"""An explanation as Markdown with LaTeX formulas, for a lecture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncli.errors.text import counted
from attncli.explanation.formulas import Numbers, latex_equation
from attncli.explanation.keys import key_table
from attncli.explanation.steps import facts, sections, title
from attncli.view.limits import Limits
from attncli.view.markdown import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.explanation.data import Explanation

__all__ = ["as_markdown"]


def as_markdown(explanation: Explanation, *, digits: int = 4) -> str:
    """Return an explanation as Markdown with formulas in LaTeX, and so many decimals."""
    return "\n\n".join(_blocks(explanation, Limits(digits=digits, markdown=True))) + "\n"


def _blocks(explanation: Explanation, limits: Limits) -> Iterator[str]:
    yield f"# {words(title(explanation))}"
    told = [*facts(explanation), f"shown with {counted(limits.digits, 'decimal')}"]
    yield _sentence(", ".join(told))
    for section in sections(explanation, Numbers(limits)):
        if section.title:
            yield f"## {section.title}"
        for part in (*section.rule, *section.parts):
            if isinstance(part, str):
                yield _sentence(part)
                continue
            yield f"$$\n{latex_equation(part)}\n$$"
            if part.words:
                yield _sentence(part.words)
        if section.table:
            yield from (table.plain for table in key_table(explanation, limits, 0))


def _sentence(text: str) -> str:
    text = words(text)
    return f"{text[0].upper()}{text[1:]}."
