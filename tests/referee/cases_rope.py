"""Rotary positions: pairing, base, offset, direction, cache, and what angles are made of."""

from __future__ import annotations

import numpy as np
from referee.case import family
from referee.plain import FORMATS, rotate

HALF, PAIR = "half", "interleaved"


def _turned(g, *, q=None, k=None, offset=0, pairing=HALF, keep=True, **more):
    """Attend with rotated rows; ``q`` and ``k`` are places, or functions of the rows."""
    places = {"q": np.arange(g.q.shape[-2]) + offset, "k": np.arange(g.k.shape[-2])}
    made = {}
    for name, told in (("q", q), ("k", k)):
        rows = getattr(g, name)
        if callable(told):
            made[name] = told(rows, places[name])
        else:
            made[name] = rotate(rows, places[name] if told is None else told, pairing)
    return g.attend(keep, **made, **more)


def _still(rows, places):
    return rows


def _by(pairing=HALF, base=10000.0, **more):
    return lambda rows, places: rotate(rows, places, pairing, base, **more)


def _both(g, turn, *, offset=0, keep=True):
    return _turned(g, q=turn, k=turn, offset=offset, keep=keep)


for _p, _other in ((HALF, PAIR), (PAIR, HALF)):
    cases = family(
        f"rope/{_p}", shapes=((2, 4, 6, 8), (2, 2, 9, 8)), options={"rope": _p, "query_offset": 3}
    )
    cases["passes"] = lambda g, p=_p: _both(g, _by(p), offset=3)
    cases["rope_pairing"] = lambda g, o=_other: _both(g, _by(o), offset=3)
    cases["rope_missing"] = lambda g: g.attend()
    cases["rope_without_offset"] = lambda g, p=_p: _both(g, _by(p))
    cases["rope_query_only"] = lambda g, p=_p: _turned(g, q=_by(p), k=_still, offset=3)
    cases["rope_key_only"] = lambda g, p=_p: _turned(g, q=_still, k=_by(p), offset=3)
    cases["rope_backwards"] = lambda g, p=_p: _both(g, _by(p, sign=-1), offset=3)
    cases["rope_key_backwards"] = lambda g, p=_p: _turned(g, q=_by(p), k=_by(p, sign=-1), offset=3)
    cases["rope_query_backwards"] = lambda g, p=_p: _turned(
        g, q=_by(p, sign=-1), k=_by(p), offset=3
    )
    cases["rope_query_late"] = lambda g, p=_p: _both_places(g, p, 4)
    cases["rope_query_early"] = lambda g, p=_p: _both_places(g, p, 2)
    cases["rope_twice"] = lambda g, p=_p: _both(
        g, lambda x, at: rotate(rotate(x, at, p), at, p), offset=3
    )
    cases["rope_keys_twice"] = lambda g, p=_p: _turned(
        g, q=_by(p), k=lambda x, at: rotate(rotate(x, at, p), at, p), offset=3
    )
    cases["rope_on_values"] = lambda g, p=_p: _turned(
        g, q=_by(p), k=_by(p), offset=3, v=rotate(g.v, np.arange(9), p)
    )
    cases["rope_exponents_halved"] = lambda g, p=_p: _both(g, _by(p, 100.0), offset=3)
    cases["rope_exponents_doubled"] = lambda g, p=_p: _both(g, _by(p, 1e8), offset=3)
    cases["rope_base_500000"] = lambda g, p=_p: _both(g, _by(p, 5e5), offset=3)
    cases["rope_base_1000000"] = lambda g, p=_p: _both(g, _by(p, 1e6), offset=3)
    cases["another_rope_base"] = lambda g, p=_p: _both(g, _by(p, 321.0), offset=3)
    cases["rope_first_half"] = lambda g, p=_p: _both(g, _partly(p, 4), offset=3)
    cases["rope_along_heads"] = lambda g, p=_p: _both(g, _along_heads(p), offset=3)
    cases["rope_across_heads"] = lambda g, p=_p: _both(g, _before_the_split(p), offset=3)
    cases["rope_sign_lost"] = lambda g, p=_p: _both(g, _signless(p), offset=3)
    cases["rope_angles_misplaced"] = lambda g, p=_p: _both(g, _misplaced(p), offset=3)
    cases["rope_key_permuted"] = lambda g, p=_p: _turned(
        g, q=_by(p), k=lambda x, at: rotate(x[..., ORDER[p]], at, p), offset=3
    )
    cases["rope_query_other_pairing"] = lambda g, p=_p, o=_other: _turned(
        g, q=_by(o), k=_by(p), offset=3
    )
    cases["rope_missing+unscaled"] = lambda g: g.attend(scale=1)
    cases["rope_pairing+unscaled"] = lambda g, o=_other: g.attend(
        q=rotate(g.q, np.arange(6) + 3, o), k=rotate(g.k, np.arange(9), o), scale=1
    )
    cases["unscaled"] = lambda g, p=_p: g.attend(
        q=rotate(g.q, np.arange(6) + 3, p), k=rotate(g.k, np.arange(9), p), scale=1
    )

