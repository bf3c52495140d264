"""One query's weights as the patches of an image."""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any, TypeAlias

from attncli.errors import ShapeError
from attncli.summaries.maps import Maps, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

# Rows and columns.
Grid: TypeAlias = tuple[int, int]


def first_patch(keys: int, grid: Grid) -> int:
    """Return the key of the first patch: 1 where a class token comes before the patches, else 0."""
    count = grid[0] * grid[1]
    if keys - count in (0, 1):
        return keys - count
    sides = [isqrt(n) for n in (keys, keys - 1) if n > 0 and isqrt(n) ** 2 == n]
    raise ShapeError(
        f"--grid: {grid[0]} x {grid[1]} needs {count} keys, or {count + 1} with a class token; "
        f"found {keys}",
        hint=f"--grid {sides[0]}x{sides[0]} would fit" if sides else None,
    )


class PatchMaps(Maps):
    """The weights of one query of other maps, laid out row by row in a grid of patches."""

    names = "Rows", "Columns"

    def __init__(self, maps: Maps, query: int, grid: Grid) -> None:
        super().__init__((*maps.shape[:2], *grid), maps.axes, (None, None), maps.dtype)
        self.first = first_patch(maps.shape[3], grid)
        self.remarks = ("key 0, the class token, is left out",) if self.first else ()
        self._maps, self._query, self._grid = maps, query, grid

    def rows(self, batch: int, head: int, span: tuple[int, int]) -> Iterator[Rows]:
        """Yield some rows of the grid."""
        (found,) = self._maps.rows(batch, head, (self._query, self._query + 1))
        yield Rows(
            span[0],
            self._laid(found.values)[slice(*span)],
            None if found.hidden is None else self._laid(found.hidden)[slice(*span)],
        )

    def _laid(self, row: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return row[0, self.first :].reshape(self._grid)
