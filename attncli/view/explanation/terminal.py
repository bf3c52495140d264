"""An explanation for the terminal: formulas with the numbers put in, and a table of the keys."""

from __future__ import annotations

import re
from io import StringIO
from itertools import chain
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

from attncli.text import counted, places
from attncli.view.explanation.lines import (
    Line,
    context_lines,
    made_lines,
    made_rule,
    output_lines,
    output_rule,
    query_lines,
    rule_text,
    score_lines,
    softmax_lines,
    softmax_rule,
)
from attncli.view.explanation.numbers import CONTEXT_COLUMNS, MADE_COLUMNS
from attncli.view.explanation.table import weight_table
from attncli.view.labels import shorten, text_width
from attncli.view.notation import Notation, name_of, names_of
from attncli.view.wrapping import broken, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import RenderableType

    from attncli.explanation.data import Explanation
    from attncli.view.shading import Depth

__all__ = ["as_text", "renderable"]

_EQUALS = " = "
# A product of a sum that is cut.
_COMPONENT = re.compile(r" \(d\d+\)$")
_OF_COMPONENTS = "of each sum the largest products, with their component: (d0) is of q[0] and k[0]"
# As many as a float64 has.
_EXACT_DIGITS = 17
# Without an edge: long enough for the formulas of a usual head.
_NO_EDGE = 200


def renderable(
    explanation: Explanation,
    *,
    width: int | None = None,
    digits: int = 4,
    unicode: bool = True,
    depth: Depth = "truecolor",
) -> RenderableType:
    """Return an explanation as a teacher would write it.

    Parameters
    ----------
    explanation : Explanation
    width : int, optional
        Columns of the terminal; if there is no edge, formulas are cut to 200.
    digits : int
        Digits after the point.
    unicode : bool
        Whether the terminal has more than ASCII.
    depth : {"none", "256", "truecolor"}
        Colours that the terminal has.

    Returns
    -------
    rich.console.Group
    """
    notation = Notation(digits, unicode)
    return Group(*_parts(explanation, notation, width or _NO_EDGE, depth))


def as_text(
    explanation: Explanation, *, width: int | None = None, digits: int = 4, unicode: bool = True
) -> str:
    """Return an explanation as plain text without colour: see `renderable`."""
    stream = StringIO()
    console = Console(
        file=stream, width=width or _NO_EDGE, color_system=None, force_terminal=False, emoji=False
    )
    console.print(renderable(explanation, width=width, digits=digits, unicode=unicode))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _parts(
    explanation: Explanation, notation: Notation, width: int, depth: Depth
) -> Iterator[RenderableType]:
    yield from _title(explanation, notation, width)
    if explanation.made is not None:
        yield Text("")
        yield from _heading(
            "Query", made_rule(explanation, explanation.made), notation=notation, width=width
        )
    room = _room(["rotated[0]"], width)
    lines = [*made_lines(explanation, notation, room), *query_lines(explanation, notation, room)]
    yield from _formulas(lines, notation, width)
    yield Text("")
    yield from _heading("Scores", rule_text(explanation, notation), notation=notation, width=width)
    yield from _scores(explanation, notation, width)
    yield Text("")
    yield from _heading(
        "Weights", *softmax_rule(explanation, notation), notation=notation, width=width
    )
    yield from weight_table(explanation, notation, width, depth)
    room = _room(["denominator"], width)
    yield from _formulas(softmax_lines(explanation, notation, room), notation, width)
    if explanation.context is not None:
        yield Text("")
        yield from _heading(
            "Context", "the values, each times its weight", notation=notation, width=width
        )
        room = _room(["context[0]"], width)
        yield from _formulas(context_lines(explanation, notation, room), notation, width)
        yield from _more_columns(len(explanation.context), CONTEXT_COLUMNS, notation, width)
    if explanation.output is not None:
        yield Text("")
        yield from _heading(
            "Output", output_rule(explanation.output), notation=notation, width=width
        )
        room = _room(["output[0]"], width)
        yield from _formulas(output_lines(explanation, notation, room), notation, width)
        yield from _more_columns(len(explanation.output.share), MADE_COLUMNS, notation, width)


