"""Query, key and value must be finite in the computing dtype, except keys that no query sees.

Padding may hold anything, NaN included. It counts as absent: its rows are set to
zero here, so that the engine need not handle them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError
from attncli.numerics.dtypes import in_float64, readable
from attncli.numerics.finite import finite_in
from attncli.problem.arguments import number_found

if TYPE_CHECKING:
    from attncli.problem.arguments import Names
    from attncli.problem.layout import Layout
    from attncli.problem.visibility import Visibility

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_ROWS_AT_A_TIME = 1024


def checked_numbers(
    named: Names,
    form: Layout,
    query: Array,
    key: Array,
    value: Array | None,
    visible: Visibility,
    dtype: np.dtype[Any],
) -> tuple[Array, Array | None]:
    """Refuse numbers that are not finite in the computing dtype, and return key and value.

    Rows of keys and values that no query sees are set to zero where they are not finite. With the
    layout, errors give the index in the user's array.
    """
    if not finite_in(query, dtype):
        _refuse(named("query"), form, query, ~_finite_rows(query, dtype), dtype)
    seen: npt.NDArray[np.bool_] | None = None
    cleaned: dict[str, Array | None] = {}
    for name, array in (("key", key), ("value", value)):
        cleaned[name] = array
        if array is None or finite_in(array, dtype):
            continue
        if seen is None:
            seen = _seen_keys(visible, query.shape, key.shape)
        broken = ~_finite_rows(array, dtype)
        if (broken & seen).any():
            _refuse(named(name), form, array, broken & seen, dtype)
        zeroed = array.copy()
        zeroed[broken] = np.zeros((), array.dtype)
        cleaned[name] = zeroed
    cleaned_key = cleaned["key"]
    return key if cleaned_key is None else cleaned_key, cleaned["value"]


def _finite_rows(array: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows (B, H, S) hold finite numbers only."""
    rows: npt.NDArray[np.bool_] = np.logical_and.reduce(_finite(array, dtype), axis=-1)
    return rows


def _finite(array: Array, dtype: np.dtype[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers are finite in the computing dtype."""
    with np.errstate(over="ignore"):
        finite: npt.NDArray[np.bool_] = np.isfinite(readable(array).astype(dtype, copy=False))
    return finite


def _seen_keys(visible: Visibility, query: Shape, key: Shape) -> npt.NDArray[np.bool_]:
    """Return which keys (B or 1, G, S) at least one query sees."""
    batch, heads, queries, _ = query
    seen = np.zeros(key[:3], np.bool_)
    for b in range(batch):
        for h in range(heads):
            row = seen[b % key[0], h // (heads // key[1])]
            for start in range(0, queries, _ROWS_AT_A_TIME):
                rows = start, min(start + _ROWS_AT_A_TIME, queries)
                tile = visible.tile(b, h, rows, (0, key[2]))
                row |= True if tile is None else tile.any(axis=0)
    return seen


def _refuse(
    name: str, form: Layout, array: Array, rows: npt.NDArray[np.bool_], dtype: np.dtype[Any]
) -> NoReturn:
    """Raise the error that names the first element of the broken rows, in the user's axes."""
    wrong = form.join(~_finite(array, dtype) & rows[..., None])
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    found = float(form.join(readable(array))[index])
    if math.isfinite(found):
        raise DataError(
            f"{name}: expected numbers that {dtype.name}, the computing dtype, can hold; "
            f"found {found:g} at index {index}",
            hint=in_float64(dtype),
        )
    raise DataError(
        f"{name}: expected finite numbers; found {number_found(found)} at index {index}",
        hint="only keys that no query sees may hold NaN or inf: padding that kv_lengths, "
        "key_padding_mask, segment_ids or mask hides",
    )
