"""Panels: groups of queries, with the query as the last axis of every array.

A tile of scores is (N, P, C, R): N heads, P panels of R queries each, C keys. `as_panels` is
such a view of a matrix with a row for each query. On some processors BLAS multiplies matrices
as small as a panel without packing them, and sums and maxima over keys are vectorised along R.

In memory, tiles are key-major: the R queries of a key are contiguous. Where weights are asked
for, they are query-major instead, like the result: the keys of a query are contiguous.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from attncli.engine.calls import Call
    from attncli.engine.scratch import Scratch

__all__ = [
    "LONGEST_PRODUCT",
    "PANEL",
    "TileLayout",
    "add_up",
    "allocate",
    "as_panels",
    "by_query_head",
    "is_key_major",
    "paired",
    "product",
    "product_in_chunks",
    "row_max",
    "sum_in_chunks",
]

Array = npt.NDArray[Any]

# Queries in a panel where BLAS does not pack: the fastest size of such products.
PANEL = 64
# Keys that a maximum over keys folds into one longer row.
_FOLD = 16
# A product adds up one key after the other, and its rounding errors grow with their number.
LONGEST_PRODUCT = 4096
# Likewise where a result has so few rows or columns.
_LONGEST_NARROW, _NARROW = 128, 16
_MOST_ADDENDS = 128


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
    view: Array = matrix.reshape(*lead, count // rows, rows, columns).swapaxes(-2, -1)
    return view


def paired(matrix: Array, panels: Array) -> Iterator[tuple[Array, Array]]:
    """Yield views of matrices and of panels with the same queries in the same order.

    The first views are of the full panels, the second ones of the last panel, if it has more
    queries than are left.

    Parameters
    ----------
    matrix : ndarray (N, queries, columns)
    panels : ndarray (N, P, columns, R)
    """
    count, panel = matrix.shape[1], panels.shape[3]
    full = count // panel
    if full:
        yield as_panels(matrix[:, : full * panel], panel), panels[:, :full]
    if full * panel < count:
        rest = matrix[:, full * panel :].swapaxes(1, 2)
        yield rest, panels[:, full, :, : rest.shape[2]]


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


def by_query_head(matrices: Array, heads: int) -> Array:
    """Add axes to matrices (G, a, b) of keys or values, so that each meets its N / G query heads.

    Returns
    -------
    ndarray (a, b), (N, 1, a, b) or (G, 1, 1, a, b)
        A view. The first is for G = 1, the second for G = N.
    """
    groups = len(matrices)
    if groups == 1:
        alone: Array = matrices[0]
        return alone
    return matrices[:, None] if groups == heads else matrices[:, None, None]


def product(left: Array, right: Array, out: Array) -> Call:
    """Return the call that writes the products of matrices with the panels of their heads.

    Parameters
    ----------
    left : ndarray (..., a, b)
        From `by_query_head`.
    right : ndarray (N, P, b, R)
    out : ndarray (N, P, a, R)
    """
    if left.ndim < 5:
        return np.matmul, (left, right, out)
    return np.matmul, (left, *_grouped(left, right, out))


def product_in_chunks(left: Array, right: Array, out: Array, chunk: int) -> Iterator[Call]:
    """Yield the calls of `product` with so many rows of the left matrices in each; 0 for all."""
    whole = left.shape[-2] // chunk * chunk if chunk else 0
    if whole:
        grouped = _grouped(left, right[:, :, None], _chunked(out[:, :, :whole], chunk))
        yield np.matmul, (_cut_rows(left[..., :whole, :], chunk), *grouped)
    if whole < left.shape[-2]:
        yield product(left[..., whole:, :], right, out[:, :, whole:])


def sum_in_chunks(
    values: Array, tile: Array, out: Array, chunk: int, scratch: Scratch
) -> Iterator[Call]:
    """Yield the calls that write the sums of values, weighted by tiles.

    Parameters
    ----------
    values : ndarray (..., keys, E)
        From `by_query_head`.
    tile : ndarray (N, P, keys, R)
    out : ndarray (N, P, E, R)
    chunk : int
        Keys in one product; 0 for as many as lose no digits.
    scratch : Scratch
        Holds the sums of the chunks.
    """
    keys = values.shape[-2]
    longest = _longest_product(out)
    if not chunk and keys > longest:
        chunk = longest
    whole = keys // chunk * chunk if chunk else 0
    if not whole:
        yield product(values.swapaxes(-2, -1), tile, out)
        return
    cut, rest = values[..., :whole, :], values[..., whole:, :]
    heads, panels, width, panel = out.shape
    parts = scratch.buffer("chunks", heads, panels, whole // chunk, panel, width).swapaxes(3, 4)
    grouped = _grouped(values, _chunked(tile[:, :, :whole], chunk), parts)
    yield np.matmul, (_cut_rows(cut, chunk).swapaxes(-2, -1), *grouped)
    yield add_up, (parts, out)
    if rest.shape[-2]:
        room = scratch.buffer("rest of chunks", heads, panels, panel, width).swapaxes(2, 3)
        yield product(rest.swapaxes(-2, -1), tile[:, :, whole:], room)
        yield np.add, (out, room, out)


def _longest_product(out: Array) -> int:
    """Return how many keys a product that writes (N, P, E, R) may add up in sequence.

    Of narrow matrices BLAS adds up one key after the other, otherwise in several sums.
    """
    width, panel = out.shape[2:]
    return _LONGEST_NARROW if min(width, panel) <= _NARROW and panel > 1 else LONGEST_PRODUCT


def add_up(parts: Array, out: Array) -> None:
    """Write the sum of parts (N, P, parts, ...) over the third axis.

    NumPy adds one after the other there, so rounding errors grow with their number: of many
    parts, the sums of some are added up.
    """
    count = parts.shape[2]
    groups = count // _MOST_ADDENDS
    if groups < 2:
        np.add.reduce(parts, axis=2, out=out)
        return
    whole = groups * _MOST_ADDENDS
    cut = parts[:, :, :whole].reshape(*parts.shape[:2], groups, _MOST_ADDENDS, *parts.shape[3:])
    add_up(np.add.reduce(cut, axis=3), out)
    if whole < count:
        out += np.add.reduce(parts[:, :, whole:], axis=2)


def _cut_rows(matrices: Array, chunk: int) -> Array:
    """Return a view of matrices (..., a, b) as (..., chunks, chunk, b)."""
    *lead, _, width = matrices.shape
    view: Array = matrices.reshape(*lead, -1, chunk, width)
    return view


def _chunked(tile: Array, chunk: int) -> Array:
    """Return a view of a tile (N, P, a, R) as (N, P, chunks, chunk, R)."""
    heads, panels, _, panel = tile.shape
    view: Array = tile.reshape(heads, panels, -1, chunk, panel)
    return view


def _grouped(left: Array, *arrays: Array) -> Sequence[Array]:
    """Return views of arrays (N, ...) as (G, N / G, ...), if the left is so by `by_query_head`."""
    if left.ndim < 5:
        return arrays
    return [array.reshape(len(left), -1, *array.shape[1:]) for array in arrays]
