"""The verdict: right outputs pass in every format, wrong numbers are measured where they are."""

import dataclasses
import time
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import attention_oracle
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture
from strategies import problems

from attncli import AttnError, pose, solve
from attncli.errors import DataError, ShapeError, UsageError
from attncli.numerics.dtypes import as_bfloat16, widen
from attncli.referee import check, comparison, judge
from attncli.referee.rounding import PRECISIONS, narrowest

# What float16 has least, most and no more.
EDGES = [0.0, -0.0, 2.0**-25, 2.0**-24, 3 * 2.0**-25, 2.0**-14, 65504.0, 65519.99, 65520.0, -1e9]
EDGES += [np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("scale", [1, 1e-3, 1e-6, 1e3, 1e5])
def test_rounding_to_float16_is_that_of_numpy(scale):
    random = np.random.default_rng(0)
    ties = random.integers(-(2**13), 2**13, 1000) * 2.0 ** random.integers(-28, 4, 1000)
    array = np.concatenate([random.normal(0, scale, 10_000), scale * ties, EDGES]).astype("f4")
    with np.errstate(over="ignore"):
        expected = array.astype("f2").astype("f4")
    np.testing.assert_array_equal(PRECISIONS["float16"].rounded(array), expected)
    np.testing.assert_array_equal(PRECISIONS["float16"].rounded(array[::2]), expected[::2])


def test_it_says_where_the_largest_error_is():
    q, k, v = draw(0)
    wrong = plain(q, k, v).astype("f4")
    right = float(wrong[1, 2, 3, 5])
    wrong[1, 2, 3, 5] += 1
    wrong[0, 1, 4, 2] += 0.5
    report = ask((q, k, v), wrong, query_labels=list("abcdef"), diagnose=False)
    (verdict,) = report.verdicts
    place = verdict.largest
    assert (place.batch, place.head, place.query, place.column) == (1, 2, 3, 5)
    assert place.query_label == "d"
    assert place.error == pytest.approx(1, abs=1e-5)
    assert place.answer == pytest.approx(right, abs=1e-6)
    assert (verdict.outside, verdict.elements) == (2, wrong.size)
    assert verdict.rms == pytest.approx(np.sqrt(1.25 / wrong.size), rel=1e-4)
    assert [row.query for row in verdict.worst_rows][:2] == [3, 4]
    assert "batch 1, head 2, query 3 (d), column 5" in str(report)


def test_of_errors_that_are_equal_the_first_is_told_first():
    q, k, v = draw(0)
    wrong = plain(q, k, v).astype("f4")
    wrong[1, 2, 3, 5] = wrong[0, 1, 4, 2] = wrong[1, 0, 0, 1] = np.nan
    (verdict,) = ask((q, k, v), wrong, diagnose=False).verdicts
    assert [row.batch for row in verdict.worst_rows] == [0, 1, 1]
    assert [row.head for row in verdict.worst_rows] == [1, 0, 2]
    assert verdict.largest.query == verdict.worst_rows[0].query


@pytest.mark.long
def test_two_wrong_numbers_name_no_mistake():
    q, k, v = draw(0)
    wrong = plain(q, k, v).astype("f4")
    wrong[1, 2, 3, 5] += 1
    wrong[0, 1, 4, 2] += 0.5
    assert named(ask((q, k, v), wrong)) == set()


def test_the_largest_relative_error_is_elsewhere():
    q, k, v = draw(0)
    wrong = plain(q, k, v)
    index = np.unravel_index(np.argmin(abs(wrong)), wrong.shape)
    error = 0.5 / abs(wrong[index])
    wrong[index] += 0.5
    wrong[0, 0, 0, 0] += 0.6
    place = ask((q, k, v), wrong, diagnose=False).verdicts[0].largest_relative
    assert (place.batch, place.head, place.query, place.column) == index
    assert place.error == pytest.approx(error, rel=1e-3)


def test_nonfinite_elements_and_rows_are_counted():
    q, k, v = draw(0)
    wrong = plain(q, k, v)
    wrong[0, 0, 0, :3] = np.nan
    wrong[1, 0, 0, 0] = np.inf
    verdict = ask((q, k, v), wrong, diagnose=False).verdicts[0]
    assert (verdict.nonfinite, verdict.nonfinite_rows, verdict.outside) == (4, 2, 4)
    assert not verdict.passed


def test_a_wrong_shape_is_a_mismatch():
    q, k, v = draw(0)
    report = ask((q, k, v), plain(q, k, v)[:, :, :5])
    assert not report.passed
    assert report.verdicts[0].expected_shape == (2, 4, 6, 8)
    assert "(2, 4, 5, 8)" in str(report)
    assert "(2, 4, 6, 8)" in str(report)
    with pytest.raises(ShapeError, match="no difference"):
        report.difference("context")


def test_the_difference_is_signed_and_in_the_layout_of_the_file():
    q, k, v = draw(0)
    wrong = plain(q, k, v).transpose(0, 2, 1, 3).copy()
    wrong[1, 3, 2, 0] -= 2
    inputs = [a.transpose(0, 2, 1, 3) for a in (q, k, v)]
    difference = ask(inputs, wrong, layout="bshd", diagnose=False).difference("context")
    assert difference.shape == (2, 6, 4, 8)
    assert difference[1, 3, 2, 0] == pytest.approx(-2, abs=1e-6)
    assert np.abs(difference).sum() == pytest.approx(2, abs=1e-3)


def test_equal_infinities_agree():
    q, k, _ = draw(0)
    scores = np.where(np.tri(6, dtype=bool), q.astype("f8") @ k.swapaxes(-1, -2) / 8**0.5, -np.inf)
    report = ask((q, k), {"scores": scores}, causal=True)
    assert report.passed
    assert not np.isnan(report.difference("scores")).any()


def test_a_large_negative_bias_earns_no_large_tolerance():
    q, k, _ = draw(0)
    bias = np.where(np.tri(6, dtype=bool), 0, -1e9).astype("f4")
    scores = q @ k.swapaxes(-1, -2) / np.float32(8**0.5) + bias
    assert ask((q, k), {"scores": scores}, bias=bias).passed
    scores[0, 0, 0, 0] += 1e-4
    assert not ask((q, k), {"scores": scores}, bias=bias, diagnose=False).passed


def test_tolerances_of_the_user():
    q, k, v = draw(0)
    problem = pose(q, k, v)
    near = plain(q, k, v) + 1e-3
    assert not check(near, problem, diagnose=False).passed
    assert check(near, problem, atol=2e-3).passed
    assert not check(near, problem, rtol=1e-6, diagnose=False).passed
    assert not check(near, problem, atol=1e-4, diagnose=False).passed
    wrong = plain(q, k, v, scale=1).round(3)
    assert named(check(wrong, problem, atol=1e-3)) == {"unscaled"}


@pytest.mark.parametrize(("digits", "passes"), [(4, True), (6, True), (8, True)])
def test_numbers_printed_with_few_digits_pass(digits, passes):
    q, k, v = draw(0, dtype="float64")
    assert check(plain(q, k, v).round(digits), pose(q, k, v)).passed is passes
    wrong = plain(q, k, v).round(digits)
    wrong[0, 0, 0, 0] += 2 * 10.0**-digits
    assert not check(wrong.round(digits), pose(q, k, v), diagnose=False).passed


@pytest.mark.parametrize(("form", "unit"), [("%.1f", 0.1), ("%.2f", 0.01), ("%.1e", 0.1)])
def test_few_numbers_of_few_digits_are_judged_by_what_their_text_says(form, unit):
    # softmax(1, 0) is (0.7311, 0.2689); the context 2.0003 and 0.5378.
    problem = pose([[1.0]], [[1.0], [0.0]], [[2.736, 0.7356], [0.0, 0.0]], scale=1.0)
    right = plain(problem.query, problem.key, problem.value, scale=1)[0, 0]

    def passes(array, printed):
        found = [[float(form % number) for number in array[0]]]
        return check(found, problem, printed=printed, diagnose=False).passed

    assert not passes(right, None), "two numbers do not show that they were rounded"
    assert passes(right, {"context": form})
    wrong = right + np.array([0.0, unit if "e" in form else 2 * unit])
    assert not passes(wrong, {"context": form})


def test_a_form_that_the_numbers_do_not_have_does_not_count():
    problem = pose([[1.0]], [[1.0], [0.0]], [[2.0], [0.0]], scale=1.0)
    assert not check([[1.4651]], problem, printed={"context": "%.1f"}, diagnose=False).passed
    with pytest.raises(UsageError, match=r"printed: expected %.2f or %.2e for context; found '2'"):
        check([[1.46]], problem, printed={"context": "2"})
    for printed in ({"weights": "%.2f"}, "%.2f"):
        with pytest.raises(UsageError, match="printed: expected a mapping with names of context"):
            check([[1.46]], problem, printed=printed)


@pytest.mark.parametrize("name", ["context", "weights", "lse"])
def test_outputs_of_float32_are_judged_beside_inputs_of_bfloat16(name):
    bits = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in draw(0, *[(5, 4)] * 3)]
    arrays = [as_bfloat16(each) for each in bits]
    scores = widen(arrays[0], np.float64) @ widen(arrays[1], np.float64).T / 2
    weights = softmax(scores)
    lse = np.log(np.exp(scores).sum(-1))
    right = {"context": weights @ widen(arrays[2], np.float64), "weights": weights, "lse": lse}
    file = right[name].astype(np.float32)
    problem = pose(*arrays)
    assert check({name: file}, problem).verdicts[0].format == "float32"
    assert check({name: file}, problem).passed
    assert not check({name: file * np.float32(1.01)}, problem, diagnose=False).passed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_that_every_format_holds_are_of_the_format_of_the_inputs(dtype):
    # softmax(16, 0) is 1 and 1.1e-7, which float32 may take for 0.
    q, k = np.array([[1.0]], dtype), np.array([[16.0], [0.0]], dtype)
    q = q * np.pi / 3 if dtype == "float64" else q
    problem = pose(q, k, scale=1.0)
    for found, passes in [([[1.0, 0.0]], dtype == "float32"), ([[np.nan, np.nan]], False)]:
        verdict = check({"weights": np.array(found)}, problem, diagnose=False).verdicts[0]
        assert (verdict.format, verdict.passed) == (dtype, passes)


