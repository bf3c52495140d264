"""Mistakes in how a rotary embedding turns a pair, each written as somebody might write it."""

from __future__ import annotations

import numpy as np
import pytest
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


def with_exponent(turn, exponent):
    def turned(x, start):
        return turn(x, start, table(*x.shape[-2:], start, exponent=exponent))

    return turned


CASES = [
    ("rope_angles_misplaced", "half", repeated),
    ("rope_angles_misplaced", "interleaved", concatenated),
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


@pytest.mark.parametrize(("name", "pairing", "turn"), CASES[4:7])
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
