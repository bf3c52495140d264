"""Wrong rotary positions of new tokens behind a cache are named."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import small_slices  # noqa: F401 - a fixture

CACHED, S = 32, 40


def turned(rows, positions):
    """Rotate by halves, as Llama does."""
    angle = np.asarray(positions)[..., None] * 10000.0 ** (-np.arange(8) / 8)
    cosine, sine = np.cos(angle), np.sin(angle)
    one, two = rows[..., :8], rows[..., 8:]
    return np.concatenate((one * cosine - two * sine, one * sine + two * cosine), axis=-1)


def moved(kind, count):
    """Return the positions of the new queries and of all keys."""
    cached = S - count
    queries, keys = np.arange(cached, S), np.arange(S)
    if kind == "rope_cache_twice":
        keys[:cached] *= 2
        return queries, keys
    change = {
        "rope_new_tokens_from_zero": lambda places: places - cached,
        "rope_new_tokens_late": lambda places: places + 1,
        "rope_new_tokens_early": lambda places: places - 1,
        "rope_new_tokens_alike": lambda places: np.full_like(places, cached),
    }[kind]
    keys[cached:] = change(keys[cached:])
    return change(queries), keys


KINDS = [
    *("rope_new_tokens_from_zero", "rope_new_tokens_late", "rope_new_tokens_early"),
    *("rope_new_tokens_alike", "rope_cache_twice"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 8])
def test_positions_of_new_tokens(seed, kind, count):
    if count == 1 and kind == "rope_new_tokens_alike":
        return  # one token stands where it should
    q, k, v = draw(seed, (2, 4, count, 16), (2, 2, S, 16), (2, 2, S, 16))
    queries, keys = moved(kind, count)
    keep = np.arange(S) <= np.arange(S - count, S)[:, None]
    wide = [np.repeat(rows, 2, axis=1) for rows in (turned(k, keys), v)]
    wrong = plain(turned(q, queries), *wide, keep)
    report = ask((q, k, v), wrong, rope="half", causal=True, query_offset=S - count)
    assert named(report) == {kind}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("seed", SEEDS)
def test_positions_of_new_tokens_in_a_long_problem(seed):
    q, k, v = draw(seed, (1, 2, 75, 16), (1, 2, 150, 16), (1, 2, 150, 16))
    keys = np.arange(150)
    keys[75:] -= 75
    keep = np.arange(150) <= np.arange(75, 150)[:, None]
    wrong = plain(turned(q, np.arange(75)), turned(k, keys), v, keep)
    report = ask((q, k, v), wrong, rope="half", causal=True, query_offset=75)
    assert named(report) == {"rope_new_tokens_from_zero"}


def test_a_position_too_early_in_bfloat16_is_no_pair_of_mistakes():
    """Beside one that is near, another mistake that only changes roundings is none."""
    q, k, v = (
        (array.view(np.uint32) & 0xFFFF0000).view(np.float32)
        for array in draw(1, (2, 4, 1, 16), (2, 4, 80, 16), (2, 4, 80, 16))
    )
    keys = np.arange(80)
    keys[-1] -= 1
    wrong = plain(turned(q, [78]), turned(k, keys), v).astype("f4")
    bits = wrong.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)
    report = ask((q, k, v), rounded, rope="half", causal=True, query_offset=79)
    assert named(report) == {"rope_new_tokens_early"}


@pytest.mark.parametrize("seed", SEEDS)
def test_positions_of_another_batch_entry(seed):
    q, k, v = draw(seed, (3, 4, 1, 16), (3, 4, 37, 16), (3, 4, 37, 16))
    lengths = np.array([30, 19, 24])
    keep = (np.arange(37) < lengths[:, None])[:, None, None]
    wrong = plain(turned(q, [29]), turned(k, np.arange(37)), v, keep)
    options = {"rope": "half", "causal": True, "causal_align": "bottom-right"}
    report = ask((q, k, v), wrong, kv_lengths=lengths, **options)
    assert named(report) == {"rope_of_first_entry"}


def turned_in_pairs(rows, positions):
    """Rotate neighbours, as GGUF files and the published Llama do."""
    pairs = np.concatenate((rows[..., 0::2], rows[..., 1::2]), axis=-1)
    made = turned(pairs, positions)
    return np.stack((made[..., :8], made[..., 8:]), axis=-1).reshape(rows.shape)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "times"), [("rope_permuted_twice", 2), ("rope_permuted_backwards", -1)]
)
def test_rows_that_are_permuted_for_another_pairing(seed, name, times):
    q, k, v = draw(seed, *[(1, 2, 9, 16)] * 3)

    def permuted(rows, count):
        shape = (2, 8) if count > 0 else (8, 2)
        for _ in range(abs(count)):
            rows = rows.reshape(*rows.shape[:-1], *shape).swapaxes(-1, -2).reshape(rows.shape)
        return rows

    right, wrong = (
        plain(*(turned_in_pairs(permuted(rows, count), np.arange(9)) for rows in (q, k)), v)
        for count in (1, times)
    )
    assert ask((q, k, v), right, rope="half").passed
    assert named(ask((q, k, v), wrong, rope="half")) == {name}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize(
    "kind", long_but(["rope_new_tokens_alike", "rope_cache_twice"], "rope_cache_twice")
)
def test_positions_of_new_tokens_in_slices_of_a_long_problem(kind):
    """A slice that begins with a later query still has the same first new token."""
    q, k, v = draw(0, (1, 2, 75, 16), (1, 2, 150, 16), (1, 2, 150, 16))
    queries, keys = np.arange(75, 150), np.arange(150)
    if kind == "rope_cache_twice":
        keys[:75] *= 2
    else:
        queries[:] = keys[75:] = 75
    keep = np.arange(150) <= np.arange(75, 150)[:, None]
    wrong = plain(turned(q, queries), turned(k, keys), v, keep)
    report = ask((q, k, v), wrong, rope="half", causal=True, query_offset=75)
    assert named(report) == {kind}
    assert "one explanation makes the numbers agree" in str(report)


@pytest.mark.usefixtures("small_slices")
def test_positions_from_zero_in_slices_of_a_long_problem():
    q, k, v = draw(0, (1, 2, 75, 16), (1, 2, 150, 16), (1, 2, 150, 16))
    keep = np.arange(150) <= np.arange(75, 150)[:, None]
    wrong = plain(turned(q, np.arange(75)), turned(k, np.arange(150)), v, keep)
    report = ask((q, k, v), wrong, rope="half", causal=True, query_offset=75)
    assert named(report) == {"rope_without_offset"}
    assert "one explanation makes the numbers agree" in str(report)


@pytest.mark.usefixtures("small_slices")
def test_positions_of_another_batch_entry_in_slices_of_a_long_problem():
    q, k, v = draw(0, (2, 2, 75, 16), (2, 2, 150, 16), (2, 2, 150, 16))
    offsets = np.array([75, 25])[:, None, None, None]
    keep = np.arange(150) <= np.arange(75)[:, None] + offsets
    wrong = plain(turned(q, np.arange(75, 150)), turned(k, np.arange(150)), v, keep)
    report = ask((q, k, v), wrong, rope="half", causal=True, query_offset=[75, 25])
    assert named(report) == {"rope_of_first_entry"}
    assert "one explanation makes the numbers agree" in str(report)


def test_positions_of_new_tokens_beside_keys_that_batch_entries_share():
    q, k, v = draw(0, (2, 2, 8, 16), (1, 2, S, 16), (1, 2, S, 16))
    queries, keys = moved("rope_new_tokens_from_zero", 8)
    keep = np.arange(S) <= np.arange(S - 8, S)[:, None]
    wrong = plain(turned(q, queries), turned(k, keys), v, keep)
    report = ask((q, k, v), wrong, rope="half", causal=True, query_offset=S - 8)
    assert named(report) == {"rope_new_tokens_from_zero"}