def test_few_decimals_that_are_exact_are_not_taken_for_rounded():
    # The right weights are 0.51 and 0.49; 0.5 is not one of them printed short.
    inputs = [[0.04, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    report = ask(inputs, {"weights": [[0.5, 0.5]]}, "float64", diagnose=False)
    assert not report.passed


def test_nothing_explains_the_weights_of_the_tutorials():
    # softmax(2, 1, 1) is (0.5761, 0.2119, 0.2119); a comment that is often copied says this.
    report = check(
        {"weights": [[0.7071, 0.1464, 0.1464]]}, pose([[1.0]], [[2.0], [1.0], [1.0]], scale=1)
    )
    assert not report.passed
    assert named(report) == set()
    assert "no known mistake" in str(report)
    assert "attncli explain, with the same files and options and --query 0" in str(report)


def test_without_time_nobody_says_that_nothing_explains_it():
    q, k, v = draw(0)
    wrong = plain(q, k, v)
    wrong[1, 2, 3] += np.arange(8) % 3
    report = check(wrong.astype("f4"), pose(q, k, v, layout="bhsd"), time_limit=0)
    assert "no known mistake was tried" in str(report)
    assert "a longer --time-limit may find more" in str(report)
    assert "no known mistake explains" not in str(report)
    assert "--batch 1 --head 2 --query 3" in str(report)


def test_what_is_explained_needs_no_further_look():
    q, k, v = draw(0)
    report = ask((q, k, v), plain(q, k, v, scale=1))
    assert named(report) == {"unscaled"}
    assert "attncli explain" not in str(report)


def test_wrong_arguments():
    q, k, v = draw(0)
    problem = pose(q, k, v)
    right = plain(q, k, v)
    for expected, error in [
        ({"contxt": right}, UsageError),
        ({}, UsageError),
        ([["a"]], DataError),
        (right.astype(complex), DataError),
    ]:
        with pytest.raises(error):
            check(expected, problem)
    with pytest.raises(UsageError, match="value"):
        check(right, pose(q, k))
    with pytest.raises(AttnError, match="atol"):
        check(right, problem, atol=-1)


def test_the_report_is_frozen():
    q, k, v = draw(0)
    report = ask((q, k, v), plain(q, k, v))
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.verdicts = ()
    with pytest.raises(UsageError):
        report.difference("weights")


@settings(max_examples=6, deadline=None)
@given(problems(dtypes=("float64", "float32", "float16")))
def test_the_oracle_passes_in_every_format(problem):
    arrays = problem.query, problem.key, problem.value
    right = attention_oracle(*arrays, **problem.options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posed = pose(*arrays, **problem.options)
    with np.errstate(over="ignore"):
        for dtype in ("float64", "float32", "float16"):
            report = check({n: a.astype(dtype) for n, a in right.items()}, posed)
            assert report.passed, str(report)


def torch_outputs(torch, seed, dtype, causal):
    random = np.random.default_rng(seed)
    rows, keys, width = random.integers(1, 70, 3)
    rows = keys if causal else rows
    make = lambda n: torch.tensor(random.normal(size=(2, 3, n, width)), dtype=dtype)  # noqa: E731
    q, k, v = make(rows), make(keys), make(keys)
    made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-1, -2) / width**0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(rows, keys).tril().bool(), -torch.inf)
    outputs = {"context": made, "weights": scores.softmax(-1), "lse": scores.logsumexp(-1)}
    return (q, k, v), outputs


def as_numpy(torch, tensor):
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view([("bfloat16", "<u2")])
    return tensor.numpy()


def see_pytorch_pass(name, causal, seeds):
    torch = pytest.importorskip("torch")
    for seed in seeds:
        inputs, outputs = torch_outputs(torch, seed, getattr(torch, name), causal)
        problem = pose(*(as_numpy(torch, a) for a in inputs), causal=causal)
        report = check({n: as_numpy(torch, a) for n, a in outputs.items()}, problem)
        assert report.passed, str(report)


@pytest.mark.peer
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_outputs_of_pytorch_pass(name, causal):
    see_pytorch_pass(name, causal, range(3))


@pytest.mark.peer
@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_more_outputs_of_pytorch_pass(name, causal):
    see_pytorch_pass(name, causal, range(3, 12))


NOISY = (
    problems(dtypes=("float64", "float32", "float16")),
    st.sampled_from(["float64", "float32", "float16"]),
    st.sampled_from(["context", "weights", "lse", "scores"]),
    st.sampled_from([0.0, 1.0, 3.0, 10.0, 1e3, 1e6]),
    st.integers(0, 2**32),
    st.booleans(),
)


def names_of_noise(problem, dtype, name, size, seed, everywhere, time_limit):
    arrays = problem.query, problem.key, problem.value
    right = attention_oracle(*arrays, **problem.options)[name].astype(dtype)
    random = np.random.default_rng(seed)
    noise = random.normal(size=right.shape) * size * np.finfo(dtype).eps
    if not everywhere:
        noise = np.where(random.random(right.shape) < 0.3, noise, 0)
    with warnings.catch_warnings(), np.errstate(over="ignore"):
        warnings.simplefilter("ignore")
        posed = pose(*arrays, **problem.options)
        noisy = (right + noise).astype(dtype)
    return named(check({name: noisy}, posed, time_limit=time_limit))


@settings(max_examples=25, deadline=None)
@given(drawn=st.tuples(*NOISY))
def test_no_false_names(drawn):
    """Right and noisy outputs are never explained by a convention, nor by the first pairs."""
    assert names_of_noise(*drawn, time_limit=0.04) == set()


@pytest.mark.long
# A test that takes over 300 s is stopped.
@settings(max_examples=350, deadline=None)
@given(drawn=st.tuples(*NOISY))
def test_no_false_names_among_all_pairs(drawn):
    assert names_of_noise(*drawn, time_limit=60) == set()


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", long_but(range(6), 0))
def test_weights_that_are_noise(seed):
    q, k, _ = draw(seed)
    noise = softmax(draw(seed + 50, (2, 4, 6, 6))[0])
    assert named(ask((q, k), {"weights": noise})) == set()


def test_padding_that_was_not_looked_at_does_not_spoil_the_verdict():
    q, k, v = draw(0)
    k[:, :, 4:] = v[:, :, 4:] = np.nan
    keep = np.arange(6) < 4
    wrong = plain(q, np.nan_to_num(k), np.nan_to_num(v), keep, scale=1).astype("f4")
    reports = [check(wrong, pose(q, k, v, kv_lengths=4, unread=unread)) for unread in (True, False)]
    assert [named(report) for report in reports] == [{"unscaled"}] * 2
    unread, read = (report.verdicts[0].tolerance for report in reports)
    assert unread == read


@pytest.mark.parametrize("name", ["average_heads", "diagnose"])
@pytest.mark.parametrize("value", ["false", 1, np.array([True, False])])
def test_what_is_asked_for_is_true_or_false(name, value):
    with pytest.raises(UsageError, match=f"{name}: expected true or false"):
        check(np.ones((1, 1)), pose(*np.ones((3, 1, 1))), **{name: value})


def test_the_time_limit_is_that_of_the_diagnosis_alone(monkeypatch):
    slowly = comparison._tolerances

    def late(*words):
        time.sleep(0.6)
        return slowly(*words)

    monkeypatch.setattr(comparison, "_tolerances", late)
    q, k, v = draw(0)
    report = check(plain(q, k, v, scale=1), pose(q, k, v), time_limit=0.5)
    assert "unscaled" in named(report)


def test_the_answer_is_computed_on_as_many_threads_as_are_asked_for(threads_asked):
    asked = threads_asked(judge)
    q, k, v = draw(0)
    assert check(plain(q, k, v), pose(q, k, v), threads=1).passed
    assert asked == [1]


@pytest.mark.parametrize("number", [0, np.nan, 0.5])
def test_a_file_of_one_number_names_no_mistake(number):
    q, k, v = draw(0)
    report = ask((q, k, v), np.full(v.shape, number), causal=True, window=(3, 0))
    assert not report.passed
    assert named(report) == set()
    assert "the file holds one number, or NaN, everywhere, so no mistake can be identified" in str(
        report
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_products_of_float32_in_a_file_of_float64(seed):
    q, k, v = draw(seed)
    # NumPy makes float64 of float32 / np.sqrt(int).
    scores = (q @ k.swapaxes(-1, -2)).astype("f8") / np.sqrt(8)
    report = ask((q, k, v), softmax(scores) @ v, dtype="float64")
    assert named(report) == {"computed_in_float32"}
    few = [array[0, 0] for array in (q, k, v)]
    assert named(ask(few, plain(*few) + 1e-12, dtype="float64")) == {"added_vector"}


MISTAKES = {
    "one_over_width": (lambda product: product / np.sqrt(8) / np.sqrt(8), {}),
    "causal_missing": (lambda product: product / np.sqrt(8), {"causal": True}),
    "scale_inverted+causal_unasked": (lambda product: product * np.sqrt(8), {}),
}


def with_a_mistake(names, product, v):
    seen = np.tri(6, dtype=bool) if "unasked" in names else True
    return softmax(np.where(seen, MISTAKES[names][0](product), -np.inf)) @ v


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", MISTAKES)
def test_mistakes_beside_products_of_float32_in_a_file_of_float64(seed, names):
    q, k, v = draw(seed)
    # NumPy makes float64 of float32 / np.sqrt(int).
    mixed = with_a_mistake(names, q @ k.swapaxes(-1, -2), v)
    assert mixed.dtype == np.float64
    report = check(mixed, pose(q, k, v, **MISTAKES[names][1]))
    assert named(report) == {f"{names}+computed_in_float32"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", long_but(MISTAKES, "scale_inverted+causal_unasked"))
def test_mistakes_beside_exact_products_in_a_file_of_float64(seed, names):
    q, k, v = draw(seed)
    exact = with_a_mistake(names, q.astype("f8") @ k.swapaxes(-1, -2), v)
    assert named(check(exact, pose(q, k, v, **MISTAKES[names][1]))) == {names}


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("names", long_but(MISTAKES, "one_over_width"))
def test_nothing_of_float32_is_in_inputs_of_float64(seed, names):
    q, k, v = draw(seed)
    mixed = with_a_mistake(names, q @ k.swapaxes(-1, -2), v)
    wide = [array.astype("f8") for array in (q, k, v)]
    assert named(check(mixed, pose(*wide, **MISTAKES[names][1]), time_limit=1)) == set()


@pytest.mark.parametrize("seed", SEEDS)
def test_mistakes_in_bfloat16_that_is_stored_as_float32(seed):
    q, k, v = (array.view("u4") & 0xFFFF0000 for array in draw(seed))
    q, k, v = (array.view("f4") for array in (q, k, v))
    wrong = plain(q, k, v, scale=1).astype("f4").view("u4")
    wrong = ((wrong + 0x8000) & 0xFFFF0000).astype("u4").view("f4")
    assert "unscaled" in named(ask((q, k, v), wrong))


def test_axes_that_are_exchanged_before_an_output_projection():
    x, weight = draw(0, (1, 3, 4))[0], draw(1, (4, 6), (4, 6), (4, 6), (6, 4))
    made = [(x.astype("f8") @ w).reshape(1, 3, 2, 3) for w in weight[:3]]
    wrong = plain(*made).reshape(1, 3, 6) @ weight[3]
    packed = [array.reshape(1, 3, 6) for array in made]
    problem = pose(*packed, heads=2, wo=weight[3])
    assert named(check(wrong.astype("f4"), problem)) == {"axes_exchanged"}


def test_one_wrong_query_is_no_block():
    q, k, v = draw(0, *[(1, 1, 300, 4)] * 3)
    wrong = plain(q, k, v)
    wrong[:, :, 298] += 0.1
    report = check(wrong, pose(q, k, v), diagnose=True, time_limit=0.1)
    assert "only one of the queries is wrong: 298" in str(report)


def rounded_to_bfloat16(array):
    bits = np.asarray(array, "f4").view("u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view([("bfloat16", "<u2")])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rounded", [rounded_to_bfloat16, np.float16], ids=["bfloat16", "float16"])
class TestTheRootMeanSquareOfTheErrors:
    """Each element may err by two last places of a number near 1: as much as a key of 300 has."""

    @staticmethod
    def made(seed, rounded):
        return [rounded(array) for array in draw(seed, (1, 2, 40, 32), *[(1, 2, 300, 32)] * 2)]

    @staticmethod
    def widened(array):
        if array.dtype == np.float16:
            return array.astype("f8")
        return (array.view("<u2").astype("u4") << 16).view("f4").astype("f8")

    def test_finds_one_lost_key(self, seed, rounded):
        given = self.made(seed, rounded)
        q, k, v = map(self.widened, given)
        problem = pose(*given)
        assert check(rounded(plain(q, k, v)), problem).passed
        report = check(rounded(plain(q, k[:, :, :-1], v[:, :, :-1])), problem)
        (verdict,) = report.verdicts
        assert verdict.rms > verdict.tolerance.rms
        assert named(report) == {"last_key_lost"}
        assert f"rms error {verdict.rms:.3g} (at most {verdict.tolerance.rms:.3g})" in str(report)
        assert verdict.worst_rows

    def test_is_not_asked_where_a_tolerance_is_given(self, seed, rounded):
        given = self.made(seed, rounded)
        q, k, v = map(self.widened, given)
        wrong = rounded(plain(q, k[:, :, :-1], v[:, :, :-1]))
        report = check(wrong, pose(*given), atol=1)
        assert report.passed
        assert report.verdicts[0].tolerance.rms is None
        assert "at most" not in str(report)

    @pytest.mark.usefixtures("one_mistake")
    def test_noise_of_another_kind_is_not_explained_by_noise(self, seed, rounded):
        given = self.made(seed, rounded)
        q, k, v = map(self.widened, given)
        wrong = plain(q, k, v) * (1 + 0.03 * draw(seed + 9, (1, 2, 40, 32))[0])
        assert named(check(rounded(wrong), pose(*given), time_limit=0.1)) == set()


@pytest.mark.parametrize("seed", [0, 5])
def test_the_largest_error_of_hot_scores_may_exceed_that_of_the_sample(seed):
    """Few numbers of them have a large error, and luck has its part."""
    q, k, v = draw(seed, (2, 2, 257, 80), *[(2, 2, 700, 80)] * 2, dtype="float64")
    q *= 20
    weights = softmax(q @ k.swapaxes(-1, -2) * 80**-0.5)
    report = ask((q, k, v), {"context": weights @ v, "weights": weights}, "float64")
    assert report.passed, str(report)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", SEEDS)
def test_sums_that_a_loop_makes_a_term_at_a_time_are_right(seed, dtype):
    """What a loop in C gives is further from the answer than what BLAS gives, and right."""
    q, k, v = draw(seed, (8, 64), (4096, 64), (4096, 64), dtype=dtype)
    v += v.dtype.type(3)
    scores = np.zeros((8, 4096), dtype)
    for index in range(64):
        scores += q[:, index, None] * k[None, :, index]
    powers = np.exp(scores / q.dtype.type(8))
    total, context = np.zeros((8, 1), dtype), np.zeros((8, 64), dtype)
    for index in range(4096):
        total += powers[:, index, None]
        context += powers[:, index, None] * v[index]
    report = ask((q, k, v), {"context": context / total, "weights": powers / total}, dtype)
    assert report.passed, str(report)
    off = context / total * q.dtype.type(1 + 100 * np.finfo(dtype).eps)
    assert not check(off, pose(q, k, v), diagnose=False).passed


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_unlike_all_others_are_measured_too(seed):
    """The tolerance of a large problem comes from a sample of rows, which one may not be like."""
    q, k, v = draw(seed, (2, 2, 257, 80), *[(2, 2, 700, 80)] * 2)
    q /= 10
    q[1, 0, 130] *= 80
    weights = softmax(q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(80)))
    assert ask((q, k, v), {"context": weights @ v, "weights": weights}).passed
    weights[1, 0, 130] *= 1.001
    assert not check({"weights": weights}, pose(q, k, v), diagnose=False).passed


@pytest.mark.parametrize("offset", [0, 300, 3000, 100_000])
def test_angles_of_float32_are_right(offset):
    """Models compute them so, though they are off by 0.004 radians at the end."""
    q, k, v = draw(offset, *[(1, 2, 40, 16)] * 3)
    frequency = np.float32(10000) ** (-np.arange(0, 16, 2, dtype="f4") / np.float32(16))

    def turned(rows, start):
        angle = (np.arange(40, dtype="f4") + np.float32(start))[:, None] * frequency
        one, other = rows[..., :8], rows[..., 8:]
        cosine, sine = np.cos(angle), np.sin(angle)
        assert cosine.dtype == np.float32
        return np.concatenate([one * cosine - other * sine, other * cosine + one * sine], -1)

    problem = pose(q, k, v, rope="half", query_offset=offset)
    assert check(plain(turned(q, offset), turned(k, 0), v).astype("f4"), problem).passed
    wrong = plain(turned(q, offset + 1), turned(k, 0), v).astype("f4")
    assert not check(wrong, problem, diagnose=False).passed
    if offset:
        wrong = plain(turned(q, 0), turned(k, 0), v).astype("f4")
        assert named(check(wrong, problem)) == {"rope_without_offset"}


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "form", ["%.3f", "%.4f", "%.8f", "%.9f", "%.12f", "%g", "%e", "%.3g", "%.2e", "%.12g", "%.18e"]
)
def test_text_is_judged_by_the_digits_that_it_was_printed_with(form, size):
    q, k, v = draw(1, (6, 8), (9, 8), (9, 8), dtype="float64")
    v *= size
    problem = pose(q, k, v)

    def printed(array):
        return np.array([[float(form % number) for number in row] for row in array])

    right = plain(q, k, v)
    assert check(printed(right), problem).passed
    assert check({"weights": printed(plain(q, k, np.eye(9)))}, problem).passed
    noise = draw(2, right.shape)[0]
    assert not check(printed(right + 0.03 * size * noise), problem, diagnose=False).passed


@pytest.mark.parametrize("form", ["shortest", "%.9f", "%.10f", "%.8e", "%.9g"])
@pytest.mark.parametrize("inputs", ["float32", "float64", "text"])
@pytest.mark.parametrize("seed", SEEDS)
def test_float32_in_text_is_judged_as_float32_where_the_inputs_are(seed, inputs, form):
    q, k, v = draw(seed, (6, 8), (9, 8), (9, 8))
    made = plain(q, k, v).astype("f4")
    texts = [str(x) if form == "shortest" else form % x for x in made.ravel()]
    found = np.array(list(map(float, texts))).reshape(made.shape)
    if inputs == "float64":
        q, k, v = (array.astype("f8") for array in (q, k, v))
    elif inputs == "text":  # as a CSV file holds float32
        q, k, v = ([[float(str(x)) for x in row] for row in array] for array in (q, k, v))
    problem = pose(q, k, v)
    assert check(found, problem).passed
    found[2, 3] += 1e-5
    assert not check(found, problem, diagnose=False).passed


@pytest.mark.parametrize("digits", [1, 2])
def test_two_decimals_and_one_are_those_of_print_where_some_numbers_have_them(digits):
    q, k, v = draw(0, (6, 8), (9, 8), (9, 8), dtype="float64")
    right = plain(q, k, v).round(digits)
    assert check(right, pose(q, k, v)).passed
    right[2, 3] += 2 * 10.0**-digits
    assert not check(right.round(digits), pose(q, k, v), diagnose=False).passed


def test_whole_numbers_and_few_short_ones_are_not_those_of_print():
    q, k, v = draw(0, (6, 8), (9, 8), (9, 8), dtype="float64")
    assert not check(plain(q, k, v).round(0), pose(q, k, v), diagnose=False).passed
    # 0.25 may well be meant.
    problem = pose([[1.0]], [[1.0], [2.0]], np.eye(2), scale=1.098)
    assert not check([[0.25, 0.75]], problem, diagnose=False).passed


@pytest.mark.parametrize("seeds", long_but([range(5), range(5, 20)], range(5)))
@pytest.mark.parametrize("form", ["%.4f", "%.6f", "%.8f", "%g", "%e", "%.9g"])
def test_text_of_an_output_of_float32_is_judged_as_such(form, seeds):
    """Half a digit is lost in print, and no more than float32 has beside it."""
    for seed in seeds:
        q, k, v = draw(seed, *[(64, 32)] * 3)
        scores = q @ k.T / np.float32(np.sqrt(32))
        made = softmax(scores) @ v
        assert made.dtype == np.float32
        text = np.array([[float(form % number) for number in row] for row in made])
        assert check(text, pose(q, k, v), diagnose=False).passed
    assert not check(text + 1e-3, pose(q, k, v), diagnose=False).passed


@pytest.mark.parametrize("size", [30, 100])
def test_a_head_unlike_all_others_is_measured_too(size):
    q, k, v = draw(0, *[(1, 32, 128, 32)] * 3)
    v[:, 7] *= size
    q, k, v = (array.astype("f2") for array in (q, k, v))
    assert check(plain(q, k, v).astype("f2"), pose(q, k, v), diagnose=False).passed
    # As torch does it: the weights are rounded before they meet the values.
    scores = q.astype("f4") @ k.astype("f4").swapaxes(-1, -2) / np.float32(np.sqrt(32))
    made = softmax(scores).astype("f2").astype("f4") @ v.astype("f4")
    assert check(made.astype("f2"), pose(q, k, v), diagnose=False).passed


def test_a_narrower_format_is_seen_where_one_row_is_unlike_all_others():
    q, k = draw(1, (1, 1, 2400, 40), (1, 1, 110, 40))
    q /= 10
    q[0, 0, 301] *= 80  # which is not in the sample
    weights = softmax(q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(40)))
    assert weights.dtype == np.float32
    assert ask((q, k), {"weights": weights}, "float64", diagnose=False).passed
    wider = {"weights": weights * np.float64(1 + 1e-12)}
    assert named(check(wider, pose(q, k))) == {"computed_in_float32"}


