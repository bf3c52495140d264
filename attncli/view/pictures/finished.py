"""Finished weights or scores as arrays of four axes, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from attncli.dtypes import BFLOAT16, widen
from attncli.errors import DataError, ShapeError
from attncli.view.pictures.scale import are_weights, least_weight
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.gather import Finished
    from attncli.indices import Picked

__all__ = ["finished_scores", "finished_weights", "hidden_cells"]

Array = npt.NDArray[Any]
# Rounded weights may add up to a little more than 1.
_MOST_OF_A_ROW = 1.05


def hidden_cells(finished: Finished, picked: Picked) -> npt.NDArray[np.bool_] | None:
    """Return which finished cells are hidden, (B, H, L, S), where that is known."""
    if finished.hidden is None:
        return None
    return _of_those(finished.hidden, finished.counts, picked)


def finished_weights(finished: Finished, picked: Picked) -> Array:
    """Return finished weights as (B, H, L, S)."""
    weights = _four_axes(finished, "weights", picked)
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


def finished_scores(finished: Finished, picked: Picked) -> Array:
    """Return finished scores as (B, H, L, S)."""
    scores = _four_axes(finished, "scores", picked)
    wrong = ~(scores < np.inf)
    if wrong.any():
        _refuse(finished, scores, wrong, "finished scores, finite numbers or −inf")
    return scores


def _four_axes(finished: Finished, what: Literal["weights", "scores"], picked: Picked) -> Array:
    values = finished.values
    if values.dtype == BFLOAT16:
        values = widen(values, np.float32)
    if values.dtype.kind not in "fiu":
        raise DataError(f"{finished.name}: expected {what}; found {values.dtype.name}")
    if values.dtype.kind != "f":  # differences of unsigned numbers would be wrong
        values = values.astype(np.float64)
    if not 2 <= values.ndim <= 4:
        raise ShapeError(f"{finished.name}: expected {what} (…, queries, keys) of 2 to 4 axes")
    return _of_those(values, finished.counts, picked)


def _of_those(array: Array, counts: tuple[int, int], picked: Picked) -> Array:
    """Return an array (…, L, S) as (B, H, L, S), with the batch entries and heads picked."""
    array = array.reshape(*counts, *array.shape[-2:])
    for axis, indices in enumerate(picked):
        if indices is not None:
            array = array.take([indices] if isinstance(indices, int) else indices, axis)
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
