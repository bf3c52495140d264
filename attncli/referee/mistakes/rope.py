"""Mistakes with the rotary embedding: whether, where, how fast and how pairs are turned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import BASE, rope_frequencies, rotation_angles
from attncli.problem.problem import Rope
from attncli.referee.formats import PRECISIONS, Array, Ints, Precision
from attncli.referee.mistakes import table as stages
from attncli.referee.mistakes.table import Change, Rows
from attncli.referee.options import based, shortest, without_rope
from attncli.referee.pipeline import Pipeline, turn, turned_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ROPE"]

_SHORT = ("bfloat16", "float16")
# Of models whose rotation somebody may forget to state; the paper's base first.
_BASES = (
    *(10_000, 100_000, 150_000, 160_000, 500_000),
    *(1_000_000, 2_000_000, 5_000_000, 8_000_000, 10_000_000),
)
# Of two components there is only one order of pairs.
_TWO_PAIRS = 4
_SIDES = (("key", "query"), ("query", "key"))

ROPE = Rows(stages.ROPE)


def other_pairing(rope: Rope) -> Rope:
    """Return the rotary embedding with the pairing that it has not."""
    return rope._replace(pairing="half" if rope.pairing == "interleaved" else "interleaved")


def _as(change: Callable[[Rope, Pipeline], Rope | None]) -> Change:
    """Return the change to another rotary embedding, or to none."""

    def changed(pipe: Pipeline) -> Pipeline | None:
        if pipe.rope is None:
            return None
        new = change(pipe.rope, pipe)
        return None if new == pipe.rope else pipe.but(rope=new)

    return changed


# Which rotary embedding.


def _unasked(value: tuple[str, str, int]) -> Change:
    pairing, _, base = value

    def change(pipe: Pipeline) -> Pipeline | None:
        # Two components are one pair, however they are paired, and turn by 1 with any base.
        same = pipe.width == 2 and (pairing == "interleaved" or base != BASE)
        if pipe.rope is not None or pipe.width % 2 or same:
            return None
        return pipe.but(rope=Rope(pairing, float(base)))  # type: ignore[arg-type]

    return change


def _llama_3(factor: int) -> Change:
    """Scale the frequencies as Llama 3.1 does: the slow ones by a factor, others by a part of it.

    ``rope_type: llama3``, with low_freq_factor 1, high_freq_factor 4 and 8192 positions.
    """

    def change(rope: Rope, pipe: Pipeline) -> Rope:
        if rope.frequencies is not None:
            return rope
        frequencies = rope.of_width(pipe.width)
        part = np.clip((8192 * frequencies / (2 * math.pi) - 1) / 3, 0, 1)
        scaled = (1 - part) * frequencies / factor + part * frequencies
        return rope._replace(frequencies=tuple(scaled.tolist()))

    return _as(change)


def _of_whole_width(rope: Rope, pipe: Pipeline) -> Rope:
    """Turn a part of the components as fast as if all of them were turned."""
    if rope.frequencies is None or 2 * len(rope.frequencies) >= pipe.width:
        return rope
    whole = rope_frequencies(pipe.width, BASE)[: len(rope.frequencies)]
    return rope._replace(frequencies=tuple(whole.tolist()))


ROPE.add(
    "rope_pairing",
    _as(lambda rope, _: other_pairing(rope)),
    option=lambda p: "" if p.rope is None else f"--rope {other_pairing(p.rope).pairing}",
    stage=stages.ROPE_PAIRING,
)
ROPE.add(
    "rope_base{}",
    lambda value: _as(lambda rope, _: rope._replace(base=float(value[1]), frequencies=None)),
    values=[
        ("" if base == BASE else f"_{base}", base) for base in (10_000, 100_000, 500_000, 1_000_000)
    ],
    option=lambda value: based(value[1]),
    stage=stages.ROPE_FREQUENCIES,
)
ROPE.add("rope_frequencies_of_whole_width", _as(_of_whole_width), stage=stages.ROPE_FREQUENCIES)
ROPE.add("rope_scaled_as_llama_3_{}", _llama_3, values=(8, 32), stage=stages.ROPE_FREQUENCIES)
ROPE.add(
    "rope_exponents_{}",
    lambda value: _as(
        lambda rope, _: rope if rope.frequencies else rope._replace(base=rope.base ** value[2])
    ),
    values=(("halved", "−p/D", 0.5), ("doubled", "−4p/D", 2.0)),
    option=lambda value: (
        lambda problem: (
            "" if problem.rope is None else f"--rope-base {shortest(problem.rope.base ** value[2])}"
        )
    ),
    stage=stages.ROPE_FREQUENCIES,
)
ROPE.add("rope_missing", _as(lambda _, __: None), option=without_rope)
for _usual in (True, False):
    ROPE.add(
        "rope_unasked_{}{}",
        _unasked,
        values=[
            (pairing, "" if base == BASE else f"_{base}", base)
            for base in _BASES
            for pairing in ("half", "interleaved")
            if (base == BASE) is _usual
        ],
        option=lambda value: (
            f"--rope {value[0]}" + (f" --rope-base {value[2]}" if value[1] else "")
        ),
        stage=(stages.ROPE if _usual else stages.ROPE_UNASKED),
    )


# Where rows stand.


def _placed(
    queries: Callable[[Array, Array], Array] | None, keys: Callable[[Array, Array], Array] | None
) -> Change:
    """Return the change of positions; both are given those of rows and the offsets (B or 1, 1)."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.rope is None:
            return None
        first, made = pipe.offsets[:, None], {}
        for name, move in (("query_positions", queries), ("key_positions", keys)):
            own = getattr(pipe, name)
            moved = own if move is None else np.broadcast_to(move(own, first), _grown(own, first))
            if not np.array_equal(np.broadcast_to(own, moved.shape), moved):
                made[name] = moved
        return pipe.but(**made) if made else None

    return change


