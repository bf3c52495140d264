"""Mistakes in how inputs are made from embeddings, and outputs behind attention.

Positions, norms and projections in front; the output projection, a residual and a norm behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import BASE, sinusoidal
from attncli.problem.norms import rms_norm
from attncli.problem.projection import as_heads
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.heads import of_context
from attncli.referee.mistakes.table import Change, Rows

if TYPE_CHECKING:
    from attncli.referee.pipeline import Outputs, Pipeline, Run

__all__ = ["BEFORE", "BEHIND", "NORMS"]

# The arguments of `attncli.project`, those that are given.
Given = Mapping[str, Any]
_SOURCES = ("x", "key_source", "value_source")
_WEIGHTS, _BIASES = ("wq", "wk", "wv"), ("bq", "bk", "bv")
_WORDS = {"q": "queries", "k": "keys", "v": "values"}
# Of PyTorch's LayerNorm and Llama 3, of Qwen and Gemma, of BERT.
_EPSILONS = (1e-5, 1e-6, 1e-12)
# Products that take some hundredths of a second.
_MOST_PRODUCTS = 2**28
_ANY = "projections that are not the identity"


def made_again(change: Callable[[Given], Given | None]) -> Change:
    """Return the change that projects the embeddings anew, by other arguments."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        given = pipe.projected
        new = None if given is None or _too_large(pipe) else change(given)
        if new is None:
            return None
        made = {name: _heads(pipe, name, new) for name in ("query", "key", "value")}
        there = all((made[n] is None) is (getattr(pipe, n) is None) for n in made)
        lengths = {a.shape[2] for n, a in made.items() if n != "query" and a is not None}
        if not there or len(lengths) != 1:
            return None
        positions = np.arange(lengths.pop())[None]
        # Another mistake begins with what this one leaves.
        return pipe.but(**made, projected=new, key_positions=positions)

    return changed


def _too_large(pipe: Pipeline) -> bool:
    given = pipe.projected or {}
    arrays = [array for array in (pipe.query, pipe.key, pipe.value) if array is not None]
    widths = sum(
        array.shape[0] * array.shape[1] * array.shape[2] * array.shape[3] for array in arrays
    )
    return bool(widths * given["x"].shape[-1] > _MOST_PRODUCTS)


def _heads(pipe: Pipeline, name: str, given: Given) -> Array | None:
    """Return query, key or value as these arguments make it; None where they do not fit."""
    own = getattr(pipe.problem, name)
    letter = name[0]
    names = [{"q": "x", "k": "key_source", "v": "value_source"}[letter], f"w{letter}", f"b{letter}"]
    source = given.get(
        names[0], given.get("key_source", given["x"]) if letter != "q" else given["x"]
    )
    weight, bias = given.get(names[1]), given.get(names[2])
    norm, epsilon = given.get(f"{letter}_norm"), given.get("norm_eps")
    if own is None or weight is None or source.shape[-1] != weight.shape[0]:
        return None
    alive = (source, weight, bias, norm, own)
    key = (name, given.get("positions"), epsilon, *map(id, alive))
    memory = pipe.file.memory
    if key not in memory:
        rows = widen(source, np.float64)
        if given.get("positions") is not None:
            rows = rows + sinusoidal(*rows.shape[-2:])
        with np.errstate(all="ignore"):  # padding may hold anything, and must have no effect
            packed = rows @ widen(weight, np.float64)
            packed = packed if bias is None else packed + np.ravel(widen(bias, np.float64))
            if norm is not None and epsilon is not None:
                if packed.shape[-1] % norm.size:
                    return None
                packed = rms_norm(packed, widen(norm, np.float64), epsilon)
        own = _of_length(pipe, own, packed) if letter != "q" else own
        made = as_heads(packed, own)
        wide = None if made is None else np.nan_to_num(made, posinf=0.0, neginf=0.0)
        memory[key] = alive, wide
    found: Array | None = memory[key][1]
    return found


def _of_length(pipe: Pipeline, own: Array, packed: Array) -> Array:
    """Return an array with as many keys as packed heads have, where no rule counts them."""
    if pipe.rules or pipe.terms or packed.shape[-2] == own.shape[2]:
        return own
    return np.broadcast_to(own[:, :, :1], (*own.shape[:2], packed.shape[-2], own.shape[3]))


