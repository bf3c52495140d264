"""Heads, layouts, strides, merge and split of heads, shapes of files, misplaced rows."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.plain import cut, joined, log_sum, softmax


def _read(g, heads_k, heads_v):
    """Let query head h read the keys and values of such heads, of the inputs as they are."""
    k, v = (array.astype("f8") for array in g.inputs[1:])
    return g.attend(k=k[:, heads_k], v=v[:, heads_v])


_TILED, _RIGHT = [h % 3 for h in range(6)], [h // 2 for h in range(6)]

cases = family("groups", shapes=((2, 6, 6, 8), (2, 3, 6, 8)))
cases["passes"] = lambda g: _read(g, _RIGHT, _RIGHT)
cases["heads_tiled"] = lambda g: _read(g, _TILED, _TILED)
cases["heads_of_keys_tiled"] = lambda g: _read(g, _TILED, _RIGHT)
cases["heads_of_values_tiled"] = lambda g: _read(g, _RIGHT, _TILED)
cases["keys_of_first_head"] = lambda g: _read(g, [0] * 6, [0] * 6)
cases["inputs_misplaced"] = lambda g: _read(g, [1, 0, 1, 1, 2, 2], [1, 0, 1, 1, 2, 2])
cases["unscaled"] = lambda g: g.attend(scale=1)

cases = family("groups/unscaled", shapes=((2, 6, 6, 8), (2, 3, 6, 8)))
cases["heads_tiled+unscaled"] = lambda g: g.attend(
    k=g.inputs[1][:, _TILED], v=g.inputs[2][:, _TILED], scale=1
)

cases = family("groups/causal", shapes=((2, 6, 9, 8), (2, 3, 9, 8)), options={"causal": True})
cases["heads_tiled"] = lambda g: g.attend(
    g.tril, k=g.inputs[1][:, _TILED], v=g.inputs[2][:, _TILED]
)
cases["heads_tiled+causal_missing"] = lambda g: _read(g, _TILED, _TILED)
cases["causal_missing"] = lambda g: _read(g, _RIGHT, _RIGHT)


def _swapped(*arrays):
    return [array.swapaxes(1, 2) for array in arrays]


def _misread(array):
    """Lay (B, L, H, D) out and read it as (B, H, L, D)."""
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(array.shape)


def _misread_back(array):
    batch, heads, rows, width = array.shape
    return array.reshape(batch, rows, heads, width).swapaxes(1, 2)


cases = family("layout")
cases["axes_exchanged"] = lambda g: _plain(*_swapped(g.q, g.k, g.v)).swapaxes(1, 2)
cases["heads_reshaped_in|query_key_value_reshaped_in"] = lambda g: _plain(
    *map(_misread_back, (g.q, g.k, g.v))
)
cases["strides_ignored"] = lambda g: _plain(*map(_misread, (g.q, g.k, g.v)))
cases["strides_of_keys_ignored"] = lambda g: _plain(g.q, _misread(g.k), _misread(g.v))
cases["strides_of_query_ignored"] = lambda g: _plain(_misread(g.q), g.k, g.v)
cases["query_reshaped_in"] = lambda g: _plain(_misread_back(g.q), g.k, g.v)
cases["key_reshaped_in"] = lambda g: _plain(g.q, _misread_back(g.k), g.v)
cases["value_reshaped_in"] = lambda g: _plain(g.q, g.k, _misread_back(g.v))
cases["heads_transposed_twice"] = lambda g: _misread_back(g.attend())
cases["axes_blhx"] = lambda g: g.attend().swapaxes(1, 2)
cases["heads_packed"] = lambda g: joined(g.attend())
cases["heads_packed_untransposed"] = lambda g: g.attend().reshape(2, 6, 32)
cases["axes_of_length_1"] = lambda g: g.attend()[:, :, None]
cases["axes_bhxl"] = lambda g: g.attend().swapaxes(-1, -2)
cases["axes_exchanged+unscaled"] = lambda g: g.attend(
    **dict(zip("qkv", _swapped(g.q, g.k, g.v), strict=True)), scale=1
).swapaxes(1, 2)


def _plain(q, k, v, keep=True, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.where(keep, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    return np.nan_to_num(softmax(scores)) @ v


cases = family("layout/bshd", shapes=(2, 6, 4, 8), options={"layout": "bshd"}, inputs="float64")
cases["passes"] = lambda g: _plain(*_swapped(g.q, *g.inputs[1:])).swapaxes(1, 2)
cases["axes_exchanged"] = lambda g: _plain(*g.inputs)
cases["unscaled"] = lambda g: _plain(*_swapped(*g.inputs), scale=1).swapaxes(1, 2)
cases["axes_bhlx"] = lambda g: _plain(*_swapped(*g.inputs))
cases["unscaled+axes_bhlx"] = lambda g: _plain(*_swapped(*g.inputs), scale=1)
cases["axes_exchanged+unscaled"] = lambda g: _plain(*g.inputs, scale=1)

cases = family("layout/three axes", shapes=(12, 4, 16), inputs="float64")
cases["batch_attended"] = lambda g: _plain(*(a.swapaxes(0, 1) for a in g.inputs)).swapaxes(0, 1)

cases = family("layout/causal", shapes=(2, 4, 7, 8), options={"causal": True})
cases["axes_exchanged"] = lambda g: _plain(*_swapped(g.q, g.k, g.v), _tri(4)).swapaxes(1, 2)
cases["axes_blhx"] = lambda g: g.attend(g.tril).swapaxes(1, 2)
cases["axes_blhx+unscaled"] = lambda g: g.attend(g.tril, scale=1).swapaxes(1, 2)
cases["axes_blhx+causal_missing"] = lambda g: g.attend().swapaxes(1, 2)


def _tri(rows):
    return np.tri(rows, dtype=bool)


def _packed(g, split, join, keep=True):
    return join(_plain(*map(split, (g.q, g.k, g.v)), keep))


def _right(array):
    return cut(array, 4)


def _viewed(array):
    return array.reshape(2, 4, 6, 8)


def _interleaved(array):
    return array.reshape(2, 6, 8, 4).transpose(0, 3, 1, 2)


def _join_viewed(context):
    return context.reshape(2, 6, 32)


def _join_interleaved(context):
    return context.transpose(0, 2, 3, 1).reshape(2, 6, 32)


cases = family("heads", shapes=(2, 6, 32), options={"heads": 4})
cases["passes"] = lambda g: _packed(g, _right, joined)
cases["heads_reshaped"] = lambda g: _packed(g, _viewed, _join_viewed)
cases["heads_reshaped_in"] = lambda g: _packed(g, _viewed, joined)
cases["heads_reshaped_out"] = lambda g: _packed(g, _right, _join_viewed)
cases["heads_interleaved"] = lambda g: _packed(g, _interleaved, _join_interleaved)
cases["heads_interleaved_in"] = lambda g: _packed(g, _interleaved, joined)
cases["heads_interleaved_out"] = lambda g: _packed(g, _right, _join_interleaved)
cases["heads_2"] = lambda g: joined(_plain(*(cut(a, 2) for a in (g.q, g.k, g.v))))
cases["heads_8"] = lambda g: joined(_plain(*(cut(a, 8) for a in (g.q, g.k, g.v))))
cases["heads_not_joined"] = lambda g: _plain(*map(_right, (g.q, g.k, g.v)))
cases["axes_joined"] = lambda g: _packed(g, _right, joined).reshape(12, 32)
cases["sequence_first"] = lambda g: _packed(g, _right, joined).swapaxes(0, 1)
cases["batch_attended"] = lambda g: joined(
    _plain(*(cut(a.swapaxes(0, 1), 4) for a in (g.q, g.k, g.v)))
).swapaxes(0, 1)
cases["unscaled"] = lambda g: joined(_plain(*map(_right, (g.q, g.k, g.v)), scale=1))
cases["embedding_scale"] = lambda g: joined(_plain(*map(_right, (g.q, g.k, g.v)), scale=32**-0.5))
cases["heads_reshaped+unscaled"] = lambda g: _join_viewed(
    _plain(*map(_viewed, (g.q, g.k, g.v)), scale=1)
)
cases["heads_reshaped_out+unscaled"] = lambda g: _join_viewed(
    _plain(*map(_right, (g.q, g.k, g.v)), scale=1)
)

cases = family("heads/causal", shapes=(2, 6, 32), options={"heads": 4, "causal": True})
cases["heads_reshaped"] = lambda g: _packed(g, _viewed, _join_viewed, _tri(6))
cases["heads_reshaped_out"] = lambda g: _packed(g, _right, _join_viewed, _tri(6))
cases["causal_missing"] = lambda g: _packed(g, _right, joined)
cases["heads_reshaped_out+causal_missing"] = lambda g: _packed(g, _right, _join_viewed)

cases = family("heads/unasked", shapes=(2, 6, 32))
cases["heads_4"] = lambda g: _packed(g, _right, joined)

cases = family("shapes/weights", shapes=((2, 4, 5, 8), (2, 4, 7, 8)), output="weights")
cases["passes"] = lambda g: g.weights()
cases["weights_averaged"] = lambda g: g.weights().mean(1)
cases["unscaled+weights_averaged"] = lambda g: g.weights(scale=1).mean(1)
cases["axes_bhxl"] = lambda g: g.weights().swapaxes(-1, -2)
cases["axes_blhx"] = lambda g: g.weights().swapaxes(1, 2)
cases["axes_of_length_1"] = lambda g: g.weights()[:, :, None]
cases["one_part"] = lambda g: g.weights()[1, 2]
cases["other_length"] = lambda g: g.weights()[:, :, :4]
cases["other_length @ padded"] = lambda g: np.pad(g.weights(), [(0, 0)] * 3 + [(0, 2)])

cases = family("shapes/context", shapes=((2, 4, 5, 8), (2, 4, 7, 8)))
cases["one_part"] = lambda g: g.attend()[1, 2]
cases["one_part @ entry"] = lambda g: g.attend()[0]
cases["one_part @ head"] = lambda g: g.attend()[:, 1]
cases["other_length"] = lambda g: g.attend()[:, :, :4]
cases["other_length @ last"] = lambda g: g.attend()[:, :, -1]
cases["other_length @ heads"] = lambda g: g.attend()[:, :2]
cases["other_length @ columns"] = lambda g: g.attend()[..., :6]
cases["other_length @ padded"] = lambda g: np.pad(
    g.attend(), [(0, 0), (0, 0), (0, 2), (0, 0)], constant_values=np.nan
)
cases["context_averaged_over_heads"] = lambda g: g.attend().mean(1)
cases["context_summed_over_heads"] = lambda g: g.attend().sum(1)
cases["context_averaged_over_queries"] = lambda g: g.attend().mean(2)

cases = family("shapes/2-D", shapes=(5, 3))
cases["axes_bhxl|axes_xl|axes_exchanged"] = lambda g: g.attend().T

cases = family("shapes/weights as context", shapes=(6, 6), options={"causal": True})
cases["context_is_weights"] = lambda g: g.weights(g.tril)

cases = family("misplaced", shapes=(3, 4, 10, 8))
cases["outputs_misplaced"] = lambda g: g.attend()[:, [0, 2, 1, 3]]
cases["outputs_misplaced @ entries"] = lambda g: g.attend()[[2, 1, 0]]
cases["outputs_misplaced @ first head"] = lambda g: g.attend()[:, [0, 0, 0, 0]]
cases["outputs_misplaced @ lse"] = lambda g: {"lse": log_sum(g.scores())[:, [0, 2, 1, 3]]}
cases["rows_misplaced"] = lambda g: np.roll(g.attend(), 1, axis=2)
cases["columns_misplaced"] = lambda g: np.roll(g.attend(), 1, axis=3)
cases["columns_misplaced @ interleaved"] = lambda g: g.attend()[..., [0, 4, 1, 5, 2, 6, 3, 7]]
cases["inputs_misplaced"] = lambda g: g.attend(k=g.k[[1, 2, 0]], v=g.v[[1, 2, 0]])
cases["inputs_misplaced @ values"] = lambda g: g.attend(v=g.v[[1, 2, 0]])
cases["keys_of_first_batch_entry"] = lambda g: g.attend(k=g.k[:1], v=g.v[:1])
cases["value_columns_of_first_4|columns_misplaced"] = lambda g: g.attend()[..., np.arange(8) % 4]
_STEPS = {
    "late": np.roll(np.arange(12), 1),
    "late_by_one": np.array([0, *range(11)]),
    "early": np.roll(np.arange(12), -1),
    "early_by_one": np.array([*range(1, 12), 11]),
}

cases = family("tokens", shapes=(2, 2, 12, 8), options={"causal": True})
for name, order in _STEPS.items():
    for what in ("values", "keys", "tokens"):
        cases[f"{what}_{name}"] = lambda g, w=what, o=order: g.attend(
            g.tril, **{x: getattr(g, x)[:, :, o] for x in w[0].replace("t", "kv")}
        )
# The first query sees one key, and is the same whatever it asks for.
for _where in ("late", "early"):
    _names = f"queries_{_where}|queries_{_where}_by_one"
    cases = family("tokens/queries", shapes=(2, 2, 12, 8), options={"causal": True})
    cases[_names] = lambda g, o=_STEPS[_where]: g.attend(g.tril, q=g.q[:, :, o])
    cases[f"{_names} @ by one"] = lambda g, o=_STEPS[f"{_where}_by_one"]: g.attend(
        g.tril, q=g.q[:, :, o]
    )

cases = family(
    "tokens/cache",
    shapes=((2, 2, 4, 8), (2, 2, 12, 8)),
    options={"causal": True, "causal_align": "bottom-right"},
)
cases["new_keys_before_the_cache"] = lambda g: g.attend(
    g.j <= g.i + 8, k=np.roll(g.k, 4, axis=2), v=np.roll(g.v, 4, axis=2)
)

cases = family("memory", shapes=((1, 3, 6, 8), (1, 3, 5, 8)))
cases["key_reshaped"] = lambda g: g.attend(k=g.k.reshape(1, 3, 8, 5).swapaxes(-1, -2))
cases["value_reshaped"] = lambda g: g.attend(v=g.v.reshape(1, 3, 8, 5).swapaxes(-1, -2))

cases = family("memory/2-D", shapes=((6, 8), (5, 8), (5, 4)))
cases["key_reshaped"] = lambda g: g.attend(k=g.k.reshape(8, 5).T)


cases = family("components", shapes=(1, 2, 10, 12))
cases["some_components"] = lambda g: g.attend(q=g.q[..., :6], k=g.k[..., :6])
cases["some_components @ last"] = lambda g: g.attend(q=g.q[..., 8:], k=g.k[..., 8:])
cases["scale_by_head"] = lambda g: g.attend(scale=np.array([0.2, 0.4])[:, None, None])

cases = family("vector", shapes=((2, 4, 12, 8), (2, 4, 9, 8)))
cases["added_vector"] = lambda g: g.attend() + g.random.normal(size=(4, 1, 8))
cases["added_vector @ mean value"] = lambda g: g.attend() + g.v.mean(2, keepdims=True)
cases["added_vector @ number"] = lambda g: g.attend() + 0.25
cases["another_factor"] = lambda g: 2 * g.attend()
cases["another_factor @ 1.7"] = lambda g: 1.7 * g.attend()


def _one_sequence(array):
    batch, heads, rows, width = array.shape
    return array.swapaxes(0, 1).reshape(1, heads, batch * rows, width)


def _apart(array):
    heads, width = array.shape[1], array.shape[3]
    return array.reshape(heads, 3, 20, width).swapaxes(0, 1)


for _causal in (False, True):
    cases = family(f"packed/{_causal}", shapes=(3, 4, 20, 16), options={"causal": _causal})
    cases["packed_without_boundaries"] = lambda g, c=_causal: _apart(
        _plain(*map(_one_sequence, (g.q, g.k, g.v)), _tri(60) | (not c))
    )
