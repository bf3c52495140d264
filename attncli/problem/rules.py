"""Which keys a query sees: the hiding rules, checked, and where the queries stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError, UsageError, warn
from attncli.errors.names import Align
from attncli.errors.text import counted
from attncli.problem import arguments
from attncli.problem.advice import inverted, leaves_little
from attncli.problem.arguments import shape_text
from attncli.problem.packed import segments_of
from attncli.problem.visibility import Visibility

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attncli.problem.arguments import Names
    from attncli.problem.layout import Layout

# The most elements of a mask that become booleans at once, 4 MB; larger ones are read by tile.
_READ_ONCE = 2**22

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Shape = tuple[int, int, int, int]


def rules_of(named: Names, form: Layout, shape: Shape, given: Mapping[str, Any]) -> Visibility:
    """Return the hiding rules, with queries at their default positions."""
    batch, _, queries, keys = shape
    mask, padding, means = given["mask"], given["key_padding_mask"], given["mask_means"]
    if means == "drop" and mask is None and padding is None:
        raise UsageError("mask_means says how a mask is read, but there is no mask")
    window = given["window"]
    return _read_mask(
        named,
        Visibility(
            queries=queries,
            keys=keys,
            mask=None if mask is None else _mask(named("mask"), mask, form, shape),
            mask_drops=mask is not None and means == "drop",
            key_padding_mask=None if padding is None else _padding(named, padding, means, shape),
            kv_lengths=_lengths(named("kv_lengths"), given["kv_lengths"], batch, keys),
            query_lengths=_lengths(named("query_lengths"), given["query_lengths"], batch, queries),
            causal=arguments.flag(named("causal"), given["causal"]),
            window=None if window is None else arguments.window_pair(named("window"), window),
            segment_ids=segments_of(named, given["segment_ids"], given["kv_segment_ids"], shape),
        ),
        means,
    )


def _lengths(name: str, value: object, batch: int, most: int) -> tuple[int, ...] | None:
    if value is None:
        return None
    return arguments.whole_numbers(name, value, batch, of="batch entry", low=0, high=most)


def _mask(name: str, mask: object, form: Layout, shape: Shape) -> Array:
    """Return the mask in four axes, as it was given."""
    return to_weights(name, arguments.truth_numbers(name, mask), form, shape)


def _read_mask(named: Names, visible: Visibility, means: str) -> Visibility:
    """Return the rules with a small mask read once; a large one is read tile by tile."""
    if visible.mask is None:
        return visible
    if visible.mask.size <= _READ_ONCE:
        visible = visible.with_whole_mask()
    if (share := leaves_little(visible.mask_parts())) is not None:
        warn(
            f"{named('mask')} shows only {share:.2g} % of the pairs of query and key: "
            f"{inverted(means)}"
        )
    return visible


def _padding(named: Names, mask: object, means: str, shape: Shape) -> Bools:
    """Return the key padding mask as booleans that are true for real keys, (B or 1, S)."""
    name, (batch, _, _, keys) = named("key_padding_mask"), shape
    array = np.atleast_1d(arguments.truth_array(name, mask))
    if array.ndim > 2 or array.shape[-1] != keys or len(np.atleast_2d(array)) not in (1, batch):
        raise ShapeError(
            f"{name}: expected shape {shape_text((batch, keys))} or {shape_text((keys,))}, batch "
            f"and keys; found {shape_text(array.shape)}"
        )
    real = np.atleast_2d(~array if means == "drop" else array)
    # A few real keys at the beginning may be right: a short text in a long row.
    if not real[:, 0].any() and (share := leaves_little([real])) is not None:
        warn(f"{name} shows only {share:.2g} % of the keys: {inverted(means)}")
    return real


def standing(
    named: Names, visible: Visibility, given: Mapping[str, Any], batch: int, *, positional: bool
) -> Visibility:
    """Return the rules with the position of the first query among the keys.

    ``positional`` says whether the scores depend on positions, too.

    Warns
    -----
    AttnWarning
        The position of the queries matters, and no argument gave it.
    """
    align, offset = given["causal_align"], given["query_offset"]
    asked_for = visible.causal or positional
    if not asked_for and visible.window is None:
        _refuse_unused(causal_align=align, query_offset=offset)
        return visible
    if align is not None and offset is not None:
        raise UsageError(
            "causal_align and query_offset both say where the queries stand",
            hint="give one of the two; --without query_offset leaves a problem file's out",
        )
    if offset is not None:
        return visible._replace(
            offsets=arguments.whole_numbers(named("query_offset"), offset, batch, of="batch entry")
        )
    moves = asked_for or visible.window != (None, None)
    packed_apart = visible.segment_ids is not None and not visible.segment_ids.alike
    if moves and packed_apart:
        warn(
            "the packed sequences of the queries have other lengths than those of the keys, and "
            "positions count in the whole row. FlashAttention aligns the last query of each "
            "sequence with its last key: for that, give a batch of sequences, with query_lengths, "
            "kv_lengths and query_offset = kv_length - query_length"
        )
    if align is None:
        if moves and not packed_apart:
            _advise_on_alignment(visible)
        return visible
    if arguments.choice(named("causal_align"), align, get_args(Align)) == "top-left":
        return visible
    _advise_on_padded_queries(visible)
    return visible._replace(offsets=visible.bottom_right)


def _refuse_unused(**given: object) -> None:
    """Refuse an argument that places the queries if no rule depends on their place."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} says where the queries stand among the keys, but no rule depends on it",
                hint="it goes with causal, window, alibi_slopes or rope",
            )


