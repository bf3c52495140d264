"""Mistakes in which keys a query sees: mask, padding, causal rule, window, segments, hiding."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.scores import PLACES, off_by_one, transposed
from attncli.referee.mistakes.table import SIZES, Change, Rows
from attncli.referee.options import (
    aligned,
    also_causal,
    inverted,
    padded_queries,
    stands_in_corner,
    windowed,
    without_lengths,
    without_mask,
    without_placed,
)
from attncli.referee.pipeline import (
    Pipeline,
    Rule,
    Run,
    alibi,
    band,
    causal,
    keys_of,
    measured,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools

__all__ = [
    "BLIND_ROWS",
    "CAUSAL",
    "FROM_LENGTHS",
    "HIDING",
    "MASKS",
    "PADDING",
    "SEGMENTS",
    "TOGETHER",
    "WINDOW",
    "placed",
    "unmasked",
]

Offsets = tuple[int, ...]
# Rules on keys, as sentences call them.
_RULES = {
    "mask": "the mask",
    "key_padding_mask": "key_padding_mask",
    "kv_lengths": "the mask made of kv_lengths",
    "causal": "the causal mask",
    "window": "the window's mask",
    "segment_ids": "the mask made of segment_ids",
}
# A file that holds 1e-9 apart from 0.
_FINE = 1e-11


def dropped(rule: str) -> Change:
    """Return the change that leaves one rule out."""
    return lambda pipe: pipe.with_rule(rule, None) if rule in pipe.rules else None


def _negated(rule: str) -> Change:
    """Return the change that takes a rule for its opposite."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if rule not in pipe.rules:
            return None
        own = pipe.rules[rule]
        return pipe.with_rule(rule, lambda run: ~run.called(own))

    return change


def _read_as_zeros(rule: str, then: Change) -> Change:
    """Return the change that reads keys and values which a rule hides as zeros, not as −inf."""

    def change(pipe: Pipeline) -> Pipeline | None:
        real = _hidden_from_all(pipe, rule)
        if real is None:
            return None
        value = None if pipe.value is None else np.where(real, pipe.value, 0.0)
        return then(pipe.but(key=np.where(real, pipe.key, 0.0), value=value))

    return change


def _hidden_from_all(pipe: Pipeline, rule: str) -> Bools | None:
    """Return which keys a rule shows (B or 1, G or 1, S, 1), if it is the same for all queries."""
    visible = pipe.problem.visible
    keys = np.arange(visible.keys)
    if rule not in pipe.rules:
        return None
    if rule == "kv_lengths":
        return (keys < np.array(visible.kv_lengths)[:, None])[:, None, :, None]
    if rule == "key_padding_mask":
        return np.asarray(visible.key_padding_mask)[:, None, :, None]
    mask = np.asarray(visible.mask)
    same = (mask == mask[:, :, :1]).all() and mask.shape[1] in (1, pipe.key.shape[1])
    return mask[:, :, 0, :, None] if same else None


# Mask.

MASKS = Rows(
    stages.MASK,
    fix="hide a key by setting its score to −inf where the mask is false",
    shows="a mask that hides some keys",
)


def _mask_as(change: Callable[[Bools], Bools | None]) -> Change:
    def changed(pipe: Pipeline) -> Pipeline | None:
        mask = pipe.problem.visible.mask
        new = None if mask is None else change(np.asarray(mask))
        return None if new is None else pipe.with_rule("mask", table(new))

    return changed


def _batch_for_head(mask: Bools) -> Bools | None:
    batch, heads = mask.shape[:2]
    return mask.swapaxes(0, 1) if max(batch, heads) > 1 else None


def _swapped(pipe: Pipeline) -> Pipeline | None:
    batch, heads = pipe.problem.shape[:2]
    return _mask_as(_batch_for_head)(pipe) if batch == heads else None