@pytest.mark.parametrize("stored", ["float32", "float64"])
@pytest.mark.parametrize("rounded", [rounded_to_bfloat16, np.float16], ids=["bfloat16", "float16"])
class TestNumbersOfSixteenBitsThatAreStoredWider:
    """`tensor.float().numpy()`: NumPy has no bfloat16."""

    @staticmethod
    def made(rounded, stored):
        def short(array):
            return TestTheRootMeanSquareOfTheErrors.widened(rounded(array)).astype(stored)

        inputs = [short(array) for array in draw(0, *[(1, 2, 40, 32)] * 3)]
        return inputs, short(plain(*inputs))

    def test_are_judged_as_such_where_the_inputs_are_so(self, rounded, stored):
        inputs, right = self.made(rounded, stored)
        report = check(right, pose(*inputs))
        assert report.passed
        assert report.verdicts[0].format in ("bfloat16", "float16")
        right[..., 3] *= 1.05
        assert not check(right, pose(*inputs), diagnose=False).passed

    def test_are_wrong_where_one_input_is_exact(self, rounded, stored):
        (q, k, v), right = self.made(rounded, stored)
        report = check(right, pose(q + np.float32(1e-5), k, v))
        assert not report.passed
        assert report.verdicts[0].format == "float32"
        assert named(report) == {"computed_in_half"}
        assert "are bfloat16 numbers" in str(report) or "are float16 numbers" in str(report)


