"""Wrong masks, padding, causal rules and windows are named."""

import numpy as np
import pytest
from oracle import attention_oracle
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

L = 6
I, J = np.indices((L, L))


def a_mask(seed, *shape):
    """Return a keep-mask under which every query sees its own key."""
    mask = np.random.default_rng(seed + 100).random(shape) < 0.6
    return mask | (I == J)


def kept(q, k, v, mask):
    """Softmax over the scores as they are, for masks that change scores by hand."""
    return softmax(np.where(mask, scaled(q, k), -np.inf)) @ v


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("mask_of_next_key", lambda m: np.roll(m.ravel(), -1).reshape(m.shape)),
        ("mask_of_previous_key", lambda m: np.roll(m.ravel(), 1).reshape(m.shape)),
        ("mask_of_next_query", lambda m: np.roll(m, -1, axis=0)),
        ("mask_of_previous_query", lambda m: np.roll(m, 1, axis=0)),
    ],
)
def test_a_mask_that_is_read_one_place_off(name, read, seed):
    q, k, v = draw(seed, *[(2, 4, 12, 8)] * 3)
    mask = np.random.default_rng(seed + 100).random((12, 12)) < 0.7
    mask[:, 5] = mask[5] = True
    assert named(ask((q, k, v), kept(q, k, v, read(mask)), mask=mask)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mask_ignored", lambda s, m: softmax(s)),
        ("mask_inverted", lambda s, m: np.nan_to_num(softmax(np.where(m, -np.inf, s)))),
        ("mask_added", lambda s, m: softmax(s + m)),
        ("mask_multiplied", lambda s, m: softmax(s * m)),
        ("mask_transposed", lambda s, m: softmax(np.where(m.swapaxes(-1, -2), s, -np.inf))),
        ("hidden_after_softmax", lambda s, m: softmax(s) * m),
    ],
)
def test_mask(seed, name, wrong):
    q, k, v = draw(seed)
    mask = a_mask(seed, L, L)
    mask[:, 0] = True
    mask[0] = [True, False, True, False, True, False]
    mask[1] = [True, True, False, False, True, False]
    assert named(ask((q, k, v), wrong(scaled(q, k), mask) @ v, mask=mask)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mask_of_first_batch", lambda m: m[:1]),
        ("mask_of_first_head", lambda m: m[:, :1]),
        ("mask_of_first_query", lambda m: m[:, :, :1]),
        ("mask_batch_for_head", lambda m: m.swapaxes(0, 1)),
    ],
)
def test_mask_of_another(seed, name, change):
    q, k, v = draw(seed, *[(3, 3, L, 8)] * 3)
    mask = a_mask(seed, 3, 3, L, L)
    assert named(ask((q, k, v), kept(q, k, v, change(mask)), mask=mask)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "keys", "axis"),
    [
        ("mask_bits_reversed", 16, None),
        ("mask_bits_reversed", 11, None),
        ("mask_bits_reversed_by_row", 11, -1),
    ],
)
def test_a_packed_mask_that_is_read_from_the_other_end(seed, name, keys, axis):
    q, k, v = draw(seed, (5, 8), (keys, 8), (keys, 8))
    mask = np.random.default_rng(seed + 100).random((5, keys)) < 0.7
    packed = np.packbits(mask, axis=axis, bitorder="little")
    count = mask.size if axis is None else keys
    read = np.unpackbits(packed, axis=axis, count=count, bitorder="big").reshape(mask.shape)
    assert named(ask((q, k, v), kept(q, k, v, read.astype(bool)), mask=mask)) == {name}


PADS = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]], bool)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("key_padding_mask_ignored", True),
        ("key_padding_mask_inverted", ~PADS[:, None, None]),
        ("key_padding_mask_on_queries", PADS[:, None, :, None]),
        ("key_padding_mask_on_queries_too", PADS[:, None, :, None] & PADS[:, None, None]),
    ],
)
def test_key_padding(seed, name, keep):
    q, k, v = draw(seed)
    report = ask((q, k, v), plain(q, k, v, keep), key_padding_mask=PADS)
    assert named(report) == {name}