def _repeated(mask: Bools | None, pipe: Pipeline, *, entries_first: bool) -> Bools | None:
    """Return the masks (B, 1, …) as heads read them that are repeated in the wrong order.

    Over B·H rows, where heads stand behind each other in every entry, each mask belongs H times in
    a row; over H·B rows, all masks one after the other belong H times.
    """
    batch, heads = pipe.problem.shape[:2]
    if mask is None or len(mask) == 1 or mask.shape[1] > 1 or heads == 1:
        return None
    rows = np.arange(batch * heads)
    if entries_first:
        places = (rows % batch).reshape(batch, heads)
    else:
        places = (rows // heads).reshape(heads, batch).T
    return np.asarray(mask[places, 0])


def _repeat(rule: str, *, entries_first: bool) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        visible = pipe.problem.visible
        if rule == "mask":
            given = visible.mask
        elif rule == "key_padding_mask":
            given = visible.key_padding_mask
            given = None if given is None else given[:, None, None, :]
        else:
            lengths = visible.kv_lengths
            given = (
                None
                if lengths is None
                else (np.arange(visible.keys) < np.array(lengths)[:, None, None, None])
            )
        made = _repeated(given, pipe, entries_first=entries_first)
        return None if made is None else pipe.with_rule(rule, table(made))

    return change


def _both_inverted(pipe: Pipeline) -> Pipeline | None:
    first = _negated("mask")(pipe)
    return first and _negated("key_padding_mask")(first)


_TILED = "repeat each mask H times in a row: repeat_interleave(H, dim=0)"
_HEADS_FIRST = (
    "repeat the masks as a whole where heads stand before batch entries: tile, or repeat(H, 1, 1)"
)
_SEVERAL = "batch entries with different masks, and several heads"
MASKS.add("mask_ignored", "the mask is ignored", dropped("mask"), option=without_mask("mask"))
MASKS.add(
    "mask_inverted",
    "the mask is inverted: it hides the keys that it should keep",
    _negated("mask"),
    fix="invert the mask (in nn.MultiheadAttention true means hidden)",
    option=inverted("mask"),
)
MASKS.add(
    "masks_inverted",
    "mask and key_padding_mask are both inverted: they hide the keys that they should keep",
    _both_inverted,
    fix="invert the masks (in nn.MultiheadAttention true means hidden)",
    option=inverted("mask", "key_padding_mask"),
)
MASKS.add(
    "mask_transposed",
    "the mask is transposed: its rows are taken for keys",
    _mask_as(transposed),
    fix="index the mask as (query, key)",
    shows="a mask that is not symmetric",
)
MASKS.add(
    "mask_batch_for_head",
    "the mask's batch axis and head axis are exchanged",
    _swapped,
    fix="give the mask all four axes, (B, H, L, S)",
    shows="batch entries or heads with different masks",
)
MASKS.add(
    "mask_tiled_over_heads",
    "the masks of the batch entries are repeated as a whole (repeat, tile) over B·H, so that heads "
    "get the mask of another entry",
    _repeat("mask", entries_first=True),
    fix=_TILED,
    shows=_SEVERAL,
)
MASKS.add(
    "mask_repeated_for_heads_first",
    "heads stand before batch entries, H·B, but each mask is repeated H times in a row, as for "
    "B·H, so that heads get the mask of another entry",
    _repeat("mask", entries_first=False),
    fix=_HEADS_FIRST,
    shows=_SEVERAL,
    variant_of=("mask_tiled_over_heads",),
)
MASKS.add(
    "mask_of_first_batch",
    "the mask of the first batch entry is used for all of them",
    _mask_as(lambda mask: mask[:1] if len(mask) > 1 else None),
    fix="index the mask by batch entry",
    shows="batch entries with different masks",
)
MASKS.add(
    "mask_of_first_head",
    "the mask of the first head is used for all of them",
    _mask_as(lambda mask: mask[:, :1] if mask.shape[1] > 1 else None),
    fix="index the mask by head",
    shows="heads with different masks",
)
MASKS.add(
    "mask_of_first_query",
    "the first row of the mask is used for all queries",
    _mask_as(lambda mask: mask[:, :, :1] if mask.shape[2] > 1 else None),
    fix="index the mask as (query, key)",
    shows="queries with different masks",
)
MASKS.add(
    "mask_as_zeros",
    "the mask is multiplied with keys and values: hidden ones are zeros, and get the weight of the "
    "score 0",
    _read_as_zeros("mask", dropped("mask")),
    fix="give hidden keys the score −inf: to make them zeros is not enough",
)
MASKS.add(
    "mask_of_{}",
    "each score gets the mask of the {1}",
    lambda place: _mask_as(off_by_one(place[0])),
    values=PLACES,
    stage=stages.MASK_PLACES,
    fix="index the mask as (query, key), both from 0",
    shows="a mask that is not the same everywhere",
)


# Padding.

PADDING = Rows(
    stages.PADDING, fix="hide the padded keys from every query", shows="a batch entry with padding"
)
_OWN = "give each batch entry its own padding"
_DIFFERENT = "batch entries that are padded differently"


def _on_queries(rule: str, *, too: bool) -> Change:
    """Return the change that reads a rule on keys as one on queries."""

    def change(pipe: Pipeline) -> Pipeline | None:
        _, _, queries, keys = pipe.problem.shape
        real = _hidden_from_all(pipe, rule) if queries == keys else None
        if real is None:
            return None
        rows, own = table(real), pipe.rules[rule]
        return pipe.with_rule(
            rule, (lambda run: run.called(own) & run.called(rows)) if too else rows
        )

    return change


def _lengths(change: Callable[[int], int]) -> Change:
    """Return the change of the length of each batch entry."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        visible = pipe.problem.visible
        if visible.kv_lengths is None:
            return None
        lengths = tuple(min(max(change(n), 0), visible.keys) for n in visible.kv_lengths)
        # Rows of zeros have more likely not been written.
        nothing = any(new == 0 < old for new, old in zip(lengths, visible.kv_lengths, strict=True))
        same = lengths == tuple(visible.kv_lengths)
        return None if nothing or same else pipe.with_rule("kv_lengths", keys_of(lengths))

    return changed


def _up(size: int) -> Callable[[int], int]:
    return lambda length: -(-length // size) * size


def _down(size: int) -> Callable[[int], int]:
    return lambda length: length // size * size


def _of_entry(rule: str, other: Callable[[int, int], int]) -> Change:
    """Return the change in which a batch entry takes the padding of another: of how many, which."""

    def change(pipe: Pipeline) -> Pipeline | None:
        visible, count = pipe.problem.visible, pipe.problem.shape[0]
        places = [other(entry, count) for entry in range(count)]
        lengths, mask = visible.kv_lengths, visible.key_padding_mask
        if rule == "kv_lengths" and lengths is not None and len(set(lengths)) > 1:
            return pipe.with_rule(rule, keys_of(np.array(lengths)[places]))
        if rule == "key_padding_mask" and mask is not None and len(mask) > 1:
            return pipe.with_rule(rule, table(mask[places][:, None, None]))
        return None

    return change


def _mirrored(pipe: Pipeline) -> Pipeline | None:
    """Take as many keys at the other end for padding, where it is padding of one side."""
    mask = pipe.problem.visible.key_padding_mask
    if mask is None or any(
        not np.array_equal(row, np.sort(row)[:: -1 if row[0] else 1]) for row in mask
    ):
        return None
    return pipe.with_rule("key_padding_mask", table(mask[:, None, None, ::-1]))


def _of_longest(pipe: Pipeline) -> Pipeline | None:
    visible = pipe.problem.visible
    longest = max(visible.kv_lengths or (visible.keys,))
    if longest == visible.keys or longest == min(visible.kv_lengths or ()):
        return None
    return pipe.with_rule("kv_lengths", keys_of((longest,)))


def _on_the_left(pipe: Pipeline) -> Pipeline | None:
    visible = pipe.problem.visible
    if visible.kv_lengths is None:
        return None
    first = visible.keys - np.array(visible.kv_lengths)
    return pipe.with_rule("kv_lengths", lambda run: run.j >= run.by_entry(first))


_LEFT_OUT: dict[str, Callable[[Problem], str]] = {
    "key_padding_mask": without_mask("key_padding_mask"),
    "kv_lengths": without_lengths,
}
_PADDINGS = tuple(_LEFT_OUT)
PADDING.add(
    "{}_ignored",
    "{} is ignored: padded keys get weight",
    dropped,
    values=_PADDINGS,
    option=_LEFT_OUT.__getitem__,
)
PADDING.add(
    "{}_on_queries",
    "{} hides queries instead of keys",
    lambda rule: _on_queries(rule, too=False),
    values=_PADDINGS,
    stage=stages.PADDING_ON_QUERIES,
)
PADDING.add(
    "{}_on_queries_too",
    "{} hides the padded queries as well as the keys",
    lambda rule: _on_queries(rule, too=True),
    values=_PADDINGS,
    stage=stages.PADDING_ON_QUERIES,
    fix="hide only keys, or state the lengths of the queries as well (query_lengths)",
    option=lambda _: padded_queries,
)
PADDING.add(
    "{}_as_zeros",
    "keys and values that {} hides are read as zeros, and get the weight of the score 0",
    lambda rule: _read_as_zeros(rule, dropped(rule)),
    values=_PADDINGS,
    fix="give hidden keys the score −inf: to load zeros in their place is not enough",
)
PADDING.add(
    "{}_of_first_entry",
    "every batch entry takes the {} of the first",
    lambda rule: _of_entry(rule, lambda _, __: 0),
    values=_PADDINGS,
    fix=_OWN,
    shows=_DIFFERENT,
)
PADDING.add(
    "{}_of_next_entry",
    "each batch entry takes the {} of the next one, and the last that of the first",
    lambda rule: _of_entry(rule, lambda entry, count: (entry + 1) % count),
    values=_PADDINGS,
    fix=_OWN,
    shows=_DIFFERENT,
)
PADDING.add(
    "{}_inverted",
    "{} is inverted: the real keys are hidden",
    _negated,
    values=_PADDINGS,
    stage=stages.PADDING_INVERTED,
    fix="invert the mask (in nn.MultiheadAttention true means padding)",
    option=lambda rule: inverted(rule) if rule == "key_padding_mask" else "",
)
PADDING.add(
    "{}_tiled_over_heads",
    "{} is repeated as a whole (repeat, tile) over B·H, so that heads get the padding of another "
    "entry",
    lambda rule: _repeat(rule, entries_first=True),
    values=_PADDINGS,
    fix=_TILED,
    shows=f"{_DIFFERENT}, and several heads",
)
PADDING.add(
    "{}_repeated_for_heads_first",
    "heads stand before batch entries, H·B, but each row of {} is repeated H times in a row, as "
    "for B·H, so that heads get the padding of another entry",
    lambda rule: _repeat(rule, entries_first=False),
    values=_PADDINGS,
    fix=_HEADS_FIRST,
    shows=f"{_DIFFERENT}, and several heads",
    variant_of=lambda rule: (f"{rule}_tiled_over_heads",),
)
PADDING.add(
    "key_padding_mask_mirrored",
    "as many keys are taken for padding at the other end of each batch entry",
    _mirrored,
    fix="hide the padded keys where they stand: at the end, or with padding on the left at the "
    "beginning",
)
PADDING.add(
    "lengths_one_short",
    "the last real key of each batch entry is hidden",
    _lengths(lambda length: length - 1),
)
PADDING.add("lengths_one_long", "the first padded key is seen", _lengths(lambda length: length + 1))
PADDING.add(
    "lengths_{}_to_{}",
    "the length of each batch entry is rounded {} to a multiple of {}, the size of a block or of a "
    "page",
    lambda value: _lengths((_up if value[0] == "up" else _down)(value[1])),
    values=[(way, size) for size in SIZES for way in ("up", "down")],
    stage=stages.ROUNDED_LENGTHS,
    fix="hide the keys beyond the length within the last block, and no others",
    shows="lengths that are no multiples of {1}",
    variant_of=lambda value: (
        "kv_lengths_ignored",
        *(f"lengths_{value[0]}_to_{size}" for size in SIZES if size < value[1]),
    ),
)
PADDING.add(
    "zeros_in_last_block_of_{}",
    "the last block of {} keys of each batch entry is filled with zeros, which get the weight of "
    "the score 0",
    lambda size: _read_as_zeros("kv_lengths", _lengths(_up(size))),
    values=SIZES,
    stage=stages.ROUNDED_LENGTHS,
    fix="give keys beyond the length the score −inf, in the last block too",
    shows="lengths that are no multiples of {}",
    variant_of=("kv_lengths_as_zeros",),
)
PADDING.add(
    "lengths_of_longest",
    "every batch entry has the length of the longest one",
    _of_longest,
    fix="give each batch entry its own length",
    shows="batch entries of different lengths, all with padding",
)
PADDING.add(
    "padding_on_the_left",
    "the first keys are taken for padding, instead of the last",
    _on_the_left,
    fix="let queries see the first kv_length keys; if the real keys stand last, use a mask",
)
PADDING.add(
    "query_lengths_ignored",
    "padded queries are computed like real ones",
    dropped("query_lengths"),
    stage=stages.QUERY_PADDING,
    fix="set the rows of padded queries to zero",
    shows="a batch entry with padded queries",
    option="leave --query-lengths out",
)


# Segments.

SEGMENTS = Rows(
    stages.SEGMENTS,
    fix="let a query see only keys with its own number: segment_ids (--segment-ids)",
    shows="more than one packed sequence",
)
FROM_LENGTHS = "take the ends of the sequences from the cumulative lengths, which begin with 0"


def _left_out(problem: Problem) -> str:
    segments = problem.visible.segment_ids
    apart = segments is not None and segments.queries is not segments.keys
    return f"leave --segment-ids{' and --kv-segment-ids' if apart else ''} out"


def _numbered(
    change: Callable[[Array], Array], seen: Any = np.equal, *, queries: bool = True
) -> Change:
    """Return the change to other numbers of the sequences, or another comparison of them."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        segments = pipe.problem.visible.segment_ids
        if segments is None:
            return None
        own = change(segments.queries) if queries else segments.queries
        return pipe.with_rule("segment_ids", measured(own, change(segments.keys), seen))

    return changed


def _later(ids: Array) -> Array:
    """Return the number of the token before each one; the first keeps its own."""
    return np.concatenate((ids[:, :1], ids[:, :-1]), axis=1)


def _earlier(ids: Array) -> Array:
    return np.concatenate((ids[:, 1:], ids[:, -1:]), axis=1)


SEGMENTS.add(
    "segment_ids_ignored",
    "segment_ids is ignored: queries see keys of the other packed sequences",
    dropped("segment_ids"),
    option=_left_out,
)
SEGMENTS.add(
    "segment_ids_inverted",
    "the mask made of segment_ids is inverted: queries see keys of other sequences alone",
    _negated("segment_ids"),
)
SEGMENTS.add(
    "segment_ids_in_order",
    "queries see keys of earlier packed sequences, too: numbers are compared with ≥, not =",
    _numbered(np.asarray, np.greater_equal),
    variant_of=("segment_ids_ignored",),  # under a causal rule no query sees a later sequence
)
SEGMENTS.add(
    "segments_end_{}",
    "each packed sequence begins and ends one token {0}",
    lambda value: _numbered(value[1]),
    values=(("late", _later), ("early", _earlier)),
    fix=FROM_LENGTHS,
)
SEGMENTS.add(
    "segments_of_keys_end_{}",
    "the packed sequences of the keys begin and end one token {0}, those of the queries where they "
    "should",
    lambda value: _numbered(value[1], queries=False),
    values=(("late", _later), ("early", _earlier)),
    fix=FROM_LENGTHS,
    variant_of=lambda value: (f"segments_end_{value[0]}",),  # in slices without an end
)
SEGMENTS.add(
    "segment_ids_in_reverse_order",
    "queries see keys of later packed sequences, too: numbers are compared with ≤, not =",
    _numbered(np.asarray, np.less_equal),
)
SEGMENTS.add(
    "segment_ids_of_first_entry",
    "every batch entry takes the segment_ids of the first",
    _numbered(lambda ids: ids[:1]),
    fix="give each batch entry its own segment_ids",
    shows="batch entries that are packed differently",
)


# Causal rule.

CAUSAL = Rows(
    stages.CAUSAL,
    fix="hide key j from query i where j > i + offset, and only there",
    shows="more than one key",
)
_ADD = "add the offset, S − L or the length of the cache, to the query's index"
_LENGTHS = "different numbers of queries and keys"
_LAST = "align with kv_length − L of each batch entry"


def placed(
    pipe: Pipeline, offsets: Offsets, *, unasked: bool = False, step: int = 0
) -> Pipeline | None:
    """Return the pipeline whose causal rule and window lie at other offsets.

    Parameters
    ----------
    pipe : Pipeline
    offsets : tuple of int
    unasked : bool
        A causal rule is added that the problem does not state.
    step : int
        The diagonal of the causal rule lies so much further.
    """
    visible = pipe.problem.visible
    if unasked:
        return None if visible.causal else pipe.with_rule("causal", causal(np.add(offsets, step)))
    same = (np.array(offsets) == np.array(visible.offsets)).all()
    if same and not step:
        return None
    made = pipe
    if visible.causal:
        made = made.with_rule("causal", causal(np.add(offsets, step)))
    if visible.window is not None:
        made = made.with_rule("window", band(*visible.window, offsets))
    return None if made is pipe else made


def _at(
    offsets: Callable[[Problem], Offsets | None], *, unasked: bool = False, step: int = 0
) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        there = offsets(pipe.problem)
        if there is None or (step and not (unasked or pipe.problem.visible.causal)):
            return None
        return placed(pipe, there, unasked=unasked, step=step)

    return change


def _all_at(offsets: Callable[[Problem], Offsets | None]) -> Change:
    """Return the change with ALiBi and rope at other offsets, as well as the rules."""

    def change(pipe: Pipeline) -> Pipeline | None:
        problem, there = pipe.problem, offsets(pipe.problem)
        positional = problem.alibi_slopes is not None or problem.rope is not None
        moved = None if there is None or not positional else placed(pipe, there)
        if moved is None or there is None:
            return None
        rows = np.array(there)[:, None] + np.arange(problem.shape[2])
        moved = moved.but(query_positions=rows)
        if problem.alibi_slopes is None or "alibi" not in pipe.terms:
            return moved
        return moved.with_term("alibi", alibi(problem.alibi_slopes, there))

    return change


def _zero(_: Problem) -> Offsets:
    return (0,)


def _corner(problem: Problem) -> Offsets | None:
    """Return the offsets of the last key; None where both corners are one."""
    there = problem.visible.bottom_right
    return there if any(there) else None


def _corner_of_all(problem: Problem) -> Offsets | None:
    """Return the corner's offsets, padding counted as keys; None where there is none."""
    _, _, queries, keys = problem.shape
    return (keys - queries,) if min(problem.visible.kv_lengths or (keys,)) < keys else None


def _own(problem: Problem) -> Offsets | None:
    """Return the offsets that the problem states; None where they are those of a corner."""
    there = problem.visible.offsets
    return None if not any(there) or there == problem.visible.bottom_right else there


def _beside(step: int) -> Callable[[Problem], Offsets]:
    return lambda problem: tuple(offset + step for offset in problem.visible.offsets)


def _shifted(step: int) -> Change:
    """Return the change with the causal diagonal moved, and nothing else."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if not pipe.problem.visible.causal:
            return None
        return pipe.with_rule("causal", causal(pipe.offsets + step))

    return change


def _reversed(pipe: Pipeline) -> Pipeline | None:
    if not pipe.problem.visible.causal:
        return None
    return pipe.with_rule("causal", band(0, None, pipe.problem.visible.offsets))


def _padding_counted(pipe: Pipeline) -> Pipeline | None:
    """Let padded keys count, for what is seen and for where queries stand."""
    moved = _all_at(_corner_of_all)(pipe)
    return moved and moved.with_rule("kv_lengths", None)


CAUSAL.add(
    "causal_missing",
    "the causal mask is missing: queries see later keys",
    dropped("causal"),
    option=without_placed("--causal"),
)
CAUSAL.add(
    "causal_unasked",
    "a causal mask is applied, but the problem is not causal",
    _at(_zero, unasked=True),
    fix="leave the causal mask out, or state that the problem is causal",
    option=also_causal("top-left"),
)
CAUSAL.add(
    "causal_unasked_strict",
    "a causal mask that also hides the diagonal (j < i) is applied, but the problem is not causal",
    _at(_zero, unasked=True, step=-1),
    fix="leave the causal mask out; where there is one, a query sees its own key",
)
CAUSAL.add(
    "causal_unasked_bottom_right",
    "a causal mask aligned with the last key is applied, but the problem is not causal",
    _at(_corner, unasked=True),
    fix="leave the causal mask out, or state that the problem is causal",
    shows=_LENGTHS,
    option=also_causal("bottom-right"),
)
CAUSAL.add(
    "causal_unasked_at_the_offset",
    "a causal mask is applied where the queries stand, but the problem is not causal",
    _at(_own, unasked=True),
    fix="leave the causal mask out, or state that the problem is causal",
    option="--causal",
)
CAUSAL.add(
    "causal_top_left",
    "the causal mask is aligned top-left: query 0 stands at key 0",
    _at(_zero),
    fix=_ADD,
    shows=_LENGTHS,
    option=aligned("top-left"),
)
CAUSAL.add(
    "causal_bottom_right",
    "the causal mask is aligned bottom-right: the last query stands at the last key",
    _at(_corner),
    fix="compare key j with query i itself, without adding S − L; or, where that is meant, state "
    "--causal-align bottom-right",
    shows=_LENGTHS,
    option=aligned("bottom-right"),
)
CAUSAL.add(
    "causal_{}_strict",
    "the causal mask is aligned {1}, and hides its diagonal too (j < i instead of j ≤ i)",
    lambda value: _at(value[2], step=-1),
    values=(("top_left", "top-left", _zero), ("bottom_right", "bottom-right", _corner)),
    shows=_LENGTHS,
    variant_of=("diagonal_hidden",),
)
CAUSAL.add(
    "positions_{}",
    "all positions are aligned {1}, those of ALiBi or the rotary embedding too: {2}",
    lambda value: _all_at(value[3]),
    values=(
        ("top_left", "top-left", "query 0 stands at key 0", _zero),
        ("bottom_right", "bottom-right", "the last query stands at the last key", _corner),
    ),
    fix=f"take the query's index itself for its position, or {_ADD}: what the problem states",
    shows=_LENGTHS,
    option=lambda value: aligned(value[1], positions=True),
)
CAUSAL.add(
    "positions_one_{}",
    "queries stand one position too {0}, for the causal rule, the window, ALiBi and the rotary "
    "embedding alike",
    lambda value: _all_at(_beside(value[1])),
    values=(("late", 1), ("early", -1)),
    fix="query i stands at i + offset: the offset is the number of keys before query 0",
)
CAUSAL.add(
    "causal_bottom_right_of_padding",
    "the causal mask is aligned with the last padded key, not with the last real one",
    _at(_corner_of_all),
    fix=_LAST,
    shows=_LENGTHS,
)
CAUSAL.add(
    "positions_bottom_right_of_padding",
    "all positions are aligned with the last padded key, those of ALiBi or the rotary embedding "
    "too",
    _all_at(_corner_of_all),
    fix=_LAST,
    shows=_LENGTHS,
)
CAUSAL.add(
    "padding_counted_as_keys",
    "padded keys count as real ones: they get weight, and all positions are aligned with the "
    "last of them, those of ALiBi or the rotary embedding too",
    _padding_counted,
    fix=f"hide the keys from kv_length on, and {_LAST}",
    shows=_LENGTHS,
    option=lambda problem: "leave --kv-lengths out" if stands_in_corner(problem) else "",
)
CAUSAL.add(
    "diagonal_hidden",
    "the diagonal is hidden too: a query does not see its own key (j < i instead of j ≤ i)",
    _shifted(-1),
)
CAUSAL.add(
    "causal_one_late",
    "the causal mask begins one key late: a query also sees the next key (j ≤ i + 1)",
    _shifted(1),
)
CAUSAL.add(
    "causal_inverted",
    "the causal mask is inverted: a query sees only the later keys",
    _negated("causal"),
    fix="hide where the triangle of ones (tril) is 0, not where it is 1",
)
CAUSAL.add(
    "causal_reversed",
    "the causal mask is the wrong triangle: a query sees itself and the later keys",
    _reversed,
)


# Window.

WINDOW = Rows(
    stages.WINDOW,
    fix="see key j where i + offset − left ≤ j ≤ i + offset + right, itself included",
    shows="more keys than the window holds",
)
Side = int | None


def _other_window(
    name: str,
    meaning: str,
    change: Callable[[Side, Side], tuple[Side, Side]],
    variant_of: tuple[str, ...] = (),
) -> None:
    """Add a row with another window, made of the right one."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        window = pipe.problem.visible.window
        new = None if window is None else change(*window)
        if new is None or new == window or any(side is not None and side < 0 for side in new):
            return None
        return pipe.with_rule("window", band(*new, pipe.problem.visible.offsets))

    def option(problem: Problem) -> str:
        window = problem.visible.window
        return "" if window is None else windowed(*change(*window), problem)

    WINDOW.add(name, meaning, changed, option=option, variant_of=variant_of)


def _step(side: Side, step: int) -> Side:
    return None if side is None else side + step


def _half(side: Side) -> Side:
    return None if side is None else side // 2


def _symmetric(pipe: Pipeline) -> Pipeline | None:
    window = pipe.problem.visible.window
    if window is None or window[0] is None:
        return None
    wider = band(window[0], window[0], pipe.problem.visible.offsets)
    return pipe.with_rule("window", wider).with_rule("causal", None)


def _first_keys(count: int) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if "window" not in pipe.rules:
            return None
        own = pipe.rules["window"]
        return pipe.with_rule("window", lambda run: run.called(own) | (run.j < count))

    return change


def _trimmed(pipe: Pipeline) -> Pipeline | None:
    """Hide what lies before the window of the last query from all queries."""
    visible, queries = pipe.problem.visible, pipe.problem.shape[2]
    if visible.window is None or visible.window[0] is None or queries == 1:
        return None
    first = pipe.offsets + queries - 1 - visible.window[0]
    own = pipe.rules["window"]
    if first.max() <= 0:
        return None
    return pipe.with_rule("window", lambda run: run.called(own) & (run.j >= run.by_entry(first)))


WINDOW.add(
    "window_ignored",
    "the window is ignored",
    dropped("window"),
    option=without_placed("--window"),
)
WINDOW.add(
    "window_inverted",
    "the window is inverted: a query sees the keys outside of it",
    _negated("window"),
)
for _by, _word, _how in ((-1, "short", "narrow"), (1, "long", "wide")):
    for _name, _left, _right in (("left", _by, 0), ("right", 0, _by), ("both", _by, _by)):
        _other_window(
            f"window_{_name}_{_word}",
            f"the window is off by one: a key too {_how} on "
            + ("both sides" if _name == "both" else f"the {_name}"),
            lambda a, b, left=_left, right=_right: (_step(a, left), _step(b, right)),  # type: ignore[misc]
            # Where the causal rule hides one side, that says nothing more than the other side.
            (f"window_left_{_word}", f"window_right_{_word}") if _name == "both" else (),
        )
_other_window(
    "window_one_sided",
    "the window is one-sided: it ends at the query itself",
    lambda left, _: (left, 0),
)
_other_window(
    "window_left_only", "the window bounds only the left side", lambda left, _: (left, None)
)
_other_window(
    "window_right_only", "the window bounds only the right side", lambda _, right: (None, right)
)
_other_window(
    "window_halved",
    "the size of the window is split between both sides",
    lambda left, right: (_half(left), _half(right)),
)
WINDOW.add(
    "window_symmetric",
    "the window reaches as far to the right as to the left, and later keys are seen",
    _symmetric,
    variant_of=("window_right_long",),
)
_other_window("window_swapped", "the window's sides are exchanged", lambda a, b: (b, a))
WINDOW.add(
    "window_cache_trimmed",
    "the cache is cut to the window of the last query before the others have read it: their "
    "windows begin there, too",
    _trimmed,
    fix="cut the cache after all queries of a chunk have read it, or keep as many keys more as the "
    "chunk has queries",
    shows="several queries behind a cache",
)
WINDOW.add("window_first_key", "the first key is seen from everywhere", _first_keys(1))
WINDOW.add(
    "window_first_four",
    "the first four keys are seen from everywhere (attention sinks of StreamingLLM)",
    _first_keys(4),
)


# How keys are hidden, whichever rule hides them.

TOGETHER = Rows(
    stages.MASK,
    fix="join masks that are true for what is seen with and, those that are true for what is "
    "hidden with or",
    shows="rules that hide different keys",
)
HIDING = Rows(
    stages.HIDING,
    fix="hide a key by setting its score to −inf, before the softmax",
    shows="any hidden key",
)


def _of_keys(pipe: Pipeline) -> list[str]:
    """Return the rules that a program would join into one mask."""
    return [name for name in pipe.rules if name in _RULES]


def _joined(pipe: Pipeline, join: Callable[[Run, list[Rule]], Bools]) -> Pipeline | None:
    """Return the pipeline with all its rules on keys as one; None where there are not several."""
    names = _of_keys(pipe)
    if len(names) < 2:
        return None
    rules = [pipe.rules[name] for name in names]
    rest = {name: rule for name, rule in pipe.rules.items() if name not in names}
    return pipe.but(rules={**rest, "joined": lambda run: join(run, rules)})


def _all(run: Run, rules: list[Rule]) -> Bools:
    return np.asarray(reduce(np.logical_and, map(run.called, rules)))


def _any(run: Run, rules: list[Rule]) -> Bools:
    return np.asarray(reduce(np.logical_or, map(run.called, rules)))


def _instead(rule: str, how: str) -> Change:
    """Return the change in which a rule, as 0 and 1, meets the scores and hides nothing."""

    def change(pipe: Pipeline) -> Pipeline | None:
        made = _joined(pipe, _all) if rule == "all_rules" else pipe
        name = "joined" if rule == "all_rules" else rule
        if made is None or name not in made.rules:
            return None
        own = made.rules[name]

        def step(run: Run, scores: Array) -> Array:
            kept = run.called(own).astype(scores.dtype)
            return np.asarray(scores + kept if how == "added" else scores * kept)

        return made.with_rule(name, None).with_step(f"{how} mask", step, before="hide")

    return change


def _after_softmax(fill: float) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if not pipe.rules:
            return None
        rules = list(pipe.rules.values())

        def after(run: Run, weights: Array) -> Array:
            return np.where(_all(run, rules), weights, fill)

        return pipe.but(rules={}).then("after", after)

    return change


TOGETHER.add(
    "rules_joined_by_or",
    "a key is seen where any rule shows it, not where all of them do",
    lambda pipe: _joined(pipe, _any),
    # Where one rule hides nothing that the other shows.
    variant_of=("causal_missing", *(f"{rule}_ignored" for rule in _RULES if rule != "causal")),
)
TOGETHER.add(
    "all_rules_inverted",
    "the mask that joins all rules is inverted: it hides the keys that it should keep",
    lambda pipe: _joined(pipe, lambda run, rules: ~_all(run, rules)),
    fix="invert the joined mask",
)
_ALL_RULES = (*_RULES.items(), ("all_rules", "the mask that joins all rules"))
HIDING.add(
    "{}_added",
    "{1} is added to the scores as 0 and 1",
    lambda value: _instead(value[0], "added"),
    values=_ALL_RULES,
)
HIDING.add(
    "{}_multiplied",
    "the scores are multiplied by {1} as 0 and 1: hidden keys get the score 0 (or nearly, as with "
    "1e-9 instead of −1e9), and so weight",
    lambda value: _instead(value[0], "multiplied"),
    values=_ALL_RULES,
)
HIDING.add(
    "hidden_tiny",
    "hidden scores are 1e-9 instead of −1e9: hidden keys get weight",
    # In most files it looks like 0, which has its own rows.
    lambda pipe: pipe.but(fill=1e-9) if pipe.file.resolution < _FINE and _of_keys(pipe) else None,
)
HIDING.add(
    "hidden_positive",
    "hidden scores are a large positive number like 1e9, not −inf: hidden keys get all the weight",
    lambda pipe: pipe.but(fill=-pipe.file.fill) if _of_keys(pipe) else None,
    # Where one key is hidden, or all are, it comes to the same.
    variant_of=("hidden_finite", *(f"{rule}_inverted" for rule in (*_RULES, "all_rules"))),
)
HIDING.add(
    "hidden_after_softmax",
    "hidden keys are zeroed after the softmax, and the others are not renormalised",
    _after_softmax(0.0),
)
HIDING.add(
    "filled_after_softmax",
    "−1e9 is written for hidden keys into the weights, after the softmax, instead of the scores",
    _after_softmax(-1e9),
)


# What becomes of queries that see no key.

BLIND_ROWS = Rows(
    stages.BLIND_ROWS,
    fix="write zeros where a query sees no key",
    shows="a query that sees no key",
)


def _real(pipe: Pipeline) -> list[str]:
    return [name for name in pipe.rules if name != "query_lengths"]


def _nan(pipe: Pipeline) -> Pipeline | None:
    if pipe.sinks is not None or not pipe.rules:  # a sink keeps the denominator above zero
        return None
    inner = pipe.softmax

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(run, scores)
        blind = ~np.broadcast_to(run.seen, scores.shape).any(axis=-1, keepdims=True)
        return np.where(blind, np.nan, weights), lse

    return pipe.but(softmax=softmax)


def unmasked(pipe: Pipeline) -> Pipeline | None:
    """Compute the rows that see nothing as if every key were seen; padded queries stay away."""
    names = _real(pipe)
    if not names:
        return None
    own = pipe.rules

    def shown(name: str) -> Rule:
        def rule(run: Run) -> Bools:
            seen = reduce(np.logical_and, (run.called(own[each]) for each in names))
            return run.called(own[name]) | ~seen.any(axis=-1, keepdims=True)

        return rule

    return pipe.but(rules={**own, **{name: shown(name) for name in names}})


def _averaging(left: Callable[[Run, list[str]], Bools | None]) -> Change:
    """Return the change in which rows that see nothing average the keys that are left to them.

    Beside a large negative number a score has no digits, so all of these keys are equal.
    """

    def change(pipe: Pipeline) -> Pipeline | None:
        names = _real(pipe)
        if not names or pipe.sinks is not None:
            return None
        inner = pipe.softmax

        def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
            seen = left(run, names)
            if seen is None:
                return inner(run, scores)
            kept = ~run.seen_by(*names).any(axis=-1, keepdims=True) & seen
            if "query_lengths" in run.pipe.rules:  # padded queries stay away
                kept = kept & run.rule("query_lengths")
            return inner(run, np.where(kept, 0.0, scores))

        return pipe.but(softmax=softmax)

    return change


def _by_position(run: Run, names: list[str]) -> Bools | None:
    """Return what causal rule, window and segments leave to each query; None without any."""
    own = [name for name in names if name in ("causal", "window", "segment_ids")]
    return run.seen_by(*own) if own else None


def _hidden_least(run: Run, names: list[str]) -> Bools | None:
    """Return the keys of each query that the fewest rules hide; None of a single rule."""
    if len(names) == 1:
        return None
    hidden = sum((~run.rule(name)).astype(np.int64) for name in names)
    return np.asarray(hidden == np.min(hidden, axis=-1, keepdims=True))


BLIND_ROWS.add(
    "blind_rows_nan",
    "the NaN rows are queries that see no key: the softmax of only −inf is NaN",
    _nan,
)
BLIND_ROWS.add(
    "hidden_finite",
    "hidden scores are a large negative number like −1e9, not −inf: a query that sees no key then "
    "gives the mean of all values",
    lambda pipe: pipe.but(fill=pipe.file.fill) if pipe.rules else None,
    fix="write −inf into scores, and zeros where a query sees no key",
)
BLIND_ROWS.add(
    "blind_rows_average_by_position",
    "a query that sees no key gives the mean of the values that the causal rule, the window and "
    "the segments leave to it: the other masks are large negative numbers like −1e9, not −inf",
    _averaging(_by_position),
    shows="a query all of whose keys are padding",
    variant_of=("hidden_finite", "blind_rows_unmasked"),
)
BLIND_ROWS.add(
    "blind_rows_average_least_hidden",
    "a query that sees no key gives the mean of the values that the fewest rules hide: each rule "
    "adds a large negative number like −1e9, not −inf",
    _averaging(_hidden_least),
    shows="a query all of whose keys are padding",
    variant_of=("hidden_finite", "blind_rows_unmasked", "blind_rows_average_by_position"),
)
BLIND_ROWS.add(
    "blind_rows_unmasked",
    "a query that sees no key is computed as if nothing were hidden (−1e9 added to every score "
    "cancels)",
    unmasked,
)