def _sources(given: Given) -> dict[str, Array]:
    """Return the embeddings of these arguments in float64."""
    return {name: widen(given[name], np.float64) for name in _SOURCES if name in given}


def _without(*names: str) -> Callable[[Given], Given | None]:
    """Leave arguments out: all of those that there are, at least two of several."""

    def change(given: Given) -> Given | None:
        there = [name for name in names if name in given]
        if len(there) < min(len(names), 2):
            return None
        return {name: value for name, value in given.items() if name not in there}

    return change


# In front of attention.

BEFORE = Rows(stages.PROJECTION, shows=_ANY, projects=True)
_STAGES = {
    "q": stages.QUERY_PROJECTION,
    "k": stages.KEY_PROJECTION,
    "v": stages.VALUE_PROJECTION,
}


def _transposed(*names: str) -> Change:
    def change(given: Given) -> Given | None:
        there = {name: given[name] for name in names if name in given}
        square = all(weight.shape[0] == weight.shape[-1] for weight in there.values())
        # A single matrix belongs to another row.
        if not square or len(there) < min(len(names), 2):
            return None
        return {**given, **{name: weight.T for name, weight in there.items()}}

    return made_again(change)


def _in_the_order(letters: str) -> Change:
    """Make q, k and v with the weights and biases of these; a dot leaves its own."""

    def change(given: Given) -> Given | None:
        pairs = [(own, other) for own, other in zip("qkv", letters, strict=True) if other != "."]
        if any(f"w{letter}" not in given for pair in pairs for letter in pair):
            return None
        rest = {n: v for n, v in given.items() if n not in [f"b{own}" for own, _ in pairs]}
        moved = {
            f"{kind}{own}": given[f"{kind}{other}"]
            for kind in "wb"
            for own, other in pairs
            if f"{kind}{other}" in given
        }
        return {**rest, **moved}

    return made_again(change)


def _unprojected(*names: str) -> Change:
    """Take embeddings as they are, without weight and bias."""

    def change(given: Given) -> Given | None:
        there = [name for name in names if name in given]
        if not there:
            return None
        identities = dict.fromkeys(there, np.eye(given["x"].shape[-1]))
        biases = {f"b{name[1]}" for name in there}
        return {n: v for n, v in given.items() if n not in biases} | identities

    return made_again(change)


def _and_the_output(change: Change, output: Change) -> Change:
    """Return the change that makes a mistake in the output projection as well."""

    def both(pipe: Pipeline) -> Pipeline | None:
        changed = change(pipe)
        return None if changed is None else output(changed)

    return both


def transposed_output(pipe: Pipeline) -> Pipeline | None:
    """Return the pipeline with Wo transposed; None where it is not square, or there is none."""
    output = pipe.output
    if output is None or output.weight.shape[0] != output.weight.shape[1]:
        return None
    return pipe.but(output=replace(output, weight=output.weight.T))


def without_output_bias(pipe: Pipeline) -> Pipeline | None:
    """Return the pipeline without the bias of Wo; None where there is none."""
    if pipe.output is None or pipe.output.bias is None:
        return None
    return pipe.but(output=replace(pipe.output, bias=None))


BEFORE.add("projections_transposed", _transposed(*_WEIGHTS), option="give wq, wk and wv transposed")
BEFORE.add(
    "projections_in_the_order_{}",
    lambda value: _in_the_order(value[0]),
    values=(("kvq", "wk, wv and wq"), ("vqk", "wv, wq and wk")),
)
BEFORE.add("projections_all_wq", _in_the_order("qqq"))
for _letter in "qkv":
    _place = "qkv".index(_letter)
    BEFORE.add(
        f"w{_letter}_transposed",
        _transposed(f"w{_letter}"),
        stage=_STAGES[_letter],
        option=f"give w{_letter} transposed",
    )
    BEFORE.add(f"w{_letter}_unused", _unprojected(f"w{_letter}"), stage=_STAGES[_letter])
    BEFORE.add(
        f"b{_letter}_missing", made_again(_without(f"b{_letter}")), stage=stages.PROJECTED_BIAS
    )
