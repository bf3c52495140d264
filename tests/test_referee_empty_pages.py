"""Pages of a cache that hold zeros are told, with where they are."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, plain
from referee_tried import one_mistake, small_slices  # noqa: F401 - fixtures

KINDS = [("key", "value"), ("key",), ("value",)]
PAGES = [(0, 1), (5, 6), (8, 16), (16, 37), (23, 48), (3, 17)]


def emptied(array, page):
    array = array.copy()
    array[:, :, slice(*page)] = 0
    return array


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("page", "names"), long_but(list(product(PAGES, KINDS)), *zip(PAGES, KINDS * 2, strict=True))
)
def test_a_page_of_zeros(seed, page, names):
    q, *kv = draw(seed, (1, 2, 20, 16), (1, 2, 48, 16), (1, 2, 48, 16))
    k, v = (
        emptied(array, page) if name in names else array
        for name, array in zip(("key", "value"), kv, strict=True)
    )
    report = ask((q, *kv), plain(q, k, v))
    assert named(report) == {"empty_page"}
    which = f"of key {page[0]}" if page[1] - page[0] == 1 else f"{page[0]} to {page[1] - 1}"
    words = " and ".join(f"{name}s" for name in names)
    assert f"the {words} {which} are zero" in str(report)


@pytest.mark.usefixtures("small_slices")
def test_of_a_long_problem():
    q, k, v = draw(0, *[(1, 2, 150, 16)] * 3)
    page = (32, 64)
    report = ask((q, k, v), plain(q, emptied(k, page), emptied(v, page)))
    assert named(report) == {"empty_page"}
    assert "the keys and values 32 to 63 are zero" in str(report)


def test_of_a_causal_problem():
    q, k, v = draw(0, *[(1, 2, 48, 16)] * 3)
    page = (16, 32)
    mask = np.tri(48, dtype=bool)
    report = ask((q, k, v), plain(q, emptied(k, page), emptied(v, page), mask), causal=True)
    assert named(report) == {"empty_page"}
    assert "the keys and values 16 to 31 are zero" in str(report)


@pytest.mark.usefixtures("one_mistake")
def test_scattered_zeros_have_no_name():
    q, k, v = draw(0, *[(1, 2, 40, 16)] * 3)
    value = v.copy()
    value[:, :, ::3] = 0
    assert "empty_page" not in named(ask((q, k, v), plain(q, k, value)))
