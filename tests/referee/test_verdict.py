"""The verdict: right outputs pass in every format, wrong numbers are measured where they are."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from oracle import attention_oracle
from referee.case import check, posed
from referee.plain import FORMATS, Given, as_bfloat16, as_float16, draw, rotate, softmax
from strategies import problems

import attncli
from attncli.errors import AttnError, DataError, ShapeError, UsageError

Q, K, V = draw(0, *[(2, 4, 6, 8)] * 3)
RIGHT = Given([Q, K, V]).attend()


def judged(output, inputs=(Q, K, V), *, diagnose=False, **options):
    """Check an output as it is; rules of the problem and options of the check come together."""
    own = {n: options.pop(n) for n in ("rtol", "atol", "printed", "average_heads") if n in options}
    return check(output, posed(inputs, options), diagnose=diagnose, **own)


@settings(max_examples=8, deadline=None)
@given(problems(dtypes=("float64", "float32", "float16")))
def test_the_oracle_passes_in_every_format(problem):
    arrays = problem.query, problem.key, problem.value
    right = attention_oracle(*arrays, **problem.options)
    question = posed(arrays, problem.options)
    with np.errstate(over="ignore"):
        for dtype in ("float64", "float32", "float16"):
            report = check({n: a.astype(dtype) for n, a in right.items()}, question)
            assert report.passed, str(report)


def test_the_largest_error_is_placed():
    wrong = RIGHT.astype("f4")
    wrong[1, 2, 3, 5] += 1
    wrong[0, 1, 4, 2] += 0.5
    report = judged(wrong, query_labels=list("abcdef"))
    (verdict,) = report.verdicts
    place = verdict.largest
    assert (place.batch, place.head, place.query, place.column) == (1, 2, 3, 5)
    assert place.query_label == "d"
    assert place.error == pytest.approx(1, abs=1e-5)
    assert place.answer == pytest.approx(RIGHT[1, 2, 3, 5], abs=1e-6)
    assert (verdict.outside, verdict.elements) == (2, wrong.size)
    assert verdict.rms == pytest.approx(np.sqrt(1.25 / wrong.size), rel=1e-4)
    assert [row.query for row in verdict.worst_rows][:2] == [3, 4]


def test_numbers_that_are_not_finite_are_counted():
    wrong = RIGHT.copy()
    wrong[0, 0, 0, :3], wrong[1, 0, 0, 0] = np.nan, np.inf
    (verdict,) = judged(wrong).verdicts
    assert (verdict.nonfinite, verdict.nonfinite_rows, verdict.outside) == (4, 2, 4)
    assert not verdict.passed


def test_a_wrong_shape_is_a_mismatch():
    report = judged(RIGHT[:, :, :5])
    assert not report.passed
    assert report.verdicts[0].expected_shape == (2, 4, 6, 8)
    with pytest.raises(ShapeError):
        report.difference("context")


def test_the_difference_is_signed_and_in_the_layout_of_the_file():
    wrong = RIGHT.swapaxes(1, 2).copy()
    wrong[1, 3, 2, 0] -= 2
    difference = judged(wrong, [a.swapaxes(1, 2) for a in (Q, K, V)], layout="bshd").difference(
        "context"
    )
    assert difference[1, 3, 2, 0] == pytest.approx(-2, abs=1e-6)
    assert np.abs(difference).sum() == pytest.approx(2, abs=1e-3)


def test_equal_infinities_agree():
    scores = np.where(np.tri(6, dtype=bool), Given([Q, K, V]).scores(), -np.inf).astype("f4")
    report = judged({"scores": scores}, causal=True)
    assert report.passed
    assert not np.isnan(report.difference("scores")).any()


def test_tolerances_of_the_user():
    near = RIGHT + 1e-3
    assert not judged(near).passed
    assert judged(near, atol=2e-3).passed
    assert not judged(near, rtol=1e-6).passed
    assert not judged(near, atol=1e-4).passed


@pytest.mark.parametrize(
    "output", [{"contxt": RIGHT}, {}, [["a"]], RIGHT.astype(complex)], ids=["name", "", "text", "i"]
)
def test_what_is_no_output_is_refused(output):
    with pytest.raises((UsageError, DataError)):
        judged(output)


def test_wrong_tolerances_and_missing_values_are_refused():
    with pytest.raises(AttnError, match="atol"):
        judged(RIGHT, atol=-1)
    with pytest.raises(UsageError, match="value"):
        judged(RIGHT, (Q, K))


# Digits and formats.


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("form", ["%.3f", "%.4f", "%.8f", "%g", "%e", "%.2e", "%.12g", "%.18e"])
def test_text_is_judged_by_the_digits_that_it_was_printed_with(form, size):
    inputs = draw(1, (6, 8), (9, 8), (9, 8), dtype="float64")
    inputs[2] *= size
    right = Given(inputs).attend()

    def printed(array):
        return np.array([[float(form % number) for number in row] for row in array])

    assert judged(printed(right), inputs).passed
    noise = draw(2, right.shape)[0]
    assert not judged(printed(right + 0.03 * size * noise), inputs).passed


def test_few_numbers_of_few_digits_are_judged_by_what_their_text_says():
    # softmax(1, 0) is (0.7311, 0.2689); the context 2.0003 and 0.5378.
    inputs = [[1.0]], [[1.0], [0.0]], [[2.736, 0.7356], [0.0, 0.0]]
    assert not judged([[2.0, 0.54]], inputs, scale=1.0).passed
    assert judged([[2.0, 0.54]], inputs, scale=1.0, printed={"context": "%.2f"}).passed
    assert not judged([[2.0, 0.56]], inputs, scale=1.0, printed={"context": "%.2f"}).passed


@pytest.mark.parametrize("fmt", ["bfloat16", "float16"])
@pytest.mark.parametrize("stored", ["float32", "float64"])
def test_numbers_of_16_bits_that_are_stored_wider(fmt, stored):
    inputs = [FORMATS[fmt](a).astype(stored) for a in draw(0, *[(1, 2, 40, 32)] * 3)]
    right = FORMATS[fmt](Given(inputs).attend()).astype(stored)
    report = judged(right, inputs)
    assert report.passed
    assert report.verdicts[0].format == fmt
    assert not judged(right * np.where(np.arange(32) == 3, 1.05, 1).astype(stored), inputs).passed
    # Where one input is exact, they were made in too few bits.
    assert not judged(right, [inputs[0] + np.float32(1e-5), *inputs[1:]]).passed


def test_a_quick_exponential_for_16_bit_inputs_passes():
    # PyTorch's kernel for CPUs errs by 2.4e-5 (root mean square), in the same way for equal scores.
    q, k, v = (as_float16(a) for a in draw(3, *[(1, 2, 130, 8)] * 3))
    scores = 0.03 * q.astype("f8") @ k.astype("f8").swapaxes(-1, -2)
    lse = np.log(np.exp(scores).sum(-1))
    lse = (lse + 2.4e-5 * draw(4, lse.shape)[0]).astype("f4")
    inputs = [a.astype("f2") for a in (q, k, v)]
    assert judged({"lse": lse}, inputs, scale=0.03).passed
    lost = np.log(np.exp(scores)[..., 1:].sum(-1)).astype("f4")
    assert not judged({"lse": lost}, inputs, scale=0.03).passed


@pytest.mark.parametrize("name", ["context", "weights", "lse"])
def test_outputs_of_float32_beside_inputs_of_16_bits(name):
    """As kernels return them; a file earns what its inputs' precision makes."""
    inputs = [as_bfloat16(a).astype("f4") for a in draw(0, *[(1, 2, 30, 16)] * 3)]
    g = Given(inputs)
    scores = g.scores().astype("f4")
    made = {
        "context": softmax(scores) @ inputs[2],
        "weights": softmax(scores),
        "lse": np.log(np.exp(scores).sum(-1)),
    }[name]
    assert judged({name: made}, inputs).passed
    assert not judged({name: made * np.float32(1.01)}, inputs).passed