def _grown(own: Array, first: Array) -> tuple[int, int]:
    return max(len(own), len(first)), own.shape[1]


def _new_tokens(move: Callable[[Array, Array], Array]) -> Change:
    """Return the change that turns new queries, and keys behind a cache, elsewhere."""
    moved = _placed(move, lambda own, first: np.where(own >= first, move(own, first), own))
    return lambda pipe: moved(pipe) if _has_cache(pipe) else None


def _has_cache(pipe: Pipeline) -> bool:
    """Return whether queries stand behind some of the keys of each entry, but not of all."""
    return bool(((pipe.offsets > 0) & (pipe.offsets < pipe.shape[3])).all())


def _cache_twice(own: Array, first: Array) -> Array:
    return np.where(own < first, 2 * own, own)


def _unrotated(*, cached: bool) -> Change:
    """Return the change that turns no key of a cache, or none of those that came after it."""
    left = _placed(None, lambda own, first: np.where((own < first) == cached, 0, own))
    return lambda pipe: left(pipe) if _has_cache(pipe) else None


def _of_first_entry(own: Array, first: Array) -> Array:
    return np.asarray(own - first + first[:1])


ROPE.add(
    "rope_without_offset", _placed(lambda own, first: own - first, None), stage=stages.ROPE_PLACE
)
ROPE.add(
    "rope_query_{}",
    lambda value: _placed(lambda own, _: own + value[1], None),
    values=(("late", 1), ("early", -1)),
    stage=stages.ROPE_PLACE,
)
ROPE.add(
    "rope_{}_unrotated",
    lambda value: _unrotated(cached=value[0] == "cache"),
    values=(
        ("cache", "the keys before the first query", ""),
        (
            "new_keys",
            "the keys from the first query on",
            ", or one new key is turned by the angle of position 0",
        ),
    ),
    stage=stages.ROPE_PLACE,
)
_BEHIND = (
    "rotate the new queries and keys by their positions behind the cache, n, n + 1, …, and keys "
)
_BEHIND += "of the cache only once"
ROPE.add(
    "rope_new_tokens_{}",
    lambda value: _new_tokens(value[2]),
    meaning="{1}",
    values=(
        (
            "from_zero",
            "the rotary embedding counts the new queries and keys from 0, not behind the cache",
            lambda own, first: own - first,
        ),
        (
            "late",
            "the rotary embedding takes the new queries and keys one position too late",
            lambda own, _: own + 1,
        ),
        (
            "early",
            "the rotary embedding takes the new queries and keys one position too early",
            lambda own, _: own - 1,
        ),
        (
            "alike",
            "all new queries and keys are rotated by the position of the first of them",
            lambda own, first: np.broadcast_to(first, np.broadcast_shapes(own.shape, first.shape)),
        ),
    ),
    fix=_BEHIND,
    shows="new queries after a cache of keys",
    stage=stages.NEW_POSITIONS,
)
ROPE.add(
    "rope_cache_twice",
    lambda pipe: _placed(None, _cache_twice)(pipe) if _has_cache(pipe) else None,
    stage=stages.NEW_POSITIONS,
)
ROPE.add("rope_of_first_entry", _placed(_of_first_entry, None), stage=stages.NEW_POSITIONS)
ROPE.add("rope_twice", _placed(lambda own, _: 2 * own, lambda own, _: 2 * own))
ROPE.add("rope_keys_twice", _placed(None, lambda own, _: 2 * own))