def _advise_on_padded_queries(visible: Visibility) -> None:
    """Warn if the last query is padding: FlashAttention aligns the last real query."""
    lengths = visible.query_lengths
    if lengths is None or set(lengths) == {visible.queries}:
        return
    count = max(len(lengths), len(visible.kv_lengths or ()))
    offsets = ",".join(str(visible.length(b) - lengths[b % len(lengths)]) for b in range(count))
    warn(
        "bottom-right aligns the last query, padding or not, with the last real key: the offset is "
        "kv_length - L. FlashAttention with sequence lengths aligns the last real query, "
        f"kv_length - query_length: query_offset (--query-offset {offsets})"
    )


def _advise_on_alignment(visible: Visibility) -> None:
    offsets = sorted(set(visible.bottom_right))
    if visible.queries == visible.keys or offsets == [0]:
        return
    first, last = (f"{'−' if n < 0 else '+'} {abs(n)}" for n in (offsets[0], offsets[-1]))
    other = f"i {first}" if first == last else f"i {first} to i {last}, batch by batch"
    warn(
        f"{counted(visible.queries, 'query', 'queries')} and {counted(visible.keys, 'key')}, and "
        "no alignment given: query i is aligned with key i (top-left: PyTorch, JAX, ONNX without "
        f"a cache). With bottom-right (FlashAttention, decoding with a KV cache) it is aligned "
        f"with key {other}. Choose with causal_align (--causal-align)"
    )


def to_weights(name: str, array: Array, form: Layout, shape: Shape) -> Array:
    """Return, with four axes, an array that broadcasts to the weights."""
    target = form.weights_shape(shape)
    pairs = zip(reversed(array.shape), reversed(target), strict=False)
    if array.ndim > len(target) or not all(size in (1, wanted) for size, wanted in pairs):
        raise ShapeError(
            f"{name}: expected a shape that broadcasts to the weights' {shape_text(target)}, "
            f"(…, queries, keys); found {shape_text(array.shape)}",
            hint=_mask_hint(array.shape, shape),
        )
    if array.ndim == 3 and len(target) == 4 and 1 < len(array) == shape[0] == shape[1]:
        warn(
            f"{name} of shape {shape_text(array.shape)} is read as one matrix per head, (H, L, S), "
            "by NumPy's rules; there are as many batch entries as heads, so (B, L, S) would fit, "
            "too. Say which with four axes: (1, H, L, S), or (B, 1, L, S) for one per batch entry"
        )
    return form.broadcastable(array)


def _mask_hint(found: tuple[int, ...], shape: Shape) -> str | None:
    batch, heads, queries, keys = shape
    if found == (batch, keys):
        return "one row for each batch entry is key_padding_mask, or (B, 1, 1, S)"
    if found[1:] == (queries, keys) and found[0] in (batch, batch * heads):
        return "one matrix for each batch entry is (B, 1, L, S), and for each head (B, H, L, S)"
    return None


def labels_of(
    of: Literal["query", "key"], name: str, labels: Sequence[str] | None, count: int
) -> tuple[str, ...] | None:
    """Return the checked labels of the queries or keys, or None."""
    if labels is None:
        return None
    return arguments.label_list(
        name,
        labels,
        count,
        of=of,
        hint="query_labels (--query-labels) name the queries alone, key_labels the keys"
        if name.endswith("(tokens)")
        else None,
    )