def _title(explanation: Explanation, notation: Notation, width: int) -> Iterator[Text]:
    name = f"query {explanation.query}"
    if explanation.query_label is not None:
        label = name_of("q", explanation.query, explanation.query_label)
        name += f" “{label}”" if explanation.query_label else f" {label}"
    where = {
        "batch": explanation.batch,
        "head": explanation.head,
        "key/value head": explanation.kv_head,
    }
    count = counted(explanation.keys, "key")
    text = " · ".join([f"How {name} attends", *places(where), count, explanation.dtype])
    for line in wrapped(notation.known(text).split(" "), width):
        yield Text(line, style="bold")
    if notation.digits < _EXACT_DIGITS:
        decimals = counted(notation.digits, "decimal")
        yield from _note(f"shown with {decimals} (--digits), computed with all", notation, width)


def _scores(explanation: Explanation, notation: Notation, width: int) -> Iterator[Text]:
    """Yield the formulas of all keys, one below the other, aligned at the equals sign."""
    names = names_of(explanation.steps)
    query = name_of("q", explanation.query, explanation.query_label)
    room = _room([f"score({query} → {name})" for name in names], width)
    lines = [
        line
        for step, name in zip(explanation.steps, names, strict=True)
        for line in score_lines(explanation, step, name, notation, room)
    ]
    if any(_COMPONENT.search(piece) for line in lines for piece in line.pieces):
        yield from _note(_OF_COMPONENTS, notation, width)
    yield from _formulas(lines, notation, width)
    if explanation.rest is not None:
        yield from _note(_rest_words(explanation), notation, width)


def _rest_words(explanation: Explanation) -> str:
    rest = explanation.rest
    if rest is None:
        return ""
    parts = [f"{rest.seen:,} more with smaller scores"] if rest.seen else []
    if rest.hidden:
        parts.append(f"{rest.hidden:,} more hidden: {rest.hidden_by}")
    return "… " + " and ".join(parts)


def _more_columns(count: int, told: int, notation: Notation, width: int) -> Iterator[Text]:
    if count > told:
        words = f"… {counted(count - told, 'more column')} (--format json has all)"
        yield from _note(words, notation, width)


def _heading(title: str, *rules: str, notation: Notation, width: int) -> Iterator[Text]:
    yield Text(title, style="bold")
    for rule in rules:
        yield from _note(rule, notation, width)


def _note(words: str, notation: Notation, width: int) -> Iterator[Text]:
    for line in _wrapped(words.split(" "), width, notation):
        yield Text(line, style="italic dim")


def _room(lefts: Iterable[str], width: int) -> int:
    """Return the columns right of the equals sign."""
    longest = max(map(text_width, lefts), default=0)
    return max(10, width - _left_width(longest, width) - len(_EQUALS))


def _left_width(longest: int, width: int) -> int:
    # Names that take more than half a line would leave no room for numbers.
    return min(longest, width // 2)


def _formulas(lines: Iterable[Line], notation: Notation, width: int) -> Iterator[Text]:
    """Yield formulas aligned at their equals signs, each wrapped between its pieces."""
    lines = list(lines)
    lefts = [notation.formula(line.left) for line in lines]
    left_width = _left_width(max(map(text_width, lefts), default=0), width)
    room = max(1, width - left_width - len(_EQUALS))
    for line, left in zip(lines, lefts, strict=True):
        left = shorten(left, left_width, ellipsis=notation.known("…"))  # noqa: PLW2901
        pieces = line.pieces
        if line.note:
            pieces = tuple(word for piece in pieces for word in piece.split(" "))
        for number, text in enumerate(_wrapped(pieces, room, notation)):
            start = left if number == 0 else ""
            indent = " " * (left_width - text_width(start)) + start
            yield _styled(indent + (_EQUALS if number == 0 else "   "), text, note=line.note)


def _wrapped(pieces: Iterable[str], room: int, notation: Notation) -> Iterator[str]:
    """Yield pieces as lines; long pieces are broken."""
    parts = (broken(notation.formula(piece), room) for piece in pieces)
    return wrapped(chain.from_iterable(parts), room)


def _styled(start: str, text: str, *, note: bool) -> Text:
    styled = Text(start, no_wrap=True)
    before, equals, result = text.rpartition("= ")
    if note or not equals:
        return styled.append(text, style="dim italic" if note else "")
    return styled.append(before + equals).append(result, style="bold")
