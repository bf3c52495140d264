"""Kernels in float32 whose factors have fewer bits, as in TF32; other noise is no such thing."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture


def rounded(array, bits):
    """Round to so many significant bits, ties to even."""
    mantissa, exponent = np.frexp(np.asarray(array, "f8"))
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)


def truncated(array, bits):
    mantissa, exponent = np.frexp(np.asarray(array, "f8"))
    return np.ldexp(np.trunc(mantissa * 2.0**bits), exponent - bits)


def kernel(q, k, v, short, scale=None, when="exponentials", block=16):
    """Round what is multiplied: exponentials under the maximum so far, weights, or neither."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = short(q) @ short(k).swapaxes(-1, -2) * scale
    if when == "weights":
        return short(softmax(scores)) @ short(v)
    tops = [scores[..., i : i + block].max(-1) for i in range(0, scores.shape[-1], block)]
    tops = np.maximum.accumulate(np.stack(tops, -1), -1).repeat(block, -1)[..., : scores.shape[-1]]
    powers = np.exp(scores - tops)
    total = (powers * np.exp(tops - tops[..., -1:])).sum(-1, keepdims=True)
    if when == "exponentials":
        powers = short(powers)
    return (powers * np.exp(tops - tops[..., -1:])) @ short(v) / total


CASES = {
    "products_in_tf32": lambda array: rounded(array, 11),
    "products_in_tf32_truncated": lambda array: truncated(array, 11),
    "products_in_bfloat16": lambda array: rounded(array, 8),
}


WHEN = ["exponentials", "weights", "never"]


def inputs(seed):
    return draw(seed, (1, 2, 40, 16), (1, 2, 70, 16), (1, 2, 70, 16))


def few_inputs(seed):
    """Fewer, where hundreds of pairs of mistakes are tried."""
    return draw(seed, (1, 1, 20, 16), (1, 1, 40, 16), (1, 1, 40, 16))


def test_that_only_the_scores_are_made_in_tf32_is_told_as_such():
    q, k, v = inputs(0)
    short = CASES["products_in_tf32"]
    wrong = softmax(short(q) @ short(k).swapaxes(-1, -2) / 4) @ v
    (explanation,) = ask((q, k, v), wrong).diagnosis.explanations
    assert explanation.name == "query_key_in_float16"
    (convention,) = explanation.conventions
    assert "or to TF32" in convention.meaning
    assert 'torch.set_float32_matmul_precision("highest")' in convention.fix


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "when"), long_but(product(CASES, WHEN), *zip(CASES, WHEN, strict=True))
)
def test_rounded_factors(seed, name, when):
    q, k, v = inputs(seed)
    report = ask((q, k, v), kernel(q, k, v, CASES[name], when=when))
    assert not report.passed
    assert named(report) == {name}
    assert "the numbers agree, up to its own roundings" in str(report)
    assert str(report).count(", as large as its roundings") == 1


@pytest.mark.parametrize("name", long_but(CASES, next(iter(CASES))))
def test_rounded_factors_beside_a_mistake(name):
    q, k, v = few_inputs(0)
    report = ask((q, k, v), kernel(q, k, v, CASES[name], scale=1))
    assert named(report) == {f"{name}+unscaled"}


@pytest.mark.parametrize("seed", SEEDS)
def test_inputs_that_have_few_bits_already(seed):
    short = CASES["products_in_bfloat16"]
    q, k, v = (short(array).astype("f4") for array in inputs(seed))
    wrong = kernel(q, k, v, short, block=1000)
    assert named(ask((q, k, v), wrong)) == {"exponentials_in_bfloat16"}


def turned(rows, start=0):
    pairs = rows.shape[-1] // 2
    angle = np.outer(start + np.arange(rows.shape[-2]), 10000.0 ** (-np.arange(pairs) / pairs))
    made = (rows[..., :pairs] + 1j * rows[..., pairs:]) * np.exp(1j * angle)
    return np.concatenate([made.real, made.imag], axis=-1)