for _target, _source in permutations("qkv", 2):
    BEFORE.add(
        f"{_WORDS[_target]}_made_with_w{_source}",
        _in_the_order("".join(_source if own == _target else "." for own in "qkv")),
        stage=_STAGES[_target],
    )
BEFORE.add("projections_missing", _unprojected(*_WEIGHTS))
BEFORE.add("projection_biases_missing", made_again(_without(*_BIASES)), stage=stages.PROJECTED_BIAS)
BEFORE.add(
    "all_biases_missing",
    _and_the_output(made_again(_without(*_BIASES)), without_output_bias),
    stage=stages.PROJECTED_BIAS,
)
BEFORE.add("all_projections_transposed", _and_the_output(_transposed(*_WEIGHTS), transposed_output))


# Positions.


def _placed(place: Callable[[Array], Array]) -> Change:
    """Return the change to another positional encoding, where there is one."""

    def change(given: Given) -> Given | None:
        if "positions" not in given:
            return None
        rest = {name: value for name, value in given.items() if name != "positions"}
        return rest | {name: place(rows) for name, rows in _sources(given).items()}

    return made_again(change)


def _waves(exponents: Array, length: int) -> Array:
    """Return p / 10000^e for each position p and exponent e."""
    return np.asarray(np.multiply.outer(np.arange(length), BASE**-exponents))


def _in_pairs(factor: float, *, cosine_first: bool = False) -> Callable[[Array], Array]:
    """Add sine and cosine of each pair, whose exponent is so many times 2i/W."""

    def place(x: Array) -> Array:
        length, width = x.shape[-2:]
        angles = _waves(factor * np.arange(0, width, 2) / width, length)
        waves = [np.sin(angles), np.cos(angles)][:: -1 if cosine_first else 1]
        return np.asarray(x + np.stack(waves, axis=-1).reshape(length, -1)[:, :width])

    return place


def _by_column(factor: float) -> Callable[[Array], Array]:
    """Add sines and cosines in turn, of which each column j has its own exponent."""

    def place(x: Array) -> Array:
        length, width = x.shape[-2:]
        angles = _waves(factor * np.arange(width) / width, length)
        return np.asarray(x + np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles)))

    return place


def _concatenated(x: Array) -> Array:
    length, width = x.shape[-2:]
    angles = _waves(np.arange(0, width, 2) / width, length)
    return np.asarray(x + np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)[:, :width])


def _along_the_batch(pipe: Pipeline) -> Pipeline | None:
    """Add row b to every token of batch entry b, as a table for (L, B, W) does to (B, L, W)."""
    if pipe.projected is None or any(a.ndim != 3 for a in _sources(pipe.projected).values()):
        return None
    return _placed(lambda x: x + sinusoidal(len(x), x.shape[-1])[:, None])(pipe)


def _embeddings_scaled(given: Given) -> Given:
    """Multiply the embeddings, and then add positions, if there are any."""
    rest = {name: value for name, value in given.items() if name != "positions"}
    place = sinusoidal if "positions" in given else (lambda *_: 0.0)
    return rest | {
        n: x * np.sqrt(x.shape[-1]) + place(*x.shape[-2:]) for n, x in _sources(given).items()
    }


def _values_alone(pipe: Pipeline) -> Pipeline | None:
    plain = made_again(_without("positions"))(pipe)
    return None if plain is None else pipe.but(value=plain.value)


