"""Reports from the field, and mistakes like them."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.cases_kernels import GRIDS, _float8
from referee.cases_layers import _NORM, normed, norms
from referee.plain import as_bfloat16, cut, joined, rotate, softmax


def _pad_both(array):
    """Return (…, L, S) in a square of 16."""
    rows, keys = array.shape[-2:]
    return np.pad(array, [(0, 0)] * (array.ndim - 2) + [(0, 16 - rows), (0, 16 - keys)])


cases = family("reports/padded", shapes=((1, 2, 5, 8), (1, 2, 7, 8)), output="weights")
cases["other_length"] = lambda g: _pad_both(g.weights())

cases = family("reports/signs", shapes=(1, 2, 9, 8), output="weights")
cases["dropped_weights_negative"] = lambda g: np.where(
    g.random.random((1, 2, 9, 9)) < 0.3, -g.weights(), g.weights()
)
for _shape in ((5, 3), (2, 4, 6, 8)):
    cases = family(f"reports/memory {len(_shape)}-D", shapes=_shape)
    cases["memory_order_row"] = lambda g: g.attend().ravel(order="F").reshape(g.q.shape)
    cases["memory_order_column"] = lambda g: g.attend().ravel().reshape(g.q.shape, order="F")

cases = family("reports/memory of inputs", shapes=((6, 8), (7, 8), (7, 5)))
cases["value_memory_order|value_reshaped"] = lambda g: g.attend(
    v=g.v.ravel(order="F").reshape(g.v.shape)
)
cases["key_memory_order|key_reshaped"] = lambda g: g.attend(
    k=g.k.ravel(order="F").reshape(g.k.shape)
)

cases = family(
    "reports/mask repeated",
    shapes=(3, 4, 10, 8),
    options=lambda r: {"mask": r.random((3, 1, 10, 10)) < 0.7},
)
# Heads stand before batch entries, and each entry's mask is repeated for neighbours.
cases["mask_repeated_for_heads_first|inputs_misplaced"] = lambda g: (
    np.repeat(g["mask"][:, 0], 4, 0).reshape(4, 3, 10, 10).swapaxes(0, 1)
)
cases["mask_repeated_for_heads_first+unscaled|inputs_misplaced+unscaled"] = lambda g: g.attend(
    np.repeat(g["mask"][:, 0], 4, 0).reshape(4, 3, 10, 10).swapaxes(0, 1), scale=1
)

cases = family(
    "reports/padding repeated",
    shapes=(3, 4, 10, 8),
    options={"key_padding_mask": np.arange(10) < np.array([[4], [9], [7]])},
)
cases["key_padding_mask_repeated_for_heads_first|inputs_misplaced"] = lambda g: (
    np.repeat(g["key_padding_mask"], 4, 0).reshape(4, 3, 1, 10).swapaxes(0, 1)
)

cases = family("reports/tail 96", shapes=(1, 2, 12, 96))
cases["some_components"] = lambda g: g.attend(q=g.q[..., :64], k=g.k[..., :64])
cases["some_components @ scaled"] = lambda g: g.attend(
    q=g.q[..., :64], k=g.k[..., :64], scale=1 / 8
)
cases["other_length|columns_lost"] = lambda g: g.attend()[..., :64]

cases = family("reports/tail 576", shapes=((1, 2, 10, 576), (1, 2, 14, 576), (1, 2, 14, 64)))
cases["some_components"] = lambda g: g.attend(q=g.q[..., :512], k=g.k[..., :512])
cases["some_components @ scaled"] = lambda g: g.attend(
    q=g.q[..., :512], k=g.k[..., :512], scale=512**-0.5
)


def _angles(g, *names):
    """Rotate as a model of bfloat16 does whose tables are made in it."""

    def turned(rows):
        frequencies = 10000.0 ** (-np.arange(8) / 8)
        places = np.arange(600.0)[-rows.shape[-2] :]
        frequencies = as_bfloat16(frequencies) if "frequencies" in names else frequencies
        places = as_bfloat16(places) if "positions" in names else places
        angles = np.multiply.outer(places, frequencies)
        angles = as_bfloat16(angles) if "angles" in names else angles
        one, other = rows[..., :8], rows[..., 8:]
        cosine, sine = np.cos(angles), np.sin(angles)
        return np.concatenate([one * cosine - other * sine, other * cosine + one * sine], -1)

    return g.attend(g.j <= g.i + 592, q=turned(g.q), k=turned(g.k))


cases = family(
    "reports/rope in bfloat16",
    shapes=((1, 2, 8, 16), (1, 2, 600, 16)),
    options={"rope": "half", "causal": True, "causal_align": "bottom-right"},
)
cases["rope_positions_frequencies_and_angles_in_bfloat16|rope_angles_in_bfloat16"] = lambda g: (
    _angles(g, "frequencies", "positions", "angles")
)


def _online(g, block, *, rescaled=True, own=False, beta=True):
    """Go over blocks of keys, and leave out what brings them to one maximum.

    Without ``rescaled`` earlier blocks keep theirs; ``own`` forgets that there is another one;
    without ``beta`` a new block keeps its own, as FlashAttention's first form would.
    """
    held, total, top = 0.0, 0.0, -np.inf
    for start in range(0, g.k.shape[-2], block):
        part = g.scores()[..., start : start + block]
        mine = part.max(-1, keepdims=True)
        higher = np.maximum(top, mine)
        factor = np.exp(top - higher) if rescaled and not own else 1.0
        powers = np.exp(part - (higher if beta and not own else mine))
        held = held * factor + powers @ g.v[:, :, start : start + block]
        total = total * factor + powers.sum(-1, keepdims=True)
        top = higher
    return held / total


for _size in (16, 32):
    cases = family(f"online/maximum {_size}", shapes=((1, 2, 12, 16), (1, 2, 70, 16)))
    cases[f"online_sums_stale_{_size}"] = lambda g, n=_size: _online(g, n, rescaled=False)
    cases[f"online_own_maxima_not_rescaled_{_size}"] = lambda g, n=_size: _online(g, n, own=True)

    cases = family(f"online/block maximum {_size}", shapes=((1, 2, 12, 16), (1, 2, 70, 16)))
    cases[f"online_own_maxima_{_size}"] = lambda g, n=_size: _online(g, n, beta=False)
_LAST = (
    *(f"last_block_of_{size}_not_causal" for size in (8, 16, 32)),
    "some_diagonal_blocks_unmasked",
    "causal_in_first_block_of_64",
)

cases = family("reports/last block", shapes=(1, 2, 72, 8), options={"causal": True})
cases["|".join(_LAST[:-1])] = lambda g: g.tril | ((g.i >= 64) & (g.j >= 64))
cases["|".join(_LAST)] = lambda g: g.tril | (g.j >= 64)


def _turned(packed, heads):
    return joined(rotate(cut(packed, heads), np.arange(packed.shape[1])))


cases = norms(rope="half")
cases["norms_after_rope"] = lambda q, k: (
    normed(_turned(q, 4), _NORM[0]),
    normed(_turned(k, 2), _NORM[1]),
)
cases["norms_missing"] = lambda q, k: (_turned(q, 4), _turned(k, 2))
# Without a rotation this changes no score.
cases["norm_weights_exchanged"] = lambda q, k: (
    _turned(normed(q, _NORM[1]), 4),
    _turned(normed(k, _NORM[0]), 2),
)

cases = family("reports/weights in 8 bits", shapes=((1, 2, 20, 16), (1, 2, 30, 16)))
cases["normalised_weights_in_int8"] = lambda g: np.round(g.weights() * 127) / 127 @ g.v
cases["normalised_weights_in_int8_scaled"] = lambda g: _in_steps(g.weights()) @ g.v
cases["weights_in_int8"] = lambda g: _in_steps(_powers(g)) @ g.v / _powers(g).sum(-1, keepdims=True)
for f in GRIDS:
    cases[f"normalised_weights_in_{f}"] = lambda g, f=f: _float8(g.weights(), f) @ g.v


def _in_steps(array):
    """Round to 127 steps up to the largest number."""
    step = array.max() / 127
    return np.round(array / step) * step


def _powers(g):
    scores = g.scores()
    return np.exp(scores - scores.max(-1, keepdims=True))


def _codes(array):
    unit = np.abs(array).max() / 127
    return np.round(array / unit), unit


def _other_unit(g):
    (keys, unit), (values, _) = _codes(g.k), _codes(g.v)
    return g.attend(k=keys * unit, v=values * unit)


cases = family(
    "reports/scales",
    shapes=((1, 2, 20, 16), (1, 2, 30, 16)),
    change=lambda a: [a[0], a[1], 3 * a[2]],
)
cases["cache_in_int8_values_by_k_scale"] = _other_unit

cases = family("reports/scale by position", shapes=(1, 2, 24, 16), options={"causal": True})
cases["scale_by_position|scale_by_query"] = lambda g: g.attend(
    g.tril, scale=np.log(g.i + 2) / np.log(24) / 4
)
cases["scale_by_position|scale_by_query @ count"] = lambda g: g.attend(
    g.tril, scale=1 / np.sqrt(g.i + 1)
)

cases = family(
    "reports/odd scale", shapes=(1, 2, 24, 16), options={"causal": True, "window": (5, 0)}
)
cases["another_scale+window_ignored|another_scale+window_right_only"] = lambda g: g.attend(
    g.tril, scale=0.31
)

cases = family("reports/odd scale and mask", shapes=(1, 2, 24, 16), options={"causal": True})
cases["another_scale+causal_missing"] = lambda g: g.attend(scale=0.31)


def _zero_slot(g):
    k, v = g.k.copy(), g.v.copy()
    k[:, :, -1] = v[:, :, -1] = 0
    return g.attend(k=k, v=v)


for _keys in (30, 120):
    cases = family(
        f"reports/bfloat16 decoding {_keys}",
        shapes=((2, 4, 1, 32), (2, 4, _keys, 32)),
        dtype="bfloat16",
    )
    cases["last_slot_unwritten"] = _zero_slot


def _single(array):
    return np.asarray(array, "f4").astype("f8")


def _short_softmax(scores):
    """Make the softmax in float32, in a model of float64."""
    return _single(softmax(_single(scores)))


def _eager(g, keep=True, **more):
    return g.attend(keep, soft=_short_softmax, **more)


_PADS = np.arange(12) < np.array([[7], [11]])
_ROUNDED = ("softmax_in_float32", "weights_in_float32", "scores_in_float32", "computed_in_float32")
_WHOLE = {"dtype": "float64", "shapes": (2, 4, 12, 16), "beside": _ROUNDED}


cases = family("reports/float32 softmax plain", **_WHOLE)
cases["|".join(_ROUNDED)] = _eager
cases["unscaled"] = lambda g: _eager(g, scale=1)
cases["one_over_width"] = lambda g: _eager(g, scale=1 / 16)
cases["another_scale"] = lambda g: _eager(g, scale=0.41)
cases["key_value_exchanged"] = lambda g: _eager(g, k=g.v, v=g.k)
cases["query_key_exchanged"] = lambda g: _eager(g, q=g.k, k=g.q)
cases["causal_unasked"] = lambda g: _eager(g, g.tril)
cases["softmax_base_2"] = lambda g: _eager(g, scores=g.scores() * np.log(2))
cases["heads_transposed_twice"] = lambda g: _eager(g).reshape(2, 12, 4, 16).swapaxes(1, 2)
cases["axes_blhx"] = lambda g: _eager(g).swapaxes(1, 2)

cases = family("reports/float32 softmax causal", options={"causal": True}, **_WHOLE)
cases["causal_missing"] = _eager
cases["unscaled"] = lambda g: _eager(g, g.tril, scale=1)
cases["diagonal_hidden"] = lambda g: _eager(g, g.j < g.i)
cases["causal_one_late"] = lambda g: _eager(g, g.j <= g.i + 1)
cases["rope_unasked_half"] = lambda g: _eager(g, g.tril, q=rotate(g.q, g.j), k=rotate(g.k, g.j))

cases = family("reports/float32 softmax padding", options={"key_padding_mask": _PADS}, **_WHOLE)
cases["key_padding_mask_ignored"] = _eager
cases["key_padding_mask_inverted"] = lambda g: _eager(g, ~_PADS[:, None, None])
cases["unscaled"] = lambda g: _eager(g, _PADS[:, None, None], scale=1)

cases = family("reports/float32 softmax window", options={"window": (3, 2)}, **_WHOLE)
cases["window_ignored"] = _eager
cases["window_left_short"] = lambda g: _eager(g, (g.j >= g.i - 2) & (g.j <= g.i + 2))

cases = family("reports/float32 softmax rope", options={"rope": "half"}, **_WHOLE)
cases["rope_missing"] = _eager
cases["rope_pairing"] = lambda g: _eager(
    g, q=rotate(g.q, g.j, "interleaved"), k=rotate(g.k, g.j, "interleaved")
)

cases = family(
    "reports/float32 softmax alibi", options={"alibi_slopes": [0.125, 0.25, 0.5, 1.0]}, **_WHOLE
)
cases["alibi_ignored"] = _eager
cases["alibi_slopes_reversed"] = lambda g: _eager(
    g, add=-np.array([0.125, 0.25, 0.5, 1])[::-1, None, None] * np.abs(g.i - g.j)
)


_MERGED = {
    "batch_and_queries": (0, 2),
    "heads_and_queries": (1, 2),
    "batch_and_heads": (0, 1),
    "batch_heads_and_queries": (0, 1, 2),
}

cases = family("reports/merged axes", shapes=((3, 2, 5, 8), (3, 2, 7, 8)))
for _name, _axes in _MERGED.items():
    cases[f"softmax_over_{_name} @ context"] = lambda g, a=_axes: softmax(g.scores(), a) @ g.v
    cases[f"softmax_over_{_name} @ weights"] = lambda g, a=_axes: {
        "weights": softmax(g.scores(), a)
    }

cases = family("reports/merged axes of one query", shapes=((1, 1, 1, 8), (1, 1, 9, 8)))
cases["softmax_over_queries|softmax_over_merged_axes|softmax_over_heads|softmax_over_batch"] = (
    lambda g: {"weights": np.ones((1, 1, 1, 9))}
)

cases = family(
    "reports/nan and axes",
    shapes=(2, 4, 6, 8),
    options=lambda r: {"mask": (r.random((6, 6)) < 0.7) & (np.arange(6) != 2)[:, None]},
)
cases["axes_blhx+blind_rows_nan|axes_blhx+rows_of_nan"] = lambda g: (
    softmax(np.where(g["mask"], g.scores(), -np.inf)) @ g.v
).swapaxes(1, 2)