@pytest.mark.parametrize("fmt", ["float16", "bfloat16"])
def test_the_root_mean_square_finds_one_lost_key(fmt):
    """Each element may err by as much as a key of 300 has; all of them together may not."""
    inputs = [FORMATS[fmt](a) for a in draw(0, (1, 2, 40, 32), *[(1, 2, 300, 32)] * 2)]
    g = Given(inputs)
    right, wrong = (FORMATS[fmt](g.attend(keep)) for keep in (True, g.j < 299))
    assert judged(right, inputs).passed
    (verdict,) = judged(wrong, inputs).verdicts
    assert not verdict.passed
    assert verdict.rms > verdict.tolerance.rms
    assert judged(wrong, inputs, atol=1).verdicts[0].tolerance.rms is None


# What right implementations make, and nothing more.


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_that_a_loop_makes_a_term_at_a_time_are_right(dtype):
    q, k, v = draw(0, (8, 64), (2048, 64), (2048, 64), dtype=dtype)
    v += v.dtype.type(3)
    scores = np.zeros((8, 2048), dtype)
    for index in range(64):
        scores += q[:, index, None] * k[None, :, index]
    powers = np.exp(scores / q.dtype.type(8))
    total, context = np.zeros((8, 1), dtype), np.zeros((8, 64), dtype)
    for index in range(2048):
        total += powers[:, index, None]
        context += powers[:, index, None] * v[index]
    assert judged({"context": context / total, "weights": powers / total}, (q, k, v)).passed
    off = context / total * q.dtype.type(1 + 100 * np.finfo(dtype).eps)
    assert not judged(off, (q, k, v)).passed