def test_factors_are_rounded_after_they_are_turned():
    q, k, v = inputs(0)
    wrong = kernel(turned(q), turned(k), v, CASES["products_in_tf32"])
    assert named(ask((q, k, v), wrong, rope="half")) == {"products_in_tf32"}


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", long_but([1e-2, 1e-3, 3e-4, 1e-4], 3e-4))
def test_other_noise_of_that_size_has_no_name(seed, size):
    q, k, v = few_inputs(seed)
    right = plain(q, k, v)
    noise = np.random.default_rng(seed).normal(0, size, right.shape)
    assert named(ask((q, k, v), right + noise)) == set()
    wrong = named(ask((q, k, v), plain(q, k, v, scale=1) + noise))
    assert not any("products" in name for name in wrong)


@pytest.mark.usefixtures("one_mistake")
def test_a_file_of_float64_is_not_looked_at_so():
    q, k, v = draw(0, *[(1, 1, 20, 16)] * 3, dtype="float64")
    wrong = kernel(q, k, v, CASES["products_in_tf32"])
    assert named(ask((q, k, v), wrong, "float64")) == set()


HALVES = [
    ("cache_in_bfloat16", "weights_in_bfloat16", lambda array: rounded(array, 8)),
    ("cache_in_float16", "weights_in_float16", lambda array: rounded(array, 11)),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mean", long_but([0, 1], 1))
@pytest.mark.parametrize(("name", "_", "short"), HALVES)
def test_a_cache_of_sixteen_bits(seed, mean, name, _, short):
    q, k, v = inputs(seed)
    v = v + np.float32(mean)
    assert named(ask((q, k, v), plain(q, short(k), short(v)))) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("mean", [0, 1])
@pytest.mark.parametrize(("_", "name", "short"), HALVES)
def test_weights_of_sixteen_bits(seed, mean, name, _, short):
    q, k, v = inputs(seed)
    v = v + np.float32(mean)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    assert named(ask((q, k, v), short(softmax(scores)) @ v)) == {name}


SOME = {
    "query": ("query",),
    "key": ("key",),
    "value": ("value",),
    "query_key": ("query", "key"),
}


@pytest.mark.parametrize(("fmt", "bits"), [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize("some", SOME)
def test_some_inputs_of_few_bits(some, fmt, bits):
    given = dict(zip(("query", "key", "value"), inputs(0), strict=True))
    short = {name: rounded(given[name], bits) for name in SOME[some]}
    wrong = plain(*{**given, **short}.values())
    assert named(ask(given.values(), wrong)) == {f"{some}_in_{fmt}"}


@pytest.mark.parametrize(("fmt", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_a_query_that_is_rounded_after_it_was_scaled(fmt, bits):
    q, k, v = draw(0, (1, 2, 40, 24), (1, 2, 70, 24), (1, 2, 70, 24))
    wrong = plain(rounded(q * 24**-0.5, bits), k, v, scale=1)
    assert named(ask((q, k, v), wrong)) == {f"scaled_query_in_{fmt}"}
    # Where it had these bits already, too.
    q, k, v = (rounded(array, bits).astype("f4") for array in (q, k, v))
    wrong = plain(rounded(q * 24**-0.5, bits), k, v, scale=1)
    assert named(ask((q, k, v), wrong)) == {f"scaled_query_in_{fmt}"}


@pytest.mark.parametrize(("fmt", "bits"), [("bfloat16", 8), ("float16", 11)])
@pytest.mark.parametrize("block", long_but([0, 16, 32], 0, 16))
@pytest.mark.parametrize("summed", [False, True])
def test_exponentials_of_few_bits(summed, block, fmt, bits):
    q, k, v = inputs(0)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    wrong, total, top = 0, 0, -np.inf
    for start in range(0, 70, block or 70):
        part = slice(start, start + (block or 70))
        higher = np.maximum(top, scores[..., part].max(-1, keepdims=True))
        powers = np.exp(scores[..., part] - higher)
        wrong = wrong * np.exp(top - higher) + rounded(powers, bits) @ v[:, :, part]
        powers = rounded(powers, bits) if summed else powers
        total = total * np.exp(top - higher) + powers.sum(-1, keepdims=True)
        top = higher
    name = f"{'summed_' * summed}exponentials_in_{fmt}" + (f"_of_{block}" if block else "")
    lse = (np.log(total) + top)[..., 0]
    assert named(ask((q, k, v), wrong / total)) == {name}
    assert named(ask((q, k, v), {"context": wrong / total, "lse": lse})) == {name}


def test_a_sink_is_added_up_as_it_is_beside_rounded_exponentials():
    q, k, v = inputs(1)
    scores, sinks = q.astype("f8") @ k.swapaxes(-1, -2) / 4, np.array([-0.5, 0.5])
    top = scores.max(-1, keepdims=True)
    assert (top > 0.5).all()
    powers = rounded(np.exp(scores - top), 8)
    total = powers.sum(-1, keepdims=True) + np.exp(sinks[:, None, None] - top)
    report = ask((q, k, v), powers @ v / total, sinks=sinks)
    assert named(report) == {"summed_exponentials_in_bfloat16"}


SECOND = {
    "bfloat16": lambda array: rounded(array, 8),
    "float16": lambda array: rounded(array, 11),
    "tf32_truncated": lambda array: truncated(array, 11),
}


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize("block", long_but([0, 16, 64], 0, 16))
def test_only_exponentials_and_values_are_rounded(block, name):
    (q, k, v), short = inputs(0), SECOND[name]
    size, end = block or 70, f"_of_{block}" if block else ""
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    tops = [scores[..., start : start + size].max(-1) for start in range(0, 70, size)]
    tops = np.maximum.accumulate(np.stack(tops, -1), -1).repeat(size, -1)[..., :70]
    powers = np.exp(scores - tops)
    back = np.exp(tops - tops[..., -1:])
    wrong = short(powers) * back @ short(v) / (powers * back).sum(-1, keepdims=True)
    assert named(ask((q, k, v), wrong)) == {f"exponentials_value_in_{name}{end}"}


@pytest.mark.parametrize("name", SECOND)
def test_only_weights_and_values_are_rounded(name):
    (q, k, v), short = inputs(0), SECOND[name]
    wrong = short(softmax(q.astype("f8") @ k.swapaxes(-1, -2) / 4)) @ short(v)
    assert named(ask((q, k, v), wrong)) == {f"weights_value_in_{name}"}


def test_only_query_and_key_are_cut():
    q, k, v = inputs(0)
    report = ask((q, k, v), plain(truncated(q, 11), truncated(k, 11), v))
    assert named(report) == {"query_key_in_tf32_truncated"}
    assert "one explanation makes the numbers agree\n" in str(report)
    assert "its own roundings" not in str(report)


@pytest.mark.parametrize(("fmt", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_terms_of_few_bits(fmt, bits):
    q, k, v = inputs(0)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    (bias,) = draw(9, (40, 70))
    wrong = softmax(scores + rounded(bias, bits)) @ v
    assert named(ask((q, k, v), wrong, bias=bias)) == {f"bias_in_{fmt}"}
    slopes, far = np.array([0.3, 0.07])[:, None, None], np.abs(np.arange(40)[:, None] - range(70))
    for name, term in (
        ("alibi_slopes", rounded(slopes, bits) * far),
        ("alibi", rounded(slopes * far, bits)),
    ):
        wrong = softmax(scores - term) @ v
        report = ask((q, k, v), wrong, alibi_slopes=slopes.ravel())
        assert named(report) == {f"{name}_in_{fmt}"}
