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

MASKS = Rows(stages.MASK)


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


MASKS.add("mask_ignored", dropped("mask"), option=without_mask("mask"))
MASKS.add("mask_inverted", _negated("mask"), option=inverted("mask"))
MASKS.add("masks_inverted", _both_inverted, option=inverted("mask", "key_padding_mask"))
MASKS.add("mask_transposed", _mask_as(transposed))
MASKS.add("mask_batch_for_head", _swapped)
MASKS.add("mask_tiled_over_heads", _repeat("mask", entries_first=True))
MASKS.add(
    "mask_repeated_for_heads_first",
    _repeat("mask", entries_first=False),
    variant_of=("mask_tiled_over_heads",),
)
MASKS.add("mask_of_first_batch", _mask_as(lambda mask: mask[:1] if len(mask) > 1 else None))
MASKS.add("mask_of_first_head", _mask_as(lambda mask: mask[:, :1] if mask.shape[1] > 1 else None))
MASKS.add(
    "mask_of_first_query", _mask_as(lambda mask: mask[:, :, :1] if mask.shape[2] > 1 else None)
)
MASKS.add("mask_as_zeros", _read_as_zeros("mask", dropped("mask")))
MASKS.add(
    "mask_of_{}",
    lambda place: _mask_as(off_by_one(place[0])),
    values=PLACES,
    stage=stages.MASK_PLACES,
)


# Padding.

PADDING = Rows(stages.PADDING)


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
PADDING.add("{}_ignored", dropped, values=_PADDINGS, option=_LEFT_OUT.__getitem__)
PADDING.add(
    "{}_on_queries",
    lambda rule: _on_queries(rule, too=False),
    values=_PADDINGS,
    stage=stages.PADDING_ON_QUERIES,
)
PADDING.add(
    "{}_on_queries_too",
    lambda rule: _on_queries(rule, too=True),
    values=_PADDINGS,
    stage=stages.PADDING_ON_QUERIES,
    option=lambda _: padded_queries,
)
PADDING.add("{}_as_zeros", lambda rule: _read_as_zeros(rule, dropped(rule)), values=_PADDINGS)
PADDING.add("{}_of_first_entry", lambda rule: _of_entry(rule, lambda _, __: 0), values=_PADDINGS)
PADDING.add(
    "{}_of_next_entry",
    lambda rule: _of_entry(rule, lambda entry, count: (entry + 1) % count),
    values=_PADDINGS,
)
PADDING.add(
    "{}_inverted",
    _negated,
    values=_PADDINGS,
    stage=stages.PADDING_INVERTED,
    option=lambda rule: inverted(rule) if rule == "key_padding_mask" else "",
)
PADDING.add("{}_tiled_over_heads", lambda rule: _repeat(rule, entries_first=True), values=_PADDINGS)
PADDING.add(
    "{}_repeated_for_heads_first",
    lambda rule: _repeat(rule, entries_first=False),
    values=_PADDINGS,
    variant_of=lambda rule: (f"{rule}_tiled_over_heads",),
)
PADDING.add("key_padding_mask_mirrored", _mirrored)
PADDING.add("lengths_one_short", _lengths(lambda length: length - 1))
PADDING.add("lengths_one_long", _lengths(lambda length: length + 1))
PADDING.add(
    "lengths_{}_to_{}",
    lambda value: _lengths((_up if value[0] == "up" else _down)(value[1])),
    values=[(way, size) for size in SIZES for way in ("up", "down")],
    stage=stages.ROUNDED_LENGTHS,
    variant_of=lambda value: (
        "kv_lengths_ignored",
        *(f"lengths_{value[0]}_to_{size}" for size in SIZES if size < value[1]),
    ),
)
PADDING.add(
    "zeros_in_last_block_of_{}",
    lambda size: _read_as_zeros("kv_lengths", _lengths(_up(size))),
    values=SIZES,
    stage=stages.ROUNDED_LENGTHS,
    variant_of=("kv_lengths_as_zeros",),
)
PADDING.add("lengths_of_longest", _of_longest)
PADDING.add("padding_on_the_left", _on_the_left)
PADDING.add(
    "query_lengths_ignored",
    dropped("query_lengths"),
    stage=stages.QUERY_PADDING,
    option="leave --query-lengths out",
)


# Segments.

SEGMENTS = Rows(stages.SEGMENTS)
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


SEGMENTS.add("segment_ids_ignored", dropped("segment_ids"), option=_left_out)
SEGMENTS.add("segment_ids_inverted", _negated("segment_ids"))
SEGMENTS.add(
    "segment_ids_in_order",
    _numbered(np.asarray, np.greater_equal),
    variant_of=("segment_ids_ignored",),
)
SEGMENTS.add(
    "segments_end_{}",
    lambda value: _numbered(value[1]),
    values=(("late", _later), ("early", _earlier)),
)
SEGMENTS.add(
    "segments_of_keys_end_{}",
    lambda value: _numbered(value[1], queries=False),
    values=(("late", _later), ("early", _earlier)),
    variant_of=lambda value: (f"segments_end_{value[0]}",),
)
SEGMENTS.add("segment_ids_in_reverse_order", _numbered(np.asarray, np.less_equal))
SEGMENTS.add("segment_ids_of_first_entry", _numbered(lambda ids: ids[:1]))


# Causal rule.

CAUSAL = Rows(stages.CAUSAL)
_ADD = "add the offset, S − L or the length of the cache, to the query's index"
_LENGTHS = "different numbers of queries and keys"


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


