"""An explanation for the terminal, and as Markdown with LaTeX formulas for a lecture."""

from __future__ import annotations

from itertools import chain, groupby
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from attncli.errors.text import counted
from attncli.explanation.formulas import Equation, Numbers, latex_equation
from attncli.explanation.keys import key_table
from attncli.explanation.steps import facts, sections, title
from attncli.view.labels import broken, shorten, text_width, wrapped
from attncli.view.limits import Limits
from attncli.view.tables import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from attncli.explanation.data import Explanation

_EQUALS = " = "
# As many decimals as a float64 has.
_EXACT_DIGITS = 17
# Columns of a pipe, which has no edge: room for the formulas of a usual head.
_NO_EDGE = 200


def renderable(explanation: Explanation, limits: Limits) -> RenderableType:
    """Return an explanation for a Rich console, in 200 columns if it is no terminal."""
    return Group(*_parts(explanation, limits, limits.width or _NO_EDGE))


def as_text(explanation: Explanation, limits: Limits | None = None) -> str:
    """Return an explanation as plain text without colour."""
    limits = limits or Limits()
    parts = _parts(explanation, limits, limits.width or _NO_EDGE)
    return "".join(f"{part.plain.rstrip()}\n" for part in parts)


def _parts(explanation: Explanation, limits: Limits, width: int) -> Iterator[Text]:
    heading = " · ".join([title(explanation), *facts(explanation)])
    yield from _note(heading, limits, width, style="bold")
    if limits.digits < _EXACT_DIGITS:
        decimals = counted(limits.digits, "decimal")
        yield from _note(f"shown with {decimals} (--digits), computed with all", limits, width)
    for section in sections(explanation, Numbers(limits)):
        if section.title:
            yield Text("")
            yield Text(section.title, style="bold")
        for part in section.rule:
            yield from _note(_in_line(part, limits), limits, width)
        if section.table:
            yield from chain.from_iterable(
                part.split() for part in key_table(explanation, limits, width)
            )
        for _, group in groupby(section.parts, type):
            parts = list(group)
            equations = [part for part in parts if isinstance(part, Equation)]
            yield from _aligned(equations, limits, width)
            notes = (part for part in parts if isinstance(part, str))
            yield from chain.from_iterable(_note(note, limits, width) for note in notes)


def _in_line(part: Equation | str, limits: Limits) -> str:
    if isinstance(part, str):
        return limits.known(part)
    return limits.formula(_EQUALS.join(side.line for side in (part.left, *part.sides)))


def _note(words: str, limits: Limits, width: int, style: str = "italic dim") -> Iterator[Text]:
    for line in _lines(limits.known(words).split(" "), width):
        yield Text(line, style=style)


def _aligned(equations: Sequence[Equation], limits: Limits, width: int) -> Iterator[Text]:
    """Yield equations aligned at their first equals signs, each wrapped between its pieces."""
    lefts = [limits.formula(equation.left.line) for equation in equations]
    # Names that take more than half a line would leave no room for numbers.
    left_width = min(max(map(text_width, lefts), default=0), width // 2)
    room = max(1, width - left_width - len(_EQUALS))
    for equation, left in zip(equations, lefts, strict=True):
        first, *others = (side.text for side in equation.sides)
        pieces = [*first, *chain.from_iterable((f"= {side[0]}", *side[1:]) for side in others)]
        if equation.words:
            pieces[-1] += ","
            pieces += equation.words.split(" ")
        start = shorten(left, left_width, ellipsis=limits.known("…"))
        start = " " * (left_width - text_width(start)) + start + _EQUALS
        for line in _lines(map(limits.formula, pieces), room):
            yield _styled(start, line, note=bool(equation.words))
            start = " " * (left_width + len(_EQUALS))


def _lines(pieces: Iterable[str], room: int) -> Iterator[str]:
    return wrapped(chain.from_iterable(broken(piece, room) for piece in pieces), room)


def _styled(start: str, text: str, *, note: bool) -> Text:
    styled = Text(start, no_wrap=True)
    before, equals, result = text.rpartition("= ")
    if note or not equals:
        return styled.append(text, style="dim italic" if note else "")
    return styled.append(before + equals).append(result, style="bold")


def as_markdown(explanation: Explanation, *, digits: int = 4) -> str:
    """Return an explanation as Markdown with formulas in LaTeX; `digits` are its decimals."""
    return "\n\n".join(_markdown_blocks(explanation, Limits(digits=digits, markdown=True))) + "\n"


def _markdown_blocks(explanation: Explanation, limits: Limits) -> Iterator[str]:
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
