"""Mistakes in how a rotary embedding turns a pair: its angles, its partner, its width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.numerics.positions import rope_frequencies, rotate, rotation_angles
from attncli.referee import topics
from attncli.referee.catalogue.helpers import other_pairing
from attncli.referee.convention import Apply, Convention
from attncli.referee.recipe import Recipe, vary
from attncli.referee.replacing import replace
from attncli.referee.rounding import PRECISIONS, Precision

if TYPE_CHECKING:
    from attncli.problem.problem import Rope

__all__ = ["ROPE_ROTATION"]

Array = npt.NDArray[Any]
# Rows (H, S, D), the position of each, and the rotary embedding.
Turn = Callable[[Array, Array, "Rope"], Array]
Rounded = Literal["frequencies", "positions", "angles"]
# Whether a turn says anything of a rotary embedding of so many heads, of such a width.
Sense = Callable[["Rope", int, int], bool]
_SHORT = ("bfloat16", "float16")


def _of_a_base(rope: Rope, _: int, __: int) -> bool:
    """Return whether no frequencies are stated, which may turn only a part of the components."""
    return rope.frequencies is None


def _turned_by(turn: Turn, sense: Sense = _of_a_base, *, codes: bool = False) -> Apply:
    """Make an `apply` that turns query and key in another way."""

    def apply(recipe: Recipe) -> Recipe | None:
        problem = recipe.problem
        rope = problem.rope
        heads, width = problem.query.shape[1], problem.query.shape[3]
        if rope is None or not sense(rope, heads, width):
            return None
        batch, _, queries, keys = problem.shape
        query, key = widen(problem.query, np.float64), widen(problem.key, np.float64)
        places = [np.arange(queries) + problem.visible.offset(entry) for entry in range(batch)]
        turned = [turn(query[entry], place, rope) for entry, place in enumerate(places)]
        turned_keys = [turn(each, np.arange(keys), rope) for each in key]
        made = vary(recipe, rope=None, query=np.stack(turned), key=np.stack(turned_keys))
        return replace(made, codes=codes)

    return apply


def _in_halves(one: Array, other: Array) -> Array:
    joined: Array = np.concatenate([one, other], axis=-1)
    return joined


def _in_turns(one: Array, other: Array) -> Array:
    return np.stack([one, other], axis=-1).reshape(*one.shape[:-1], -1)


def _partners(rows: Array, rope: Rope, sign: int) -> Array:
    """Return the other component of each pair, that of the first one with a sign."""
    if rope.pairing == "half":
        first, second = np.split(rows, 2, axis=-1)
        return _in_halves(sign * second, first)
    return _in_turns(sign * rows[..., 1::2], rows[..., ::2])


def _other_order(rows: Array, positions: Array, rope: Rope) -> Array:
    """Pair as asked, but lay the angles out for the other pairing."""
    angles = rotation_angles(positions, rope.of_width(rows.shape[-1]))
    angles = (_in_turns if rope.pairing == "half" else _in_halves)(angles, angles)
    turned: Array = rows * np.cos(angles) + _partners(rows, rope, -1) * np.sin(angles)
    return turned


def _other_partners(rows: Array, positions: Array, rope: Rope) -> Array:
    """Lay the angles out as asked, but pair as the other pairing does."""
    return _other_order(rows, positions, other_pairing(rope))


def _sign_lost(rows: Array, positions: Array, rope: Rope) -> Array:
    angles = rotation_angles(positions, rope.of_width(rows.shape[-1]))
    angles = (_in_halves if rope.pairing == "half" else _in_turns)(angles, angles)
    turned: Array = rows * np.cos(angles) + _partners(rows, rope, 1) * np.sin(angles)
    return turned


def _across_heads(rows: Array, positions: Array, rope: Rope) -> Array:
    heads, length, width = rows.shape
    packed = rows.transpose(1, 0, 2).reshape(length, heads * width)
    frequencies = rope.of_width(heads * width)
    turned = rotate(packed, positions, pairing=rope.pairing, frequencies=frequencies)
    return turned.reshape(length, heads, width).transpose(1, 0, 2)


def _first(share: int) -> Turn:
    """Make a turn of only the first components, one in ``share`` of them."""

    def turn(rows: Array, positions: Array, rope: Rope) -> Array:
        width = rows.shape[-1] // share
        return rotate(rows, positions, pairing=rope.pairing, frequencies=rope.of_width(width))

    return turn


def _along_heads(rows: Array, _: Array, rope: Rope) -> Array:
    heads, _, width = rows.shape
    frequencies = rope.of_width(width)
    by_token = rows.swapaxes(0, 1)
    turned = rotate(by_token, np.arange(heads), pairing=rope.pairing, frequencies=frequencies)
    return turned.swapaxes(0, 1)


def _last(rows: Array, positions: Array, rope: Rope) -> Array:
    frequencies = rope.of_width(rows.shape[-1])
    left, part = np.split(rows, [-2 * len(frequencies)], axis=-1)
    turned = rotate(part, positions, pairing=rope.pairing, frequencies=frequencies)
    return _in_halves(left, turned)


def _several_pairs(rope: Rope, _: int, width: int) -> bool:
    return rope.frequencies is None and width > 2


def _heads_of_a_base(rope: Rope, heads: int, _: int) -> bool:
    return rope.frequencies is None and heads > 1


def _several_heads(_: Rope, heads: int, __: int) -> bool:
    return heads > 1


def _cut_evenly(share: int) -> Sense:
    return lambda rope, _, width: rope.frequencies is None and width % (2 * share) == 0


def _in_part(rope: Rope, _: int, width: int) -> bool:
    return 2 * len(rope.of_width(width)) < width


def _rounded(what: Rounded, precision: Precision) -> Turn:
    """Rotate by frequencies, positions or angles of a 16-bit format."""

    def turn(rows: Array, positions: Array, rope: Rope) -> Array:
        def stored(name: Rounded, array: Array) -> Array:
            if name != what:
                return array
            with np.errstate(over="ignore"):  # far positions are beyond float16: NaN, as there
                return precision.rounded(array).astype(np.float64)

        frequencies = stored("frequencies", rope.of_width(rows.shape[-1]))
        places = stored("positions", positions.astype(np.float64))
        angles = stored("angles", np.multiply.outer(places, frequencies))
        with np.errstate(invalid="ignore"):
            return _by_table(rows, rope, np.cos(angles), np.sin(angles))

    return turn


def _with_table(angles: Callable[[Array, int, float], Array], precision: Precision) -> Turn:
    """Rotate by cosines and sines of a 16-bit format."""

    def turn(rows: Array, positions: Array, rope: Rope) -> Array:
        own = angles(positions, rows.shape[-1], rope.base)
        cosine, sine = (precision.rounded(f(own)).astype(np.float64) for f in (np.cos, np.sin))
        return _by_table(rows, rope, cosine, sine)

    return turn


def _by_table(rows: Array, rope: Rope, cosine: Array, sine: Array) -> Array:
    spread = _in_halves if rope.pairing == "half" else _in_turns
    partners = _partners(rows, rope, -1)
    return np.asarray(rows * spread(cosine, cosine) + partners * spread(sine, sine))


def _in_float32(positions: Array, width: int, base: float) -> Array:
    """Return the angles as models compute them: positions times 1 / base^(2p/D), in float32.

    Each power is rounded correctly, as nearly all of PyTorch's are; those of NumPy are not.
    """
    exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
    frequencies = np.float32(1) / (base ** exponents.astype(np.float64)).astype(np.float32)
    wide = frequencies.astype(np.float64)
    return rotation_angles(positions, wide, dtype=np.float32).astype(np.float64)


def _in_float64(positions: Array, width: int, base: float) -> Array:
    return rotation_angles(positions, rope_frequencies(width, base))


_turn = partial(Convention, topic=topics.ROPE, shows="more than one position")
_round = partial(
    _turn,
    fix="compute positions, frequencies and angles in float32, and round what is rotated",
)


ROPE_ROTATION = (
    *(
        _round(
            f"rope_{what}_in_{name}",
            f"the {what} of the rotary embedding are rounded to {name}",
            _turned_by(_rounded(what, PRECISIONS[name])),
            shows="positions in the hundreds" if what == "positions" else "more than one position",
        )
        for name in _SHORT
        for what in get_args(Rounded)
    ),
    *(
        _round(
            f"rope_cosines_and_sines_in_{name}",
            f"the cosines and sines of the rotary embedding are rounded to {name}",
            _turned_by(_with_table(_in_float32, PRECISIONS[name])),
        )
        for name in _SHORT
    ),
    # Of angles with other last bits, a few cosines in a thousand are rounded the other way.
    *(
        _round(
            f"rope_cosines_and_sines_in_{name}_of_other_angles",
            f"the cosines and sines of the rotary embedding are rounded to {name}, of angles in "
            "float64, or in float32 by other steps than position times 1 / base^(2p/D)",
            _turned_by(_with_table(_in_float64, PRECISIONS[name]), codes=True),
            topic=topics.ROPE_TABLE,
            variant_of=(f"rope_cosines_and_sines_in_{name}",),
        )
        for name in _SHORT
    ),
    _turn(
        "rope_angles_misplaced",
        "the angles of the rotary embedding are laid out for the other pairing",
        _turned_by(_other_order, _several_pairs),
        fix="repeat the angles as the pairs lie: (a, b, a, b) for half, (a, a, b, b) for "
        "interleaved",
        shows="a width above 2",
    ),
    _turn(
        "rope_partners_misplaced",
        "the rotary embedding pairs components by the other pairing, and lays the angles out for "
        "the right one",
        _turned_by(_other_partners, _several_pairs),
        fix="take the partners of the pairing that the angles are laid out for: rotate_half for "
        "(a, b, a, b), rotate_every_two for (a, a, b, b)",
        shows="a width above 2",
        topic=topics.ROPE_ORDER,
    ),
    _turn(
        "rope_sign_lost",
        "the rotary embedding adds the sine to both components of a pair, instead of subtracting "
        "it from the first",
        _turned_by(_sign_lost),
        fix="the first component becomes x₁ cos − x₂ sin, the second x₂ cos + x₁ sin",
    ),
    _turn(
        "rope_across_heads",
        "the rotary embedding turns the heads together, as one row of H·D components",
        _turned_by(_across_heads, _heads_of_a_base),
        fix="cut the heads first, and turn the D components of each with the same D/2 frequencies",
        shows="more than one head",
        needs=frozenset({"heads"}),
    ),
    _turn(
        "rope_along_heads",
        "the rotary embedding counts heads instead of tokens: head h is rotated by the position h",
        _turned_by(_along_heads, _several_heads),
        fix="rotate along the axis of the tokens: the angles are (L, 1, D/2) beside (B, L, H, D), "
        "and (L, D/2) beside (B, H, L, D)",
        shows="fewer key heads than query heads",
        needs=frozenset({"heads"}),
        variant_of=("rope_missing",),
    ),
    _turn(
        "rope_of_last_components",
        "the rotary embedding turns the last components of each row, and the first stay as they "
        "are, which should be turned",
        _turned_by(_last, _in_part),
        fix="turn the first components; or give check rows whose turned components stand first, "
        "not last as in [nope, pe]",
        shows="a rotary embedding of a part of the components",
    ),
    *(
        _turn(
            f"rope_first_{name}",
            f"the rotary embedding turns only the first {name} of the components",
            _turned_by(_first(share), _cut_evenly(share)),
            fix="turn all of the components",
        )
        for name, share in (("half", 2), ("quarter", 4))
    ),
)
