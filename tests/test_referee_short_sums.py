"""Kernels that hold what they have added up in 16 bits, from one block of keys to the next."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import as_bfloat16, ask, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture


def as_float16(array):
    return np.asarray(array, "f4").astype("f2").astype("f8")


def as_it_is(array):
    return np.asarray(array, "f8")


SHORT = {"float16": as_float16, "bfloat16": lambda array: as_bfloat16(array).astype("f8")}
# Which sums are rounded (of values, of exponentials), and whether where they are rescaled, too.
KINDS = {
    "accumulator": (True, False, False),
    "rescaled_accumulator": (True, False, True),
    "sums": (True, True, False),
    "rescaled_sums": (True, True, True),
}
SOME = [
    ("float16", "rescaled_accumulator", 32),
    ("float16", "sums", 32),
    ("bfloat16", "rescaled_sums", 1),
]
PAIRS = list(product(SHORT, ["accumulator", "sums"]))


def inputs(seed, keys, mean=0):
    q, k, v = draw(seed, (1, 2, 12, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    return q, k, v + np.float32(mean)


def kernel(q, k, v, block, short, kind="accumulator", factor=as_it_is):
    """Return context and lse of an online softmax whose sums are rounded by the way."""
    q, k, v = (array.astype("f8") for array in (q, k, v))
    context, denominator, rescaled = KINDS[kind]
    hold = short if context else as_it_is, short if denominator else as_it_is
    sums, top = [0.0, 0.0], -np.inf
    for start in range(0, k.shape[2], block):
        part = slice(start, start + block)
        scores = q @ k[:, :, part].swapaxes(-1, -2) / np.sqrt(q.shape[3])
        higher = np.maximum(top, scores.max(-1, keepdims=True))
        powers = np.exp(scores - higher)
        added = factor(powers) @ v[:, :, part], powers.sum(-1, keepdims=True)
        for i in (0, 1):
            scaled = sums[i] * np.exp(top - higher)
            sums[i] = hold[i]((hold[i](scaled) if rescaled else scaled) + added[i])
        top = higher
    return sums[0] / sums[1], (np.log(sums[1]) + top)[..., 0]


@pytest.mark.parametrize(
    ("fmt", "kind", "block"), long_but(product(SHORT, KINDS, [1, 16, 32, 64, 128]), *SOME)
)
def test_sums_of_sixteen_bits_in_files_of_float32(fmt, kind, block):
    q, k, v = inputs(0, 5 * block + 9)
    context, lse = kernel(q, k, v, block, SHORT[fmt], kind)
    name = f"{kind}_in_{fmt}_of_{block}"
    assert named(ask((q, k, v), context)) == {name}
    assert name in named(ask((q, k, v), {"context": context, "lse": lse}))


@pytest.mark.parametrize("dtype", long_but(["float32", "float64"], "float64"))
def test_one_block_holds_all_keys(dtype):
    q, k, v = (array.astype(dtype) for array in inputs(1, 64))
    context, _ = kernel(q, k, v, 64, as_float16)
    assert named(ask((q, k, v), context, dtype)) == {"accumulator_in_float16_of_64"}


@pytest.mark.parametrize(("fmt", "kind"), long_but(PAIRS, PAIRS[0], PAIRS[3]))
def test_exponentials_beside_the_largest_score_of_the_row(fmt, kind):
    q, k, v = inputs(2, 90)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    powers, total, below = np.exp(scores - scores.max(-1, keepdims=True)), 0, 0
    for j in range(90):
        total = SHORT[fmt](total + powers[..., j, None] * v[:, :, j, None, :])
        below = below + powers[..., j, None]
        below = SHORT[fmt](below) if kind == "sums" else below
    assert named(ask((q, k, v), total / below)) == {f"{kind}_in_{fmt}"}


@pytest.mark.parametrize("fmt", long_but(SHORT, "bfloat16"))
def test_values_of_sixteen_bits_meet_exponentials_of_as_many(fmt):
    q, k, v = (SHORT[fmt](array).astype("f4") for array in inputs(3, 150))
    context, _ = kernel(q, k, v, 32, SHORT[fmt], factor=SHORT[fmt])
    assert named(ask((q, k, v), context)) == {f"accumulator_in_{fmt}_of_32"}


@pytest.mark.parametrize(("fmt", "kind"), long_but(PAIRS, PAIRS[0], PAIRS[3]))
def test_files_of_sixteen_bits(fmt, kind):
    q, k, v = (SHORT[fmt](array).astype("f4") for array in inputs(4, 1000, mean=1))
    context, _ = kernel(q, k, v, 1, SHORT[fmt], kind)
    report = ask((q, k, v), SHORT[fmt](context))
    assert not report.passed
    assert named(report) == {f"{kind}_in_{fmt}_of_1"}


@pytest.mark.parametrize("fmt", long_but(SHORT, "float16"))
def test_what_the_tolerance_of_sixteen_bits_hides(fmt):
    q, k, v = (SHORT[fmt](array).astype("f4") for array in inputs(1, 1500, mean=1))
    context, _ = kernel(q, k, v, 16, SHORT[fmt], factor=SHORT[fmt])
    report = ask((q, k, v), SHORT[fmt](context))
    assert report.passed
    assert named(report) == {f"accumulator_in_{fmt}_of_16"}


@pytest.mark.parametrize("fmt", long_but(SHORT, "float16"))
def test_right_kernels_of_sixteen_bits_get_no_name(fmt):
    q, k, v = (SHORT[fmt](array).astype("f4") for array in inputs(6, 300, mean=1))
    weights = softmax(SHORT[fmt](SHORT[fmt](q @ k.swapaxes(-1, -2)) / 4))
    for context in (SHORT[fmt](weights) @ v, kernel(q, k, v, 64, as_it_is, factor=SHORT[fmt])[0]):
        report = ask((q, k, v), SHORT[fmt](context))
        assert report.passed
        assert named(report) == set()


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("fmt", long_but(SHORT, "float16"))
def test_other_roundings_of_that_size_get_no_name(fmt):
    q, k, v = inputs(7, 150)
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[fmt]
    right = plain(q, k, v)
    noise = np.random.default_rng(7).uniform(-eps, eps, right.shape)
    assert named(ask((q, k, v), right * (1 + noise))) == set()
    # Of a size of blocks that is none of the usual ones.
    assert named(ask((q, k, v), kernel(q, k, v, 24, SHORT[fmt])[0])) == set()


def test_fully_masked_rows_and_shared_values():
    q, k, v = inputs(8, 100)
    k, v = k[:, :1], v[:, :1]
    keep = np.ones((12, 100), bool)
    keep[3] = False
    keep[5, :40] = False
    context = np.zeros(q.shape)
    for i in (i for i in range(12) if i != 3):
        seen = [array[:, :, keep[i]] for array in (k, v)]
        # Hidden keys at the front are whole blocks less eight.
        first = kernel(q[:, :, [i]], *seen, 16, as_float16)[0] if i != 5 else None
        context[:, :, [i]] = first if i != 5 else at_the_end(q[:, :, [i]], *seen)
    assert named(ask((q, k, v), context, mask=keep)) == {"accumulator_in_float16_of_16"}


def at_the_end(q, k, v):
    """Return what comes of keys whose first block holds eight, and every other sixteen."""
    few = np.zeros((1, 1, 8, 16), "f4")
    whole = [np.concatenate([few, array], 2) for array in (k, v)]
    scores = q.astype("f8") @ whole[0].swapaxes(-1, -2) / 4
    scores[..., :8] = -np.inf
    held, total, top = 0.0, 0.0, -np.inf
    for start in range(0, scores.shape[-1], 16):
        part = scores[..., start : start + 16]
        higher = np.maximum(top, part.max(-1, keepdims=True))
        powers, factor = np.exp(part - higher), np.exp(top - higher)
        held = as_float16(held * factor + powers @ whole[1][:, :, start : start + 16])
        total, top = total * factor + powers.sum(-1, keepdims=True), higher
    return held / total


def added_in_bfloat16(factors):
    """Add up the products of two factors along the keys, rounding all that is made."""
    short, total = SHORT["bfloat16"], 0
    left, right = (short(factor) for factor in factors)
    for j in range(left.shape[-1]):
        total = short(total + short(left[..., j, None] * right[:, :, j, None, :]))
    return total


@pytest.mark.parametrize(
    ("name", "above", "below"),
    long_but(
        [
            ("bfloat16_accumulation", True, None),
            ("bfloat16_accumulation_divided_later", True, False),
            ("bfloat16_denominator", False, True),
            ("bfloat16_accumulation_of_both", True, True),
        ],
        ("bfloat16_accumulation", True, None),
        ("bfloat16_accumulation_of_both", True, True),
    ),
)
def test_sums_of_products_in_bfloat16(name, above, below):
    q, k, v = inputs(9, 700, mean=1)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    powers = softmax(scores) if below is None else np.exp(scores - scores.max(-1, keepdims=True))
    total = added_in_bfloat16((powers, v)) if above else powers @ v
    ones = np.ones((1, 1, 700, 1))
    sums = added_in_bfloat16((powers, ones)) if below else powers.sum(-1, keepdims=True)
    assert named(ask((q, k, v), SHORT["bfloat16"](total / sums))) == {name}
