"""Wrong attention over packed sequences is named."""

import numpy as np
import pytest
from referee_numpy import SEEDS, ask, draw, named, plain

L = 24
IDS = np.repeat([0, 1, 2, 3], [5, 9, 3, 7])
BEFORE = np.arange(L)[:, None] >= np.arange(L)


def same(queries, keys):
    return queries[..., :, None] == keys[..., None, :]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("segment_ids_ignored", np.ones((L, L), bool)),
        ("segments_end_late", same(np.roll(IDS, 1), np.roll(IDS, 1))),
        ("segments_end_early", same(np.roll(IDS, -1), np.roll(IDS, -1))),
    ],
)
def test_sequences_that_are_cut_elsewhere(seed, causal, name, seen):
    q, k, v = draw(seed, *[(2, 4, L, 8)] * 3)
    if name.startswith("segments_end"):  # nothing comes before the first, or after the last
        ids = IDS[[0, *range(L - 1)]] if name.endswith("late") else IDS[[*range(1, L), L - 1]]
        seen = same(ids, ids)
    wrong = plain(q, k, v, seen & BEFORE if causal else seen)
    assert named(ask((q, k, v), wrong, segment_ids=IDS, causal=causal)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("segment_ids_inverted", ~same(IDS, IDS)),
        ("segment_ids_in_order", IDS[:, None] >= IDS),
    ],
)
def test_numbers_that_are_compared_otherwise(seed, name, seen):
    q, k, v = draw(seed, *[(2, 4, L, 8)] * 3)
    assert named(ask((q, k, v), plain(q, k, v, seen), segment_ids=IDS)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_sequences_of_another_batch_entry(seed):
    q, k, v = draw(seed, *[(2, 4, L, 8)] * 3)
    both = np.stack([IDS, IDS[::-1]])
    right = plain(q, k, v, same(both, both)[:, None])
    assert ask((q, k, v), right, segment_ids=both).passed
    wrong = plain(q, k, v, same(IDS, IDS))
    assert named(ask((q, k, v), wrong, segment_ids=both)) == {"segment_ids_of_first_entry"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("segment_ids_added", lambda scores, seen: scores + seen),
        ("segment_ids_multiplied", lambda scores, seen: scores * seen),
    ],
)
def test_sequences_that_are_terms_of_the_scores(seed, name, change):
    q, k, v = draw(seed, *[(2, 4, L, 8)] * 3)
    changed = np.exp(change(q.astype("f8") @ k.swapaxes(-1, -2) / 8**0.5, same(IDS, IDS)))
    wrong = changed / changed.sum(-1, keepdims=True) @ v
    assert named(ask((q, k, v), wrong, segment_ids=IDS)) == {name}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"segment_ids": IDS}, "leave --segment-ids out"),
        ({"segment_ids": IDS, "kv_segment_ids": IDS + 0}, "--segment-ids and --kv-segment-ids"),
    ],
)
def test_the_option_that_computes_the_same(options, words):
    q, k, v = draw(0, *[(2, 4, L, 8)] * 3)
    assert words in str(ask((q, k, v), plain(q, k, v), **options))


def test_a_long_row_of_sequences():
    q, k, v = draw(0, *[(1, 2, 3000, 8)] * 3)
    ids = np.repeat(np.arange(12), 250)
    late = ids[[0, *range(2999)]]
    wrong = plain(q, k, v, same(late, late))
    assert named(ask((q, k, v), wrong, segment_ids=ids)) == {"segments_end_late"}