_POSITIONS_FIX = (
    "column 2i of row p is sin(p / 10000^(2i/W)), column 2i + 1 its cosine; p counts from 0, and "
    "the encoding is added once"
)
BEFORE.add("positions_missing", made_again(_without("positions")), stage=stages.POSITIONS)
BEFORE.add("positions_not_in_values", _values_alone, stage=stages.POSITIONS)
BEFORE.add(
    "positions_{}",
    lambda value: _placed(value[2]),
    meaning="{1}",
    values=(
        (
            "concatenated",
            (
                "the positional encoding has all sines first and then all cosines, but they should "
                "alternate"
            ),
            _concatenated,
        ),
        (
            "cosine_first",
            "sine and cosine of the positional encoding are exchanged",
            _in_pairs(1.0, cosine_first=True),
        ),
        (
            "from_one",
            "positions are counted from 1, not from 0",
            lambda x: x + sinusoidal(*x.shape[-2:], first=1),
        ),
        (
            "own_exponents",
            (
                "each column j of the positional encoding has its own frequency, 10000^(−j/W), but "
                "sine and cosine should share one"
            ),
            _by_column(1.0),
        ),
        (
            "double_exponents",
            (
                "the exponents of the positional encoding are twice as large as they should be: "
                "2j/W for column j = 2i"
            ),
            _in_pairs(2.0),
        ),
        (
            "halved_exponents",
            (
                "the exponents of the positional encoding are half as large as they should be: i/W "
                "for columns 2i and 2i + 1"
            ),
            _in_pairs(0.5),
        ),
        (
            "double_own_exponents",
            (
                "column j of the positional encoding has the frequency 10000^(−2j/W): j counts "
                "columns, not pairs of them, and sine and cosine should share one"
            ),
            _by_column(2.0),
        ),
        (
            "alone",
            (
                "the positional encoding takes the place of the embeddings, to which it should be "
                "added"
            ),
            lambda x: np.broadcast_to(sinusoidal(*x.shape[-2:]), x.shape),
        ),
        (
            "of_first_token",
            "every token gets the positional encoding of position 0",
            lambda x: x + sinusoidal(1, x.shape[-1]),
        ),
        (
            "twice",
            "the positional encoding is added twice",
            lambda x: x + 2 * sinusoidal(*x.shape[-2:]),
        ),
    ),
    stage=stages.POSITIONS,
    fix=_POSITIONS_FIX,
)
BEFORE.add("embeddings_scaled", made_again(_embeddings_scaled), stage=stages.POSITIONS)
BEFORE.add("positions_along_the_batch", _along_the_batch, stage=stages.POSITIONS)
BEFORE.add(
    "positions_unasked",
    made_again(
        lambda given: None if "positions" in given else {**given, "positions": "sinusoidal"}
    ),
    stage=stages.POSITIONS,
    option="--positions sinusoidal",
)


# Which sequence is projected to what.


def _made_from(**sources: str) -> Change:
    """Return the change of what queries, keys and values are made from: by names of arguments."""

    def change(given: Given) -> Given | None:
        if "key_source" not in given:
            return None
        own = {"value_source": given["key_source"], **given}
        rest = {name: value for name, value in given.items() if name not in _SOURCES}
        made = {name: own[name] for name in _SOURCES}
        made |= {target: own[source] for target, source in sources.items()}
        return None if all(made[name] is own[name] for name in made) else {**rest, **made}

    return made_again(change)


_ASKS = "make queries from the sequence that asks, keys and values from the other"
BEFORE.add(
    "key_source_unused",
    made_again(
        lambda given: (
            {n: v for n, v in given.items() if n not in _SOURCES[1:]}
            if {"key_source", "value_source"} & set(given)
            else None
        )
    ),
    stage=stages.KEY_SOURCE,
)
BEFORE.add(
    "{}",
    lambda value: _made_from(**value[2]),
    meaning="{1} in cross-attention",
    values=(
        (
            "sources_exchanged",
            "queries are made from the key source, and keys and values from x,",
            {"x": "key_source", "key_source": "x", "value_source": "x"},
        ),
        (
            "queries_from_key_source",
            "queries, too, are made from the key source",
            {"x": "key_source"},
        ),
        ("keys_from_x", "keys are made from x, not from the key source,", {"key_source": "x"}),
        (
            "values_from_x",
            "values are made from x, not from the key source,",
            {"value_source": "x"},
        ),
        (
            "values_from_key_source",
            "values are made from the key source, not from their own,",
            {"value_source": "key_source"},
        ),
        (
            "keys_from_value_source",
            "keys are made from the value source, not from their own,",
            {"key_source": "value_source"},
        ),
        (
            "key_and_value_source_exchanged",
            "the sources of keys and values are exchanged",
            {"key_source": "value_source", "value_source": "key_source"},
        ),
    ),
    stage=stages.KEY_SOURCE,
    fix=_ASKS,
    shows="two sequences that differ",
)


