"""Which keys a query sees: the hiding rules, checked, and where the queries stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from attncli import arguments
from attncli.arguments import shape_text
from attncli.errors import ShapeError, UsageError
from attncli.names import Align
from attncli.polarity import inverted, leaves_little, pairs_of
from attncli.posing.packed import segments_of
from attncli.text import counted
from attncli.visibility import Visibility
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from attncli.arguments import Names
    from attncli.layout import Layout

__all__ = ["labels_of", "rules_of", "standing", "to_weights"]

# Of (B, S), which a bias would take for (L, S).
_EACH_ENTRY = "reshaped to (B, 1, S), or with heads to (B, 1, 1, S)"
_PADDING = "a key_padding_mask (--key-padding-mask)"
_PADDING_BIAS = f"{arguments.BIAS_HINT}, of (B, S) {_EACH_ENTRY}"
# So many numbers of a mask, or booleans of the other polarity, are made booleans at once: 4 MB.
_READ_ONCE = 2**22

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Shape = tuple[int, int, int, int]


def rules_of(
    named: Names,
    form: Layout,
    shape: Shape,
    *,
    mask: object,
    mask_means: str,
    key_padding_mask: object,
    kv_lengths: object,
    query_lengths: object,
    causal: object,
    window: object,
    segment_ids: object,
    kv_segment_ids: object,
) -> Visibility:
    """Return the hiding rules; the queries stand where they do by default."""
    visible = Visibility(
        queries=shape[2],
        keys=shape[3],
        mask=_mask(named, mask, form, shape),
        mask_drops=mask is not None and mask_means == "drop",
        key_padding_mask=_key_padding(named, key_padding_mask, mask_means, shape),
        kv_lengths=_lengths(named, "kv_lengths", kv_lengths, shape[0], shape[3]),
        query_lengths=_lengths(named, "query_lengths", query_lengths, shape[0], shape[2]),
        causal=arguments.flag(named("causal"), causal),
        window=None if window is None else arguments.window_pair(named("window"), window),
        segment_ids=segments_of(named, segment_ids, kv_segment_ids, shape),
    )
    visible = _read_once(named, visible, mask_means)
    if mask_means == "drop" and mask is None and key_padding_mask is None:
        raise UsageError("mask_means says how a mask is read, but there is no mask")
    return visible


def standing(
    named: Names,
    visible: Visibility,
    align: object,
    offset: object,
    batch: int,
    *,
    positional: bool,
) -> Visibility:
    """Return the rules with the position of the first query among the keys.

    ``positional`` says whether the scores depend on positions, too.

    Warns
    -----
    AttnWarning
        That position changes something, and nobody said it.
    """
    asked_for = visible.causal or positional
    if not asked_for and visible.window is None:
        _refuse_unused(causal_align=align, query_offset=offset)
        return visible
    moves = asked_for or visible.window != (None, None)
    return _placed(named, visible, align, offset, batch, moves=moves)


def _lengths(
    named: Names, name: str, value: object, batch: int, limit: int
) -> tuple[int, ...] | None:
    """Return how many keys or queries of each batch entry are real."""
    if value is None:
        return None
    return arguments.whole_numbers(named(name), value, batch, of="batch entry", low=0, high=limit)


def _placed(
    named: Names,
    visible: Visibility,
    align: object,
    offset: object,
    batch: int,
    *,
    moves: bool,
) -> Visibility:
    if offset is not None:
        if align is not None:
            raise UsageError(
                "causal_align and query_offset both say where the queries stand",
                hint="give one of the two; --without query_offset leaves a problem file's out",
            )
        numbers = arguments.whole_numbers(named("query_offset"), offset, batch, of="batch entry")
        return visible._replace(offsets=numbers)
    packed_apart = visible.segment_ids is not None and not visible.segment_ids.alike
    if moves and packed_apart:
        _advise_on_packing()
    if align is None:
        if moves and visible.queries != visible.keys and not packed_apart:
            _advise_on_alignment(visible)
        return visible
    if arguments.choice(named("causal_align"), align, get_args(Align)) == "top-left":
        return visible
    _advise_on_padded_queries(visible)
    _advise_on_padded_keys(visible)
    return visible._replace(offsets=visible.bottom_right)


def _advise_on_padded_queries(visible: Visibility) -> None:
    """Warn where the last real query is not the last one: FlashAttention aligns that one."""
    lengths = visible.query_lengths
    if lengths is None or set(lengths) == {visible.queries}:
        return
    count = max(len(lengths), len(visible.kv_lengths or ()))
    offsets = [visible.length(b) - lengths[b % len(lengths)] for b in range(count)]
    listed = ", ".join(map(str, offsets))
    warn(
        "bottom-right aligns the last query, padding or not, with the last real key: the offset is "
        "kv_length - L. FlashAttention with sequence lengths aligns the last real query, "
        f"kv_length - query_length: query_offset [{listed}] (--query-offset "
        f"{listed.replace(' ', '')})"
    )


def _advise_on_padded_keys(visible: Visibility) -> None:
    """Warn where the last real key is not the last one, and only a padding mask says so."""
    lengths = visible.padded_lengths
    if lengths is None or visible.kv_lengths is not None or set(lengths) == {visible.keys}:
        return
    listed = ",".join(map(str, lengths))
    warn(
        "bottom-right counts the keys that key_padding_mask hides at the end: the offset is "
        f"{visible.keys - visible.queries}, as if there were no padding. To align the last query "
        "with the last real key, give the lengths instead of the mask: kv_lengths (--kv-lengths "
        f"{listed})"
    )


def _advise_on_packing() -> None:
    """Warn where sequences begin at other places among the queries than among the keys."""
    warn(
        "the packed sequences of the queries have other lengths than those of the keys, and "
        "positions count in the whole row. FlashAttention aligns the last query of each sequence "
        "with its last key: for that, give a batch of sequences, with query_lengths, kv_lengths "
        "and query_offset = kv_length - query_length"
    )


def _advise_on_alignment(visible: Visibility) -> None:
    offsets = sorted(set(visible.bottom_right))
    if offsets == [0]:
        return
    first, last = (f"{'−' if n < 0 else '+'} {abs(n)}" for n in (offsets[0], offsets[-1]))
    other = f"i {first}" if first == last else f"i {first} to i {last}, batch by batch"
    warn(
        f"{counted(visible.queries, 'query', 'queries')} and {counted(visible.keys, 'key')}, and "
        "no alignment given: query i is aligned with key i (top-left: PyTorch, JAX, ONNX without "
        f"a cache). With bottom-right (FlashAttention, decoding with a KV cache) it is aligned "
        f"with key {other}. Choose with causal_align (--causal-align)"
    )


def _refuse_unused(**given: object) -> None:
    """Raise where the place of the queries is said and no rule asks for it."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} says where the queries stand among the keys, but no rule depends on it",
                hint="it goes with causal, window, alibi_slopes or rope",
            )


