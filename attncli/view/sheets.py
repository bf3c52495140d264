"""Matrices as tables: labelled, cropped to what fits, and shaded by weight."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.text import label_text
from attncli.view.labels import shorten_all
from attncli.view.shading import hidden_shade, shade
from attncli.view.tables import GAP, Column, drawn, groups, heading, remark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.style import Style
    from rich.text import Text

    from attncli.view.limits import Limits

# Columns of the terminal.
_LABEL_WIDTH, _LEAST_LABEL, _HEADING_WIDTH = 24, 4, 12
# Most cells of a shaded table: Rich draws about 100,000 shaded cells a second.
_MANY_CELLS = 20_000
# From _HUGE on, numbers have powers of ten. If others lie between _USUAL and _HUGE, all have.
_HUGE, _USUAL = 1e6, 1e4
_ONE = {"queries": "query", "keys": "key", "columns": "column"}


class Sheet(NamedTuple):
    """One matrix to show; each pair belongs to its rows and its columns."""

    title: str
    values: npt.NDArray[Any]  # the rows that are shown
    counts: tuple[int, int]  # how many there are in all
    labels: tuple[Sequence[str] | None, Sequence[str] | None] = (None, None)
    are: tuple[str, str] = ("queries", "keys")  # for the line that says what was left out
    shaded: bool = False  # larger numbers are darker blue: for weights
    hidden: npt.NDArray[np.bool_] | None = None  # grey where numbers are shaded

    def cut(self, limits: Limits) -> Sheet:
        """Return the rows and columns that may be shown."""
        rows, columns = self.values.shape
        columns = min(columns, limits.columns or columns)
        if not limits.stacked:  # each takes a column of the terminal at least
            columns = min(columns, limits.width or columns)
        part = slice(min(rows, limits.rows or rows)), slice(columns)
        hidden = None if self.hidden is None else self.hidden[part]
        return self._replace(values=self.values[part], hidden=hidden)


def sheet_parts(sheets: Iterable[Sheet], limits: Limits) -> Iterator[Text]:
    """Yield the tables, which share one scale of blue, and the legend of its colours."""
    cut = (sheet.cut(limits) for sheet in sheets)
    if limits.depth == "none":
        for sheet in cut:
            yield from _parts(sheet, limits)
        return
    found = [*cut]
    shaded = [sheet for sheet in found if sheet.shaded]
    largest = max(map(_largest, shaded), default=0.0)
    for sheet in found:
        last = bool(shaded) and sheet is shaded[-1]
        yield from _parts(sheet, limits, largest, _legend(shaded, largest, limits) if last else "")


def _largest(sheet: Sheet) -> float:
    return float(np.max(sheet.values, initial=0.0, where=np.isfinite(sheet.values)))


def _legend(shaded: Sequence[Sheet], largest: float, limits: Limits) -> str:
    """Return what the colours of all tables mean."""
    ((number,),) = _cell_texts(np.array([[largest]]), limits.digits)
    told = [f"darkest blue: {number}"] if largest else []
    if any(sheet.hidden is not None and sheet.hidden.any() for sheet in shaded):
        told.append("grey: hidden")
    return " · ".join(told)


def _parts(sheet: Sheet, limits: Limits, largest: float = 0.0, legend: str = "") -> Iterator[Text]:
    rows, count = sheet.values.shape
    texts = _cell_texts(sheet.values, limits.digits)
    names, headings = _names_and_headings(sheet, texts, limits)
    colored = limits.depth != "none"
    shaded = sheet.shaded and colored and rows * count <= _MANY_CELLS
    styles = _shades(sheet, largest, limits) if shaded else [[]] * count
    cells: Iterable[Sequence[str]] = zip(*texts, strict=True) if texts else [()] * count
    columns = [
        Column(told, cell, styles=style)
        for told, cell, style in zip(headings, cells, styles, strict=True)
    ]
    fixed = [Column("", names, limits.markdown, ["bold"] * rows if colored else [])]
    fitting = groups(fixed, columns, limits.width)
    shown = fitting if limits.stacked else fitting[:1]
    yield heading(sheet.title, limits)
    for number, group in enumerate(shown):
        if number:
            yield remark("", limits)
        yield drawn([*fixed, *group], limits)
    for words in (legend, _left_out(sheet, (rows, sum(map(len, shown))))):
        if words:
            yield remark(words, limits)
    yield remark("", limits)


def _names_and_headings(
    sheet: Sheet, texts: list[list[str]], limits: Limits
) -> tuple[list[str], list[str]]:
    """Return the labels of rows and columns, which leave room for the numbers."""
    rows, count = sheet.values.shape
    widest = max(map(len, chain.from_iterable(texts)), default=1)
    room = _LABEL_WIDTH if limits.width is None else limits.width - GAP - widest
    longest = max(_LEAST_LABEL, min(_LABEL_WIDTH, room))
    names = _labels(sheet.labels[0], rows, longest, limits)
    taken = Column("", names).width
    room = _HEADING_WIDTH if limits.width is None else limits.width - GAP - taken
    room = max(widest, min(_HEADING_WIDTH, room))
    return names, _labels(sheet.labels[1], count, room, limits)


def _labels(labels: Sequence[str] | None, count: int, longest: int, limits: Limits) -> list[str]:
    if labels is None:
        return [str(index) for index in range(count)]
    names = [limits.known(label_text(label)) for label in labels[:count]]
    return shorten_all(names, longest, ellipsis=limits.known("…"))


def _cell_texts(values: npt.NDArray[Any], digits: int) -> list[list[str]]:
    """Return numbers in fixed point, unless that hides them; huge ones have powers of ten."""
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    huge = sizes >= _HUGE
    others = sizes[~huge]
    tiny = others.size and others.max() < 10.0 ** -max(digits - 1, 2)
    apart = huge.any() and not (huge | (sizes < _USUAL)).all()
    powers = f"{{:z.{digits}e}}"  # a zero has no sign
    fixed = powers if tiny or apart else f"{{:z.{digits}f}}"
    return [
        [(powers if _HUGE <= abs(number) < np.inf else fixed).format(number) for number in row]
        for row in values.tolist()
    ]


def _shades(sheet: Sheet, largest: float, limits: Limits) -> list[list[Style]]:
    shares = sheet.values / (largest or 1.0)
    hidden = np.zeros(shares.shape, np.bool_) if sheet.hidden is None else sheet.hidden
    grey = hidden_shade(limits.depth)
    return [
        [grey if gone else shade(part, limits.depth) for part, gone in zip(*column, strict=True)]
        for column in zip(shares.T.tolist(), hidden.T.tolist(), strict=True)
    ]


def _left_out(sheet: Sheet, shown: tuple[int, int]) -> str:
    parts, options = [], []
    both = zip(sheet.counts, shown, sheet.are, ("--max-rows", "--max-cols"), strict=True)
    for count, told, things, option in both:
        if more := count - told:
            parts.append(f"{more:,} more {_ONE[things] if more == 1 else things}")
            options.append(option)
    if not parts:
        return ""
    return f"… {' and '.join(parts)} ({', '.join(options)}; --save and --format json have all)"
