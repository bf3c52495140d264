"""An explanation for the terminal: formulas with the numbers put in, and a table of the keys."""

from __future__ import annotations

from io import StringIO
from itertools import chain
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

from attncli.text import counted
from attncli.view.explanation_lines import (
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
)
from attncli.view.explanation_sums import CONTEXT_COLUMNS, MADE_COLUMNS
from attncli.view.explanation_table import weight_table
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
# Without an edge: long enough that no formula of a usual head is cut.
_NO_EDGE = 200


def renderable(
    way: Explanation,
    *,
    width: int | None = None,
    digits: int = 4,
    unicode: bool = True,
    depth: Depth = "truecolor",
) -> RenderableType:
    """Return an explanation as a teacher would write it.

    Parameters
    ----------
    way : Explanation
    width : int, optional
        Columns of the terminal; where there is no edge, formulas are cut to 200.
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
    return Group(*_parts(way, notation, width or _NO_EDGE, depth))


def as_text(
    way: Explanation, *, width: int | None = None, digits: int = 4, unicode: bool = True
) -> str:
    """Return an explanation as plain text without colour: see `renderable`."""
    stream = StringIO()
    console = Console(
        file=stream, width=width or _NO_EDGE, color_system=None, force_terminal=False, emoji=False
    )
    console.print(renderable(way, width=width, digits=digits, unicode=unicode))
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _parts(
    way: Explanation, notation: Notation, width: int, depth: Depth
) -> Iterator[RenderableType]:
    yield _title(way, notation, width)
    if way.made is not None:
        yield Text("")
        yield from _heading("Query", made_rule(way, way.made), notation, width)
    room = _room(["rotated[0]"], width)
    lines = [*made_lines(way, notation, room), *query_lines(way, notation, room)]
    yield from _formulas(lines, notation, width)
    yield Text("")
    yield from _heading("Scores", rule_text(way, notation), notation, width)
    yield from _scores(way, notation, width)
    yield Text("")
    yield from _heading("Weights", _softmax_rule(way, notation), notation, width)
    yield from weight_table(way, notation, width, depth)
    room = _room(["denominator"], width)
    yield from _formulas(softmax_lines(way, notation, room), notation, width)
    if way.context is not None:
        yield Text("")
        yield from _heading("Context", "the values, each times its weight", notation, width)
        room = _room(["context[0]"], width)
        yield from _formulas(context_lines(way, notation, room), notation, width)
        yield from _more_columns(len(way.context), CONTEXT_COLUMNS, notation, width)
    if way.output is not None:
        yield Text("")
        yield from _heading("Output", output_rule(way.output), notation, width)
        room = _room(["output[0]"], width)
        yield from _formulas(output_lines(way, notation, room), notation, width)
        yield from _more_columns(len(way.output.share), MADE_COLUMNS, notation, width)


def _title(way: Explanation, notation: Notation, width: int) -> Text:
    name = f"query {way.query}"
    if way.query_label is not None:
        name += f" “{name_of('q', way.query, way.query_label)}”"
    where = [("batch", way.batch), ("head", way.head), ("key/value head", way.kv_head)]
    places = [f"{axis} {index}" for axis, index in where if index is not None]
    counts = f"{way.keys} keys" if way.keys != 1 else "1 key"
    text = " · ".join([f"How {name} attends", *places, counts, way.dtype])
    return Text(shorten(notation.known(text), width, ellipsis=notation.known("…")), style="bold")


def _scores(way: Explanation, notation: Notation, width: int) -> Iterator[Text]:
    """Yield the formulas of all keys below each other, aligned at the equals sign."""
    names = names_of(way.steps)
    query = name_of("q", way.query, way.query_label)
    room = _room([f"score({query} → {name})" for name in names], width)
    lines = [
        line
        for step, name in zip(way.steps, names, strict=True)
        for line in score_lines(way, step, name, notation, room)
    ]
    yield from _formulas(lines, notation, width)
    if way.rest is not None:
        yield from _note(_rest_words(way), notation, width)


def _rest_words(way: Explanation) -> str:
    rest = way.rest
    if rest is None:
        return ""
    parts = [f"{rest.seen} more with smaller scores"] if rest.seen else []
    if rest.hidden:
        counts = (f"{count} by {rule}" for rule, count in rest.rules.items())
        parts.append(f"{rest.hidden} more hidden: {', '.join(counts)}")
    return "… " + " and ".join(parts)


def _softmax_rule(way: Explanation, notation: Notation) -> str:
    if way.blind:
        sink = "" if way.sink is None else "; the sink takes all"
        return f"this query sees no key, so every weight is 0{sink}"
    shift = notation.plus(-way.shift)
    sink = "" if way.sink is None else "; the sink counts in the denominator only"
    return f"weight = exp(score {shift}) / denominator{sink}"


def _more_columns(count: int, told: int, notation: Notation, width: int) -> Iterator[Text]:
    if count > told:
        words = f"… {counted(count - told, 'more column')} (--format json has all)"
        yield from _note(words, notation, width)


def _heading(title: str, rule: str, notation: Notation, width: int) -> Iterator[Text]:
    yield Text(title, style="bold")
    yield from _note(rule, notation, width)


def _note(words: str, notation: Notation, width: int) -> Iterator[Text]:
    for line in _wrapped(words.split(" "), width, notation):
        yield Text(line, style="italic dim")


def _room(lefts: Iterable[str], width: int) -> int:
    """Return the columns right of the equals sign."""
    longest = max(map(text_width, lefts), default=0)
    return max(10, width - _left_width(longest, width) - len(_EQUALS))


def _left_width(longest: int, width: int) -> int:
    # Names that take more than half of a line would leave no room for numbers.
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
    """Yield the lines of pieces, of which long ones are broken."""
    parts = (broken(notation.formula(piece), room) for piece in pieces)
    return wrapped(chain.from_iterable(parts), room)


def _styled(start: str, text: str, *, note: bool) -> Text:
    styled = Text(start, no_wrap=True)
    before, equals, result = text.rpartition("= ")
    if note or not equals:
        return styled.append(text, style="dim italic" if note else "")
    return styled.append(before + equals).append(result, style="bold")
