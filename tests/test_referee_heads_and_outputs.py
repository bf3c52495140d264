"""Wrong head axes, float16 sums, wrong lse and misplaced axes are named."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import pose
from attncli.referee import check

L = 6


@pytest.mark.parametrize("seed", SEEDS)
def test_heads_tiled(seed):
    q, k, v = draw(seed, (2, 6, L, 8), (2, 3, L, 8), (2, 3, L, 8))
    wrong = np.stack([plain(q[:, h], k[:, h % 3], v[:, h % 3]) for h in range(6)], axis=1)
    assert named(ask((q, k, v), wrong)) == {"heads_tiled"}
    for name, of_keys, of_values in (
        ("heads_of_keys_tiled", [h % 3 for h in range(6)], [h // 2 for h in range(6)]),
        ("heads_of_values_tiled", [h // 2 for h in range(6)], [h % 3 for h in range(6)]),
    ):
        wrong = plain(q, k[:, of_keys], v[:, of_values])
        assert named(ask((q, k, v), wrong)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_axes_exchanged(seed, layout):
    q, k, v = draw(seed)
    if layout == "bshd":  # (B, L, H, D) used as it is: heads meet heads
        q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
        wrong = plain(q, k, v)
    else:
        wrong = plain(*(a.transpose(0, 2, 1, 3) for a in (q, k, v))).transpose(0, 2, 1, 3)
    report = ask((q, k, v), wrong, layout=layout)
    assert named(report) == {"axes_exchanged"}


@pytest.mark.parametrize("seed", SEEDS)
def test_packed_heads_that_are_reshaped(seed):
    x, y, z = draw(seed, *[(2, L, 32)] * 3)
    q, k, v = (a.reshape(2, 4, L, 8) for a in (x, y, z))
    right = [a.reshape(2, L, 4, 8).transpose(0, 2, 1, 3) for a in (x, y, z)]
    cases = {
        "heads_reshaped": plain(q, k, v).reshape(2, L, 32),
        "heads_reshaped_in": plain(q, k, v).transpose(0, 2, 1, 3).reshape(2, L, 32),
        "heads_reshaped_out": plain(*right).reshape(2, L, 32),
    }
    for name, wrong in cases.items():
        assert named(ask((x, y, z), wrong, heads=4)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_packed_heads_that_are_interleaved(seed):
    x, y, z = draw(seed, *[(2, L, 32)] * 3)
    context = plain(*(a.reshape(2, L, 8, 4).transpose(0, 3, 1, 2) for a in (x, y, z)))
    cases = {
        "heads_interleaved": context.transpose(0, 2, 3, 1).reshape(2, L, 32),
        "heads_interleaved_in": context.transpose(0, 2, 1, 3).reshape(2, L, 32),
        "heads_interleaved_out": plain(
            *(a.reshape(2, L, 4, 8).transpose(0, 2, 1, 3) for a in (x, y, z))
        )
        .transpose(0, 2, 3, 1)
        .reshape(2, L, 32),
    }
    for name, wrong in cases.items():
        assert named(ask((x, y, z), wrong, heads=4)) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("heads", [2, 4])
def test_weights_averaged_before_the_values(seed, heads):
    q, k, v = draw(seed, *[(2, heads, L, 8)] * 3)
    wrong = softmax(scaled(q, k)).mean(axis=1, keepdims=True) @ v
    assert named(ask((q, k, v), wrong)) == {"weights_averaged_before_values"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("weights_averaged", lambda w: w.mean(axis=1)),
        ("axes_bhxl", lambda w: w.swapaxes(-1, -2)),
        ("axes_blhx", lambda w: w.transpose(0, 2, 1, 3)),
        ("axes_of_length_1", lambda w: w[:, :, None]),
    ],
)
def test_axes_of_the_weights(seed, name, wrong):
    q, k, _ = draw(seed, (2, 4, 5, 8), (2, 4, 7, 8), (1,))
    report = ask((q, k), {"weights": wrong(softmax(scaled(q, k)))})
    assert not report.passed
    assert named(report) == {name}


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("axes_blhx", lambda c: c.transpose(0, 2, 1, 3)),
        ("heads_packed", lambda c: c.transpose(0, 2, 1, 3).reshape(2, 5, -1)),
        ("heads_packed_untransposed", lambda c: c.reshape(2, 5, -1)),
    ],
)
def test_axes_of_the_context(name, wrong):
    q, k, v = draw(0, (2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 3))
    assert named(ask((q, k, v), wrong(plain(q, k, v)))) == {name}


def test_a_packed_context_is_a_mismatch_and_what_to_do_is_said():
    q, k, v = draw(0)
    report = ask((q, k, v), plain(q, k, v).transpose(0, 2, 1, 3).reshape(2, L, 32))
    assert not report.passed
    text = str(report)
    assert "the numbers are right" in text
    assert "reshape(B, L, H, E).transpose(0, 2, 1, 3)" in text
    assert "--heads" in text


def test_a_packed_context_without_the_transpose_for_heads_first():
    q, k, v = draw(0, *[(4, L, 8)] * 3)
    wrong = plain(q, k, v).reshape(L, 32)
    assert named(ask((q, k, v), wrong, layout="hsd")) == {"heads_packed_untransposed"}


def test_averaged_weights_of_unscaled_scores():
    q, k, _ = draw(0)
    weights = softmax(q @ k.swapaxes(-1, -2)).mean(axis=1)
    assert named(ask((q, k), {"weights": weights})) == {"unscaled+weights_averaged"}


@pytest.mark.parametrize("seed", SEEDS)
def test_float16_accumulation(seed):
    q, k, v = draw(seed, (1, 1, 4, 16), (1, 1, 1500, 16), (1, 1, 1500, 16))
    v = v + np.float32(3)
    weights = softmax(scaled(q, k)).astype(np.float16)
    total = np.zeros((1, 1, 4, 16), np.float16)
    for j in range(1500):
        total += weights[..., j, None] * v[..., j, :][..., None, :].astype(np.float16)
    assert named(ask((q, k, v), total, dtype="float16")) == {"float16_accumulation"}


def added_in_half(terms):
    """Add up along the keys, one after the other, in float16."""
    total = np.zeros(np.delete(terms.shape, 3), np.float16)
    for j in range(terms.shape[3]):
        total = total + terms[:, :, :, j].astype(np.float16)
    return total


HALF_SUMS = {
    "float16_accumulation_divided_later": (True, False),
    "float16_denominator": (False, True),
    "float16_accumulation_of_both": (True, True),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", long_but(HALF_SUMS, *list(HALF_SUMS)[1:]))
def test_sums_of_exponentials_in_float16(seed, name):
    q, k, v = draw(seed, (1, 1, 4, 16), (1, 1, 1500, 16), (1, 1, 1500, 16))
    v = v + np.float32(3)
    scores = scaled(q, k)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    halves = powers.astype("f2")[..., None], v.astype("f2")[:, :, None]
    above, below = HALF_SUMS[name]
    total = added_in_half(halves[0] * halves[1]) if above else powers @ v
    sums = added_in_half(halves[0]) if below else powers.sum(-1, keepdims=True)
    wrong = total.astype("f8") / sums
    assert named(ask((q, k, v), wrong, dtype="float16")) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_computed_in_half_and_stored_as_float32(seed):
    q, k, v = draw(seed)
    half = plain(q, k, v).astype(np.float16)
    report = ask((q, k, v), half)
    assert not report.passed
    assert named(report) == {"computed_in_half"}


def test_unscaled_in_half_and_stored_as_float32():
    q, k, v = draw(1)
    half = plain(q, k, v, scale=1).astype(np.float16)
    assert named(ask((q, k, v), half)) == {"unscaled"}


def beside_maxima(scores):
    """Return the sums of exponentials, sinks included, beside the largest score of each row."""
    top = scores.max(-1, keepdims=True)
    return np.exp(scores - top).sum(-1) + np.exp(SINKS - top[..., 0])


SINKS = np.array([0.5, 1.5, -0.7, 2.5])[:, None]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("lse_base_2", lambda s: np.log2(np.exp(s).sum(-1) + np.exp(SINKS))),
        (
            "lse_times_ln_2",
            lambda s: np.log(np.exp(s).sum(-1) + np.exp(SINKS)) * np.log(2),
        ),
        ("lse_unscaled", lambda s: np.log(np.exp(s * np.sqrt(8)).sum(-1) + np.exp(SINKS))),
        ("lse_without_sinks", lambda s: np.log(np.exp(s).sum(-1))),
        (
            "lse_without_maximum",
            lambda s: np.log(np.exp(s).sum(-1) + np.exp(SINKS)) - s.max(-1),
        ),
        ("lse_not_logarithm", lambda s: np.exp(s).sum(-1) + np.exp(SINKS)),
        (
            "lse_untransposed",
            lambda s: (
                np.log(np.exp(s).sum(-1) + np.exp(SINKS)).transpose(0, 2, 1).reshape(s.shape[:3])
            ),
        ),
        ("lse_negative", lambda s: -np.log(np.exp(s).sum(-1) + np.exp(SINKS))),
        ("lse_base_10", lambda s: np.log10(np.exp(s).sum(-1) + np.exp(SINKS))),
        ("lse_maximum_in_base_2", lambda s: s.max(-1) / np.log(2) + np.log(beside_maxima(s))),
        ("lse_sum_in_base_2", lambda s: s.max(-1) + np.log2(beside_maxima(s))),
        ("lse_of_sum_alone", beside_maxima),
        ("lse_sum_subtracted", lambda s: s.max(-1) - np.log(beside_maxima(s))),
        ("lse_sum_not_logarithm", lambda s: s.max(-1) + beside_maxima(s)),
        ("lse_maximum_unscaled", lambda s: s.max(-1) * np.sqrt(8) + np.log(beside_maxima(s))),
    ],
)
def test_lse(seed, name, wrong):
    q, k, v = draw(seed)
    scores = scaled(q, k)
    column = np.broadcast_to(SINKS[..., None], (2, 4, L, 1))
    context = softmax(np.concatenate([scores, column], axis=-1))[..., :-1] @ v
    outputs = {"context": context, "lse": wrong(scores)}
    assert named(ask((q, k, v), outputs, sinks=SINKS.ravel())) == {name}


def lse_of_blind_rows(dtype, number, unit=1.0):
    """Return inputs, rules, and outputs whose lse is a number where a query sees no key."""
    q, k, v = draw(0, (1, 2, 9, 16), (1, 2, 6, 16), (1, 2, 6, 16), dtype=dtype)
    keep = np.arange(6) <= np.arange(9)[:, None] - 3
    sums = np.where(keep, np.exp(scaled(q, k)), 0).sum(-1)
    with np.errstate(divide="ignore"):
        lse = np.where(sums == 0, number, np.log(sums) / unit)
    rules = {"causal": True, "causal_align": "bottom-right"}
    return (q, k, v), rules, {"lse": lse, "context": plain(q, k, v, keep)}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("with_context", [False, True])
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("lse_of_blind_rows_inf", np.inf),
        ("lse_of_blind_rows_zero", 0.0),
        ("lse_of_blind_rows_nan", np.nan),
    ],
)
def test_the_lse_of_queries_that_see_no_key(name, number, with_context, dtype):
    inputs, rules, outputs = lse_of_blind_rows(dtype, -np.inf)
    assert ask(inputs, outputs, dtype, **rules).passed
    inputs, rules, outputs = lse_of_blind_rows(dtype, number)
    expected = outputs if with_context else {"lse": outputs["lse"]}
    report = ask(inputs, expected, dtype, **rules)
    assert named(report) == {name}


@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
def test_an_lse_in_base_2_that_is_positive_where_a_query_sees_no_key(dtype):
    inputs, rules, outputs = lse_of_blind_rows(dtype, np.inf, np.log(2))
    report = ask(inputs, outputs, dtype, **rules)
    assert named(report) == {"lse_base_2+lse_of_blind_rows_inf"}


@pytest.mark.usefixtures("one_mistake")
def test_an_output_that_nothing_explains_is_told():
    q, k, v = draw(0, *[(L, 8)] * 3)
    outputs = {
        "weights": softmax(scaled(q, k)),
        "lse": np.exp(scaled(q, k)).sum(-1),
        "context": draw(1, v.shape)[0],
    }
    report = ask((q, k, v), outputs)
    assert named(report) == {"lse_not_logarithm"}
    assert report.diagnosis.unexplained == ("context",)
    assert "diagnosis: lse is explained; context is not" in str(report)
    outputs["context"] = outputs["weights"] @ v
    report = ask((q, k, v), outputs)
    assert report.diagnosis.unexplained == ()
    assert "one explanation makes the numbers agree" in str(report)


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_of_another_stage(seed):
    q, k, v = draw(seed)
    keep = np.tri(L, dtype=bool)
    raw = scaled(q, k)
    capped = 2 * np.tanh(raw / 2)
    context = softmax(np.where(keep, capped, -np.inf)) @ v
    for name, scores in (("scores_are_raw", raw), ("scores_are_capped", capped)):
        outputs = {"context": context, "scores": scores}
        assert named(ask((q, k, v), outputs, causal=True, softcap=2)) == {name}
    final = np.where(keep, capped, -np.inf)
    for name, file, scores in (
        ("raw_are_scores", "raw", final),
        ("raw_hidden", "raw", np.where(keep, raw, -np.inf)),
        ("capped_are_scores", "capped", final),
    ):
        report = ask((q, k, v), {"context": context, file: scores}, causal=True, softcap=2)
        assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_scores_from_behind_the_softmax(seed):
    q, k, v = draw(seed)
    scores = np.where(np.tri(L, dtype=bool), scaled(q, k), -np.inf)
    weights = softmax(scores)
    for name, wrong in (
        ("scores_are_weights", weights),
        ("scores_less_maximum", scores - scores.max(-1, keepdims=True)),
    ):
        outputs = {"context": weights @ v, "scores": wrong}
        assert named(ask((q, k, v), outputs, causal=True)) == {name}


@pytest.mark.parametrize("with_context", [False, True])
def test_scores_as_weights(with_context):
    q, k, v = draw(0)
    scores = np.where(np.tri(L, dtype=bool), scaled(q, k), -np.inf)
    context = {"context": softmax(scores) @ v} if with_context else {}
    report = ask((q, k, v), {**context, "weights": scores}, causal=True)
    assert named(report) == {"weights_are_scores"}


def test_scores_without_the_scale():
    q, k, v = draw(0)
    outputs = {"context": plain(q, k, v), "scores": q @ k.swapaxes(-1, -2)}
    assert named(ask((q, k, v), outputs)) == {"scores_unscaled"}


@pytest.mark.usefixtures("one_mistake")
def test_each_output_may_have_its_own_explanation():
    q, k, v = draw(0, *[(L, 8)] * 3)
    weights = softmax(q @ k.swapaxes(-1, -2))
    outputs = {"context": plain(q, k, v), "weights": weights}
    report = ask((q, k, v), outputs)
    assert [v.passed for v in report.verdicts] == [True, False]
    (explanation,) = report.diagnosis.explanations
    assert (explanation.name, explanation.outputs) == ("unscaled", ("weights",))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keys", [6, 15])
def test_a_one_that_is_added_to_the_denominator(seed, keys):
    q, k, v = draw(seed, (2, 4, 6, 8), (2, 4, keys, 8), (2, 4, keys, 8))
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(8)
    wrong = np.exp(scores) / (1 + np.exp(scores).sum(-1, keepdims=True)) @ v
    # Of 15 keys, one of zeros is the same.
    zeros = {f"zeros_to_{size}_counted" for size in (8, 16) if keys == 15}
    report = ask((q, k, v), wrong)
    assert named(report) == {"sinks_unasked"} | zeros
    assert "fix: divide by the sum of the exponentials only" in str(report)
    assert "--sinks 0,0,0,0\n" in str(report)
    assert ask((q, k, v), wrong, sinks=[0] * 4).passed


SHAPES = [
    # As a table holds it: (B·L, H·E).
    ("axes_joined", lambda right: right.reshape(-1, right.shape[-1])),
    ("axes_joined", lambda right: right.reshape(-1)),
    ("axes_joined", lambda right: right.reshape(2, 3, 2, 32)),
    ("axes_joined", lambda right: right.reshape(2, 6, 4, 8)),
    ("heads_not_joined", lambda right: right.reshape(2, 6, 4, 8).swapaxes(1, 2)),
    ("axes_bhxl", lambda right: right.reshape(2, 6, 4, 8).transpose(0, 2, 3, 1)),
    ("axes_of_length_1", lambda right: right[:, None]),
    ("sequence_first", lambda right: right.swapaxes(0, 1)),
]


def of_packed_heads(seed):
    """Return a problem and its context."""
    q, k, v = draw(seed, *[(2, 6, 32)] * 3)
    heads = [array.reshape(2, 6, 4, 8).transpose(0, 2, 1, 3) for array in (q, k, v)]
    right = plain(*heads).transpose(0, 2, 1, 3).reshape(2, 6, 32).astype("f4")
    return pose(q, k, v, heads=4), right


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "shaped"), SHAPES)
def test_contexts_of_packed_heads_in_another_shape(seed, name, shaped):
    problem, right = of_packed_heads(seed)
    assert check(right, problem).passed
    report = check(shaped(right), problem)
    assert not report.passed
    assert named(report) == {name}


@pytest.mark.parametrize("seed", SEEDS)
def test_heads_that_only_need_to_be_joined_need_no_other_order(seed):
    q, k, v = draw(seed, *[(6, 2, 32)] * 3)
    heads = [array.reshape(6, 2, 4, 8).transpose(1, 2, 0, 3) for array in (q, k, v)]
    right = plain(*heads).astype("f4")
    problem = pose(q, k, v, heads=4, layout="sbd")
    assert named(check(right.transpose(2, 0, 1, 3), problem)) == {"axes_joined"}
    assert named(check(right.transpose(0, 2, 1, 3), problem)) == {"axes_blhx"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "shaped"), long_but(SHAPES, SHAPES[0], SHAPES[3]))
def test_wrong_numbers_of_packed_heads_in_another_shape(seed, name, shaped):
    problem, right = of_packed_heads(seed)
    assert named(check(shaped(right) + 1, problem, time_limit=0.5)) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_strides_that_are_ignored(seed):
    """As kernels do that take the pointer of a transposed tensor."""
    q, k, v = draw(seed)

    def misread(array):
        return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(array.shape)

    wrong = plain(misread(q), misread(k), misread(v))
    assert named(ask((q, k, v), wrong)) == {"strides_ignored"}
    assert named(ask((q, k, v), plain(q, misread(k), misread(v)))) == {"strides_of_keys_ignored"}


SOME_INPUTS = [
    ("query", "query_reshaped_in", "strides_of_query_ignored"),
    ("key", "key_reshaped_in", "strides_of_key_ignored"),
    ("value", "value_reshaped_in", "strides_of_value_ignored"),
    ("key value", "key_value_reshaped_in", "strides_of_keys_ignored"),
    ("query key", "query_key_reshaped_in", "strides_of_query_key_ignored"),
    ("query value", "query_value_reshaped_in", "strides_of_query_value_ignored"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("which", "reshaped", "unread"), SOME_INPUTS)
@pytest.mark.parametrize("back", [False, True])
def test_some_inputs_in_the_memory_of_another_layout(seed, which, reshaped, unread, back):
    def misread(array):
        batch, heads, rows, width = array.shape
        if back:
            return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(array.shape)
        return array.reshape(batch, rows, heads, width).transpose(0, 2, 1, 3)

    given = dict(zip(("query", "key", "value"), draw(seed), strict=True))
    wrong = {n: misread(a) if n in which.split() else a for n, a in given.items()}
    report = ask(given.values(), plain(*wrong.values()))
    assert named(report) == {unread if back else reshaped}


@pytest.mark.parametrize("seed", SEEDS)
def test_decoding_in_the_memory_of_another_layout(seed):
    """A single query lies in memory in one way only."""
    q, k, v = draw(seed, (2, 4, 1, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    misread = k.reshape(2, 6, 4, 8).transpose(0, 2, 1, 3)
    assert named(ask((q, k, v), plain(q, misread, v))) == {"key_reshaped_in"}


@pytest.mark.parametrize("seed", SEEDS)
def test_values_whose_strides_are_exchanged(seed):
    q, k, v = draw(seed, (2, 4, 5, 8), (2, 4, 6, 8), (2, 4, 6, 8))
    misread = v.reshape(2, 4, 8, 6).swapaxes(-1, -2)
    assert named(ask((q, k, v), plain(q, k, misread))) == {"value_reshaped"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_a_context_transposed_once_too_often(seed, layout):
    """As wrappers do that expect a kernel to write the other layout."""
    q, k, v = draw(seed)
    right = plain(q, k, v)
    if layout == "bshd":
        q, k, v, right = (array.transpose(0, 2, 1, 3) for array in (q, k, v, right))
    batch, first, second, width = right.shape
    wrong = right.reshape(batch, second, first, width).transpose(0, 2, 1, 3)
    assert named(ask((q, k, v), wrong, layout=layout)) == {"heads_transposed_twice"}


@pytest.mark.parametrize("name", ["context_is_query", "context_is_key", "context_is_value"])
def test_an_input_given_as_the_output(name):
    q, k, v = draw(0)
    given = name.removeprefix("context_is_")
    report = ask((q, k, v), {"query": q, "key": k, "value": v}[given])
    assert named(report) == {name}
    assert f"the file holds the {given}, which was given" in str(report)


def test_the_weights_given_as_the_context():
    q, k, v = draw(0, *[(L, L)] * 3)
    weights = softmax(np.where(np.tri(L, dtype=bool), scaled(q, k), -np.inf))
    assert named(ask((q, k, v), weights, causal=True)) == {"context_is_weights"}


def test_a_transposed_matrix_is_called_so():
    q, k, v = draw(0, *[(5, 3)] * 3)
    report = ask((q, k, v), plain(q, k, v).T)
    assert "each matrix in the file is transposed" in str(report)


def test_what_anybody_may_do_comes_before_what_kernels_do():
    """Of one query, a window of a quarter of the keys is the last of four parts."""
    q, k, v = draw(0, (2, 4, 1, 32), (2, 4, 64, 32), (2, 4, 64, 32))
    wrong = plain(q, k, v, np.arange(64) >= 48)
    report = ask((q, k, v), wrong, causal=True, causal_align="bottom-right")
    names = [explanation.name for explanation in report.diagnosis.explanations]
    assert names == ["window_unasked", "splits_of_4_last_kept"]
    assert "--window 15" in str(report)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("count", "names"),
    [
        (75, {"splits_of_4_last_lost"}),
        (64, {"last_block_of_64_lost"}),
        (70, {"padding_unasked"}),
    ],
)
def test_keys_that_one_query_does_not_see_are_padding_and_not_behind_a_window(seed, count, names):
    q, k, v = draw(seed, (2, 4, 1, 32), (2, 4, 100, 32), (2, 4, 100, 32))
    report = ask((q, k, v), plain(q, k, v, np.arange(100) < count))
    assert named(report) == names
    assert report.diagnosis.explanations[0].options == (f"--kv-lengths {count}",)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("keys", [4, 5])
def test_weights_and_values_that_share_no_index(seed, keys):
    """With four keys, not four parts of one key each that are added up."""
    q, k, v = draw(seed, (4, 4), (keys, 4), (keys, 4))
    wrong = np.einsum("ij,kd->id", softmax(scaled(q, k)), v)
    assert named(ask((q, k, v), wrong)) == {"values_summed"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("output", ["context", "weights"])
def test_queries_and_keys_that_share_no_index(seed, output):
    q, k, v = draw(seed, *[(4, 4)] * 3)
    weights = softmax(np.einsum("qd,ke->qk", q, k) / 2)
    wrong = weights @ v if output == "context" else weights
    assert named(ask((q, k, v), {output: wrong})) == {"products_of_sums"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("softmax_of_products_with_values", -1),
        ("softmax_of_products_with_values_over_queries", -2),
    ],
)
def test_a_bracket_that_is_closed_too_late(seed, name, axis):
    q, k, v = draw(seed, *[(4, 4)] * 3)
    assert named(ask((q, k, v), softmax(scaled(q, k) @ v, axis))) == {name}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [8, 32])
@pytest.mark.parametrize("moved", ["values", "keys"])
@pytest.mark.parametrize("name", ["of_first", "late_by_a", "early_by_a"])
def test_tiles_that_are_read_too_early_or_too_late(seed, moved, name, size):
    q, k, v = draw(seed, (1, 2, 7, 16), *[(1, 2, 3 * size + 4, 16)] * 2)
    at = np.arange(3 * size + 4)
    places = {
        "of_first": at % size,
        "late_by_a": np.where(at < size, at, at - size),
        "early_by_a": np.where(at + size < len(at), at + size, at),
    }[name]
    read = (k, v[:, :, places]) if moved == "values" else (k[:, :, places], v)
    assert named(ask((q, k, v), plain(q, *read))) == {f"{moved}_{name}_block_of_{size}"}


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_with_the_strides_of_the_queries(seed):
    q, k, v = draw(seed, (2, 3, 10, 8), (2, 3, 18, 8), (2, 3, 18, 8))
    read = [
        np.stack([rows.ravel()[80 * z :][:144].reshape(18, 8) for z in range(6)]).reshape(k.shape)
        for rows in (k, v)
    ]
    assert named(ask((q, k, v), plain(q, *read))) == {"strides_of_query"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("name", "first"), [("sinks_as_first_column", True), ("sinks_as_last_column", False)]
)
@pytest.mark.parametrize("output", ["weights", "scores"])
def test_sinks_that_are_written_as_a_key(seed, name, first, output):
    q, k, v = draw(seed)
    sinks = np.random.default_rng(seed).standard_normal(4)
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 8**0.5
    column = np.broadcast_to(sinks[:, None, None], (2, 4, 6, 1))
    both = np.concatenate((column, scores) if first else (scores, column), axis=-1)
    written = softmax(both) if output == "weights" else both
    assert named(ask((q, k, v), {output: written}, sinks=sinks)) == {name}


@pytest.mark.usefixtures("one_mistake")
def test_values_of_another_width_are_not_read_with_the_strides_of_the_queries():
    q, k, v = draw(0, (2, 3, 10, 8), (2, 3, 18, 8), (2, 3, 18, 4))
    read = [
        np.stack([rows.reshape(-1, rows.shape[-1])[10 * z :][:18] for z in range(6)])
        for rows in (k, v)
    ]
    wrong = plain(q, *(rows.reshape(2, 3, 18, -1) for rows in read))
    assert "strides_of_query" not in named(ask((q, k, v), wrong))
