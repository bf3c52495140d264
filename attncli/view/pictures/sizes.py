"""How large the maps of a figure are, in inches, and how many stand side by side."""

from __future__ import annotations

from math import ceil, floor, isfinite, log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attncli.view.pictures.picture import Look


class NoRoomError(ValueError):
    """There is no room for the cells, or for the numbers in them."""


# Inches from one line of labels of 9 points to the next: closer ones touch.
LABEL_PITCH = 0.16
# Sides of a map in inches: the shortest, the longest, and the longest with labels.
_SHORT_SIDE, _LONG_SIDE, _LABELLED_SIDE = 1.2, 8.0, 14.0
# The same in a grid of maps. Flat maps are flatter there, or the grid would be a tower.
_GRID_SHORT_SIDE, _GRID_SIDE = 0.6, 4.0
# Width of a grid, and of one that makes room for every label.
_GRID_WIDTH, _LABELLED_GRID_WIDTH = 18.0, 27.0
# Costs of a grid, in units of the logarithm of its shape: a row with maps of two batch entries,
# two rows for one batch entry, and a last row that is not full.
_MIXED, _SPLIT, _RAGGED = 2.0, 0.4, 0.25


def grid_columns(count: int, aspect: float, group: int | None = None, shape: float = 4 / 3) -> int:
    """Return how many of `count` maps stand side by side; those of a `group` belong together.

    `aspect` is the width of a map over its height, `shape` the same of the whole grid.
    """

    def cost(columns: int) -> float:
        rows = ceil(count / columns)
        empty = rows * columns - count
        mixed = bool(group and group % columns)
        split = bool(group and columns < group) and not mixed
        return (
            abs(log(columns * aspect / rows / shape))
            + 2 * empty / count
            + _RAGGED * bool(empty)
            + _MIXED * mixed
            + _SPLIT * split
        )

    return min(range(1, count + 1), key=cost)


def panel_size(
    rows: float, columns: float, *, panels: int = 1, group: int | None = None, labelled: float = 0
) -> tuple[float, float]:
    """Return the width and height of a map in inches; its cells are square if they can be."""
    longest = max(rows, columns)
    side = max(min(_LONG_SIDE, 1.8 + 0.36 * longest), min(_LABELLED_SIDE, labelled))
    if panels > 1:
        beside = grid_columns(panels, columns / rows, group)
        room = labelled if labelled * beside <= _LABELLED_GRID_WIDTH else 1.0
        side = min(side, max(room, min(_GRID_SIDE, _GRID_WIDTH / beside)))
    short = min(_SHORT_SIDE if panels == 1 else _GRID_SHORT_SIDE, side)
    return max(short, side * columns / longest), max(short, side * rows / longest)


def cell_limit(
    shape: tuple[int, int], look: Look, *, panels: int = 1, group: int | None = None
) -> tuple[int, int]:
    """Return the most rows and columns of cells that a map can show, a pixel each."""
    usual = panel_size(*shape, panels=panels, group=group)
    sides = [side for side in look.size or () if isfinite(side)]
    width, height = (max([side, *sides]) for side in usual)
    return max(1, floor(height * look.dpi)), max(1, floor(width * look.dpi))
