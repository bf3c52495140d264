"""Mistakes beside which queries that see no key are NaN, as softmax makes them of only −inf."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, scaled, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures


def with_nan(q, k, v, keep, scale=None):
    """Return softmax(QKᵀ/√D, −inf where not kept) V, whose rows that keep nothing are NaN."""
    scores = scaled(q, k) * (1 if scale is None else scale * q.shape[-1] ** 0.5)
    return softmax(np.where(keep, scores, -np.inf)) @ v.astype("f8")


def inputs(dtype, batch, heads, queries, keys=None):
    shapes = (batch, heads, queries, 16), *[(batch, heads, keys or queries, 16)] * 2
    return [array.astype(dtype) for array in draw(3, *shapes)]


@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
@pytest.mark.parametrize(
    ("heads", "queries"), long_but([(1, 16), (2, 34), (9, 64)], (2, 34), (9, 64))
)
def test_the_diagonal_hidden(dtype, heads, queries):
    q, k, v = inputs(dtype, 1, heads, queries)
    report = ask(
        (q, k, v), with_nan(q, k, v, np.tri(queries, k=-1, dtype=bool)), dtype, causal=True
    )
    assert named(report) == {"diagonal_hidden+blind_rows_nan"}


@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
def test_the_other_corner(dtype):
    q, k, v = inputs(dtype, 1, 2, 36, 24)
    keep = np.tri(36, 24, k=-12, dtype=bool)
    options = {"causal": True, "causal_align": "top-left"}
    report = ask((q, k, v), with_nan(q, k, v, keep), dtype, **options)
    assert named(report) == {"causal_bottom_right+blind_rows_nan"}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
@pytest.mark.parametrize("lengths", [(20, 12, 7), (7, 12, 20)])
def test_padding_of_the_other_polarity(dtype, lengths):
    """An entry without padding sees nothing then, and says nothing: others have to."""
    q, k, v = inputs(dtype, 3, 2, 20)
    real = np.arange(20) < np.array(lengths)[:, None]
    wrong = with_nan(q, k, v, ~real[:, None, None])
    report = ask((q, k, v), wrong, dtype, key_padding_mask=real)
    assert named(report) == {"key_padding_mask_inverted+blind_rows_nan"}


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
def test_no_scale_beside_an_entry_without_keys(dtype):
    q, k, v = inputs(dtype, 3, 2, 20)
    seen = np.arange(20) < np.array([0, 12, 20])[:, None]
    wrong = with_nan(q, k, v, seen[:, None, None], scale=1)
    report = ask((q, k, v), wrong, dtype, kv_lengths=[0, 12, 20])
    assert named(report) == {"unscaled+blind_rows_nan"}


@pytest.mark.parametrize("dtype", long_but(["float16", "float32", "float64"], "float32"))
@pytest.mark.parametrize(
    "place",
    [np.s_[0, 0, 2], np.s_[:, 0], pytest.param(np.s_[..., -1, :], marks=pytest.mark.long)],
)
@pytest.mark.parametrize("queries", long_but([6, 300], 6))
def test_rows_that_are_nan_for_a_reason_of_their_own(dtype, place, queries):
    """The mistake in all others is told, and the rows beside it."""
    q, k, v = inputs(dtype, 1, 4, queries)
    wrong = with_nan(q, k, v, keep=True, scale=1)
    wrong[place] = np.nan
    report = ask((q, k, v), wrong, dtype)
    assert named(report) == {"unscaled+rows_of_nan"}
    rows = np.isnan(wrong[..., 0]).sum()
    words = f"{rows} of {4 * queries:,} rows {'is' if rows == 1 else 'are'} NaN"
    assert words in str(report)


@pytest.mark.usefixtures("small_slices")
def test_a_head_of_nan_in_a_problem_that_is_tried_in_slices():
    q, k, v = inputs("float32", 1, 4, 24)
    wrong = with_nan(q, k, v, keep=True, scale=1)
    wrong[:, 3] = np.nan
    assert named(ask((q, k, v), wrong)) == {"unscaled+rows_of_nan"}


@pytest.mark.usefixtures("one_mistake")
def test_single_numbers_that_are_nan_are_no_rows():
    q, k, v = inputs("float32", 1, 2, 6)
    wrong = with_nan(q, k, v, keep=True, scale=1)
    wrong[0, 0, 2, 3] = np.nan
    assert "rows_of_nan" not in str(named(ask((q, k, v), wrong)))
