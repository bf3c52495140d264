"""A single query that is wrong in 16 bits, by less than rounding may do elsewhere."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import as_bfloat16, ask, draw, named, plain, scaled, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

TRIL = np.tri(256, dtype=bool)


def as_float16(array):
    return np.asarray(array).astype("f2").astype("f4")


FORMATS = {"float16": as_float16, "bfloat16": as_bfloat16}
# NumPy has no bfloat16.
STORED = {"float16": "float16", "bfloat16": "float32"}
RULES = {
    "no rule": {},
    "softcap": {"softcap": 4.0},
    "sinks": {"sinks": [0.5, 2.0]},
    "ALiBi": {"alibi_slopes": [0.5, 0.0625]},
    "window": {"window": (40, 0)},
}


def stored(
    rounded, q, k, v, keep, *, softcap=None, sinks=None, bias=None, alibi_slopes=None, window=None
):
    """Return weights and context as PyTorch makes them in 16 bits: each step is stored in them."""
    i, j = np.indices(keep.shape)
    scores = rounded(
        rounded(q.astype("f8") @ k.astype("f8").swapaxes(-1, -2)) / np.sqrt(q.shape[-1])
    )
    if softcap is not None:
        scores = rounded(softcap * rounded(np.tanh(rounded(scores / softcap))))
    if bias is not None:
        scores = rounded(scores + bias)
    if alibi_slopes is not None:
        scores = rounded(scores - rounded(np.asarray(alibi_slopes)[:, None, None] * np.abs(i - j)))
    if window is not None:
        keep = keep & (j >= i - window[0])
    scores = np.where(keep, scores, -np.inf).astype("f8")
    if sinks is not None:
        column = np.broadcast_to(np.reshape(sinks, (-1, 1, 1)), (*scores.shape[:3], 1))
        scores = np.concatenate([scores, column], axis=-1)
    weights = rounded(softmax(scores))[..., : k.shape[2]]
    return {"weights": weights, "context": rounded(weights.astype("f8") @ v)}


@pytest.mark.parametrize("seed", long_but(range(6), 0, 1))
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", [1, 4, 64])
def test_what_rounding_does_to_each_row_is_no_mistake(rule, factor, name, seed):
    """With large scores, of which the largest two are nearly the same in some rows."""
    rounded = FORMATS[name]
    q, k, v = map(rounded, draw(seed, *[(1, 2, 200, 16)] * 3))
    q *= factor
    keep = TRIL[:200, :200]
    right = stored(rounded, q, k, v, keep, **RULES[rule])
    rules = {"causal": True, **RULES[rule]}
    assert ask((q, k, v), right, STORED[name], diagnose=False, **rules).passed


def one_row_that_nearly_ties(seed, rounded, score, gap):
    """Return inputs of 8 heads in which query 20 has the two largest scores nearly the same."""
    q, k, v = map(rounded, draw(seed, *[(1, 8, 64, 16)] * 3))
    k[:, :, 9] = rounded(k[:, :, 5] + 0.3 * k[:, :, 9])
    toward = k[:, :, 5] / np.linalg.norm(k[:, :, 5], axis=-1, keepdims=True) ** 2
    # Orthogonal to the difference of the keys, and then as much along it as makes the gap.
    apart = k[:, :, 5] - k[:, :, 9]
    apart /= np.linalg.norm(apart, axis=-1, keepdims=True) ** 2
    lower = scaled(toward[:, :, None], k)[:, :, 0, 5] - scaled(toward[:, :, None], k)[:, :, 0, 9]
    q[:, :, 20] = rounded(score * 4 * (toward - 4 * lower[..., None] * apart) + 4 * gap * apart)
    return q, k, v


@pytest.mark.parametrize("seed", long_but(range(20), 0, 1, 2))
@pytest.mark.parametrize(
    ("name", "score", "gap"),
    [
        ("float16", 40, 0.5),
        ("bfloat16", 10, 0.5),
        # Products that are rounded by several nats, which makes the lower score the higher.
        ("bfloat16", 3000, 8),
        ("bfloat16", 3000, 12),
    ],
)
def test_a_row_whose_largest_scores_are_nearly_the_same(name, score, gap, seed):
    rounded = FORMATS[name]
    q, k, v = one_row_that_nearly_ties(seed, rounded, score, gap)
    right = stored(rounded, q, k, v, np.ones((64, 64), bool))
    assert ask((q, k, v), right, STORED[name], diagnose=False).passed


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_with_thirds_beside_rows_with_one_key(name):
    """Its scores are 0, which are exact as the other rows are; its weights are rounded."""
    rounded = FORMATS[name]
    q, k, v = map(rounded, draw(0, (1, 4, 32, 4), *[(1, 4, 3, 4)] * 2))
    k[..., 0], q[..., 0] = [64, 0, 0], 64
    q[:, :, 20] = 0
    right = stored(rounded, q, k, v, np.ones((32, 3), bool))
    assert ask((q, k, v), right, STORED[name], diagnose=False).passed


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_that_halves_its_weight_with_a_sink(name):
    """The sink is rounded, which moves all of the row; the others do not heed the sink."""
    rounded = FORMATS[name]
    large, grid = (200, 1 / 8) if name == "float16" else (40, 1 / 4)
    q, k, v = map(rounded, draw(0, *[(1, 2, 512, 16)] * 3))
    v = rounded(v + 4)
    q[:, :, 20] = 0
    rules = {
        "bias": np.where(np.arange(512) == 20, large, 2 * large)[:, None] * np.ones(512),
        "sinks": rounded(large + np.log(512)) + 0.45 * grid * np.array([1, -1]),
    }
    made = rules | {"sinks": rounded(rules["sinks"])}
    right = stored(rounded, q, k, v, np.ones((512, 512), bool), **made)
    assert ask((q, k, v), right, STORED[name], diagnose=False, **rules).passed


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_whose_scores_all_move_together_when_its_query_is_rounded(name):
    """Its numbers cancel in all scores, but their roundings do not, and values go with keys."""
    rounded = FORMATS[name]
    q, k, v = map(rounded, draw(0, *[(1, 2, 4096, 8)] * 3))
    q = q[:, :, :32]
    k[..., 1:3] = v[:] = k[..., :1]
    q[:, :, 20, :3] = [22, 36, -58] if name == "float16" else [11, 18, -29]
    scores = rounded(rounded(q / np.sqrt(8)).astype("f8") @ k.astype("f8").swapaxes(-1, -2))
    weights = rounded(softmax(scores))
    right = {"weights": weights, "context": rounded(weights.astype("f8") @ v)}
    assert ask((q, k, v), right, STORED[name], diagnose=False).passed


def with_a_sink_token(queries, rounded):
    """Return inputs whose key 0 has a value of 0; query 20 looks at it alone."""
    q, k, v = draw(0, (1, 2, queries, 64), *[(1, 2, 2048, 64)] * 2)
    k[..., 0], v = 0, v + 1
    k[:, :, 0], v[:, :, 0] = 0, 0
    q[..., 0] = 2
    q[:, :, 20] *= 0.1
    k[:, :, 0, 0], q[:, :, 20, 0] = 8, 17.5
    return map(rounded, (q, k, v))


def test_weights_of_float16_that_all_become_0():
    """As those of a query that looks at a sink token; little is left of its context."""
    q, k, v = with_a_sink_token(32, as_float16)
    right = stored(as_float16, q, k, v, np.ones((32, 2048), bool))
    assert np.count_nonzero(right["weights"][:, :, 20]) < 400
    assert ask((q, k, v), right, "float16", diagnose=False).passed


def test_a_row_of_hardly_anything_does_not_hide_another():
    q, k, v = with_a_sink_token(64, as_float16)
    wrong = stored(as_float16, q, k, v, np.ones((64, 2048), bool))["context"]
    v /= 8
    wrong /= 8
    wrong[0, 0, 50] *= 1.02
    (verdict,) = ask((q, k, v), wrong, "float16", diagnose=False).verdicts
    assert verdict.stretch.queries == (50, 51)


@pytest.mark.parametrize("seed", long_but(range(8), 0, 1))
@pytest.mark.parametrize(("name", "score"), [("float16", 130), ("bfloat16", 66)])
def test_a_token_that_is_repeated(name, score, seed):
    """Its keys are the same, and so is what rounding does to their scores."""
    rounded = FORMATS[name]
    q, k, v = draw(seed, (1, 2, 32, 64), *[(1, 2, 2048, 64)] * 2)
    q *= 2
    toward = q[:, :, 20, None] / np.square(q[:, :, 20, None]).sum(axis=-1, keepdims=True)
    wished = 8 * (score + 0.3 * draw(seed + 9, (1, 2, 2048, 1))[0])
    k += (wished - (k * q[:, :, 20, None]).sum(axis=-1, keepdims=True)) * toward
    k[:, :, :1024], v[:, :, :1024] = k[:, :, :1], v[:, :, :1]
    q, k, v = map(rounded, (q, k, v))
    right = stored(rounded, q, k, v, np.ones((32, 2048), bool))
    assert ask((q, k, v), right, STORED[name], diagnose=False).passed


@pytest.mark.parametrize("seed", long_but(range(12), 3, 5))
@pytest.mark.parametrize(("name", "factor"), [("float16", 64), ("bfloat16", 32)])
def test_one_query_of_a_large_problem_with_large_scores(name, factor, seed):
    """What the textbook formula does to it makes most of what it does to all of the file."""
    rounded = FORMATS[name]
    q, k, v = draw(seed, *[(1, 8, 512, 64)] * 3)
    q[:, :, 20] *= factor
    q, k, v = map(rounded, (q, k, v))
    right = stored(rounded, q, k, v, np.ones((512, 512), bool))["context"]
    assert ask((q, k, v), right, STORED[name], diagnose=False).passed


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_kernel_that_rounds_more_often(name):
    """It keeps its sums in 16 bits, which many keys make worse, most of all in some rows."""
    rounded = FORMATS[name]
    q, k, v = map(rounded, draw(0, (1, 8, 32, 8), *[(1, 8, 16384, 8)] * 2))
    weights, right = softmax(scaled(q, k)), np.zeros((1, 8, 32, 8))
    for start in range(0, 16384, 16):
        keys = slice(start, start + 16)
        right = rounded(right + rounded(weights[..., keys] @ v[:, :, keys]))
    assert ask((q, k, v), right, STORED[name], diagnose=False).passed


@pytest.mark.usefixtures("one_mistake", "small_slices")
@pytest.mark.parametrize(("name", "factor"), [("float16", 0.25), ("bfloat16", 2)])
def test_a_last_slot_that_was_not_written(name, factor):
    """Of 256 queries one does not see its key; its numbers are smaller than those of the first."""
    rounded = FORMATS[name]
    q, k, v = map(rounded, draw(2, *[(1, 2, 256, 16)] * 3))
    v[:, :, -1] *= factor
    right = plain(q, k, v, TRIL)
    wrong = right.copy()
    wrong[:, :, -1] = plain(q[:, :, -1:], k[:, :, :-1], v[:, :, :-1])[:, :, 0]
    assert ask((q, k, v), rounded(right), STORED[name], causal=True).passed
    report = ask((q, k, v), rounded(wrong), STORED[name], causal=True)
    (verdict,) = report.verdicts
    assert not verdict.passed
    assert verdict.outside == 0
    assert verdict.stretch.queries == (255, 256)
    assert verdict.stretch.rms > verdict.stretch.tolerance.rms
    assert {row.query for row in verdict.worst_rows} == {255}
    assert f"head {verdict.stretch.head}, query 255\n" in str(report)
    assert "only one of the queries is wrong: 255" in str(report)
    assert name == "bfloat16" or not any(
        "only head" in finding for finding in report.diagnosis.findings
    )
    assert named(report) == {"last_key_lost"}


@pytest.mark.parametrize(("key", "seen"), [(701, True), (100, False)])
def test_weights_of_one_query_that_sees_a_key_too_many_or_too_few(key, seen):
    """A weight of 1/700 is less than what rounding does to the weights of the first queries."""
    q, k = (array.astype("f2") for array in draw(6, *[(1, 2, 720, 16)] * 2))
    scores = np.where(np.tri(720, dtype=bool), scaled(q, k), -np.inf)
    right = {"weights": softmax(scores)}
    assert ask((q, k), right, "float16", causal=True, diagnose=False).passed
    scores[0, 1, 700, key] = scaled(q, k)[0, 1, 700, key] if seen else -np.inf
    wrong = {"weights": softmax(scores)}
    (verdict,) = ask((q, k), wrong, "float16", causal=True, diagnose=False).verdicts
    assert verdict.outside == 0
    assert (verdict.stretch.head, verdict.stretch.queries) == (1, (700, 701))
    assert (verdict.worst_rows[0].query, verdict.worst_rows[0].column) == (700, key)


@pytest.mark.parametrize(("query", "head"), [(7, 1), (63, 0)])
def test_a_row_that_is_multiplied(query, head):
    q, k, v = (array.astype("f2") for array in draw(0, *[(1, 2, 64, 8)] * 3))
    v[:, head] /= 128
    found = plain(q, k, v)
    found[0, head, query] *= 1.2
    (verdict,) = ask((q, k, v), found, "float16", diagnose=False).verdicts
    assert verdict.stretch.queries == (query, query + 1)
    assert verdict.stretch.head == head


def test_beside_a_wrong_row_of_another_head_half_as_much_counts():
    q, k, v = (array.astype("f2") for array in draw(0, *[(1, 2, 64, 8)] * 3))
    v /= 128
    right = plain(q, k, v)

    def judged(*factors):
        found = right.copy()
        found[0, :, 7] *= np.array(factors)[:, None]
        return ask((q, k, v), found, "float16", diagnose=False).verdicts[0]

    most = [judged(*factors).stretch.tolerance.rms for factors in ((1.5, 1), (1, 1.5))]
    first, second = most / np.sqrt(np.square(right[0, :, 7]).mean(axis=-1))
    assert judged(1, 1 + 0.75 * second).passed
    wrong = judged(1 + 2 * first, 1 + 0.75 * second)
    assert {row.head for row in wrong.worst_rows} == {0, 1}
