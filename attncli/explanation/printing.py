"""An explanation for the terminal, and as Markdown with LaTeX formulas for a lecture."""

from __future__ import annotations

from itertools import chain, groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.text import Text

from attncli.errors.text import counted
from attncli.explanation.formulas import Equation, Numbers, latex_equation, name_of
from attncli.explanation.steps import facts, sections, title
from attncli.view.labels import broken, shorten, text_width, wrapped
from attncli.view.limits import Limits
from attncli.view.shading import painted, ramp_color
from attncli.view.tables import GAP, Column, drawn, remark, width_of, words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from attncli.explanation.data import Explanation, KeyStep

_EQUALS = " = "
# As many decimals as a float64 has.
_EXACT_DIGITS = 17
# Columns of a pipe, which has no edge: room for the formulas of a usual head.
_NO_EDGE = 200
_HEADINGS = ("raw", "capped", "bias", "ALiBi", "score", "shifted", "exp", "weight")
# The columns that a narrow terminal shows: the formulas have the other numbers.
_NARROW = ("score", "weight")
# Columns of the terminal.
_LONGEST_BAR, _SHORTEST_BAR, _SHORTEST_NAME = 32, 8, 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


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
                part.split() for part in _key_table(explanation, limits, width)
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
            yield from (table.plain for table in _key_table(explanation, limits, 0))


def _sentence(text: str) -> str:
    text = words(text)
    return f"{text[0].upper()}{text[1:]}."


# --- the table of the keys -------------------------------------------------------------------


class _Row(NamedTuple):
    """A line of the table: a bar shows the weight, or words say why a key is hidden."""

    name: str
    cells: dict[str, float]
    weight: float = 0.0
    words: str = ""
    style: str = ""


def _rows(e: Explanation) -> Iterator[_Row]:
    """Yield a row for each key, and for the sink, the rest and the sums."""
    for step in e.steps:
        yield _key_row(e, step)
    total = sum(step.weight for step in e.steps)
    if e.sink is not None:
        share = e.sink_exponential / e.denominator
        shifted = {"score": e.sink, "shifted": e.sink - e.shift}
        yield _Row("(sink)", shifted | {"exp": e.sink_exponential, "weight": share}, share)
        total += share
    if e.rest is not None:
        told = f"{e.rest.seen:,} more" if e.rest.seen else f"{e.rest.hidden:,} hidden"
        sums = {"exp": e.rest.exponential, "weight": e.rest.weight}
        yield _Row(f"… {told}", sums, style="italic dim")
        total += e.rest.weight
    yield _Row("sum", {"exp": e.denominator, "weight": total}, style="bold")


def _key_row(e: Explanation, step: KeyStep) -> _Row:
    name = name_of("k", step.index, step.label).line
    name = name if step.label is None else f"{step.index} {name}"
    cells = {"score": step.score}
    if e.softcap is not None:
        cells["capped"] = step.capped
    if e.has_bias:
        cells["bias"] = step.bias
    if e.slope is not None:
        cells["ALiBi"] = -step.penalty
    if len(cells) > 1:
        cells["raw"] = step.raw
    if step.hidden:
        words = "hidden by " + ", ".join(reason.rule for reason in step.hidden)
        return _Row(name, cells, words=words, style="dim")
    cells |= {"shifted": step.exponent, "exp": step.exponential, "weight": step.weight}
    return _Row(name, cells, step.weight)


def _key_table(e: Explanation, limits: Limits, width: int) -> Iterator[Text]:
    """Yield the table, and the scale of its bars; Markdown has no bars."""
    rows = list(_rows(e))
    styles = [row.style for row in rows]
    columns = [
        Column(
            name,
            [limits.cell(row.cells[name]) if name in row.cells else "" for row in rows],
            styles=styles,
        )
        for name in _HEADINGS
        if any(name in row.cells for row in rows)
    ]
    names = Column("key", [limits.known(row.name) for row in rows], left=True, styles=styles)
    notes = Column("", [row.words for row in rows], left=True)
    if limits.markdown:
        yield drawn([names, *columns, *([notes] if any(notes.cells) else [])], limits)
        return
    least = min(names.width, _SHORTEST_NAME) + _SHORTEST_BAR + 2 * GAP
    if width_of(columns) + least > width:
        columns = [column for column in columns if column.heading in _NARROW]
    room = max(1, width - width_of(columns) - 2 * GAP)
    names = _cut(names, max(1, min(names.width, room - _SHORTEST_BAR)), limits)
    room = max(0, room - names.width)
    notes = _cut(notes, room, limits)
    largest, bar = max(row.weight for row in rows), min(_LONGEST_BAR, room)
    bars = [_bar(row.weight / (largest or 1), bar, limits) for row in rows]
    ends = [own or drawing for own, drawing in zip(notes.cells, bars, strict=True)]
    # Neither end of the ramp: bars must show on white and on black.
    blues = [ramp_color(0.4 + 0.4 * row.weight, limits.depth) for row in rows]
    inks = [
        "italic dim" if row.words else painted(blue, None, limits.depth)
        for row, blue in zip(rows, blues, strict=True)
    ]
    yield drawn([names, *columns, Column("", ends, left=True, styles=inks)], limits)
    if largest and bar:
        told = f"bars: the longest is {limits.number(largest)}, the largest weight shown"
        yield from (remark(line, limits) for line in wrapped(told.split(" "), width))


def _cut(column: Column, room: int, limits: Limits) -> Column:
    cells = [shorten(limits.known(cell), room, ellipsis=limits.known("…")) for cell in column.cells]
    return Column(column.heading, cells, left=True, styles=column.styles)


def _bar(share: float, room: int, limits: Limits) -> str:
    full, part = divmod(round(8 * room * share), 8)
    if not limits.unicode:
        return "#" * (full + (part >= 4))
    return "█" * full + _EIGHTHS[part].strip()