def _mask(named: Names, mask: object, form: Layout, shape: Shape) -> Array | None:
    """Return the mask in four axes, as it was given."""
    if mask is None:
        return None
    return to_weights(named("mask"), arguments.truth_numbers(named("mask"), mask), form, shape)


def _read_once(named: Names, visible: Visibility, means: str) -> Visibility:
    """Return the rules with a small mask read once; a large one is read tile by tile."""
    mask = visible.mask
    if mask is None:
        return visible
    if mask.size <= _READ_ONCE:
        visible = visible.with_whole_mask()
    _advise_on_polarity(named("mask"), visible.mask_parts(), means, "pairs attend")
    return visible


def _read_as(means: str, mask: Bools) -> Bools:
    return np.logical_not(mask) if means == "drop" else mask


def _advise_on_polarity(name: str, seen: Iterable[Bools], means: str, what: str) -> None:
    """Warn of a mask, given part by part, that leaves next to nothing."""
    attending, cells = pairs_of(seen)
    if leaves_little(attending, cells):
        share = 100 * attending / cells
        warn(f"{name} lets only {share:.2g} % of the {what}: {inverted(means)}")


def _key_padding(named: Names, mask: object, means: str, shape: Shape) -> Bools | None:
    """Return the key padding mask as what is real, (B or 1, S)."""
    if mask is None:
        return None
    truths = arguments.truth_array(named("key_padding_mask"), mask, _PADDING_BIAS)
    array = np.atleast_1d(truths)
    batch, keys = shape[0], shape[3]
    if array.ndim > 2 or array.shape[-1] != keys or len(np.atleast_2d(array)) not in (1, batch):
        raise ShapeError(
            f"{named('key_padding_mask')}: expected shape {shape_text((batch, keys))} or "
            f"{shape_text((keys,))}, batch and keys; found {shape_text(array.shape)}"
        )
    seen = _read_as(means, np.atleast_2d(array))
    # A few keys at the beginning are a short text in a long row, and at the end one that is
    # padded on the left; but no padding leaves a text of a batch without any key.
    if not seen[:, 0].any() and (len(seen) == 1 or not seen.any(axis=1).all()):
        _advise_on_polarity(named("key_padding_mask"), [seen], means, "keys be seen")
    return seen