# Projections that are stored in fewer bits, or hold the scale.


def _in_int8(axis: int | None) -> Callable[[Array], Array]:
    """Round to 255 steps between the largest magnitude of a column, or of all, and its negative."""

    def rounded(weight: Array) -> Array:
        step = np.abs(weight).max(axis=axis, keepdims=True) / 127
        step = np.where(step == 0, 1, step)
        return np.asarray(np.rint(weight / step) * step)

    return rounded


def _stored(rounded: Callable[[Array], Array]) -> Change:
    """Project with rounded weights; in float32, or it would not show."""

    def change(given: Given) -> Given | None:
        wide = {name: widen(given[name], np.float64) for name in _WEIGHTS if name in given}
        made = {name: rounded(weight) for name, weight in wide.items()}
        same = all(np.array_equal(made[name], wide[name]) for name in made)
        return None if same else {**given, **made}

    again = made_again(change)
    single = PRECISIONS["float32"].largest
    return lambda pipe: again(pipe) if pipe.file.largest >= single else None


def _folded(name: str) -> Change:
    """Multiply the scale into wq or bq alone; who folds it into wq scales no scores."""

    def change(pipe: Pipeline) -> Pipeline | None:
        given, scale = pipe.projected, pipe.scale
        if given is None or "bq" not in given or scale == 1:
            return None
        folded = widen(given[name], np.float64) * scale
        made = made_again(lambda given: {**given, name: folded})(pipe)
        return made.but(scale=1.0) if made is not None and name == "wq" else made

    return change


BEFORE.add(
    "projections_in_{}",
    lambda value: _stored(value[2]),
    values=(
        *((n, f"rounded to {n}", PRECISIONS[n].stored) for n in ("bfloat16", "float16")),
        ("int8_by_column", "quantized to int8, each column with a scale", _in_int8(0)),
        ("int8", "quantized to int8, each matrix with one scale", _in_int8(None)),
    ),
    stage=stages.STORED_INPUTS,
)
BEFORE.add("scale_in_wq_not_in_bq", _folded("wq"), stage=stages.FOLDED_SCALE)
BEFORE.add("scale_in_bq_too", _folded("bq"), stage=stages.FOLDED_SCALE)


# Norms of the embeddings, of query and key, of the output.

NORMS = Rows(stages.EMBEDDING_NORM, shows=_ANY, projects=True)


def _rms(epsilon: float, rows: Array) -> Array:
    """Return rows of root mean square 1 (Zhang, Sennrich 2019, equation 4)."""
    return np.asarray(rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + epsilon))


def _layer(epsilon: float, rows: Array) -> Array:
    """Return rows with mean 0 and variance 1 (Ba, Kiros, Hinton 2016, equation 4)."""
    return _rms(epsilon, rows - rows.mean(axis=-1, keepdims=True))


# A name, words, and what the norm does, the larger epsilons first.
_KINDS: tuple[tuple[str, str, Callable[[Array], Array]], ...] = tuple(
    (
        f"{kind}_norm_{epsilon:g}".replace("-", "_"),
        f"{word} (epsilon {epsilon:g}",
        partial(norm, epsilon),
    )
    for kind, word, norm in (("layer", "LayerNorm", _layer), ("rms", "RMSNorm", _rms))
    for epsilon in _EPSILONS
)


def _larger(value: tuple[Any, ...], form: str) -> tuple[str, ...]:
    """Return the names of the same kind of norm with larger epsilons."""
    kind = value[0].split("_")[0]
    before = [name for name, _, _ in _KINDS if name.startswith(kind)]
    return tuple(form.format(name) for name in before[: before.index(value[0])])


def _embeddings(change: Callable[[Array], Array]) -> Change:
    """Return the change that does something to the embeddings before they are projected."""
    return made_again(lambda given: {**given, **{n: change(x) for n, x in _sources(given).items()}})


