"""Weights or scores that were computed before, checked when they are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.arguments import number_found
from attncli.dtypes import BFLOAT16, readable, widen
from attncli.errors import DataError, ShapeError, UsageError
from attncli.finite import are_weights, least_weight
from attncli.warning import warn

if TYPE_CHECKING:
    from attncli.indices import Picked

__all__ = ["Finished", "Kind", "looks_finished"]

Array = npt.NDArray[Any]
Kind = Literal["weights", "scores"]
# Rounded weights may add up to a little more than 1.
_MOST_OF_A_ROW = 1.05
# Rows of the first head that are looked at, and how far from 1 rounded weights may add up to.
_LOOKED_AT, _ROUNDED = 64, 0.01


def looks_finished(values: Array) -> bool:
    """Return whether rows of numbers are none below 0 and add up to 1, as weights do.

    Rows of nothing but 0 and 1 are as well toy queries.
    """
    if values.ndim < 2 or 0 in values.shape:
        return False
    rows = readable(values[(0,) * (values.ndim - 2)][:_LOOKED_AT])
    if rows.dtype.kind != "f":
        return False
    sums = rows.sum(axis=-1, dtype=np.float64)
    near = np.abs(sums - 1) <= _ROUNDED
    return bool(near.all() and (rows >= 0).all() and not np.isin(rows, (0, 1)).all())


class Finished(NamedTuple):
    """Weights or scores that were computed before: all that a picture needs.

    Attributes
    ----------
    values : ndarray (…, L, S)
    name : str
        Where they came from.
    inputs : tuple of str
        Every file that was read, without ``#NAME``.
    query_labels, key_labels : tuple of str or None
    bfloat16 : bool
        Whether they are of this dtype.
    batched : bool
        Three axes are (B, L, S), not (H, L, S).
    hidden : ndarray of bool (…, L, S) or None
        Which keys are hidden, where scores say so.
    """

    values: npt.NDArray[Any]
    name: str
    inputs: tuple[str, ...] = ()
    query_labels: tuple[str, ...] | None = None
    key_labels: tuple[str, ...] | None = None
    bfloat16: bool = False
    batched: bool = False
    hidden: npt.NDArray[np.bool_] | None = None

    @property
    def axes(self) -> str:
        """The axes before (L, S): ``""``, ``"b"``, ``"h"`` or ``"bh"``."""
        return {2: "", 3: "b" if self.batched else "h"}.get(self.values.ndim, "bh")

    @property
    def counts(self) -> tuple[int, int]:
        """How many batch entries and heads there are."""
        sizes = dict(zip(self.axes, self.values.shape, strict=False))
        return sizes.get("b", 1), sizes.get("h", 1)

    def weights(self, picked: Picked) -> Array:
        """Return them as finished weights (B, H, L, S).

        Raises
        ------
        ShapeError
            The array is not (…, L, S).
        DataError
            A weight is negative or not finite.

        Warns
        -----
        AttnWarning
            A row adds up to more than 1.
        """
        weights = self._four_axes("weights", picked)
        if weights.size and not are_weights(float(np.min(weights)), float(np.max(weights))):
            finite = np.isfinite(weights)
            most = float(np.max(weights, where=finite, initial=0.0))
            raise self._unexpected(
                weights,
                ~(finite & (weights >= least_weight(most))),
                "finished weights, finite and not negative",
                hint="for attention from query, key and value give their files; heatmap --what "
                "scores draws scores",
            )
        most = float(np.max(weights.sum(axis=-1, dtype=np.float64)))
        if most > _MOST_OF_A_ROW:
            warn(f"{self.name}: a row adds up to {most:.4g}, not to 1: are these weights?")
        return weights

    def scores(self, picked: Picked) -> Array:
        """Return them as finished scores (B, H, L, S).

        Raises
        ------
        ShapeError
            The array is not (…, L, S).
        DataError
            A score is NaN or +inf.
        """
        scores = self._four_axes("scores", picked)
        wrong = ~(scores < np.inf)
        if wrong.any():
            raise self._unexpected(scores, wrong, "finished scores, finite numbers or −inf")
        return scores

    def hidden_cells(self, picked: Picked) -> npt.NDArray[np.bool_] | None:
        """Return which cells are hidden, (B, H, L, S), where that is known."""
        return None if self.hidden is None else self._of_those(self.hidden, picked)

    def refusal(self, hint: str) -> UsageError:
        """Return the error for finished weights where a problem is needed."""
        what = "expected query, key and value; found a single array (finished weights?)"
        return UsageError(f"{self.name}: {what}", hint=hint)

    def _four_axes(self, what: Kind, picked: Picked) -> Array:
        values = self.values
        if values.dtype == BFLOAT16:
            values = widen(values, np.float32)
        if values.dtype.kind not in "fiu":
            raise DataError(f"{self.name}: expected {what}; found {values.dtype.name}")
        if values.dtype.kind != "f":  # differences of unsigned numbers would be wrong
            values = values.astype(np.float64)
        if not 2 <= values.ndim <= 4:
            raise ShapeError(f"{self.name}: expected {what} (…, queries, keys) of 2 to 4 axes")
        return self._of_those(values, picked)

    def _of_those(self, array: Array, picked: Picked) -> Array:
        """Return an array (…, L, S) as (B, H, L, S), with the batch entries and heads picked."""
        array = array.reshape(*self.counts, *array.shape[-2:])
        for axis, indices in enumerate(picked):
            if indices is not None:
                array = array.take([indices] if isinstance(indices, int) else indices, axis)
        return array

    def _unexpected(
        self, values: Array, wrong: npt.NDArray[np.bool_], expected: str, hint: str | None = None
    ) -> DataError:
        first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        return DataError(
            f"{self.name}: expected {expected}; found {number_found(float(values[first]))} at "
            f"query {first[-2]}, key {first[-1]}",
            hint=hint,
        )
