"""NaN and inf in query, key and value: found though nobody reads them before the work is done."""

import numpy as np
import pytest
from nearness import assert_near

from attncli import attention, pose, solve
from attncli.errors import DataError

pytestmark = pytest.mark.usefixtures("every_path")

WIDTH = 8
# One query, several, and enough of each for every way through the engine.
SIZES = [(1, 5), (3, 40), (1, 30_000), (20, 9_000), (400, 700)]
BROKEN = [np.nan, np.inf, -np.inf]
OUTPUTS = [("context",), ("weights",), ("lse",), ("weights", "context"), ("raw",)]


def inputs(queries, keys, heads=2, dtype="float32"):
    random = np.random.default_rng(0)
    query = random.standard_normal((heads, queries, WIDTH)).astype(dtype)
    key, value = random.standard_normal((2, heads, keys, WIDTH)).astype(dtype)
    return {"query": query, "key": key, "value": value}


def said(broken):
    """Return how an error names a number."""
    return "-inf (null in JSON and YAML)" if broken == -np.inf else f"{broken:g}"


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", ["query", "key", "value"])
def test_an_error_names_the_argument_and_the_first_index(queries, keys, broken, name):
    arrays = inputs(queries, keys)
    row = arrays[name].shape[1] - 1
    arrays[name][1, row, 3] = arrays[name][1, row, 7] = broken
    for outputs in OUTPUTS if queries * keys < 30_000 else OUTPUTS[:2]:
        with pytest.raises(DataError) as caught:
            attention(**arrays, layout="hsd", outputs=outputs)
        assert str(caught.value).startswith(
            f"{name}: expected finite numbers; found {said(broken)} at index (1, {row}, 3)"
        )


@pytest.mark.parametrize("score", ["cosine", "additive", "general"])
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_whatever_the_score_function(score, name, broken):
    arrays = inputs(40, 50)
    arrays[name][0, 20, 1] = broken
    more = {"score_weight": np.eye(WIDTH)} if score == "general" else {}
    with pytest.raises(DataError, match=rf"{name}: .* at index \(0, 20, 1\)"):
        attention(**arrays, layout="hsd", score=score, outputs=("context",), **more)


@pytest.mark.parametrize(("queries", "keys"), [(3, 40), (20, 9_000), (400, 700)])
@pytest.mark.parametrize(
    "rule",
    [
        {"kv_lengths": [0]},
        {"query_lengths": [2]},
        {"causal": True, "query_offset": -1000},
        {"mask": [[False]]},
    ],
)
@pytest.mark.filterwarnings("ignore::attncli.errors.AttnWarning")
def test_a_query_that_sees_no_key_must_be_finite_too(queries, keys, rule):
    arrays = inputs(queries, keys)
    arrays["query"][1, 2, 3] = np.nan
    for outputs in OUTPUTS[:4]:
        with pytest.raises(DataError, match=r"query: .* at index \(1, 2, 3\)"):
            attention(**arrays, layout="hsd", outputs=outputs, **rule)


@pytest.mark.parametrize(("queries", "keys"), SIZES)
def test_a_query_that_the_computing_dtype_cannot_hold(queries, keys):
    arrays = inputs(queries, keys, dtype="float64")
    arrays["query"][1, 0, 3] = 1e39
    for outputs in OUTPUTS[:4]:
        with pytest.raises(
            DataError, match=r"query: .* float32, .* found 1e\+39 at index \(1, 0, 3\)"
        ):
            attention(**arrays, layout="hsd", outputs=outputs, precision="float32")


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("rule", ["mask", "key_padding_mask", "kv_lengths", "causal"])
def test_a_key_that_nobody_sees_counts_as_absent(queries, keys, broken, rule):
    arrays = inputs(queries, keys)
    end = keys - 2
    rules = {
        "mask": {"mask": np.arange(keys)[None] < end},
        "key_padding_mask": {"key_padding_mask": np.arange(keys) < end},
        "kv_lengths": {"kv_lengths": [end]},
        "causal": {"causal": True, "query_offset": end - queries},
    }
    outputs = ("weights", "context", "lse", "raw")
    wide = {"layout": "hsd", "outputs": outputs, **rules[rule]}
    for name in ("key", "value"):
        arrays[name][:, end:] = 0
    expected = attention(**arrays, **wide)
    for name in ("key", "value"):
        arrays[name][:, end:] = broken
    copies = {name: array.copy() for name, array in arrays.items()}
    found = attention(**arrays, **wide)
    for name in outputs:
        assert np.isfinite(getattr(found, name)).all()
        assert_near(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-6)
    for name, copy in copies.items():
        np.testing.assert_array_equal(arrays[name], copy)


def test_a_context_whose_projection_is_too_large_is_refused():
    one = [[1e200]]
    with pytest.raises(DataError, match="context exceeds the range of float64 after its proj"):
        solve(pose(one, one, one, scale=0, wo=one))


def test_pose_alone_reads_everything():
    arrays = inputs(2, 3)
    arrays["value"][0, 1, 2] = np.nan
    with pytest.raises(DataError, match=r"value: .* found nan at index \(0, 1, 2\)"):
        pose(**arrays, layout="hsd")


def test_large_scores_are_refused_and_large_numbers_are_not():
    arrays = inputs(30, 40)
    large = {name: array * np.float32(1e10) for name, array in arrays.items()}
    assert np.isfinite(attention(**large, layout="hsd").context).all()
    huge = {name: array * np.float32(1e30) for name, array in arrays.items()}
    with pytest.raises(DataError, match="scores exceed the range of float32"):
        attention(**huge, layout="hsd")
    double = attention(**huge, layout="hsd", precision="float64")
    assert np.isfinite(double.context).all()


def test_a_hidden_key_without_a_product_does_not_show_under_a_softcap():
    """Scores bounded by the softcap: no
    shift, nothing watched, in nats. The product with the hidden key is inf − inf. Of a context
    the retry would notice; of the lse alone nothing does.
    """
    # Signs alternate, so that sums of both kinds overflow before they meet.
    width = 64
    rng = np.random.default_rng(0)
    query = np.full((4, width), 3.0, np.float32)
    key = rng.standard_normal((8, width)).astype(np.float32)
    key[7] = 3e38 * (-1) ** np.arange(width)
    value = rng.standard_normal((8, 3)).astype(np.float32)
    rules = {"score": "general", "score_weight": np.eye(width, dtype=np.float32), "softcap": 20.0}
    seen = np.arange(8) < 7
    found = attention(query, key, value, mask=seen, outputs="lse", **rules)
    right = attention(query, key[:7], value[:7], outputs="lse", **rules)
    np.testing.assert_allclose(found.lse, right.lse, rtol=1e-5)
