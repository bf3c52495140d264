"""The picture of a difference: between two sets of weights, or a file and the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.arguments import shape_text
from attncli.errors import ShapeError
from attncli.labelled import advise_on_order
from attncli.view.pictures.finished import finished_weights, hidden_cells
from attncli.view.pictures.maps import Wish, chosen, grouped
from attncli.view.pictures.panel import split
from attncli.view.pictures.picture import Picture, make_picture

if TYPE_CHECKING:
    from attncli.gather import Finished

__all__ = ["difference_picture", "minus_picture"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


def minus_picture(
    first: Finished,
    second: Finished,
    wish: Wish,
    *,
    batch: int | None = None,
    head: int | None = None,
    picked: bool = False,
) -> Picture:
    """Return the picture of first − second, symmetric around 0.

    Parameters
    ----------
    first, second : Finished
    wish : Wish
    batch, head : int, optional
        One batch entry or head of both; a second that holds only one is taken to be this one.
    picked : bool
        The first holds only the chosen ones already.

    Raises
    ------
    ShapeError
        The two have different shapes.
    """
    minuend = finished_weights(first, *((None, None) if picked else (batch, head)))
    subtrahend = finished_weights(second, *_among_several(second, batch, head))
    if minuend.shape != subtrahend.shape:
        raise ShapeError(
            f"{first.name} and {second.name} have the shapes {_shape(minuend)} and "
            f"{_shape(subtrahend)}: expected weights of the same shape"
        )
    advise_on_order(second.name, second.query_labels, first.name, first.query_labels)
    advise_on_order(second.name, second.key_labels, first.name, first.key_labels)
    title = "Attention weights: difference" if wish.title is None else wish.title
    difference = np.subtract(minuend, subtrahend)
    hidden = hidden_cells(first, *((None, None) if picked else (batch, head)))
    if hidden is not None:
        hidden = hidden & (difference == 0)  # a weight where there should be none is seen
    labels = first.query_labels, first.key_labels
    return _difference_of(difference, wish, title, *labels, hidden=hidden)


def _shape(maps: Array) -> str:
    """Return the shape (B, H, L, S) without batch or head where there is one of them."""
    return shape_text((*(n for n in maps.shape[:2] if n > 1), *maps.shape[2:]))


def _among_several(
    finished: Finished, batch: int | None, head: int | None
) -> tuple[int | None, int | None]:
    """Return only the choices for which there is an axis."""
    batches, heads = finished.counts
    return batch if batches > 1 else None, head if heads > 1 else None


def difference_picture(
    difference: Array,
    title: str,
    *,
    hidden: Bools | None = None,
    query_labels: tuple[str, ...] | None = None,
    key_labels: tuple[str, ...] | None = None,
    columns_are: str = "Keys",
    vmax: float | Literal["auto"] = "auto",
) -> Picture:
    """Return the picture of a signed difference (…, rows, columns), symmetric around 0.

    Parameters
    ----------
    difference : ndarray
    title : str
    hidden : ndarray of bool, optional
        In the shape of the difference.
    query_labels, key_labels : tuple of str, optional
        Of rows and columns.
    columns_are : str
        Name of the horizontal axis.
    vmax : float or "auto"
        End of the colour scale.
    """
    return _difference_of(
        _canonical(difference),
        Wish(vmax=vmax),
        title,
        query_labels,
        key_labels,
        columns_are,
        None if hidden is None else _canonical(hidden),
    )


def _canonical(array: Array) -> Array:
    """Return (…, rows, columns) with four axes; a vector becomes one row."""
    rows = np.atleast_2d(array)
    return rows.reshape((1,) * (4 - rows.ndim) + rows.shape)


def _difference_of(
    difference: Array,
    wish: Wish,
    title: str,
    query_labels: tuple[str, ...] | None = None,
    key_labels: tuple[str, ...] | None = None,
    columns_are: str = "Keys",
    hidden: Bools | None = None,
) -> Picture:
    rows, columns = chosen(wish, difference.shape[2:], (query_labels, key_labels))
    window = (..., slice(*rows), slice(*columns))
    shown, vmax = _with_an_end(difference[window], wish.vmax)
    masked = None if hidden is None else hidden[window]
    return make_picture(
        split(shown, masked, names=("batch", "head")),
        what="difference",
        query_labels=query_labels and query_labels[slice(*rows)],
        key_labels=key_labels and key_labels[slice(*columns)],
        row_start=rows[0],
        column_start=columns[0],
        whole=difference.shape[2:],
        title=title,
        vmax=vmax,
        columns_are=columns_are,
        group=grouped(*difference.shape[:2]),
    )


def _with_an_end(
    difference: Array, vmax: float | Literal["auto"]
) -> tuple[Array, float | Literal["auto"]]:
    """Put NaN and infinities beyond the end of the scale, which the finite numbers set."""
    finite = np.isfinite(difference)
    if finite.all():
        return difference, vmax
    end = float(np.abs(difference[finite]).max(initial=0)) or 1.0 if vmax == "auto" else vmax
    return np.nan_to_num(difference, nan=2 * end, posinf=2 * end, neginf=-2 * end), end
