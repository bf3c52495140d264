"""Finished weights or scores as arrays of four axes, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from attncli.dtypes import BFLOAT16, widen
from attncli.errors import DataError, ShapeError
from attncli.indices import index_of
from attncli.view.pictures.scale import are_weights, least_weight
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.gather import Finished

__all__ = ["finished_scores", "finished_weights", "hidden_cells"]

Array = npt.NDArray[Any]
# Rounded weights may add up to a little more than 1.
_MOST_OF_A_ROW = 1.05


def hidden_cells(
    finished: Finished, batch: int | None, head: int | None
) -> npt.NDArray[np.bool_] | None:
    """Return which finished cells are hidden, (B, H, L, S), where that is known."""
    if finished.hidden is None:
        return None
    return _picked(finished.hidden, finished.counts, batch, head)


def finished_weights(finished: Finished, batch: int | None, head: int | None) -> Array:
    """Return finished weights as (B, H, L, S)."""
    weights = _four_axes(finished, "weights", batch, head)
    if weights.size and not are_weights(float(np.min(weights)), float(np.max(weights))):
        finite = np.isfinite(weights)
        most = float(np.max(weights, where=finite, initial=0.0))
        _refuse(
            finished,
            weights,
            ~(finite & (weights >= least_weight(most))),
            "finished weights, finite and not negative",
            hint="for attention from query, key and value give their files; heatmap --what "
            "scores draws scores",
        )
    most = float(np.max(weights.sum(axis=-1, dtype=np.float64)))
    if most > _MOST_OF_A_ROW:
        warn(f"{finished.name}: a row adds up to {most:.4g}, not to 1: are these weights?")
    return weights


def finished_scores(finished: Finished, batch: int | None, head: int | None) -> Array:
    """Return finished scores as (B, H, L, S)."""
    scores = _four_axes(finished, "scores", batch, head)
    wrong = ~(scores < np.inf)
    if wrong.any():
        _refuse(finished, scores, wrong, "finished scores, finite numbers or −inf")
    return scores


def _four_axes(
    finished: Finished, what: Literal["weights", "scores"], batch: int | None, head: int | None
) -> Array:
    values = finished.values
    if values.dtype == BFLOAT16:
        values = widen(values, np.float32)
    if values.dtype.kind not in "fiu":
        raise DataError(f"{finished.name}: expected {what}; found {values.dtype.name}")
    if values.dtype.kind != "f":  # differences of unsigned numbers would be wrong
        values = values.astype(np.float64)
    if not 2 <= values.ndim <= 4:
        raise ShapeError(f"{finished.name}: expected {what} (…, queries, keys) of 2 to 4 axes")
    return _picked(values, finished.counts, batch, head)


def _picked(array: Array, counts: tuple[int, int], batch: int | None, head: int | None) -> Array:
    """Return an array (…, L, S) as (B, H, L, S), with one batch entry and head where asked for."""
    array = array.reshape(*counts, *array.shape[-2:])
    for axis, option, index in ((0, "--batch", batch), (1, "--head", head)):
        if index is not None:
            array = array.take([index_of(option, index, array.shape[axis], from_end=False)], axis)
    return array


def _refuse(
    finished: Finished,
    values: Array,
    wrong: npt.NDArray[np.bool_],
    expected: str,
    hint: str | None = None,
) -> NoReturn:
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    raise DataError(
        f"{finished.name}: expected {expected}; found {float(values[first]):g} at query "
        f"{first[-2]}, key {first[-1]}",
        hint=hint,
    )
