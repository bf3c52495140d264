"""Rotary positions that are some off, or that begin anew in each chunk or on each rank."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, only, plain

S = 24
PLACES = np.arange(S)
TRIL = np.tri(S, dtype=bool)
# Of 24 tokens: two ranks, four, and a power of two that leaves a part of a chunk.
SIZES = long_but([12, 6, 16], 6)


def turned(rows, positions):
    """Rotate by halves, as products of complex numbers."""
    half = rows.shape[-1] // 2
    angles = np.multiply.outer(positions, 10000.0 ** (-np.arange(half) / half))
    made = (rows[..., :half] + 1j * rows[..., half:]) * np.exp(1j * angles)
    return np.concatenate([made.real, made.imag], axis=-1)


def attended(inputs, queries, keys, keep=True):
    """Attend with queries and keys that are rotated by these positions."""
    q, k, v = inputs
    return plain(turned(q, queries), turned(k, keys), v, keep)


@pytest.mark.parametrize("step", long_but([3, -5, 20], -5))
@pytest.mark.parametrize("causal", long_but([False, True], True))
def test_queries_that_are_rotated_some_positions_further(step, causal):
    inputs = draw(0, *[(1, 1, S, 8)] * 3)
    wrong = attended(inputs, PLACES + step, PLACES, TRIL if causal else True)
    convention = only(ask(inputs, wrong, rope="half", causal=causal))
    assert convention.name == "rope_queries_moved"
    words = f"{abs(step)} positions too {'late' if step > 0 else 'early'}"
    assert convention.meaning == f"the rotary embedding takes the queries {words}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", long_but(["float32", "float16"], "float32"))
def test_positions_that_restart_in_each_chunk(size, dtype):
    inputs = [array.astype("f2").astype(dtype) for array in draw(0, *[(1, 1, S, 8)] * 3)]
    wrong = attended(inputs, PLACES % size, PLACES % size, TRIL)
    convention = only(ask(inputs, wrong, dtype, rope="half", causal=True))
    assert convention.name == "rope_positions_restart"
    assert f"from 0 again after every {size} tokens" in convention.meaning


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", long_but(["float32", "float16"], "float32"))
def test_positions_of_queries_that_restart_in_each_chunk(size, dtype):
    """As where keys of all ranks are gathered, and queries stay where they are."""
    inputs = [array.astype("f2").astype(dtype) for array in draw(0, *[(1, 1, S, 8)] * 3)]
    wrong = attended(inputs, PLACES % size, PLACES, TRIL)
    convention = only(ask(inputs, wrong, dtype, rope="half", causal=True))
    assert convention.name == "rope_query_positions_restart"
    assert f"the queries from 0 again after every {size} tokens" in convention.meaning


@pytest.mark.long
def test_positions_that_restart_among_new_queries():
    """Keys of 10 tokens are in the cache; chunks are of 16."""
    inputs = draw(0, (1, 1, 14, 8), *[(1, 1, S, 8)] * 2)
    wrong = attended(inputs, PLACES[10:] % 16, PLACES, TRIL[10:])
    report = ask(inputs, wrong, rope="half", causal=True, query_offset=10)
    assert named(report) == {"rope_query_positions_restart"}


def test_of_one_query_a_restart_is_only_another_position():
    inputs = draw(0, (1, 4, 1, 8), *[(1, 4, S, 8)] * 2)
    wrong = attended(inputs, [S - 1 - 16], PLACES)
    report = ask(inputs, wrong, rope="half", causal=True, query_offset=S - 1)
    assert only(report).name == "rope_queries_moved"
    assert "16 positions too early" in only(report).meaning


@pytest.mark.long
def test_restarts_of_keys_that_batch_entries_share():
    inputs = draw(0, (2, 1, S, 8), *[(1, 1, S, 8)] * 2)
    wrong = attended(inputs, PLACES % 8, PLACES % 8)
    assert named(ask(inputs, wrong, rope="half")) == {"rope_positions_restart"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "keys"), [("rope_positions_restart", 64), ("rope_query_positions_restart", 512)]
)
def test_restarts_in_slices_of_a_long_problem(name, keys):
    """The first slice with wrong rows shows the second chunk alone."""
    places = np.arange(512)
    inputs = draw(0, *[(1, 2, 512, 16)] * 3)
    wrong = attended(inputs, places % 64, places % keys, np.tri(512, dtype=bool))
    report = ask(inputs, wrong, rope="half", causal=True)
    assert only(report).name == name
    assert "every 64 tokens" in only(report).meaning
    assert "one explanation makes the numbers agree" in str(report)