# What is rotated, and in which direction.


def _one_side(side: str) -> Change:
    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.rope is None:
            return None
        return pipe.but(rope=None, **{side: getattr(turned_inputs(pipe), side)})

    return change


def _values_too(pipe: Pipeline) -> Pipeline | None:
    rope, value = pipe.rope, pipe.value
    if rope is None or value is None or value.shape[3] % 2:
        return None
    if 2 * len(rope.of_width(value.shape[3])) > value.shape[3]:
        return None
    return pipe.but(value=turn(value, np.arange(value.shape[2])[None, None], rope))


def _signed(sides: tuple[str, ...]) -> Change:
    """Return the change that turns some sides by negative angles."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.rope is None:
            return None
        return pipe.but(
            **{f"{side}_positions": -getattr(pipe, f"{side}_positions") for side in sides}
        )

    return change


ROPE.add("rope_{}_only", _one_side, values=("query", "key"))
ROPE.add("rope_on_values", _values_too)
ROPE.add("rope_backwards", _signed(("query", "key")))
ROPE.add("rope_{}_backwards", lambda sides: _signed(sides[:1]), values=_SIDES)


# How components are paired and ordered.


def _permuted(side: str) -> Change:
    """Order the components of one side as the other pairing has them."""

    def change(pipe: Pipeline) -> Pipeline | None:
        rope, width = pipe.rope, pipe.width
        if rope is None or width < _TWO_PAIRS or 2 * len(rope.of_width(width)) != width:
            return None
        order = np.arange(width).reshape((-1, 2) if rope.pairing == "half" else (2, -1)).T.ravel()
        return pipe.but(**{side: getattr(pipe, side)[..., order]})

    return change


def _permuted_otherwise(order: Callable[[Ints], Ints]) -> Change:
    """Use the other pairing, and rows in another order than this one needs."""

    def change(pipe: Pipeline) -> Pipeline | None:
        rope, width = pipe.rope, pipe.width
        if rope is None or width <= _TWO_PAIRS or 2 * len(rope.of_width(width)) != width:
            return None
        own = order(
            np.arange(width).reshape((2, -1) if rope.pairing == "half" else (-1, 2)).T.ravel()
        )
        return pipe.but(
            query=pipe.query[..., own], key=pipe.key[..., own], rope=other_pairing(rope)
        )

    return change


def _one_otherwise(side: str) -> Change:
    """Turn one side by the other pairing."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.rope is None:
            return None
        if side == "key":
            return pipe.but(turn_key=lambda rows, at, rope: turn(rows, at, other_pairing(rope)))
        return pipe.but(
            turn_key=turn, turn=lambda rows, at, rope: turn(rows, at, other_pairing(rope))
        )

    return change


ROPE.add("rope_{}_permuted", lambda sides: _permuted(sides[0]), values=_SIDES)
ROPE.add(
    "rope_permuted_{}",
    lambda value: _permuted_otherwise(value[2]),
    values=(
        ("twice", "twice", lambda right: right[right]),
        ("backwards", "in the wrong direction", np.argsort),
    ),
    stage=stages.ROPE_ORDER,
)
ROPE.add(
    "rope_{}_other_pairing",
    lambda sides: _one_otherwise(sides[0]),
    values=_SIDES,
    stage=stages.ROPE_ORDER,
)