def to_weights(
    name: str, array: Array, form: Layout, shape: Shape, *, added: bool = False
) -> Array:
    """Return an array that broadcasts to the weights in four axes; a bias is added to scores."""
    target = form.weights_shape(shape)
    if not _broadcasts(array.shape, target):
        raise ShapeError(
            f"{name}: expected a shape that broadcasts to the weights' {shape_text(target)}, "
            f"(…, queries, keys); found {shape_text(array.shape)}",
            hint=_mask_hint(array.shape, shape, form, added=added)
            or _padding_hint(array.shape, target),
        )
    if array.ndim == 3 and len(target) == 4 and 1 < len(array) == shape[0] == shape[1]:
        warn(
            f"{name} of shape {shape_text(array.shape)} is read as one matrix per head, (H, L, S), "
            "by NumPy's rules; there are as many batch entries as heads, so (B, L, S) would fit, "
            "too. Say which with four axes: (1, H, L, S), or (B, 1, L, S) for one per batch entry"
        )
    return form.broadcastable(array)


def _broadcasts(found: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Return whether an array of a shape broadcasts to another one by NumPy's rules."""
    pairs = zip(reversed(found), reversed(target), strict=False)
    return len(found) <= len(target) and all(size in (1, wanted) for size, wanted in pairs)


def _mask_hint(found: tuple[int, ...], shape: Shape, form: Layout, *, added: bool) -> str | None:
    batch, heads, queries, keys = shape
    if form.axes == "bsd" and found == (batch, batch) and batch not in (queries, keys):
        return "if the sequence comes before the batch, (L, B, D), give layout sbd (--layout sbd)"
    if found == (batch, keys):
        what, meant = ("bias", _EACH_ENTRY) if added else ("mask", _PADDING)
        return f"a {what} with one row for each batch entry is {meant}"
    if queries != keys and found[-2:] == (keys, queries):
        return "it looks transposed: rows are queries, columns are keys"
    if heads > 1 and found == (batch, queries, keys):
        return "one matrix for each batch entry needs an axis for the heads: (B, 1, L, S)"
    if heads > 1 and found == (batch * heads, queries, keys):
        return "split its first axis, as nn.MultiheadAttention does: reshape to (B, H, L, S)"
    return None


def _padding_hint(found: tuple[int, ...], target: tuple[int, ...]) -> str | None:
    """Return the hint for an array that has only too few keys."""
    if found[-1] < target[-1] and _broadcasts((*found[:-1], target[-1]), target):
        return (
            "if it hides the keys behind its last one, as in ONNX, pad it: a mask with false, a "
            "bias with −inf"
        )
    return None


def labels_of(
    of: Literal["query", "key"], name: str, labels: Sequence[str] | None, shape: Shape
) -> tuple[str, ...] | None:
    """Return the checked labels of the queries or keys, or None."""
    if labels is None:
        return None
    count, others = shape[2:] if of == "query" else shape[:1:-1]
    meant = (
        "query_labels (--query-labels) name the queries alone, key_labels (--key-labels) the keys"
    )
    hint = meant if name.endswith("(tokens)") and len(labels) == others != count else None
    return arguments.label_list(name, labels, count, of=of, hint=hint)
