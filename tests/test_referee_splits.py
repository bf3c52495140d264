"""Keys in parts whose results are put together wrongly, and zeros beyond the last key."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain

PARTS = [2, 3, 4, 8]


def inputs(seed, keys=48):
    return draw(seed, (1, 2, 12, 16), (1, 2, keys, 16), (1, 2, keys, 16))


def parts_of(q, k, v, parts, keep=True):
    """Return the context and the lse of each part of the keys."""
    contexts, sums = [], []
    cuts = range(-(-k.shape[2] // parts), k.shape[2], -(-k.shape[2] // parts))
    for keys, values in zip(np.split(k, cuts, 2), np.split(v, cuts, 2), strict=True):
        scores = q.astype("f8") @ keys.swapaxes(-1, -2) / np.sqrt(16)
        contexts.append(plain(q, keys, values))
        sums.append(np.log(np.exp(scores).sum(-1, keepdims=True)))
    return np.stack(contexts), np.stack(sums)


@pytest.mark.parametrize("parts", PARTS)
def test_parts_that_are_merged_by_their_lse_are_right(parts):
    q, k, v = inputs(0)
    contexts, sums = parts_of(q, k, v, parts)
    shares = np.exp(sums) / np.exp(sums).sum(0)
    assert ask((q, k, v), (contexts * shares).sum(0)).passed


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", long_but(PARTS, 2))
@pytest.mark.parametrize(
    ("name", "merge"),
    [
        ("averaged", lambda contexts, _: contexts.mean(0)),
        ("added", lambda contexts, _: contexts.sum(0)),
        (
            "merged_in_base_2",
            lambda contexts, sums: (contexts * 2**sums).sum(0) / (2**sums).sum(0),
        ),
        (
            "merged_by_lse_of_base_2",
            lambda contexts, sums: (
                (contexts * np.exp(sums / np.log(2))).sum(0) / np.exp(sums / np.log(2)).sum(0)
            ),
        ),
        ("merged_undivided", lambda contexts, sums: (contexts * np.exp(sums - sums.max(0))).sum(0)),
        ("merged_by_lse", lambda contexts, sums: (contexts * sums).sum(0) / sums.sum(0)),
        ("first_kept", lambda contexts, _: contexts[0]),
        ("last_kept", lambda contexts, _: contexts[-1]),
    ],
)
def test_parts_that_are_put_together_wrongly(seed, parts, name, merge):
    q, k, v = inputs(seed, keys=56)
    wrong = merge(*parts_of(q, k, v, parts))
    assert named(ask((q, k, v), wrong)) == {f"splits_of_{parts}_{name}"}


@pytest.mark.parametrize(
    ("keys", "parts", "size", "cuts"),
    [
        pytest.param(300, 2, 64, [192], marks=pytest.mark.long),
        (300, 2, 128, [256]),
        (200, 4, 32, [64, 128, 192]),
        (200, 3, 16, [80, 160]),
    ],
)
def test_parts_of_whole_blocks(keys, parts, size, cuts):
    q, k, v = draw(0, (1, 4, 3, 16), (1, 4, keys, 16), (1, 4, keys, 16))
    pieces = zip(np.split(k, cuts, 2), np.split(v, cuts, 2), strict=True)
    wrong = np.mean([plain(q, *piece) for piece in pieces], axis=0)
    (name,) = named(ask((q, k, v), wrong))
    known = f"splits_of_{parts}_of_blocks_of_{size}_averaged"
    assert name in {known, "splits_of_blocks_of_64_averaged"}
    assert (name == known) == (cuts != [64, 128, 192])


def in_turn(contexts, _):
    mean = contexts[0]
    for context in contexts[1:]:
        mean = (mean + context) / 2
    return mean


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", long_but([3, 4, 8], 4))
@pytest.mark.parametrize(
    ("name", "merge"),
    [
        ("averaged_in_turn", in_turn),
        (
            "first_lost",
            lambda contexts, sums: (contexts * np.exp(sums))[1:].sum(0) / np.exp(sums)[1:].sum(0),
        ),
        (
            "last_lost",
            lambda contexts, sums: (contexts * np.exp(sums))[:-1].sum(0) / np.exp(sums)[:-1].sum(0),
        ),
    ],
)
def test_three_parts_and_more_that_are_put_together_wrongly(seed, parts, name, merge):
    # Parts of 20, 15 and 7 keys, the last one shorter: blocks of 8 or 16 have names of their own.
    q, k, v = inputs(seed, keys=58 if parts < 8 else 53)
    wrong = merge(*parts_of(q, k, v, parts))
    assert named(ask((q, k, v), wrong)) == {f"splits_of_{parts}_{name}"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parts", long_but(PARTS, 4))
def test_parts_that_are_merged_by_their_largest_scores(seed, parts):
    q, k, v = inputs(seed, keys=56)
    contexts, _ = parts_of(q, k, v, parts)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    cuts = range(-(-56 // parts), 56, -(-56 // parts))
    tops = [part.max(-1, keepdims=True) for part in np.split(scores, cuts, -1)]
    shares = np.exp(tops) / np.exp(tops).sum(0)
    assert named(ask((q, k, v), (contexts * shares).sum(0))) == {
        f"splits_of_{parts}_merged_by_maxima"
    }


@pytest.mark.parametrize("size", [8, 16])
def test_blocks_that_are_averaged(size):
    q, k, v = inputs(0, keys=9 * size + 1)
    blocks = range(0, 9 * size + 1, size)
    made = [plain(q, k[:, :, a : a + size], v[:, :, a : a + size]) for a in blocks]
    wrong = np.mean(made, axis=0)
    assert named(ask((q, k, v), wrong)) == {f"splits_of_blocks_of_{size}_averaged"}


def longer(array, count):
    return np.pad(array, [(0, 0), (0, 0), (0, count), (0, 0)])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("count", "name"),
    long_but(
        [
            # One zero, and a 1 in the denominator, are the same.
            (1, "sinks_unasked"),
            (7, "zeros_to_8_counted"),
            (17, "zeros_counted"),
            (67, "zeros_counted"),
            (1000, "zeros_counted"),
        ],
        (1, "sinks_unasked"),
        (7, "zeros_to_8_counted"),
        (1000, "zeros_counted"),
    ),
)
def test_a_cache_of_any_length(seed, count, name):
    q, k, v = inputs(seed, keys=33)
    wrong = plain(q, longer(k, count), longer(v, count))
    report = ask((q, k, v), wrong)
    assert named(report) == {name}
    if name == "zeros_counted":
        assert f"{count} of them get weight" in str(report)


@pytest.mark.parametrize("heads", long_but([1, 2], 2))
def test_zeros_in_weights(heads):
    q, k, v = inputs(0, keys=33)
    q, k, v = q[:, :heads], k[:, :heads], v[:, :heads]
    scores = np.exp(q.astype("f8") @ longer(k, 20).swapaxes(-1, -2) / 4)
    wrong = (scores / scores.sum(-1, keepdims=True))[..., :33]
    report = ask((q, k, v), {"weights": wrong})
    assert named(report) == {"zeros_counted"}
    assert "20 of them" in str(report)


def test_zeros_in_decoding_whose_query_stands_last():
    q, k, v = inputs(0, keys=33)
    q = q[:, :, :1]
    wrong = plain(q, longer(k, 20), longer(v, 20))
    options = {"causal": True, "causal_align": "bottom-right"}
    report = ask((q, k, v), wrong, **options)
    assert named(report) == {"zeros_counted"}
    wrong = plain(q, longer(k, 31), longer(v, 31))
    assert named(ask((q, k, v), wrong, **options)) == {"zeros_to_32_counted", "zeros_to_64_counted"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [8, 16, 32])
def test_a_causal_mask_of_whole_blocks(seed, size):
    q, k, v = draw(seed, *[(1, 2, 70, 8)] * 3)
    rows, columns = np.mgrid[:70, :70] // size
    wrong = plain(q, k, v, columns <= rows)
    assert named(ask((q, k, v), wrong, causal=True)) == {f"causal_by_blocks_of_{size}"}


def test_a_causal_mask_of_whole_blocks_after_a_cache():
    q, k, v = draw(0, (1, 2, 40, 8), (1, 2, 70, 8), (1, 2, 70, 8))
    rows, columns = (np.arange(40)[:, None] + 30) // 16, np.arange(70) // 16
    wrong = plain(q, k, v, columns <= rows)
    report = ask((q, k, v), wrong, causal=True, causal_align="bottom-right")
    assert named(report) == {"causal_by_blocks_of_16"}


def tiles(q, k, v, size, *, offset=0, zero=False, twice=False):
    """Add up the tiles that a causal kernel visits, one by one, with one of two mistakes."""
    rows = np.arange(q.shape[2]) + offset
    total, denominator = np.zeros((*q.shape[:3], v.shape[3])), np.zeros(q.shape[:3])
    for start in range(0, k.shape[2], size):
        columns = np.arange(start, min(start + size, k.shape[2]))
        scores = q.astype("f8") @ k[:, :, columns].swapaxes(-1, -2) / np.sqrt(q.shape[3])
        seen = columns <= rows[:, None]
        visited = (rows // size * size >= start)[:, None]
        hidden = 1.0 if zero else 0.0
        exponentials = np.where(seen, np.exp(scores), hidden) * visited
        if twice:
            exponentials = exponentials * np.where(rows // size * size == start, 2, 1)[:, None]
        total += exponentials @ v[:, :, columns]
        denominator += exponentials.sum(-1)
    return total / denominator[..., None]


@pytest.mark.parametrize("size", long_but([16, 32], 16))
@pytest.mark.parametrize(
    ("mistake", "offset"),
    long_but(product(["zero", "twice"], [0, 30]), ("zero", 0), ("twice", 30)),
)
def test_mistakes_in_the_tile_on_the_diagonal(size, mistake, offset):
    q, k, v = draw(0, (1, 2, 70 - offset, 8), (1, 2, 70, 8), (1, 2, 70, 8))
    options = {"causal": True, "causal_align": "bottom-right"}
    assert ask((q, k, v), tiles(q, k, v, size, offset=offset), **options).passed
    wrong = tiles(q, k, v, size, offset=offset, **{mistake: True})
    name = {"zero": "zeros_in_causal_blocks_of_{}", "twice": "diagonal_block_of_{}_twice"}[mistake]
    assert named(ask((q, k, v), wrong, **options)) == {name.format(size)}


@pytest.mark.parametrize("left", long_but([1, 4], 1))
def test_a_window_that_reaches_to_the_right_as_well(left):
    q, k, v = draw(0, *[(1, 2, 20, 8)] * 3)
    far = np.abs(np.arange(20)[:, None] - np.arange(20))
    wrong = plain(q, k, v, far <= left)
    report = ask((q, k, v), wrong, causal=True, window=(left, 0))
    assert named(report) == {"window_symmetric"}
    # One key to the right is the nearer mistake.
    name = "window_right_long" if left == 1 else "window_symmetric"
    assert named(ask((q, k, v), wrong, window=(left, 0))) == {name}


def test_padding_that_is_taken_for_the_first_keys():
    q, k, v = draw(0)
    keep = np.arange(6) >= 6 - np.array([4, 5])[:, None, None, None]
    wrong = plain(q, k, v, keep)
    assert named(ask((q, k, v), wrong, kv_lengths=(4, 5))) == {"padding_on_the_left"}


@pytest.mark.parametrize("layout", long_but(["bhsd", "bshd", "packed"], "bshd", "packed"))
def test_zeros_are_counted_in_every_layout(layout):
    q, k, v = draw(0, (2, 3, 6, 8), (2, 3, 13, 8), (2, 3, 13, 8))
    wrong = plain(q, longer(k, 9), longer(v, 9))
    given = [q, k, v, wrong]
    options = {"layout": "bhsd"}
    if layout != "bhsd":
        given = [array.transpose(0, 2, 1, 3) for array in given]
        options = {"layout": "bshd"}
    if layout == "packed":
        given = [array.reshape(*array.shape[:2], -1) for array in given]
        options = {"heads": 3}
    *inputs_, wrong = given
    report = ask(inputs_, wrong, **options)
    assert named(report) == {"zeros_counted"}
    assert "9 of them get weight" in str(report)


@pytest.mark.parametrize(("queries", "keys"), [(4, 64), (2, 40)])
def test_a_missing_causal_mask_is_no_mask_of_blocks(queries, keys):
    q, k, v = draw(0, (1, 2, queries, 8), (1, 2, keys, 8), (1, 2, keys, 8))
    report = ask((q, k, v), plain(q, k, v), causal=True, causal_align="bottom-right")
    assert not any("blocks" in name for name in named(report))
    assert "causal_missing" in named(report)
