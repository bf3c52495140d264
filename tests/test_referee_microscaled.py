"""Microscaled inputs, caches of two kinds of scales, and weights of 8 bits, made by plain loops."""

import math

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture
from test_referee_quantized import in_groups, nearest, symmetric, with_zero_point

E2M1 = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])


def e4m3(largest=448.0):
    """Return the numbers of float8_e4m3fn, written out."""
    small = [part * 2.0**-9 for part in range(8)]
    large = [(1 + part / 8) * 2.0**power for power in range(-6, 9) for part in range(8)]
    positive = [number for number in small + large if number <= largest]
    return np.array([-number for number in reversed(positive[1:])] + positive)


def clipped(table, array):
    return nearest(table, np.clip(array, table[0], table[-1]))


def with_power(table, *, up):
    """Return how to round a block with a power of 2: the specification's, or the next one up."""

    def function(block):
        top = np.abs(block).max()
        if up:
            power = math.ceil(math.log2(top / table[-1]))
        else:
            power = math.floor(math.log2(top)) - math.floor(math.log2(table[-1]))
        return clipped(table, block / 2.0**power) * 2.0**power

    return function


def nvfp4(of_all):
    def function(block):
        scale = nearest(e4m3(), np.array([np.abs(block).max() / 6 / of_all]))[0] * of_all
        return clipped(E2M1, block / scale) * scale

    return function


def inputs(seed=0, columns=64, tokens=100):
    q, k, v = draw(seed, (1, 2, 20, columns), *[(1, 2, tokens, columns)] * 2)
    return 2 * q, k * 0.7, v + np.float32(0.3)


# Of float8, a power rounded up changes no number that is not small.
@pytest.mark.parametrize(
    ("name", "table", "up"),
    long_but(
        [("mxfp8_e4m3", e4m3(), False), ("mxfp4", E2M1, False), ("mxfp4", E2M1, True)],
        ("mxfp4", E2M1, True),
    ),
)
def test_microscaled_inputs(name, table, up):
    # Of seed 0 a value lies in the middle of two numbers of E2M1.
    q, k, v = inputs(seed=1, tokens=40)
    made = [in_groups(with_power(table, up=up), array, (1, 32)) for array in (q, k, v)]
    end = "_up" if up else ""
    assert named(ask((q, k, v), plain(*made))) == {f"inputs_in_{name}{end}"}
    made[2] = in_groups(with_power(table, up=up), v, (32, 1))
    assert named(ask((q, k, v), plain(*made))) == {f"inputs_in_{name}{end}_along_tokens"}


@pytest.mark.parametrize("scaled", long_but([False, True], True))
def test_a_cache_of_float4_with_scales_of_float8(scaled):
    q, k, v = inputs(tokens=40)
    made = []
    for array in (k, v):
        of_all = np.abs(array).max() / (6 * 448) if scaled else 1.0
        made.append(in_groups(nvfp4(of_all), array, (1, 16)))
    assert named(ask((q, k, v), plain(q, *made))) == {f"cache_in_nvfp4{'_scaled' * scaled}"}


@pytest.mark.parametrize(
    ("bits", "tokens", "columns"), long_but([(4, 64, 32), (2, 32, 64)], (2, 32, 64))
)
@pytest.mark.parametrize("exact", long_but([False, True], True))
def test_keys_by_the_column_and_values_by_the_token(bits, tokens, columns, exact):
    q, k, v = inputs(tokens=150)
    keys = in_groups(with_zero_point(bits), k, (tokens, 1))
    values = in_groups(with_zero_point(bits), v, (1, columns))
    if exact:
        keys[:, :, 128:] = k[:, :, 128:]
        values[:, :, -128:] = v[:, :, -128:]
    by = "by_token" if columns == 64 else f"by_{columns}_columns"
    name = f"kivi_in_{bits}_bits_of_{tokens}_tokens_{by}" + "_but_the_last" * exact
    assert named(ask((q, k, v), plain(q, keys, values))) == {name}


@pytest.mark.parametrize("queries", long_but([128, 32], 128))
def test_queries_and_keys_of_int8_less_the_mean_of_the_keys(queries):
    q, k, v = draw(0, *[(1, 1, 140, 64)] * 3)
    k += 3 * draw(1, (1, 1, 1, 64))[0]
    int8 = symmetric(np.arange(-127.0, 128.0))
    mean = k.mean(axis=2, keepdims=True)
    query, key = in_groups(int8, q, (queries, 64)), in_groups(int8, k - mean, (64, 64))
    assert named(ask((q, k, v), plain(query, key, v))) == {f"sage_of_{queries}_queries"}


def stored(scores, v, block, table, times, *, backwards):
    """Add up block after block, with exponentials of 8 bits beside the largest score so far."""
    rows, keys = scores.shape
    total, denominator, top = np.zeros((rows, v.shape[1])), np.zeros(rows), np.full(rows, -np.inf)
    starts = range(0, keys, block)
    for start in reversed(starts) if backwards else starts:
        part = scores[:, start : start + block]
        higher = np.maximum(top, part.max(axis=1))
        exponentials = np.exp(part - higher[:, None])
        kept = np.exp(top - higher)
        short = clipped(table, exponentials * times) / times
        total = total * kept[:, None] + short @ v[start : start + block]
        denominator = denominator * kept + exponentials.sum(axis=1)
        top = higher
    return total / denominator[:, None]


WAYS = [(1, 64, False), (256, 64, True), (1, 128, True), (256, 128, False), (1, 1000, False)]


@pytest.mark.parametrize(("times", "block", "backwards"), long_but(WAYS, WAYS[1], WAYS[-1]))
@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
def test_weights_of_float8(times, block, backwards, dtype):
    q, k, v = (array.astype(dtype) for array in draw(0, (16, 16), (300, 16), (300, 16)))
    scores = q.astype("f8") @ k.astype("f8").T / 4
    wrong = stored(scores, v.astype("f8"), block, e4m3(), times, backwards=backwards)
    name = "weights_in_float8_e4m3fn" + f"_times_{times}" * (times > 1)
    if block < 1000:
        name += f"_of_{block}" + "_backwards" * backwards
    assert named(ask((q, k, v), wrong, dtype)) == {name}


def test_all_of_float8():
    q, k, v = draw(0, (1, 2, 12, 16), *[(1, 2, 300, 16)] * 2)
    unit = [np.abs(array).max((2, 3), keepdims=True) / 448 for array in (q, k, v)]
    sq, sk, sv = (clipped(e4m3(), array / u) * u for array, u in zip((q, k, v), unit, strict=True))
    made = np.empty((1, 2, 12, 16))
    for head in range(2):
        scores = sq[0, head] @ sk[0, head].T / 4
        made[0, head] = stored(scores, sv[0, head], 128, e4m3(), 256, backwards=True)
    names = named(ask((q, k, v), made, "float16"))
    assert names == {
        "inputs_in_float8_e4m3fn_by_head_weights_in_float8_e4m3fn_times_256_of_128_backwards"
    }


@pytest.mark.parametrize("seed", long_but(range(3), 0))
@pytest.mark.usefixtures("one_mistake")
def test_noise_has_none_of_these_names(seed):
    q, k, v = draw(seed, (1, 2, 10, 32), *[(1, 2, 40, 32)] * 2)
    weights = softmax(q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(32))
    noise = np.random.default_rng(seed).uniform(-1, 1, weights.shape) / 20
    assert named(ask((q, k, v), weights * (1 + noise) @ v)) == set()
