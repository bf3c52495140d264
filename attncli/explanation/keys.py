"""The table of the keys of an explanation, from the raw score to the weight and its bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.style import Style
from rich.text import Text

from attncli.explanation.formulas import name_of
from attncli.explanation.steps import key_name
from attncli.view.labels import shorten, text_width
from attncli.view.markdown import markdown_table, words
from attncli.view.shading import rich_blue
from attncli.view.wrapping import wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.explanation.data import Explanation, KeyStep
    from attncli.view.limits import Limits

__all__ = ["markdown_keys", "weight_table"]

_HEADINGS = ("raw", "capped", "bias", "ALiBi", "score", "shifted", "exp", "weight")
# Columns that a narrow terminal drops first: the formulas have these numbers too.
_DISPENSABLE = (("raw", "capped"), ("bias", "ALiBi"), ("shifted",), ("exp",))
_GAP = "  "
# Columns of the terminal.
_LONGEST_BAR, _SHORTEST_BAR, _SHORTEST_NAME = 32, 8, 8
_EIGHTHS = " ▏▎▍▌▋▊▉"


class _Row(NamedTuple):
    """A line of the table; a weight has a bar, and a hidden key words instead."""

    name: str
    cells: dict[str, float]
    weight: float = 0.0
    words: str = ""
    style: str = ""
    step: KeyStep | None = None


def _rows(e: Explanation) -> Iterator[_Row]:
    """Yield a row for each key, for the sink and the rest if there are any, and for the sums."""
    for step in e.steps:
        yield _key_row(e, step)
    shares = [step.weight for step in e.steps]
    if e.sink is not None:
        share = e.sink_exponential / e.denominator
        shifted = {"score": e.sink, "shifted": e.sink - e.shift}
        yield _Row("(sink)", shifted | {"exp": e.sink_exponential, "weight": share}, share)
        shares.append(share)
    if e.rest is not None:
        told = f"{e.rest.seen:,} more" if e.rest.seen else f"{e.rest.hidden:,} hidden"
        sums = {"exp": e.rest.exponential, "weight": e.rest.weight}
        yield _Row(f"… {told}", sums, style="italic dim")
        shares.append(e.rest.weight)
    yield _Row("sum", {"exp": e.denominator, "weight": sum(shares)}, style="bold")


def _key_row(e: Explanation, step: KeyStep) -> _Row:
    name = name_of("k", step.index, step.label).text
    several = e.softcap is not None or e.has_bias or e.slope is not None
    cells = {
        "raw": step.raw if several else None,
        "capped": None if e.softcap is None else step.capped,
        "bias": step.bias if e.has_bias else None,
        "ALiBi": None if e.slope is None else -step.penalty,
        "score": step.score,
    }
    if not step.hidden:
        cells |= {"shifted": step.exponent, "exp": step.exponential, "weight": step.weight}
    return _Row(
        name if step.label is None else f"{step.index} {name}",
        {heading: x for heading, x in cells.items() if x is not None},
        step.weight,
        "hidden by " + ", ".join(reason.rule for reason in step.hidden) if step.hidden else "",
        "dim" if step.hidden else "",
        step,
    )


def _texts(rows: list[_Row], limits: Limits) -> tuple[list[str], list[dict[str, str]]]:
    """Return the headings of the columns that some row has a number for, and the numbers."""
    headings = [name for name in _HEADINGS if any(name in row.cells for row in rows)]
    return headings, [
        {name: limits.cell(value) for name, value in row.cells.items()} for row in rows
    ]


def markdown_keys(e: Explanation, limits: Limits) -> str:
    """Return the table in Markdown; a hidden key says why it has no more, and gets nothing."""
    rows = list(_rows(e))
    headings, texts = _texts(rows, limits)
    lines = []
    for row, own in zip(rows, texts, strict=True):
        cells = [own.get(heading, "") for heading in headings]
        if row.words:
            known = headings.index("score") + 1
            cells[known:] = [words(row.words), *["0"] * (len(cells) - known - 1)]
        name = words(row.name)
        if row.step is not None and not (row.step.label or "").strip():
            name = f"${key_name(e, row.step).latex}$"
        lines.append([name, *cells])
    return markdown_table(["key", *headings], lines)


def weight_table(e: Explanation, limits: Limits, width: int) -> Iterator[Text]:
    """Yield the lines of the table, none longer than the terminal is wide.

    If it is narrow, columns that the formulas also show are left out.
    """
    rows = list(_rows(e))
    headings, texts = _texts(rows, limits)
    widths = {
        name: max(len(name), *(len(cells.get(name, "")) for cells in texts)) for name in headings
    }
    names = max(len("key"), *(text_width(limits.known(row.name)) for row in rows))
    for dropped in _DISPENSABLE:
        if _total(widths) + min(names, _SHORTEST_NAME) + _SHORTEST_BAR > width:
            widths = {name: size for name, size in widths.items() if name not in dropped}
    names = max(1, min(names, width - _total(widths) - _SHORTEST_BAR))
    bar = max(0, min(_LONGEST_BAR, width - _total(widths) - names))
    head = "key".ljust(names) + "".join(f"{_GAP}{name:>{size}}" for name, size in widths.items())
    yield Text(head, style="bold", no_wrap=True)
    yield Text(("─" if limits.unicode else "-") * len(head), style="dim", no_wrap=True)
    largest = max(row.weight for row in rows)
    for row, cells in zip(rows, texts, strict=True):
        line = _line(row, cells, names, widths, limits)
        if row.words:
            room = max(0, width - text_width(line.plain))
            told = shorten(limits.known(row.words), room, ellipsis=limits.known("…"))
            yield line.append(told, style="italic")
            continue
        line.append(_bar(row.weight, largest, bar, limits))
        line.rstrip()
        yield line
    if largest and bar:
        told = f"bars: the longest is {limits.number(largest)}, the largest weight shown"
        lines = wrapped(limits.known(told).split(" "), width)
        yield from (Text(line, style="italic dim") for line in lines)


def _total(widths: dict[str, int]) -> int:
    """Return the columns that the numbers take, with the gaps around each."""
    return sum(widths.values()) + len(_GAP) * (len(widths) + 1)


def _line(
    row: _Row, cells: dict[str, str], names: int, widths: dict[str, int], limits: Limits
) -> Text:
    name = shorten(limits.known(row.name), names, ellipsis=limits.known("…"))
    line = Text(name + " " * (names - text_width(name)), style=row.style, no_wrap=True)
    for heading, size in widths.items():
        # Nothing follows a hidden score: words stand there instead.
        if row.words and heading not in cells:
            break
        line.append(_GAP + f"{cells.get(heading, ''):>{size}}")
    return line.append(_GAP)


def _bar(weight: float, largest: float, room: int, limits: Limits) -> Text:
    """Return a bar as long as the weight, darker blue where it is larger."""
    full, part = divmod(round(8 * room * weight / largest) if largest else 0, 8)
    if not limits.unicode:
        return Text("#" * (full + (part >= 4)))
    # Neither end of the ramp: bars must show on white and on black.
    style = Style(color=rich_blue(0.4 + 0.4 * weight, limits.depth))
    return Text("█" * full + _EIGHTHS[part].strip(), style=style)