CAUSAL.add("causal_missing", dropped("causal"), option=without_placed("--causal"))
CAUSAL.add("causal_unasked", _at(_zero, unasked=True), option=also_causal("top-left"))
CAUSAL.add("causal_unasked_strict", _at(_zero, unasked=True, step=-1))
CAUSAL.add(
    "causal_unasked_bottom_right", _at(_corner, unasked=True), option=also_causal("bottom-right")
)
CAUSAL.add("causal_unasked_at_the_offset", _at(_own, unasked=True), option="--causal")
CAUSAL.add("causal_top_left", _at(_zero), option=aligned("top-left"))
CAUSAL.add("causal_bottom_right", _at(_corner), option=aligned("bottom-right"))
CAUSAL.add(
    "causal_{}_strict",
    lambda value: _at(value[2], step=-1),
    values=(("top_left", "top-left", _zero), ("bottom_right", "bottom-right", _corner)),
    variant_of=("diagonal_hidden",),
)
CAUSAL.add(
    "positions_{}",
    lambda value: _all_at(value[3]),
    meaning="all positions are aligned {1}, those of ALiBi or the rotary embedding too: {2}",
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
    lambda value: _all_at(_beside(value[1])),
    values=(("late", 1), ("early", -1)),
)
CAUSAL.add("causal_bottom_right_of_padding", _at(_corner_of_all))
CAUSAL.add("positions_bottom_right_of_padding", _all_at(_corner_of_all))
CAUSAL.add(
    "padding_counted_as_keys",
    _padding_counted,
    option=lambda problem: "leave --kv-lengths out" if stands_in_corner(problem) else "",
)
CAUSAL.add("diagonal_hidden", _shifted(-1))
CAUSAL.add("causal_one_late", _shifted(1))
CAUSAL.add("causal_inverted", _negated("causal"))
CAUSAL.add("causal_reversed", _reversed)


# Window.

WINDOW = Rows(
    stages.WINDOW,
    fix="see key j where i + offset − left ≤ j ≤ i + offset + right, itself included",
    shows="more keys than the window holds",
)
Side = int | None


def _other_window(
    name: str,
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

    WINDOW.add(name, changed, option=option, variant_of=variant_of)


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


WINDOW.add("window_ignored", dropped("window"), option=without_placed("--window"))
WINDOW.add("window_inverted", _negated("window"))
for _by, _word in ((-1, "short"), (1, "long")):
    for _name, _left, _right in (("left", _by, 0), ("right", 0, _by), ("both", _by, _by)):
        _other_window(
            f"window_{_name}_{_word}",
            lambda a, b, left=_left, right=_right: (_step(a, left), _step(b, right)),  # type: ignore[misc]
            (f"window_left_{_word}", f"window_right_{_word}") if _name == "both" else (),
        )
_other_window("window_one_sided", lambda left, _: (left, 0))
_other_window("window_left_only", lambda left, _: (left, None))
_other_window("window_right_only", lambda _, right: (None, right))
_other_window("window_halved", lambda left, right: (_half(left), _half(right)))
WINDOW.add("window_symmetric", _symmetric, variant_of=("window_right_long",))
_other_window("window_swapped", lambda a, b: (b, a))
WINDOW.add("window_cache_trimmed", _trimmed)
WINDOW.add("window_first_key", _first_keys(1))
WINDOW.add("window_first_four", _first_keys(4))


# How keys are hidden, whichever rule hides them.

TOGETHER = Rows(stages.MASK)
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
    lambda pipe: _joined(pipe, _any),
    variant_of=("causal_missing", *(f"{rule}_ignored" for rule in _RULES if rule != "causal")),
)
TOGETHER.add("all_rules_inverted", lambda pipe: _joined(pipe, lambda run, rules: ~_all(run, rules)))
_ALL_RULES = (*_RULES.items(), ("all_rules", "the mask that joins all rules"))
HIDING.add(
    "{}_added",
    lambda value: _instead(value[0], "added"),
    meaning="{1} is added to the scores as 0 and 1",
    values=_ALL_RULES,
)
HIDING.add("{}_multiplied", lambda value: _instead(value[0], "multiplied"), values=_ALL_RULES)
HIDING.add(
    "hidden_tiny",
    lambda pipe: pipe.but(fill=1e-9) if pipe.file.resolution < _FINE and _of_keys(pipe) else None,
)
HIDING.add(
    "hidden_positive",
    lambda pipe: pipe.but(fill=-pipe.file.fill) if _of_keys(pipe) else None,
    variant_of=("hidden_finite", *(f"{rule}_inverted" for rule in (*_RULES, "all_rules"))),
)
HIDING.add("hidden_after_softmax", _after_softmax(0.0))
HIDING.add("filled_after_softmax", _after_softmax(-1e9))


# What becomes of queries that see no key.

BLIND_ROWS = Rows(stages.BLIND_ROWS)


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


BLIND_ROWS.add("blind_rows_nan", _nan)
BLIND_ROWS.add("hidden_finite", lambda pipe: pipe.but(fill=pipe.file.fill) if pipe.rules else None)
BLIND_ROWS.add(
    "blind_rows_average_by_position",
    _averaging(_by_position),
    variant_of=("hidden_finite", "blind_rows_unmasked"),
)
BLIND_ROWS.add(
    "blind_rows_average_least_hidden",
    _averaging(_hidden_least),
    variant_of=("hidden_finite", "blind_rows_unmasked", "blind_rows_average_by_position"),
)
BLIND_ROWS.add("blind_rows_unmasked", unmasked)
