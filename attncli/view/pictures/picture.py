"""What a picture shows, before anything is drawn: cells, labels, scale and notes.

Terminal and file pictures start from the same `Picture`, so both show the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from attncli.errors import ShapeError
from attncli.errors.text import label_text, printable
from attncli.view.pictures.scale import cell_texts, limits, number_text
from attncli.view.sinks import SINK_NOTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.view.pictures.panel import Panel, What

__all__ = ["Picture", "crop_words", "make_picture", "rescaled"]

# Below this many units of the last digit, numbers are shown with significant digits.
_FEW_UNITS = 5
_FILL_NOTE = "the scale leaves out scores so low that they hide a key"
_FILL_HINT = "--vmax takes them in"
_SCALE_HINT = "--vmax 1 for all of it, --log for small weights beside large ones"


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels on one colour scale, with their labels.

    Attributes
    ----------
    panels : tuple of Panel
        All of one shape.
    what : {"weights", "scores", "difference"}
        Weights run from 0; scores and differences are symmetric around 0.
    rows, columns : int
        How many queries and keys are shown; more than the cells where pooled.
    block : (int, int)
        Queries and keys that one cell stands for; (1, 1) where nothing is pooled.
    row_start, column_start : int
        Index of the first query and key shown, above 0 for a crop.
    whole : (int, int)
        Queries and keys that there are; more than are shown of a crop.
    query_labels, key_labels : tuple of str or None
        One for each query and key shown, free of control characters.
    title : str or None
    vmin, vmax : float
        Ends of the colour scale.
    log : bool
        The scale is logarithmic.
    rows_are, columns_are : str
        Names of the vertical and the horizontal axis.
    query : str or None
        The only query, where rows are heads.
    group : int or None
        So many panels that follow each other are the heads of one batch entry.
    free : bool
        No end of the scale is given: it follows the cells.
    sinks : bool
        Weights of a row add up to less than 1, because a sink takes the rest.
    rounding : float
        Differences up to this are ones of rounding.
    than : str or None
        What was subtracted, as it stands behind "more than".
    """

    panels: tuple[Panel, ...]
    what: What
    rows: int
    columns: int
    block: tuple[int, int]
    row_start: int
    column_start: int
    whole: tuple[int, int]
    query_labels: tuple[str, ...] | None
    key_labels: tuple[str, ...] | None
    title: str | None
    vmin: float
    vmax: float
    log: bool
    rows_are: str = "Queries"
    columns_are: str = "Keys"
    query: str | None = None
    group: int | None = None
    free: bool = False
    sinks: bool = False
    rounding: float = 0.0
    than: str | None = None

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of cells in each panel."""
        rows, columns = self.panels[0].values.shape
        return rows, columns

    def spans(self, axis: int) -> list[tuple[int, int]]:
        """Return the first and last query (axis 0) or key (1) of each row or column of cells."""
        length, block = (self.rows, self.columns)[axis], self.block[axis]
        return [(first, min(first + block, length) - 1) for first in range(0, length, block)]

    @property
    def signed(self) -> bool:
        """Whether the values have both signs."""
        return self.what != "weights"

    def texts(self, panel: Panel, digits: int) -> list[list[str]]:
        """Return the number of each cell of a panel, with digits after the point that show it.

        On a logarithmic scale, and if nearly all would read 0, the digits are significant
        ones; whoever asks for none gets whole numbers.
        """
        largest = max(float(np.abs(panel.values).max()) for panel in self.panels)
        few = digits > 0 and 0 < largest < _FEW_UNITS * 10.0**-digits
        significant = self.log or few
        return cell_texts(panel, digits, significant=significant)

    @property
    def any_hidden(self) -> bool:
        """Whether some cell is hidden."""
        return any(bool(panel.hidden.any()) for panel in self.panels)

    @property
    def saturated(self) -> tuple[bool, bool]:
        """Whether cells lie below `vmin` (only on a log scale, for weights) and above `vmax`."""
        least = min(float(np.min(p.values[~p.hidden], initial=self.vmin)) for p in self.panels)
        return bool(least < self.vmin), any(
            float(np.max(panel.values)) > self.vmax for panel in self.panels
        )

    @property
    def note(self) -> str | None:
        """What pooling did to the cells, in one sentence; None if nothing was pooled."""
        if self.block == (1, 1):
            return None
        kind = "strongest" if self.signed else "largest"
        # No-break spaces keep the two numbers on one line.
        count = f"{self.block[0]}\u00a0×\u00a0{self.block[1]}"
        names = {"weights": "weights", "scores": "scores", "difference": "differences"}
        return f"each cell shows the {kind} of {count} {names[self.what]}"

    @property
    def crop_note(self) -> str | None:
        """Which part of the map is shown, as its rows need not add up to 1; None for all of it."""
        across = self.columns_are.lower()
        rows, columns = (
            (start, start + count)
            for start, count in ((self.row_start, self.rows), (self.column_start, self.columns))
        )
        parts = [self.query] if self.query else []
        if self.rows < self.whole[0]:
            words = "query", self.rows_are.lower()
            parts.append(crop_words(*words, rows, self.whole[0], self.query_labels))
        if self.columns < self.whole[1]:
            words = across[:-1], across
            parts.append(crop_words(*words, columns, self.whole[1], self.key_labels))
        return ", ".join(parts) or None

    @property
    def scale_names(self) -> tuple[str, ...]:
        """What the colours mean, and the same in fewer words."""
        if self.than is not None:
            return f"above 0: more than {self.than}", "above 0: more"
        name = {"weights": "weight", "scores": "score", "difference": "difference"}[self.what]
        return (f"{name} (log scale)", name) if self.log else (name,)

    @property
    def scale_note(self) -> str | None:
        """That the scale ends before the largest weight or lowest score; None if it does not."""
        if not self.free:
            return None
        below, above = self.saturated
        if self.signed:
            return _FILL_NOTE if below else None
        if not above:
            return None
        largest = max(float(np.max(panel.values)) for panel in self.panels)
        return f"the scale ends at {number_text(self.vmax)}, the largest weight is {largest:.3g}"

    @property
    def scale_advice(self) -> str | None:
        """The scale's note, with the options that change it."""
        note = self.scale_note
        return note and f"{note} ({_FILL_HINT if self.signed else _SCALE_HINT})"

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader must know about the cells, in a sentence each."""
        notes = self.crop_note, self.note, self.sink_note, self.equal_note, self.scale_note
        return tuple(note for note in notes if note)

    @property
    def equal_note(self) -> str | None:
        """That there is no difference; None if there is one, or none is drawn."""
        if self.what != "difference":
            return None
        largest = max(float(np.abs(panel.values).max()) for panel in self.panels)
        if largest == 0:
            return "no difference: all of these numbers are equal"
        return "equal up to rounding" if largest <= self.rounding else None

    @property
    def sink_note(self) -> str | None:
        """Why rows do not add up to 1; None if they do."""
        return SINK_NOTE if self.sinks and self.what == "weights" else None


def crop_words(
    one: str, several: str, span: tuple[int, int], whole: int, labels: Sequence[str] | None
) -> str:
    """Return which of so many rows or columns are shown, from the first to the one behind them."""
    start, stop = span
    if stop - start == 1:
        return f"{one} {start}{f', {label_text(labels[0])}' if labels else ''} (one of {whole})"
    return f"{several} {start} to {stop - 1} of {whole}"


def make_picture(
    panels: Sequence[Panel],
    *,
    what: What = "weights",
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    row_start: int = 0,
    column_start: int = 0,
    title: str | None = None,
    vmax: float | Literal["auto"] = "auto",
    log: bool = False,
    shape: tuple[int, int] | None = None,
    whole: tuple[int, int] | None = None,
    block: tuple[int, int] = (1, 1),
    rows_are: str = "Queries",
    columns_are: str = "Keys",
    query: str | None = None,
    group: int | None = None,
    sinks: bool = False,
    rounding: float = 0.0,
    than: str | None = None,
) -> Picture:
    """Put panels on one colour scale.

    Parameters
    ----------
    panels : sequence of Panel
        At least one, all of one shape.
    what : {"weights", "scores", "difference"}
    query_labels, key_labels : sequence of str, optional
        One for each query and key shown; their indices are drawn if not given.
    row_start, column_start : int
        Index of the first query and key shown.
    title : str, optional
    vmax : float or "auto"
        Upper end of the scale; "auto" is the largest magnitude in any panel, unless few
        weights are so large that all others would look white.
    log : bool
        Logarithmic scale, for weights only.
    shape : (int, int), optional
        Queries and keys shown; the cells of a panel unless pooled.
    whole : (int, int), optional
        Queries and keys that there are; those shown unless given.
    block : (int, int)
        Queries and keys that one cell stands for, as in `Pooler.block`.
    rows_are, columns_are : str
        Names of the vertical and the horizontal axis.
    query : str, optional
        The only query, where rows are heads.
    group : int, optional
        So many panels that follow each other are the heads of one batch entry.
    sinks : bool
        Weights of a row add up to less than 1, because a sink takes the rest.
    rounding : float
        Differences up to this are ones of rounding.
    than : str, optional
        What was subtracted, as it stands behind "more than".

    Raises
    ------
    ShapeError
        Panels or labels do not fit each other.
    UsageError
        `vmax` is not a positive finite number, or `log` is asked for with signed values.
    DataError
        Weights are negative.
    """
    _check_panels(panels)
    rows, columns = shape or panels[0].values.shape
    pooled = block != (1, 1)
    signed, filled = what != "weights", what == "scores"
    vmin, top = limits(panels, vmax, signed=signed, log=log, pooled=pooled, filled=filled)
    return Picture(
        panels=tuple(panels),
        what=what,
        rows=rows,
        columns=columns,
        block=block,
        row_start=row_start,
        column_start=column_start,
        whole=whole or (rows, columns),
        query_labels=_checked_labels(query_labels, rows, "query labels", rows_are.lower()),
        key_labels=_checked_labels(key_labels, columns, "key labels", "keys"),
        title=None if title is None else "\n".join(map(printable, title.splitlines())),
        vmin=vmin,
        vmax=top,
        log=log,
        rows_are=rows_are,
        columns_are=columns_are,
        query=query,
        group=group,
        free=vmax == "auto" and what != "difference" and not log,
        sinks=sinks,
        rounding=rounding,
        than=None if than is None else printable(than),
    )


def rescaled(picture: Picture) -> Picture:
    """Return a picture whose scale, if it is free, follows the cells that are left."""
    if not picture.free:
        return picture
    pooled, signed = picture.block != (1, 1), picture.signed
    ends = limits(picture.panels, "auto", signed=signed, log=False, pooled=pooled, filled=signed)
    return replace(picture, vmin=ends[0], vmax=ends[1])


def _check_panels(panels: Sequence[Panel]) -> None:
    shapes = {panel.values.shape for panel in panels}
    if len(shapes) != 1:
        message = f"the panels of a picture must have one shape, found {sorted(shapes)}"
        raise ShapeError(message)


def _checked_labels(
    labels: Sequence[str] | None, count: int, name: str, of: str
) -> tuple[str, ...] | None:
    if labels is None:
        return None
    if len(labels) != count:
        raise ShapeError(f"{name}: expected {count}, one for each of the {of}; found {len(labels)}")
    return tuple(label_text(label) for label in labels)
