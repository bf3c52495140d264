"""What a file holds, as tables and as a mapping for JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.padding import Padding
from rich.text import Text

from attncli.errors.text import counted, printable
from attncli.view.labels import shorten, text_width
from attncli.view.lined import lined_table
from attncli.view.signs import known

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from attncli.checkpoints.layers import Widths
    from attncli.checkpoints.names import Layer
    from attncli.loading.info import FileInfo, MemberInfo

__all__ = ["LayerInfo", "info_dict", "info_parts"]

_GAP, _INDENT = 2, 4
# Letters of a note in a terminal, where it is wrapped, and in a pipe.
_NOTE_WIDTH, _LONG_NOTE = 240, 10_000
# What names, notes and texts of pictures may be folded to in a table.
_NAME_WIDTH, _LEAST_NOTE, _LEAST_TEXT = 16, 20, 30
_LEFT = ("shape", "dtype")
_HEADINGS = ("member", "shape", "dtype", "min", "max", "NaN/inf")
# Laying out a table takes seconds and gigabytes if a file claims a million members.
_MOST_ROWS = 1000


class LayerInfo(NamedTuple):
    """One attention layer of a checkpoint.

    Attributes
    ----------
    argument : str
        What to give to ``--checkpoint``.
    layer : Layer
    widths : Widths or None
        None where its members have shapes that no layer has.
    """

    argument: str
    layer: Layer
    widths: Widths | None


def info_parts(
    info: FileInfo,
    layers: Sequence[LayerInfo] = (),
    *,
    width: int | None = 80,
    unicode: bool = True,
) -> Iterator[RenderableType]:
    """Yield the tables of one file: its members, then its attention layers.

    Parameters
    ----------
    info : FileInfo
    layers : sequence of LayerInfo
    width : int or None
        Columns of the terminal: long notes are shortened, and a table that has no room becomes
        lines. None if there is no edge.
    unicode : bool
        Whether the terminal has more than ASCII.
    """
    kind = f" · {info.picture.upper()} picture" if info.picture else ""
    yield Text(printable(info.name) + kind, style="bold")
    if info.members:
        yield from _members(info.members[:_MOST_ROWS], width, unicode=unicode)
        yield from _rest(len(info.members), "member")
    if info.picture:
        yield from _texts(info, width, unicode=unicode)
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
    """Return one file as data for JSON: exact numbers, null if there is none.

    Parameters
    ----------
    info : FileInfo
    """
    found: dict[str, Any] = {"file": info.name}
    if info.picture:
        return found | {"picture": info.picture, "metadata": dict(info.texts)}
    found["members"] = [_member_dict(member) for member in info.members]
    found["layers"] = [_layer_dict(layer) for layer in layers]
    return found


def _members(
    members: tuple[MemberInfo, ...], width: int | None, *, unicode: bool
) -> Iterator[RenderableType]:
    """Yield a table of members; two lines for each if the table would lose columns."""
    rows = [[known(cell, unicode=unicode) for cell in _cells(member)] for member in members]
    notes = [known(_note(member.note or ""), unicode=unicode) for member in members]
    if width is not None:
        cut = known("…", unicode=unicode)
        notes = [shorten(note, _NOTE_WIDTH, ellipsis=cut) for note in notes]
    if width is not None and _needed(rows, notes) > width:
        for (name, *cells), note in zip(rows, notes, strict=True):
            yield Text(name, overflow="fold")
            yield _indented(f"{_in_words(*cells)}{note and f': {note}'}")
        return
    table = lined_table(_GAP)
    # A name is for pasting: in a narrow terminal it is folded, never cut.
    least = _folded([name for name, *_ in rows], _NAME_WIDTH)
    table.add_column(_HEADINGS[0], overflow="fold", min_width=least)
    for heading in _HEADINGS[1:]:
        table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
    if any(notes):
        table.add_column("note", overflow="fold", min_width=_folded(notes, _LEAST_NOTE))
    for cells, note in zip(rows, notes, strict=True):
        table.add_row(*map(Text, cells), *([Text(note)] if any(notes) else []))
    yield table


def _cells(member: MemberInfo) -> list[str]:
    return [printable(member.name), _shape(member.shape), member.dtype, *_numbers(member)]


def _needed(rows: list[list[str]], notes: list[str]) -> int:
    """Return the columns of a terminal that the table needs, its names and notes folded."""
    columns = zip(_HEADINGS, *rows, strict=True)
    names, *others = columns
    widths = [max(map(text_width, column)) for column in others]
    if any(notes):
        widths.append(_folded(notes, _LEAST_NOTE))
    return _folded(names, _NAME_WIDTH) + sum(widths) + _GAP * len(widths)


def _folded(texts: Iterable[str], width: int) -> int:
    """Return how wide a column of texts is, or so much of it as they can be folded to."""
    return min(width, max(map(text_width, texts)))


def _in_words(shape: str, dtype: str, least: str, most: str, nonfinite: str) -> str:
    """Return a row of the table in words, with headings as needed."""
    words = " ".join(part for part in (shape, dtype) if part)
    if least:
        words += f", {least} to {most}"
    if nonfinite == "0":
        nonfinite = "all finite"
    return f"{words}, {nonfinite}" if nonfinite else words


def _note(text: str) -> str:
    # A table measures every word: a text of megabytes would take seconds.
    half = _LONG_NOTE // 2
    return printable(text if len(text) <= _LONG_NOTE else f"{text[:half]} … {text[-half:]}")


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


def _numbers(member: MemberInfo) -> tuple[str, str, str]:
    if member.numbers is None:
        return "", "", ""
    ends = (member.numbers.minimum, member.numbers.maximum)
    least, most = ("" if end is None else _number(end) for end in ends)
    odd = member.numbers
    counts = (("NaN", odd.nan), ("inf", odd.inf), ("-inf", odd.minus_inf))
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
    text = f"names as in {info.layer.family}; widths: X {widths.embedding}, {made}, {output}"
    yield _indented(text, "dim")
    if info.layer.not_applied:
        names = ", ".join(map(printable, info.layer.not_applied))
        yield _indented(f"attncli does not apply {names}", "dim italic")


def _indented(words: str, style: str = "") -> Padding:
    """Return words of the line above, which keep their indent where they are wrapped."""
    return Padding(Text(words, style, overflow="fold"), (0, 0, 0, _INDENT), expand=False)


def _texts(info: FileInfo, width: int | None, *, unicode: bool) -> Iterator[RenderableType]:
    """Yield a table of what a picture says of itself; lines if its texts have no room."""
    if not info.texts:
        yield Text("no metadata about how it was made", style="dim italic")
        return
    rows = [
        [known(_note(text), unicode=unicode) for text in (name, info.texts[name])]
        for name in info.texts
    ]
    names = max(text_width(name) for name, _ in rows)
    texts = _folded([text for _, text in rows], _LEAST_TEXT)
    if width is not None and names + _GAP + texts > width:
        for name, text in rows:
            yield Text(f"{name}: {text}", overflow="fold")
        return
    table = lined_table(_GAP)
    table.add_column("metadata", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    yield table


def _member_dict(member: MemberInfo) -> dict[str, Any]:
    numbers = member.numbers
    return {
        "name": member.name,
        "shape": list(member.shape),
        "dtype": member.dtype,
        "min": None if numbers is None else numbers.minimum,
        "max": None if numbers is None else numbers.maximum,
        "nonfinite": None if numbers is None else numbers.nonfinite,
        "nan": None if numbers is None else numbers.nan,
        "inf": None if numbers is None else numbers.inf,
        "minus_inf": None if numbers is None else numbers.minus_inf,
        "note": member.note,
    }


def _layer_dict(info: LayerInfo) -> dict[str, Any]:
    widths = info.widths
    return {
        "checkpoint": info.argument,
        "family": info.layer.family,
        "members": dict(info.layer.members),
        "not_applied": list(info.layer.not_applied),
        "widths": None
        if widths is None
        else {
            "embedding": widths.embedding,
            "query": widths.query,
            "key": widths.key,
            "value": widths.value,
            "output": widths.output,
            "joint": widths.joint,
        },
    }