def test_a_file_of_few_numbers_is_judged_in_the_format_of_the_inputs():
    def short(array):
        return TestTheRootMeanSquareOfTheErrors.widened(rounded_to_bfloat16(array)).astype("f4")

    q, k, v = map(short, draw(0, (1, 2, 1, 16), (1, 2, 90, 16), (1, 2, 90, 16)))
    scores = q.astype("f8") @ k.swapaxes(-1, -2) / 4
    right = {
        "context": short(plain(q, k, v)),
        "lse": short(np.log(np.exp(scores).sum(-1))),
    }
    report = check(right, pose(q, k, v))
    assert [verdict.format for verdict in report.verdicts] == ["bfloat16", "bfloat16"]
    assert report.passed


@pytest.mark.parametrize("causal", long_but([False, True], False))
@pytest.mark.parametrize("number", long_but([0.3, 1.0, 2.0, 0.0, 3.3], 2.0))
def test_one_number_names_no_mistake(number, causal):
    query, key, value = [[1.0, 2]], [[1.0, 0], [2, 1], [3, 1]], [[0.3], [1.0], [2.0]]
    options = {"causal": True, "causal_align": "top-left"} if causal else {}
    report = check([[number]], pose(query, key, value, **options))
    assert report.passed or named(report) == set()