def test_padding_on_queries_whose_hidden_rows_are_the_mean_of_the_values():
    q, k, v = draw(0, *[(2, 1, L, 8)] * 3)
    wrong = softmax(np.where(PADS[:, None, :, None], scaled(q, k), -1e9)) @ v
    report = ask((q, k, v), wrong, key_padding_mask=PADS)
    assert named(report) == {"key_padding_mask_on_queries+hidden_finite"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "lengths"),
    [("kv_lengths_ignored", [6, 6]), ("lengths_one_short", [3, 4]), ("lengths_one_long", [5, 6])],
)
def test_lengths(seed, name, lengths):
    q, k, v = draw(seed)
    keep = (np.array(lengths)[:, None] > J[0])[:, None, None]
    # One batch entry of two has a key more in both readings; the other decides.
    report = ask((q, k, v), plain(q, k, v, keep), kv_lengths=[4, 5])
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("kv_lengths_on_queries", PADS[:, None, :, None]),
        ("kv_lengths_on_queries_too", PADS[:, None, :, None] & PADS[:, None, None]),
    ],
)
def test_lengths_on_queries(seed, name, keep):
    q, k, v = draw(seed)
    report = ask((q, k, v), plain(q, k, v, keep), kv_lengths=PADS.sum(1))
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_padded_queries_that_are_computed(seed):
    q, k, v = draw(seed)
    report = ask((q, k, v), plain(q, k, v), query_lengths=[4, 6])
    assert named(report) == {"query_lengths_ignored"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "keep"),
    [
        ("causal_missing", True),
        ("diagonal_hidden", J < I),
        ("causal_one_late", J <= I + 1),
        ("causal_reversed", J >= I),
    ],
)
def test_causal(seed, name, keep):
    q, k, v = draw(seed)
    assert named(ask((q, k, v), plain(q, k, v, keep), causal=True)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_causal_unasked(seed):
    q, k, v = draw(seed)
    assert named(ask((q, k, v), plain(q, k, v, J <= I))) == {"causal_unasked"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("asked", "name", "offset"),
    [
        ({"causal": True}, "causal_bottom_right", 3),
        ({"causal": True, "causal_align": "bottom-right"}, "causal_top_left", 0),
        ({"causal": True, "query_offset": 2}, "causal_top_left", 0),
        ({}, "causal_unasked_bottom_right", 3),
        ({}, "causal_unasked", 0),
    ],
)
def test_causal_alignment(seed, asked, name, offset):
    q, k, v = draw(seed, (2, 2, 4, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    i, j = np.indices((4, 7))
    assert named(ask((q, k, v), plain(q, k, v, j <= i + offset), **asked)) == {name}


@pytest.mark.parametrize("queries", [1, 4])
def test_causal_unasked_where_the_queries_stand(queries):
    q, k, v = draw(0, (1, 2, queries, 8), *[(1, 2, 16, 8)] * 2)
    i, j = np.indices((queries, 16))
    slopes = np.array([0.5, 0.25])
    scores = q @ k.swapaxes(-1, -2) * 8**-0.5 - slopes[:, None, None] * np.abs(i + 5 - j)
    wrong = softmax(np.where(j <= i + 5, scores, -np.inf)) @ v
    report = ask((q, k, v), wrong, alibi_slopes=slopes, query_offset=5)
    explanation = report.diagnosis.explanations[0]
    assert explanation.name == "causal_unasked_at_the_offset"
    assert explanation.options == ("--causal",)


def test_causal_alignment_with_padding():
    q, k, v = draw(0, (2, 2, 4, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    i, j = np.indices((4, 7))
    real = j < np.array([5, 7])[:, None, None, None]
    report = ask(
        (q, k, v),
        plain(q, k, v, real & (j <= i + 3)),
        causal=True,
        causal_align="bottom-right",
        kv_lengths=[5, 7],
    )
    assert named(report) == {"causal_bottom_right_of_padding"}


@pytest.mark.parametrize("queries", [3, 6])
@pytest.mark.parametrize("positions", ["rope", "alibi"])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        # A kernel that takes a padded cache for full, or only its positions.
        ("padding_counted_as_keys", {}),
        ("positions_bottom_right_of_padding", {"kv_lengths": [9, 12]}),
    ],
)
def test_positions_that_count_padded_keys(name, wrong, positions, queries):
    q, k, v = draw(0, (2, 4, queries, 8), *[(2, 2, 16, 8)] * 2)
    slopes = [0.5, 0.25, 0.125, 1.0]
    moved = {"rope": "half"} if positions == "rope" else {"alibi_slopes": slopes}
    found = attention_oracle(q, k, v, causal=True, query_offset=16 - queries, **moved, **wrong)
    report = ask(
        (q, k, v),
        found["context"],
        causal=True,
        causal_align="bottom-right",
        kv_lengths=[9, 12],
        **moved,
    )
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "left", "right"),
    [
        ("window_ignored", 20, 20),
        ("window_left_short", 3, 3),
        ("window_left_long", 5, 3),
        ("window_right_short", 4, 2),
        ("window_right_long", 4, 4),
        ("window_both_short", 3, 2),
        ("window_both_long", 5, 4),
        ("window_one_sided", 4, 0),
        ("window_left_only", 4, 20),
        ("window_right_only", 20, 3),
        ("window_halved", 2, 1),
        ("window_swapped", 3, 4),
    ],
)
def test_window(seed, name, left, right):
    q, k, v = draw(seed, *[(12, 8)] * 3)
    i, j = np.indices((12, 12))
    keep = (j >= i - left) & (j <= i + right)
    report = ask((q, k, v), plain(q, k, v, keep), window=(4, 3))
    # A window that ends at the query is the causal rule too.
    also = {"causal_unasked"} if right == 0 else set()
    assert named(report) == {name} | also


@pytest.mark.parametrize(("name", "first"), [("window_first_key", 1), ("window_first_four", 4)])
def test_window_with_sink_tokens(name, first):
    q, k, v = draw(0, *[(1, 2, 12, 8)] * 3)
    i, j = np.indices((12, 12))
    keep = ((j >= i - 2) & (j <= i)) | ((j < first) & (j <= i))
    report = ask((q, k, v), plain(q, k, v, keep), window=(2, 0), causal=True)
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("blind_rows_nan", lambda s, v: np.full_like(v[..., 0, :], np.nan)),
        ("hidden_finite", lambda s, v: v.mean(axis=-2)),
        ("blind_rows_unmasked", lambda s, v: (softmax(s)[..., 2:3, :] @ v)[..., 0, :]),
    ],
)
def test_queries_that_see_no_key(seed, name, row):
    q, k, v = draw(seed)
    mask = a_mask(seed, L, L)
    mask[2] = False
    wrong = plain(q, k, v, mask)
    wrong[..., 2, :] = row(scaled(q, k), v)
    assert named(ask((q, k, v), wrong, mask=mask)) == {name}


