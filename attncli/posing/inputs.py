"""Query, key and value: their axes, their heads, and whether they fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli import arguments
from attncli.arguments import shape_text
from attncli.errors import ShapeError, UsageError
from attncli.layout import Layout
from attncli.names import INPUTS
from attncli.text import counted
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.arguments import Names
    from attncli.projection import OutputProjection

__all__ = ["advise_on_axes", "inputs", "output_projection"]

Array = npt.NDArray[Any]

# Other orders of query, key and value: first those in which two of them are exchanged.
_ORDERS = ((0, 2, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1))
# Which of them may be transposed.
_ONE, _TWO, _ALL = ((0,), (1,), (2,)), ((0, 1), (1, 2), (0, 2)), (0, 1, 2)
# Models have at most about so many heads; a longer axis is rather the sequence.
_MANY_HEADS = 64


def inputs(
    named: Names,
    query: object,
    key: object,
    value: object,
    *,
    heads: int | None,
    kv_heads: int | None,
    layout: str | None,
    any_width: bool,
) -> tuple[Array, Array, Array | None, Layout]:
    """Return query, key and value as (B, H, L, D), (B, G, S, D), (B, G, S, E), and their layout."""
    arrays = {
        "query": arguments.real_array(named("query"), query),
        "key": arguments.real_array(named("key"), key),
    }
    if value is not None:
        arrays["value"] = arguments.real_array(named("value"), value)
    ndim = _common_rank(named, arrays)
    counts = _head_counts(named, heads, kv_heads, ndim)
    if layout is not None:
        arguments.layout_axes(named("layout"), layout)
    form = Layout.of(ndim, layout, packed=counts is not None)
    query_heads, key_heads = counts or (1, 1)
    q = form.split(arrays["query"], query_heads, named("query"))
    k = form.split(arrays["key"], key_heads, named("key"))
    v = form.split(arrays["value"], key_heads, named("value")) if value is not None else None
    _check_shapes(named, arrays, q, k, v, layout, any_width=any_width)
    if len(q) < len(k):  # every batch entry has the same queries
        q = np.broadcast_to(q, (len(k), *q.shape[1:]))
    return q, k, v, form


def _one_row(array: Array) -> str:
    return f"a single vector is one row: reshape it to {shape_text((1, array.size))}"


def _common_rank(named: Names, arrays: Mapping[str, Array]) -> int:
    """Return how many axes all arrays have, or say which of them does not fit."""
    rank = arrays["query"].ndim
    for name, array in arrays.items():
        if not 2 <= array.ndim <= 4:
            raise ShapeError(
                f"{named(name)}: expected 2, 3 or 4 axes, (…, rows, width); "
                f"found shape {shape_text(array.shape)}",
                hint=_one_row(array) if array.ndim == 1 else None,
            )
        if not array.size:
            raise ShapeError(f"{named(name)}: shape {shape_text(array.shape)} holds no numbers")
        if array.ndim != rank:
            raise ShapeError(
                f"{_shapes(named, arrays, 'query', name)}: expected the same number of axes"
            )
    return rank


def _shapes(named: Names, arrays: Mapping[str, Array], one: str, other: str) -> str:
    return (
        f"{named(one)} has shape {shape_text(arrays[one].shape)} and "
        f"{named(other)} {shape_text(arrays[other].shape)}"
    )


def _head_counts(
    named: Names, heads: int | None, kv_heads: int | None, ndim: int
) -> tuple[int, int] | None:
    if heads is None:
        if kv_heads is not None and ndim == 4:
            raise UsageError(
                "kv_heads splits packed keys and values; with 4 axes they have one for the heads",
                hint="leave kv_heads out",
            )
        if kv_heads is not None:
            raise UsageError("kv_heads splits packed keys and values: give heads, too")
        return None
    query_heads = arguments.positive_int(named("heads"), heads)
    if kv_heads is None:
        return query_heads, query_heads
    return query_heads, arguments.positive_int(named("kv_heads"), kv_heads)


def _check_shapes(
    named: Names,
    arrays: Mapping[str, Array],
    q: Array,
    k: Array,
    v: Array | None,
    layout: str | None,
    *,
    any_width: bool,
) -> None:
    """Check the sizes of the canonical axes against each other."""
    batch, heads, _, width = q.shape
    key_batch, key_heads, keys, key_width = k.shape
    if width != key_width and not any_width:
        packed = width != arrays["query"].shape[-1] or key_width != arrays["key"].shape[-1]
        of_a_head = " of a head" if packed else ""
        raise ShapeError(
            f"{_shapes(named, arrays, 'query', 'key')}: expected the same width{of_a_head}; "
            f"found {width} and {key_width}",
            hint=_packed_hint(arrays, heads if packed else None) or _width_hint(q, k, v),
        )
    if key_batch != batch and 1 not in (key_batch, batch):
        raise ShapeError(
            f"{_shapes(named, arrays, 'query', 'key')}: expected the same batch size, or 1 "
            "for one of them",
            hint=_layout_hint(3) if arrays["query"].ndim == 3 and not layout else None,
        )
    if heads % key_heads:
        raise ShapeError(
            f"{_shapes(named, arrays, 'query', 'key')}: {counted(heads, 'query head')} cannot "
            f"share {counted(key_heads, 'key/value head')} evenly",
            hint=_layout_hint(arrays["query"].ndim, layout),
        )
    if v is None:
        return
    if v.shape[2] != keys:
        raise ShapeError(
            f"{_shapes(named, arrays, 'key', 'value')}: expected a value for each key; "
            f"found {counted(keys, 'key')} and {counted(v.shape[2], 'value')}",
            hint=_reading_hint(q, k, v),
        )
    if v.shape[:2] != (key_batch, key_heads):
        raise ShapeError(
            f"{_shapes(named, arrays, 'key', 'value')}: expected the same batch size and heads"
        )


def _packed_hint(arrays: Mapping[str, Array], heads: int | None) -> str | None:
    """Return how many heads there may be, where keys and values are narrower than queries.

    Parameters
    ----------
    arrays : mapping of str to ndarray
    heads : int or None
        How many query heads are said to lie side by side.
    """
    query, key, value = (arrays.get(name) for name in INPUTS)
    if query is None or key is None or value is None or query.ndim == 4:
        return None
    wide, narrow = query.shape[-1], key.shape[-1]
    if key.shape != value.shape or wide % narrow:
        return None
    if heads is None:
        return "if heads lie side by side: heads and kv_heads (--heads H --kv-heads G)"
    groups, rest = divmod(narrow * heads, wide)
    if groups and not rest and heads % groups == 0:
        return (
            f"if key and value have fewer heads than the query: kv_heads {groups} "
            f"(--kv-heads {groups})"
        )
    most = f"a head is at most as wide as all keys, {narrow}"
    return f"{most}: give {wide // narrow} heads (--heads) or more"


def _width_hint(q: Array, k: Array, v: Array | None) -> str | None:
    """Return which of them is probably not what it is given as, or how it should be."""
    if v is not None:
        return _reading_hint(q, k, v)
    query_turned, key_turned = k.shape[3] == q.shape[2], k.shape[2] == q.shape[3]
    if query_turned and key_turned:
        return (
            "one of them looks transposed (one query or key per row), or the second holds no keys"
        )
    if query_turned:
        return _transposed(0)
    return _transposed(1) if key_turned else None


def _reading_hint(q: Array, k: Array, v: Array) -> str | None:
    """Return how query, key and value would fit: in another order, or transposed."""
    order = next((each for each in _ORDERS if _fits(*((q, k, v)[i] for i in each))), None)
    if order is None:
        fits = (_transposed(*turned) for turned in (*_ONE, _ALL, *_TWO) if _fit(q, k, v, turned))
        return next(fits, None)
    moved = [name for place, name in enumerate(INPUTS) if order[place] != place]
    which = " and ".join(moved) if len(moved) == 2 else "all three"
    exchanged = f"{which} look exchanged: the order is query, key, value"
    return f"{_transposed(*_ALL)}; or {exchanged}" if _fit(q, k, v, _ALL) else exchanged


def _fit(q: Array, k: Array, v: Array, turned: tuple[int, ...]) -> bool:
    """Return whether three arrays fit if some of them are transposed."""
    return _fits(*(a.swapaxes(2, 3) if i in turned else a for i, a in enumerate((q, k, v))))


def _fits(q: Array, k: Array, v: Array) -> bool:
    """Return whether three arrays (B, H, S, D) are query, key and value of one problem."""
    return (
        q.shape[3] == k.shape[3]
        and k.shape[:3] == v.shape[:3]
        and k.shape[0] in (1, q.shape[0])
        and q.shape[1] % k.shape[1] == 0
    )


def _transposed(*places: int) -> str:
    names = [INPUTS[place] for place in places]
    if len(names) > 1:
        which = " and ".join(names) if len(names) == 2 else "all three"
        return f"{which} look transposed: expected one query, key or value per row"
    (name,) = names
    shape = {"query": "(L, D)", "key": "(S, D)", "value": "(S, E)"}[name]
    return f"{name} looks transposed: expected one {name} per row, {shape}"


def _layout_hint(ndim: int, layout: str | None = None) -> str | None:
    if layout:
        return (
            f"layout {layout} says which axis is that of the heads: is it another one (--layout)?"
        )
    if ndim == 4:
        return "if the sequence comes before the heads, (B, L, H, D), give layout bshd (--layout)"
    if ndim == 3:
        return "say what the first axis is with layout (--layout bsd, hsd, sbd or shd)"
    return None


def advise_on_axes(form: Layout, q: Array, k: Array) -> None:
    """Warn where the head and the sequence axis look exchanged."""
    heads, keys = q.shape[1], k.shape[2]
    other = form.exchanged
    if other is not None and heads > _MANY_HEADS and heads > keys:
        warn(
            f"layout {form.axes} reads {heads} heads of {keys} keys each: are the head and "
            f"sequence axes exchanged? layout {other} (--layout {other}) reads them the other way"
        )


def output_projection(
    named: Names,
    wo: object,
    bo: object,
    form: Layout,
    heads: int,
    v: Array | None,
) -> OutputProjection | None:
    """Return the checked projection of the context, or None."""
    if wo is None and bo is None:
        return None
    from attncli.projection import make_output  # noqa: PLC0415 - most problems have none

    if v is None:
        raise UsageError("wo projects the context, and the context needs a value")
    if "h" in form.axes:
        raise UsageError(
            f"wo projects heads that lie side by side; layout {form.axes!r} has a head axis",
            hint="give packed inputs, and split them with heads (--heads)",
        )
    # Each query head brings the width of its value, also where heads share values.
    return make_output(named, wo, bo, heads * v.shape[3])
