"""Mistakes in the keys that a query sees: mask, padding, segments, causal rule, window."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.referee import options
from attncli.referee.mistakes.scores import PLACES, first_of, transposed
from attncli.referee.mistakes.table import SIZES, Rows, given, require, ruled, without
from attncli.referee.pipeline import (
    alibi,
    band,
    causal,
    distance_of,
    keys_of,
    measured,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.formats import Array, Bools, Ints
    from attncli.referee.pipeline import Pipeline

    Offsets = tuple[int, ...]
    Side = int | None
    Window = Callable[[Side, Side], tuple[Side, Side]]

ROWS = Rows()

# Rules that programs usually join into one mask.
RULES = ("mask", "key_padding_mask", "kv_lengths", "causal", "window", "segment_ids")
_PADDINGS = ("key_padding_mask", "kv_lengths")
_MASKS = ("mask", *_PADDINGS)


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


def _as(pipe: Pipeline, rule: str, change: Callable[..., Bools], *parameters: Any) -> Pipeline:
    own = _stated(pipe, rule)
    made = change(own, *parameters)
    require((made != own).any())
    return pipe.with_rule(rule, table(made))


def _repeated(pipe: Pipeline, rule: str, *, first: str) -> Pipeline:
    """Repeat masks (B, 1, …) over heads in the wrong order."""
    batch, heads = pipe.problem.shape[:2]
    mask, rows = _stated(pipe, rule), np.arange(batch * heads)
    require(len(mask) > 1, mask.shape[1] == 1, heads > 1)
    # In the order B·H, each mask is repeated H times in a row; in H·B, all masks together H times.
    if first == "entries":
        places = (rows % batch).reshape(batch, heads)
    else:
        places = (rows // heads).reshape(heads, batch).T
    return pipe.with_rule(rule, table(mask[places, 0]))


def _zeroed(pipe: Pipeline, rule: str) -> Pipeline:
    """Set hidden keys and values to zero, if the same keys are hidden from all queries."""
    mask = _stated(pipe, rule)
    require(mask.shape[1] in (1, pipe.key.shape[1]), (mask == mask[:, :, :1]).all())
    real = mask[:, :, 0, :, None]
    value = None if pipe.value is None else np.where(real, pipe.value, 0.0)
    return pipe.but(key=np.where(real, pipe.key, 0.0), value=value)


def _on_queries(pipe: Pipeline, rule: str, *, too: bool) -> Pipeline:
    """Apply a rule on keys to the queries instead, or to both (``too``)."""
    require(pipe.problem.shape[2] == pipe.problem.shape[3])
    rows = table(_stated(pipe, rule).swapaxes(-1, -2))
    return ruled(pipe, rule, lambda run, own: run.called(rows) & own if too else run.called(rows))


def _mirrored(mask: Bools) -> Bools:
    """Hide as many keys at the other end, if the padding is at one end."""
    changes = np.count_nonzero(mask[..., 1:] != mask[..., :-1], axis=-1)
    require(changes.max(initial=0) <= 1)
    return mask[..., ::-1]


def _segments_left_out(problem: Problem) -> str:
    segments = problem.visible.segment_ids
    apart = segments is not None and segments.queries is not segments.keys
    return f"leave --segment-ids{' and --kv-segment-ids' if apart else ''} out"


_LEFT_OUT: dict[str, Any] = {
    "mask": "leave --mask out",
    "key_padding_mask": "leave --key-padding-mask out",
    "kv_lengths": partial(options.with_lengths, None),
    "query_lengths": "leave --query-lengths out",
    "segment_ids": _segments_left_out,
    "window": "leave --window out",
}
ROWS.family("{}_ignored", without, tuple(_LEFT_OUT), option=_LEFT_OUT.__getitem__)
ROWS.family(
    "{}_inverted",
    lambda pipe, rule: ruled(pipe, rule, lambda _, own: ~own),
    RULES,
    option=lambda rule: options.inverted if rule.endswith("mask") else "",
)
ROWS.family("{}_as_zeros", lambda pipe, rule: without(_zeroed(pipe, rule), rule), _MASKS)
for _end, _first in (("tiled_over_heads", "entries"), ("repeated_for_heads_first", "heads")):
    ROWS.family(f"{{}}_{_end}", partial(_repeated, first=_first), _MASKS)
ROWS.add("mask_transposed", _as, "mask", transposed)
ROWS.add(
    "mask_batch_for_head",
    *(_as, "mask", lambda mask: mask.swapaxes(0, 1)),
    when=lambda pipe: pipe.problem.shape[0] == pipe.problem.shape[1],
)
for _axis, _name in enumerate(("batch", "head", "query")):
    ROWS.add(f"mask_of_first_{_name}", _as, "mask", first_of, _axis)
ROWS.family("mask_of_{}", _as, {place: ("mask", *how) for place, how in PLACES.items()})
ROWS.family("{}_on_queries", partial(_on_queries, too=False), _PADDINGS)
ROWS.family(
    "{}_on_queries_too",
    partial(_on_queries, too=True),
    _PADDINGS,
)
ROWS.family("{}_of_first_entry", _as, {rule: (rule, first_of, 0) for rule in _PADDINGS})
ROWS.family("{}_of_next_entry", _as, {rule: (rule, np.roll, -1, 0) for rule in _PADDINGS})
ROWS.add("key_padding_mask_mirrored", _as, "key_padding_mask", _mirrored)
ROWS.add("padding_on_the_left", _as, "kv_lengths", _mirrored)


# Lengths.


def _lengths(pipe: Pipeline, change: Callable[[Ints], Ints]) -> Pipeline:
    """Change the lengths; a length becomes 0 only if it was 0."""
    own = np.array(given(pipe.problem.visible.kv_lengths))
    made = np.clip(change(own), 0, pipe.problem.visible.keys)
    require((made != own).any(), not ((made == 0) & (own > 0)).any())
    return pipe.with_rule("kv_lengths", keys_of(made))


def _rounded_lengths(pipe: Pipeline, way: str, size: int) -> Pipeline:
    return _lengths(pipe, lambda n: (-(-n // size) if way == "up" else n // size) * size)


ROWS.add("lengths_one_short", _lengths, lambda lengths: lengths - 1)
ROWS.add("lengths_one_long", _lengths, lambda lengths: lengths + 1)
ROWS.family(
    "lengths_{}_to_{}", _rounded_lengths, [(way, size) for size in SIZES for way in ("up", "down")]
)
ROWS.family(
    "zeros_in_last_block_of_{}",
    lambda pipe, size: _rounded_lengths(_zeroed(pipe, "kv_lengths"), "up", size),
    SIZES,
)
ROWS.add(
    "lengths_of_longest",
    *(_lengths, lambda lengths: np.full_like(lengths, lengths.max())),
    when=lambda pipe: max(given(pipe.problem.visible.kv_lengths)) < pipe.problem.visible.keys,
)


# Segments.


def _numbered(pipe: Pipeline, change: Callable[[Array], Array], seen: Any = np.equal) -> Pipeline:
    """Change the segment numbers, or compare them in another way."""
    segments = given(pipe.problem.visible.segment_ids)
    rule = measured(change(segments.queries), change(segments.keys), seen)
    return pipe.with_rule("segment_ids", rule)


def _of_token_before(ids: Array, step: int) -> Array:
    """Give each token the segment of the token ``step`` before; tokens at the ends keep theirs."""
    return ids[:, np.clip(np.arange(ids.shape[1]) - step, 0, ids.shape[1] - 1)]


ROWS.add("segment_ids_in_order", _numbered, np.asarray, np.greater_equal)
ROWS.add("segment_ids_in_reverse_order", _numbered, np.asarray, np.less_equal)
ROWS.add("segment_ids_of_first_entry", _numbered, lambda ids: ids[:1])
ROWS.family(
    "segments_end_{}",
    lambda pipe, step: _numbered(pipe, lambda ids: _of_token_before(ids, step)),
    {"late": 1, "early": -1},
)


# Causal rule.


def _placed(pipe: Pipeline, offsets: Offsets) -> Pipeline:
    """Move causal rule and window to other offsets."""
    visible, made = pipe.problem.visible, pipe
    require(_has_places(pipe), (np.array(offsets) != np.array(visible.offsets)).any())
    if visible.causal:
        made = made.with_rule("causal", causal(offsets))
    if visible.window is not None:
        made = made.with_rule("window", band(*visible.window, offsets))
    return made


def _with_causal(pipe: Pipeline, offsets: Offsets) -> Pipeline:
    require(not pipe.problem.visible.causal)
    return pipe.with_rule("causal", causal(offsets))


def _all_at(pipe: Pipeline, offsets: Offsets) -> Pipeline:
    """Move rules, ALiBi and rope to other offsets."""
    problem, made = pipe.problem, _placed(pipe, offsets) if _has_places(pipe) else pipe
    if problem.rope is not None:
        made = made.but(query_positions=np.array(offsets)[:, None] + np.arange(problem.shape[2]))
    if problem.alibi_slopes is not None and "alibi" in pipe.terms:
        made = made.with_term("alibi", alibi(problem.alibi_slopes, offsets))
    require(made is not pipe)
    return made


def _has_places(pipe: Pipeline) -> bool:
    return pipe.problem.visible.causal or pipe.problem.visible.window is not None


def _has_positions_too(pipe: Pipeline) -> bool:
    problem = pipe.problem
    return _has_places(pipe) and (problem.alibi_slopes is not None or problem.rope is not None)


def _in_corner(pipe: Pipeline, corner: str) -> Offsets:
    """Return the offsets that align queries with a corner; bottom_right must not be top_left."""
    visible, (_, _, queries, keys) = pipe.problem.visible, pipe.problem.shape
    if corner == "bottom_right":
        require(any(visible.bottom_right))
        return visible.bottom_right
    if corner == "bottom_right_of_padding":  # padding is counted as keys
        require(min(visible.kv_lengths or (keys,)) < keys)
        return (keys - queries,)
    return (0,)


def _further(pipe: Pipeline, step: int) -> Offsets:
    return tuple(offset + step for offset in pipe.problem.visible.offsets)


def _of_part(pipe: Pipeline) -> Pipeline:
    """Count positions from the first query and the first key of the part."""
    shard = given(pipe.problem.shard)
    require(shard.query != shard.key)
    return _all_at(pipe, _further(pipe, shard.key - shard.query))


def _aligned(corner: str, *, positions: bool = False) -> Any:
    align: Any = corner.replace("_", "-")
    return "" if "padding" in corner else options.aligned(align, positions=positions)


ROWS.add("causal_missing", without, "causal", option="leave --causal out")
ROWS.add("causal_unasked", _with_causal, (0,), option=options.also_causal("top-left"))
ROWS.add("causal_unasked_strict", _with_causal, (-1,))
ROWS.add(
    "causal_unasked_bottom_right",
    lambda pipe: _with_causal(pipe, _in_corner(pipe, "bottom_right")),
    option=options.also_causal("bottom-right"),
)
_CORNERS = ("top_left", "bottom_right", "bottom_right_of_padding")
ROWS.family(
    "causal_{}",
    lambda pipe, corner: _placed(pipe, _in_corner(pipe, corner)),
    _CORNERS,
    option=_aligned,
)
ROWS.family(
    "positions_{}",
    lambda pipe, corner: _all_at(pipe, _in_corner(pipe, corner)),
    _CORNERS,
    when=_has_positions_too,
    option=partial(_aligned, positions=True),
)
ROWS.family(
    "positions_one_{}",
    lambda pipe, step: _all_at(pipe, _further(pipe, step)),
    {"late": 1, "early": -1},
    when=_has_positions_too,
)
ROWS.add("positions_of_part", _of_part)
ROWS.add("diagonal_hidden", ruled, "causal", lambda run, _: distance_of(run) > 0)
ROWS.add("causal_one_late", ruled, "causal", lambda run, _: distance_of(run) >= -1)
ROWS.add("causal_reversed", ruled, "causal", lambda run, _: distance_of(run) <= 0)


# Window.


def _windowed(pipe: Pipeline, change: Window) -> Pipeline:
    window = given(pipe.problem.visible.window)
    new = change(*window)
    require(new != window, all(side is None or side >= 0 for side in new))
    return pipe.with_rule("window", band(*new, pipe.problem.visible.offsets))


def _moved(left: int, right: int) -> Window:
    return lambda a, b: (None if a is None else a + left, None if b is None else b + right)


def _half(side: Side) -> Side:
    return None if side is None else side // 2


def _stated_window(change: Window, problem: Problem) -> str:
    window = problem.visible.window
    return "" if window is None else options.windowed(*change(*window))


def _symmetric(pipe: Pipeline) -> Pipeline:
    left = given(given(pipe.problem.visible.window)[0])
    wider = band(left, left, pipe.problem.visible.offsets)
    return pipe.with_rule("window", wider).with_rule("causal", None)


def _trimmed(pipe: Pipeline) -> Pipeline:
    """Hide the keys before the last query's window from all queries."""
    window, queries = given(pipe.problem.visible.window), pipe.problem.shape[2]
    first = pipe.offsets + queries - 1 - given(window[0])
    require(queries > 1, first.max() > 0)
    return ruled(pipe, "window", lambda run, own: own & (run.j >= run.by_entry(first)))


_WINDOWS: dict[str, Window] = {
    **{
        f"window_{name}_{word}": _moved(by * left, by * right)
        for by, word in ((-1, "short"), (1, "long"))
        for name, left, right in (("left", 1, 0), ("right", 0, 1), ("both", 1, 1))
    },
    "window_one_sided": lambda left, _: (left, 0),
    "window_left_only": lambda left, _: (left, None),
    "window_right_only": lambda _, right: (None, right),
    "window_halved": lambda left, right: (_half(left), _half(right)),
    "window_swapped": lambda left, right: (right, left),
}
for _name, _change in _WINDOWS.items():
    ROWS.add(_name, _windowed, _change, option=partial(_stated_window, _change))
ROWS.add("window_symmetric", _symmetric)
ROWS.add("window_cache_trimmed", _trimmed)
ROWS.add("window_first_key", ruled, "window", lambda run, own: own | (run.j < 1))
ROWS.add("window_first_four", ruled, "window", lambda run, own: own | (run.j < 4))
