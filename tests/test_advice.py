"""Advice: a right result that is probably not what was meant says so, and how to mend it."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from attncli import AttnWarning, attention, pose, solve
from attncli.api import solve_averaged
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


def test_wider_inputs_are_not_measured_by_float16():
    query = np.full((1, 2), 1e4, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(query, query, query)


def test_mask_that_hides_almost_everything_is_told():
    mask = np.eye(12, dtype=bool)
    with pytest.warns(AttnWarning, match="inverted.*--mask-means drop"):
        attention(np.ones((12, 2)), np.ones((12, 2)), np.ones((12, 1)), mask=mask)


def test_causal_with_unequal_lengths_names_both_readings():
    with pytest.warns(AttnWarning, match=r"(?s)top-left.*bottom-right.*--causal-align"):
        attention(np.ones((2, 2)), np.ones((3, 2)), np.ones((3, 1)), causal=True)


@pytest.mark.parametrize("said", [{"causal_align": "top-left"}, {"query_offset": 1}])
def test_causal_with_a_said_alignment_is_silent(said):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attention(np.ones((2, 2)), np.ones((3, 2)), np.ones((3, 1)), causal=True, **said)


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


def test_head_axis_longer_than_the_sequence_is_told():
    query = np.ones((1, 100, 4, 2))
    with pytest.warns(AttnWarning, match=r"exchanged.*bshd"):
        attention(query, query, query)


def test_three_axes_of_mask_where_batch_and_heads_are_equally_many():
    query = np.ones((2, 2, 3, 4))
    with pytest.warns(AttnWarning, match=r"\(H, L, S\).*\(B, 1, L, S\)"):
        attention(query, query, query, mask=np.ones((2, 3, 3), bool))


def test_warning_points_at_the_caller():
    with pytest.warns(AttnWarning) as caught:
        attention(np.ones((2, 2)), np.ones((3, 2)), np.ones((3, 1)), causal=True)
    assert caught[0].filename == __file__


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


def test_float16_is_advised_on_where_the_mean_of_the_heads_is_all_that_is_asked_for():
    large = np.full((2, 3, 4), 200, np.float16)
    with pytest.warns(AttnWarning, match="beyond float16's 65504"):
        solve_averaged(pose(large, large, layout="hsd"), ("weights",), threads=1)


@pytest.mark.parametrize("outputs", [("weights",), ("weights", "context"), ("context",)])
def test_queries_that_see_nothing_are_counted_once_beside_the_mean_of_the_heads(outputs):
    mask = np.ones((4, 3), bool)
    mask[1:3] = False
    heads = np.ones((2, 4, 2)), np.ones((2, 3, 2)), np.ones((2, 3, 1))
    with pytest.warns(AttnWarning, match="4 of 8 queries see no key") as caught:
        solve_averaged(pose(*heads, layout="hsd", mask=mask), outputs, threads=1)
    assert len(caught) == 1


class TestPaddingOnTheRight:
    """With bottom-right, keys that only a padding mask hides are counted all the same."""

    RIGHT = np.arange(6) < np.array([[4], [6]])

    def pose(self, **rules):
        inputs = np.ones((2, 3, 4)), np.ones((2, 6, 4)), np.ones((2, 6, 4))
        return pose(*inputs, causal=True, causal_align="bottom-right", **rules)

    def test_elsewhere_is_not(self, recwarn):
        self.pose(key_padding_mask=self.RIGHT[:, ::-1])
        self.pose(kv_lengths=[4, 6])
        self.pose(kv_lengths=[4, 6], key_padding_mask=self.RIGHT)
        assert not recwarn.list


def test_one_mask_is_doubted_once():
    mask = np.zeros((5, 5), bool)
    mask[0, 0] = True
    with pytest.warns(AttnWarning) as caught:
        attention(np.ones((5, 1)), np.ones((5, 1)), mask=mask)
    assert sum("inverted" in str(warning.message) for warning in caught) == 1