@pytest.mark.parametrize("seed", long_but(range(6), 0, 1))
@pytest.mark.parametrize("form", ["%.6e", "%.7g"])
def test_numbers_of_one_decade_are_judged_by_their_significant_digits(form, seed):
    q, k = draw(seed, (64, 64), (300, 64), dtype="float64")
    q *= 0.3
    weights = softmax(q @ k.T / 8)
    printed = np.array([float(form % number) for number in weights.ravel()])
    weights = printed.reshape(weights.shape)
    assert check({"weights": weights}, pose(q, k), diagnose=False).passed
    weights[3, 5] *= 1.001
    assert not check({"weights": weights}, pose(q, k), diagnose=False).passed


def test_eighths_do_not_tell_a_format_of_16_bits():
    single = PRECISIONS["float32"]
    assert narrowest(np.array([0.125, 0.25, 0.5, 0.375]), single) == single
    # The nearest bfloat16 numbers of 0.1, 0.3, 0.7 and 0.9.
    near = np.array([0.10009765625, 0.30078125, 0.69921875, 0.8984375])
    assert narrowest(near, single).name == "bfloat16"


def test_one_output_that_has_anothers_shape_ends_the_search_for_names():
    q, k, v = draw(0, (3, 4), (5, 4), (5, 4))
    right = plain(q, k, v).astype("f4")
    report = check({"weights": right, "context": right}, pose(q, k, v), time_limit=1)
    assert report.told_diagnosis is None
    assert "no known mistake" not in str(report)