LOW = np.float32(-1e9)


@pytest.mark.parametrize(
    ("name", "later"),
    [("blind_rows_average_by_position", -np.inf), ("blind_rows_average_least_hidden", LOW)],
)
@pytest.mark.parametrize("rule", ["key_padding_mask", "mask"])
def test_padding_on_the_left_that_is_a_large_negative_number(name, later, rule):
    """Rows that only see padding, in float32, where nothing is left of a score beside −1e9."""
    q, k, v = draw(0)
    real = np.arange(L) >= np.array([3, 0])[:, None]
    added = np.where(real[:, None, None], 0, LOW) + np.where(J <= I, 0, np.float32(later))
    weights = softmax((scaled(q, k).astype("f4") + added).astype("f8"))
    options = {"key_padding_mask": real} if rule != "mask" else {"mask": real[:, None, None]}
    assert named(ask((q, k, v), weights @ v, causal=True, **options)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("number", "computed", "name"),
    [
        (1e9, "f8", "blind_rows_rounded"),
        (1e6, "f8", "blind_rows_rounded"),
        (1e6, "f4", "blind_rows_rounded"),
        (1e4, "f4", "blind_rows_rounded"),
        (1e9, "f4", "hidden_finite"),
    ],
)
def test_a_number_that_is_added_to_all_scores_leaves_them_few_digits(seed, number, computed, name):
    q, k, v = draw(seed, dtype=computed)
    mask = a_mask(seed, L, L)
    mask[2] = False
    scores = (scaled(q, k)).astype(computed) + np.where(mask, 0, -number).astype(computed)
    wrong = softmax(scores.astype("f8")) @ v
    report = ask((q, k, v), wrong, computed, mask=mask)
    assert named(report) == {name}
    if name == "blind_rows_rounded":
        exponent = f"{number:.0e}".replace("e+0", "e")
        assert f"the mask adds −{exponent} to its scores" in str(report)


