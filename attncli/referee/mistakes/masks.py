"""Mistakes in which keys a query sees: mask, padding, segments, causal rule, window, hiding."""

from __future__ import annotations

from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee import options
from attncli.referee.mistakes.changes import given, negated, require, softmaxed, where, without_rule
from attncli.referee.mistakes.scores import PLACES, first_of, transposed
from attncli.referee.mistakes.table import SIZES, Rows
from attncli.referee.pipeline import alibi, band, causal, keys_of, measured, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools
    from attncli.referee.pipeline import Pipeline, Rule
    from attncli.referee.run import Run

    Offsets = tuple[int, ...]
    Side = int | None

__all__ = ["ROWS", "placed"]

ROWS = Rows()

# Rules that a program would join into one mask.
_RULES = ("mask", "key_padding_mask", "kv_lengths", "causal", "window", "segment_ids")
# The largest tolerance of files that hold 1e-9 apart from 0.
_FINE = 1e-11


# Mask and padding.


def _stated(pipe: Pipeline, rule: str) -> Bools:
    """Return mask, key_padding_mask or kv_lengths as a mask (B or 1, H or 1, L or 1, S)."""
    visible = pipe.problem.visible
    if rule == "mask":
        return np.asarray(given(visible.mask))
    if rule == "key_padding_mask":
        return np.asarray(given(visible.key_padding_mask))[:, None, None]
    lengths = np.array(given(visible.kv_lengths))
    return np.asarray(np.arange(visible.keys) < lengths[:, None, None, None])


def _mask_as(pipe: Pipeline, change: Callable[..., Bools], *parameters: Any) -> Pipeline:
    """Take another mask, made of the one that is stated."""
    return pipe.with_rule("mask", table(change(_stated(pipe, "mask"), *parameters)))


