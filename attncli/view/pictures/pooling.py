"""Large maps as few cells: each cell keeps the strongest value of its block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.view.pictures.picture import Panel, Picture, scaled

Array = npt.NDArray[Any]


class Pooler:
    """Pool a map that arrives some rows at a time and is never held whole.

    A cell shows the largest weight of its block of queries and keys: a mean would hide the one
    strong key among hundreds. If values have both signs, it shows the one of largest magnitude, the
    positive one if two are equal. A cell is hidden only if all of its block is.
    """

    def __init__(
        self, shape: tuple[int, int], block: tuple[int, int], *, signed: bool = False
    ) -> None:
        self._block = block
        cells = tuple(-(-size // each) for size, each in zip(shape, block, strict=True))
        # −inf stands for a cell with no visible value so far.
        self._most = np.full(cells, -np.inf)
        self._least = np.full(cells, np.inf) if signed else None

    def add(self, values: Array, hidden: npt.NDArray[np.bool_] | None, *, row: int) -> None:
        """Take in some rows of the map; `row` is the index of the first."""
        down, across = self._block
        starts = (
            [0, *range(down - row % down, len(values), down)],
            [*range(0, values.shape[1], across)],
        )
        first = row // down
        part = slice(first, first + len(starts[0]))
        gone = False if hidden is None else hidden
        top = _reduced(np.maximum, np.where(gone, -np.inf, values), starts)
        np.maximum(self._most[part], top, out=self._most[part])
        if self._least is not None:
            bottom = _reduced(np.minimum, np.where(gone, np.inf, values), starts)
            np.minimum(self._least[part], bottom, out=self._least[part])

    def panel(self, title: str | None = None) -> Panel:
        """Return the cells as they are now."""
        hidden = np.isneginf(self._most)
        values = self._most
        if self._least is not None:
            values = np.where(-self._least > self._most, self._least, self._most)
        return Panel(np.where(hidden, 0.0, values), hidden, title)


def block_size(count: int, limit: int) -> int:
    """Return how many queries or keys a cell stands for, if `limit` cells fit."""
    return -(-count // limit)


def _reduced(ufunc: np.ufunc, values: Array, starts: tuple[list[int], list[int]]) -> Array:
    # Rows first: that pass is a maximum of whole rows, and leaves little for the second.
    rows = values if len(starts[0]) == len(values) else ufunc.reduceat(values, starts[0], axis=0)
    if len(starts[1]) == rows.shape[1]:
        return rows
    return np.asarray(ufunc.reduceat(rows, starts[1], axis=1))


def coarsen(picture: Picture, limit: tuple[int, int]) -> Picture:
    """Return a picture of at most `limit` rows and columns of cells; a free scale follows them."""
    rows, columns = picture.cells
    if rows <= limit[0] and columns <= limit[1]:
        return picture
    block = block_size(rows, limit[0]), block_size(columns, limit[1])
    fewer = replace(
        picture,
        panels=tuple(_pooled(panel, block, signed=picture.look.signed) for panel in picture.panels),
        rows=replace(picture.rows, block=picture.rows.block * block[0]),
        columns=replace(picture.columns, block=picture.columns.block * block[1]),
    )
    # Pooled cells are maxima: more of them lie beyond the end of a scale for single weights.
    return scaled(fewer) if fewer.free else fewer


def _pooled(panel: Panel, block: tuple[int, int], *, signed: bool) -> Panel:
    rows, columns = panel.values.shape
    pooler = Pooler((rows, columns), block, signed=signed)
    pooler.add(panel.values, panel.hidden, row=0)
    return pooler.panel(panel.title)