def test_rows_unlike_all_others_are_measured_too():
    q, k, v = draw(0, (2, 2, 257, 80), *[(2, 2, 500, 80)] * 2)
    q /= 10
    q[1, 0, 130] *= 80
    weights = softmax(q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(80)))
    assert judged({"context": weights @ v, "weights": weights}, (q, k, v)).passed
    weights[1, 0, 130] *= 1.001
    assert not judged({"weights": weights}, (q, k, v)).passed


@pytest.mark.parametrize("size", [1, 100, 10_000])
def test_large_scores_excuse_nothing_where_one_key_has_all(size):
    q, k, v = draw(0, *[(1, 2, 10, 8)] * 3)
    q, k = q * np.float32(size), k * np.float32(size)
    weights = softmax(q @ k.swapaxes(-1, -2) * np.float32(8**-0.5))
    for name, right in {"context": weights @ v, "weights": weights}.items():
        assert judged({name: right}, (q, k, v)).passed
        for wrong in (0 * right, np.roll(right, 1, axis=-2)):
            assert not judged({name: wrong}, (q, k, v)).passed


def test_scores_that_are_exact_by_luck_may_be_rounded():
    """Whole scores are exact in the textbook formula; kernels multiply them with log2(e)."""
    r = np.random.default_rng(0)
    q = np.stack([np.ones(6), np.arange(1, 7)], -1).astype("f4")
    k = np.stack([np.full(40, 1000), r.integers(0, 3, 40)], -1).astype("f4")
    v = r.normal(size=(40, 8)).astype("f4")
    powers = (q @ k.T) * np.float32(np.log2(np.e))
    weights = np.exp2(powers - powers.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    assert judged({"context": weights @ v, "weights": weights}, (q, k, v), scale=1.0).passed
    assert not judged({"context": weights @ v * np.float32(1.01)}, (q, k, v), scale=1.0).passed


@pytest.mark.parametrize("offset", [0, 3000, 100_000])
def test_angles_of_float32_are_right(offset):
    """Models compute them so, though they are off by 0.004 radians at the end."""
    inputs = draw(offset, *[(1, 2, 40, 16)] * 3)
    frequencies = np.float32(10000) ** (-np.arange(0, 16, 2, dtype="f4") / np.float32(16))

    def turned(rows, start):
        angles = (np.arange(40, dtype="f4") + np.float32(start))[:, None] * frequencies
        one, other, cosine, sine = rows[..., :8], rows[..., 8:], np.cos(angles), np.sin(angles)
        return np.concatenate([one * cosine - other * sine, other * cosine + one * sine], -1)

    def context(start):
        return Given(inputs).attend(q=turned(inputs[0], start), k=turned(inputs[1], 0))

    rules = {"rope": "half", "query_offset": offset}
    assert judged(context(offset).astype("f4"), inputs, **rules).passed
    assert not judged(context(offset + 1).astype("f4"), inputs, **rules).passed


@pytest.mark.parametrize("low", [-1e9, -1e4, float(np.finfo("f4").min)])
def test_a_bias_that_masks_excuses_no_other_scores(low):
    q, k, v = draw(0, *[(2, 2, 32, 32)] * 3)
    seen = np.broadcast_to(np.tri(32, dtype=bool), (2, 1, 32, 32)).copy()
    seen[0, ..., :2] = False
    bias = np.where(seen, 0, low).astype("f4")

    def context(factor):
        return softmax(q @ k.swapaxes(-1, -2) * np.float32(32**-0.5 * factor) + bias) @ v

    assert judged(context(1), (q, k, v), bias=bias).passed
    assert not judged(context(1.0005), (q, k, v), bias=bias).passed


@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-6), ("float64", 1e-15)])
def test_a_head_whose_values_are_small_is_measured_by_itself(dtype, size):
    inputs = draw(0, *[(1, 3, 40, 16)] * 3, dtype=dtype)
    inputs[2][:, 1] *= size
    g = Given(inputs)
    right = g.attend(g.tril).astype(dtype)
    wrong = right.copy()
    wrong[:, 1] = g.attend(g.tril, scale=1)[:, 1]
    assert judged(right, inputs, causal=True).passed
    (verdict,) = judged(wrong, inputs, causal=True).verdicts
    assert not verdict.passed
    assert verdict.stretch.head == 1


