"""How large the maps of a file are drawn, in inches, and so how many cells there is room for."""

from __future__ import annotations

from math import ceil, floor, isfinite, log

__all__ = ["LABEL_PITCH", "cell_limit", "grid_columns", "most_stretched", "panel_size"]

# Lines of labels closer than this touch.
LABEL_PITCH = 0.16
_SHORT_SIDE, _LONG_SIDE, _LABELLED_SIDE, _GRID_SIDE = 1.2, 8.0, 14.0, 4.0
# In a grid, many maps of one query or one key would make a tower.
_GRID_SHORT_SIDE = 0.6
_GRID_WIDTH = 18.0
# A grid may become this wide to make room for every label.
_LABELLED_GRID_WIDTH = 27.0
# A row of two batch entries is worse than a grid seven times too wide.
_MIXED = 2.0
# Two rows for each batch entry are worse than a grid half too wide.
_SPLIT = 0.4
# A row that is not full is worse than a grid a quarter too wide: 32 are 8 by 4.
_RAGGED = 0.25


def grid_columns(count: int, aspect: float, group: int | None = None) -> int:
    """Return how many of `count` panels stand side by side.

    The grid nears 4:3 and leaves no place empty, or else few; no row holds panels of two groups
    unless the grid would become a strip.

    Parameters
    ----------
    count : int
        Panels.
    aspect : float
        Width of a panel over its height.
    group : int, optional
        So many panels that follow each other belong together.
    """

    def cost(columns: int) -> float:
        rows = ceil(count / columns)
        empty = rows * columns - count
        shape = abs(log(columns * aspect / rows / (4 / 3)))
        mixed = bool(group and group % columns)
        ragged = 2 * empty / count + _RAGGED * bool(empty)
        split = bool(group and columns < group) and not mixed
        return shape + ragged + _MIXED * mixed + _SPLIT * split

    return min(range(1, count + 1), key=cost)


def panel_size(
    rows: int, columns: int, *, panels: int = 1, group: int | None = None, labelled: int = 0
) -> tuple[float, float]:
    """Return the width and height of a panel in inches.

    Cells are square unless that leaves a side too thin to see.

    Parameters
    ----------
    rows, columns : int
        Queries and keys.
    panels : int
        Panels in the figure.
    group : int, optional
        As in `grid_columns`.
    labelled : int
        Labels on the longer axis that has any; the panel grows to hold them, up to a cap.
    """
    longest = max(rows, columns)
    side = min(_LONG_SIDE, 1.8 + 0.36 * longest)
    side = max(side, min(_LABELLED_SIDE, LABEL_PITCH * labelled))
    if panels > 1:
        beside = grid_columns(panels, columns / rows, group)
        needed = LABEL_PITCH * labelled
        room = needed if needed * beside <= _LABELLED_GRID_WIDTH else 1.0
        side = min(side, max(room, min(_GRID_SIDE, _GRID_WIDTH / beside)))
    short = min(_SHORT_SIDE if panels == 1 else _GRID_SHORT_SIDE, side)
    return max(short, side * columns / longest), max(short, side * rows / longest)


def most_stretched(size: tuple[float, float] | None) -> float:
    """Return how many times as large as usual the panels of many cells may be, at most.

    Parameters
    ----------
    size : (float, float) or None
        The most inches of the figure across and up, infinite where any will do; None for the
        usual ones.
    """
    return max([1.0, *(side / _LONG_SIDE for side in size or () if isfinite(side))])


def cell_limit(
    shape: tuple[int, int], *, panels: int = 1, group: int | None = None, dpi: float = 150
) -> tuple[int, int]:
    """Return the most rows and columns of cells that a panel can show, a pixel each.

    Parameters
    ----------
    shape : (int, int)
        Queries and keys.
    panels : int
        Panels in the figure.
    group : int, optional
        As in `grid_columns`.
    dpi : float
        Pixels per inch.
    """
    width, height = panel_size(*shape, panels=panels, group=group)
    return max(1, floor(height * dpi)), max(1, floor(width * dpi))
