"""Query, key and value: their axes, their heads, and whether they fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError, UsageError, warn
from attncli.errors.text import counted
from attncli.problem import arguments
from attncli.problem.arguments import shape_text
from attncli.problem.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.arguments import Names
    from attncli.problem.output import OutputProjection

Array = npt.NDArray[Any]

# About the most heads that a model has; a longer axis is probably the sequence.
_MANY_HEADS = 64
_ROWS = "each row is one token: query (…, L, D), key (…, S, D), value (…, S, E)"
_LAYOUT = "state the order of the axes with layout (--layout): b batch, h head, s sequence, d width"


def inputs(
    named: Names, query: object, key: object, value: object, given: Mapping[str, Any]
) -> tuple[Array, Array, Array | None, Layout]:
    """Return query, key and value as (B, H, L, D), (B, G, S, D), (B, G, S, E), and their layout."""
    whole = {"query": query, "key": key} | ({} if value is None else {"value": value})
    arrays = {name: arguments.real_array(named(name), array) for name, array in whole.items()}
    ndim = _common_rank(named, arrays)
    counts = _head_counts(named, given["heads"], given["kv_heads"], ndim)
    layout = given["layout"]
    if layout is not None:
        arguments.layout_axes(named("layout"), layout)
    form = Layout.of(ndim, layout, packed=counts is not None)
    query_heads, key_heads = counts or (1, 1)
    q = form.split(arrays["query"], query_heads, named("query"))
    k = form.split(arrays["key"], key_heads, named("key"))
    v = form.split(arrays["value"], key_heads, named("value")) if value is not None else None
    # W of the general score maps the query's width to the key's.
    _check_fit(named, arrays, q, k, v, any_width=given["score"] == "general")
    if len(q) < len(k):  # every batch entry has the same queries
        q = np.broadcast_to(q, (len(k), *q.shape[1:]))
    return q, k, v, form


def _common_rank(named: Names, arrays: Mapping[str, Array]) -> int:
    """Return the number of axes, which all arrays share; name an array with another number."""
    rank = arrays["query"].ndim
    for name, array in arrays.items():
        if not 2 <= array.ndim <= 4:
            one = f"a single vector is one row: reshape it to {shape_text((1, array.size))}"
            raise ShapeError(
                f"{named(name)}: expected 2, 3 or 4 axes, (…, rows, width); "
                f"found shape {shape_text(array.shape)}",
                hint=one if array.ndim == 1 else None,
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
    named: Names, heads: object, kv_heads: object, ndim: int
) -> tuple[int, int] | None:
    if heads is None:
        if kv_heads is not None:
            raise UsageError(
                "kv_heads splits packed keys and values",
                hint="leave kv_heads out: 4 axes have one for the heads"
                if ndim == 4
                else "give heads, too",
            )
        return None
    query_heads = arguments.positive_int(named("heads"), heads)
    if kv_heads is None:
        return query_heads, query_heads
    return query_heads, arguments.positive_int(named("kv_heads"), kv_heads)


def _check_fit(
    named: Names,
    arrays: Mapping[str, Array],
    q: Array,
    k: Array,
    v: Array | None,
    *,
    any_width: bool,
) -> None:
    """Check the sizes of the canonical axes against each other."""
    batch, heads, _, width = q.shape
    key_batch, key_heads, keys, key_width = k.shape

    def both() -> str:  # a text that only errors need
        return _shapes(named, arrays, "query", "key")

    if width != key_width and not any_width:
        packed = q.shape[1] == 1 and arrays["query"].ndim < 4 and width % key_width == 0
        raise ShapeError(
            f"{both()}: expected the same width; found {width} and {key_width}",
            hint="if heads lie side by side, give heads and kv_heads (--heads H --kv-heads G)"
            if packed
            else _ROWS,
        )
    if key_batch != batch and 1 not in (key_batch, batch):
        raise ShapeError(
            f"{both()}: expected the same batch size, or 1 for one of them",
            hint=_LAYOUT,
        )
    if heads % key_heads:
        raise ShapeError(
            f"{both()}: {counted(heads, 'query head')} cannot share "
            f"{counted(key_heads, 'key/value head')} evenly",
            hint=_LAYOUT,
        )
    if v is not None and v.shape[2] != keys:
        raise ShapeError(
            f"{_shapes(named, arrays, 'key', 'value')}: expected a value for each key; "
            f"found {counted(keys, 'key')} and {counted(v.shape[2], 'value')}",
            hint=_ROWS,
        )
    if v is not None and v.shape[:2] != (key_batch, key_heads):
        raise ShapeError(
            f"{_shapes(named, arrays, 'key', 'value')}: expected the same batch size and heads"
        )


def advise_on_axes(form: Layout, q: Array, k: Array) -> None:
    """Warn where the head and the sequence axis are perhaps exchanged."""
    heads, keys = q.shape[1], k.shape[2]
    other = form.exchanged
    if other is not None and heads > _MANY_HEADS and heads > keys:
        warn(
            f"layout {form.axes} reads {heads} heads of {keys} keys each: perhaps the head and "
            f"sequence axes are exchanged; layout {other} (--layout {other}) reads them the other "
            "way"
        )


def output_projection(
    named: Names, wo: object, bo: object, form: Layout, heads: int, v: Array | None
) -> OutputProjection | None:
    """Return the checked projection of the context, or None."""
    if wo is None and bo is None:
        return None
    from attncli.problem.output import make_output  # noqa: PLC0415 - most problems have none

    if v is None:
        raise UsageError("wo projects the context, but there is no value to compute it from")
    if "h" in form.axes:
        raise UsageError(
            f"wo projects heads that lie side by side; layout {form.axes!r} has a head axis",
            hint="give packed inputs, and split them with heads (--heads)",
        )
    # Each query head brings the width of its value, also where heads share values.
    return make_output(named, wo, bo, heads * v.shape[3])
