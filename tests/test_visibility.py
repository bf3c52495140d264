"""Tiles, spans, intervals and reasons against the definition, one query and key at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli import attention
from attncli.problem.segments import Segments
from attncli.problem.visibility import Visibility

Draw = Any


class Case(NamedTuple):
    visible: Visibility
    batch: int
    head: int


def sees(case: Case, i: int, j: int) -> dict[str, bool]:
    """Say of each rule whether it lets query i see key j, from the words of the definition."""
    v, batch, head = case
    at = i + one(v.offsets, batch)
    left, right = v.window or (None, None)
    return {
        "mask": v.mask is None
        or bool(np.broadcast_to(v.mask, (3, 3, v.queries, v.keys))[batch, head, i, j]),
        "key_padding_mask": v.key_padding_mask is None
        or bool(np.broadcast_to(v.key_padding_mask, (3, v.keys))[batch, j]),
        "kv_lengths": v.kv_lengths is None or j < one(v.kv_lengths, batch),
        "query_lengths": v.query_lengths is None or i < one(v.query_lengths, batch),
        "causal": not v.causal or j <= at,
        "window": (left is None or at - left <= j) and (right is None or j <= at + right),
        "segment_ids": v.segment_ids is None
        or one(tuple(v.segment_ids.queries), batch)[i] == one(tuple(v.segment_ids.keys), batch)[j],
    }


def one(values: tuple[Any, ...], batch: int) -> Any:
    return values[0] if len(values) == 1 else values[batch]


def truth(case: Case, names: tuple[str, ...] | None = None) -> np.ndarray:
    v = case.visible
    return np.array(
        [
            [
                all(ok for name, ok in sees(case, i, j).items() if names is None or name in names)
                for j in range(v.keys)
            ]
            for i in range(v.queries)
        ]
    )


BANDED = ("kv_lengths", "query_lengths", "causal", "window")


@st.composite
def packed(draw: Draw, batches: int, queries: int, keys: int) -> Segments:
    """Draw numbers of few sequences, of which those of the keys may grow."""
    ids = st.integers(0, 3)
    entries = draw(st.sampled_from([1, batches])), draw(st.sampled_from([1, batches]))
    of_queries, of_keys = (
        np.array(draw(st.lists(ids, min_size=count * n, max_size=count * n))).reshape(count, n)
        for count, n in zip(entries, (queries, keys), strict=True)
    )
    return Segments(of_queries, np.sort(of_keys) if draw(st.booleans()) else of_keys)


@st.composite
def cases(draw: Draw, *, segments: bool = True) -> Case:
    queries, keys = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    batches = draw(st.sampled_from([1, 3]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))

    def bools(*shape: int) -> np.ndarray:
        return random.random([draw(st.sampled_from([1, n])) for n in shape]) < 0.7

    def counts(high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(0, high)) for _ in range(batches))

    side = st.none() | st.integers(0, 8)
    visible = Visibility(
        queries,
        keys,
        offsets=tuple(draw(st.integers(-9, 9)) for _ in range(batches)),
        mask=bools(3, 3, queries, keys) if draw(st.booleans()) else None,
        key_padding_mask=random.random((batches, keys)) < 0.7 if draw(st.booleans()) else None,
        kv_lengths=counts(keys) if draw(st.booleans()) else None,
        query_lengths=counts(queries) if draw(st.booleans()) else None,
        causal=draw(st.booleans()),
        window=draw(st.none() | st.tuples(side, side)),
        segment_ids=draw(packed(batches, queries, keys))
        if segments and draw(st.booleans())
        else None,
    )
    return Case(visible, draw(st.integers(0, 2)), draw(st.integers(0, 2)))


def part(draw: Draw, count: int) -> tuple[int, int]:
    start = draw(st.integers(0, count - 1))
    return start, draw(st.integers(start + 1, count))


@settings(max_examples=50, deadline=None)
@given(cases(), st.data())
def test_a_tile_is_its_part_of_the_definition(case: Case, data: st.DataObject) -> None:
    visible, batch, head = case
    rows, columns = part(data.draw, visible.queries), part(data.draw, visible.keys)
    expected = truth(case)[slice(*rows), slice(*columns)]
    tile = visible.tile(batch, head, rows, columns)
    if tile is None:
        assert expected.all()
    else:
        np.testing.assert_array_equal(np.broadcast_to(tile, expected.shape), expected)


@settings(max_examples=50, deadline=None)
@given(cases(segments=False), st.data())
def test_a_span_is_the_smallest_interval_that_the_banded_rules_need(
    case: Case, data: st.DataObject
) -> None:
    visible, batch, _ = case
    rows = part(data.draw, visible.queries)
    seen = np.flatnonzero(truth(case, BANDED)[slice(*rows)].any(axis=0))
    expected = (int(seen[0]), int(seen[-1]) + 1) if seen.size else (0, 0)
    assert visible.span(batch, *rows) == expected


@settings(max_examples=50, deadline=None)
@given(cases(), st.data())
def test_reasons_name_every_rule_that_hides_a_key(case: Case, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, case.visible.queries - 1))
    j = data.draw(st.integers(0, case.visible.keys - 1))
    expected = tuple(rule for rule, ok in sees(case, i, j).items() if not ok)
    assert case.visible.reasons(case.batch, case.head, i, j) == expected


def test_a_worked_example_of_two_queries_after_a_cache_of_three() -> None:
    visible = Visibility(2, 5, offsets=(3,), causal=True, window=(2, None))
    expected = [[False, True, True, True, False], [False, False, True, True, True]]
    np.testing.assert_array_equal(visible.tile(0, 0, (0, 2), (0, 5)), expected)
    assert visible.reasons(0, 0, 0, 0) == ("window",)
    assert visible.reasons(0, 0, 0, 4) == ("causal",)


@pytest.mark.filterwarnings("ignore:.*no key:attncli.AttnWarning")
@pytest.mark.parametrize("dtype", ["bool", "u1", "i8", "f4"])
@pytest.mark.parametrize("means", ["keep", "drop"])
@pytest.mark.parametrize("shape", [(2, 3, 70, 90), (70, 90), (3, 1, 90), (70, 1)])
def test_a_mask_may_be_of_any_numbers(shape, means, dtype):
    random = np.random.default_rng(0)
    seen = random.random(shape) < 0.6
    numbers = (seen if means == "keep" else ~seen).astype(dtype)
    q, k, v = (random.normal(size=(2, 3, n, 4)) for n in (70, 90, 90))
    found = attention(q, k, v, mask=numbers, mask_means=means, outputs=("weights", "context"))
    scores = np.where(np.broadcast_to(seen, (2, 3, 70, 90)), q @ k.swapaxes(-1, -2) / 2, -np.inf)
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores)
        weights = np.nan_to_num(powers / powers.sum(-1, keepdims=True))
    np.testing.assert_allclose(found.weights, weights, atol=1e-14)
    np.testing.assert_allclose(found.context, weights @ v, atol=1e-13)


def test_a_large_mask_of_numbers_is_read_tile_by_tile_and_hides_the_same():
    """What has more than four million numbers is not turned into booleans beforehand."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 2100, 4))
    seen = np.random.default_rng(1).random((2100, 2100)) < 0.6
    expected = attention(q, k, v, mask=seen).context
    for means, numbers in (("keep", seen), ("drop", ~seen)):
        found = attention(q, k, v, mask=numbers.astype("u1"), mask_means=means).context
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
