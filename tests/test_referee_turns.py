"""Mistakes in how a rotary embedding turns a pair, each written as somebody might write it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain


def table(length, width, start, base=10000.0, exponent=2):
    """Return the angles of D/2 pairs, (L, D/2)."""
    pairs = np.arange(width // 2)
    return np.outer(start + np.arange(length), base ** (-exponent * pairs / width))


def rotate_half(x):
    return np.concatenate([-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]], -1)


def rotate_every_two(x):
    return np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)


def by_halves(x, start, angles=None):
    """Rotate as Transformers does: x cos + rotate_half(x) sin."""
    angles = table(*x.shape[-2:], start) if angles is None else angles
    both = np.concatenate([angles, angles], -1)
    return x * np.cos(both) + rotate_half(x) * np.sin(both)


def by_twos(x, start, angles=None):
    """Rotate as GPT-J does: x cos + rotate_every_two(x) sin."""
    angles = table(*x.shape[-2:], start) if angles is None else angles
    both = np.repeat(angles, 2, -1)
    return x * np.cos(both) + rotate_every_two(x) * np.sin(both)


RIGHT = {"half": by_halves, "interleaved": by_twos}


def repeated(x, start):
    both = np.repeat(table(*x.shape[-2:], start), 2, -1)
    return x * np.cos(both) + rotate_half(x) * np.sin(both)


def concatenated(x, start):
    angles = table(*x.shape[-2:], start)
    both = np.concatenate([angles, angles], -1)
    return x * np.cos(both) + rotate_every_two(x) * np.sin(both)


def swapped_halves(x, start):
    both = np.concatenate([table(*x.shape[-2:], start)] * 2, -1)
    half = x.shape[-1] // 2
    return x * np.cos(both) + np.concatenate([x[..., half:], x[..., :half]], -1) * np.sin(both)


def swapped_twos(x, start):
    both = np.repeat(table(*x.shape[-2:], start), 2, -1)
    return x * np.cos(both) + x[..., np.arange(x.shape[-1]) ^ 1] * np.sin(both)


def before_the_split(turn):
    def turned(x, start):
        batch, heads, length, width = x.shape
        packed = x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)
        return turn(packed, start).reshape(batch, length, heads, width).transpose(0, 2, 1, 3)

    return turned


def partly(turn, width):
    def turned(x, start):
        return np.concatenate([turn(x[..., :width], start), x[..., width:]], -1)

    return turned


def along_heads(turn):
    """Turn (B, L, H, D) as if it were (B, H, L, D), and the other way round."""

    def turned(x, _):
        return turn(x.swapaxes(1, 2), 0).swapaxes(1, 2)

    return turned


def with_exponent(turn, exponent):
    def turned(x, start):
        return turn(x, start, table(*x.shape[-2:], start, exponent=exponent))

    return turned


CASES = [
    ("rope_angles_misplaced", "half", repeated),
    ("rope_angles_misplaced", "interleaved", concatenated),
    ("rope_partners_misplaced", "half", concatenated),
    ("rope_partners_misplaced", "interleaved", repeated),
    ("rope_sign_lost", "half", swapped_halves),
    ("rope_sign_lost", "interleaved", swapped_twos),
    *(
        case
        for pairing, turn in RIGHT.items()
        for case in (
            ("rope_across_heads", pairing, before_the_split(turn)),
            ("rope_first_half", pairing, partly(turn, 4)),
            ("rope_first_quarter", pairing, partly(turn, 2)),
            ("rope_exponents_halved", pairing, with_exponent(turn, 1)),
            ("rope_exponents_doubled", pairing, with_exponent(turn, 4)),
            ("rope_along_heads", pairing, along_heads(turn)),
        )
    ),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "pairing", "turn"), CASES)
def test_a_wrong_turn(seed, name, pairing, turn):
    q, k, v = draw(seed, (2, 4, 6, 8), (2, 2, 9, 8), (2, 2, 9, 8))
    given = {"rope": pairing, "query_offset": 3}

    def attended(turned):
        keys = turned(k.astype("f8"), 0)
        return plain(turned(q.astype("f8"), 3), np.repeat(keys, 2, 1), np.repeat(v, 2, 1))

    assert ask((q, k, v), attended(RIGHT[pairing]), **given).passed
    report = ask((q, k, v), attended(turn), **given)
    assert named(report) == {name}
    base = {"rope_exponents_halved": "100", "rope_exponents_doubled": "100000000"}.get(name)
    expected = () if base is None else (f"--rope-base {base}",)
    assert report.diagnosis.explanations[0].options == expected


@pytest.mark.parametrize(("name", "pairing", "turn"), CASES[6:9])
def test_a_wrong_turn_of_queries_at_places_of_their_own(name, pairing, turn):
    """Sequences of a batch whose queries stand at the end of what they have read so far."""
    q, k, v = draw(0, (2, 4, 1, 8), (2, 4, 9, 8), (2, 4, 9, 8))
    lengths = np.array([9, 6])
    turned = np.concatenate([turn(q[[b]].astype("f8"), n - 1) for b, n in enumerate(lengths)])
    seen = np.arange(9) < lengths[:, None, None, None]
    wrong = plain(turned, turn(k.astype("f8"), 0), v, seen)
    given = {"rope": pairing, "causal": True, "causal_align": "bottom-right"}
    assert named(ask((q, k, v), wrong, kv_lengths=lengths, **given)) == {name}


def test_two_components_have_one_angle():
    q, k, v = draw(0, *[(1, 2, 6, 2)] * 3)
    wrong = plain(swapped_halves(q.astype("f8"), 0), swapped_halves(k.astype("f8"), 0), v)
    assert named(ask((q, k, v), wrong, rope="half")) == {"rope_sign_lost"}


def cosine_for_sine(x, start):
    """Take the table of cosines for that of sines, and the other way round."""
    both = np.concatenate([table(*x.shape[-2:], start)] * 2, -1)
    return x * np.sin(both) + rotate_half(x) * np.cos(both)


@pytest.mark.parametrize(
    ("words", "turn"),
    [
        ("or cosine and sine are exchanged", cosine_for_sine),
        (
            "or all rows of a head are given the same position",
            lambda x, _: by_halves(x, 0, np.ones(4) * 7),
        ),
        ("or all rows of a head are given the same position", along_heads(by_halves)),
    ],
)
def test_the_other_mistake_that_makes_the_same_numbers_is_told(words, turn):
    q, k, v = draw(0, *[(2, 4, 6, 8)] * 3)
    report = ask((q, k, v), plain(turn(q.astype("f8"), 0), turn(k.astype("f8"), 0), v), rope="half")
    (explanation,) = report.diagnosis.explanations
    assert explanation.conventions[0].meaning.endswith(words)


def stored(array, fmt):
    """Round to a 16-bit format: float16 by NumPy, bfloat16 by the bits of float32."""
    if fmt == "float16":
        return np.asarray(array).astype("f2").astype("f8")
    bits = np.asarray(array).astype("f4").view("u4")
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return near.view("f4").astype("f8")


ROUNDED = [
    "rope_frequencies_in_bfloat16",
    "rope_positions_in_bfloat16",
    "rope_angles_in_bfloat16",
    "rope_cosines_and_sines_in_bfloat16",
    "rope_cosines_and_sines_in_float16",
    "rope_frequencies_in_float16",
    "rope_positions_in_float16",
    "rope_angles_in_float16",
]
# Each with one pairing, and each part with both.
ROUNDED_OF_A_PAIR = list(zip(ROUNDED, ["half", "interleaved"] * 4, strict=True))


@pytest.mark.parametrize(("name", "pairing"), long_but(product(ROUNDED, RIGHT), *ROUNDED_OF_A_PAIR))
def test_what_a_rotation_is_made_of_is_rounded(name, pairing):
    fmt = name.rpartition("_")[2]
    first = 5001 if "positions" in name else 40
    q, k, v = draw(0, *[(1, 2, 24, 16)] * 3)

    def turned(x, start):
        x = x.astype("f8")
        frequencies, places = 10000.0 ** (-np.arange(8) / 8), np.arange(24.0) + start
        if "frequencies" in name:
            frequencies = stored(frequencies, fmt)
        if "positions" in name:
            places = stored(places, fmt)
        angles = np.outer(places, frequencies)
        angles = stored(angles, fmt) if "angles" in name else angles
        parts = np.cos(angles), np.sin(angles)
        cosine, sine = (stored(part, fmt) for part in parts) if "cosines" in name else parts
        return by_table(x, cosine, sine, pairing)

    wrong = plain(turned(q, first), turned(k, 0), v)
    report = ask((q, k, v), wrong, rope=pairing, query_offset=first)
    assert named(report) == {name}


def by_table(x, cosine, sine, pairing):
    half = x.shape[-1] // 2
    first, second = (
        (x[..., :half], x[..., half:]) if pairing == "half" else (x[..., ::2], x[..., 1::2])
    )
    made = first * cosine - second * sine, second * cosine + first * sine
    if pairing == "half":
        return np.concatenate(made, -1)
    return np.stack(made, -1).reshape(x.shape)


def angles_in_float32(steps):
    """Return 128 × 32 angles as one of the usual lines of PyTorch makes them."""
    places = np.arange(128, dtype="f4")[:, None]
    exponents = np.arange(0, 64, 2, dtype="f4") / np.float32(64)
    powers = np.array([10000.0 ** float(x) for x in exponents], "f4")
    if steps == "inverse":
        return places * (1 / powers)
    return places / powers


@pytest.mark.parametrize(
    ("steps", "pairing", "fmt"),
    long_but(
        product(["inverse", "quotient", "float64"], RIGHT, ["bfloat16", "float16"]),
        ("inverse", "half", "bfloat16"),
        ("inverse", "interleaved", "float16"),
        ("quotient", "half", "float16"),
        ("float64", "interleaved", "bfloat16"),
    ),
)
def test_a_table_is_rounded_whatever_its_angles_are_made_of(steps, pairing, fmt):
    """In a hundred tokens some cosines are rounded up here and down there."""
    q, k, v = draw(3, *[(1, 1, 128, 64)] * 3)
    angles = table(128, 64, 0) if steps == "float64" else angles_in_float32(steps)
    parts = [stored(part(angles.astype("f8")), fmt) for part in (np.cos, np.sin)]
    keep = np.tri(128, dtype=bool)
    wrong = plain(by_table(q, *parts, pairing), by_table(k, *parts, pairing), v, keep)
    report = ask((q, k, v), wrong, rope=pairing, causal=True)
    name = f"rope_cosines_and_sines_in_{fmt}"
    assert named(report) == {name if steps == "inverse" else f"{name}_of_other_angles"}


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("side", ["rope_key_permuted", "rope_query_permuted"])
def test_components_of_one_side_are_ordered_for_the_other_pairing(side, pairing):
    """As where only one of two projections was permuted for another format."""
    q, k, v = draw(0, *[(1, 2, 9, 8)] * 3)
    order = [0, 2, 4, 6, 1, 3, 5, 7] if pairing == "half" else [0, 4, 1, 5, 2, 6, 3, 7]
    turn = RIGHT[pairing]
    queries, keys = (array.astype("f8") for array in (q, k))
    if side == "rope_key_permuted":
        keys = keys[..., order]
    else:
        queries = queries[..., order]
    wrong = plain(turn(queries, 0), turn(keys, 0), v)
    assert named(ask((q, k, v), wrong, rope=pairing)) == {side}


ONE_OTHERWISE = ["rope_query_other_pairing", "rope_key_other_pairing"]


@pytest.mark.parametrize(
    ("name", "pairing"),
    long_but(product(ONE_OTHERWISE, RIGHT), *zip(ONE_OTHERWISE, RIGHT, strict=True)),
)
def test_one_side_is_turned_by_the_other_pairing(name, pairing):
    q, k, v = draw(0, *[(1, 2, 9, 8)] * 3)
    right, other = (by_halves, by_twos) if pairing == "half" else (by_twos, by_halves)
    queries = (other if "query" in name else right)(q.astype("f8"), 0)
    keys = (other if "key" in name else right)(k.astype("f8"), 0)
    assert named(ask((q, k, v), plain(queries, keys, v), rope=pairing)) == {name}


@pytest.mark.parametrize("pairing", RIGHT)
def test_the_last_components_are_turned_and_not_the_first(pairing):
    """As in rows of [nope, pe], which MLA has."""
    q, k, v = draw(0, (2, 4, 9, 12), (2, 2, 9, 12), (2, 2, 9, 12))
    options = {"rope": pairing, "rope_frequencies": (10000.0 ** (-np.arange(3) / 3)).tolist()}
    turn = partly(RIGHT[pairing], 6)

    def attended(turned):
        keys = np.repeat(turned(k.astype("f8")), 2, 1)
        return plain(turned(q.astype("f8")), keys, np.repeat(v, 2, 1))

    def last(x):
        return np.concatenate([x[..., :6], RIGHT[pairing](x[..., 6:], 0)], -1)

    assert ask((q, k, v), attended(lambda x: turn(x, 0)), **options).passed
    assert named(ask((q, k, v), attended(last), **options)) == {"rope_of_last_components"}


def test_a_part_is_turned_along_the_heads():
    q, k, v = draw(0, (2, 4, 9, 12), (2, 2, 9, 12), (2, 2, 9, 12))
    options = {"rope": "half", "rope_frequencies": (10000.0 ** (-np.arange(3) / 3)).tolist()}
    turn = along_heads(partly(by_halves, 6))
    keys = np.repeat(turn(k.astype("f8"), 0), 2, 1)
    wrong = plain(turn(q.astype("f8"), 0), keys, np.repeat(v, 2, 1))
    assert named(ask((q, k, v), wrong, **options)) == {"rope_along_heads"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_part_that_turns_as_fast_as_the_whole(seed):
    q, k, v = draw(seed, *[(2, 2, 12, 16)] * 3)
    fast, slow = table(12, 8, 0), table(12, 16, 0)[:, :4]

    def turned(x, angles):
        return np.concatenate([by_halves(x[..., :8], 0, angles), x[..., 8:]], -1)

    options = {"rope": "half", "rope_frequencies": (10000.0 ** (-np.arange(4) / 4)).tolist()}
    assert ask((q, k, v), plain(turned(q, fast), turned(k, fast), v), **options).passed
    report = ask((q, k, v), plain(turned(q, slow), turned(k, slow), v), **options)
    assert named(report) == {"rope_frequencies_of_whole_width"}


def test_a_lost_key_shows_beside_rounded_angles():
    """In decoding far positions the roundings of angles cancel: they do not hide a key."""
    keys = 8192
    (q,) = draw(0, (1, 2, 1, 64))
    k, v = draw(1, *[(1, 2, keys, 64)] * 2)
    q, k, v = (array.astype("f4") for array in (q, k, v))
    rules = {"rope": "half", "causal": True, "causal_align": "bottom-right"}

    def decoded(dtype, seen):
        # Everybody's frequencies and angles, in the format of the arrays.
        frequencies = np.power(dtype(10000), -np.arange(32, dtype=dtype) / dtype(32))
        query, key = (
            by_halves(x.astype(dtype), 0, np.outer(places.astype(dtype), frequencies))
            for x, places in ((q, np.arange(keys - 1, keys)), (k, np.arange(keys)))
        )
        return plain(query, key[..., :seen, :], v[..., :seen, :].astype(dtype))

    assert ask((q, k, v), decoded(np.float32, keys), "float32", diagnose=False, **rules).passed
    lost = ask((q, k, v), decoded(np.float64, keys - 1), "float32", diagnose=False, **rules)
    assert not lost.passed
    assert ask((q, k, v), decoded(np.float64, keys), "float32", diagnose=False, **rules).passed