ORDER = {HALF: [0, 2, 4, 6, 1, 3, 5, 7], PAIR: [0, 4, 1, 5, 2, 6, 3, 7]}


def _both_places(g, pairing, first):
    return _turned(g, q=lambda x, at: rotate(x, at - 3 + first, pairing), k=_by(pairing), offset=3)


def _partly(pairing, width):
    return lambda x, at: np.concatenate([rotate(x[..., :width], at, pairing), x[..., width:]], -1)


def _along_heads(pairing):
    def turn(x, at):
        x = x[:, ::2] if x.shape[2] == 9 else x
        made = rotate(x.swapaxes(1, 2), np.arange(x.shape[1]), pairing).swapaxes(1, 2)
        return np.repeat(made, 2, 1) if x.shape[2] == 9 else made

    return turn


def _before_the_split(pairing):
    """Rotate (B, L, H·D), of as many heads as there are."""

    def turn(x, at):
        x = x[:, ::2] if x.shape[2] == 9 else x  # keys have half as many heads
        batch, heads, length, width = x.shape
        packed = x.swapaxes(1, 2).reshape(batch, length, heads * width)
        made = rotate(packed, at, pairing).reshape(batch, length, heads, width).swapaxes(1, 2)
        return np.repeat(made, 2, 1) if length == 9 else made

    return turn


def _tables(x, at, doubled):
    angles = np.multiply.outer(at, 10000.0 ** (-np.arange(0, 8, 2) / 8))
    both = np.concatenate([angles] * 2, -1) if doubled == HALF else np.repeat(angles, 2, -1)
    return np.cos(both), np.sin(both)


