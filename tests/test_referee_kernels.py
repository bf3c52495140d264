"""Mistakes of kernels and of those who call them: tiles, copies, masks of others, half formats."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, as_bfloat16, ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import pose
from attncli.referee import check

SHAPE = (2, 3, 20, 8)


def scores_of(q, k):
    return q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])


@pytest.mark.parametrize("seed", SEEDS)
def test_one_input_is_taken_for_another(seed):
    q, k, v = draw(seed, *[SHAPE] * 3)
    for name, inputs in {
        "query_as_key": (q, q, v),
        "value_as_key": (q, v, v),
        "key_as_query": (k, k, v),
        "value_as_query": (v, k, v),
        "query_as_value": (q, k, q),
        "key_as_value": (q, k, k),
    }.items():
        assert named(ask((q, k, v), plain(*inputs))) == {name}


@pytest.mark.parametrize("size", [8, 32])
@pytest.mark.parametrize("options", [{}, {"causal": True}])
def test_columns_of_the_context_that_repeat_the_first(size, options):
    q, k, v = draw(0, *[(1, 2, 20, 64)] * 3)
    keep = np.tri(20, dtype=bool) if options else True
    wrong = plain(q, k, v, keep)[..., np.arange(64) % size]
    assert named(ask((q, k, v), wrong, **options)) == {f"value_columns_of_first_{size}"}


@pytest.mark.parametrize("size", long_but([8, 16], 8))
def test_a_causal_mask_by_places_within_tiles(size):
    q, k, v = draw(0, *[SHAPE] * 3)
    i, j = np.indices((20, 20))
    local = plain(q, k, v, j % size <= i % size)
    assert named(ask((q, k, v), local, causal=True)) == {f"causal_within_blocks_of_{size}"}
    each = plain(q, k, v, (j % size <= i % size) & (j // size <= i // size))
    assert named(ask((q, k, v), each, causal=True)) == {f"causal_within_each_block_of_{size}"}
    lost = plain(q, k, v, j < i // size * size)
    assert named(ask((q, k, v), lost, causal=True)) == {f"diagonal_block_of_{size}_lost"}
    first = plain(q, k, v, (j <= i) | (j >= size))
    assert named(ask((q, k, v), first, causal=True)) == {f"causal_in_first_block_of_{size}"}


def test_decoding_without_a_causal_mask_is_not_one_of_the_first_block_alone():
    """The new queries see all keys of the first blocks, whether these are masked or not."""
    q, k, v = draw(0, (1, 2, 4, 16), (1, 2, 64, 16), (1, 2, 64, 16))
    report = ask((q, k, v), plain(q, k, v), causal=True, causal_align="bottom-right")
    assert named(report) == {"causal_missing"}


def test_padding_of_the_next_entry_and_of_the_other_end():
    q, k, v = draw(0, (3, 2, 6, 8), (3, 2, 9, 8), (3, 2, 9, 8))
    lengths = np.array([4, 9, 7])

    def padded(lengths):
        return np.arange(9) < np.asarray(lengths)[:, None]

    keep = padded(lengths)[:, None, None]
    wrong = plain(q, k, v, np.roll(keep, -1, axis=0))
    mask = padded(lengths)
    report = ask((q, k, v), wrong, key_padding_mask=mask)
    assert named(report) == {"key_padding_mask_of_next_entry"}
    assert named(ask((q, k, v), wrong, kv_lengths=lengths)) == {"kv_lengths_of_next_entry"}
    mirrored = plain(q, k, v, keep[..., ::-1])
    assert named(ask((q, k, v), mirrored, key_padding_mask=mask)) == {"key_padding_mask_mirrored"}
    # Padding on the left is mirrored to the right, too.
    report = ask((q, k, v), plain(q, k, v, keep), key_padding_mask=mask[:, ::-1])
    assert named(report) == {"key_padding_mask_mirrored"}


def test_a_mask_of_each_entry_is_tiled_over_the_heads():
    q, k, v = draw(0, *[(3, 4, 6, 8)] * 3)
    masks = np.random.default_rng(0).random((3, 6, 6)) < 0.7
    masks[..., 0] = True
    # nn.MultiheadAttention takes (B·H, L, S), the heads of an entry in a row.
    tiled = np.tile(masks, (4, 1, 1)).reshape(3, 4, 6, 6)
    report = ask((q, k, v), plain(q, k, v, tiled), mask=masks[:, None])
    assert named(report) == {"mask_tiled_over_heads"}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_products_beyond_float16(dtype):
    q, k, v = draw(0, *[(1, 2, 12, 64)] * 3)
    q, k = 60 * q, 60 * k
    product = q.astype("f8") @ k.swapaxes(-1, -2)
    stored = np.where(np.abs(product) > 65504, np.copysign(np.inf, product), product)
    with np.errstate(invalid="ignore"):
        wrong = softmax(stored / 8) @ v.astype("f8")
    assert 0 < np.isnan(wrong).mean() < 1
    assert named(ask((q, k, v), wrong, dtype)) == {"product_overflows_float16"}


def stored(scores, fmt):
    if fmt == "float16":
        return scores.astype("f2").astype("f8")
    bits = scores.astype("f4").view("u4")  # to the nearest of 8 bits
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view("f4").astype("f8")


@pytest.mark.parametrize("fmt", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["scores_in_float16", "scores_in_bfloat16"])
def test_scores_that_are_stored_in_half_precision(name, fmt):
    q, k, v = draw(0, *[(2, 2, 24, 16)] * 3)
    found = named(ask((q, k, v), softmax(stored(scores_of(q, k), fmt)) @ v))
    assert (name in found) is name.endswith(f"_{fmt}")


@pytest.mark.parametrize(
    ("fmt", "name"),
    [("float16", "unscaled_scores_in_float16"), ("bfloat16", "unscaled_scores_in_bfloat16")],
)
@pytest.mark.parametrize("width", [24, 16])
def test_products_that_are_stored_in_half_precision_before_they_are_scaled(fmt, name, width):
    """Of 16 components the scale is a power of two, and moves no digit."""
    q, k, v = draw(0, *[(2, 2, 24, width)] * 3)
    products = stored(q.astype("f8") @ k.swapaxes(-1, -2), fmt)
    found = named(ask((q, k, v), softmax(products / np.sqrt(width)) @ v))
    assert name.removeprefix("unscaled_" if width == 16 else "") in found
    hidden = np.where(np.tri(24, dtype=bool), products / np.sqrt(width), -np.inf)
    found = named(ask((q, k, v), softmax(hidden) @ v, causal=True))
    assert name.removeprefix("unscaled_" if width == 16 else "") in found


def test_rows_that_no_block_wrote():
    q, k, v = draw(0, *[(2, 12, 16)] * 3)
    context = plain(q, k, v)
    context[:, 10:] = 0
    (found,) = ask((q, k, v), context).diagnosis.explanations
    assert found.name == "rows_not_written"
    assert "4 of 24 rows are 0" in found.conventions[0].meaning


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("lost", [np.s_[:, 10:], np.s_[..., 16:]])
def test_where_something_else_is_wrong_too_nothing_is_told_of_blocks(lost):
    q, k, v = draw(0, *[(2, 12, 20)] * 3)
    context = plain(q, k, v)
    context[lost] = 0
    context[0, 3] *= 1.5
    assert named(ask((q, k, v), context)) == set()


def test_columns_that_no_block_wrote():
    q, k, v = draw(0, *[(2, 10, 20)] * 3)
    context = plain(q, k, v)
    context[..., 16:] = 0
    (found,) = ask((q, k, v), context).diagnosis.explanations
    assert found.name == "columns_not_written"
    assert "8 of 40 columns are 0" in found.conventions[0].meaning


def test_sinks_of_0_and_twice():
    q, k, v = draw(0, *[SHAPE] * 3)
    sinks = np.array([1.0, -0.5, 2.0])
    exponentials = np.exp(scores_of(q, k))
    for name, extra in {
        "sinks_of_0": np.ones(3),
        "sinks_twice": 2 * np.exp(sinks),
    }.items():
        total = exponentials.sum(-1, keepdims=True) + extra[:, None, None]
        assert named(ask((q, k, v), exponentials / total @ v, sinks=sinks)) == {name}


def test_logarithms_in_the_place_of_numbers():
    q, k, v = draw(0, *[SHAPE] * 3)
    scores = scores_of(q, k)
    report = ask((q, k, v), {"weights": np.log(softmax(scores))})
    assert named(report) == {"weights_are_logarithms"}
    assert named(ask((q, k, v), {"lse": scores.max(-1)})) == {"lse_is_maximum"}


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_weights_that_were_rounded_by_hand(digits):
    q, k, v = draw(0, (4, 8), (5, 8), (5, 8), dtype="float64")
    weights = np.round(softmax(q @ k.T / np.sqrt(8)), digits)
    report = ask((q, k, v), weights @ v, "float64")
    assert named(report) == {f"weights_rounded_to_{digits}_decimals"}


@pytest.mark.parametrize("digits", long_but([1, 2, 3, 4], 1, 4))
@pytest.mark.parametrize("output", ["context", "weights", "lse"])
def test_scores_that_were_rounded_by_hand(digits, output):
    q, k, v = draw(1, (4, 8), (5, 8), (5, 8), dtype="float64")
    scores = np.round(q @ k.T / np.sqrt(8), digits)
    weights = softmax(scores)
    made = {"context": weights @ v, "weights": weights, "lse": np.log(np.exp(scores).sum(-1))}
    report = ask((q, k, v), {output: made[output]}, "float64")
    assert named(report) == {f"scores_rounded_to_{digits}_decimals"}


@pytest.mark.parametrize("digits", long_but([1, 2, 3, 4], 1, 4))
@pytest.mark.parametrize("output", ["context", "weights"])
def test_exponentials_that_were_rounded_by_hand(digits, output):
    q, k, v = draw(1, (4, 8), (5, 8), (5, 8), dtype="float64")
    powers = np.round(np.exp(scaled(q, k)), digits)
    weights = powers / powers.sum(-1, keepdims=True)
    made = weights @ v if output == "context" else weights
    report = ask((q, k, v), {output: made}, "float64")
    assert named(report) == {f"exponentials_rounded_to_{digits}_decimals"}


@pytest.mark.parametrize("digits", [1, 2, 4])
def test_every_step_that_was_rounded_by_hand(digits):
    # With few keys of large weight, what is rounded before the weights seldom shows.
    q, k, v = draw(2, (9, 8), (3, 8), (3, 8), dtype="float64")
    scores = np.round(np.round(q @ k.T, digits) / np.sqrt(8), digits)
    powers = np.round(np.exp(scores), digits)
    weights = np.round(powers / np.round(powers.sum(-1, keepdims=True), digits), digits)
    report = ask((q, k, v), weights @ v, "float64")
    assert named(report) == {f"steps_rounded_to_{digits}_decimals"}


@pytest.mark.usefixtures("one_mistake")
def test_a_homework_of_two_decimals_is_said_to_look_so():
    """Sixteen numbers of two decimals are no evidence for one way to round."""
    q, k, v = (np.round(np.abs(a), 2) for a in draw(1, *[(4, 4)] * 3, dtype="float64"))
    scores = np.round(np.round(q @ k.T, 2) / 2, 2)
    powers = np.round(np.exp(scores), 2)
    weights = np.round(powers / np.round(powers.sum(-1, keepdims=True), 2), 2)
    report = ask((q, k, v), np.round(weights @ v, 2), "float64")
    assert not report.passed
    assert named(report) == set()
    assert "as small as those of rounding to 2 decimals on the way" in str(report)
    wrong = np.round(softmax(q @ k.T) @ v + 1, 2)
    assert "on the way, by hand" not in str(ask((q, k, v), wrong, "float64"))
    slip = np.round(softmax(q @ k.T / 2) @ v, 2)
    slip[2, 1] += 0.07
    assert "on the way, by hand" not in str(ask((q, k, v), slip, "float64"))


@pytest.mark.parametrize("seed", SEEDS)
def test_sinks_that_were_forgotten_are_no_rounding(seed):
    q, k, v = draw(seed, *[(1, 4, 12, 16)] * 3)
    weights = softmax(np.where(np.tri(12, dtype=bool), scores_of(q, k), -np.inf))
    report = ask((q, k, v), weights @ v, causal=True, sinks=draw(seed + 9, (4,))[0])
    assert named(report) == {"sinks_ignored"}


@pytest.mark.parametrize("digits", [2, 3])
def test_exponentials_that_were_rounded_beside_sinks(digits):
    q, k, v = draw(4, *[(1, 4, 12, 16)] * 3, dtype="float64")
    sinks = draw(5, (4,), dtype="float64")[0]
    powers = np.round(np.exp(scores_of(q, k)), digits)
    beside = np.round(np.exp(sinks), digits)[:, None, None]
    wrong = powers / (powers.sum(-1, keepdims=True) + beside) @ v
    report = ask((q, k, v), wrong, "float64", sinks=sinks)
    assert named(report) == {f"exponentials_rounded_to_{digits}_decimals"}


def test_a_large_negative_number_in_the_weights():
    q, k, v = draw(0, *[SHAPE] * 3)
    keep = np.tri(20, dtype=bool)
    wrong = np.where(keep, softmax(scores_of(q, k)), -1e9) @ v
    assert named(ask((q, k, v), wrong, causal=True)) == {"filled_after_softmax"}


def test_one_row_that_a_rounded_score_moves_is_no_mistake():
    """Of 128 rows, the one whose two largest scores are nearly the same is off."""
    q, k, v = (as_bfloat16(x) for x in draw(0, *[(1, 1, 128, 16)] * 3))
    q, k = 16 * q, 4 * k
    scores = scores_of(q, k)
    rounded = softmax(as_bfloat16(scores).astype("f8"))
    off = np.abs(rounded - softmax(scores)).sum(-1)[0, 0].argmax()
    context = softmax(scores) @ v
    context[0, 0, off] = rounded[0, 0, off] @ v[0, 0]
    report = check(as_bfloat16(context), pose(q, k, v))
    assert report.passed
    assert report.diagnosis is None


@pytest.mark.parametrize("heads", [[1], [2, 3]])
@pytest.mark.parametrize("projected", [False, True])
def test_heads_that_are_not_written(heads, projected):
    """As where each device has some heads, and nobody gathers or adds them up."""
    q, k, v = draw(0, *[(2, 4, 6, 8)] * 3)
    wrong = plain(q, k, v)
    wrong[:, heads] = 0
    options = {}
    if projected:
        options = {"heads": 4, "wo": draw(1, (32, 32))[0]}
        q, k, v, wrong = (a.swapaxes(1, 2).reshape(2, 6, 32) for a in (q, k, v, wrong))
        wrong = wrong @ options["wo"]
    report = ask((q, k, v), wrong, **options)
    assert named(report) == {"heads_not_written"}
    assert ("head 1 is 0" if heads == [1] else "heads 2, 3 are 0") in str(report)


@pytest.mark.parametrize(("larger", "size"), long_but([(32, 16), (64, 32)], (32, 16)))
def test_blocks_of_queries_and_keys_of_different_sizes(larger, size):
    q, k, v = draw(0, *[(1, 1, 2 * larger, 16)] * 3)
    i, j = np.indices((2 * larger, 2 * larger))
    # Of a block of queries, only the last block of keys is masked.
    last = plain(q, k, v, (j <= i) | (j // size < (i // larger + 1) * (larger // size) - 1))
    assert named(ask((q, k, v), last, causal=True)) == {f"only_last_{size}_masked_of_{larger}"}
    # The number of larger blocks of keys is rounded down.
    end = (i // size + 1) * size // larger
    cut = plain(q, k, v, (j <= i) & (j // larger < end))
    assert named(ask((q, k, v), cut, causal=True)) == {f"blocks_of_{larger}_cut_at_{size}"}
