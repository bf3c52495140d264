"""An explanation for the terminal: formulas with the numbers put in, and a table of the keys."""

from __future__ import annotations

from io import StringIO
from itertools import chain, groupby
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

from attncli.errors.text import counted
from attncli.explanation import formulas
from attncli.explanation.formulas import Equation
from attncli.explanation.keys import weight_table
from attncli.explanation.steps import facts, sections, title
from attncli.view.labels import shorten, text_width
from attncli.view.limits import Limits
from attncli.view.wrapping import broken, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from attncli.explanation.data import Explanation

__all__ = ["as_text", "renderable"]

_EQUALS = " = "
# As many decimals as a float64 has.
_EXACT_DIGITS = 17
# Columns without an edge: long enough for the formulas of a usual head.
_NO_EDGE = 200


def renderable(explanation: Explanation, limits: Limits) -> RenderableType:
    """Return an explanation as a teacher would write it.

    Where the terminal has no edge, formulas are cut to 200 columns.
    """
    return Group(*_parts(explanation, limits, limits.width or _NO_EDGE))


def as_text(explanation: Explanation, limits: Limits | None = None) -> str:
    """Return an explanation as plain text without colour: see `renderable`."""
    stream, limits = StringIO(), limits or Limits()
    width = limits.width or _NO_EDGE
    console = Console(
        file=stream, width=width, color_system=None, force_terminal=False, emoji=False
    )
    console.print(renderable(explanation, limits))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _parts(explanation: Explanation, limits: Limits, width: int) -> Iterator[Text]:
    heading = limits.known(" · ".join([title(explanation), *facts(explanation)]))
    yield from (Text(line, style="bold") for line in wrapped(heading.split(" "), width))
    if limits.digits < _EXACT_DIGITS:
        decimals = counted(limits.digits, "decimal")
        yield from _note(f"shown with {decimals} (--digits), computed with all", limits, width)
    for section in sections(explanation):
        if section.title:
            yield Text("")
            yield Text(section.title, style="bold")
        for part in section.rule:
            words = _rule(part, limits) if isinstance(part, Equation) else part
            yield from _note(words, limits, width)
        if section.table:
            yield from weight_table(explanation, limits, width)
        for are_equations, parts in groupby(section.parts, lambda p: isinstance(p, Equation)):
            if are_equations:
                equations = [part for part in parts if isinstance(part, Equation)]
                yield from _aligned(equations, limits, width)
            else:
                notes = (_note(str(part), limits, width) for part in parts)
                yield from chain.from_iterable(notes)


def _rule(equation: Equation, limits: Limits) -> str:
    write = formulas.Text(limits, _NO_EDGE)
    sides = [" ".join(write.pieces(side)) for side in (equation.left, *equation.sides)]
    return _EQUALS.join(sides)


def _note(words: str, limits: Limits, width: int) -> Iterator[Text]:
    for line in _wrapped(words.split(" "), width, limits):
        yield Text(line, style="italic dim")


def _aligned(equations: Sequence[Equation], limits: Limits, width: int) -> Iterator[Text]:
    """Yield equations aligned at their first equals signs, each wrapped between its pieces."""
    lefts = [limits.formula(equation.left.text) for equation in equations]
    # Names that take more than half a line would leave no room for numbers.
    left_width = min(max(map(text_width, lefts)), width // 2)
    room = max(1, width - left_width - len(_EQUALS))
    write = formulas.Text(limits, max(10, room))
    for equation, left in zip(equations, lefts, strict=True):
        first, *others = (write.pieces(side) for side in equation.sides)
        pieces = [*first, *chain.from_iterable([f"= {side[0]}", *side[1:]] for side in others)]
        if equation.words:
            pieces = " ".join([*pieces, ", " + equation.words]).replace(" , ", ", ").split(" ")
        start = shorten(left, left_width, ellipsis=limits.known("…"))
        start = " " * (left_width - text_width(start)) + start + _EQUALS
        for line in _wrapped(pieces, room, limits):
            yield _styled(start, line, note=bool(equation.words))
            start = " " * (left_width + len(_EQUALS))


def _wrapped(pieces: Sequence[str], room: int, limits: Limits) -> Iterator[str]:
    """Yield pieces as lines; long pieces are broken."""
    parts = (broken(limits.formula(piece), room) for piece in pieces)
    return wrapped(chain.from_iterable(parts), room)


def _styled(start: str, text: str, *, note: bool) -> Text:
    styled = Text(start, no_wrap=True)
    before, equals, result = text.rpartition("= ")
    if note or not equals:
        return styled.append(text, style="dim italic" if note else "")
    return styled.append(before + equals).append(result, style="bold")
