"""The widening of 2-byte floats: bit for bit what NumPy's own conversion gives."""

import tracemalloc

import numpy as np
import pytest

from attncli.numerics.dtypes import BFLOAT16, is_finite, widen

EVERY = np.arange(2**16, dtype=np.uint16).view(np.float16)
FINITE = EVERY[np.isfinite(EVERY)]
MANY = np.tile(EVERY, 6).reshape(6, 64, 1024)


def bits(array):
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "halves",
    [
        FINITE,
        EVERY,
        EVERY[~np.isfinite(EVERY)],
        EVERY.reshape(256, 256).T,
        FINITE[::-3],
        EVERY.reshape(2, 8, 64, 64),
        MANY,
        MANY.swapaxes(0, 2),
        MANY[:, ::3],
        np.tile(FINITE, 10),
        FINITE.astype(">f2"),
        EVERY[:0],
        np.float16(3).reshape(()),
        np.float16(np.inf).reshape(()),
    ],
    ids=lambda halves: f"{halves.shape}",
)
def test_every_float16_widens_as_numpy_widens_it(halves, dtype):
    wide = widen(halves, dtype)
    assert (wide.shape, wide.dtype) == (halves.shape, np.dtype(dtype))
    np.testing.assert_array_equal(bits(wide), bits(halves.astype(dtype)))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("index", [0, 2**19 - 1, 400_000])
def test_one_number_that_is_not_finite_is_found(bad, index):
    halves = np.zeros(2**19, np.float16)
    assert is_finite(halves)
    halves[index] = bad
    assert not is_finite(halves)
    brain = np.zeros(2**19, np.uint16)
    assert is_finite(brain.view(BFLOAT16))
    brain[index] = np.array(bad, np.float32).view(np.uint32) >> 16
    assert not is_finite(brain.view(BFLOAT16))


def test_finite_halves_are_found_so_without_a_copy():
    halves = np.zeros((4, 2**16, 64), np.float16)
    tracemalloc.start()
    try:
        assert is_finite(halves)
        assert tracemalloc.get_traced_memory()[1] < halves.nbytes / 10
    finally:
        tracemalloc.stop()
