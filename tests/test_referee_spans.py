"""Masks that leave each query the keys from one to another are read off the context alone."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, only, plain
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli.referee.fitted import spans

# More keys than columns, so that many weights make the same context.
SHAPE = (1, 1, 24, 8)
I, J = np.arange(24)[:, None], np.arange(24)


KEPT = {
    # Of 19 queries that see too much the tenth is query 11.
    "query 0 sees keys 0 to 4, not key 0; query 11 sees keys 0 to 14, not": (
        J <= I // 5 * 5 + 4,
        {},
    ),
    "query 5 sees key 0, not keys 0 to 5": (J <= I % 5, {}),
    "query 0 sees no key, not key 0; query 12 sees keys 0 to 7, not keys 10 to 12": (
        J < I // 8 * 8,
        {"window": (2, 0)},
    ),
    "query 3 sees keys 0 to 3, not keys 1 to 3": (
        (J <= I) & (J >= I // 8 * 8 - 2),
        {"window": (2, 0)},
    ),
    "query 0 sees key 23, not keys 0 to 23": (J >= 23 - I, {"causal": False}),
}


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("words", long_but(KEPT, list(KEPT)[2]))
@pytest.mark.parametrize("dtype", long_but(["float32", "float16", "float64"], "float32"))
def test_keys_from_one_to_another(dtype, words):
    keep, options = KEPT[words]
    q, k, v = (array.astype("f2").astype(dtype) for array in draw(0, *[SHAPE] * 3))
    convention = only(ask((q, k, v), plain(q, k, v, keep), dtype, **{"causal": True, **options}))
    assert convention.name == "another_mask"
    assert words in convention.meaning


@pytest.mark.long
def test_in_half_precision():
    keep = J <= I // 5 * 5 + 4
    q, k, v = draw(0, *[SHAPE] * 3, dtype="float16")
    assert only(ask((q, k, v), plain(q, k, v, keep), "float16", causal=True)).name == "another_mask"


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
def test_beside_a_mask_sinks_and_a_softcap(seed):
    q, k, v = draw(seed, *[SHAPE] * 3)
    mask, sinks = np.random.default_rng(seed).random((24, 24)) < 0.8, np.array([0.3])
    scores = 2 * np.tanh(q.astype("f8") @ k.swapaxes(-1, -2) * 8**-0.5 / 2)
    exponentials = np.where(mask & (J <= I // 5 * 5 + 4), np.exp(scores), 0)
    total = exponentials.sum(-1, keepdims=True) + np.exp(sinks)[:, None, None]
    report = ask(
        (q, k, v), exponentials / total @ v, mask=mask, sinks=sinks, softcap=2, causal=True
    )
    assert only(report).name == "another_mask"


@pytest.mark.usefixtures("one_mistake")
def test_borders_of_documents_that_are_one_late():
    """Three documents in a row, told apart by a mask; each border stands one key too late."""
    q, k, v = draw(0, *[SHAPE] * 3)
    right, wrong = (np.searchsorted(np.add([9, 17], late), J, side="right") for late in (0, 1))
    mask = right[:, None] == right
    seen = (wrong[:, None] == wrong) & (J <= I)
    convention = only(ask((q, k, v), plain(q, k, v, seen), mask=mask, causal=True))
    assert convention.name == "another_mask"
    assert "query 9 sees keys 0 to 9, not key 9" in convention.meaning


@pytest.mark.long
def test_masks_with_holes_are_not_told_of_a_context():
    q, k, v = draw(0, *[SHAPE] * 3)
    holes = np.random.default_rng(0).random((24, 24)) < 0.5
    assert named(ask((q, k, v), plain(q, k, v, holes))) == set()


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_no_mask(seed):
    q, k, v = draw(seed, *[SHAPE] * 3)
    noise = np.random.default_rng(seed).normal(size=SHAPE)
    report = ask((q, k, v), plain(q, k, v, J <= I) + noise / 10, causal=True)
    assert named(report) == set()


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("dtype", long_but(["float16", "float32"], "float16"))
def test_a_number_that_is_right_by_chance_tells_nothing(dtype):
    """A column of values that are all the same is right whatever is seen."""
    q, k, v = draw(0, *[SHAPE] * 3, dtype=dtype)
    v[..., 3] = 0
    convention = only(ask((q, k, v), plain(q, k, v, J <= I // 5 * 5 + 4), dtype, causal=True))
    assert convention.name == "another_mask"


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize(
    "words",
    long_but(
        ["query 1 sees keys 12 to 299", "query 1 sees keys 0 to 287"],
        "query 1 sees keys 12 to 299",
    ),
)
def test_the_first_and_the_last_of_many_keys(words, monkeypatch):
    monkeypatch.setattr(spans, "_MANY_KEYS", 256)
    q, k, v = draw(0, (1, 1, 4, 8), *[(1, 1, 300, 8)] * 2)
    i, j = np.arange(4)[:, None], np.arange(300)
    lost = plain(q, k, v, j >= 12 * i if "12" in words else j < 300 - 12 * i)
    convention = only(ask((q, k, v), lost))
    assert convention.name == "another_mask"
    assert words in convention.meaning
