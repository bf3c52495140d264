"""Mistakes with the rotary embedding: its frequencies, positions, pairs and rounding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.numerics.positions import BASE, rotation_angles
from attncli.problem.problem import Rope
from attncli.referee.formats import PRECISIONS, Array
from attncli.referee.mistakes.table import Rows, altered, given, require, without
from attncli.referee.options import shortest
from attncli.referee.run import turn, turned_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.pipeline import Pipeline

    # From the positions of rows and the offsets (B or 1, 1) to other positions.
    Move = Callable[[Array, Array], Array]

ROWS = Rows()

_SHORT = ("bfloat16", "float16")
_PAIRINGS = ("half", "interleaved")
# The bases that well-known models use.
_BASES = (
    *(100_000, 150_000, 160_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 8_000_000, 10_000_000),
)
# The least width with two pairs: a single pair has only one order.
_TWO_PAIRS = 4
_SIDES = {("key", "query"): "key", ("query", "key"): "query"}


def other_pairing(rope: Rope) -> Rope:
    """Return rope with the other pairing."""
    return rope._replace(pairing="half" if rope.pairing == "interleaved" else "interleaved")


# Another rotary embedding.


def _with_base(pipe: Pipeline, base: float) -> Pipeline:
    return altered(pipe, "rope", lambda rope: rope._replace(base=float(base), frequencies=None))


def _exponents_times(pipe: Pipeline, factor: float) -> Pipeline:
    require(given(pipe.rope).frequencies is None)
    return altered(pipe, "rope", lambda rope: rope._replace(base=rope.base**factor))


def _stated(make: Callable[[Rope], str]) -> Callable[[Problem], str]:
    return lambda problem: "" if problem.rope is None else make(problem.rope)


def _unasked(pipe: Pipeline, pairing: Any, base: float) -> Pipeline:
    # A width of 2 has one pair, whose frequency is 1 for any base.
    same = pipe.width == 2 and (pairing == "interleaved" or base != BASE)
    require(pipe.rope is None, pipe.width % 2 == 0, not same)
    return pipe.but(rope=Rope(pairing, float(base)))


ROWS.add(
    "rope_pairing",
    *(altered, "rope", other_pairing),
    option=_stated(lambda rope: f"--rope {other_pairing(rope).pairing}"),
)
ROWS.family(
    "rope_base{}",
    _with_base,
    {
        ("" if base == BASE else f"_{base}", base): base
        for base in (int(BASE), 100000, 500000, 1000000)
    },
    option="--rope-base {1}".format,
)
_EXPONENTS = {"halved": 0.5, "doubled": 2.0}
ROWS.family(
    "rope_exponents_{}",
    _exponents_times,
    _EXPONENTS,
    option=lambda name: _stated(
        lambda rope: f"--rope-base {shortest(rope.base ** _EXPONENTS[name])}"
    ),
)
ROWS.add("rope_missing", without, "rope", option="leave --rope and --rope-frequencies out")
ROWS.family(
    "rope_unasked_{}",
    _unasked,
    {pairing: (pairing, BASE) for pairing in _PAIRINGS},
    option=lambda pairing: f"--rope {pairing}",
)
ROWS.family(
    "rope_unasked_{}_{}",
    _unasked,
    [(pairing, base) for base in _BASES for pairing in _PAIRINGS],
    option=lambda pairing, base: f"--rope {pairing} --rope-base {base}",
)


# Other positions.


def _placed(pipe: Pipeline, queries: Move | None, keys: Move | None = None) -> Pipeline:
    """Move the positions of queries or keys."""
    require(pipe.rope is not None)
    first, made = pipe.offsets[:, None], {}
    for name, move in (("query_positions", queries), ("key_positions", keys)):
        if move is not None:
            own = getattr(pipe, name)
            shape = max(len(own), len(first)), own.shape[1]
            moved = np.broadcast_to(move(own, first), shape)
            if not np.array_equal(np.broadcast_to(own, shape), moved):
                made[name] = moved
    require(made)
    return pipe.but(**made)


def _new_tokens(pipe: Pipeline, move: Move) -> Pipeline:
    return _placed(pipe, move, lambda own, first: np.where(own >= first, move(own, first), own))


def _cache(pipe: Pipeline, move: Move) -> Pipeline:
    return _placed(pipe, None, lambda own, first: np.where(own < first, move(own, first), own))


def _has_cache(pipe: Pipeline) -> bool:
    """Return whether each entry has keys before its first query, and a key at that query."""
    return bool(((pipe.offsets > 0) & (pipe.offsets < pipe.shape[3])).all())


def _twice(own: Array, _: Array) -> Array:
    return 2 * own


_MOVES: dict[str, Move] = {
    "late": lambda own, _: own + 1,
    "early": lambda own, _: own - 1,
    "from_zero": lambda own, first: own - first,
    "alike": lambda own, first: first + 0 * own,
}
for _name, _move in _MOVES.items():
    ROWS.add(f"rope_new_tokens_{_name}", _new_tokens, _move, when=_has_cache)
ROWS.family("rope_query_{}", _placed, {name: _MOVES[name] for name in ("late", "early")})
ROWS.add("rope_without_offset", _placed, _MOVES["from_zero"])
ROWS.add("rope_of_first_entry", _placed, lambda own, first: own - first + first[:1])
ROWS.add("rope_cache_unrotated", _cache, lambda own, _: 0 * own, when=_has_cache)
ROWS.add("rope_cache_twice", _cache, _twice, when=_has_cache)
ROWS.add(
    "rope_new_keys_unrotated",
    *(_placed, None, lambda own, first: np.where(own < first, own, 0)),
    when=_has_cache,
)
ROWS.add("rope_twice", _placed, _twice, _twice)
ROWS.add("rope_keys_twice", _placed, None, _twice)


# Other inputs, or another direction of rotation.


def _one_side(pipe: Pipeline, side: str) -> Pipeline:
    require(pipe.rope is not None)
    return pipe.but(rope=None, **{side: getattr(turned_inputs(pipe), side)})


def _values_too(pipe: Pipeline) -> Pipeline:
    rope, value = given(pipe.rope), given(pipe.value)
    width = value.shape[3]
    require(width % 2 == 0)
    require(2 * len(rope.of_width(width)) <= width)
    return pipe.but(value=turn(value, np.arange(value.shape[2])[None, None], rope))


def _backwards(pipe: Pipeline, *sides: str) -> Pipeline:
    require(pipe.rope is not None)
    return pipe.but(**{f"{side}_positions": -getattr(pipe, f"{side}_positions") for side in sides})


ROWS.family("rope_{}_only", _one_side, ("query", "key"))
ROWS.add("rope_on_values", _values_too)
ROWS.add("rope_backwards", _backwards, "query", "key")
ROWS.family("rope_{}_backwards", _backwards, _SIDES)


# Another pairing or order of components.


def _permuted(pipe: Pipeline, side: str) -> Pipeline:
    rope, width = given(pipe.rope), pipe.width
    require(width >= _TWO_PAIRS, 2 * len(rope.of_width(width)) == width)
    order = np.arange(width).reshape((-1, 2) if rope.pairing == "half" else (2, -1)).T.ravel()
    return pipe.but(**{side: getattr(pipe, side)[..., order]})


def _one_otherwise(pipe: Pipeline, side: str) -> Pipeline:
    require(pipe.rope is not None)
    turns: dict[str, Any] = {"key": turn, "query": turn}
    turns[side] = lambda rows, at, rope: turn(rows, at, other_pairing(rope))
    return pipe.but(turn=turns["query"], turn_key=turns["key"])


ROWS.family("rope_{}_permuted", _permuted, _SIDES)
ROWS.family("rope_{}_other_pairing", _one_otherwise, _SIDES)


# Other angles, partners or widths.


def _turned_by(pipe: Pipeline, turn_: Callable[[Array, Array, Rope], Array]) -> Pipeline:
    require(given(pipe.rope).frequencies is None)
    return pipe.but(turn=turn_)


def _together(one: Array, other: Array, rope: Rope) -> Array:
    """Return rows from the first and the second components of all pairs."""
    parts = np.broadcast_arrays(one, other)
    if rope.pairing == "half":
        return np.concatenate(parts, axis=-1)
    return np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1)


def _partners(rows: Array, rope: Rope, sign: int) -> Array:
    """Return the partner of each component; the partners of first components get this sign."""
    if rope.pairing == "half":
        first, second = np.split(rows, 2, axis=-1)
    else:
        first, second = rows[..., ::2], rows[..., 1::2]
    return _together(sign * second, first, rope)


def _by_table(
    rows: Array, rope: Rope, cosine: Array, sine: Array, *, sign: int = -1, laid: Rope | None = None
) -> Array:
    """Rotate by tables of cosines and sines; ``laid``: they are laid out for another pairing."""
    cosine, sine = (_together(each, each, laid or rope) for each in (cosine, sine))
    return np.asarray(rows * cosine + _partners(rows, rope, sign) * sine)


def _turned(rows: Array, positions: Array, rope: Rope, **otherwise: Any) -> Array:
    angles = positions[..., None] * rope.of_width(rows.shape[-1])
    return _by_table(rows, rope, np.cos(angles), np.sin(angles), **otherwise)


def _across_heads(rows: Array, positions: Array, rope: Rope) -> Array:
    batch, heads, length, width = rows.shape
    packed = rows.transpose(0, 2, 1, 3).reshape(batch, 1, length, heads * width)
    return turn(packed, positions, rope).reshape(batch, length, heads, width).transpose(0, 2, 1, 3)


def _along_heads(rows: Array, _: Array, rope: Rope) -> Array:
    heads = np.arange(rows.shape[1])[None, None]
    return turn(rows.swapaxes(1, 2), heads, rope).swapaxes(1, 2)


def _first(pipe: Pipeline, share: int) -> Pipeline:
    """Rotate only the first of ``share`` equal parts of the width."""
    require(pipe.width % (2 * share) == 0)

    def turn_(rows: Array, positions: Array, rope: Rope) -> Array:
        frequencies = rope.of_width(rows.shape[-1] // share)
        return turn(rows, positions, rope._replace(frequencies=tuple(frequencies.tolist())))

    return _turned_by(pipe, turn_)


# Rounding in the rotary embedding.


def _rounded(pipe: Pipeline, what: str, fmt: str) -> Pipeline:
    """Round frequencies, positions or angles to 16 bits."""

    def stored(name: str, array: Array) -> Array:
        return PRECISIONS[fmt].stored(array) if name in what else array

    def turn_(rows: Array, positions: Array, rope: Rope) -> Array:
        frequencies = stored("frequencies", rope.of_width(rows.shape[-1]))
        places = stored("positions", positions.astype(np.float64))
        angles = stored("angles", places[..., None] * frequencies)
        return _by_table(rows, rope, np.cos(angles), np.sin(angles))

    return _turned_by(pipe, turn_)


def _table_in(pipe: Pipeline, fmt: str) -> Pipeline:
    def turn_(rows: Array, positions: Array, rope: Rope) -> Array:
        angles = _in_float32(rows, positions, rope)
        cosine, sine = (PRECISIONS[fmt].stored(f(angles)) for f in (np.cos, np.sin))
        return _by_table(rows, rope, cosine, sine)

    return _turned_by(pipe, turn_)


def _in_float32(rows: Array, positions: Array, rope: Rope) -> Array:
    """Return the angles in float32, as models compute them: positions times 1 / base^(2p/D).

    Each power is rounded correctly, like nearly all of PyTorch's; NumPy's are not.
    """
    width = rows.shape[-1]
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = np.float32(1) / (rope.base ** exponents.astype(np.float64)).astype(np.float32)
    wide = frequencies.astype(np.float64)
    return rotation_angles(positions, wide, dtype=np.float32).astype(np.float64)


_ROUNDED = ("frequencies", "positions", "angles")
ROWS.family("rope_{}_in_{}", _rounded, [(what, fmt) for fmt in _SHORT for what in _ROUNDED])
ROWS.family(
    "rope_positions_frequencies_and_angles_in_{}",
    _rounded,
    {fmt: (" ".join(_ROUNDED), fmt) for fmt in _SHORT},
)
ROWS.family("rope_cosines_and_sines_in_{}", _table_in, _SHORT)
ROWS.add(
    "rope_angles_misplaced",
    *(_turned_by, lambda rows, at, rope: _turned(rows, at, rope, laid=other_pairing(rope))),
    when=lambda pipe: pipe.width > 2,
)
ROWS.add("rope_sign_lost", _turned_by, partial(_turned, sign=1))
for _name, _heads in (("across", _across_heads), ("along", _along_heads)):
    ROWS.add(f"rope_{_name}_heads", _turned_by, _heads, when=lambda pipe: pipe.query.shape[1] > 1)
ROWS.family("rope_first_{}", _first, {"half": 2, "quarter": 4})
