"""Matrices as tables: labelled, cropped to what fits, and shaded by weight."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.text import label_text
from attncli.view.labels import shorten_all
from attncli.view.shading import hidden_shade, shade
from attncli.view.tables import Column, drawn, groups, heading, remark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.style import Style
    from rich.text import Text

    from attncli.view.tables import Limits

__all__ = ["Sheet", "sheet_parts"]

# Columns of the terminal.
_LABEL_WIDTH, _LEAST_LABEL, _HEADING_WIDTH, _GAP = 24, 4, 12, 2
# Rich draws about 100,000 shaded cells in a second: a larger table has none.
_MANY_CELLS = 20_000
# Numbers from the one on have powers of ten; so have others, if some lie between the two.
_HUGE, _USUAL = 1e6, 1e4
_ONE = {"queries": "query", "keys": "key", "columns": "column"}


class Sheet(NamedTuple):
    """One matrix to show.

    Attributes
    ----------
    title : str
    values : ndarray (rows shown, columns)
    row_count, column_count : int
        How many there are in all: more than ``values`` has if it is cropped.
    row_labels, column_labels : sequence of str or None
        The indices are shown if there are none.
    rows_are, columns_are : str
        ``queries``, ``keys``, ``columns``: for the line that says what was left out.
    shaded : bool
        Larger numbers are darker blue: for weights.
    hidden : ndarray of bool (rows shown, columns), or None
        Which keys are hidden: grey where numbers are shaded.
    """

    title: str
    values: npt.NDArray[Any]
    row_count: int
    column_count: int
    row_labels: Sequence[str] | None
    column_labels: Sequence[str] | None
    rows_are: str
    columns_are: str
    shaded: bool = False
    hidden: npt.NDArray[np.bool_] | None = None


def sheet_parts(sheets: Iterable[Sheet], limits: Limits) -> Iterator[Text]:
    """Yield the tables, in whose colours the same weight is the same blue, and what these mean.

    With colours, all sheets are made before the first one is drawn.
    """
    if limits.depth == "none":
        for sheet in sheets:
            yield from _parts(sheet, limits)
        return
    sheets = list(sheets)
    shaded = [sheet for sheet in sheets if sheet.shaded]
    largest = max((_largest(sheet, limits) for sheet in shaded), default=0.0)
    for sheet in sheets:
        last = bool(shaded) and sheet is shaded[-1]
        legend = _legend(shaded, largest, limits) if last else ""
        yield from _parts(sheet, limits, largest, legend)


def _legend(shaded: Sequence[Sheet], largest: float, limits: Limits) -> str:
    """Return what the colours mean, which is said once for all tables of weights."""
    ((number,),) = _cell_texts(np.array([[largest]]), limits.digits)
    told = [f"darkest blue: {number}"] if largest else []
    for sheet in shaded:
        rows, count = _most(sheet, limits)
        if sheet.hidden is not None and sheet.hidden[:rows, :count].any():
            return " · ".join([*told, "grey: hidden"])
    return told[0] if told else ""


def _most(sheet: Sheet, limits: Limits) -> tuple[int, int]:
    """Return how many rows and columns are shown at most."""
    rows, count = sheet.values.shape
    count = min(count, limits.columns or count)
    return min(rows, limits.rows or rows), (
        count if limits.stacked else min(count, limits.width or count)
    )


def _largest(sheet: Sheet, limits: Limits) -> float:
    """Return the largest number that is shown; 0 where none is positive."""
    rows, count = _most(sheet, limits)
    shown = sheet.values[:rows, :count]
    return float(np.max(shown, initial=0.0, where=np.isfinite(shown)))


def _parts(sheet: Sheet, limits: Limits, largest: float = 0.0, legend: str = "") -> Iterator[Text]:
    """Yield the title, the table, and a line that says what was left out."""
    rows, count = _most(sheet, limits)
    texts = _cell_texts(sheet.values[:rows, :count], limits.digits)
    names, headings = _names_and_headings(sheet, texts, count, limits)
    shaded = sheet.shaded and limits.depth != "none" and rows * count <= _MANY_CELLS
    styles = _shades(sheet, rows, count, largest, limits) if shaded else [[]] * count
    cells: Iterable[Sequence[str]] = zip(*texts, strict=True) if texts else [()] * count
    columns = [
        Column(told, cell, styles=style)
        for told, cell, style in zip(headings, cells, styles, strict=True)
    ]
    bold = ["bold"] * rows if limits.depth != "none" else []
    fixed = [Column("", names, limits.markdown, bold)]
    fitting = groups(fixed, columns, limits.width)
    yield heading(sheet.title, limits)
    shown = fitting if limits.stacked else fitting[:1]
    for number, group in enumerate(shown):
        if number:
            yield remark("", limits)
        yield drawn([*fixed, *group], limits)
    if legend:
        yield remark(legend, limits)
    if left_out := _left_out(sheet, rows, sum(map(len, shown))):
        yield remark(left_out, limits)
    yield remark("", limits)


def _names_and_headings(
    sheet: Sheet, texts: list[list[str]], count: int, limits: Limits
) -> tuple[list[str], list[str]]:
    """Return the labels of rows and columns, which leave room for the numbers."""
    widest = max(map(len, chain.from_iterable(texts)), default=1)
    room = _LABEL_WIDTH if limits.width is None else limits.width - _GAP - widest
    longest = max(_LEAST_LABEL, min(_LABEL_WIDTH, room))
    names = _labels(sheet.row_labels, len(texts), longest, limits)
    taken = Column("", names).width
    room = _HEADING_WIDTH if limits.width is None else limits.width - _GAP - taken
    room = max(widest, min(_HEADING_WIDTH, room))
    return names, _labels(sheet.column_labels, count, room, limits)


def _labels(labels: Sequence[str] | None, count: int, longest: int, limits: Limits) -> list[str]:
    if labels is None:
        return [str(index) for index in range(count)]
    names = [limits.known(label_text(label)) for label in labels[:count]]
    return shorten_all(names, longest, ellipsis=limits.known("…"))


def _cell_texts(values: npt.NDArray[Any], digits: int) -> list[list[str]]:
    """Return numbers in one notation for the whole table: fixed point unless that hides them.

    Huge ones among others, such as scores of keys that a bias of -1e9 hides, have one of their own.
    """
    sizes = np.abs(values[np.isfinite(values) & (values != 0)])
    huge = sizes >= _HUGE
    others = sizes[~huge]
    tiny = others.size and others.max() < 10.0 ** -max(digits - 1, 2)
    apart = huge.any() and not (huge | (sizes < _USUAL)).all()
    powers = f"{{:.{digits}e}}"
    fixed = powers if tiny or apart else f"{{:.{digits}f}}"
    texts = [
        [(powers if _HUGE <= abs(number) < np.inf else fixed).format(number) for number in row]
        for row in values.tolist()
    ]
    if not (np.signbit(values) & (np.abs(values) < 10.0**-digits)).any():
        return texts
    # A zero has no sign.
    return [[t[1:] if t[0] == "-" and float(t) == 0 else t for t in row] for row in texts]


def _shades(
    sheet: Sheet, rows: int, count: int, largest: float, limits: Limits
) -> list[list[Style]]:
    """Return the styles of the cells of each column."""
    shown = sheet.values[:rows, :count] / (largest or 1.0)
    hidden = np.zeros(shown.shape, np.bool_) if sheet.hidden is None else sheet.hidden
    grey = hidden_shade(limits.depth)
    return [
        [grey if gone else shade(part, limits.depth) for part, gone in zip(*column, strict=True)]
        for column in zip(shown.T.tolist(), hidden[:rows, :count].T.tolist(), strict=True)
    ]


def _left_out(sheet: Sheet, rows: int, count: int) -> str:
    missing = [
        (sheet.row_count - rows, sheet.rows_are, "--max-rows"),
        (sheet.column_count - count, sheet.columns_are, "--max-cols"),
    ]
    parts = [
        f"{number:,} more {_ONE.get(things, things) if number == 1 else things}"
        for number, things, _ in missing
        if number
    ]
    options = [option for number, _, option in missing if number]
    if not parts:
        return ""
    return f"… {' and '.join(parts)} ({', '.join(options)}; --save and --format json have all)"
