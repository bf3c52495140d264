"""Masks, padding, lengths, the causal rule, windows, segments, and how keys are hidden."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.plain import softmax


def _mask(random, *shape):
    """Return a keep-mask under which every query sees its own key, and few see the first."""
    made = random.random(shape) < 0.6
    rows, keys = shape[-2:]
    return made | (np.arange(rows)[:, None] == np.arange(keys))


def _lines(random):
    mask = _mask(random, 6, 6)
    mask[:, 0] = True
    mask[0] = [True, False, True, False, True, False]
    mask[1] = [True, True, False, False, True, False]
    return {"mask": mask}


def _soft(g, scores):
    return np.nan_to_num(softmax(scores)) @ g.v


cases = family("mask", options=_lines)
cases["passes"] = lambda g: g["mask"]
cases["mask_ignored"] = lambda g: g.attend()
cases["mask_inverted"] = lambda g: ~g["mask"]
cases["mask_added"] = lambda g: softmax(g.scores() + g["mask"]) @ g.v
cases["mask_multiplied"] = lambda g: softmax(g.scores() * g["mask"]) @ g.v
cases["mask_transposed"] = lambda g: g["mask"].T
cases["hidden_after_softmax"] = lambda g: (softmax(g.scores()) * g["mask"]) @ g.v
cases["hidden_positive"] = lambda g: softmax(np.where(g["mask"], g.scores(), 1e9)) @ g.v
cases["mask_ignored+unscaled"] = lambda g: g.attend(scale=1)
cases["mask_inverted+unscaled"] = lambda g: g.attend(~g["mask"], scale=1)
cases["mask_ignored @ weights"] = lambda g: {"weights": g.weights()}
cases["mask_inverted @ weights"] = lambda g: {"weights": g.weights(~g["mask"])}

cases = family("mask/shifted", shapes=(2, 4, 12, 8), options=lambda r: {"mask": _mask(r, 12, 12)})
cases["mask_of_next_key"] = lambda g: np.roll(g["mask"].ravel(), -1).reshape(12, 12)
cases["mask_of_previous_key"] = lambda g: np.roll(g["mask"].ravel(), 1).reshape(12, 12)
cases["mask_of_next_query"] = lambda g: np.roll(g["mask"], -1, axis=0)
cases["mask_of_previous_query"] = lambda g: np.roll(g["mask"], 1, axis=0)

cases = family("mask/axes", shapes=(3, 3, 6, 8), options=lambda r: {"mask": _mask(r, 3, 3, 6, 6)})
cases["mask_of_first_batch"] = lambda g: g["mask"][:1]
cases["mask_of_first_head"] = lambda g: g["mask"][:, :1]
cases["mask_of_first_query"] = lambda g: g["mask"][:, :, :1]
cases["mask_batch_for_head"] = lambda g: g["mask"].swapaxes(0, 1)

cases = family(
    "mask/entries", shapes=(3, 4, 6, 8), options=lambda r: {"mask": _mask(r, 3, 1, 6, 6)}
)
cases["mask_tiled_over_heads"] = lambda g: np.tile(g["mask"][:, 0], (4, 1, 1)).reshape(3, 4, 6, 6)
cases["mask_of_first_batch"] = lambda g: g["mask"][:1]

cases = family(
    "mask/grouped",
    shapes=((2, 4, 6, 8), (2, 2, 6, 8)),
    options=lambda r: {"mask": _mask(r, 1, 4, 6, 6)},
)
cases["mask_ignored"] = lambda g: g.attend()
cases["mask_ignored+unscaled"] = lambda g: g.attend(scale=1)

cases = family("mask/keys", options={"mask": np.broadcast_to(np.arange(6) < 4, (6, 6))})
cases["mask_as_zeros"] = lambda g: g.attend(k=g.k * (g.j < 4)[:, None], v=g.v * (g.j < 4)[:, None])
cases["mask_ignored"] = lambda g: g.attend()

cases = family(
    "mask/blind", options=lambda r: {"mask": _mask(r, 6, 6) & (np.arange(6) != 2)[:, None]}
)
cases["passes"] = lambda g: g["mask"]
cases["blind_rows_nan"] = lambda g: softmax(np.where(g["mask"], g.scores(), -np.inf)) @ g.v
cases["hidden_finite"] = lambda g: softmax(np.where(g["mask"], g.scores(), -1e9)) @ g.v
cases["unscaled+blind_rows_nan"] = lambda g: (
    softmax(np.where(g["mask"], g.scores(scale=1), -np.inf)) @ g.v
)
cases["unscaled+hidden_finite"] = lambda g: (
    softmax(np.where(g["mask"], g.scores(scale=1), -1e9)) @ g.v
)

cases = family(
    "mask/float16",
    shapes=(2, 3, 7, 8),
    dtype="float16",
    options=lambda r: {"mask": _mask(r, 2, 1, 7, 7) & (np.arange(7) != 3)[:, None]},
)
cases["hidden_finite"] = lambda g: softmax(np.where(g["mask"], g.scores(), -1e9)) @ g.v
cases["mask_ignored"] = lambda g: g.attend()
cases["mask_inverted"] = lambda g: ~g["mask"]
cases["unscaled"] = lambda g: g.attend(g["mask"], scale=1)

PADS = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]], bool)
_P = PADS[:, None, None]
_Q = PADS[:, None, :, None]
cases = family("padding", options={"key_padding_mask": PADS})
cases["passes"] = lambda g: _P
cases["key_padding_mask_ignored"] = lambda g: g.attend()
cases["key_padding_mask_inverted"] = lambda g: ~_P
cases["key_padding_mask_on_queries"] = lambda g: _Q
cases["key_padding_mask_on_queries_too"] = lambda g: _Q & _P
cases["key_padding_mask_on_queries+hidden_finite"] = lambda g: (
    softmax(np.where(_Q, g.scores(), -1e9)) @ g.v
)
cases["key_padding_mask_added"] = lambda g: softmax(g.scores() + _P) @ g.v
cases["key_padding_mask_multiplied"] = lambda g: softmax(g.scores() * _P) @ g.v
cases["key_padding_mask_tiled_over_heads"] = lambda g: np.tile(PADS, (4, 1)).reshape(2, 4, 1, 6)
cases["key_padding_mask_mirrored"] = lambda g: _P[..., ::-1]
cases["key_padding_mask_ignored+unscaled"] = lambda g: g.attend(scale=1)
cases["key_padding_mask_inverted+unscaled"] = lambda g: g.attend(~_P, scale=1)

cases = family(
    "padding/left",
    shapes=(2, 4, 12, 8),
    options={"key_padding_mask": np.arange(12) >= np.array([[3], [1]])},
)
cases["passes"] = lambda g: g.j >= np.array([3, 1])[:, None, None, None]
cases["key_padding_mask_mirrored"] = lambda g: g.j < np.array([9, 11])[:, None, None, None]
_MASKS = np.array([[1, 1, 0, 1, 1, 0, 0, 1], [1] * 8, [0, 1] * 4], bool)
cases = family("padding/entries", shapes=(3, 2, 8, 4), options={"key_padding_mask": _MASKS})
cases["key_padding_mask_of_first_entry"] = lambda g: _MASKS[:1, None, None]
cases["key_padding_mask_of_next_entry"] = lambda g: np.roll(_MASKS, -1, axis=0)[:, None, None]

cases = family("padding/unasked", shapes=(2, 4, 24, 16))
cases["padding_unasked"] = lambda g: _ends(20, 17) > g.j
cases["causal_and_padding_unasked"] = lambda g: (_ends(20, 17) > g.j) & g.tril
cases["padding_on_the_left_unasked"] = lambda g: g.j >= _ends(5, 2)

cases = family("padding/causal", shapes=(2, 4, 24, 16), options={"causal": True})
cases["padding_unasked"] = lambda g: (_ends(20, 17) > g.j) & g.tril
cases["padding_on_the_left_unasked"] = lambda g: (g.j >= _ends(5, 2)) & g.tril
cases["prefix_unasked"] = lambda g: (g.j < 8) | g.tril


def _ends(*lengths):
    return np.array(lengths)[:, None, None, None]


_L = _ends(4, 5)
cases = family("lengths", options={"kv_lengths": [4, 5]})
cases["passes"] = lambda g: g.j < _L
cases["kv_lengths_ignored"] = lambda g: g.attend()
cases["lengths_one_short"] = lambda g: g.j < _L - 1
cases["lengths_one_long"] = lambda g: g.j < _L + 1
cases["kv_lengths_on_queries"] = lambda g: _Q
cases["kv_lengths_on_queries_too"] = lambda g: _Q & _P
cases["kv_lengths_inverted"] = lambda g: ~_P
cases["padding_on_the_left"] = lambda g: g.j >= 6 - _L
cases["kv_lengths_ignored+unscaled"] = lambda g: g.attend(scale=1)
cases["lengths_one_long+unscaled"] = lambda g: g.attend(g.j < _L + 1, scale=1)
_E = _ends(3, 6, 2)
cases = family("lengths/entries", shapes=(3, 2, 8, 4), options={"kv_lengths": [3, 6, 2]})
cases["lengths_of_longest"] = lambda g: g.j < 6
cases["kv_lengths_of_first_entry"] = lambda g: g.j < 3
cases["kv_lengths_of_next_entry"] = lambda g: np.roll(_E, -1, axis=0) > g.j
cases["other_lengths"] = lambda g: _ends(5, 6, 4) > g.j

cases = family(
    "lengths/zeros", shapes=((2, 3, 5, 8), (2, 3, 20, 8)), options={"kv_lengths": [3, 13]}
)
cases["kv_lengths_as_zeros"] = lambda g: g.attend(
    k=np.where(g.j[:, None] < _T, g.k, 0), v=np.where(g.j[:, None] < _T, g.v, 0)
)
cases["zeros_in_last_block_of_8"] = lambda g: g.attend(
    _ends(8, 16) > g.j,
    k=np.where(g.j[:, None] < _T, g.k, 0),
    v=np.where(g.j[:, None] < _T, g.v, 0),
)
_T = _ends(3, 13)
cases = family(
    "lengths/blocks", shapes=((2, 4, 1, 8), (2, 4, 300, 8)), options={"kv_lengths": [165, 207]}
)
cases["lengths_up_to_16"] = lambda g: _ends(176, 208) > g.j
cases["lengths_down_to_16"] = lambda g: _ends(160, 192) > g.j
cases["lengths_up_to_64"] = lambda g: _ends(192, 256) > g.j

cases = family("lengths/queries", options={"query_lengths": [4, 6]})
cases["query_lengths_ignored"] = lambda g: g.attend()

cases = family("causal", shapes=(2, 4, 9, 8), options={"causal": True})
cases["passes"] = lambda g: g.tril
cases["causal_missing"] = lambda g: g.attend()
cases["diagonal_hidden"] = lambda g: g.j < g.i
cases["diagonal_hidden+blind_rows_nan"] = lambda g: (
    softmax(np.where(g.j < g.i, g.scores(), -np.inf)) @ g.v
)
cases["causal_one_late"] = lambda g: g.j <= g.i + 1
cases["causal_reversed"] = lambda g: g.j >= g.i
cases["causal_inverted"] = lambda g: g.j > g.i
cases["causal_inverted+hidden_finite"] = lambda g: softmax(np.where(g.tril, -1e9, g.scores())) @ g.v
cases["causal_inverted+blind_rows_nan"] = lambda g: (
    softmax(np.where(g.tril, -np.inf, g.scores())) @ g.v
)
cases["causal_added"] = lambda g: softmax(g.scores() + g.tril) @ g.v
cases["causal_multiplied"] = lambda g: softmax(g.scores() * g.tril) @ g.v
cases["another_offset"] = lambda g: g.j <= g.i + 3
cases["unscaled+causal_missing"] = lambda g: g.attend(scale=1)
cases["unscaled"] = lambda g: g.attend(g.tril, scale=1)
cases["unscaled+diagonal_hidden"] = lambda g: g.attend(g.j < g.i, scale=1)
cases["unscaled+causal_one_late"] = lambda g: g.attend(g.j <= g.i + 1, scale=1)
cases["causal_missing @ weights"] = lambda g: {"weights": g.weights()}
cases["hidden_finite @ scores"] = lambda g: {"scores": np.where(g.tril, g.scores(), -1e4)}
cases["hidden_scores_lowered"] = lambda g: softmax(g.scores() + np.where(g.tril, 0, -10)) @ g.v
cases["hidden_scores_set"] = lambda g: softmax(np.where(g.tril, g.scores(), -3)) @ g.v
for _dtype in ("float64", "float16", "bfloat16"):
    cases = family(
        f"causal/{_dtype}", shapes=(2, 4, 16, 16), dtype=_dtype, options={"causal": True}
    )
    cases["passes"] = lambda g: g.tril
    cases["causal_missing"] = lambda g: g.attend()
    cases["diagonal_hidden"] = lambda g: g.j < g.i
    cases["causal_one_late"] = lambda g: g.j <= g.i + 1
    cases["unscaled+causal_missing"] = lambda g: g.attend(scale=1)

cases = family("causal/slices", shapes=(1, 2, 190, 8), options={"causal": True})
cases["causal_missing"] = lambda g: g.attend()
cases["diagonal_hidden"] = lambda g: g.j < g.i
cases["causal_one_late"] = lambda g: g.j <= g.i + 1
cases["causal_inverted"] = lambda g: g.j > g.i

cases = family("causal/unasked", shapes=(2, 4, 24, 16))
cases["causal_unasked"] = lambda g: g.tril
cases["causal_unasked_strict"] = lambda g: g.j < g.i
cases["causal_unasked_at_another_offset"] = lambda g: g.j <= g.i + 3
cases["causal_unasked+unscaled"] = lambda g: g.attend(g.tril, scale=1)
_WIDE = ((2, 2, 4, 8), (2, 2, 7, 8))
cases = family("causal/align top-left", shapes=_WIDE, options={"causal": True})
cases["causal_bottom_right"] = lambda g: g.j <= g.i + 3
cases["causal_missing"] = lambda g: g.attend()
cases["causal_bottom_right+unscaled"] = lambda g: g.attend(g.j <= g.i + 3, scale=1)

cases = family(
    "causal/align bottom-right",
    shapes=_WIDE,
    options={"causal": True, "causal_align": "bottom-right"},
)
cases["passes"] = lambda g: g.j <= g.i + 3
cases["causal_top_left"] = lambda g: g.tril
cases["causal_missing"] = lambda g: g.attend()
cases["diagonal_hidden"] = lambda g: g.j < g.i + 3
cases["causal_top_left+unscaled"] = lambda g: g.attend(g.tril, scale=1)

cases = family("causal/offset", shapes=_WIDE, options={"causal": True, "query_offset": 2})
cases["causal_top_left"] = lambda g: g.tril

cases = family("causal/unasked other length", shapes=_WIDE)
cases["causal_unasked"] = lambda g: g.tril
cases["causal_unasked_bottom_right"] = lambda g: g.j <= g.i + 3

cases = family(
    "causal/padding",
    shapes=_WIDE,
    options={"causal": True, "causal_align": "bottom-right", "kv_lengths": [5, 7]},
)
cases["causal_bottom_right_of_padding"] = lambda g: (_ends(5, 7) > g.j) & (g.j <= g.i + 3)
cases["causal_missing"] = lambda g: _ends(5, 7) > g.j
cases["passes"] = lambda g: (_ends(5, 7) > g.j) & (g.j <= g.i + _ends(5, 7) - 4)

cases = family(
    "causal/two rules",
    options={"causal": True, "key_padding_mask": np.arange(6) < np.array([[4], [3]])},
)
cases["rules_joined_by_or"] = lambda g: _R | g.tril
cases["causal_inverted"] = lambda g: _R & ~g.tril
cases["causal_missing"] = lambda g: _R
cases["key_padding_mask_ignored"] = lambda g: g.tril
_R = (np.arange(6) < np.array([[4], [3]]))[:, None, None]


cases = family("causal/parts", shapes=(2, 4, 24, 8), options={"causal": True})
cases["unscaled"] = lambda g: _in(g, np.s_[..., 16:, :], g.attend(g.tril, scale=1))
cases["unscaled|scale_by_head @ one head"] = lambda g: _in(
    g, np.s_[:, 2], g.attend(g.tril, scale=1)
)
cases["causal_missing @ one head"] = lambda g: _in(g, np.s_[:, 2], g.attend())
cases["causal_missing @ one entry"] = lambda g: _in(g, np.s_[1], g.attend())
cases["rows_of_nan"] = lambda g: _in(g, np.s_[..., 10, :], np.nan * g.q)
cases["rows_not_written"] = lambda g: _in(g, np.s_[..., 20:, :], 0 * g.q)
cases["heads_not_written"] = lambda g: _in(g, np.s_[:, 1], 0 * g.q)
cases["columns_not_written"] = lambda g: _in(g, np.s_[..., 6:], 0 * g.q)
cases["unscaled+rows_of_nan"] = lambda g: _in(
    g, np.s_[..., 10, :], np.nan * g.q, g.attend(g.tril, scale=1)
)


def _in(g, place, other, made=None):
    made = g.attend(g.tril) if made is None else made
    made[place] = other[place]
    return made


def _band(g, left, right, offset=0):
    return (g.j >= g.i + offset - left) & (g.j <= g.i + offset + right)


cases = family("window", shapes=((12, 8), (12, 8)), options={"window": (4, 3)})
cases["passes"] = lambda g: _band(g, 4, 3)
cases["window_ignored"] = lambda g: g.attend()
cases["window_left_short"] = lambda g: _band(g, 3, 3)
cases["window_left_long"] = lambda g: _band(g, 5, 3)
cases["window_right_short"] = lambda g: _band(g, 4, 2)
cases["window_right_long"] = lambda g: _band(g, 4, 4)
cases["window_both_short"] = lambda g: _band(g, 3, 2)
cases["window_both_long"] = lambda g: _band(g, 5, 4)
cases["window_one_sided|causal_unasked"] = lambda g: _band(g, 4, 0)
cases["window_left_only"] = lambda g: _band(g, 4, 20)
cases["window_right_only"] = lambda g: _band(g, 20, 3)
cases["window_halved"] = lambda g: _band(g, 2, 1)
cases["window_swapped"] = lambda g: _band(g, 3, 4)
cases["window_inverted"] = lambda g: ~_band(g, 4, 3)
cases["another_window"] = lambda g: _band(g, 8, 3)
cases["window_ignored+unscaled"] = lambda g: g.attend(scale=1)
cases["window_left_short+unscaled"] = lambda g: g.attend(_band(g, 3, 3), scale=1)

cases = family("window/causal", shapes=(1, 2, 24, 16), options={"causal": True, "window": (5, 0)})
cases["passes"] = lambda g: _band(g, 5, 0)
cases["window_ignored|window_right_only"] = lambda g: g.tril
cases["window_left_short"] = lambda g: _band(g, 4, 0)
cases["window_left_long"] = lambda g: _band(g, 6, 0)
cases["window_symmetric"] = lambda g: _band(g, 5, 5)
cases["another_window"] = lambda g: _band(g, 9, 0)
cases["window_first_key"] = lambda g: _band(g, 5, 0) | ((g.j < 1) & g.tril)
cases["window_first_four"] = lambda g: _band(g, 5, 0) | ((g.j < 4) & g.tril)
cases["chunks_unasked"] = lambda g: (g.j >= g.i // 6 * 6) & g.tril
cases["causal_missing+window_left_only"] = lambda g: _band(g, 5, 40)
cases["unscaled+window_ignored|unscaled+window_right_only"] = lambda g: g.attend(g.tril, scale=1)

cases = family(
    "window/cache",
    shapes=((2, 2, 5, 8), (2, 2, 30, 8)),
    options={"causal": True, "causal_align": "bottom-right", "window": (10, 0)},
)
cases["window_cache_trimmed"] = lambda g: (g.j <= g.i + 25) & (g.j > 18)
cases["window_ignored|window_right_only"] = lambda g: g.j <= g.i + 25
cases["positions_one_late|another_offset"] = lambda g: _band(g, 10, 0, 26)
cases["positions_one_early|another_offset|tokens_late|tokens_late_by_one"] = lambda g: _band(
    g, 10, 0, 24
)

cases = family("window/unasked", shapes=(1, 2, 24, 16))
cases["window_unasked"] = lambda g: _band(g, 4, 4)
cases["window_unasked @ 1"] = lambda g: _band(g, 1, 1)

cases = family("window/chunks", shapes=(2, 4, 24, 16), options={"causal": True})
cases["chunks_unasked"] = lambda g: (g.j >= g.i // 8 * 8) & g.tril

IDS = np.repeat([0, 1, 2, 3], [5, 9, 3, 7])
LATE, EARLY = IDS[[0, *range(23)]], IDS[[*range(1, 24), 23]]


def _same(queries, keys):
    return queries[:, None] == keys


for _causal in (False, True):
    cases = family(
        f"segments/causal {_causal}",
        shapes=(2, 4, 24, 8),
        options={"segment_ids": IDS, "causal": _causal},
    )
    cases["segment_ids_ignored"] = lambda g, c=_causal: g.tril | (not c)
    cases["segments_end_late"] = lambda g, c=_causal: _same(LATE, LATE) & (g.tril | (not c))
    cases["segments_end_early"] = lambda g, c=_causal: _same(EARLY, EARLY) & (g.tril | (not c))
    cases["segments_elsewhere"] = lambda g, c=_causal: (
        _same(*[np.repeat([0, 1, 2, 3], [6, 6, 6, 6])] * 2) & (g.tril | (not c))
    )
    cases["unscaled"] = lambda g, c=_causal: g.attend(_same(IDS, IDS) & (g.tril | (not c)), scale=1)

    cases = family(
        f"segments/unasked {_causal}", shapes=(2, 4, 24, 16), options={"causal": _causal}
    )
    cases["segments_unasked"] = lambda g, c=_causal: _same(IDS, IDS) & (g.tril | (not c))

cases = family("segments/compared", shapes=(2, 4, 24, 8), options={"segment_ids": IDS})
cases["segment_ids_inverted"] = lambda g: ~_same(IDS, IDS)
cases["segment_ids_in_order"] = lambda g: IDS[:, None] >= IDS

cases = family("found mask", shapes=(1, 2, 12, 16))
cases["another_mask"] = lambda g: g.attend(_holes(g))
cases["another_mask @ weights"] = lambda g: {"weights": g.weights(_holes(g))}
cases["dropout"] = lambda g: _dropped(g, 0.25) @ g.v
cases["dropout @ weights"] = lambda g: {"weights": _dropped(g, 0.1)}
cases["zeroed_weights @ weights"] = lambda g: {"weights": g.weights() * ~np.isin(g.j, [3, 7])}
cases["counted_keys"] = lambda g: _counted(g, 2, [5]) @ g.v
cases["counted_keys @ two"] = lambda g: _counted(g, 2, [2, 3, 4]) @ g.v
cases["last_key_lost"] = lambda g: g.j < 11
cases["first_key_lost"] = lambda g: g.j > 0


def _holes(g):
    made = g.random.random((1, 2, 12, 12)) > 0.2
    return made | (g.j == g.i)


def _dropped(g, share):
    return np.where(g.random.random((1, 2, 12, 12)) >= share, g.weights() / (1 - share), 0)


def _counted(g, times, keys):
    powers = np.exp(g.scores()) * np.where(np.isin(g.j, keys), times, 1)
    return powers / powers.sum(-1, keepdims=True)


cases = family("nan rows", shapes=(1, 2, 34, 16), dtype="float16", options={"causal": True})
cases["diagonal_hidden+blind_rows_nan"] = lambda g: (
    softmax(np.where(g.j < g.i, g.scores(), -np.inf)) @ g.v
)
cases["unscaled+rows_of_nan"] = lambda g: _nan(g.attend(g.tril, scale=1), np.s_[0, 1, 20])
cases["rows_of_nan"] = lambda g: _nan(g.attend(g.tril), np.s_[0, 1, 20])


def _nan(made, place):
    made[place] = np.nan
    return made


cases = family(
    "nan rows/padding",
    shapes=(3, 2, 20, 16),
    options={"key_padding_mask": np.arange(20) < np.array([[20], [12], [7]])},
)
cases["key_padding_mask_inverted+blind_rows_nan"] = lambda g: (
    softmax(np.where(g["key_padding_mask"][:, None, None], -np.inf, g.scores())) @ g.v
)