def _of_the_layer(value: tuple[Any, ...]) -> Change:
    """Take the embeddings through the norm in front of their layer, more in its weight."""
    name, _, norm, more = value[:4]

    def change(pipe: Pipeline) -> Pipeline | None:
        made = pipe.problem.made_from
        parts = {} if made is None else made.norm_before
        if not parts or ("bias" in parts and not name.startswith("layer")):
            return None
        weight = widen(parts["weight"], np.float64) + more
        bias = widen(parts["bias"], np.float64) if "bias" in parts else 0.0
        return _embeddings(lambda rows: norm(rows) * weight + bias)(pipe)

    return change


for _end, _more in (
    ("", 0.0),
    ("_plus_1", 1.0),
):
    NORMS.add(
        f"norm_before_{{}}{_end}",
        _of_the_layer,
        values=[(*kind, _more) for kind in _KINDS],
        variant_of=lambda value, end=_end: _larger(value, f"norm_before_{{}}{end}"),
    )
NORMS.add(
    "embeddings_{}",
    lambda value: _embeddings(value[2]),
    meaning="the embeddings go through a {1}, no gain) before they are projected",
    values=_KINDS,
    fix="give the embeddings as they come out of the norm, or leave the norm out",
    variant_of=lambda value: _larger(value, "embeddings_{}"),
)
NORMS.add(
    "embeddings_{}",
    lambda value: _embeddings(value[2]),
    meaning="the embeddings {1} before they are projected",
    values=(
        (
            "of_unit_length",
            "are divided by their lengths",
            lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300),
        ),
        (
            "centred",
            "lose the mean of their numbers",
            lambda x: x - x.mean(axis=-1, keepdims=True),
        ),
    ),
    fix="give the embeddings as they are projected, or leave that out",
)


def _other_norms(change: Callable[[dict[str, Array], Given], Given | None]) -> Change:
    """Return the change of the norms of query and key, of those that there are."""

    def changed(given: Given) -> Given | None:
        norms = {name: given[name] for name in ("q_norm", "k_norm") if name in given}
        return change(norms, given) if norms else None

    return made_again(changed)


def _weighted(weight: Callable[[Array], Array]) -> Change:
    return _other_norms(
        lambda norms, given: {
            **given,
            **{n: weight(widen(w, np.float64)) for n, w in norms.items()},
        }
    )


def _swapped_norms(norms: dict[str, Array], given: Given) -> Given | None:
    if len(norms) < 2 or norms["q_norm"].shape != norms["k_norm"].shape:
        return None
    return {**given, "q_norm": norms["k_norm"], "k_norm": norms["q_norm"]}


