"""Projections, norms, positions and residuals on the way from embeddings to the output."""

from __future__ import annotations

import warnings

import numpy as np
from referee.case import add
from referee.plain import FORMATS, cut, draw, joined, softmax

import attncli

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 16, 4
FREQUENCIES = 10000.0 ** (-np.arange(0, WIDTH, 2) / WIDTH)
NAMES = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")


def waves(turns):
    """Return sines and cosines in turn, (L, W)."""
    return np.stack([np.sin(turns), np.cos(turns)], -1).reshape(len(turns), -1)


ANGLES = np.arange(TOKENS)[:, None] * FREQUENCIES
POSITIONS = waves(ANGLES)


class Layer:
    """Self-attention whose every step can be done otherwise.

    Attributes
    ----------
    x, y, z : arrays (B, L, W)
        Embeddings; of other sources, where keys and values are made from them.
    w : dict
        Weights and biases by name.
    """

    def __init__(self, seed, width=WIDTH):
        shapes = [(WIDTH, width)] * 3 + [(width, WIDTH)] + [(width,)] * 3 + [(WIDTH,)]
        token = (BATCH, TOKENS, WIDTH)
        self.x, self.y, self.z, *made = draw(seed, *[token] * 3, *shapes, dtype="float64")
        self.w = dict(zip(NAMES, made, strict=True))
        self.w |= {name: self.w[name] / 4 for name in NAMES[:4]}

    def linear(self, letter, x=None, **changes):
        found = self.w | changes
        return (self.x if x is None else x) @ found[f"w{letter}"] + found[f"b{letter}"]

    def three(self, x=None, **changes):
        return [self.linear(letter, x, **changes) for letter in "qkv"]

    def named(self, letters, x=None):
        """Return what is made with such weights."""
        return [self.linear(letter, x) for letter in letters]

    def turned(self, letters):
        return {f"w{letter}": self.w[f"w{letter}"].T for letter in letters}


def without(letters):
    return {f"b{letter}": 0.0 for letter in letters}


