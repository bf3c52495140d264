"""Projections, norms, positions and residuals on the way from embeddings to the output."""

from __future__ import annotations

import warnings

import numpy as np
from referee.case import Rows, add, told
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


def layers(name, *, positions=None, output=False, width=WIDTH, sources=(), heads=HEADS):
    """Return a table: each row makes, of a layer, query, key and value, or the finished output."""

    def add_row(row, function):
        def make(seed):
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

        add(f"{name}/{row}", told(row), make)

    return Rows(add_row)


def _fused_viewed(layer):
    fused = np.concatenate(layer.three(), -1).reshape(3, BATCH, HEADS, TOKENS, WIDTH // HEADS)
    return [joined(one) for one in fused]


cases = layers("projection")
cases["passes"] = lambda a: a.three()
cases["projections_transposed"] = lambda a: a.three(**a.turned("qkv"))
cases["wq_transposed"] = lambda a: a.three(**a.turned("q"))
cases["wk_transposed"] = lambda a: a.three(**a.turned("k"))
cases["wv_transposed"] = lambda a: a.three(**a.turned("v"))
cases["wq_transposed+wk_transposed"] = lambda a: a.three(**a.turned("qk"))
cases["projection_biases_missing"] = lambda a: a.three(**without("qkv"))
cases["bq_missing"] = lambda a: a.three(**without("q"))
cases["bv_missing"] = lambda a: a.three(**without("v"))
cases["passes @ bias of the keys"] = lambda a: a.three(**without("k"))
cases["projections_transposed+projection_biases_missing"] = lambda a: a.three(
    **a.turned("qkv"), **without("qkv")
)
cases["projections_missing"] = lambda a: [a.x] * 3
cases["wq_unused"] = lambda a: [a.x, *a.named("kv")]
cases["wk_unused"] = lambda a: [a.linear("q"), a.x, a.linear("v")]
cases["wv_unused"] = lambda a: [*a.named("qk"), a.x]
cases["queries_made_with_wk"] = lambda a: a.named("kkv")
cases["queries_made_with_wv"] = lambda a: a.named("vkv")
cases["keys_made_with_wq"] = lambda a: a.named("qqv")
cases["keys_made_with_wv"] = lambda a: a.named("qvv")
cases["values_made_with_wq"] = lambda a: a.named("qkq")
cases["values_made_with_wk"] = lambda a: a.named("qkk")
cases["projections_in_the_order_kvq"] = lambda a: a.named("kvq")
cases["projections_in_the_order_vqk"] = lambda a: a.named("vqk")
cases["query_key_exchanged"] = lambda a: a.named("kqv")
cases["projections_all_wq"] = lambda a: a.named("qqq")
cases["embeddings_scaled"] = lambda a: a.three(4 * a.x)
cases["embeddings_centred"] = lambda a: a.three(a.x - a.x.mean(-1, keepdims=True))
cases["embeddings_of_unit_length"] = lambda a: a.three(
    a.x / np.linalg.norm(a.x, axis=-1, keepdims=True)
)
cases["positions_unasked"] = lambda a: a.three(a.x + POSITIONS)
cases["unscaled"] = lambda a: attended(*a.three(), scale=1)
cases["embedding_scale|input_width_scale|one_over_width"] = lambda a: attended(
    *a.three(), scale=1 / 4
)
cases["projections_transposed+unscaled"] = lambda a: attended(*a.three(**a.turned("qkv")), scale=1)
cases["causal_unasked"] = lambda a: attended(*a.three(), keep=np.tri(TOKENS, dtype=bool))
cases["embeddings_added"] = lambda a: attended(*a.three()) + a.x
cases["fused_viewed_as_heads"] = _fused_viewed


cases = layers("projection/width", width=12)
cases["input_width_scale"] = lambda a: attended(*a.three(), scale=1 / 4)
cases["unscaled"] = lambda a: attended(*a.three(), scale=1)


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


cases = layers("projection/fused")
cases["fused_cut_by_head"] = _by_head
cases["fused_cut_by_kind"] = _by_kind
cases["fused_cut_by_component"] = _by_component
for _fmt in ("bfloat16", "float16"):
    cases = layers(f"projection/{_fmt}")
    cases[f"projections_in_{_fmt}"] = lambda a, f=FORMATS[_fmt]: a.three(
        **{f"w{n}": f(a.w[f"w{n}"]) for n in "qkv"}
    )

cases = layers("positions", positions="sinusoidal")
cases["passes"] = lambda a: a.three(a.x + POSITIONS)
cases["positions_missing"] = lambda a: a.three()
cases["positions_not_in_values"] = lambda a: [
    *a.named("qk", a.x + POSITIONS),
    a.linear("v"),
]
cases["positions_concatenated"] = lambda a: a.three(
    a.x + np.hstack([np.sin(ANGLES), np.cos(ANGLES)])
)
cases["positions_cosine_first"] = lambda a: a.three(a.x + waves(ANGLES)[:, _PAIRS])
cases["positions_from_one"] = lambda a: a.three(a.x + waves(ANGLES + FREQUENCIES))
cases["positions_double_exponents"] = lambda a: a.three(
    a.x + waves(np.arange(TOKENS)[:, None] * FREQUENCIES**2)
)
cases["positions_halved_exponents"] = lambda a: a.three(
    a.x + waves(np.arange(TOKENS)[:, None] * FREQUENCIES**0.5)
)
cases["positions_own_exponents"] = lambda a: a.three(a.x + _own(1))
cases["positions_alone"] = lambda a: a.three(0 * a.x + POSITIONS)
cases["positions_of_first_token"] = lambda a: a.three(a.x + POSITIONS[0])
cases["positions_twice"] = lambda a: a.three(a.x + 2 * POSITIONS)
cases["positions_along_the_batch"] = lambda a: a.three(a.x + POSITIONS[:BATCH, None])
cases["embeddings_scaled"] = lambda a: a.three(4 * a.x + POSITIONS)
cases["projections_transposed"] = lambda a: a.three(a.x + POSITIONS, **a.turned("qkv"))
cases["projections_transposed+positions_missing"] = lambda a: a.three(**a.turned("qkv"))
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


cases = layers("sources", sources=(("key", "y"),))
cases["passes"] = _sources("xyy")
cases["key_source_unused"] = _sources("xxx")
cases["sources_exchanged"] = _sources("yxx")
cases["queries_from_key_source"] = _sources("yyy")
cases["keys_from_x"] = _sources("xxy")
cases["values_from_x"] = _sources("xyx")

cases = layers("sources/three", sources=(("key", "y"), ("value", "z")))
cases["values_from_key_source"] = _sources("xyy")
cases["keys_from_value_source"] = _sources("xzz")
cases["key_and_value_source_exchanged"] = _sources("xzy")


def _out(layer, made=None, **changes):
    found = layer.w | changes
    return (attended(*layer.three()) if made is None else made) @ found["wo"] + found["bo"]


def _layer_norm(x, epsilon=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)


def _rms_norm(x, epsilon=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


cases = layers("output", output=True)
cases["passes"] = _out
cases["output_projection_missing"] = lambda a: attended(*a.three())
cases["output_projection_transposed"] = lambda a: _out(a, wo=a.w["wo"].T)
cases["output_bias_missing"] = lambda a: _out(a, bo=0)
cases["output_projection_transposed+output_bias_missing"] = lambda a: _out(a, wo=a.w["wo"].T, bo=0)
cases["output_bias_repeated"] = lambda a: _out(a, bo=4 * a.w["bo"])
cases["all_biases_missing"] = lambda a: _out(a, attended(*a.three(**without("qkv"))), bo=0)
cases["all_projections_transposed"] = lambda a: _out(
    a, attended(*a.three(**a.turned("qkv"))), wo=a.w["wo"].T
)
cases["projections_transposed"] = lambda a: _out(a, attended(*a.three(**a.turned("qkv"))))
cases["embeddings_layer_norm_1e_05"] = lambda a: _out(a, attended(*a.three(_layer_norm(a.x))))
cases["embeddings_rms_norm_1e_05"] = lambda a: _out(a, attended(*a.three(_rms_norm(a.x))))
cases["output_layer_norm_1e_05"] = lambda a: _layer_norm(_out(a))
cases["output_rms_norm_1e_05"] = lambda a: _rms_norm(_out(a))
cases["output_and_embeddings_layer_norm_1e_05"] = lambda a: _layer_norm(_out(a) + a.x)
cases["embeddings_added"] = lambda a: _out(a) + a.x
cases["unscaled"] = lambda a: _out(a, attended(*a.three(), scale=1))
cases["another_factor"] = lambda a: 2 * _out(a)
cases["heads_reshaped_out"] = lambda a: _out(a, _reshaped(attended(*a.three())))


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


def norms(*, rope=None):
    """Return a table: each row changes query and key before they are attended."""

    def add_row(row, function):
        def make(seed):
            x = draw(seed + 3, (1, TOKENS, 8), dtype="float64")[0]
            q, k, v = (x @ weight for weight in _W)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                names = dict(
                    zip(("wq", "wk", "wv", "q_norm", "k_norm"), (*_W, *_NORM), strict=True)
                )
                made = attncli.project(x, **names)
                problem = attncli.pose(
                    made.query, made.key, made.value, heads=HEADS, kv_heads=GROUPS, rope=rope
                )
            query, key = function(q, k)
            wide = [cut(key, GROUPS).repeat(2, 1), cut(v, GROUPS).repeat(2, 1)]
            context = attended(query, joined(wide[0]), joined(wide[1]))
            return problem, context, {"projected": made}

        add(f"norms/{row}{' rope' if rope else ''}", told(row), make)

    return Rows(add_row)


cases = norms()
cases["passes"] = lambda q, k: (normed(q, _NORM[0]), normed(k, _NORM[1]))
cases["norms_missing"] = lambda q, k: (q, k)
cases["query_norm_missing"] = lambda q, k: (q, normed(k, _NORM[1]))
cases["key_norm_missing"] = lambda q, k: (normed(q, _NORM[0]), k)
cases["norm_weights_missing"] = lambda q, k: (normed(q, np.ones(WIDE)), normed(k, np.ones(WIDE)))
cases["norm_weights_plus_1"] = lambda q, k: (normed(q, _NORM[0] + 1), normed(k, _NORM[1] + 1))
cases["norm_weights_minus_1"] = lambda q, k: (normed(q, _NORM[0] - 1), normed(k, _NORM[1] - 1))
cases["norms_of_all_heads"] = lambda q, k: (
    normed(q, np.tile(_NORM[0], HEADS)),
    normed(k, np.tile(_NORM[1], GROUPS)),
)