def _of_all_heads(norms: dict[str, Array], given: Given) -> Given | None:
    counts = {name: given[f"w{name[0]}"].shape[1] // len(norms[name]) for name in norms}
    if max(counts.values()) == 1:
        return None
    return {**given, **{name: np.tile(norms[name], count) for name, count in counts.items()}}


def _norms_after_rope(pipe: Pipeline) -> Pipeline | None:
    """Normalise query and key behind the rotation, not before it."""
    given = pipe.projected or {}
    norms = {n: widen(given[n], np.float64) for n in ("q_norm", "k_norm") if n in given}
    width = pipe.width
    if not norms or pipe.rope is None or any(len(norm) != width for norm in norms.values()):
        return None
    plain = made_again(_without(*norms))(pipe)
    if plain is None:
        return None
    epsilon = float(given.get("norm_eps") or 0.0)
    for name, side in (("q_norm", "query"), ("k_norm", "key")):
        if name in norms:
            plain = plain.then(
                "operands",
                (side, lambda _, rows, weight=norms[name]: rms_norm(rows, weight, epsilon)),
            )
    return plain


NORMS.add(
    "{}_missing",
    lambda value: made_again(_without(*value[2])),
    values=(
        ("norms", "queries and keys", ("q_norm", "k_norm")),
        ("query_norm", "queries", ("q_norm",)),
        ("key_norm", "keys", ("k_norm",)),
    ),
    stage=stages.QUERY_KEY_NORM,
)
NORMS.add(
    "norm_weights_{}",
    lambda value: _weighted(value[2]),
    values=(
        ("missing", "no weight", np.ones_like),
        ("plus_1", "their weight plus 1", lambda weight: weight + 1),
        ("minus_1", "their weight less 1", lambda weight: weight - 1),
    ),
    stage=stages.QUERY_KEY_NORM,
)
NORMS.add("norm_weights_exchanged", _other_norms(_swapped_norms), stage=stages.QUERY_KEY_NORM)
NORMS.add("norms_after_rope", _norms_after_rope, stage=stages.QUERY_KEY_NORM)
NORMS.add("norms_of_all_heads", _other_norms(_of_all_heads), stage=stages.QUERY_KEY_NORM)


# Behind attention.

BEHIND = Rows(stages.OUTPUT_PROJECTION)


def _joined(_: Run, outputs: Outputs) -> Outputs:
    batch, _heads, rows, _width = outputs["context"].shape
    joined = outputs["context"].transpose(0, 2, 1, 3).reshape(batch, 1, rows, -1)
    return {**outputs, "context": joined}


def _output_missing(pipe: Pipeline) -> Pipeline | None:
    output = pipe.output
    if output is None:
        return None
    # Contexts of another width than the answer's are in files of another shape alone.
    wider = output.weight.shape[0] != output.weight.shape[1]
    same = pipe.file.shapes.get("context") == pipe.problem.output_shapes["context"]
    return None if wider and same else pipe.but(output=None).then("finish", _joined)


def _of_embeddings(pipe: Pipeline) -> Array | None:
    """Return the embeddings as they were projected, (B, 1, L, W)."""
    given = pipe.projected
    if given is None:
        return None
    x = widen(given["x"], np.float64)
    x = x + sinusoidal(*x.shape[-2:]) if "positions" in given else x
    return x.reshape(-1, 1, *x.shape[-2:])


def _repeated_value(pipe: Pipeline) -> Array | None:
    value = pipe.value
    return None if value is None else np.repeat(value, pipe.shape[1] // value.shape[1], axis=1)


def _plus(source: Callable[[Pipeline], Array | None]) -> Change:
    """Return the change that adds what attention began with to what it gives."""

    def change(pipe: Pipeline) -> Pipeline | None:
        added = source(pipe)
        if added is None:
            return None

        def add(_: Run, context: Array) -> Array:
            batch, heads, rows, width = context.shape
            joined = added.transpose(0, 2, 1, 3).reshape(len(added), added.shape[2], -1)
            if joined.shape[1:] != (rows, heads * width) or len(joined) not in (1, batch):
                return context
            return context + joined.reshape(-1, rows, heads, width).transpose(0, 2, 1, 3)

        return pipe.then("behind", of_context(add))

    return change


def _normed(value: tuple[Any, ...]) -> Change:
    """Normalise what attention gives, with or without the embeddings."""
    norm, residual = value[2], value[3]

    def change(pipe: Pipeline) -> Pipeline | None:
        added = _plus(_of_embeddings)(pipe) if residual else pipe
        if added is None or pipe.output is None:
            return None
        return added.then("behind", of_context(lambda _, context: norm(context)))

    return change


BEHIND.add("output_projection_missing", _output_missing)
BEHIND.add("output_projection_transposed", transposed_output)
BEHIND.add("output_bias_missing", without_output_bias, stage=stages.OUTPUT_BIAS)
BEHIND.add(
    "{}_added",
    lambda value: _plus(value[2]),
    meaning="the {1} added to the context: a residual connection is in the file",
    values=(
        ("embeddings", "embeddings are", _of_embeddings),
        ("value", "value is", _repeated_value),
        ("query", "query is", lambda pipe: pipe.query),
    ),
    stage=stages.RESIDUAL,
    fix="compare the output of attention, before the residual connection",
    shows="a context as wide as what is added",
    needs="batch heads rows",
    writes=True,
)
for _of, _residual in (
    ("output", False),
    ("output_and_embeddings", True),
):
    BEHIND.add(
        f"{_of}_{{}}",
        _normed,
        values=[(*kind, _residual) for kind in _KINDS],
        stage=stages.OUTPUT_NORM,
        needs="batch heads rows",
        variant_of=lambda value, of=_of: _larger(value, f"{of}_{{}}"),
    )
