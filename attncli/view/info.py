"""What a file holds, as tables and as a mapping for JSON."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.padding import Padding
from rich.text import Text

from attncli.errors.text import counted, printable
from attncli.view.labels import shorten
from attncli.view.tables import Column, drawn, width_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from attncli.checkpoints.layers import Widths
    from attncli.checkpoints.names import Layer
    from attncli.loading.contents import Member
    from attncli.loading.info import FileInfo
    from attncli.view.limits import Limits

_INDENT = 4
# Letters of a note in a terminal, where it is wrapped, and in a pipe.
_NOTE_WIDTH, _LONG_NOTE = 240, 10_000
_LEFT = ("member", "shape", "dtype", "note")
_HEADINGS = ("member", "shape", "dtype", "min", "max", "NaN/inf", "note")
# Laying out a table takes seconds and gigabytes if a file claims a million members.
_MOST_ROWS = 1000


class LayerInfo(NamedTuple):
    """One attention layer of a checkpoint."""

    argument: str  # for ``--checkpoint``
    layer: Layer
    widths: Widths | None  # None where its members have shapes that no layer has


def info_parts(
    info: FileInfo, layers: Sequence[LayerInfo], limits: Limits
) -> Iterator[RenderableType]:
    """Yield the tables of one file: its members, then its attention layers."""
    kind = f" · {info.picture.upper()} picture" if info.picture else ""
    yield Text(printable(info.name) + kind, style="bold")
    if info.members:
        yield from _members(info.members[:_MOST_ROWS], limits)
        yield from _rest(len(info.members), "member")
    if info.picture:
        yield from _texts(info, limits)
    if layers:
        yield Text("")
        yield Text(counted(len(layers), "attention layer"), style="bold")
        for layer in layers[:_MOST_ROWS]:
            yield from _layer_lines(layer)
        yield from _rest(len(layers), "layer")
    yield Text("")


def _rest(count: int, noun: str) -> Iterator[Text]:
    if count > _MOST_ROWS:
        more = counted(count - _MOST_ROWS, f"more {noun}")
        yield Text(f"… {more} (--format json has all)", style="dim italic")


def info_dict(info: FileInfo, layers: Sequence[LayerInfo] = ()) -> dict[str, Any]:
    """Return one file as data for JSON: exact numbers, null if there is none."""
    found: dict[str, Any] = {"file": info.name}
    if info.picture:
        return found | {"picture": info.picture, "metadata": dict(info.texts)}
    found["members"] = [_member_dict(member) for member in info.members]
    found["layers"] = [_layer_dict(layer) for layer in layers]
    return found


def _members(members: tuple[Member, ...], limits: Limits) -> Iterator[RenderableType]:
    rows = [_cells(member, limits) for member in members]
    columns = [
        Column(name, cells, name in _LEFT)
        for name, cells in zip(_HEADINGS, zip(*rows, strict=True), strict=True)
        if name != "note" or any(cells)
    ]
    yield from _table(columns, limits)


def _table(columns: Sequence[Column], limits: Limits) -> Iterator[RenderableType]:
    """Yield a table; in a narrow terminal, the first cell of each row and the others below it."""
    if limits.width is None or width_of(columns) <= limits.width:
        yield drawn(columns, limits)
        return
    names, *others = columns
    for number, name in enumerate(names.cells):
        yield Text(name, overflow="fold")  # a name is for pasting: it is never cut
        cells = [(column.heading, column.cells[number]) for column in others]
        yield _indented(", ".join(f"{heading} {cell}".strip() for heading, cell in cells if cell))


def _cells(member: Member, limits: Limits) -> list[str]:
    note = limits.known(_note(member.note or ""))
    if limits.width is not None:
        note = shorten(note, _NOTE_WIDTH, ellipsis=limits.known("…"))
    shape = "×".join(map(str, member.shape))
    cells = [printable(member.name), shape, member.dtype, *_numbers(member)]
    return [*map(limits.known, cells), note]


def _note(text: str) -> str:
    # A table measures every word: a text of megabytes would take seconds.
    half = _LONG_NOTE // 2
    return printable(text if len(text) <= _LONG_NOTE else f"{text[:half]} … {text[-half:]}")


def _numbers(member: Member) -> tuple[str, str, str]:
    if member.numbers is None:
        return "", "", ""
    told = member.numbers
    least, most = ("" if end is None else _number(end) for end in (told.minimum, told.maximum))
    counts = (("NaN", told.nan), ("inf", told.inf), ("-inf", told.minus_inf))
    return least, most, ", ".join(f"{count:,} {kind}" for kind, count in counts if count) or "0"


def _number(value: float) -> str:
    # Integers and booleans are shown whole.
    return f"{value:.4g}" if type(value) is float else str(value).lower()


def _layer_lines(info: LayerInfo) -> Iterator[RenderableType]:
    # Lines, not a table: an argument to paste must never be cut.
    yield Text(f"--checkpoint {printable(shlex.quote(info.argument))}", overflow="fold")
    widths = info.widths
    if widths is None:
        yield _indented("the shapes of its members fit no attention layer", "dim italic")
        return
    output = "no output projection" if widths.output is None else f"output {widths.output}"
    made = f"query {widths.query}, key {widths.key}, value {widths.value}"
    if widths.joint is not None:
        made = f"query, key and value together {widths.joint} (give --heads)"
    text = f"names as in {info.layer.kind.name}; widths: X {widths.embedding}, {made}, {output}"
    yield _indented(text, "dim")
    if info.layer.not_applied:
        names = ", ".join(map(printable, info.layer.not_applied))
        yield _indented(f"attncli does not apply {names}", "dim italic")


def _indented(words: str, style: str = "") -> Padding:
    """Return words about the line above, indented on every line when they wrap."""
    return Padding(Text(words, style, overflow="fold"), (0, 0, 0, _INDENT), expand=False)


def _texts(info: FileInfo, limits: Limits) -> Iterator[RenderableType]:
    if not info.texts:
        yield Text("no metadata about how it was made", style="dim italic")
        return
    names, texts = (
        [limits.known(_note(text)) for text in some] for some in (info.texts, info.texts.values())
    )
    columns = [Column("metadata", names, left=True), Column("", texts, left=True)]
    yield from _table(columns, limits)


def _member_dict(member: Member) -> dict[str, Any]:
    numbers = member.numbers
    told = ("minimum", "maximum", "nonfinite", "nan", "inf", "minus_inf")
    least, most, *counts = (None if numbers is None else getattr(numbers, name) for name in told)
    found = {"name": member.name, "shape": list(member.shape), "dtype": member.dtype}
    ends = {"min": least, "max": most, **dict(zip(told[2:], counts, strict=True))}
    return found | ends | {"note": member.note}


def _layer_dict(info: LayerInfo) -> dict[str, Any]:
    return {
        "checkpoint": info.argument,
        "family": info.layer.kind.name,
        "members": dict(info.layer.members),
        "not_applied": list(info.layer.not_applied),
        "widths": None if info.widths is None else asdict(info.widths),
    }
