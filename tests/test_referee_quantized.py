"""Inputs of 8 bits and fewer, rounded by tables of all the numbers that a format has."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures
from test_referee_products import turned


def floats(exponents, mantissa, largest):
    """Return all numbers of a format of 8 bits, written out one by one."""
    bias = 2 ** (exponents - 1) - 1
    numbers = {0.0}
    for exponent in range(2**exponents):
        for part in range(2**mantissa):
            first, power = (1, exponent - bias) if exponent else (0, 1 - bias)
            numbers.add((first + part / 2**mantissa) * 2.0**power)
    positive = sorted(number for number in numbers if number <= largest)
    return np.array([-number for number in reversed(positive[1:])] + positive)


TABLES = {
    "int8": np.arange(-127.0, 128.0),
    "int4": np.arange(-7.0, 8.0),
    "float8_e4m3fn": floats(4, 3, 448.0),
    "float8_e5m2": floats(5, 2, 57344.0),
}
AXES = {
    "_scaled": (0, 1, 2, 3),
    "_by_head": (0, 2, 3),
    "_by_entry": (2, 3),
    "_by_token": (3,),
    "_by_channel": (2,),
}


def nearest(table, array):
    """Return the nearest numbers of a table; between two, the one an even count from 0."""
    above = np.clip(np.searchsorted(table, array), 1, len(table) - 1)
    low, high = array - table[above - 1], table[above] - array
    is_low = (low < high) | ((low == high) & ((above - len(table) // 2) % 2 == 1))
    return table[above - is_low]


def quantized(array, table, axes):
    if axes is None:
        return nearest(table, array)
    unit = np.abs(array).max(axes, keepdims=True) / table[-1]
    return nearest(table, array / unit) * unit


def inputs(seed, scale=1.0):
    """Heads and batch entries of other sizes, so that it matters who shares a scale."""
    q, k, v = draw(seed, (2, 4, 20, 16), (2, 2, 30, 16), (2, 2, 30, 8))
    sizes = np.float32(scale) * np.array([[1, 0.7], [0.8, 0.6]], "f4")[..., None, None]
    return q, k * sizes, v * sizes


def wide_inputs(tokens=70):
    """Enough tokens and columns for groups of both, with as many columns of query as of value."""
    q, k, v = draw(0, (1, 2, 20, 80), (1, 2, tokens, 80), (1, 2, tokens, 80))
    return 2 * q, k * 0.7, v + np.float32(0.3)


def in_groups(function, array, sizes):
    """Apply a function to each block of (B, H, S, D) of at most so many tokens and columns."""
    made = np.empty(array.shape)
    tokens, columns = sizes
    for b, h in np.ndindex(array.shape[:2]):
        for i in range(0, array.shape[2], tokens):
            for j in range(0, array.shape[3], columns):
                block = np.s_[b, h, i : i + tokens, j : j + columns]
                made[block] = function(array[block])
    return made


def with_zero_point(bits):
    def function(block):
        levels = np.linspace(block.min(), block.max(), 2**bits)
        return nearest(levels, block) if np.ptp(block) else block

    return function


def symmetric(table):
    def function(block):
        # In float32: of so many numbers one may lie between two codes as near as makes no odds.
        unit = np.abs(block).max() / np.float32(table[-1])
        return nearest(table, block / unit) * unit

    return function


def q8_0(block):
    """Written after llama.cpp's ``quantize_row_q8_0_ref``, a number at a time."""
    (numbers,) = block.astype("f4")
    scale = np.float32(max(abs(x) for x in numbers) / np.float32(127))
    codes = [round(float(x / scale)) for x in numbers]
    return np.array([[code * float(np.float16(scale)) for code in codes]])


def q4_0(block):
    """Written after llama.cpp's ``quantize_row_q4_0_ref``, a number at a time."""
    (numbers,) = block.astype("f4")
    scale = np.float32(max(numbers, key=abs) / np.float32(-8))
    codes = [min(15, int(x / scale + np.float32(8.5))) - 8 for x in numbers]
    return np.array([[code * float(np.float16(scale)) for code in codes]])


GROUPS = {
    "_by_64_tokens": (64, 80),
    "_by_128_tokens": (128, 80),
    "_by_32_columns": (1, 32),
    "_by_64_columns": (1, 64),
    "_by_channel_of_32_tokens": (32, 1),
    "_by_channel_of_64_tokens": (64, 1),
    "_by_channel_of_128_tokens": (128, 1),
}


def grouped_inputs(sharing):
    """Return inputs of more than one group."""
    return wide_inputs(150 if "128" in sharing else 70)