def _repeated(pipe: Pipeline, rule: str, first: str) -> Pipeline:
    """Let heads read the masks (B, 1, …) as they are where they are repeated in the wrong order.

    Over B·H rows, where the heads of an entry are neighbours, each mask belongs H times in a row;
    over H·B rows, all masks one after the other belong H times.
    """
    batch, heads = pipe.problem.shape[:2]
    mask, rows = _stated(pipe, rule), np.arange(batch * heads)
    require(len(mask) > 1, mask.shape[1] == 1, heads > 1)
    if first == "entries":
        places = (rows % batch).reshape(batch, heads)
    else:
        places = (rows // heads).reshape(heads, batch).T
    return pipe.with_rule(rule, table(mask[places, 0]))


def _shown_to_all(pipe: Pipeline, rule: str) -> Bools:
    """Return which keys a rule shows, (B or 1, G or 1, S, 1), if it is the same for all queries."""
    mask = _stated(pipe, rule)
    require(rule in pipe.rules, mask.shape[1] in (1, pipe.key.shape[1]))
    require((mask == mask[:, :, :1]).all())
    return mask[:, :, 0, :, None]


def _zeroed(pipe: Pipeline, rule: str) -> Pipeline:
    """Read the keys and values that a rule hides as zeros."""
    real = _shown_to_all(pipe, rule)
    value = None if pipe.value is None else np.where(real, pipe.value, 0.0)
    return pipe.but(key=np.where(real, pipe.key, 0.0), value=value)


def _as_zeros(pipe: Pipeline, rule: str) -> Pipeline:
    return without_rule(_zeroed(pipe, rule), rule)


ROWS.add("mask_ignored", without_rule, "mask", option="leave --mask out")
ROWS.add("mask_inverted", negated, "mask", option=options.inverted("mask"))
ROWS.add("mask_transposed", _mask_as, transposed)
ROWS.add(
    "mask_batch_for_head",
    *(where, lambda pipe: pipe.problem.shape[0] == pipe.problem.shape[1]),
    *(_mask_as, lambda mask: mask.swapaxes(0, 1)),
)
ROWS.add("mask_tiled_over_heads", _repeated, "mask", "entries")
ROWS.add("mask_repeated_for_heads_first", _repeated, *("mask", "heads"))
ROWS.add("mask_of_first_batch", _mask_as, first_of, 0)
ROWS.add("mask_of_first_head", _mask_as, first_of, 1)
ROWS.add("mask_of_first_query", _mask_as, first_of, 2)
ROWS.add("mask_as_zeros", _as_zeros, "mask")
ROWS.family("mask_of_{}", _mask_as, PLACES)


def _on_queries(pipe: Pipeline, rule: str, *, too: bool = False) -> Pipeline:
    """Read a rule on keys as one on queries, or as both."""
    _, _, queries, keys = pipe.problem.shape
    require(queries == keys)
    rows, own = table(_shown_to_all(pipe, rule)), pipe.rules[rule]
    return pipe.with_rule(rule, (lambda run: run.called(own) & run.called(rows)) if too else rows)


def _of_entry(pipe: Pipeline, rule: str, *, next_one: bool = False) -> Pipeline:
    """Let each batch entry take the padding of the next one, or of the first."""
    mask = _stated(pipe, rule)
    made = np.roll(mask, -1, axis=0) if next_one else np.broadcast_to(mask[:1], mask.shape)
    require(not np.array_equal(made, mask))
    return pipe.with_rule(rule, table(made))


def _mirrored(pipe: Pipeline, rule: str) -> Pipeline:
    """Take as many keys at the other end for padding, where it is padding of one side."""
    mask = _stated(pipe, rule)
    changes = np.count_nonzero(mask[..., 1:] != mask[..., :-1], axis=-1)
    require(changes.max(initial=0) <= 1)
    return pipe.with_rule(rule, table(mask[..., ::-1]))


def _lengths(pipe: Pipeline, change: Callable[[int], int]) -> Pipeline:
    """Change the length of each batch entry; rows that see no key have another name."""
    own = given(pipe.problem.visible.kv_lengths)
    made = tuple(min(max(change(n), 0), pipe.problem.visible.keys) for n in own)
    require(made != tuple(own), not any(new == 0 < old for new, old in zip(made, own, strict=True)))
    return pipe.with_rule("kv_lengths", keys_of(made))


def _rounded_lengths(pipe: Pipeline, way: str, size: int) -> Pipeline:
    return _lengths(pipe, lambda n: (-(-n // size) if way == "up" else n // size) * size)


def _of_longest(pipe: Pipeline) -> Pipeline:
    own = given(pipe.problem.visible.kv_lengths)
    require(min(own) < max(own) < pipe.problem.visible.keys)
    return pipe.with_rule("kv_lengths", keys_of((max(own),)))


_LEFT_OUT: dict[str, Any] = {
    "key_padding_mask": "leave --key-padding-mask out",
    "kv_lengths": options.without_lengths,
}
_PADDINGS = tuple(_LEFT_OUT)
ROWS.family("{}_ignored", without_rule, _PADDINGS, option=_LEFT_OUT.__getitem__)
ROWS.family("{}_on_queries", _on_queries, _PADDINGS)
ROWS.family(
    "{}_on_queries_too",
    partial(_on_queries, too=True),
    _PADDINGS,
    option=lambda _: options.padded_queries,
)
ROWS.family("{}_as_zeros", _as_zeros, _PADDINGS)
ROWS.family("{}_of_first_entry", _of_entry, _PADDINGS)
ROWS.family("{}_of_next_entry", partial(_of_entry, next_one=True), _PADDINGS)
ROWS.family(
    "{}_inverted",
    negated,
    _PADDINGS,
    option=lambda rule: options.inverted(rule) if rule == "key_padding_mask" else "",
)
ROWS.family("{}_tiled_over_heads", partial(_repeated, first="entries"), _PADDINGS)
ROWS.family("{}_repeated_for_heads_first", partial(_repeated, first="heads"), _PADDINGS)
ROWS.add("key_padding_mask_mirrored", _mirrored, "key_padding_mask")
ROWS.add("lengths_one_short", _lengths, lambda length: length - 1)
ROWS.add("lengths_one_long", _lengths, lambda length: length + 1)
ROWS.family(
    "lengths_{}_to_{}", _rounded_lengths, [(way, size) for size in SIZES for way in ("up", "down")]
)
ROWS.family(
    "zeros_in_last_block_of_{}",
    lambda pipe, size: _rounded_lengths(_zeroed(pipe, "kv_lengths"), "up", size),
    SIZES,
)
ROWS.add("lengths_of_longest", _of_longest)
ROWS.add("padding_on_the_left", _mirrored, "kv_lengths")
ROWS.add("query_lengths_ignored", without_rule, "query_lengths", option="leave --query-lengths out")


# Segments.


def _left_out(problem: Problem) -> str:
    segments = problem.visible.segment_ids
    apart = segments is not None and segments.queries is not segments.keys
    return f"leave --segment-ids{' and --kv-segment-ids' if apart else ''} out"


def _numbered(pipe: Pipeline, change: Callable[[Array], Array], seen: Any = np.equal) -> Pipeline:
    """Take other numbers of the sequences, or compare them otherwise."""
    segments = given(pipe.problem.visible.segment_ids)
    rule = measured(change(segments.queries), change(segments.keys), seen)
    return pipe.with_rule("segment_ids", rule)


def _ends_moved(pipe: Pipeline, step: int) -> Pipeline:
    """Give each token the number of one before it; those at an end keep their own."""

    def moved(ids: Array) -> Array:
        return ids[:, np.clip(np.arange(ids.shape[1]) - step, 0, ids.shape[1] - 1)]

    return _numbered(pipe, moved)


ROWS.add("segment_ids_ignored", without_rule, "segment_ids", option=_left_out)
ROWS.add("segment_ids_inverted", negated, "segment_ids")
ROWS.add("segment_ids_in_order", _numbered, *(np.asarray, np.greater_equal))
ROWS.family("segments_end_{}", _ends_moved, {"late": 1, "early": -1})
ROWS.add("segment_ids_in_reverse_order", _numbered, np.asarray, np.less_equal)
ROWS.add("segment_ids_of_first_entry", _numbered, lambda ids: ids[:1])


# Causal rule.


def placed(pipe: Pipeline, offsets: Offsets, *, unasked: bool = False) -> Pipeline | None:
    """Place causal rule and window at other offsets; or add a causal rule that is not asked for."""
    visible = pipe.problem.visible
    if unasked:
        return None if visible.causal else pipe.with_rule("causal", causal(offsets))
    if (np.array(offsets) == np.array(visible.offsets)).all():
        return None
    made = pipe
    if visible.causal:
        made = made.with_rule("causal", causal(offsets))
    if visible.window is not None:
        made = made.with_rule("window", band(*visible.window, offsets))
    return None if made is pipe else made


def _at(pipe: Pipeline, offsets: Callable[[Problem], Offsets | None]) -> Pipeline:
    """Place the rules at other offsets."""
    return given(placed(pipe, given(offsets(pipe.problem))))


def _unasked(pipe: Pipeline, offsets: Callable[[Problem], Offsets | None]) -> Pipeline:
    return given(placed(pipe, given(offsets(pipe.problem)), unasked=True))


def _all_moved(pipe: Pipeline, there: Offsets) -> Pipeline:
    """Place rules, ALiBi and the rotary embedding at other offsets."""
    problem, made = pipe.problem, placed(pipe, there) or pipe
    if problem.rope is not None:
        made = made.but(query_positions=np.array(there)[:, None] + np.arange(problem.shape[2]))
    if problem.alibi_slopes is not None and "alibi" in pipe.terms:
        made = made.with_term("alibi", alibi(problem.alibi_slopes, there))
    require(made is not pipe)
    return made


def _all_at(pipe: Pipeline, offsets: Callable[[Problem], Offsets | None]) -> Pipeline:
    """Place rules, where there are any, and all else at other offsets."""
    problem, there = pipe.problem, given(offsets(pipe.problem))
    require(problem.alibi_slopes is not None or problem.rope is not None, placed(pipe, there))
    return _all_moved(pipe, there)


def _at_own_start(pipe: Pipeline) -> Pipeline:
    """Let the first query and the first key of a part stand at 0."""
    shard = given(pipe.problem.shard)
    moved = shard.query - shard.key
    require(moved)
    return _all_moved(pipe, tuple(offset - moved for offset in pipe.problem.visible.offsets))


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


def _beside(step: int) -> Callable[[Problem], Offsets]:
    return lambda problem: tuple(offset + step for offset in problem.visible.offsets)


def _causal_as(pipe: Pipeline, first: int | None, last: int | None) -> Pipeline:
    """See key j where i + offset + first ≤ j ≤ i + offset + last."""
    require(pipe.problem.visible.causal)
    left = None if first is None else -first
    return pipe.with_rule("causal", band(left, last, pipe.offsets))


_CORNERS = {"top_left": _zero, "bottom_right": _corner}
_ALIGNS: dict[str, Any] = {corner: corner.replace("_", "-") for corner in _CORNERS}
ROWS.add("causal_missing", without_rule, "causal", option="leave --causal out")
ROWS.add("causal_unasked", _unasked, _zero, option=options.also_causal("top-left"))
ROWS.add("causal_unasked_strict", _unasked, lambda _: (-1,))
ROWS.add(
    "causal_unasked_bottom_right", _unasked, _corner, option=options.also_causal("bottom-right")
)
ROWS.family("causal_{}", _at, _CORNERS, option=lambda corner: options.aligned(_ALIGNS[corner]))
ROWS.family(
    "positions_{}",
    _all_at,
    _CORNERS,
    option=lambda corner: options.aligned(_ALIGNS[corner], positions=True),
)
ROWS.family("positions_one_{}", _all_at, {"late": _beside(1), "early": _beside(-1)})
ROWS.add("causal_bottom_right_of_padding", _at, _corner_of_all)
ROWS.add("positions_bottom_right_of_padding", _all_at, _corner_of_all)
ROWS.add("positions_of_part", _at_own_start)
ROWS.add("diagonal_hidden", _causal_as, None, -1)
ROWS.add("causal_one_late", _causal_as, None, 1)
ROWS.add("causal_inverted", negated, "causal")
ROWS.add("causal_reversed", _causal_as, 0, None)


# Window.


def _windowed(pipe: Pipeline, change: Callable[[Side, Side], tuple[Side, Side]]) -> Pipeline:
    """Take another window, made of the right one."""
    window = given(pipe.problem.visible.window)
    new = change(*window)
    require(new != window, all(side is None or side >= 0 for side in new))
    return pipe.with_rule("window", band(*new, pipe.problem.visible.offsets))


def _moved(left: int, right: int) -> Callable[[Side, Side], tuple[Side, Side]]:
    return lambda a, b: (None if a is None else a + left, None if b is None else b + right)


def _half(side: Side) -> Side:
    return None if side is None else side // 2


_SHORT_AND_LONG = {
    f"window_{name}_{word}": _moved(by * left, by * right)
    for by, word in ((-1, "short"), (1, "long"))
    for name, left, right in (("left", 1, 0), ("right", 0, 1), ("both", 1, 1))
}
_WINDOWS: dict[str, Callable[[Side, Side], tuple[Side, Side]]] = {
    **_SHORT_AND_LONG,
    "window_one_sided": lambda left, _: (left, 0),
    "window_left_only": lambda left, _: (left, None),
    "window_right_only": lambda _, right: (None, right),
    "window_halved": lambda left, right: (_half(left), _half(right)),
    "window_swapped": lambda left, right: (right, left),
}


def _stated_window(change: Callable[[Side, Side], tuple[Side, Side]], problem: Problem) -> str:
    window = problem.visible.window
    return "" if window is None else options.windowed(*change(*window))


def _symmetric(pipe: Pipeline) -> Pipeline:
    window = given(pipe.problem.visible.window)
    require(window[0] is not None)
    wider = band(window[0], window[0], pipe.problem.visible.offsets)
    return pipe.with_rule("window", wider).with_rule("causal", None)


def _first_keys(pipe: Pipeline, count: int) -> Pipeline:
    own = given(pipe.rules.get("window"))
    return pipe.with_rule("window", lambda run: run.called(own) | (run.j < count))


def _trimmed(pipe: Pipeline) -> Pipeline:
    """Hide what lies before the window of the last query from all queries."""
    window, queries = given(pipe.problem.visible.window), pipe.problem.shape[2]
    first = pipe.offsets + queries - 1 - given(window[0])
    own = pipe.rules["window"]
    require(queries > 1, first.max() > 0)
    return pipe.with_rule("window", lambda run: run.called(own) & (run.j >= run.by_entry(first)))


ROWS.add("window_ignored", without_rule, "window", option="leave --window out")
ROWS.add("window_inverted", negated, "window")
for _name, _change in _WINDOWS.items():
    ROWS.add(_name, _windowed, _change, option=partial(_stated_window, _change))
ROWS.add("window_symmetric", _symmetric)
ROWS.add("window_cache_trimmed", _trimmed)
ROWS.add("window_first_key", _first_keys, 1)
ROWS.add("window_first_four", _first_keys, 4)


# How keys are hidden, whichever rule hides them.


def _of_keys(pipe: Pipeline) -> list[str]:
    return [name for name in pipe.rules if name in _RULES]


def _joined(pipe: Pipeline, join: Callable[[Run, list[Rule]], Bools]) -> Pipeline:
    """Make one rule of all rules on keys, of which there are several."""
    names = _of_keys(pipe)
    require(len(names) > 1)
    rules = [pipe.rules[name] for name in names]
    rest = {name: rule for name, rule in pipe.rules.items() if name not in names}
    return pipe.but(rules={**rest, "joined": lambda run: join(run, rules)})


def _all(run: Run, rules: list[Rule]) -> Bools:
    return np.asarray(reduce(np.logical_and, map(run.called, rules)))


def _meets_scores(pipe: Pipeline, rule: str, *, how: Any) -> Pipeline:
    """Let a rule, as 0 and 1, be added to the scores or multiplied with them, and hide nothing."""
    if rule == "all_rules":
        pipe, rule = _joined(pipe, _all), "joined"
    own = given(pipe.rules.get(rule))

    def step(run: Run, scores: Array) -> Array:
        return np.asarray(how(scores, run.called(own).astype(scores.dtype)))

    return pipe.with_rule(rule, None).with_step(f"{how.__name__} mask", step, before="hide")


def _after_softmax(pipe: Pipeline, fill: float) -> Pipeline:
    """Hide keys among the weights."""
    require(pipe.rules)
    rules = list(pipe.rules.values())
    return pipe.but(rules={}).then(
        "after", lambda run, weights: np.where(_all(run, rules), weights, fill)
    )


def _filled(pipe: Pipeline, sign: float) -> Pipeline:
    """Hide keys by the number that the file holds, or by 1e-9 where that is told from 0."""
    require(pipe.rules, sign > 0 or _of_keys(pipe), sign or pipe.file.resolution < _FINE)
    return pipe.but(fill=sign * pipe.file.fill or 1e-9)


ROWS.add(
    "rules_joined_by_or",
    _joined,
    lambda run, rules: reduce(np.logical_or, map(run.called, rules)),
)
ROWS.family("{}_added", partial(_meets_scores, how=np.add), (*_RULES, "all_rules"))
ROWS.family("{}_multiplied", partial(_meets_scores, how=np.multiply), (*_RULES, "all_rules"))
ROWS.add("hidden_tiny", _filled, 0)
ROWS.add("hidden_positive", _filled, -1)
ROWS.add("hidden_after_softmax", _after_softmax, 0.0)
ROWS.add("filled_after_softmax", _after_softmax, -1e9)


# What becomes of queries that see no key.


def _real(pipe: Pipeline) -> list[str]:
    """Return the rules but that of padded queries, which stay away."""
    return [name for name in pipe.rules if name != "query_lengths"]


def _nan(pipe: Pipeline) -> Pipeline:
    require(pipe.sinks is None, pipe.rules)  # a sink keeps the denominator above zero
    inner = pipe.softmax

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        weights, lse = inner(run, scores)
        blind = ~np.broadcast_to(run.seen, scores.shape).any(axis=-1, keepdims=True)
        return np.where(blind, np.nan, weights), lse

    return softmaxed(pipe, softmax)


def _unmasked(pipe: Pipeline) -> Pipeline:
    """Compute the rows that see nothing as if every key were seen; padded queries stay away."""
    names, own = _real(pipe), pipe.rules
    require(names)

    def shown(name: str) -> Rule:
        def rule(run: Run) -> Bools:
            seen = _all(run, [own[each] for each in names])
            return run.called(own[name]) | ~seen.any(axis=-1, keepdims=True)

        return rule

    return pipe.but(rules={**own, **{name: shown(name) for name in names}})


def _averaging(pipe: Pipeline, left: Callable[[Run, list[str]], Bools | None]) -> Pipeline:
    """Let rows that see nothing average the keys that are left to them.

    Beside a large negative number a score has no digits, so all of these keys are equal.
    """
    names, inner = _real(pipe), pipe.softmax
    require(names, pipe.sinks is None)

    def softmax(run: Run, scores: Array) -> tuple[Array, Array]:
        seen = left(run, names)
        if seen is None:
            return inner(run, scores)
        kept = ~run.seen_by(*names).any(axis=-1, keepdims=True) & seen
        if "query_lengths" in run.pipe.rules:
            kept = kept & run.seen_by("query_lengths")
        return inner(run, np.where(kept, 0.0, scores))

    return softmaxed(pipe, softmax)


def _by_position(run: Run, names: list[str]) -> Bools | None:
    """Return what causal rule, window and segments leave to each query; None without any."""
    own = [name for name in names if name in ("causal", "window", "segment_ids")]
    return run.seen_by(*own) if own else None


def _hidden_least(run: Run, names: list[str]) -> Bools | None:
    """Return the keys of each query that the fewest rules hide; None of a single rule."""
    if len(names) == 1:
        return None
    hidden = sum((~run.seen_by(name)).astype(np.int64) for name in names)
    return np.asarray(hidden == np.min(hidden, axis=-1, keepdims=True))


ROWS.add("blind_rows_nan", _nan)
ROWS.add("hidden_finite", _filled, 1)
ROWS.add("blind_rows_average_by_position", _averaging, _by_position)
ROWS.add("blind_rows_average_least_hidden", _averaging, _hidden_least)
ROWS.add("blind_rows_unmasked", _unmasked)
