"""Which of several explanations is told: the one that leaves least of what was wrong."""

from __future__ import annotations

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain


@pytest.mark.parametrize("factor", long_but([0.998, 0.999], 0.999))
def test_a_scale_a_little_too_small_is_not_taken_for_rounded_factors(factor):
    """Which are off by as much, in other directions."""
    q, k, v = draw(0, *[(1, 2, 64, 64)] * 3)
    wrong = plain(q, k, v, scale=factor / 8)
    assert only(ask((q, k, v), wrong)).name == "another_scale"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_factor_in_sixteen_bits_is_not_taken_for_a_sink(seed):
    """Which takes as much off contexts of many keys, but not off each the same."""
    q, k, v = (array.astype("f2") for array in draw(seed, *[(1, 2, 128, 64)] * 3))
    wrong = 0.995 * plain(q, k, v)
    assert only(ask((q, k, v), wrong, "float16")).name == "another_factor"


def test_the_last_slot_of_zeros_is_not_taken_for_a_lost_key():
    """Which is seen by one query of many, whose errors do not show beside all roundings."""
    q, k, v = (array.astype("f2") for array in draw(0, *[(1, 2, 160, 64)] * 3))
    none = np.arange(160)[:, None] < 159
    wrong = plain(q, k * none, v * none, np.tri(160, dtype=bool))
    report = ask((q, k, v), wrong, "float16", causal=True)
    assert named(report) == {"last_slot_unwritten"}