def test_products_that_cancel_may_err_as_their_terms_do():
    """The plain formula may be exact by luck where another right one is not."""
    q, k = np.array([[-0.544, -0.3296, 0.904, -1.228]]), np.array([[-1.107, -0.4204, 1.112, 1.435]])
    exact = attention_oracle(q, k, [[1.0]], scale=0.3)["raw"]
    terms = 0.3 * np.abs(q * k).sum()
    for step in (-1, 1):
        near = exact + step * np.finfo("f8").eps * terms
        assert check({"raw": near}, pose(q, k, scale=0.3)).passed
    assert not check({"raw": exact + 1e-14}, pose(q, k, scale=0.3), time_limit=0).passed


@pytest.mark.parametrize("size", [1, 100, 1000, 10_000])
def test_large_scores_excuse_nothing_where_one_key_has_all(size):
    """They err by more than 1, but far less than by what lies between them."""
    q, k, v = draw(0, *[(1, 2, 10, 8)] * 3)
    q, k = q * np.float32(size), k * np.float32(size)
    scores = q @ k.swapaxes(-1, -2) * np.float32(8**-0.5)
    weights = softmax(scores)
    assert weights.max(-1).min() > 0.999 or size == 1
    for name, right in {"context": weights @ v, "weights": weights}.items():
        assert ask((q, k, v), {name: right}, diagnose=False).passed
        for wrong in (0 * right, np.roll(right, 1, axis=-2)):
            assert not ask((q, k, v), {name: wrong}, diagnose=False).passed


