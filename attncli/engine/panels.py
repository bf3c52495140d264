"""Panels: groups of queries, with the query as the last axis of every array.

A tile of scores is (N, P, C, R): N heads, P panels of R queries each, C keys. `as_panels` is
such a view of a matrix with a row for each query. On some processors BLAS multiplies matrices
as small as a panel without packing them, and sums and maxima over keys are vectorised along R.

In memory, tiles are key-major: the R queries of a key are contiguous. Where weights are asked
for, they are query-major instead, like the result: the keys of a query are contiguous.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.engine.scratch import Scratch

__all__ = [
    "PANEL",
    "TileLayout",
    "allocate",
    "as_panels",
    "is_key_major",
    "multiply",
    "row_max",
    "weighted_sum",
]

Array = npt.NDArray[Any]

# Queries in a panel where BLAS does not pack: the fastest size of such products.
PANEL = 64
# Keys that a maximum over keys folds into one longer row.
_FOLD = 16


class TileLayout(NamedTuple):
    """The memory layout of a block's tiles, and how its products are cut.

    Attributes
    ----------
    query_major : bool
        Whether the keys of a query are contiguous, rather than the queries of a key.
    chunk : int
        Keys in one product; 0 for all keys of a tile. Set for weights whose rows are far apart
        in memory: these are computed in a buffer of their own, from a transposed copy of the
        keys.
    """

    query_major: bool
    chunk: int = 0


def as_panels(matrix: Array, panel: int) -> Array:
    """Return a view (..., P, columns, R) of matrices with a row for each query.

    Parameters
    ----------
    matrix : ndarray (..., P · R, columns) or (..., 1, columns)
        A single row applies to all queries.
    panel : int
        R.

    Returns
    -------
    ndarray (..., P, columns, R) or (..., 1, columns, 1)
    """
    *lead, count, columns = matrix.shape
    rows = 1 if count == 1 else panel
    view: Array = np.reshape(matrix, (*lead, count // rows, rows, columns)).swapaxes(-2, -1)
    return view


def allocate(make: Callable[..., Array], shape: tuple[int, ...], layout: TileLayout) -> Array:
    """Return an array (N, P, columns, R) in a layout, made by a function of its memory shape."""
    heads, panels, columns, panel = shape
    if layout.query_major:
        return make(heads, panels, panel, columns).swapaxes(2, 3)
    return make(*shape)


def is_key_major(tile: Array) -> bool:
    """Return whether the queries of a key are contiguous in a tile (N, P, columns, R)."""
    return tile.strides[3] == tile.itemsize


def row_max(tile: Array) -> Array:
    """Return the highest score of each query: (N, P, R) of a tile (N, P, columns, R)."""
    heads, panels, columns, panel = tile.shape
    fold = math.gcd(columns, _FOLD)
    if fold == 1 or not tile.flags.c_contiguous:
        return np.asarray(tile.max(axis=2))
    # NumPy's reduction works row by row, so fewer and longer rows are faster.
    folded = tile.reshape(heads, panels, columns // fold, fold * panel).max(axis=2)
    return np.asarray(folded.reshape(heads, panels, fold, panel).max(axis=2))


def multiply(left: Array, right: Array, out: Array, layout: TileLayout) -> Array:
    """Write the products of matrices with the panels of their heads into ``out``.

    Parameters
    ----------
    left : ndarray (G, a, b)
        N is a multiple of G: N / G consecutive heads share a matrix.
    right : ndarray (N, P, b, R)
    out : ndarray (N, P, a, R)
    layout : TileLayout
        Its ``chunk`` cuts the axis a, which is that of keys.
    """
    if not 0 < layout.chunk < left.shape[1]:
        return _multiply(left, right, out)
    whole = _whole(left.shape[1], layout)
    _multiply(
        _chunked(left[:, :whole], 1, layout),
        right[:, :, None],
        _chunked(out[:, :, :whole], 2, layout),
    )
    if whole < left.shape[1]:
        _multiply(left[:, whole:], right, out[:, :, whole:])
    return out


def weighted_sum(
    values: Array, tile: Array, out: Array, layout: TileLayout, scratch: Scratch
) -> Array:
    """Write the sums of values, weighted by the tiles of their heads, into ``out``.

    Parameters
    ----------
    values : ndarray (G, keys, E)
    tile : ndarray (N, P, keys, R)
    out : ndarray (N, P, E, R)
    layout : TileLayout
        Its ``chunk`` cuts the keys.
    scratch : Scratch
        Holds the sums of the chunks.
    """
    if not 0 < layout.chunk < values.shape[1]:
        return _multiply(values.swapaxes(1, 2), tile, out)
    whole = _whole(values.shape[1], layout)
    cut = _chunked(values[:, :whole], 1, layout).swapaxes(2, 3)
    heads, panels, width, panel = out.shape
    parts = scratch.buffer("chunks", heads, panels, cut.shape[1], panel, width).swapaxes(3, 4)
    _multiply(cut, _chunked(tile[:, :, :whole], 2, layout), parts)
    np.add.reduce(parts, axis=2, out=out)
    if whole < values.shape[1]:
        rest = allocate(partial(scratch.buffer, "chunks"), out.shape, layout)
        out += _multiply(values[:, whole:].swapaxes(1, 2), tile[:, :, whole:], rest)
    return out


def _whole(keys: int, layout: TileLayout) -> int:
    """Return how many of some keys fill whole chunks."""
    return keys // layout.chunk * layout.chunk


def _chunked(array: Array, axis: int, layout: TileLayout) -> Array:
    """Return a view with an axis of whole chunks split into (chunks, chunk)."""
    shape = array.shape
    view: Array = np.reshape(array, (*shape[:axis], -1, layout.chunk, *shape[axis + 1 :]))
    return view


def _multiply(left: Array, right: Array, out: Array) -> Array:
    """Write the products of (G, ..., a, b) and (N, P, ..., b, R) into (N, P, ..., a, R)."""
    groups = len(left)
    if groups == 1:
        np.matmul(left[0], right, out)
    elif groups == len(right):
        np.matmul(left[:, None], right, out)
    else:
        each = len(right) // groups
        np.matmul(left[:, None, None], _grouped(right, groups, each), _grouped(out, groups, each))
    return out


def _grouped(array: Array, groups: int, each: int) -> Array:
    """Return a view of (N, ...) as (G, N / G, ...)."""
    view: Array = np.reshape(array, (groups, each, *array.shape[1:]))
    return view
