"""What a picture shows, before anything is drawn: cells, labels, scale and notes.

Terminal and file pictures start from the same `Picture`, so both show the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.errors.text import label_text, printable
from attncli.view.pictures.scale import cell_texts, limits, number_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Axis", "Look", "Panel", "Picture", "make_picture", "rescaled"]

Span: TypeAlias = tuple[int, int]

# Below this many units of the last digit, numbers are shown with significant digits.
_FEW_UNITS = 5
_FILL_NOTE = "the scale leaves out scores so low that they hide a key"
_FILL_HINT = "--vmax takes them in"
_SCALE_HINT = "--vmax 1 for all of it, --log for small weights beside large ones"
_ONE = {"Queries": "query", "Keys": "key", "Columns": "column", "Rows": "row", "Heads": "head"}


@dataclass(frozen=True)
class Look:
    """What a picture should show, and how it looks.

    Attributes
    ----------
    what : {"weights", "scores", "difference"}
        Weights run from 0; scores and differences are symmetric around 0.
    title : str or None
        None for the usual one, empty for none.
    rows, columns : (int, int) or None
        From the first to the one behind the last; None for all.
    vmax : float or None
        End of the colour scale, above 0. None: the largest magnitude in any panel, unless few
        weights are so large that all others would look white.
    log : bool
        Logarithmic colour scale, for weights only.
    annotate : bool or None
        Write numbers into the cells; None where there are few and they can be read.
    digits : int
        Digits after the point in these numbers.
    cmap : str or None
        Name of a Matplotlib colour map: Blues for weights and RdBu for signed values unless given.
    dpi : float
        Pixels per inch.
    size : (float, float) or None
        Inches across and up, which a figure has; an infinite height follows the shape of the
        cells. None: the size follows the number of cells.
    font_size : float
        Points of a label; titles are larger.
    transparent : bool
        No background.
    math : bool
        ``$…$`` in titles and labels is a formula.
    image : ndarray of uint8 (height, width, 3), or None
        Lies behind the cells of a figure, which are its patches and let it through.
    smooth : bool
        Over an image, colours run from the middle of a cell to the next.
    """

    what: Literal["weights", "scores", "difference"] = "weights"
    title: str | None = None
    rows: Span | None = None
    columns: Span | None = None
    vmax: float | None = None
    log: bool = False
    annotate: bool | None = None
    digits: int = 2
    cmap: str | None = None
    dpi: float = 150
    size: tuple[float, float] | None = None
    font_size: float = 9.0
    transparent: bool = False
    math: bool = False
    image: npt.NDArray[np.uint8] | None = None
    smooth: bool = False

    @property
    def signed(self) -> bool:
        """Whether the values have both signs."""
        return self.what != "weights"


@dataclass(frozen=True, eq=False)
class Panel:
    """One map: the cells of one head.

    Attributes
    ----------
    values : ndarray, (rows, columns), floating
        Finite; 0 where hidden.
    hidden : ndarray of bool, (rows, columns)
        Cells that the query does not see.
    title : str or None
        What this panel shows, such as ``head 3``.
    """

    values: npt.NDArray[np.floating[Any]]
    hidden: npt.NDArray[np.bool_]
    title: str | None = None


@dataclass(frozen=True)
class Axis:
    """Rows or columns of all panels.

    Attributes
    ----------
    name : str
        ``Queries``, ``Keys``, ``Heads``, ``Rows`` or ``Columns``.
    count : int
        How many are shown; more than the cells where pooled.
    start : int
        Index of the first one.
    whole : int or None
        How many there are; None if all are shown.
    labels : tuple of str or None
        One for each that is shown.
    block : int
        How many of them a cell stands for.
    """

    name: str
    count: int
    start: int = 0
    whole: int | None = None
    labels: tuple[str, ...] | None = None
    block: int = 1

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
        """Which part is shown: the weights of a row need not add up to 1; None for all of it."""
        return None if self.whole in (None, self.count) else self.part


@dataclass(frozen=True, eq=False)
class Picture:
    """Panels on one colour scale, with their labels.

    Attributes
    ----------
    panels : tuple of Panel
        All of one shape.
    look : Look
    rows, columns : Axis
    vmin, vmax : float
        Ends of the colour scale.
    group : int or None
        So many panels that follow each other are the heads of one batch entry.
    remarks : tuple of str
        What else the reader must know about the cells.
    scale_names : tuple of str
        What the colours mean, and the same in fewer words.
    """

    panels: tuple[Panel, ...]
    look: Look
    rows: Axis
    columns: Axis
    vmin: float
    vmax: float
    group: int | None
    remarks: tuple[str, ...]
    scale_names: tuple[str, ...]

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

        On a logarithmic scale, and if nearly all would read 0, the digits are significant ones;
        otherwise they stand after the point. Whoever asks for none gets whole numbers.
        """
        digits = self.look.digits
        few = digits > 0 and 0 < self.largest < _FEW_UNITS * 10.0**-digits
        return cell_texts(panel, digits, significant=self.look.log or few)

    @property
    def note(self) -> str | None:
        """What pooling did to the cells; None if nothing was pooled."""
        if not self.pooled:
            return None
        kind = "strongest" if self.look.signed else "largest"
        things = "differences" if self.look.what == "difference" else self.look.what
        # No-break spaces keep the two numbers on one line.
        count = f"{self.rows.block}\u00a0×\u00a0{self.columns.block}"
        return f"each cell shows the {kind} of {count} {things}"

    @property
    def scale_note(self) -> str | None:
        """That a free scale ends before the largest weight or lowest score."""
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
        """What the reader must know about the cells, but for the scale."""
        crop = ", ".join(note for note in (self.rows.note, self.columns.note) if note)
        return tuple(note for note in (crop, self.note, *self.remarks) if note)


def make_picture(
    panels: Sequence[Panel],
    axes: tuple[Axis, Axis],
    look: Look,
    *,
    group: int | None = None,
    remarks: Sequence[str] = (),
    scale_names: Sequence[str] = (),
) -> Picture:
    """Put panels on one colour scale, and escape what a terminal would obey in their labels.

    There is at least one panel; the axes are of rows and columns, and the others as in `Picture`.
    """
    own = look.what.removesuffix("s")
    names = scale_names or ([f"{own} (log scale)", own] if look.log else [own])
    if look.title is not None:
        look = replace(look, title="\n".join(map(printable, look.title.splitlines())))
    rows, columns = map(_shown, axes)
    told, called = (tuple(map(printable, texts)) for texts in (remarks, names))
    return _scaled(Picture(tuple(panels), look, rows, columns, 0.0, 1.0, group, told, called))


def _shown(axis: Axis) -> Axis:
    labels = axis.labels
    return axis if labels is None else replace(axis, labels=tuple(map(label_text, labels)))


def rescaled(picture: Picture) -> Picture:
    """Return a picture whose scale, if it is free, follows the cells that are left."""
    return _scaled(picture) if picture.free else picture


def _scaled(picture: Picture) -> Picture:
    vmin, vmax = limits(picture)
    return replace(picture, vmin=vmin, vmax=vmax)
