"""The picture of a difference: between two sets of weights, or a file and the answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError
from attncli.numerics.indices import EVERYTHING, Indices, Picked, index_of
from attncli.problem.arguments import shape_text
from attncli.problem.labels import advise_on_order
from attncli.view.labels import shorten
from attncli.view.pictures.frame import Wish, chosen, grouped, heads_are_rows, heads_as_rows
from attncli.view.pictures.panel import split
from attncli.view.pictures.picture import Picture, make_picture

if TYPE_CHECKING:
    from attncli.gather import Finished

__all__ = ["difference_picture", "minus_picture"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# So many units of a weight of 1 are roundings of two right computations.
_UNITS = 4
# On a scale so many times as long, roundings are nearly white.
_WHITE = 100
_LONGEST_NAME = 20


def minus_picture(
    first: Finished,
    second: Finished,
    wish: Wish,
    *,
    computed: bool = False,
) -> Picture:
    """Return the picture of first − second, symmetric around 0.

    Parameters
    ----------
    first, second : Finished
    wish : Wish
        A second that holds only as many batch entries or heads as are picked is taken to be
        these.
    computed : bool
        The first holds only what is picked already.

    Raises
    ------
    ShapeError
        The two have different shapes.
    """
    of_first = EVERYTHING if computed else wish.picked
    minuend = first.weights(of_first)
    subtrahend = second.weights(_of_second(second, wish.picked))
    if minuend.shape != subtrahend.shape:
        raise ShapeError(
            f"{first.name} and {second.name} have the shapes {_shape(minuend)} and "
            f"{_shape(subtrahend)}: expected weights of the same shape"
        )
    advise_on_order(second.name, second.query_labels, first.name, first.query_labels)
    advise_on_order(second.name, second.key_labels, first.name, first.key_labels)
    title = "Attention weights: difference" if wish.title is None else wish.title
    difference = np.subtract(minuend, subtrahend)
    hidden = first.hidden_cells(of_first)
    if hidden is not None:
        hidden = hidden & (difference == 0)  # a weight where there should be none is seen
    labels = first.query_labels, first.key_labels
    rounding = _UNITS * max(float(np.finfo(each.dtype).eps) for each in (minuend, subtrahend))
    than = f"in {shorten(Path(second.name).name, _LONGEST_NAME)}"
    return _difference_of(
        difference, wish, title, *labels, hidden=hidden, rounding=rounding, than=than
    )


def _shape(maps: Array) -> str:
    """Return the shape (B, H, L, S) without batch or head where there is one of them."""
    return shape_text((*(n for n in maps.shape[:2] if n > 1), *maps.shape[2:]))


def _of_second(second: Finished, picked: Picked) -> Picked:
    """Return what is to be picked where a file may hold that alone."""
    batch, head = (
        _unless_alone(option, indices, count)
        for option, indices, count in zip(("--batch", "--head"), picked, second.counts, strict=True)
    )
    return Picked(batch, head)


def _unless_alone(option: str, indices: Indices | None, count: int) -> Indices | None:
    several = indices if isinstance(indices, tuple) else () if indices is None else (indices,)
    if len(several) == count:
        return None
    return None if indices is None else tuple(index_of(option, index, count) for index in several)


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
        than="the answer",
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
    rounding: float = 0.0,
    *,
    than: str,
) -> Picture:
    counts, whole = difference.shape[:2], difference.shape[2:]
    rows, columns = chosen(wish, whole, (query_labels, key_labels))
    window = (..., slice(*rows), slice(*columns))
    shown, vmax = _with_an_end(difference[window], wish.vmax, rounding)
    masked = None if hidden is None else hidden[window]
    labels = query_labels and query_labels[slice(*rows)]
    of_rows: dict[str, Any] = {"row_start": rows[0], "query_labels": labels, "whole": whole}
    if heads_are_rows(rows, counts):
        shown = shown.swapaxes(1, 2)
        masked = None if masked is None else masked.swapaxes(1, 2)
        of_rows = heads_as_rows(wish, counts[1], rows[0], whole, labels)
        counts = (counts[0], 1)
    return make_picture(
        split(shown, masked, names=("batch", "head"), place=wish.picked.place),
        what="difference",
        key_labels=key_labels and key_labels[slice(*columns)],
        column_start=columns[0],
        title=title,
        vmax=vmax,
        columns_are=columns_are,
        group=grouped(*counts),
        rounding=rounding,
        than=than,
        **of_rows,
    )


def _with_an_end(
    difference: Array, vmax: float | Literal["auto"], rounding: float
) -> tuple[Array, float | Literal["auto"]]:
    """Return a difference, and where its scale ends: far beyond what is a rounding.

    NaN and infinities are put beyond the end, which the finite numbers set.
    """
    finite = np.isfinite(difference)
    largest = float(np.abs(difference[finite]).max(initial=0))
    if vmax == "auto" and 0 < largest <= rounding:
        vmax = _WHITE * rounding
    if finite.all():
        return difference, vmax
    end = largest or 1.0 if vmax == "auto" else vmax
    return np.nan_to_num(difference, nan=2 * end, posinf=2 * end, neginf=-2 * end), end
