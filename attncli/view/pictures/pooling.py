"""Large maps as few cells: each cell keeps the strongest value of its block."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError
from attncli.errors.text import printable
from attncli.view.pictures.panel import Panel
from attncli.view.pictures.picture import rescaled

if TYPE_CHECKING:
    from attncli.view.pictures.picture import Picture

__all__ = ["Pooler", "block_size", "coarsen", "pool"]

FloatArray = npt.NDArray[np.floating[Any]]


class Pooler:
    """Pool a map that arrives some rows at a time, in any order, and is never held whole.

    A cell shows the largest weight of its block: a mean would hide the one strong
    key among hundreds that attention is about. If values have both signs, it shows
    the one of largest magnitude, the positive one if two are equal. A cell is hidden only
    if all of its block is.

    Parameters
    ----------
    shape : (int, int)
        Queries and keys of the whole map.
    limit : (int, int)
        The most rows and columns of cells to keep.
    signed : bool
        The values are scores or differences.

    Attributes
    ----------
    block : (int, int)
        Queries and keys that one cell stands for.

    Notes
    -----
    One thread at a time may add. Memory is that of the cells, twice.
    """

    def __init__(
        self, shape: tuple[int, int], limit: tuple[int, int], *, signed: bool = False
    ) -> None:
        self.shape = shape
        self.block = block_size(shape, limit)
        cells = (_ceil_div(shape[0], self.block[0]), _ceil_div(shape[1], self.block[1]))
        # −inf stands for a cell with no visible value so far.
        self._most = np.full(cells, -np.inf)
        self._least = np.full(cells, np.inf) if signed else None

    def add(
        self,
        values: npt.NDArray[Any],
        hidden: npt.NDArray[np.bool_] | None = None,
        *,
        row: int = 0,
    ) -> None:
        """Take in some rows.

        Parameters
        ----------
        values : ndarray, (l, S), real
            Weights or scores; −inf means hidden.
        hidden : ndarray of bool, (l, S), optional
        row : int
            Which row of the whole map is the first of these.

        Raises
        ------
        ShapeError
            They do not lie within the map.
        DataError
            A visible value is nan or inf.
        """
        self._check_place(values, row)
        starts = (
            _block_starts(row, len(values), self.block[0]),
            _block_starts(0, self.shape[1], self.block[1]),
        )
        seen = values if hidden is None else np.where(hidden, -np.inf, values)
        top = _reduce(np.maximum, seen, starts)
        # A maximum keeps nan and inf, so checking the small result checks all rows.
        if not (top < np.inf).all():
            raise DataError(f"a picture needs finite numbers, found {float(np.max(top))}")
        first = row // self.block[0]
        part = slice(first, first + len(top))
        np.maximum(self._most[part], top, out=self._most[part])
        if self._least is not None:
            bottom = _reduce(np.minimum, np.where(np.isneginf(seen), np.inf, seen), starts)
            np.minimum(self._least[part], bottom, out=self._least[part])

    def panel(self, title: str | None = None) -> Panel:
        """Return the cells as they are now."""
        hidden = np.isneginf(self._most)
        values = self._most
        if self._least is not None:
            values = np.where(-self._least > self._most, self._least, self._most)
        return Panel(
            np.where(hidden, 0.0, values), hidden, None if title is None else printable(title)
        )

    def _check_place(self, values: npt.NDArray[Any], row: int) -> None:
        if not 0 <= row <= self.shape[0] - len(values) or values.shape[1] != self.shape[1]:
            raise ShapeError(
                f"rows of shape {values.shape} from {row} on lie outside the map of shape "
                f"{self.shape}"
            )


def block_size(shape: tuple[int, int], limit: tuple[int, int]) -> tuple[int, int]:
    """Return how many queries and keys a cell stands for, if there is room for so many cells."""
    return _ceil_div(shape[0], limit[0]), _ceil_div(shape[1], limit[1])


def _ceil_div(count: int, size: int) -> int:
    return -(-count // size)


def _block_starts(place: int, count: int, size: int) -> list[int]:
    """Return where each block begins among so many rows or columns from a place on."""
    return [0, *range(size - place % size, count, size)]


def _reduce(ufunc: np.ufunc, values: FloatArray, starts: tuple[list[int], list[int]]) -> FloatArray:
    # Rows first: that pass is a maximum of whole rows, and leaves little for the second.
    rows = values if len(starts[0]) == len(values) else ufunc.reduceat(values, starts[0], axis=0)
    if len(starts[1]) == rows.shape[1]:
        return rows
    return np.asarray(ufunc.reduceat(rows, starts[1], axis=1))


def pool(panel: Panel, limit: tuple[int, int], *, signed: bool = False) -> Panel:
    """Return a panel of at most `limit` rows and columns of cells.

    Parameters
    ----------
    panel : Panel
    limit : (int, int)
        The most rows and columns of cells.
    signed : bool
        Keep the value of largest magnitude instead of the largest.
    """
    rows, columns = panel.values.shape
    if rows <= limit[0] and columns <= limit[1]:
        return panel
    pooler = Pooler((rows, columns), limit, signed=signed)
    pooler.add(panel.values, panel.hidden)
    return pooler.panel(panel.title)


def coarsen(picture: Picture, limit: tuple[int, int]) -> Picture:
    """Return a picture of at most `limit` rows and columns of cells.

    The scale stays, unless it is free to follow the cells. A picture that is
    already pooled stays exact: the largest of largest values is the largest of all.
    """
    rows, columns = picture.cells
    if rows <= limit[0] and columns <= limit[1]:
        return picture
    factors = (_ceil_div(rows, limit[0]), _ceil_div(columns, limit[1]))
    pooled = replace(
        picture,
        panels=tuple(pool(panel, limit, signed=picture.signed) for panel in picture.panels),
        block=(picture.block[0] * factors[0], picture.block[1] * factors[1]),
    )
    # The largest of a block are more often among the few that saturate than single weights.
    return rescaled(pooled)
