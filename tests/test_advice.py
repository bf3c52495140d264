"""Advice: a right result that is probably not what was meant says so, and how to mend it."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from attncli import AttnWarning, attention, pose, solve
from attncli.problem.advice import advise


def half(*shape, size):
    return np.full(shape, size, np.float16)


def test_float16_products_beyond_its_range_are_told():
    query, key = half(2, 8, size=100), half(3, 8, size=100)
    with pytest.warns(AttnWarning, match=r"reach 8e\+04, beyond float16's 65504"):
        attention(query, key, key)


def test_float16_products_within_its_range_are_not_told():
    # 64 · 250² is beyond it, but not the lengths of the rows.
    query = key = np.array([[250] + [0] * 63], np.float16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(query, key, key)


@pytest.mark.parametrize("bias", [None, [0.5, 0.5]])
def test_a_bias_of_the_projection_is_told_where_there_is_one(bias):
    x = np.ones((3, 2))
    with pytest.warns(AttnWarning, match="see no key") as caught:
        solve(pose(x, x, x, mask=np.zeros((3, 3), bool), wo=np.eye(2), bo=bias))
    assert any("adds its bias" in str(one.message) for one in caught) is (bias is not None)


def test_queries_that_see_nothing_are_counted_once():
    mask = np.ones((4, 3), bool)
    mask[1:3] = False
    with pytest.warns(AttnWarning, match="2 of 4 queries see no key") as caught:
        attention(np.ones((4, 2)), np.ones((3, 2)), np.ones((3, 1)), mask=mask)
    assert len(caught) == 1


@pytest.mark.parametrize("largest", [4.0, 250.0])
def test_the_limit_of_float16_is_looked_for_without_a_copy(largest):
    # 64 · 250² is beyond it, though no product of such rows is.
    keys = np.zeros((1, 2**17, 64), np.float16)
    keys[..., 0] = largest
    problem = pose(keys[:, :2], keys, keys, layout="hsd")
    tracemalloc.start()
    try:
        advise(problem)
        assert tracemalloc.get_traced_memory()[1] < keys.nbytes / 2
    finally:
        tracemalloc.stop()