def _partners(x, pairing, sign=-1):
    if pairing == HALF:
        return np.concatenate([sign * x[..., 4:], x[..., :4]], -1)
    return np.stack([sign * x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)


def _signless(pairing):
    def turn(x, at):
        cosine, sine = _tables(x, at, pairing)
        return x * cosine + _partners(x, pairing, 1) * sine

    return turn


def _misplaced(pairing):
    """Double the angles as the other pairing does."""

    def turn(x, at):
        cosine, sine = _tables(x, at, PAIR if pairing == HALF else HALF)
        return x * cosine + _partners(x, pairing) * sine

    return turn


cases = family("rope/unasked")
cases["rope_unasked_half"] = lambda g: _both(g, _by(HALF))
cases["rope_unasked_interleaved"] = lambda g: _both(g, _by(PAIR))
cases["rope_unasked_half_500000"] = lambda g: _both(g, _by(HALF, 5e5))

cases = family("rope/base", options={"rope": HALF, "rope_base": 2000.0})
cases["rope_base"] = lambda g: _both(g, _by())
cases["rope_base_500000"] = lambda g: _both(g, _by(HALF, 5e5))

cases = family("rope/positions", shapes=(1, 1, 24, 8), options={"rope": HALF})
cases["rope_positions_scaled"] = lambda g: _both(g, lambda x, at: rotate(x, 0.25 * at))
cases["rope_queries_moved"] = lambda g: _turned(g, q=lambda x, at: rotate(x, at - 5))

cases = family("rope/causal", shapes=(2, 4, 9, 8), options={"rope": HALF, "causal": True})
cases["passes"] = lambda g: _both(g, _by(), keep=g.tril)
cases["rope_pairing"] = lambda g: _both(g, _by(PAIR), keep=g.tril)
cases["rope_missing"] = lambda g: g.tril
cases["causal_missing"] = lambda g: _both(g, _by())
cases["causal_missing+rope_missing"] = lambda g: g.attend()
cases["causal_missing+rope_pairing"] = lambda g: _both(g, _by(PAIR))
_NEW = {"rope": PAIR, "causal": True, "causal_align": "bottom-right"}


def _cache(g, queries, keys):
    keep = g.j <= g.i + g.k.shape[-2] - g.q.shape[-2]
    return g.attend(keep, q=rotate(g.q, queries, PAIR), k=rotate(g.k, keys, PAIR))


for _count in (1, 4):
    _at, _keys = np.arange(20 - _count, 20), np.arange(20)
    _first = 20 - _count
    cases = family(
        f"rope/cache {_count}", shapes=((2, 4, _count, 16), (2, 2, 20, 16)), options=_NEW
    )
    cases["passes"] = lambda g, q=_at, k=_keys: _cache(g, q, k)
    cases["rope_cache_unrotated"] = lambda g, q=_at, k=_keys, n=_first: _cache(
        g, q, np.where(k >= n, k, 0)
    )
    cases["rope_new_keys_unrotated"] = lambda g, q=_at, k=_keys, n=_first: _cache(
        g, q, np.where(k < n, k, 0)
    )
    cases["rope_new_tokens_from_zero"] = lambda g, q=_at, k=_keys, n=_first: _cache(
        g, q - n, np.where(k < n, k, k - n)
    )
    cases["rope_new_tokens_late"] = lambda g, q=_at, k=_keys, n=_first: _cache(
        g, q + 1, np.where(k < n, k, k + 1)
    )
    cases["rope_cache_twice"] = lambda g, q=_at, k=_keys, n=_first: _cache(
        g, q, np.where(k < n, 2 * k, k)
    )
    cases["rope_without_offset|rope_queries_moved|rope_key_only"] = lambda g, q=_at, k=_keys: (
        _cache(g, q - q[0], k)
    )
    cases["rope_missing"] = lambda g: g.j <= g.i + g.k.shape[-2] - g.q.shape[-2]

cases = family(
    "rope/first entry",
    shapes=((3, 4, 1, 16), (3, 4, 37, 16)),
    options={
        "rope": HALF,
        "causal": True,
        "causal_align": "bottom-right",
        "kv_lengths": [30, 19, 24],
    },
)
cases["rope_of_first_entry"] = lambda g: g.attend(
    g.j < np.array([30, 19, 24])[:, None, None, None],
    q=rotate(g.q, [29]),
    k=rotate(g.k, g.j),
)
for _align, _name, _offset in (("top-left", "bottom_right", 3), ("bottom-right", "top_left", 0)):
    cases = family(
        f"rope/align {_align}",
        shapes=((2, 4, 4, 8), (2, 4, 7, 8)),
        options={"causal": True, "causal_align": _align, "rope": HALF},
    )
    cases[f"positions_{_name}"] = lambda g, n=_offset: g.attend(
        g.j <= g.i + n, q=rotate(g.q, np.arange(4) + n), k=rotate(g.k, g.j)
    )


def _parts(g, pairing, first, fmt, which):
    """Rotate by frequencies, positions, angles or tables that are rounded."""
    short = FORMATS[fmt]

    def turned(rows, at):
        frequencies = 10000.0 ** (-np.arange(8) / 8)
        frequencies = short(frequencies) if which == "frequencies" else frequencies
        at = short(at) if which == "positions" else at
        angles = np.multiply.outer(at, frequencies)
        angles = short(angles) if which == "angles" else angles
        cosine, sine = np.cos(angles), np.sin(angles)
        if which == "cosines_and_sines":
            cosine, sine = short(cosine), short(sine)
        one, other = (
            (rows[..., :8], rows[..., 8:]) if pairing == HALF else (rows[..., ::2], rows[..., 1::2])
        )
        made = one * cosine - other * sine, other * cosine + one * sine
        if pairing == HALF:
            return np.concatenate(made, -1)
        return np.stack(made, -1).reshape(rows.shape)

    return g.attend(q=turned(g.q, np.arange(24) + first), k=turned(g.k, np.arange(24)))


for _fmt in ("bfloat16", "float16"):
    for _which in ("frequencies", "positions", "angles", "cosines_and_sines"):
        _far = 5001 if _which == "positions" else 40
        cases = family(
            f"rope/rounded {_which} {_fmt}",
            shapes=(1, 2, 24, 16),
            options={"rope": HALF, "query_offset": _far},
        )
        cases[f"rope_{_which}_in_{_fmt}"] = lambda g, n=_far, f=_fmt, w=_which: _parts(
            g, HALF, n, f, w
        )
