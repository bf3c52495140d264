"""Panels: some queries side by side, so that their index is the last axis of every array.

A tile of scores is (N, P, C, R): N heads, P panels of R queries each, C keys. Where a
matrix has a row for each query, `across` shows it that way without a copy. Products of
such small matrices need no packing where BLAS has kernels for them, and sums and maxima
over keys run along R.

Where weights are asked for, panels lie as the result does, by the row: a query's keys side
by side.
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
    "Grain",
    "across",
    "highest",
    "is_turned",
    "lying",
    "multiply",
    "sum_up",
]

Array = npt.NDArray[Any]

# Queries of a panel, where products of small matrices are the fastest.
PANEL = 64
# Keys that lie side by side, in a maximum over keys.
_FOLD = 16


class Grain(NamedTuple):
    """How the panels of a block lie, and how its products are cut.

    Attributes
    ----------
    by_rows : bool
        Whether a query's numbers lie side by side, not the queries'.
    piece : int
        How many keys one product takes: those of weights whose rows lie far from each other. They
        are computed apart, from a copy of the keys that lies by the column. 0 if it takes all of
        a tile.
    """

    by_rows: bool
    piece: int = 0


def across(matrix: Array, panel: int) -> Array:
    """Return matrices of a row for each query as (..., P, columns, R), a view.

    Parameters
    ----------
    matrix : ndarray (..., P · R, columns) or (..., 1, columns)
        One row says the same of all queries.
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


def lying(make: Callable[..., Array], shape: tuple[int, ...], grain: Grain) -> Array:
    """Return room for (N, P, columns, R) that lies along the grain."""
    heads, panels, columns, panel = shape
    if grain.by_rows:
        return make(heads, panels, panel, columns).swapaxes(2, 3)
    return make(*shape)


def is_turned(tile: Array) -> bool:
    """Return whether the queries of a panel lie side by side, not a query's keys."""
    return tile.strides[3] == tile.itemsize


def highest(tile: Array) -> Array:
    """Return the highest score of each query: (N, P, R) of a tile (N, P, columns, R)."""
    heads, panels, columns, panel = tile.shape
    fold = math.gcd(columns, _FOLD)
    if fold == 1 or not tile.flags.c_contiguous:
        return np.asarray(tile.max(axis=2))
    # NumPy takes a row at a time: the longer they are, the fewer.
    folded = tile.reshape(heads, panels, columns // fold, fold * panel).max(axis=2)
    return np.asarray(folded.reshape(heads, panels, fold, panel).max(axis=2))


def multiply(left: Array, right: Array, out: Array, grain: Grain) -> Array:
    """Write the products of matrices with the panels of their heads into ``out``.

    Parameters
    ----------
    left : ndarray (G, a, b)
        N is a multiple of G: so many heads in a row share a matrix.
    right : ndarray (N, P, b, R)
    out : ndarray (N, P, a, R)
    grain : Grain
        How many of a, which are keys, one product takes.
    """
    whole = _whole(left.shape[1], grain)
    if not whole:
        return _multiply(left, right, out)
    _multiply(
        _pieces(left[:, :whole], 1, grain), right[:, :, None], _pieces(out[:, :, :whole], 2, grain)
    )
    if whole < left.shape[1]:
        _multiply(left[:, whole:], right, out[:, :, whole:])
    return out


def sum_up(values: Array, tile: Array, out: Array, grain: Grain, scratch: Scratch) -> Array:
    """Write the sums of values, weighted by the panels of their heads, into ``out``.

    Parameters
    ----------
    values : ndarray (G, keys, E)
    tile : ndarray (N, P, keys, R)
    out : ndarray (N, P, E, R)
    grain : Grain
        How many keys one product takes.
    scratch : Scratch
        For the sums of pieces.
    """
    whole = _whole(values.shape[1], grain)
    if not whole:
        return _multiply(values.swapaxes(1, 2), tile, out)
    cut = _pieces(values[:, :whole], 1, grain).swapaxes(2, 3)
    heads, panels, width, panel = out.shape
    parts = scratch.buffer("pieces", heads, panels, cut.shape[1], panel, width).swapaxes(3, 4)
    _multiply(cut, _pieces(tile[:, :, :whole], 2, grain), parts)
    np.add.reduce(parts, axis=2, out=out)
    if whole < values.shape[1]:
        rest = lying(partial(scratch.buffer, "pieces"), out.shape, grain)
        out += _multiply(values[:, whole:].swapaxes(1, 2), tile[:, :, whole:], rest)
    return out


def _whole(keys: int, grain: Grain) -> int:
    """Return how many of some keys fill whole pieces; 0 where they are not cut."""
    return keys // grain.piece * grain.piece if 0 < grain.piece < keys else 0


def _pieces(array: Array, axis: int, grain: Grain) -> Array:
    """Return a view with an axis of whole pieces cut into (pieces, piece)."""
    shape = array.shape
    view: Array = np.reshape(array, (*shape[:axis], -1, grain.piece, *shape[axis + 1 :]))
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
