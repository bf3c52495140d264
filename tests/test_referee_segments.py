"""Wrong attention over packed sequences is named."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

from attncli.referee.fitted.sequences import listed

L = 24
IDS = np.repeat([0, 1, 2, 3], [5, 9, 3, 7])
# Nothing comes before the first, or after the last.
LATE, EARLY = IDS[[0, *range(L - 1)]], IDS[[*range(1, L), L - 1]]
BEFORE = np.arange(L)[:, None] >= np.arange(L)


def same(queries, keys):
    return queries[..., :, None] == keys[..., None, :]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", long_but([False, True], True))
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("segment_ids_ignored", np.ones((L, L), bool)),
        ("segments_end_late", same(LATE, LATE)),
        ("segments_end_early", same(EARLY, EARLY)),
        ("segments_of_keys_end_late", same(IDS, LATE)),
        ("segments_of_keys_end_early", same(IDS, EARLY)),
    ],
)
def test_sequences_that_are_cut_elsewhere(seed, causal, name, seen):
    q, k, v = draw(seed, *[(2, 4, L, 8)] * 3)
    wrong = plain(q, k, v, seen & BEFORE if causal else seen)
    assert named(ask((q, k, v), wrong, segment_ids=IDS, causal=causal)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("segment_ids_inverted", ~same(IDS, IDS)),
        ("segment_ids_in_order", IDS[:, None] >= IDS),
        ("segment_ids_in_reverse_order", IDS[:, None] <= IDS),
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


@pytest.mark.usefixtures("small_slices")
def test_a_long_row_of_sequences():
    q, k, v = draw(0, *[(1, 2, 744, 8)] * 3)
    ids = np.repeat(np.arange(12), 62)
    late = ids[[0, *range(743)]]
    wrong = plain(q, k, v, same(late, late))
    assert named(ask((q, k, v), wrong, segment_ids=ids)) == {"segments_end_late"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(24, 16), (2, 4, 24, 16), (2, 4, 72, 16)])
@pytest.mark.parametrize("lengths", [(7, 5), (1, 2, 2, 3, 1, 3)])
def test_sequences_that_nobody_stated(seed, causal, shape, lengths):
    q, k, v = draw(seed, *[shape] * 3)
    size = shape[-2]
    ids = np.repeat(np.arange(len(lengths)), np.array(lengths) * size // 12)
    seen = same(ids, ids) & (np.tri(size, dtype=bool) if causal else True)
    report = ask((q, k, v), plain(q, k, v, seen), causal=causal)
    assert named(report) == {"segments_unasked"}
    begins = np.flatnonzero(np.diff(ids)) + 1
    assert f"new ones begin at token{'s' * (len(begins) > 1)} {begins[0]}" in str(report)
    if size == 24:
        assert f"--segment-ids {','.join(map(str, ids))}" in str(report)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", long_but([1, 2], 2))
def test_sequences_that_nobody_stated_in_a_long_row(causal, heads):
    """The scores of a head are too many to be made at once."""
    ids = np.repeat([0, 1, 2, 3], [75, 125, 109, 91])
    inputs, wrong = unstated((2, heads, 400, 8), ids, causal)
    report = ask(inputs, wrong, causal=causal)
    assert named(report) == {"segments_unasked"}
    assert "new ones begin at tokens 75, 200, 309 [" in str(report)


@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_sequences_that_nobody_stated(causal):
    q, k, _ = draw(0, *[(2, 4, 72, 16)] * 3)
    ids = np.repeat([0, 1, 2], [38, 22, 12])
    seen = same(ids, ids) & (np.tri(72, dtype=bool) if causal else True)
    wrong = softmax(np.where(seen, scaled(q, k), -np.inf))
    report = ask((q, k), {"weights": wrong}, causal=causal)
    assert named(report) == {"segments_unasked"}
    assert "new ones begin at tokens 38, 60" in str(report)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_row_of_two_sequences_is_not_one_of_chunks(seed):
    """Its first part is as long as a chunk would be; no second one is."""
    q, k, v = draw(seed, *[(2, 4, 12, 8)] * 3)
    ids = np.repeat([0, 1], [7, 5])
    wrong = plain(q, k, v, same(ids, ids) & np.tri(12, dtype=bool))
    assert named(ask((q, k, v), wrong, causal=True)) == {"segments_unasked"}


@pytest.mark.parametrize("seed", SEEDS)
def test_queries_without_keys_see_those_of_their_sequence_again(seed):
    """A bias of −1e9 on padding leaves a row of nothing but padding as it was."""
    q, k, v = draw(seed, *[(2, 4, L, 8)] * 3)
    real = np.arange(L) < 14  # of the third sequence no key, of the last none
    keep = same(IDS, IDS) & real
    by_position = same(IDS, IDS)
    scores = np.where(by_position, np.where(keep, scaled(q, k), -1e9), -np.inf)
    report = ask(
        (q, k, v), softmax(scores) @ v, segment_ids=IDS, key_padding_mask=np.tile(real, (2, 1))
    )
    assert "blind_rows_average_by_position" in named(report)


def unstated(shape, ids, causal):
    """Return a query, key and value, and the context of sequences that nobody states."""
    q, k, v = draw(0, *[shape] * 3)
    before = np.tri(shape[2], dtype=bool)
    return (q, k, v), plain(q, k, v, same(ids, ids) & before if causal else same(ids, ids))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("lengths", "words"),
    [((4, 3, 5), "new ones begin at tokens 4, 7"), ((5, 7), "new ones begin at token 5")],
)
def test_unstated_sequences_are_told_with_their_option(causal, lengths, words):
    ids = np.repeat(np.arange(len(lengths)), lengths)
    inputs, wrong = unstated((2, 2, 12, 8), ids, causal)
    report = ask(inputs, wrong, causal=causal)
    assert named(report) == {"segments_unasked"}
    assert f"{words} [" in str(report)
    assert f"--segment-ids {','.join(map(str, ids))}\n" in str(report)


def test_unstated_sequences_of_each_batch_entry():
    ids = np.stack([np.repeat([0, 1, 2], 4), np.zeros(12, int)])
    inputs, wrong = unstated((2, 2, 12, 8), ids[:, None], causal=False)
    report = ask(inputs, wrong)
    assert named(report) == {"segments_unasked"}
    assert "new ones begin at: " in str(report)
    assert "none" in str(report)
    assert "--segment-ids 0" not in str(report)


@pytest.mark.usefixtures("one_mistake")
def test_finer_sequences_than_those_that_are_stated_beside_a_window_are_not_named():
    ids, stated = np.repeat([0, 1, 2], 4), np.repeat([0, 1], [8, 4])
    q, k, v = draw(0, *[(2, 2, 12, 8)] * 3)
    wrong = plain(q, k, v, same(ids, ids) & ~np.tri(12, k=-1, dtype=bool))
    names = named(ask((q, k, v), wrong, segment_ids=stated, window=(0, None)))
    assert names.isdisjoint({"segments_unasked", "segments_elsewhere"})


def test_unstated_sequences_beside_a_window_to_the_right():
    ids = np.repeat([0, 1, 2], 4)
    q, k, v = draw(0, *[(2, 2, 12, 8)] * 3)
    seen = same(ids, ids) & ~np.tri(12, k=-1, dtype=bool)
    report = ask((q, k, v), plain(q, k, v, seen), window=(0, None))
    assert named(report) == {"segments_unasked"}


@pytest.mark.usefixtures("one_mistake")
def test_sequences_that_differ_from_head_to_head_are_only_a_mask():
    ids = np.stack([np.repeat([0, 1, 2], 4), np.repeat([0, 1], 6)])
    inputs, wrong = unstated((2, 2, 12, 8), ids, causal=False)
    assert named(ask(inputs, wrong)) == {"another_mask"}


@pytest.mark.usefixtures("one_mistake")
def test_sequences_that_also_lack_a_key_are_only_a_mask():
    ids = np.repeat([0, 1, 2], 4)
    q, k, v = draw(0, *[(2, 2, 12, 8)] * 3)
    seen = same(ids, ids)
    seen[3, 1] = False
    powers = np.exp(q.astype("f8") @ k.swapaxes(-1, -2) / 8**0.5) * seen
    files = {"weights": powers / powers.sum(-1, keepdims=True)}
    assert named(ask((q, k, v), files)) == {"another_mask"}


def packed(*lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


BEGIN_ELSEWHERE = [
    ((5, 10, 2, 7), ["15 where 14 is right"]),
    ((5, 9, 2, 8), ["16 where 17 is right"]),
    ((5, 9, 3, 3, 4), ["20 where none should"]),
    ((6, 6, 6, 6), ["6 where 5 is right", "12 where 14 is right", "18 where 17 is right"]),
    ((7, 3, 9, 5), ["7 where 5 is right", "10 where 14 is right", "19 where 17 is right"]),
    ((2, 3, 9, 3, 5, 2), ["2 where none should", "22 where none should"]),
]
# Every second one is causal, and the others in the long run.
EITHER = [(case, i % 2 == 0) for i, case in enumerate(BEGIN_ELSEWHERE)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("case", "causal"), long_but(product(BEGIN_ELSEWHERE, [False, True]), *EITHER)
)
def test_sequences_that_begin_elsewhere(seed, case, causal):
    lengths, words = case
    """Stated are 5, 9, 3 and 7 tokens."""
    q, k, v = draw(seed, *[(1, 2, L, 16)] * 3)
    ids = packed(*lengths)
    seen = same(ids, ids)
    wrong = plain(q, k, v, seen & BEFORE if causal else seen)
    report = ask((q, k, v), wrong, causal=causal, segment_ids=IDS)
    assert named(report) == {"segments_elsewhere"}
    begins = "; ".join(f"a sequence begins at token {each}" for each in words)
    assert f"not those of segment_ids: {begins} [" in str(report)
    assert f"--segment-ids {','.join(map(str, ids))}\n" in str(report)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("causal", [False, True])
def test_two_sequences_that_are_taken_for_one(seed, causal):
    q, k, v = draw(seed, *[(1, 2, L, 16)] * 3)
    seen = same(packed(5, 12, 7), packed(5, 12, 7))
    wrong = plain(q, k, v, seen & BEFORE if causal else seen)
    report = ask((q, k, v), wrong, causal=causal, segment_ids=IDS)
    assert named(report) == {"segments_elsewhere"}
    assert "no sequence begins at token 14 [" in str(report)


def test_of_many_sequences_that_begin_elsewhere_a_few_are_told():
    inputs, wrong = unstated((1, 2, L, 16), packed(*[3] * 8), causal=False)
    report = ask(inputs, wrong, segment_ids=packed(*[4] * 6))
    assert named(report) == {"segments_elsewhere"}
    assert (
        "a sequence begins at token 3 where 4 is right; a sequence begins at token 6 where 8 is "
        "right; a sequence begins at token 9 where none should; a sequence begins at token 15 "
        "where 16 is right; and 2 more ["
    ) in str(report)


@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_sequences_that_begin_elsewhere(causal):
    q, k, _ = draw(0, *[(1, 2, L, 16)] * 3)
    ids = packed(5, 10, 2, 7)
    seen = same(ids, ids) & BEFORE if causal else same(ids, ids)
    wrong = softmax(np.where(seen, scaled(q, k), -np.inf))
    report = ask((q, k), {"weights": wrong}, causal=causal, segment_ids=IDS)
    assert named(report) == {"segments_elsewhere"}
    assert "a sequence begins at token 15 where 14 is right [" in str(report)


def test_sequences_of_one_batch_entry_that_begin_elsewhere():
    ids = np.stack([IDS, packed(5, 9, 4, 6)])
    inputs, wrong = unstated((2, 2, L, 16), ids[:, None], causal=True)
    report = ask(inputs, wrong, causal=True, segment_ids=IDS)
    assert named(report) == {"segments_elsewhere"}
    assert "in batch entry 1, a sequence begins at token 18 where 17 is right [" in str(report)
    assert "--segment-ids" not in str(report)


def test_sequences_behind_hidden_keys_begin_where_it_is_stated():
    """No row shows whether the padding behind the second sequence belongs to it."""
    ids, stated = packed(5, 9, 7, 3), packed(5, 9, 6, 4)
    real = ~np.isin(np.arange(L), [12, 13])
    q, k, v = draw(0, *[(1, 2, L, 16)] * 3)
    wrong = plain(q, k, v, same(ids, ids) & real)
    report = ask((q, k, v), wrong, segment_ids=stated, key_padding_mask=real)
    assert named(report) == {"segments_elsewhere"}
    assert "segment_ids: a sequence begins at token 21 where 20 is right [" in str(report)


def test_keys_that_are_stated_by_themselves_are_told_to_be_left_out():
    inputs, wrong = unstated((1, 2, L, 16), packed(5, 10, 2, 7), causal=False)
    report = ask(inputs, wrong, segment_ids=IDS, kv_segment_ids=IDS + 0)
    assert named(report) == {"segments_elsewhere"}
    assert "(without --kv-segment-ids)" in str(report)


@pytest.mark.parametrize("keys", long_but([1600]))
def test_sequences_of_a_long_row_that_begin_elsewhere(keys):
    """The scores of a head are too many to be made at once."""
    inputs, wrong = unstated((1, 1, keys, 8), packed(300, 600, keys - 900), causal=True)
    report = ask(inputs, wrong, causal=True, segment_ids=packed(301, 299, keys - 600))
    assert named(report) == {"segments_elsewhere"}
    assert "at token 300 where 301 is right; a sequence begins at token 900 where 600" in str(
        report
    )


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("causal", "most", "words"),
    [
        (False, 1, "the first key counts"),
        (False, 4, "the first 4 keys count"),
        (True, 4, "the first 4 keys count"),
    ],
)
def test_sequences_that_are_longer_than_is_expected(seed, causal, most, words):
    """A kernel whose max_seqlen_k is too small never comes to the keys behind it."""
    q, k, v = draw(seed, *[(2, 2, L, 8)] * 3)
    reached = np.arange(L) - np.array([0, 5, 14, 17])[IDS] < most
    seen = same(IDS, IDS) & reached
    wrong = plain(q, k, v, seen & BEFORE if causal else seen)
    report = ask((q, k, v), wrong, causal=causal, segment_ids=IDS)
    assert named(report) == {"segments_cut_short"}
    assert f"of each packed sequence, only {words} [" in str(report)
    stated = ",".join(map(str, np.where(reached, IDS, 4)))
    assert f"--kv-segment-ids {stated}\n" in str(report)


def test_a_last_sequence_that_is_longer_than_is_expected():
    """Its last keys are a block, too."""
    q, k, v = draw(0, *[(1, 2, L, 8)] * 3)
    ids = packed(4, 5, 15)
    wrong = plain(q, k, v, same(ids, ids) & BEFORE & (np.arange(L) < 16))
    report = ask((q, k, v), wrong, causal=True, segment_ids=ids)
    assert named(report) == {"segments_cut_short", "last_block_of_8_lost", "last_block_of_16_lost"}


def test_batch_entries_with_and_without_longer_sequences_than_is_expected():
    ids = np.stack([packed(9, 7, 8), packed(6, 6, 6, 6)])
    q, k, v = draw(0, *[(2, 2, L, 8)] * 3)
    reached = np.arange(L) - np.array([0, 9, 16])[ids[0]] < 7
    seen = np.stack([same(ids[0], ids[0]) & reached, same(ids[1], ids[1])])[:, None]
    report = ask((q, k, v), plain(q, k, v, seen), segment_ids=ids)
    assert named(report) == {"segments_cut_short"}
    assert "only the first 7 keys count [" in str(report)


@pytest.mark.parametrize("tokens", [64, 65])
def test_unstated_sequences_of_a_long_row_are_no_option(tokens):
    ids = np.repeat([[0, 1]], [30, tokens - 30], axis=1)
    assert listed(ids) == (f"--segment-ids {','.join(map(str, ids[0]))}" if tokens == 64 else "")


@pytest.mark.usefixtures("small_slices")
def test_long_rows_of_batch_entries_that_are_packed_differently():
    q, k, v = draw(0, *[(2, 2, 156, 8)] * 3)
    ids = np.stack([np.repeat(np.arange(4), 39), np.repeat(np.arange(3), 52)])
    late = ids[:, [0, *range(155)]]
    wrong = plain(q, k, v, same(late, late)[:, None])
    assert "segments_end_late" in named(ask((q, k, v), wrong, segment_ids=ids))


@pytest.mark.usefixtures("small_slices")
def test_ends_of_queries_and_keys_in_slices_without_one_are_those_of_both():
    q, k, v = draw(0, *[(2, 2, 152, 8)] * 3)
    ids = np.repeat(np.arange(4), 38)
    late = ids[[0, *range(151)]]
    report = ask((q, k, v), plain(q, k, v, same(late, late)), segment_ids=ids)
    assert named(report) == {"segments_end_late"}
