"""One map of a picture: its cells, and which of them are hidden."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, ShapeError
from attncli.errors.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FloatArray", "Panel", "What", "make_panel", "split"]

What: TypeAlias = Literal["weights", "scores", "difference"]
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


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

    values: FloatArray
    hidden: BoolArray
    title: str | None = None


def make_panel(
    values: npt.ArrayLike, hidden: npt.ArrayLike | None = None, title: str | None = None
) -> Panel:
    """Check one map and mark its hidden cells.

    Parameters
    ----------
    values : array_like, (rows, columns), real
        Weights or scores; −inf means hidden. What stands at hidden cells is ignored.
    hidden : array_like of bool, broadcastable to (rows, columns), optional
    title : str, optional

    Raises
    ------
    ShapeError
        The map is not a matrix, has no cells, or `hidden` does not fit it.
    DataError
        A visible cell holds nan or inf.
    """
    array = np.asarray(values)
    if array.ndim != 2 or array.size == 0:
        message = f"a picture needs a matrix with rows and columns, found shape {array.shape}"
        raise ShapeError(message)
    if not np.issubdtype(array.dtype, np.floating):
        array = array.astype(np.float64)
    absent = np.isneginf(array) | _fitted(hidden, array.shape)
    shown = np.where(absent, array.dtype.type(0), array)
    _refuse_nonfinite(shown)
    return Panel(shown, absent, None if title is None else printable(title))


def _fitted(hidden: npt.ArrayLike | None, shape: tuple[int, ...]) -> BoolArray:
    mask = np.asarray(False if hidden is None else hidden, dtype=np.bool_)
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        message = f"the hidden cells have shape {mask.shape}, expected {shape} like the values"
        raise ShapeError(message) from None


def _refuse_nonfinite(values: FloatArray) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        message = (
            f"a picture needs finite numbers, found {float(values[row, column])}"
            f" at row {row}, column {column}"
        )
        raise DataError(message)


def split(
    values: npt.NDArray[Any],
    hidden: npt.ArrayLike | None = None,
    *,
    names: Sequence[str] = (),
    place: Callable[..., Sequence[int | None]] | None = None,
) -> tuple[Panel, ...]:
    """Cut an array (…, L, S) into one panel for each leading index.

    Parameters
    ----------
    values : ndarray, (…, L, S)
    hidden : array_like of bool, broadcastable to `values`, optional
    names : sequence of str
        Name of each leading axis: ``("batch", "head")``. Titles leave out an axis of
        length 1.
    place : callable, optional
        From a leading index to the numbers in its title, where they are others.

    Raises
    ------
    ShapeError, DataError
        As `make_panel`.
    """
    lead = values.shape[:-2]
    if values.ndim < 2 or prod(lead) == 0:
        raise ShapeError(f"a picture needs at least one matrix, found shape {values.shape}")
    masks = None if hidden is None else np.broadcast_to(np.asarray(hidden), values.shape)
    return tuple(
        make_panel(
            values[index],
            None if masks is None else masks[index],
            _index_title(place(*index) if place else index, lead, names),
        )
        for index in np.ndindex(*lead)
    )


def _index_title(
    numbers: Sequence[int | None], lead: tuple[int, ...], names: Sequence[str]
) -> str | None:
    parts = [
        f"{name} {number}"
        for name, number, length in zip(names, numbers, lead, strict=True)
        if length > 1
    ]
    return ", ".join(parts) or None
