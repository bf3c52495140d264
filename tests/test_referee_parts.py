"""Mistakes in some queries, one head or one batch entry are explained there alone."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import ask, draw, named, plain, softmax
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

SHAPE = (2, 4, 24, 8)
TRIL = np.tri(24, dtype=bool)


def unscaled(q, k, v, keep=True):
    return plain(q, k, v, keep, scale=1)


def exchanged(q, k, v, keep=True):
    return plain(q, v, k, keep)


def base_2(q, k, v, keep=True):
    scores = np.where(keep, q.astype("f8") @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    return softmax(scores * np.log(2)) @ v


def uncovered(q, k, v, keep):
    return plain(q, k, v)


def late(q, k, v, keep):
    return plain(q, k, v, np.tri(24, k=1, dtype=bool))


WHERE = {
    "the last block": (..., slice(16, None), slice(None)),
    "one query": (..., 10, slice(None)),
    "one query of one head": (1, 3, 10),
    "one head": (slice(None), 2),
    "one batch entry": (1,),
    "the last of three": (..., 2, slice(None)),
}


@pytest.mark.parametrize(
    "where", long_but(["the last block", "one query", "one query of one head"], "the last block")
)
@pytest.mark.parametrize(
    ("mistake", "name"),
    long_but(
        [(unscaled, "unscaled"), (exchanged, "key_value_exchanged"), (base_2, "softmax_base_2")],
        (unscaled, "unscaled"),
        (exchanged, "key_value_exchanged"),
    ),
)
def test_a_mistake_in_some_queries(mistake, name, where):
    q, k, v = draw(0, *[SHAPE] * 3)
    found, place = plain(q, k, v), WHERE[where]
    found[place] = mistake(q, k, v)[place]
    report = ask((q, k, v), found)
    assert named(report) == {name}
    (cause,) = report.diagnosis.explanations
    assert cause.right_there
    assert not cause.options, "no option is true of a part"
    assert f"queries 0 to {15 if 'block' in where else 9}" in cause.fails_at or "one head" in where


@pytest.mark.parametrize(
    "where", long_but(["the last block", "one head", "one batch entry"], "one batch entry")
)
@pytest.mark.parametrize(
    ("mistake", "name"),
    long_but(
        [(uncovered, "causal_missing"), (late, "causal_one_late")], (uncovered, "causal_missing")
    ),
)
def test_a_causal_mask_that_is_wrong_in_a_part_has_its_name(mistake, name, where):
    q, k, v = draw(0, *[SHAPE] * 3)
    found, place = plain(q, k, v, TRIL), WHERE[where]
    found[place] = mistake(q, k, v, TRIL)[place]
    report = ask((q, k, v), found, causal=True)
    if (name, where) == ("causal_one_late", "one batch entry"):
        assert named(report) == {"another_offset"}, "which places each batch entry by itself"
        return
    if (name, where) == ("causal_missing", "the last block"):
        assert named(report) == {"some_diagonal_blocks_unmasked"}, "which shows the same pairs"
        return
    assert name in named(report)
    assert "another_mask" not in named(report)
    assert all(cause.right_there for cause in report.diagnosis.explanations)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("dtype", long_but(["float32", "float16"], "float16"))
def test_the_last_block_of_a_large_problem(dtype):
    q, k, v = draw(0, *[(1, 4, 24, 8)] * 3, dtype=dtype)
    found = plain(q, k, v)
    found[..., 17:, :] = unscaled(q, k, v)[..., 17:, :]
    assert named(ask((q, k, v), found, dtype)) == {"unscaled"}


EMPTY = [
    (SHAPE, "one query", np.nan),
    (SHAPE, "one query", 0.0),
    (SHAPE, "one head", np.nan),
    (SHAPE, "one head", 0.0),
    ((1, 8, 96, 16), "one head", np.nan),
    ((1, 8, 96, 16), "one head", 0.0),
    ((1, 1, 3, 4), "the last of three", np.nan),
    ((1, 1, 3, 4), "the last of three", 0.0),
]


@pytest.mark.parametrize(("shape", "place", "empty"), long_but(EMPTY, *EMPTY[:2], *EMPTY[3::2]))
def test_rows_of_nothing_or_nan_are_all_that_is_wrong(shape, place, empty):
    q, k, v = draw(0, *[shape] * 3)
    found = plain(q, k, v)
    found[WHERE[place]] = empty
    report = ask((q, k, v), found)
    what = "heads" if place == "one head" else "rows"
    assert named(report) == {"rows_of_nan" if np.isnan(empty) else f"{what}_not_written"}


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("share", long_but([None, 0.7], 0.7))
@pytest.mark.parametrize("dtype", long_but(["float32", "float64"], "float64"))
def test_two_keys_say_nothing_of_a_mistake(dtype, share):
    """Any weights of two keys come of some scale."""
    q, k, v = draw(0, *[(1, 2, 8, 8)] * 3, dtype=dtype)
    found = plain(q, k, v, np.tri(8, dtype=bool))
    first, second = found[0, 0, :2]
    if share is None:
        found[0, 0, 1] = 0.9 * second + 0.1 * first
    else:
        found[0, 0, 1] = (1 - share) * v[0, 0, 0] + share * v[0, 0, 1]
    assert named(ask((q, k, v), found, dtype, causal=True)) == set()


@pytest.mark.usefixtures("small_slices")
def test_two_mistakes_in_a_large_causal_problem():
    q, k, v = draw(0, *[(1, 1, 48, 8)] * 3)
    keep = np.tri(48, dtype=bool)
    wrong = plain(q, k, v, keep, scale=1)
    window = np.arange(48)[:, None] - np.arange(48) <= 5
    report = ask((q, k, v), wrong, causal=True, window=(5, 0))
    assert "unscaled+window_ignored" in named(report)
    assert not np.allclose(wrong, plain(q, k, v, keep & window))


@pytest.mark.usefixtures("one_mistake")
def test_rows_of_nan_beside_another_mistake_are_no_explanation():
    q, k, v = draw(0, *[(1, 2, 12, 8)] * 3)
    found = plain(q, k, v)
    found[0, 0, 0] = np.nan
    found[0, 1] += 0.1 * draw(1, (12, 8))[0]
    assert named(ask((q, k, v), found)) == set()


@pytest.mark.usefixtures("one_mistake")
def test_one_number_that_is_0_is_not_said_to_be_unwritten():
    q, k, v = draw(0, (3, 4), (3, 4), (3, 1))
    found = plain(q, k, v)
    found[2] = 0
    assert named(ask((q, k, v), found)) == set()


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("row", long_but([11, 37, 53], 37))
def test_an_explanation_is_tried_all_over_a_large_problem(row):
    """A second mistake in a few rows of one head is not passed over for the first one."""
    q, k, v = draw(0, *[(1, 2, 64, 32)] * 3)
    wrong = plain(q, k, v, np.tri(64, dtype=bool), scale=1)
    wrong[:, 1, row : row + 3] = 0
    report = ask((q, k, v), wrong, causal=True)
    (cause,) = report.diagnosis.explanations
    assert cause.name == "unscaled"
    assert cause.fails_at.startswith("head 1, queries ")
    assert "it does not explain everything" in str(report)