def test_a_number_that_each_rule_adds():
    q, k, v = draw(0, dtype="float64")
    mask = a_mask(0, L, L)
    mask[2] = False
    added = np.where(mask, 0, -1e9) + np.where(J <= I, 0, -1e9)
    wrong = softmax(scaled(q, k) + added) @ v
    report = ask((q, k, v), wrong, "float64", mask=mask, causal=True)
    assert named(report) == {"blind_rows_rounded"}
    assert "each rule adds −1e9" in str(report)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_large_negative_number_in_a_file_of_half_precision(seed):
    q, k, v = draw(seed, *[(2, 3, 7, 8)] * 3, dtype="float16")
    mask = np.random.default_rng(seed).random((2, 1, 7, 7)) < 0.7
    mask[..., 0], mask[0, 0, 2] = True, False
    scores = np.where(mask, scaled(q, k), -1e9)
    assert named(ask((q, k, v), softmax(scores) @ v, "float16", mask=mask)) == {"hidden_finite"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("other", "keep", "rules"),
    [
        ("diagonal_hidden", lambda behind: behind > 0, {"causal": True}),
        pytest.param(
            *("window_left_short", lambda behind: (behind >= 0) & (behind <= 2)),
            {"window": (3, 0)},
            marks=pytest.mark.long,
        ),
    ],
)
def test_positions_from_zero_beside_a_band_that_is_off_by_one(seed, other, keep, rules):
    q, k, v = draw(seed, (2, 4, 7, 8), (2, 4, 10, 8), (2, 4, 10, 8), dtype="float64")
    angle = np.arange(10)[:, None] * 10000.0 ** (-np.arange(4) / 4)

    def turned(rows):
        cosine, sine = np.cos(angle[: rows.shape[2]]), np.sin(angle[: rows.shape[2]])
        one, two = rows[..., :4], rows[..., 4:]
        return np.concatenate((one * cosine - two * sine, two * cosine + one * sine), axis=-1)

    behind = np.arange(7)[:, None] + 3 - np.arange(10)
    wrong = plain(turned(q), turned(k), v, keep(behind))
    report = ask((q, k, v), wrong, causal_align="bottom-right", rope="half", **rules)
    assert named(report) == {f"rope_without_offset+{other}"}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "step"), [("positions_one_late", 1), ("positions_one_early", -1)])
@pytest.mark.parametrize(("count", "cached"), [(7, 3), (75, 50)])
def test_positions_that_are_off_by_one_in_all_rules(seed, name, step, count, cached):
    keys = count + cached
    q, k, v = draw(seed, (2, 4, count, 8), (2, 4, keys, 8), (2, 4, keys, 8))
    slopes = np.array([0.5, 0.25, 0.125, 0.0625])
    behind = np.arange(count)[:, None] + cached + step - np.arange(keys)
    band = (behind <= 3) & (behind >= -2)
    scores = scaled(q, k) - slopes[:, None, None] * np.abs(behind)
    wrong = softmax(np.where(band, scores, -np.inf)) @ v
    report = ask((q, k, v), wrong, query_offset=cached, alibi_slopes=slopes, window=(3, 2))
    assert named(report) == {name}


def test_padded_queries_are_not_averaged():
    q, k, v = draw(0)
    real = np.arange(L) >= np.array([3, 0])[:, None]
    added = np.where(real[:, None, None], 0, LOW) + np.where(J <= I, 0, np.float32(-np.inf))
    wrong = softmax((scaled(q, k).astype("f4") + added).astype("f8")) @ v
    wrong[:, :, 4:] = 0
    options = {"causal": True, "key_padding_mask": real, "query_lengths": [4, 4]}
    assert named(ask((q, k, v), wrong, **options)) == {"blind_rows_average_by_position"}


def test_rules_that_are_joined_by_or():
    q, k, v = draw(0)
    real = np.arange(L) < np.array([4, 3])[:, None]
    wrong = plain(q, k, v, real[:, None, None] | (J <= I))
    report = ask((q, k, v), wrong, causal=True, key_padding_mask=real)
    assert named(report) == {"rules_joined_by_or"}


def test_a_cache_that_is_cut_to_the_window_of_a_query_in_the_middle():
    q, k, v = draw(0, (2, 2, 5, 8), *[(2, 2, 30, 8)] * 2)
    place, j = np.arange(5)[:, None] + 15, np.arange(30)
    wrong = plain(q, k, v, (j <= place) & (j >= 19 - 10))
    report = ask((q, k, v), wrong, causal=True, query_offset=15, window=(10, 0))
    assert "window_cache_trimmed" in named(report)


@pytest.mark.parametrize("lengths", [None, [30, 22]])
def test_a_cache_that_is_cut_to_the_window_before_it_is_read(lengths):
    q, k, v = draw(0, (2, 2, 5, 8), *[(2, 2, 30, 8)] * 2)
    end = np.array(lengths or [30, 30])[:, None, None, None]
    place, j = np.arange(5)[:, None] + end - 5, np.arange(30)
    wrong = plain(q, k, v, (j <= place) & (j > end - 12))
    options = {"causal": True, "causal_align": "bottom-right", "window": (10, 0)}
    right = plain(q, k, v, (j <= place) & (j >= place - 10))
    assert ask((q, k, v), right, kv_lengths=lengths, **options).passed
    report = ask((q, k, v), wrong, kv_lengths=lengths, **options)
    assert report.diagnosis.explanations[0].name == "window_cache_trimmed"