# How a pair is turned: its angles, its partner, the width.


def _of_a_base(rope: Rope, _: Pipeline) -> bool:
    """Return whether no frequencies are stated, which may turn only a part of the components."""
    return rope.frequencies is None


def _turned_by(
    turn_: Callable[[Array, Array, Rope], Array],
    sense: Callable[[Rope, Pipeline], bool] = _of_a_base,
    *,
    codes: bool = False,
) -> Change:
    """Return the change that turns query and key in another way."""

    def change(pipe: Pipeline) -> Pipeline | None:
        if pipe.rope is None or not sense(pipe.rope, pipe):
            return None
        return pipe.but(turn=turn_, codes=codes)

    return change


def _in_halves(one: Array, other: Array) -> Array:
    return np.concatenate(np.broadcast_arrays(one, other), axis=-1)


def _in_turns(one: Array, other: Array) -> Array:
    return np.stack(np.broadcast_arrays(one, other), axis=-1).reshape(*one.shape[:-1], -1)


def _spread(rope: Rope) -> Callable[[Array, Array], Array]:
    return _in_halves if rope.pairing == "half" else _in_turns


def _partners(rows: Array, rope: Rope, sign: int) -> Array:
    """Return the other component of each pair, that of the first one with a sign."""
    if rope.pairing == "half":
        first, second = np.split(rows, 2, axis=-1)
        return _in_halves(sign * second, first)
    return _in_turns(sign * rows[..., 1::2], rows[..., ::2])


def _angles(rows: Array, positions: Array, rope: Rope) -> Array:
    return np.asarray(positions[..., None] * rope.of_width(rows.shape[-1]))


def _by_table(rows: Array, rope: Rope, cosine: Array, sine: Array, sign: int = -1) -> Array:
    spread = _spread(rope)
    return np.asarray(
        rows * spread(cosine, cosine) + _partners(rows, rope, sign) * spread(sine, sine)
    )


def _other_order(rows: Array, positions: Array, rope: Rope) -> Array:
    """Pair as asked, but lay the angles out for the other pairing."""
    angles = _angles(rows, positions, rope)
    angles = _spread(other_pairing(rope))(angles, angles)
    return np.asarray(rows * np.cos(angles) + _partners(rows, rope, -1) * np.sin(angles))


def _other_partners(rows: Array, positions: Array, rope: Rope) -> Array:
    """Lay the angles out as asked, but pair as the other pairing does."""
    return _other_order(rows, positions, other_pairing(rope))


def _sign_lost(rows: Array, positions: Array, rope: Rope) -> Array:
    angles = _angles(rows, positions, rope)
    return _by_table(rows, rope, np.cos(angles), np.sin(angles), sign=1)


def _across_heads(rows: Array, positions: Array, rope: Rope) -> Array:
    batch, heads, length, width = rows.shape
    packed = rows.transpose(0, 2, 1, 3).reshape(batch, 1, length, heads * width)
    return turn(packed, positions, rope).reshape(batch, length, heads, width).transpose(0, 2, 1, 3)


def _along_heads(rows: Array, _: Array, rope: Rope) -> Array:
    heads = np.arange(rows.shape[1])[None, None]
    return turn(rows.swapaxes(1, 2), heads, rope).swapaxes(1, 2)


def _last(rows: Array, positions: Array, rope: Rope) -> Array:
    count = 2 * len(rope.of_width(rows.shape[-1]))
    left, part = np.split(rows, [-count], axis=-1)
    return np.concatenate([left, turn(part, positions, rope)], axis=-1)


