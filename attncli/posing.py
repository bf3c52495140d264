"""The door: arguments come in, a checked `Problem` goes out or one error.

Every rule on how arguments must fit together is here, and nothing is checked again
behind it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from attncli import arguments
from attncli.arguments import Names, shape_text, warn
from attncli.dtypes import BFLOAT16, widen
from attncli.errors import DataError, ShapeError, UsageError
from attncli.layout import Layout
from attncli.padding import check_query, without_padding
from attncli.positions import alibi_slopes as paper_slopes
from attncli.problem import Problem, Rope
from attncli.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.positions import Pairing
    from attncli.problem import Score
    from attncli.projection import OutputProjection

__all__ = ["pose"]

Array = npt.NDArray[Any]
ArrayLike = npt.ArrayLike


Shape = tuple[int, int, int, int]

_SCORES = ("dot", "cosine", "general", "additive")
_SINGLE = np.dtype(np.float32)
_ROPE_BASE = 10000.0
# Below so many cells a mask that keeps one in ten says nothing about its polarity.
_FEW_CELLS = 20
# Models have at most about so many heads; a longer axis is rather the sequence.
_MANY_HEADS = 64


def pose(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike | None = None,
    *,
    scale: float | None = None,
    mask: ArrayLike | None = None,
    mask_means: Literal["keep", "drop"] = "keep",
    bias: ArrayLike | None = None,
    key_padding_mask: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    query_lengths: ArrayLike | None = None,
    causal: bool = False,
    causal_align: Literal["top-left", "bottom-right"] | None = None,
    query_offset: ArrayLike | None = None,
    window: int | Sequence[int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: bool | ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    rope: Pairing | None = None,
    rope_base: float = 10000.0,
    score: Score = "dot",
    score_weight: ArrayLike | None = None,
    score_vector: ArrayLike | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    layout: str | None = None,
    precision: Literal["float32", "float64"] | None = None,
    wo: ArrayLike | None = None,
    bo: ArrayLike | None = None,
    query_labels: Sequence[str] | None = None,
    key_labels: Sequence[str] | None = None,
    sources: Mapping[str, str] | None = None,
    unread: bool = False,
) -> Problem:
    """Check the arguments of `attncli.attention` and return the problem they pose.

    Parameters
    ----------
    query, key, value, scale, …, precision
        As in `attncli.attention`.
    wo : array_like (H·E, out), optional
        The context becomes context · wo + bo, its heads side by side.
    bo : array_like (out,), optional
    query_labels, key_labels : sequence of str, optional
        Names of the L queries and the S keys, for tables and pictures.
    sources : mapping of str to str, optional
        Argument name to the file it came from, for errors.
    unread : bool
        Leave it to the engine to notice where key or value is not finite: to look at
        them beforehand would take a single query as long as its answer.

    Returns
    -------
    Problem

    Raises
    ------
    AttnError
        An argument is not what it should be, or two do not fit together. Always one
        of its subclasses, and always a `ValueError`.

    Warns
    -----
    AttnWarning
        The arguments are right but probably not what was meant.
    """
    say = Names(sources)
    q, k, v, form = _inputs(say, query, key, value, heads=heads, kv_heads=kv_heads, layout=layout)
    shape = (*q.shape[:3], k.shape[2])
    arguments.choice("mask_means", mask_means, ("keep", "drop"))
    lengths = _lengths(say, "kv_lengths", kv_lengths, shape[0], shape[3])
    visible = Visibility(
        queries=shape[2],
        keys=shape[3],
        mask=_mask(say, mask, mask_means, form, shape),
        key_padding=_key_padding(say, key_padding_mask, mask_means, shape),
        kv_lengths=lengths,
        query_lengths=_lengths(say, "query_lengths", query_lengths, shape[0], shape[2]),
        causal=arguments.flag("causal", causal),
        window=None if window is None else arguments.window_pair(say("window"), window),
    )
    slopes = _slopes(say, alibi_slopes, shape[1])
    turn = _rope(rope, rope_base, q.shape[3])
    if visible.causal or visible.window or slopes is not None or turn:
        visible = _placed(say, visible, causal_align, query_offset, shape)
    else:
        _refuse_unused(causal_align=causal_align, query_offset=query_offset)
    if mask_means == "drop" and mask is None and key_padding_mask is None:
        raise UsageError("mask_means says how a mask is read, but there is no mask")
    _advise_on_axes(form, q, k)
    check_query(say, form, q)
    look = partial(without_padding, say, form, q.shape, k, v, visible)
    if not unread:
        k, v = look()
    output = _output(say, wo, bo, form, shape[1], v)
    return Problem(
        query=q,
        key=k,
        value=v,
        dtype=_computing_dtype(precision, q, k, v, None if output is None else output.weight),
        layout=form,
        visible=visible,
        scale=_scale(scale, score, q.shape[3]),
        score=cast("Score", arguments.choice("score", score, _SCORES)),
        score_weight=_score_weight(say, score, score_weight, q.shape[3]),
        score_vector=_score_vector(say, score, score_vector, q.shape[3]),
        softcap=None if softcap is None else arguments.positive_number("softcap", softcap),
        bias=_bias(say, bias, form, shape),
        slopes=slopes,
        sinks=_sinks(say, sinks, shape[1]),
        rope=turn,
        output=output,
        query_labels=_labels(say("query_labels"), query_labels, shape[2], "query"),
        key_labels=_labels(say("key_labels"), key_labels, shape[3], "key"),
        unread=look if unread else None,
    )


def _inputs(
    say: Names,
    query: object,
    key: object,
    value: object,
    *,
    heads: int | None,
    kv_heads: int | None,
    layout: str | None,
) -> tuple[Array, Array, Array | None, Layout]:
    """Return query, key and value as (B, H, L, D), (B, G, S, D), (B, G, S, E), and their layout."""
    given = {"query": query, "key": key} | ({} if value is None else {"value": value})
    arrays = {name: arguments.real_array(say(name), array) for name, array in given.items()}
    _check_ranks(say, arrays)
    counts = _head_counts(heads, kv_heads)
    form = Layout.of(arrays["query"].ndim, layout, packed=counts is not None)
    query_heads, key_heads = counts or (1, 1)
    q = form.split(arrays["query"], query_heads, say("query"))
    k = form.split(arrays["key"], key_heads, say("key"))
    v = form.split(arrays["value"], key_heads, say("value")) if value is not None else None
    _check_shapes(say, arrays, q, k, v)
    return q, k, v, form


def _check_ranks(say: Names, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        if not 2 <= array.ndim <= 4:
            raise ShapeError(
                f"{say(name)}: expected 2, 3 or 4 axes, (…, rows, width); "
                f"found shape {shape_text(array.shape)}"
            )
        if 0 in array.shape:
            raise ShapeError(f"{say(name)}: shape {shape_text(array.shape)} holds no numbers")
        if array.ndim != arrays["query"].ndim:
            raise ShapeError(
                f"{_shapes(say, arrays, 'query', name)}: expected the same number of axes"
            )


def _shapes(say: Names, arrays: Mapping[str, Array], one: str, other: str) -> str:
    return (
        f"{say(one)} has shape {shape_text(arrays[one].shape)} and "
        f"{say(other)} {shape_text(arrays[other].shape)}"
    )


def _head_counts(heads: int | None, kv_heads: int | None) -> tuple[int, int] | None:
    if heads is None:
        if kv_heads is not None:
            raise UsageError("kv_heads cuts packed keys and values; it needs heads beside it")
        return None
    query_heads = arguments.positive_int("heads", heads)
    key_heads = query_heads if kv_heads is None else arguments.positive_int("kv_heads", kv_heads)
    return query_heads, key_heads


def _check_shapes(
    say: Names, arrays: Mapping[str, Array], q: Array, k: Array, v: Array | None
) -> None:
    """Check the sizes of the canonical axes against each other."""
    between = partial(_shapes, say, arrays, "query", "key")
    if q.shape[3] != k.shape[3]:
        raise ShapeError(
            f"{between()}: expected the same width, found {q.shape[3]} and {k.shape[3]}",
            hint=_width_hint(q, k),
        )
    if k.shape[0] not in (1, q.shape[0]):
        raise ShapeError(f"{between()}: expected the same batch, or 1 for keys and values")
    if q.shape[1] % k.shape[1]:
        raise ShapeError(
            f"{between()}: {q.shape[1]} query heads cannot share {k.shape[1]} key/value heads "
            "evenly",
            hint=_layout_hint(arrays["query"].ndim),
        )
    if v is None:
        return
    between = partial(_shapes, say, arrays, "key", "value")
    if k.shape[2] != v.shape[2]:
        raise ShapeError(
            f"{between()}: expected a value for each key, found {k.shape[2]} keys and "
            f"{v.shape[2]} values"
        )
    if k.shape[:2] != v.shape[:2]:
        raise ShapeError(f"{between()}: expected the same batch and heads")


def _width_hint(q: Array, k: Array) -> str | None:
    if q.shape[3] == k.shape[2]:
        return "key looks transposed: attncli wants one key a row, (S, D)"
    return None


def _layout_hint(ndim: int) -> str | None:
    if ndim == 4:
        return "where the sequence comes before the heads, (B, L, H, D), say layout bshd (--layout)"
    if ndim == 3:
        return "say what the first axis is with layout (--layout bsd, hsd or shd)"
    return None


def _computing_dtype(precision: object, *arrays: Array | None) -> np.dtype[Any]:
    """Return the widest of the arrays' dtypes, at least float32, or the one asked for."""
    if precision is not None:
        return np.dtype(arguments.choice("precision", precision, ("float32", "float64")))
    double = np.dtype(np.float64)
    return double if any(a is not None and a.dtype == double for a in arrays) else _SINGLE