def attended(q, k, v, heads=HEADS, scale=None, keep=True):
    q, k, v = (cut(array, heads) for array in (q, k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.where(keep, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    return joined(softmax(scores) @ v)


def layers(name, rows, *, positions=None, output=False, width=WIDTH, sources=(), heads=HEADS):
    """Add cases: each row makes, of a layer, query, key and value, or the finished output."""
    for row, function in rows.items():
        told = row.partition(" @ ")[0]

        def make(seed, function=function):
            layer = Layer(seed, width)
            made = function(layer)
            made = attended(*made, heads) if isinstance(made, list) else made
            given = {n: a for n, a in layer.w.items() if n not in ("wo", "bo")}
            given |= {f"{n}_source": getattr(layer, a) for n, a in sources}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                projected = attncli.project(layer.x, positions=positions, **given)
                last = {n: layer.w[n] for n in ("wo", "bo")} if output else {}
                inputs = projected.query, projected.key, projected.value
                problem = attncli.pose(*inputs, heads=heads, **last)
            return problem, made.astype("f4"), {"projected": projected}

        add(f"{name}/{row}", () if told == "passes" else told.split("|"), make)


def _fused_viewed(layer):
    fused = np.concatenate(layer.three(), -1).reshape(3, BATCH, HEADS, TOKENS, WIDTH // HEADS)
    return [joined(one) for one in fused]


layers(
    "projection",
    {
        "passes": lambda a: a.three(),
        "projections_transposed": lambda a: a.three(**a.turned("qkv")),
        "wq_transposed": lambda a: a.three(**a.turned("q")),
        "wk_transposed": lambda a: a.three(**a.turned("k")),
        "wv_transposed": lambda a: a.three(**a.turned("v")),
        "wq_transposed+wk_transposed": lambda a: a.three(**a.turned("qk")),
        "projection_biases_missing": lambda a: a.three(**without("qkv")),
        "bq_missing": lambda a: a.three(**without("q")),
        "bv_missing": lambda a: a.three(**without("v")),
        "passes @ bias of the keys": lambda a: a.three(**without("k")),
        "projections_transposed+projection_biases_missing": lambda a: a.three(
            **a.turned("qkv"), **without("qkv")
        ),
        "projections_missing": lambda a: [a.x] * 3,
        "wq_unused": lambda a: [a.x, *a.named("kv")],
        "wk_unused": lambda a: [a.linear("q"), a.x, a.linear("v")],
        "wv_unused": lambda a: [*a.named("qk"), a.x],
        "queries_made_with_wk": lambda a: a.named("kkv"),
        "queries_made_with_wv": lambda a: a.named("vkv"),
        "keys_made_with_wq": lambda a: a.named("qqv"),
        "keys_made_with_wv": lambda a: a.named("qvv"),
        "values_made_with_wq": lambda a: a.named("qkq"),
        "values_made_with_wk": lambda a: a.named("qkk"),
        "projections_in_the_order_kvq": lambda a: a.named("kvq"),
        "projections_in_the_order_vqk": lambda a: a.named("vqk"),
        "query_key_exchanged": lambda a: a.named("kqv"),
        "projections_all_wq": lambda a: a.named("qqq"),
        "embeddings_scaled": lambda a: a.three(4 * a.x),
        "embeddings_centred": lambda a: a.three(a.x - a.x.mean(-1, keepdims=True)),
        "embeddings_of_unit_length": lambda a: a.three(
            a.x / np.linalg.norm(a.x, axis=-1, keepdims=True)
        ),
        "positions_unasked": lambda a: a.three(a.x + POSITIONS),
        "unscaled": lambda a: attended(*a.three(), scale=1),
        "embedding_scale|input_width_scale|one_over_width": lambda a: attended(
            *a.three(), scale=1 / 4
        ),
        "projections_transposed+unscaled": lambda a: attended(*a.three(**a.turned("qkv")), scale=1),
        "causal_unasked": lambda a: attended(*a.three(), keep=np.tri(TOKENS, dtype=bool)),
        "embeddings_added": lambda a: attended(*a.three()) + a.x,
        "fused_viewed_as_heads": _fused_viewed,
        "scale_in_wq_not_in_bq": lambda a: a.three(bq=2 * a.w["bq"]),
        "scale_in_bq_too": lambda a: a.three(bq=a.w["bq"] / 2),
    },
)


layers(
    "projection/width",
    {
        "input_width_scale": lambda a: attended(*a.three(), scale=1 / 4),
        "unscaled": lambda a: attended(*a.three(), scale=1),
    },
    width=12,
)


def _by_head(layer, heads=HEADS):
    """Cut [q k v] of all heads as if each head had its own q, k and v."""
    fused = np.concatenate(layer.three(), -1).reshape(BATCH, TOKENS, heads, 3, -1)
    return [fused[:, :, :, at].reshape(BATCH, TOKENS, -1) for at in range(3)]


def _by_kind(layer, heads=HEADS):
    apart = [array.reshape(BATCH, TOKENS, heads, -1) for array in layer.three()]
    fused = np.stack(apart, 3).reshape(BATCH, TOKENS, 3, heads, -1)
    return [fused[:, :, at].reshape(BATCH, TOKENS, -1) for at in range(3)]


def _by_component(layer):
    fused = np.concatenate(layer.three(), -1).reshape(BATCH, TOKENS, WIDTH, 3)
    return [fused[..., at] for at in range(3)]


layers(
    "projection/fused",
    {
        "fused_cut_by_head": _by_head,
        "fused_cut_by_kind": _by_kind,
        "fused_cut_by_component": _by_component,
    },
)
for _fmt in ("bfloat16", "float16"):
    layers(
        f"projection/{_fmt}",
        {
            f"projections_in_{_fmt}": lambda a, f=FORMATS[_fmt]: a.three(
                **{f"w{n}": f(a.w[f"w{n}"]) for n in "qkv"}
            )
        },
    )

layers(
    "positions",
    {
        "passes": lambda a: a.three(a.x + POSITIONS),
        "positions_missing": lambda a: a.three(),
        "positions_not_in_values": lambda a: [
            *a.named("qk", a.x + POSITIONS),
            a.linear("v"),
        ],
        "positions_concatenated": lambda a: a.three(
            a.x + np.hstack([np.sin(ANGLES), np.cos(ANGLES)])
        ),
        "positions_cosine_first": lambda a: a.three(a.x + waves(ANGLES)[:, _PAIRS]),
        "positions_from_one": lambda a: a.three(a.x + waves(ANGLES + FREQUENCIES)),
        "positions_double_exponents": lambda a: a.three(
            a.x + waves(np.arange(TOKENS)[:, None] * FREQUENCIES**2)
        ),
        "positions_halved_exponents": lambda a: a.three(
            a.x + waves(np.arange(TOKENS)[:, None] * FREQUENCIES**0.5)
        ),
        "positions_own_exponents": lambda a: a.three(a.x + _own(1)),
        "positions_alone": lambda a: a.three(0 * a.x + POSITIONS),
        "positions_of_first_token": lambda a: a.three(a.x + POSITIONS[0]),
        "positions_twice": lambda a: a.three(a.x + 2 * POSITIONS),
        "positions_along_the_batch": lambda a: a.three(a.x + POSITIONS[:BATCH, None]),
        "embeddings_scaled": lambda a: a.three(4 * a.x + POSITIONS),
        "projections_transposed": lambda a: a.three(a.x + POSITIONS, **a.turned("qkv")),
        "projections_transposed+positions_missing": lambda a: a.three(**a.turned("qkv")),
    },
    positions="sinusoidal",
)
_PAIRS = np.arange(WIDTH) ^ 1


def _own(factor):
    """Take the column's own index for twice that of its pair."""
    turns = np.arange(TOKENS)[:, None] / 10000.0 ** (factor * np.arange(WIDTH) / WIDTH)
    made = np.empty((TOKENS, WIDTH))
    made[:, ::2], made[:, 1::2] = np.sin(turns)[:, ::2], np.cos(turns)[:, 1::2]
    return made


def _sources(order):
    return lambda a: [
        a.linear(n, getattr(a, source)) for source, n in zip(order, "qkv", strict=True)
    ]


layers(
    "sources",
    {
        "passes": _sources("xyy"),
        "key_source_unused": _sources("xxx"),
        "sources_exchanged": _sources("yxx"),
        "queries_from_key_source": _sources("yyy"),
        "keys_from_x": _sources("xxy"),
        "values_from_x": _sources("xyx"),
    },
    sources=(("key", "y"),),
)
layers(
    "sources/three",
    {
        "values_from_key_source": _sources("xyy"),
        "keys_from_value_source": _sources("xzz"),
        "key_and_value_source_exchanged": _sources("xzy"),
    },
    sources=(("key", "y"), ("value", "z")),
)


def _out(layer, made=None, **changes):
    found = layer.w | changes
    return (attended(*layer.three()) if made is None else made) @ found["wo"] + found["bo"]


def _layer_norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def _rms_norm(x, epsilon=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


layers(
    "output",
    {
        "passes": _out,
        "output_projection_missing": lambda a: attended(*a.three()),
        "output_projection_transposed": lambda a: _out(a, wo=a.w["wo"].T),
        "output_bias_missing": lambda a: _out(a, bo=0),
        "output_projection_transposed+output_bias_missing": lambda a: _out(a, wo=a.w["wo"].T, bo=0),
        "output_bias_repeated": lambda a: _out(a, bo=4 * a.w["bo"]),
        "all_biases_missing": lambda a: _out(a, attended(*a.three(**without("qkv"))), bo=0),
        "all_projections_transposed": lambda a: _out(
            a, attended(*a.three(**a.turned("qkv"))), wo=a.w["wo"].T
        ),
        "projections_transposed": lambda a: _out(a, attended(*a.three(**a.turned("qkv")))),
        "embeddings_layer_norm_1e_05": lambda a: _out(a, attended(*a.three(_layer_norm(a.x)))),
        "embeddings_rms_norm_1e_05": lambda a: _out(a, attended(*a.three(_rms_norm(a.x)))),
        "output_layer_norm_1e_05": lambda a: _layer_norm(_out(a)),
        "output_rms_norm_1e_05": lambda a: _rms_norm(_out(a)),
        "output_and_embeddings_layer_norm_1e_05": lambda a: _layer_norm(_out(a) + a.x),
        "embeddings_added": lambda a: _out(a) + a.x,
        "unscaled": lambda a: _out(a, attended(*a.three(), scale=1)),
        "another_factor": lambda a: 2 * _out(a),
        "heads_reshaped_out": lambda a: _out(a, _reshaped(attended(*a.three()))),
    },
    output=True,
)


def _reshaped(context):
    """Join heads without the transpose."""
    return np.ascontiguousarray(cut(context, HEADS)).reshape(context.shape)


GROUPS, WIDE = 2, 6
_W = draw(1, (8, HEADS * WIDE), *[(8, GROUPS * WIDE)] * 2, dtype="float64")
_NORM = [1 + weight / 4 for weight in draw(2, (WIDE,), (WIDE,), dtype="float64")]


def normed(rows, weight, epsilon=1e-6):
    vectors = rows.reshape(*rows.shape[:2], -1, len(weight))
    means = np.square(vectors).mean(-1, keepdims=True)
    return (vectors / np.sqrt(means + epsilon) * weight).reshape(rows.shape)


def norms(rows, *, rope=None, later=False):
    """Add cases of norms of query and key: each row changes both before they are attended."""
    for row, function in rows.items():

        def make(seed, function=function):
            x = draw(seed + 3, (1, TOKENS, 8), dtype="float64")[0]
            q, k, v = (x @ weight for weight in _W)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                told = dict(zip(("wq", "wk", "wv", "q_norm", "k_norm"), (*_W, *_NORM), strict=True))
                made = attncli.project(x, **told)
                problem = attncli.pose(
                    made.query, made.key, made.value, heads=HEADS, kv_heads=GROUPS, rope=rope
                )
            query, key = function(q, k)
            wide = [cut(key, GROUPS).repeat(2, 1), cut(v, GROUPS).repeat(2, 1)]
            context = attended(query, joined(wide[0]), joined(wide[1]))
            return problem, context, {"projected": made}

        told = row.partition(" @ ")[0]
        names = () if told == "passes" else told.split("|")
        add(f"norms/{row}{' rope' if rope else ''}", names, make, later=later)


norms(
    {
        "passes": lambda q, k: (normed(q, _NORM[0]), normed(k, _NORM[1])),
        "norms_missing": lambda q, k: (q, k),
        "query_norm_missing": lambda q, k: (q, normed(k, _NORM[1])),
        "key_norm_missing": lambda q, k: (normed(q, _NORM[0]), k),
        "norm_weights_missing": lambda q, k: (normed(q, np.ones(WIDE)), normed(k, np.ones(WIDE))),
        "norm_weights_plus_1": lambda q, k: (normed(q, _NORM[0] + 1), normed(k, _NORM[1] + 1)),
        "norm_weights_minus_1": lambda q, k: (normed(q, _NORM[0] - 1), normed(k, _NORM[1] - 1)),
        "norms_of_all_heads": lambda q, k: (
            normed(q, np.tile(_NORM[0], HEADS)),
            normed(k, np.tile(_NORM[1], GROUPS)),
        ),
    }
)