@pytest.mark.parametrize("gap", [0.5, 4.0])
def test_large_scores_that_lie_near_each_other_may_change_places(gap):
    """One has an error of a unit in its last place, beside which the gap is small."""
    k = np.array([[2.0**24, 0], [2.0**24, gap], [0, 0]])
    v = np.array([[1.0, 0], [0, 1], [-1, -1]])
    for moved in (-2, 2):
        scores = np.array([[2.0**24, 2.0**24 + gap + moved, 0]])
        assert ask(([[1.0, 1]], k, v), softmax(scores) @ v, scale=1, diagnose=False).passed


def test_no_error_of_scores_takes_a_context_out_of_the_values():
    q, k, v = np.ones((1, 2)), np.full((64, 2), 2.0**25), draw(0, (64, 3))[0]
    assert ask((q, k, v), v[:1], scale=1, diagnose=False).passed
    assert not ask((q, k, v), v.max(0) * [[1, 1, 3]], scale=1, diagnose=False).passed


@pytest.mark.parametrize("digits", [3, 4, 5])
def test_float32_that_was_rounded_is_judged_by_its_digits(digits):
    q, k, v = draw(0, *[(40, 16)] * 3)
    right = plain(q, k, v)
    assert ask((q, k, v), right.round(digits)).passed
    off = right.round(digits) + 3 * 10.0**-digits
    assert not ask((q, k, v), off, diagnose=False).passed
    # What was not rounded has no such excuse.
    assert not ask((q, k, v), right * (1 + 1e-5), diagnose=False).passed


