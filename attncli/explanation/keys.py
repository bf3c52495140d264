"""The table of the keys of an explanation, from the raw score to the weight and its bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attncli.explanation.formulas import name_of
from attncli.view.labels import shorten, wrapped
from attncli.view.shading import painted, ramp_color
from attncli.view.tables import GAP, Column, drawn, remark, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from attncli.explanation.data import Explanation, KeyStep
    from attncli.view.limits import Limits

_HEADINGS = ("raw", "capped", "bias", "ALiBi", "score", "shifted", "exp", "weight")
# The columns that a narrow terminal shows: the formulas have the other numbers.
_NARROW = ("score", "weight")
# Columns of the terminal.
_LONGEST_BAR, _SHORTEST_BAR, _SHORTEST_NAME = 32, 8, 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


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


def key_table(e: Explanation, limits: Limits, width: int) -> Iterator[Text]:
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
    words = Column("", [row.words for row in rows], left=True)
    if limits.markdown:
        yield drawn([names, *columns, *([words] if any(words.cells) else [])], limits)
        return
    least = min(names.width, _SHORTEST_NAME) + _SHORTEST_BAR + 2 * GAP
    if width_of(columns) + least > width:
        columns = [column for column in columns if column.heading in _NARROW]
    room = max(1, width - width_of(columns) - 2 * GAP)
    names = _cut(names, max(1, min(names.width, room - _SHORTEST_BAR)), limits)
    room = max(0, room - names.width)
    words = _cut(words, room, limits)
    largest, bar = max(row.weight for row in rows), min(_LONGEST_BAR, room)
    bars = [_bar(row.weight / (largest or 1), bar, limits) for row in rows]
    ends = [own or drawing for own, drawing in zip(words.cells, bars, strict=True)]
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