def _output(
    say: Names,
    wo: object,
    bo: object,
    form: Layout,
    heads: int,
    v: Array | None,
) -> OutputProjection | None:
    if wo is None and bo is None:
        return None
    from attncli.projection import make_output  # noqa: PLC0415 - most problems have none

    if v is None:
        raise UsageError("wo projects the context, and the context needs a value")
    if "h" in form.axes:
        raise UsageError(
            f"wo projects heads that lie side by side; layout {form.axes!r} has a head axis",
            hint="give packed inputs, and cut them with heads (--heads)",
        )
    # Each query head brings the width of its value, also where heads share values.
    return make_output(say, wo, bo, heads * v.shape[3])


def _scale(scale: object, score: str, width: int) -> float:
    if scale is not None:
        return arguments.finite_number("scale", scale)
    return 1.0 / math.sqrt(width) if score == "dot" else 1.0


def _score_weight(say: Names, score: str, weight: object, width: int) -> Array | None:
    if score != "general":
        _refuse_without("score general", score_weight=weight)
        return None
    if weight is None:
        raise UsageError(
            "score general needs its matrix W, of shape "
            f"{shape_text((width, width))}: give score_weight (--score-weight)"
        )
    array = arguments.finite_array(say("score_weight"), weight)
    if array.shape != (width, width):
        raise ShapeError(
            f"{say('score_weight')}: expected shape {shape_text((width, width))}, the width of "
            f"query and key; found {shape_text(array.shape)}"
        )
    return array