def test_a_file_earns_six_times_the_error_of_the_plain_formula_and_no_more():
    """One number of a context is off by eight times that, and by its own rounding."""
    inputs = np.random.default_rng(0).standard_normal((3, 64, 16)).astype(np.float32)
    problem = pose(*inputs)
    right = solve(pose(*inputs, precision="float64")).context
    right = right.astype(np.float32)
    tolerance = check(right, problem, diagnose=False).verdicts[0].tolerance
    off = 8 * tolerance.plain_error + tolerance.relative * abs(right[5, 3])
    wrong = right.copy()
    wrong[5, 3] += np.float32(off)
    assert not check(wrong, problem, diagnose=False).passed


def test_large_numbers_of_a_16_bit_file_are_not_wrong_where_others_are():
    """The first rows of a causal context are large, and so are their roundings."""
    inputs = np.random.default_rng(0).standard_normal((3, 1, 2, 1024, 64)).astype(np.float16)
    context = solve(pose(*inputs, causal=True, precision="float64")).context.astype(np.float16)
    problem = pose(*inputs, causal=True)
    assert check(context, problem).passed
    context[0, 0, -40:] = 0
    report = check(context, problem)
    (explanation,) = report.diagnosis.explanations
    assert explanation.name == "rows_not_written"
    assert "the first wrong row is batch 0, head 0, query 984" in str(report)


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", long_but([2, 4, 9], 4))
def test_only_whole_numbers_are_cast_to_integers(seed):
    """Where weights are near 0 and 1, a cast of those of float16 may give any of both."""
    random = np.random.default_rng(seed)
    q, k = (random.standard_normal((2, 1, 1, 60, 8)) * 4).astype("f2")
    noise = random.dirichlet(np.ones(60) * 0.1, (1, 1, 60)).astype("f2")
    report = check({"weights": noise}, pose(q, k))
    assert report.diagnosis.explanations == ()


@pytest.mark.parametrize("first", [lambda keys: 0, lambda keys: keys - 1], ids=["BLOOM", "MPT"])
def test_alibi_that_is_added_by_the_key_is_right_in_float32(first):
    """slope · (j − n) is −slope · (i − j) but for a constant of the row, and rounds more."""
    shape = (1, 4, 300, 64)
    q, k, v = (array.astype("f4") for array in draw(0, *[shape] * 3))
    slopes = np.float32([0.5, 0.25, 0.125, 0.0625])
    places = np.arange(300)
    penalty = slopes[:, None, None] * (places - first(300)).astype("f4")
    scores = q @ k.swapaxes(-1, -2) * np.float32(0.125) + penalty
    scores = np.where(places <= places[:, None], scores, np.float32(-np.inf))
    weights = softmax(scores)
    assert weights.dtype == np.float32
    options = {"causal": True, "alibi_slopes": slopes}
    assert ask((q, k, v), weights @ v, diagnose=False, **options).passed
    # It excuses nothing that anybody would notice.
    wrong = softmax(scores + penalty / 1000) @ v
    assert not ask((q, k, v), wrong, diagnose=False, **options).passed