def attended(q, k, v):
    return plain(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))


# Each format and each sharing once.
SOME_SCALES = [
    ("int8", "_by_token"),
    ("int4", "_by_entry"),
    ("float8_e4m3fn", "_by_head"),
    ("float8_e5m2", "_scaled"),
    ("int8", "_by_channel"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "sharing"), long_but(product(TABLES, AXES), *SOME_SCALES))
def test_a_cache_with_scales(seed, name, sharing):
    q, k, v = inputs(seed)
    short = [quantized(array, TABLES[name], AXES[sharing]) for array in (k, v)]
    report = ask((q, k, v), attended(q, *short))
    assert named(report) == {f"cache_in_{name}{sharing}"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "scale"),
    long_but(
        product(["float8_e4m3fn", "float8_e5m2"], [1, 300]),
        *(("float8_e4m3fn", 1), ("float8_e5m2", 300)),
    ),
)
def test_a_cache_of_floats_without_scales(seed, name, scale):
    q, k, v = inputs(seed, scale)
    q = q / scale
    short = [quantized(array, TABLES[name], None) for array in (k, v)]
    assert named(ask((q, k, v), attended(q, *short))) == {f"cache_in_{name}"}


PARTS = {
    "key": [False, True, False],
    "value": [False, False, True],
    "query_key": [True, True, False],
    "inputs": [True, True, True],
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("sharing", long_but(["_scaled", "_by_head", "_by_token"], "_by_token"))
@pytest.mark.parametrize("dtype", long_but(["float16", "float32", "float64"], "float16"))
def test_which_inputs_are_quantized(part, sharing, dtype):
    given = [array.astype(dtype) for array in inputs(0)]
    wide = [array.astype("f8") for array in given]
    short = [quantized(array, TABLES["int8"], AXES[sharing]) for array in wide]
    made = [b if is_short else a for a, b, is_short in zip(wide, short, PARTS[part], strict=True)]
    assert named(ask(given, attended(*made), dtype)) == {f"{part}_in_int8{sharing}"}


def test_of_weights_alone_only_the_keys_can_be_told():
    q, k, v = inputs(0)
    short = quantized(k, TABLES["int8"], AXES["_by_token"])
    eye = np.broadcast_to(np.eye(30), (2, 4, 30, 30))
    weights = plain(q, np.repeat(short, 2, axis=1), eye)
    assert named(ask((q, k, v), {"weights": weights})) == {"key_in_int8_by_token"}


def test_keys_are_quantized_as_the_cache_holds_them_behind_the_rotation():
    q, k, v = draw(0, *[(1, 2, 20, 16)] * 3)
    short = quantized(turned(k), TABLES["int8"], AXES["_by_token"])
    report = ask((q, k, v), plain(turned(q), short, v), rope="half")
    assert named(report) == {"key_in_int8_by_token"}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("sharing", long_but(AXES, "_by_head"))
def test_scales_of_a_problem_so_large_that_slices_are_tried(sharing):
    q, k, v = draw(0, (2, 4, 50, 16), (2, 2, 54, 16), (2, 2, 54, 16))
    sizes = np.array([[1, 0.6], [0.8, 0.5]], "f4")[..., None, None]
    # The largest of all stand where no slice of others has them.
    k, v = k * sizes, v * sizes
    short = [quantized(array, TABLES["int8"], AXES[sharing]) for array in (k, v)]
    report = ask((q, k, v), attended(q, *short))
    assert report.diagnosis.scope == "slices"
    assert named(report) == {f"cache_in_int8{sharing}"}


@pytest.mark.parametrize("sharing", long_but(GROUPS, "_by_channel_of_32_tokens"))
@pytest.mark.parametrize("name", long_but(TABLES, "int8"))
def test_a_cache_with_scales_of_groups(name, sharing):
    q, k, v = grouped_inputs(sharing)
    short = [in_groups(symmetric(TABLES[name]), array, GROUPS[sharing]) for array in (k, v)]
    assert named(ask((q, k, v), plain(q, *short))) == {f"cache_in_{name}{sharing}"}


ALL = {"_by_token": (1, 80), "_by_channel": (70, 1), "_by_entry": (70, 80), **GROUPS}


@pytest.mark.parametrize("bits", long_but([8, 4, 2], 4))
@pytest.mark.parametrize("sharing", long_but(ALL, "_by_64_tokens", "_by_32_columns"))
def test_a_cache_with_zero_points(bits, sharing):
    q, k, v = grouped_inputs(sharing)
    short = [in_groups(with_zero_point(bits), array, ALL[sharing]) for array in (k, v)]
    names = named(ask((q, k, v), plain(q, *short)))
    assert names == {f"cache_in_int{bits}_with_zero_point{sharing}"}


@pytest.mark.parametrize(
    ("function", "dtype"),
    long_but(product([q8_0, q4_0], ["float16", "float32"]), (q8_0, "float16"), (q4_0, "float32")),
)
@pytest.mark.parametrize("part", long_but(["cache", "key", "value"], "cache"))
def test_a_cache_of_llama(part, function, dtype):
    q, k, v = (array[..., :64].astype(dtype) for array in wide_inputs(40))
    short = [in_groups(function, array, (1, 32)) for array in (k, v)]
    made = short if part == "cache" else (short[0], v) if part == "key" else (k, short[1])
    names = named(ask((q, k, v), plain(*(a.astype("f8") for a in (q, *made))), dtype))
    # That its scales are in float16, too, hardly shows in a file of float16.
    others = {f"{part}_in_int8_by_32_columns"} if dtype == "float16" else set()
    assert names - others == {f"{part}_in_{function.__name__}"}


def codes(array, table, axes):
    unit = np.abs(array).max(axes, keepdims=True) / table[-1]
    return nearest(table, array / unit)


# Each format, each sharing and each part once.
SOME_CODES = [
    ("int8", "_by_entry", "cache"),
    ("float8_e4m3fn", "_scaled", "key"),
    ("float8_e5m2", "_by_head", "value"),
    ("int8", "_by_head", "inputs"),
]
CODES = product(
    ["int8", "float8_e4m3fn", "float8_e5m2"],
    ["_scaled", "_by_head", "_by_entry"],
    ["key", "value", "cache", "inputs"],
)


@pytest.mark.parametrize(("name", "sharing", "part"), long_but(CODES, *SOME_CODES))
@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
def test_codes_that_are_not_multiplied_by_their_scale(name, sharing, part, dtype):
    q, k, v = inputs(0)
    given = [array.astype(dtype) for array in (q / 50, k, v)]
    made = [
        codes(array.astype("f8"), TABLES[name], AXES[sharing]) if short else array.astype("f8")
        for array, short in zip(given, {**PARTS, "cache": [False, True, True]}[part], strict=True)
    ]
    assert named(ask(given, attended(*made), dtype)) == {
        f"{part}_in_{name}{sharing}_not_scaled_back"
    }


def test_a_scale_that_is_as_large_is_not_that_of_codes():
    """Keys that were not rounded are multiplied by what would have made them codes of int8."""
    q, k, v = inputs(0)
    unit = np.abs(k).max() / 127
    found = named(ask((q, k, v), attended(q, k / unit, v)))
    assert "another_scale" in found
    assert not {name for name in found if "int8" in name}


@pytest.mark.parametrize("name", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_the_scales_of_keys_and_values_are_exchanged(name):
    q, k, v = inputs(0)
    v = v * 3
    units = [np.abs(array).max() / TABLES[name][-1] for array in (k, v)]
    keys, values = (codes(array, TABLES[name], (0, 1, 2, 3)) for array in (k, v))
    wrong = attended(q, keys * units[1], values * units[0])
    assert named(ask((q, k, v), wrong)) == {f"cache_in_{name}_scales_exchanged"}


@pytest.mark.usefixtures("one_mistake")
def test_formats_of_llama_need_whole_blocks():
    q, k, v = (array[..., :48] for array in wide_inputs())
    short = [in_groups(q8_0, array, (1, 32)) for array in (k, v)]
    assert not {name for name in named(ask((q, k, v), plain(q, *short))) if "q8_0" in name}


@pytest.mark.usefixtures("small_slices")
def test_groups_of_queries_are_those_of_the_whole_problem():
    q, k, v = draw(0, *[(1, 1, 140, 32)] * 3)
    short = [in_groups(symmetric(TABLES["int8"]), array, (128, 32)) for array in (q, k)]
    report = ask((q, k, v), plain(*short, v))
    assert report.diagnosis.scope == "slices"
    assert named(report) == {"query_key_in_int8_by_128_tokens"}


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
def test_another_way_to_lose_bits_has_none_of_these_names(seed):
    q, k, v = inputs(seed)
    random = np.random.default_rng(seed)
    noisy = [array + random.uniform(-0.5, 0.5, array.shape) / 40 for array in (k, v)]
    assert named(ask((q, k, v), attended(q, *noisy))) == set()
