"""`merge`: parts of the keys give the whole, in any order and grouping."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attncli


def whole_and_parts(seed, cuts, *, sinks=None, dtype=np.float64, **rules):
    """Return the plain softmax over all keys, and (context, lse) of each stretch of keys."""
    random = np.random.default_rng(seed)
    query, key, value = (random.normal(size=(2, 3, n, 4)).astype(dtype) for n in (5, 12, 12))
    scores = query.astype(float) @ key.astype(float).swapaxes(2, 3) / 2
    scores = np.where(rules.get("seen", True), scores, -np.inf)

    def softmax(some, logits):
        above = np.exp(some).sum(-1) + (0 if logits is None else np.exp(logits)[:, None])
        context = np.exp(some) @ value[:, :, stretch].astype(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.nan_to_num(context / above[..., None]), np.log(above)

    edges = [0, *sorted(cuts), 12]
    parts = []
    for start, stop in pairwise(edges):
        if start < stop:
            stretch = slice(start, stop)
            parts.append(softmax(scores[..., stretch], sinks if rules.get("in_every") else None))
    stretch = slice(0, 12)
    return softmax(scores, sinks), parts


@given(
    seed=st.integers(0, 100),
    cuts=st.lists(st.integers(1, 11), max_size=4, unique=True),
    shuffled=st.randoms(use_true_random=False),
)
def test_any_order_and_grouping_gives_the_whole(seed, cuts, shuffled):
    (context, lse), parts = whole_and_parts(seed, cuts)
    shuffled.shuffle(parts)
    made = attncli.merge(parts)
    np.testing.assert_allclose(made.context, context, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(made.lse, lse, rtol=1e-14)
    half = attncli.merge(parts[: len(parts) // 2 or 1])
    grouped = attncli.merge([(half.context, half.lse), *parts[len(parts) // 2 or 1 :]])
    np.testing.assert_allclose(grouped.context, context, rtol=1e-13, atol=1e-14)


def test_parts_that_saw_no_key_do_not_count():
    seen = np.ones((5, 12), bool)
    seen[0], seen[1, :6] = False, False
    (context, lse), parts = whole_and_parts(3, [6], seen=seen)
    # What a kernel leaves in the rows of a part that saw no key may be anything.
    parts[0][0][:, :, 1] = np.nan
    made = attncli.merge(parts)
    np.testing.assert_allclose(made.context[:, :, 1:], context[:, :, 1:], rtol=1e-13, atol=1e-14)
    assert np.isneginf(made.lse[:, :, 0]).all()
    assert np.isneginf(lse[:, :, 0]).all()
    assert (made.context[:, :, 0] == 0).all()


@pytest.mark.parametrize("where", ["none", "every"])
def test_sinks_count_once(where):
    sinks = np.array([0.5, -1.0, 3.0])
    (context, lse), parts = whole_and_parts(4, [3, 8], sinks=sinks, in_every=where == "every")
    made = attncli.merge(parts, sinks=sinks, sinks_in=where)
    np.testing.assert_allclose(made.context, context, rtol=1e-12)
    np.testing.assert_allclose(made.lse, lse, rtol=1e-12)


def test_base_two():
    (context, lse), parts = whole_and_parts(5, [3, 8])
    made = attncli.merge([(c, log / np.log(2)) for c, log in parts], lse_base=2)
    np.testing.assert_allclose(made.context, context, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(made.lse, lse / np.log(2), rtol=1e-13)


def test_far_apart_parts_keep_their_digits():
    parts = [(np.ones((1, 1)), np.array([1e4])), (np.zeros((1, 1)), np.array([-1e4]))]
    made = attncli.merge(parts)
    assert (made.context.item(), made.lse.item()) == (1.0, 1e4)


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([], {}),
        ([(np.ones((2, 3)), np.ones(3))], {}),
        ([(np.ones((2, 3)), np.ones(2)), (np.ones((2, 4)), np.ones(2))], {}),
        ([(np.ones((2, 3)), np.ones(2))], {"sinks_in": "every"}),
    ],
)
def test_wrong_parts_are_refused(parts, options):
    with pytest.raises(attncli.AttnError):
        attncli.merge(parts, **options)