def _score_vector(say: Names, score: str, vector: object, width: int) -> Array | None:
    if score != "additive":
        _refuse_without("score additive", score_vector=vector)
        return None
    if vector is None:
        return np.ones(width)
    array = arguments.vector(say("score_vector"), vector)
    if len(array) != width or not np.isfinite(array).all():
        raise ShapeError(
            f"{say('score_vector')}: expected {width} finite numbers, the width of query and key; "
            f"found {len(array)}"
        )
    return array


def _refuse_without(needed: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} is for {needed} alone")


def _refuse_unused(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} says where the queries stand among the keys, but no rule asks for it",
                hint="it goes with causal, window, alibi_slopes or rope",
            )


def _rope(rope: object, base: object, width: int) -> Rope | None:
    base = arguments.positive_number("rope_base", base)
    if rope is None:
        if base != _ROPE_BASE:
            raise UsageError("rope_base is for rope alone", hint="give rope half or interleaved")
        return None
    pairing = arguments.choice("rope", rope, ("half", "interleaved"))
    if width % 2:
        raise ShapeError(f"rope turns pairs of components: expected an even width, found {width}")
    return Rope(cast("Pairing", pairing), base)


def _lengths(
    say: Names, name: str, value: object, batch: int, limit: int
) -> tuple[int, ...] | None:
    if value is None:
        return None
    return arguments.whole_numbers(say(name), value, batch, of="batch entry", low=0, high=limit)


def _placed(
    say: Names, visible: Visibility, align: object, offset: object, shape: Shape
) -> Visibility:
    """Return the rules with the position of the first query among the keys."""
    batch, _, queries, keys = shape
    if offset is not None:
        if align is not None:
            raise UsageError(
                "causal_align and query_offset both say where the queries stand",
                hint="give one of the two",
            )
        numbers = arguments.whole_numbers(say("query_offset"), offset, batch, of="batch entry")
        return replace(visible, offsets=numbers)
    if align is None:
        if queries != keys and (visible.causal or visible.window):
            _advise_on_alignment(queries, keys)
        return visible
    if arguments.choice("causal_align", align, ("top-left", "bottom-right")) == "top-left":
        return visible
    lengths = visible.kv_lengths or (keys,)
    return replace(visible, offsets=tuple(length - queries for length in lengths))


def _advise_on_alignment(queries: int, keys: int) -> None:
    warn(
        f"{queries} queries and {keys} keys, and no alignment said: query i is taken to stand at "
        f"key i (top-left: PyTorch, JAX, ONNX). With bottom-right (FlashAttention, KV-cache "
        f"decoding) it stands at key i + {keys - queries}. Say which with causal_align "
        "(--causal-align)"
    )


