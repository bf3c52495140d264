"""Mistakes before and after attention.

Before it: positions, norms and projections of embeddings. After it: the output projection, a
residual connection and a norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import BASE, sinusoidal
from attncli.problem.norms import rms_norm
from attncli.problem.projection import as_heads
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes.scores import transposed
from attncli.referee.mistakes.table import Rows, given, require, written
from attncli.referee.run import joined_heads, unit_rows

if TYPE_CHECKING:
    from attncli.referee.pipeline import Pipeline
    from attncli.referee.run import Outputs, Run

ROWS = Rows()

# The arguments of `attncli.project` that are given.
Told = Mapping[str, Any]
_SOURCES = {"q": "x", "k": "key_source", "v": "value_source"}
_WEIGHTS, _BIASES = ("wq", "wk", "wv"), ("bq", "bk", "bv")
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
# The epsilons of PyTorch's LayerNorm and Llama 3; of Qwen and Gemma; of BERT.
_EPSILONS = (1e-5, 1e-6, 1e-12)
# The most multiplications of a projection that is computed again: more would take too long.
_MOST_PRODUCTS = 2**28


# Query, key and value projected again, with other arguments.


def _made_again(pipe: Pipeline, change: Callable[..., Told], *parameters: Any) -> Pipeline:
    told = given(pipe.projected)
    arrays = [array for array in (pipe.query, pipe.key, pipe.value) if array is not None]
    require(sum(array.size for array in arrays) * told["x"].shape[-1] <= _MOST_PRODUCTS)
    new = change(told, *parameters)
    made = {name: _heads(pipe, name, new) for name in ("query", "key", "value")}
    require(all((made[name] is None) is (getattr(pipe, name) is None) for name in made))
    lengths = {a.shape[2] for n, a in made.items() if n != "query" and a is not None}
    require(len(lengths) == 1)
    # A second mistake of the projections starts from the new arguments.
    return pipe.but(**made, projected=new, key_positions=np.arange(lengths.pop())[None])


def _heads(pipe: Pipeline, name: str, told: Told) -> Array | None:
    """Project query, key or value with these arguments; None if they do not fit."""
    own, letter = getattr(pipe.problem, name), name[0]
    source = told["x"] if letter == "q" else told.get("key_source", told["x"])
    source = told.get(_SOURCES[letter], source)
    weight, bias, norm = (told.get(n) for n in (f"w{letter}", f"b{letter}", f"{letter}_norm"))
    if own is None or weight is None or source.shape[-1] != weight.shape[0]:
        return None
    alive = (source, weight, bias, norm, own)
    key = (name, told.get("positions"), told.get("norm_eps"), *map(id, alive))
    if key not in pipe.file.memory:
        packed = _packed(told, source, weight, bias, norm)
        own = _of_length(pipe, own, packed) if letter != "q" else own
        made = as_heads(packed, own)
        wide = None if made is None else np.nan_to_num(made, posinf=0.0, neginf=0.0)
        pipe.file.memory[key] = alive, wide
    found: Array | None = pipe.file.memory[key][1]
    return found


def _packed(told: Told, source: Array, weight: Array, bias: Any, norm: Any) -> Array:
    """Add positions, project and normalise."""
    rows = widen(source, np.float64)
    if told.get("positions") is not None:
        rows = rows + sinusoidal(*rows.shape[-2:])
    with np.errstate(all="ignore"):  # padding may hold any numbers, and has no effect
        packed = rows @ widen(weight, np.float64)
        packed = packed if bias is None else packed + np.ravel(widen(bias, np.float64))
        if norm is not None and told.get("norm_eps") is not None:
            require(packed.shape[-1] % norm.size == 0)
            packed = rms_norm(packed, widen(norm, np.float64), told["norm_eps"])
    return np.asarray(packed)


def _of_length(pipe: Pipeline, own: Array, packed: Array) -> Array:
    """Return the array with as many keys as were projected, unless rules or terms use keys."""
    if pipe.rules or pipe.terms or packed.shape[-2] == own.shape[2]:
        return own
    return np.broadcast_to(own[:, :, :1], (*own.shape[:2], packed.shape[-2], own.shape[3]))


def _sources(told: Told) -> dict[str, Array]:
    return {n: widen(told[n], np.float64) for n in _SOURCES.values() if n in told}


def _there(told: Told, names: tuple[str, ...], least: int = 2) -> list[str]:
    """Return the names that are given: at least two, if several are asked for."""
    there = [name for name in names if name in told]
    require(len(there) >= min(len(names), least))
    return there


def _without(told: Told, *names: str) -> Told:
    gone = _there(told, names)
    return {name: value for name, value in told.items() if name not in gone}


# Weights and biases.


def _transposed(told: Told, *names: str) -> Told:
    return {**told, **{name: transposed(told[name]) for name in _there(told, names)}}


def _in_the_order(told: Told, letters: str) -> Told:
    """Use the weights and biases of these letters, in order, for q, k and v."""
    pairs = [(own, other) for own, other in zip("qkv", letters, strict=True) if other != own]
    require(all(f"w{letter}" in told for pair in pairs for letter in pair))
    rest = {n: v for n, v in told.items() if n not in [f"b{own}" for own, _ in pairs]}
    moved = {
        f"{kind}{own}": told[f"{kind}{other}"]
        for kind in "wb"
        for own, other in pairs
        if f"{kind}{other}" in told
    }
    return {**rest, **moved}


def _unprojected(told: Told, *names: str) -> Told:
    """Replace weights by the identity, and leave their biases out."""
    there = _there(told, names, least=1)
    biases = {f"b{name[1]}" for name in there}
    rest = {name: value for name, value in told.items() if name not in biases}
    return rest | dict.fromkeys(there, np.eye(told["x"].shape[-1]))


def _output_as(pipe: Pipeline, change: Callable[[Array], Array]) -> Pipeline:
    output = given(pipe.output)
    return pipe.but(output=replace(output, weight=change(output.weight)))


def _without_output_bias(pipe: Pipeline) -> Pipeline:
    output = given(pipe.output)
    require(output.bias is not None)
    return pipe.but(output=replace(output, bias=None))


_TURNED = {"projections": ("wq, wk and wv", _WEIGHTS), **{w: (w, (w,)) for w in _WEIGHTS}}
for _name, (_words, _names) in _TURNED.items():
    _option = f"give {_words} transposed"
    ROWS.add(f"{_name}_transposed", _made_again, _transposed, *_names, option=_option)
for _letters in ("kvq", "vqk"):
    ROWS.add(f"projections_in_the_order_{_letters}", _made_again, _in_the_order, _letters)
ROWS.add("projections_all_wq", _made_again, _in_the_order, "qqq")
for _letter, _word in _WORDS.items():
    ROWS.add(f"w{_letter}_unused", _made_again, _unprojected, f"w{_letter}")
    ROWS.add(f"b{_letter}_missing", _made_again, _without, f"b{_letter}")
    for _other in "qkv".replace(_letter, ""):
        _letters = "qkv".replace(_letter, _other)
        ROWS.add(f"{_word}_made_with_w{_other}", _made_again, _in_the_order, _letters)
ROWS.add("projections_missing", _made_again, _unprojected, *_WEIGHTS)
ROWS.add("projection_biases_missing", _made_again, _without, *_BIASES)
ROWS.add(
    "all_biases_missing",
    lambda pipe: _without_output_bias(_made_again(pipe, _without, *_BIASES)),
)
ROWS.add(
    "all_projections_transposed",
    lambda pipe: _output_as(_made_again(pipe, _transposed, *_WEIGHTS), transposed),
)


# Positions.


def _placed(told: Told, place: Callable[[Array], Array]) -> Told:
    require("positions" in told)
    rest = {name: value for name, value in told.items() if name != "positions"}
    return rest | {name: place(rows) for name, rows in _sources(told).items()}


def _waves(
    exponents: Callable[[Array], Array], length: int, width: int, first: Any = np.sin
) -> Array:
    """Return sin(p / 10000^(e/W)) in even columns and its cosine in odd ones."""
    columns, second = np.arange(width), np.cos if first is np.sin else np.sin
    angles = np.multiply.outer(np.arange(length), BASE ** (-exponents(columns) / width))
    return np.asarray(np.where(columns % 2, second(angles), first(angles)))


def _pair(column: Array) -> Array:
    return column // 2 * 2


def _concatenated(length: int, width: int) -> Array:
    right = sinusoidal(length, width)
    return np.concatenate([right[:, ::2], right[:, 1::2]], axis=-1)


# By name: the table of positions that is added instead, from the number of tokens and the width.
_TABLES: dict[str, Callable[[int, int], Array]] = {
    "concatenated": _concatenated,
    "cosine_first": partial(_waves, _pair, first=np.cos),
    "from_one": partial(sinusoidal, first=1),
    "own_exponents": partial(_waves, lambda column: column),
    "double_exponents": partial(_waves, lambda column: 2 * _pair(column)),
    "halved_exponents": partial(_waves, lambda column: _pair(column) / 2),
    "double_own_exponents": partial(_waves, lambda column: 2 * column),
    "of_first_token": lambda _, width: sinusoidal(1, width),
    "twice": lambda length, width: 2 * sinusoidal(length, width),
}
for _name, _table in _TABLES.items():
    _place = partial(lambda table, x: x + table(*x.shape[-2:]), _table)
    ROWS.add(f"positions_{_name}", _made_again, _placed, _place)
ROWS.add("positions_missing", _made_again, _without, "positions")
ROWS.add(
    "positions_not_in_values",
    lambda pipe: pipe.but(value=_made_again(pipe, _without, "positions").value),
)
ROWS.add(
    "positions_alone",
    *(_made_again, _placed, lambda x: np.broadcast_to(sinusoidal(*x.shape[-2:]), x.shape)),
)
# Row b is added to every token of batch entry b, as if the embeddings were (L, B, W).
ROWS.add(
    "positions_along_the_batch",
    *(_made_again, _placed, lambda x: x + sinusoidal(len(x), x.shape[-1])[:, None]),
    when=lambda pipe: all(x.ndim == 3 for x in _sources(given(pipe.projected)).values()),
)
ROWS.add(
    "positions_unasked",
    *(_made_again, lambda told: {**told, "positions": "sinusoidal"}),
    when=lambda pipe: "positions" not in given(pipe.projected),
    option="--positions sinusoidal",
)


# The sequences that are projected to query, key and value.


def _made_from(told: Told, *sources: str) -> Told:
    require("key_source" in told)
    own = {"value_source": told["key_source"], **told}
    made = {target: own[source] for target, source in zip(_SOURCES.values(), sources, strict=True)}
    require(any(made[name] is not own[name] for name in made))
    return {**told, **made}


_MADE_FROM = {
    "key_source_unused": ("x", "x", "x"),
    "sources_exchanged": ("key_source", "x", "x"),
    "queries_from_key_source": ("key_source", "key_source", "value_source"),
    "keys_from_x": ("x", "x", "value_source"),
    "values_from_x": ("x", "key_source", "x"),
    "values_from_key_source": ("x", "key_source", "key_source"),
    "keys_from_value_source": ("x", "value_source", "value_source"),
    "key_and_value_source_exchanged": ("x", "value_source", "key_source"),
}
for _name, _from in _MADE_FROM.items():
    ROWS.add(_name, _made_again, _made_from, *_from)


# Projections that are stored in fewer bits.


def _stored(pipe: Pipeline, fmt: str) -> Pipeline:
    """Project with rounded weights."""

    def change(told: Told) -> Told:
        wide = {name: widen(told[name], np.float64) for name in _WEIGHTS if name in told}
        made = {name: PRECISIONS[fmt].stored(weight) for name, weight in wide.items()}
        require(not all(np.array_equal(made[name], wide[name]) for name in made))
        return {**told, **made}

    require(pipe.file.largest >= PRECISIONS["float32"].largest)
    return _made_again(pipe, change)


ROWS.family("projections_in_{}", _stored, ("bfloat16", "float16"))


# Norms of the embeddings, and of query and key.


def _rms(rows: Array, epsilon: float) -> Array:
    """Return rows with root mean square 1 (Zhang, Sennrich 2019, equation 4)."""
    return np.asarray(rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + epsilon))


def _layer(rows: Array, epsilon: float) -> Array:
    """Return rows with mean 0 and variance 1 (Ba, Kiros, Hinton 2016, equation 4)."""
    return _rms(rows - rows.mean(axis=-1, keepdims=True), epsilon)


# From name and words to the norm and its epsilon, larger epsilons first.
_KINDS: dict[tuple[str, str], tuple[Any, float]] = {
    (f"{kind}_norm_{eps:g}".replace("-", "_"), f"{word}, epsilon {eps:g}"): (norm, eps)
    for kind, word, norm in (("layer", "LayerNorm", _layer), ("rms", "RMSNorm", _rms))
    for eps in _EPSILONS
}


def _embeddings(pipe: Pipeline, change: Callable[..., Array], *parameters: Any) -> Pipeline:
    return _made_again(
        pipe,
        lambda told: {**told, **{n: change(x, *parameters) for n, x in _sources(told).items()}},
    )


def _of_the_layer(pipe: Pipeline, norm: Any, epsilon: float, *, more: float) -> Pipeline:
    """Apply the norm before the layer, with ``more`` added to its weight."""
    parts = given(pipe.problem.made_from).norm_before
    require(parts and not ("bias" in parts and norm is not _layer))
    weight = widen(parts["weight"], np.float64) + more
    bias = widen(parts["bias"], np.float64) if "bias" in parts else 0.0
    return _embeddings(pipe, lambda rows: norm(rows, epsilon) * weight + bias)


ROWS.family("norm_before_{}", partial(_of_the_layer, more=0.0), _KINDS)
ROWS.family("norm_before_{}_plus_1", partial(_of_the_layer, more=1.0), _KINDS)
ROWS.family("embeddings_{}", _embeddings, _KINDS)
ROWS.add("embeddings_of_unit_length", _embeddings, unit_rows)
ROWS.add("embeddings_scaled", _embeddings, lambda x: x * np.sqrt(x.shape[-1]))
ROWS.add("embeddings_centred", _embeddings, lambda x: x - x.mean(axis=-1, keepdims=True))


def _norms(told: Told) -> dict[str, Array]:
    norms = {n: widen(told[n], np.float64) for n in ("q_norm", "k_norm") if n in told}
    require(norms)
    return norms


def _weighted(told: Told, weight: Callable[[Array], Array]) -> Told:
    return {**told, **{name: weight(own) for name, own in _norms(told).items()}}


def _swapped_norms(told: Told) -> Told:
    norms = _norms(told)
    require(len(norms) == 2 and norms["q_norm"].shape == norms["k_norm"].shape)
    return {**told, "q_norm": told["k_norm"], "k_norm": told["q_norm"]}


def _of_all_heads(told: Told) -> Told:
    norms = _norms(told)
    counts = {name: told[f"w{name[0]}"].shape[1] // len(norms[name]) for name in norms}
    require(max(counts.values()) > 1)
    return {**told, **{name: np.tile(norms[name], count) for name, count in counts.items()}}


def _norms_after_rope(pipe: Pipeline) -> Pipeline:
    told = given(pipe.projected)
    norms, epsilon = _norms(told), float(told.get("norm_eps") or 0.0)
    require(pipe.rope is not None, all(len(norm) == pipe.width for norm in norms.values()))
    plain = _made_again(pipe, _without, *norms)
    for name, norm in norms.items():
        change = partial(lambda norm, _, rows: rms_norm(rows, norm, epsilon), norm)
        plain = plain.then("operands", ({"q": "query", "k": "key"}[name[0]], change))
    return plain


ROWS.add("norms_missing", _made_again, _without, "q_norm", "k_norm")
ROWS.add("query_norm_missing", _made_again, _without, "q_norm")
ROWS.add("key_norm_missing", _made_again, _without, "k_norm")
ROWS.add("norm_weights_missing", _made_again, _weighted, np.ones_like)
ROWS.add("norm_weights_plus_1", _made_again, _weighted, lambda weight: weight + 1)
ROWS.add("norm_weights_minus_1", _made_again, _weighted, lambda weight: weight - 1)
ROWS.add("norm_weights_exchanged", _made_again, _swapped_norms)
ROWS.add("norms_after_rope", _norms_after_rope)
ROWS.add("norms_of_all_heads", _made_again, _of_all_heads)


# After attention.


def _output_missing(pipe: Pipeline) -> Pipeline:
    weight = given(pipe.output).weight
    # If the context has another width than the answer, the file must have that width.
    same = pipe.file.shapes.get("context") == pipe.problem.output_shapes["context"]
    require(weight.shape[0] == weight.shape[1] or not same)
    joined = pipe.but(output=None)
    return written(joined, "context", lambda _, made: joined_heads(made["context"]))


def _of_embeddings(pipe: Pipeline) -> Array:
    """Return the embeddings with their positions added, (B, 1, L, W)."""
    told = given(pipe.projected)
    x = widen(told["x"], np.float64)
    x = x + sinusoidal(*x.shape[-2:]) if "positions" in told else x
    return x.reshape(-1, 1, *x.shape[-2:])


def _plus(pipe: Pipeline, source: Callable[[Pipeline], Array]) -> Pipeline:
    """Add an input to the output, if it has the shape of the output."""
    added = joined_heads(source(pipe))

    def add(_: Run, made: Outputs) -> Array:
        batch, heads, rows, width = made["context"].shape
        if added.shape[2:] != (rows, heads * width) or len(added) not in (1, batch):
            return made["context"]
        apart = added.reshape(-1, rows, heads, width).transpose(0, 2, 1, 3)
        return made["context"] + apart

    return written(pipe, "context", add, "behind")


def _normed(pipe: Pipeline, norm: Any, epsilon: float, *, residual: bool) -> Pipeline:
    require(pipe.output is not None)
    made = _plus(pipe, _of_embeddings) if residual else pipe
    return written(made, "context", lambda _, made: norm(made["context"], epsilon), "behind")


ROWS.add("output_projection_missing", _output_missing)
ROWS.add("output_projection_transposed", _output_as, transposed)
ROWS.add("output_bias_missing", _without_output_bias)
ROWS.add("embeddings_added", _plus, _of_embeddings)
ROWS.add(
    "value_added",
    *(_plus, lambda p: np.repeat(p.value, p.shape[1] // p.value.shape[1], axis=1)),
    when=lambda pipe: pipe.value is not None,
)
ROWS.add("query_added", _plus, lambda pipe: pipe.query)
ROWS.family("output_{}", partial(_normed, residual=False), _KINDS)
ROWS.family("output_and_embeddings_{}", partial(_normed, residual=True), _KINDS)
