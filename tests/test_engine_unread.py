"""NaN and inf in query, key and value: found though nobody reads them before the work is done."""

import re

import numpy as np
import pytest
from nearness import assert_near

from attncli import AttnError, attention, pose, solve
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


@pytest.mark.parametrize("outputs", OUTPUTS[:1] + OUTPUTS[3:4], ids="-".join)
@pytest.mark.parametrize("length", [20, 400, 1024, 3000])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_key_is_seen_though_later_ones_leave_it_no_weight(broken, length, outputs):
    query, key = np.zeros((2, length, WIDTH), np.float32)
    query[:, 0] = 30
    key[:, 0] = np.where(np.arange(length) < length // 2, -30, 30)
    value = np.ones((length, 4), np.float32)
    value[3, 2] = broken
    with pytest.raises(DataError, match=rf"^value: .*found {re.escape(said(broken))} at index \(3"):
        attention(query, key, value, outputs=outputs)


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
@pytest.mark.parametrize("broken", BROKEN)
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
def test_a_query_that_sees_no_key_must_be_finite_too(queries, keys, broken, rule):
    arrays = inputs(queries, keys)
    arrays["query"][1, 2, 3] = broken
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


@pytest.mark.parametrize(("queries", "keys"), SIZES[:3])
@pytest.mark.parametrize("name", ["query", "key", "value"])
@pytest.mark.parametrize("ask", [pose, attention])
def test_what_the_computing_dtype_cannot_hold_is_refused(queries, keys, name, ask):
    arrays = inputs(queries, keys, dtype="float64")
    arrays[name][1, 0, 3] = -1e300
    with pytest.raises(DataError) as caught:
        ask(**arrays, layout="hsd", precision="float32")
    assert str(caught.value).startswith(
        f"{name}: expected numbers that float32, the computing dtype, can hold; "
        "found -1e+300 at index (1, 0, 3)"
    )
    assert "float64" in caught.value.hint


@pytest.mark.parametrize(("queries", "keys"), SIZES)
@pytest.mark.parametrize("ask", [pose, attention])
def test_unless_no_query_sees_it(queries, keys, ask):
    arrays = inputs(queries, keys, dtype="float64")
    rules = {"mask": np.arange(keys)[None] < keys - 1, "layout": "hsd", "precision": "float32"}
    expected = attention(**arrays, **rules).context
    arrays["key"][:, -1] = arrays["value"][:, -1] = 1e300
    found = ask(**arrays, **rules)
    found = solve(found).context if ask is pose else found.context
    assert_near(found, expected, rtol=1e-5, atol=1e-6)


def test_a_context_whose_projection_is_too_large_is_refused():
    one = [[1e200]]
    with pytest.raises(DataError, match="context exceeds the range of float64 after its proj"):
        solve(pose(one, one, one, scale=0, wo=one))


def test_pose_alone_reads_everything():
    arrays = inputs(2, 3)
    arrays["value"][0, 1, 2] = np.nan
    with pytest.raises(DataError, match=r"value: .* found nan at index \(0, 1, 2\)"):
        pose(**arrays, layout="hsd")


def test_an_unread_problem_is_read_before_a_part_of_it_is_taken():
    arrays = inputs(2, 3)
    arrays["key"][0, 1, 2] = np.nan
    with pytest.raises(DataError, match="key"):
        pose(**arrays, layout="hsd", unread=True).select(head=1)


def test_large_scores_are_refused_and_large_numbers_are_not():
    arrays = inputs(30, 40)
    large = {name: array * np.float32(1e10) for name, array in arrays.items()}
    assert np.isfinite(attention(**large, layout="hsd").context).all()
    huge = {name: array * np.float32(1e30) for name, array in arrays.items()}
    with pytest.raises(DataError, match="scores exceed the range of float32"):
        attention(**huge, layout="hsd")
    double = attention(**huge, layout="hsd", precision="float64")
    assert np.isfinite(double.context).all()


def test_values_near_the_end_of_the_range_are_not_refused():
    for queries, keys in SIZES:
        arrays = inputs(queries, keys)
        arrays["value"] = np.full_like(arrays["value"], 3e38)
        context = attention(**arrays, layout="hsd", outputs=("context",)).context
        assert_near(context, 3e38, rtol=1e-5)


def test_the_error_is_a_value_error_and_comes_before_warnings(recwarn):
    arrays = inputs(30, 40)
    arrays["key"][:, 3] = np.nan
    mask = np.ones((30, 40), bool)
    mask[4] = False
    with pytest.raises(ValueError, match="key"):
        attention(**arrays, layout="hsd", mask=mask)
    assert not recwarn.list
    assert issubclass(DataError, AttnError)


def test_solve_takes_an_unread_problem():
    arrays = inputs(3, 4)
    expected = solve(pose(**arrays, layout="hsd")).context
    found = solve(pose(**arrays, layout="hsd", unread=True)).context
    assert np.array_equal(found, expected)


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