def _mask(
    say: Names, mask: object, means: str, form: Layout, shape: Shape
) -> npt.NDArray[np.bool_] | None:
    if mask is None:
        return None
    array = arguments.truth_array(say("mask"), mask)
    canonical = _to_weights(say("mask"), array, form, shape)
    if array.ndim == 3 and len(form.weight_axes) == 2 and 1 < shape[0] == shape[1]:
        warn(
            f"{say('mask')} of shape {shape_text(array.shape)} is read as one mask a head, "
            "(H, L, S), by NumPy's rules; batch and heads are equally many, so (B, L, S) would fit "
            "too. For one mask a batch entry give it as (B, 1, L, S)"
        )
    seen = np.logical_not(canonical) if means == "drop" else canonical
    _advise_on_polarity(say("mask"), seen)
    return seen


def _advise_on_polarity(name: str, seen: npt.NDArray[np.bool_]) -> None:
    kept = np.count_nonzero(seen)
    if seen.size >= _FEW_CELLS and kept * 10 <= seen.size:
        share = 100 * kept / seen.size
        warn(
            f"{name} lets only {share:.2g} % of the pairs attend: is it inverted? Here true means "
            "may attend; mask_means drop (--mask-means drop) reads the opposite"
        )


def _key_padding(
    say: Names, mask: object, means: str, shape: Shape
) -> npt.NDArray[np.bool_] | None:
    if mask is None:
        return None
    array = np.atleast_1d(arguments.truth_array(say("key_padding_mask"), mask))
    batch, keys = shape[0], shape[3]
    if array.ndim > 2 or array.shape[-1] != keys or len(np.atleast_2d(array)) not in (1, batch):
        raise ShapeError(
            f"{say('key_padding_mask')}: expected shape {shape_text((batch, keys))} or "
            f"{shape_text((keys,))}, batch and keys; found {shape_text(array.shape)}"
        )
    seen = np.atleast_2d(array)
    return np.logical_not(seen) if means == "drop" else seen


def _bias(say: Names, bias: object, form: Layout, shape: Shape) -> Array | None:
    if bias is None:
        return None
    array = arguments.real_array(say("bias"), bias)
    wide = widen(array, np.float32) if array.dtype == BFLOAT16 else array
    # A maximum is NaN where any element is, so one look at the extremes is enough.
    if not wide.size or not np.max(wide) < np.inf:
        arguments.refuse_first(
            say("bias"), wide, np.isnan(wide) | (wide == np.inf), "finite numbers or −inf"
        )
    return _to_weights(say("bias"), wide, form, shape)


def _to_weights(name: str, array: Array, form: Layout, shape: Shape) -> Array:
    """Return an array that broadcasts to the weights in four axes."""
    target = form.weights_shape(shape)
    pairs = zip(reversed(array.shape), reversed(target), strict=False)
    if array.ndim > len(target) or any(found not in (1, size) for found, size in pairs):
        raise ShapeError(
            f"{name}: expected a shape that broadcasts to the weights' {shape_text(target)}, "
            f"(…, queries, keys); found {shape_text(array.shape)}",
            hint=_mask_hint(array.shape, shape),
        )
    return form.broadcastable(array)


def _mask_hint(found: tuple[int, ...], shape: Shape) -> str | None:
    batch, _, queries, keys = shape
    if found == (batch, keys):
        return "one row a batch entry is a key_padding_mask (--key-padding-mask)"
    if queries != keys and found[-2:] == (keys, queries):
        return "it looks transposed: rows are queries, columns are keys"
    return None


def _slopes(say: Names, slopes: object, heads: int) -> Array | None:
    if slopes is None or slopes is False:
        return None
    if slopes is True:
        return np.array(paper_slopes(heads))
    return _one_a_head(say("alibi_slopes"), slopes, heads)


def _sinks(say: Names, sinks: object, heads: int) -> Array | None:
    return None if sinks is None else _one_a_head(say("sinks"), sinks, heads)


def _one_a_head(name: str, value: object, heads: int) -> Array:
    array = arguments.vector(name, value)
    if len(array) != heads:
        raise ShapeError(f"{name}: expected one number a query head ({heads}); found {len(array)}")
    if not np.isfinite(array).all():
        raise DataError(f"{name}: expected finite numbers; found {array.tolist()}")
    return array


def _labels(name: str, labels: Sequence[str] | None, count: int, of: str) -> tuple[str, ...] | None:
    return None if labels is None else arguments.label_list(name, labels, count, of=of)


def _advise_on_axes(form: Layout, q: Array, k: Array) -> None:
    heads, keys = q.shape[1], k.shape[2]
    if heads > _MANY_HEADS and heads > keys and not form.packed:
        other = {"bhsd": "bshd", "bshd": "bhsd", "hsd": "shd", "shd": "hsd"}[form.axes]
        warn(
            f"layout {form.axes} reads {heads} heads of {keys} keys each: are the head and the "
            f"sequence axis exchanged? layout {other} (--layout {other}) reads the other way"
        )
