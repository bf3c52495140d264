"""The exponential that is the quickest on this processor, and what it leaves out."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from nearness import assert_near

from attncli.engine.exponentials import (
    exp_flush_negligible,
    exp_raise_negligible,
    quickest_unit,
    score_floor,
)
from attncli.engine.scratch import Scratch

NATS, BITS = 1.0, 1 / math.log(2)


@pytest.fixture
def numpy_with(monkeypatch):
    """Let NumPy say which instructions its exp2 uses."""

    def have(module):
        monkeypatch.setitem(sys.modules, "numpy.lib.introspect", module)
        quickest_unit.cache_clear()

    yield have
    quickest_unit.cache_clear()


@pytest.mark.parametrize(
    ("ways", "unit"),
    [
        ({"exp2": {"ff": {"current": "X86_V4"}}}, BITS),
        ({"exp2": {"ff": {"current": "AVX512_SKX"}}}, BITS),
        ({"exp2": {"ff": {"current": "baseline(X86_V2)"}}}, NATS),
        ({"exp2": {}}, NATS),
        ({}, NATS),
    ],
)
def test_exp2_where_it_has_vector_instructions(ways, unit, numpy_with):
    asked = []

    def opt_func_info(name, kind):
        asked.append((name, kind))
        return ways

    numpy_with(SimpleNamespace(opt_func_info=opt_func_info))
    assert quickest_unit(np.dtype(np.float32)) == unit
    assert asked == [("^exp2$", "^float32$")]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numpy_tells_of_both_precisions(dtype):
    from numpy.lib.introspect import opt_func_info

    (ways,) = opt_func_info("^exp2$", f"^{dtype}$").values()
    assert len(ways) == 1
    assert quickest_unit(np.dtype(dtype)) in {NATS, BITS}


@pytest.mark.parametrize("turned", [False, True])
def test_what_is_not_felt_is_0(turned):
    for dtype, unit in ((np.float32, NATS), (np.float32, BITS), (np.float64, NATS)):
        scores = np.array([-np.inf, -1e9, -800, -5, 0], dtype) * dtype(unit)
        tile = np.tile(scores, (2, 3, 4, 1)).swapaxes(2, 3)
        tile = tile.copy() if turned else tile
        exp_flush_negligible(tile, unit, Scratch(np.dtype(dtype), 5, lambda: None))
        assert not tile[:, :, :3].any()
        expected = np.broadcast_to([[np.exp(-5)], [1]], (2, 3, 2, 4))
        assert_near(tile[:, :, 3:], expected, rtol=1e-5)


def test_what_is_not_felt_may_stay_as_little():
    for dtype, unit in ((np.float32, NATS), (np.float32, BITS), (np.float64, NATS)):
        least = np.exp(score_floor(np.dtype(dtype)))
        scores = np.array([-1e9, -800, -5, 0], dtype) * dtype(unit)
        tile = np.tile(scores, (2, 3, 4, 1))
        exp_raise_negligible(tile, unit, Scratch(np.dtype(dtype), 4, lambda: None))
        expected = np.broadcast_to([least, least, np.exp(-5), 1], tile.shape)
        assert_near(tile, expected, rtol=1e-4)