def test_late_queries_that_lose_a_key_are_measured_by_themselves():
    q, k, v = (a.astype("f2") for a in draw(0, *[(1024, 16)] * 3))
    v[1] /= 3
    g = Given([q, k, v])
    lost = (g.i >= 600) & (g.j == 1)
    right, wrong = (g.attend(keep).astype("f2") for keep in (g.tril, g.tril & ~lost))
    assert judged(right, (q, k, v), causal=True).passed
    (verdict,) = judged(wrong, (q, k, v), causal=True).verdicts
    assert not verdict.passed
    assert 536 < verdict.stretch.queries[0] < verdict.stretch.queries[1] <= 1024


@pytest.mark.parametrize("fmt", ["float16", "bfloat16"])
@pytest.mark.parametrize("factor", [1, 4, 64])
def test_what_rounding_does_to_each_row_is_no_mistake(fmt, factor):
    """With large scores, of which the largest two are nearly the same in some rows."""
    short = FORMATS[fmt]
    inputs = [short(a) for a in draw(0, *[(1, 2, 200, 16)] * 3)]
    inputs[0] *= factor
    g = Given(inputs)
    scores = short(short(g.scores(scale=1)) / 4)
    weights = short(softmax(np.where(g.tril, scores, -np.inf)))
    outputs = {"weights": weights, "context": short(weights @ g.v)}
    stored = {n: a.astype("f2" if fmt == "float16" else "f4") for n, a in outputs.items()}
    inputs = [a.astype("f2" if fmt == "float16" else "f4") for a in inputs]
    assert judged(stored, inputs, causal=True).passed


def test_one_lone_row_that_is_wrong_in_16_bits_is_found():
    inputs = [as_float16(a).astype("f2") for a in draw(0, *[(1, 2, 64, 64)] * 3)]
    right = Given(inputs).attend().astype("f2")
    assert judged(right, inputs).passed
    right[0, 0, 50] *= np.float16(1.02)
    (verdict,) = judged(right, inputs).verdicts
    assert not verdict.passed


def test_the_mean_of_the_heads_is_judged_as_such():
    weights = Given([Q, K, V]).weights().mean(1).astype("f4")
    assert judged({"weights": weights}, average_heads=True).passed
    assert not judged({"weights": weights}).passed
    assert not judged({"weights": 1.01 * weights}, average_heads=True).passed


def test_padding_that_was_not_looked_at_does_not_spoil_the_verdict():
    k, v = K.copy(), V.copy()
    k[:, :, 4:] = v[:, :, 4:] = np.nan
    g = Given([Q, K, V])
    assert judged(g.attend(g.j < 4).astype("f4"), (Q, k, v), kv_lengths=4).passed
    assert not judged(g.attend().astype("f4"), (Q, k, v), kv_lengths=4).passed


@pytest.mark.parametrize("fmt", ["float32", "float64"])
def test_far_positions_may_be_rounded(fmt):
    inputs = draw(3, *[(6, 8)] * 3, dtype=fmt)
    places = np.arange(6) + 6003
    made = Given(inputs).attend(q=rotate(inputs[0], places), k=rotate(inputs[1], np.arange(6)))
    rules = {"rope": "half", "query_offset": 6003}
    assert judged(made.astype(fmt), inputs, **rules).passed


@pytest.mark.peer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_outputs_of_pytorch_pass(dtype):
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(a).to(getattr(torch, dtype)) for a in draw(5, *[(2, 3, 33, 24)] * 3))
    made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    arrays = [a.double().numpy() for a in (q, k, v, made)]
    fmt = "float32" if dtype == "bfloat16" else dtype
    *inputs, context = (a.astype(fmt) for a in arrays)
    assert judged(context, inputs, causal=True).passed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert attncli.check(context, posed(inputs, {"causal": True})).passed