def _first(share: int) -> Callable[[Array, Array, Rope], Array]:
    """Turn only the first components, one in ``share`` of them."""

    def turn_(rows: Array, positions: Array, rope: Rope) -> Array:
        frequencies = rope.of_width(rows.shape[-1] // share)
        return turn(rows, positions, rope._replace(frequencies=tuple(frequencies.tolist())))

    return turn_


def _rounded(what: str, precision: Precision) -> Callable[[Array, Array, Rope], Array]:
    """Rotate by frequencies, positions or angles of a 16-bit format."""

    def turn_(rows: Array, positions: Array, rope: Rope) -> Array:
        def stored(name: str, array: Array) -> Array:
            return precision.stored(array) if name in what else array

        frequencies = stored("frequencies", rope.of_width(rows.shape[-1]))
        places = stored("positions", positions.astype(np.float64))
        angles = stored("angles", places[..., None] * frequencies)
        return _by_table(rows, rope, np.cos(angles), np.sin(angles))

    return turn_


def _table(angles: Any, precision: Precision) -> Callable[[Array, Array, Rope], Array]:
    """Rotate by cosines and sines of a 16-bit format."""

    def turn_(rows: Array, positions: Array, rope: Rope) -> Array:
        own = angles(positions, rows.shape[-1], rope.base)
        cosine, sine = (precision.stored(function(own)) for function in (np.cos, np.sin))
        return _by_table(rows, rope, cosine, sine)

    return turn_


def _in_float32(positions: Array, width: int, base: float) -> Array:
    """Return the angles as models compute them: positions times 1 / base^(2p/D), in float32.

    Each power is rounded correctly, as nearly all of PyTorch's are; those of NumPy are not.
    """
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = np.float32(1) / (base ** exponents.astype(np.float64)).astype(np.float32)
    wide = frequencies.astype(np.float64)
    return rotation_angles(positions, wide, dtype=np.float32).astype(np.float64)


def _in_float64(positions: Array, width: int, base: float) -> Array:
    return np.asarray(positions[..., None] * rope_frequencies(width, base))


ROPE.add(
    "rope_{}_in_{}",
    lambda value: _turned_by(_rounded(value[0], PRECISIONS[value[1]])),
    values=[(what, fmt) for fmt in _SHORT for what in ("frequencies", "positions", "angles")],
)
ROPE.add(
    "rope_positions_frequencies_and_angles_in_{}",
    lambda fmt: _turned_by(_rounded("positions frequencies angles", PRECISIONS[fmt])),
    values=_SHORT,
    stage=stages.ROPE_TABLE,
    variant_of=lambda fmt: tuple(
        f"rope_{what}_in_{fmt}" for what in ("frequencies", "positions", "angles")
    ),
)
ROPE.add(
    "rope_cosines_and_sines_in_{}",
    lambda fmt: _turned_by(_table(_in_float32, PRECISIONS[fmt])),
    values=_SHORT,
)
# Of angles with other last bits, a few cosines in a thousand are rounded the other way.
ROPE.add(
    "rope_cosines_and_sines_in_{}_of_other_angles",
    lambda fmt: _turned_by(_table(_in_float64, PRECISIONS[fmt]), codes=True),
    values=_SHORT,
    stage=stages.ROPE_TABLE,
    variant_of=lambda fmt: (f"rope_cosines_and_sines_in_{fmt}",),
)


def _several_pairs(rope: Rope, pipe: Pipeline) -> bool:
    return rope.frequencies is None and pipe.width > 2


ROPE.add("rope_angles_misplaced", _turned_by(_other_order, _several_pairs))
ROPE.add(
    "rope_partners_misplaced", _turned_by(_other_partners, _several_pairs), stage=stages.ROPE_ORDER
)
ROPE.add("rope_sign_lost", _turned_by(_sign_lost))
ROPE.add(
    "rope_across_heads",
    _turned_by(
        _across_heads, lambda rope, pipe: rope.frequencies is None and pipe.query.shape[1] > 1
    ),
    needs="heads",
)
ROPE.add(
    "rope_along_heads",
    _turned_by(_along_heads, lambda _, pipe: pipe.query.shape[1] > 1),
    needs="heads",
    variant_of=("rope_missing",),
)
ROPE.add(
    "rope_of_last_components",
    _turned_by(_last, lambda rope, pipe: 2 * len(rope.of_width(pipe.width)) < pipe.width),
)
ROPE.add(
    "rope_first_{}",
    lambda value: _turned_by(
        _first(value[1]),
        lambda rope, pipe: rope.frequencies is None and pipe.width % (2 * value[1]) == 0,
    ),
    values=(("half", 2), ("quarter", 4)),
)
