"""Keys that are counted more than once, or not at all, are told from contexts and weights."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain
from referee_tried import one_mistake  # noqa: F401 - a fixture

SHAPE = (1, 2, 24, 8)
CAUSAL = np.tri(24, dtype=bool)


def counting(counts, keep=CAUSAL, sinks=None, seed=0):
    """Return inputs, and the exponentials and their sums where keys count so often."""
    q, k, v = (array.astype("f2").astype("f8") for array in draw(seed, *[SHAPE] * 3))
    shares = np.where(keep, np.exp(q @ k.swapaxes(-1, -2) * 8**-0.5), 0) * counts
    total = shares.sum(-1, keepdims=True)
    return (q, k, v), shares, total if sinks is None else total + sinks[:, None, None]


def often(**times):
    counts = np.ones(24)
    for keys, count in times.items():
        first, end = map(int, keys[1:].split("_"))
        counts[first:end] = count
    return counts


SOME_PARTS = [(3, "float32", 1), (8, "float16", 6), (32, "float32", 6)]
COUNTS = [
    (often(k0_6=2), "keys 0 to 5 count twice"),  # a prefix in two parts that overlap
    (often(k0_20=2), "keys 0 to 19 count twice"),
    (often(k5_6=9), "key 5 counts 9 times"),  # an index beyond the last key, clamped
    (often(k3_5=0, k7_8=3), "keys 3 to 4 do not count and key 7 counts 3 times"),
]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        pytest.param(*case, marks=() if at in (1, 3) else pytest.mark.long)
        for at, case in enumerate(COUNTS)
    ],
)
@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float16"))
def test_keys_count_so_often(counts, words, dtype):
    inputs, shares, total = counting(counts)
    given = [array.astype(dtype) for array in inputs]
    for expected in (shares / total @ inputs[2], {"weights": shares / total}):
        convention = only(ask(given, expected, dtype, causal=True))
        assert convention.name == "counted_keys"
        assert convention.meaning == f"the numbers are right if {words}"


def test_a_key_and_the_sink_count_so_often():
    sinks = np.array([0.3, -1.0])
    inputs, shares, total = counting(often(k2_3=2), sinks=3 * np.exp(sinks))
    convention = only(ask(inputs, shares / total @ inputs[2], causal=True, sinks=sinks))
    assert convention.meaning.endswith("if key 2 counts twice and the sink counts 3 times")


def in_parts(parts, q, k, v, sinks):
    """Attend to each part of the keys and the sink, and put the parts' results together."""
    made = []
    for keys, values in zip(*(np.array_split(a, parts, axis=2) for a in (k, v)), strict=True):
        shares = np.exp(q @ keys.swapaxes(-1, -2) * q.shape[-1] ** -0.5)
        total = shares.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None]
        made.append((shares @ values / total, total))
    return sum(c * total for c, total in made) / sum(total for _, total in made)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("parts", "dtype", "queries"),
    long_but(product([3, 8, 32], ["float32", "float16"], [1, 6]), *SOME_PARTS),
)
def test_each_part_of_the_keys_counts_the_sink(parts, dtype, queries, seed):
    given = draw(seed, (1, 4, queries, 32), (1, 4, 96, 32), (1, 4, 96, 32), dtype=dtype)
    sinks = np.array([1.5, 0.0, 2.5, -1.0])
    inputs = [array.astype("f8") for array in given]
    assert ask(given, in_parts(1, *inputs, sinks), dtype, sinks=sinks).passed
    convention = only(ask(given, in_parts(parts, *inputs, sinks), dtype, sinks=sinks))
    assert convention.name == "sinks_counted"
    assert convention.meaning.startswith(f"the sink of each head counts {parts} times")


def test_of_two_parts_the_sink_counts_twice():
    given = draw(0, (1, 4, 6, 32), (1, 4, 96, 32), (1, 4, 96, 32))
    sinks = np.array([1.5, 0.0, 2.5, -1.0])
    wrong = in_parts(2, *(array.astype("f8") for array in given), sinks)
    assert named(ask(given, wrong, sinks=sinks)) == {"sinks_twice"}


@pytest.mark.usefixtures("one_mistake")
def test_a_sink_that_counts_no_whole_number_of_times_is_another_sink():
    given = draw(0, (1, 4, 6, 32), (1, 4, 96, 32), (1, 4, 96, 32))
    sinks = np.array([1.5, 0.0, 2.5, -1.0])
    wrong = in_parts(1, *(array.astype("f8") for array in given), sinks + np.log(3.5))
    assert named(ask(given, wrong, sinks=sinks)) == {"another_sink"}


def test_keys_that_no_query_sees_count_as_they_may():
    keep = CAUSAL.copy()
    keep[:, 11] = False
    inputs, shares, total = counting(often(k2_3=2), keep)
    report = ask(inputs, shares / total @ inputs[2], causal=True, mask=keep)
    assert only(report).meaning == "the numbers are right if key 2 counts twice"


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_of_each_batch_entry_that_nobody_stated(seed):
    q, k, v = draw(seed, *[(2, 2, 24, 8)] * 3)
    real = np.ones((2, 24), np.bool_)
    real[0, [1, 5, 6, 7]] = real[1, [0, 9]] = False
    convention = only(ask((q, k, v), plain(q, k, v, real[:, None, None])))
    assert convention.name == "counted_keys"
    assert convention.meaning.endswith(
        "in batch entry 0, keys 1 and 5 to 7 do not count; "
        "in batch entry 1, keys 0 and 9 do not count"
    )
    assert "--key-padding-mask" in convention.fix


@pytest.mark.parametrize("count", long_but([0.7, 1.3, 70], 1.3))
@pytest.mark.usefixtures("one_mistake")
def test_counts_that_are_not_whole_have_no_name(count):
    inputs, shares, total = counting(often(k2_3=count))
    inputs, wrong = (array[0, 0] for array in inputs), (shares / total @ inputs[2])[0, 0]
    assert named(ask(inputs, wrong, causal=True)) == set()
