"""Pages of a cache that are read in the place of others are told, with where they are."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake  # noqa: F401 - a fixture

BOTH, KEY, VALUE = ("key", "value"), ("key",), ("value",)
PAGE = 8


def inputs(seed, batch=2, keys=96, queries=1):
    return draw(seed, (batch, 4, queries, 16), (batch, 4, keys, 16), (batch, 4, keys, 16))


def read(array, table, size=PAGE):
    """Return the pages (entry, page) that the table of each entry names, one behind the other."""
    pages = array.reshape(*array.shape[:2], -1, size, array.shape[3])
    return np.stack([np.concatenate([pages[e, :, p] for e, p in row], axis=1) for row in table])


def right_table(batch=2, pages=12):
    return [[(entry, page) for page in range(pages)] for entry in range(batch)]


def changed(**pages):
    """Return the table in which pages of entry 0 are others; None drops one."""
    table = right_table()
    for name, other in pages.items():
        table[0][int(name[1:])] = other
    return [[place for place in row if place is not None] for row in table]


TABLES = {
    "stale": (changed(p3=(0, 5)), "40 to 47 in the place of 24 to 31"),
    "two": (changed(p3=(0, 5), p9=(0, 10)), "in the place of 72 to 79"),
    "another entry's": (
        changed(p3=(1, 3)),
        "keys and values 24 to 31 of batch entry 1 in the place of 24 to 31 (batch entry 0)",
    ),
    "neighbours": (
        changed(p3=(1, 6), p4=(1, 7)),
        "keys and values 48 to 63 of batch entry 1 in the place of 24 to 39",
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", long_but(["float32", "float16"], "float32"))
@pytest.mark.parametrize("case", TABLES)
def test_pages_of_keys_and_values(seed, dtype, case):
    q, k, v = (array.astype(dtype) for array in inputs(seed))
    table, words = TABLES[case]
    report = ask((q, k, v), plain(q, read(k, table), read(v, table)), dtype)
    assert named(report) == {"misread_pages"}
    assert words in str(report)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("names", "exchanged"),
    [
        (KEY, False),
        (VALUE, False),
        (KEY, True),
        pytest.param(VALUE, True, marks=pytest.mark.long),
    ],
)
def test_pages_of_one_side(seed, names, exchanged):
    q, *kv = inputs(seed)
    table = changed(p3=(0, 5), **({"p5": (0, 3)} if exchanged else {}))
    k, v = (
        read(array, table) if name in names else array for name, array in zip(BOTH, kv, strict=True)
    )
    report = ask((q, *kv), plain(q, k, v))
    assert named(report) == {"misread_pages"}
    # Two pages of keys that are exchanged are two of values, as far as anyone can see.
    side = "value" if exchanged else names[0]
    assert f"{side}s 40 to 47 in the place of 24 to 31" in str(report)
    assert (f"{side}s 24 to 31 in the place of 40 to 47" in str(report)) == exchanged


@pytest.mark.parametrize("seed", SEEDS)
def test_slots_of_single_keys(seed):
    q, k, v = inputs(seed, batch=1, keys=50)

    def wrong(order):
        return plain(q, k[:, :, order], v[:, :, order])

    keys = list(range(50))
    for order, words in (
        ([*keys[:-1], 48], "key and value 48 in the place of 49"),
        ([*keys, 49], "key and value 49 once more"),
        (keys[:-2] + keys[-1:], "key and value 48 not at all"),
        (keys[:7] + keys[8:] + [3], "key and value 3 in the place of 7"),
    ):
        report = ask((q, k, v), wrong(order))
        assert named(report) == {"misread_pages"}
        assert words in str(report)


@pytest.mark.parametrize("seed", long_but(range(4), 0))
def test_a_slot_in_numbers_of_few_bits(seed):
    """The error is less than what is tolerated of a single number, in one of two entries."""
    given = draw(seed, (2, 8, 1, 32), (2, 8, 200, 32), (2, 8, 200, 32))
    q, k, v = (array.view("u4") + 0x8000 & 0xFFFF0000 for array in given)
    q, k, v = (array.view("f4") for array in (q, k, v))
    order = [*range(199), 198]
    wrong = plain(q, k[:, :, order], v[:, :, order]).astype("f4").view("u4")
    wrong = (wrong + 0x8000 & 0xFFFF0000).view("f4")
    report = ask((q, k, v), wrong)
    assert named(report) == {"misread_pages"}
    assert "key and value 198 in the place of 199 (every batch entry)" in str(report)


def test_what_all_entries_do_is_said_once():
    q, k, v = inputs(0, batch=3)
    table = [[(entry, page) for page in (0, 1, 2, 5, *range(4, 12))] for entry in range(3)]
    report = ask((q, k, v), plain(q, read(k, table), read(v, table)))
    assert "40 to 47 in the place of 24 to 31 (every batch entry)" in str(report)
    table[2] = right_table(3)[2]
    report = ask((q, k, v), plain(q, read(k, table), read(v, table)))
    assert "40 to 47 in the place of 24 to 31 (batch entries 0, 1)" in str(report)


def test_queries_of_a_chunk_behind_a_cache():
    q, k, v = inputs(0, queries=20)
    table = changed(p3=(0, 5), p6=(1, 1))
    keep = np.tri(20, 96, 76, dtype=bool)
    wrong = plain(q, read(k, table), read(v, table), keep)
    report = ask((q, k, v), wrong, causal=True, causal_align="bottom-right")
    assert named(report) == {"misread_pages"}


def test_caches_of_lengths_of_their_own():
    q, k, v = inputs(1)
    table = changed(p3=(1, 3))
    keep = (np.arange(96) < np.array([80, 70])[:, None])[:, None, None]
    wrong = plain(q, read(k, table), read(v, table), keep)
    # Padding may hold anything.
    k[1, :, 70:], v[0, :, 80:] = np.nan, np.inf
    report = ask((q, k, v), wrong, kv_lengths=[80, 70])
    assert named(report) == {"misread_pages"}


def test_shared_heads_and_a_rotary_embedding():
    q, k, v = draw(2, (1, 4, 1, 16), (1, 2, 96, 16), (1, 2, 96, 16))
    angle = np.outer(np.arange(96), 10000.0 ** (-np.arange(8) / 8))

    def turned(rows, angle):
        made = (rows[..., :8] + 1j * rows[..., 8:]) * np.exp(1j * angle)
        return np.concatenate([made.real, made.imag], axis=-1)

    order = np.arange(96).reshape(-1, 8)[[0, 1, 2, 5, *range(4, 12)]].ravel()
    keys, values = (array[:, :, order].repeat(2, axis=1) for array in (turned(k, angle), v))
    wrong = plain(turned(q, angle[-1:]), keys, values)
    assert named(ask((q, k, v), wrong, rope="half", query_offset=95)) == {"misread_pages"}


@pytest.mark.usefixtures("one_mistake")
def test_many_scattered_keys_have_no_name():
    q, k, v = inputs(3, batch=1, keys=60)
    order = np.random.default_rng(0).permutation(60)
    assert "misread_pages" not in named(ask((q, k, v), plain(q, k, v[:, :, order])))
    noise = plain(q, k, v) * (1 + 0.01 * draw(9, q.shape)[0])
    assert named(ask((q, k, v), noise)) == set()


def test_two_rows_of_values_that_are_exchanged():
    q, k, v = draw(0, *[(1, 2, 6, 8)] * 3)
    report = ask((q, k, v), plain(q, k, v[:, :, [1, 0, 2, 3, 4, 5]]))
    assert "value 1 in the place of 0; value 0 in the place of 1" in str(report)
