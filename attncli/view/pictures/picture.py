"""What a picture shows, in a terminal or a file: cells, labels, scale and notes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.errors.text import label_text, printable
from attncli.view.pictures.scale import cell_texts, limits, number_text

if TYPE_CHECKING:
    from collections.abc import Sequence

Span: TypeAlias = tuple[int, int]

# Below this many units of the last digit, numbers are shown with significant digits.
_FEW_UNITS = 5
_FILL_NOTE = "the scale leaves out scores so low that they hide a key"
_FILL_HINT = "--vmax takes them in"
_SCALE_HINT = "--vmax 1 for all of it, --log for small weights beside large ones"
_ONE = {"Queries": "query", "Keys": "key", "Columns": "column", "Rows": "row", "Heads": "head"}


@dataclass(frozen=True)
class Look:
    """What a picture should show, and how it looks."""

    what: Literal["weights", "scores", "difference"] = "weights"
    title: str | None = None  # None for the usual one, empty for none
    rows: Span | None = None  # the first, and the one after the last; None for all
    columns: Span | None = None
    vmax: float | None = None  # end of the colour scale, above 0
    log: bool = False  # logarithmic colour scale, for weights only
    annotate: bool | None = None  # numbers in the cells; None where there are few
    digits: int = 2  # after the point in these numbers
    cmap: str | None = None  # a colour map of Matplotlib
    dpi: float = 150
    # Inches of a figure; an infinite height follows the cells' shape, None their number.
    size: tuple[float, float] | None = None
    font_size: float = 9.0  # points of a label; titles are larger
    transparent: bool = False
    math: bool = False  # ``$…$`` in titles and labels is a formula
    image: npt.NDArray[np.uint8] | None = None  # (height, width, 3), behind the cells of a figure
    smooth: bool = False  # over an image, colours run from the middle of a cell to the next
    scale_names: tuple[str, ...] = ()  # of the colour scale, the longest first; empty for usual

    @property
    def signed(self) -> bool:
        """Whether the values have both signs."""
        return self.what != "weights"


@dataclass(frozen=True, eq=False)
class Panel:
    """One map: the cells of one head."""

    values: npt.NDArray[np.floating[Any]]  # (rows, columns), finite; 0 where hidden
    hidden: npt.NDArray[np.bool_]  # cells that the query does not see
    title: str | None = None  # such as ``head 3``


@dataclass(frozen=True)
class Axis:
    """Rows or columns of all panels."""

    name: str  # a key of `_ONE`
    count: int  # how many are shown; more than the cells where pooled
    start: int = 0  # index of the first one
    whole: int | None = None  # how many there are; None if all are shown
    labels: tuple[str, ...] | None = None  # one for each that is shown
    block: int = 1  # how many of them a cell stands for

    @property
    def cells(self) -> int:
        """How many rows or columns of cells there are."""
        return -(-self.count // self.block)

    @property
    def spans(self) -> list[Span]:
        """The first and last query or key of each cell, counted from the first one shown."""
        starts = range(0, self.count, self.block)
        return [(first, min(first + self.block, self.count) - 1) for first in starts]

    @property
    def part(self) -> str:
        """Which part of all is shown."""
        if self.count == 1:
            label = f", {label_text(self.labels[0])}" if self.labels else ""
            return f"{_ONE[self.name]} {self.start}{label} (one of {self.whole})"
        return f"{self.name.lower()} {self.start} to {self.start + self.count - 1} of {self.whole}"

    @property
    def note(self) -> str | None:
        """The part that is shown, where weights need not add up to 1; None if all is shown."""
        return None if self.whole in (None, self.count) else self.part


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels of one shape on one colour scale, with their labels."""

    panels: tuple[Panel, ...]
    look: Look
    rows: Axis
    columns: Axis
    vmin: float  # ends of the colour scale
    vmax: float
    group: int | None  # this many panels in a row are the heads of one batch entry
    remarks: tuple[str, ...]  # more notes about the cells

    @property
    def scale_names(self) -> tuple[str, ...]:
        """The name of the colour scale, and shorter names."""
        own = self.look.what.removesuffix("s")
        return self.look.scale_names or ((f"{own} (log scale)", own) if self.look.log else (own,))

    @property
    def cells(self) -> tuple[int, int]:
        """Rows and columns of cells in each panel."""
        return self.rows.cells, self.columns.cells

    @property
    def pooled(self) -> bool:
        """Whether a cell stands for several weights."""
        return (self.rows.block, self.columns.block) != (1, 1)

    @property
    def free(self) -> bool:
        """Whether the scale follows the cells, and may end before the largest."""
        return self.look.vmax is None and self.look.what != "difference" and not self.look.log

    @property
    def largest(self) -> float:
        """The largest magnitude of all cells."""
        return max(float(np.abs(panel.values).max()) for panel in self.panels)

    @property
    def any_hidden(self) -> bool:
        """Whether some cell is hidden."""
        return any(bool(panel.hidden.any()) for panel in self.panels)

    @property
    def saturated(self) -> tuple[bool, bool]:
        """Whether visible cells lie below `vmin` and above `vmax`."""
        seen = [panel.values[~panel.hidden] for panel in self.panels]
        least = min(float(np.min(values, initial=self.vmin)) for values in seen)
        # Weights may lie below 0 by a rounding error.
        below = least < self.vmin and (self.look.signed or self.look.log)
        return below, any(float(np.max(v, initial=self.vmin)) > self.vmax for v in seen)

    def texts(self, panel: Panel) -> list[list[str]]:
        """Return the number of each cell of a panel, empty where hidden.

        The digits count decimals, or significant digits with ``log`` and where all would read 0.
        """
        digits = self.look.digits
        few = digits > 0 and 0 < self.largest < _FEW_UNITS * 10.0**-digits
        return cell_texts(panel, digits, significant=self.look.log or few)

    @property
    def note(self) -> str | None:
        """A note that cells were pooled; None if they were not."""
        if not self.pooled:
            return None
        kind = "strongest" if self.look.signed else "largest"
        things = "differences" if self.look.what == "difference" else self.look.what
        # No-break spaces keep the two numbers on one line.
        count = f"{self.rows.block}\u00a0×\u00a0{self.columns.block}"
        return f"each cell shows the {kind} of {count} {things}"

    @property
    def scale_note(self) -> str | None:
        """A note that a free scale ends before the largest weight or lowest score, or None."""
        below, above = self.saturated
        if self.free and self.look.signed:
            return _FILL_NOTE if below else None
        if not self.free or not above:
            return None
        end = number_text(self.vmax)
        return f"the scale ends at {end}, the largest weight is {self.largest:.3g}"

    @property
    def scale_advice(self) -> str | None:
        """The scale's note, with the options that change it."""
        note = self.scale_note
        return note and f"{note} ({_FILL_HINT if self.look.signed else _SCALE_HINT})"

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes about the cells; the scale has its own."""
        crop = ", ".join(note for note in (self.rows.note, self.columns.note) if note)
        return tuple(note for note in (crop, self.note, *self.remarks) if note)


def make_picture(
    panels: Sequence[Panel],
    axes: tuple[Axis, Axis],
    look: Look,
    *,
    group: int | None = None,
    remarks: tuple[str, ...] = (),
) -> Picture:
    """Put panels on one colour scale, and escape control characters in their labels."""
    if look.title is not None:
        look = replace(look, title="\n".join(map(printable, look.title.splitlines())))
    rows, columns = (
        replace(axis, labels=axis.labels and tuple(map(label_text, axis.labels))) for axis in axes
    )
    return scaled(Picture(tuple(panels), look, rows, columns, 0.0, 1.0, group, remarks))


def scaled(picture: Picture) -> Picture:
    """Return a picture whose scale fits its cells."""
    vmin, vmax = limits(picture)
    return replace(picture, vmin=vmin, vmax=vmax)