def test_hidden_scores_that_are_finite():
    q, k, _ = draw(0)
    scores = np.where(J <= I, scaled(q, k), -1e4)
    report = ask((q, k), {"scores": scores}, causal=True)
    assert named(report) == {"hidden_finite"}


@pytest.mark.parametrize("block", long_but([16, 32, 64, 128], 128))
def test_last_block_lost(block):
    q, k, v = draw(block, (1, 1, 3, 8), (1, 1, 150, 8), (1, 1, 150, 8))
    wrong = plain(q, k[..., : 150 // block * block, :], v[..., : 150 // block * block, :])
    same = {
        f"last_block_of_{b}_lost"
        for b in (8, 16, 32, 64, 128)
        if 150 // b * b == 150 // block * block
    }
    assert named(ask((q, k, v), wrong)) == same


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("hidden", [1, 2])
def test_a_mask_that_makes_zeros_of_keys_and_values(seed, hidden):
    """One key of zeros adds 1 to the denominator, as a sink of 0 does."""
    q, k, v = draw(seed)
    shown = np.arange(L) < L - hidden
    wrong = plain(q, k * shown[:, None], v * shown[:, None])
    report = ask((q, k, v), wrong, mask=np.broadcast_to(shown, (L, L)))
    assert named(report) == {"mask_as_zeros"}


@pytest.mark.parametrize("seed", SEEDS)
def test_padding_that_is_tiled_over_the_heads(seed):
    q, k, v = draw(seed, *[(2, 4, 9, 8)] * 3)
    real = np.arange(9) < np.array([[4], [7]])
    tiled = np.tile(real, (4, 1)).reshape(2, 4, 1, 9)
    report = ask((q, k, v), plain(q, k, v, tiled), key_padding_mask=real)
    assert named(report) == {"key_padding_mask_tiled_over_heads"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", long_but([5, 8, 12], 5, 8))
@pytest.mark.parametrize("window", [False, True])
def test_chunks_that_nobody_stated(seed, size, window):
    q, k, v = draw(seed, *[(2, 4, 24, 16)] * 3)
    i, j = np.indices((24, 24))
    wrong = plain(q, k, v, (j <= i) & (j >= i // size * size))
    options = {"window": (size - 1, 0)} if window else {}
    report = ask((q, k, v), wrong, causal=True, **options)
    assert named(report) == {"chunks_unasked"}
    assert f"its own chunk of {size} tokens" in str(report)


def test_a_mask_of_each_head_beside_shared_keys_can_be_tried():
    """Keys that several query heads share cannot be zeros for one of them alone."""
    q, k, v = draw(0, (2, 4, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))
    mask = np.random.default_rng(0).random((1, 4, 1, 6)) < 0.7
    mask[..., 0] = True
    wide = [np.repeat(rows, 2, axis=1) for rows in (k, v)]
    report = ask((q, k, v), plain(q, *wide), mask=mask)
    assert named(report) == {"mask_ignored"}


@pytest.mark.usefixtures("one_mistake")
def test_a_mask_that_differs_from_query_to_query_leaves_no_key_to_be_zeros():
    q, k, v = draw(0)
    mask = a_mask(0, L, L)
    zeros = mask[0][:, None]
    report = ask((q, k, v), plain(q, k * zeros, v * zeros), mask=mask)
    assert "mask_as_zeros" not in named(report)


@pytest.mark.usefixtures("one_mistake")
def test_chunks_that_differ_from_entry_to_entry_are_none_of_one_size():
    q, k, v = draw(0, *[(2, 2, 24, 16)] * 3)
    i, j = np.indices((24, 24))
    sizes = np.array([5, 8])[:, None, None, None]
    wrong = plain(q, k, v, (j <= i) & (j >= i // sizes * sizes))
    assert "chunks_unasked" not in named(ask((q, k, v), wrong, causal=True))


@pytest.mark.parametrize("window", [None, (7, 0)])
def test_chunks_in_the_place_of_a_window_are_told_as_that(window):
    q, k, v = draw(0, *[(2, 2, 24, 16)] * 3)
    i, j = np.indices((24, 24))
    wrong = plain(q, k, v, (j <= i) & (j >= i // 8 * 8))
    text = str(ask((q, k, v), wrong, causal=True, window=window))
    assert f"its own chunk of 8 tokens{', not in the window' if window else ''}, as in" in text
