"""The user's axes, there and back, against transpositions written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attncli.errors import ShapeError, UsageError
from attncli.problem.layout import LAYOUTS, Layout

B, H, L, D = 2, 3, 4, 5
# Element (b, h, i, d) is 1000 b + 100 h + 10 i + d: it says itself where it belongs.
NUMBERS = np.add.outer(
    np.add.outer(1000 * np.arange(B), 100 * np.arange(H)),
    np.add.outer(10 * np.arange(L), np.arange(D)),
)
# The same numbers in each layout, and what (B, H, S, D) they are.
CASES = {
    "sd": (NUMBERS[0, 0], NUMBERS[:1, :1]),
    "bsd": (NUMBERS[:, 0], NUMBERS[:, :1]),
    "hsd": (NUMBERS[0], NUMBERS[:1]),
    "sbd": (np.swapaxes(NUMBERS[:, 0], 0, 1), NUMBERS[:, :1]),
    "shd": (np.swapaxes(NUMBERS[0], 0, 1), NUMBERS[:1]),
    "bhsd": (NUMBERS, NUMBERS),
    "bshd": (np.swapaxes(NUMBERS, 1, 2), NUMBERS),
    "sbhd": (np.moveaxis(NUMBERS, 2, 0), NUMBERS),
}
WEIGHT_AXES = {
    "sd": "",
    "bsd": "b",
    "sbd": "b",
    "hsd": "h",
    "shd": "h",
    **dict.fromkeys(("bhsd", "bshd", "sbhd"), "bh"),
}


@pytest.mark.parametrize("axes", LAYOUTS)
def test_split_and_join_go_there_and_back(axes: str) -> None:
    mine, canonical = CASES[axes]
    layout = Layout.of(mine.ndim, axes, packed=False)
    np.testing.assert_array_equal(layout.split(mine, 1, "query"), canonical)
    np.testing.assert_array_equal(layout.join(canonical), mine)
    assert layout.weight_axes == WEIGHT_AXES[axes]


@pytest.mark.parametrize("axes", LAYOUTS)
def test_split_copies_nothing(axes: str) -> None:
    mine = CASES[axes][0].copy()
    assert np.shares_memory(Layout(axes).split(mine, 1, "query"), mine)


@pytest.mark.parametrize(("axes", "count"), [("sd", 1), ("bsd", B), ("sbd", B)])
def test_packed_heads_lie_side_by_side(axes: str, count: int) -> None:
    rows = [np.concatenate([NUMBERS[b, h] for h in range(H)], axis=1) for b in range(count)]
    packed = {"sd": rows[0], "bsd": np.array(rows), "sbd": np.stack(rows, axis=1)}[axes]
    layout = Layout.of(packed.ndim, axes, packed=True)
    np.testing.assert_array_equal(layout.split(packed, H, "query"), NUMBERS[:count])
    np.testing.assert_array_equal(layout.join(NUMBERS[:count]), packed)
    assert layout.weight_axes == ("h" if axes == "sd" else "bh")


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(LAYOUTS)), st.data())
def test_a_mask_is_broadcast_as_numpy_does_it(axes: str, data: st.DataObject) -> None:
    layout = Layout(axes)
    sizes = {"b": B, "h": H}
    target = (*tuple(sizes[axis] for axis in layout.weight_axes), L, D)
    kept = target[data.draw(st.integers(0, len(target))) :]
    shape = tuple(data.draw(st.sampled_from([1, size])) for size in kept)
    mask = np.random.default_rng(0).normal(size=shape)
    canonical = layout.broadcastable(mask)
    assert canonical.ndim == 4
    four = (*tuple(sizes[axis] if axis in layout.weight_axes else 1 for axis in "bh"), L, D)
    expected = np.broadcast_to(mask, target).reshape(four)
    np.testing.assert_array_equal(np.broadcast_to(canonical, four), expected)
    assert layout.weights_shape(four) == target
    np.testing.assert_array_equal(layout.drop(expected), np.broadcast_to(mask, target))


def test_picking_an_entry_leaves_a_layout_without_its_axis() -> None:
    assert Layout("bshd").without("b") == Layout("shd")
    assert Layout("sbhd").without("b") == Layout("shd")
    assert Layout("sbhd").without("h") == Layout("sbd")
    assert Layout("sbd").without("b") == Layout("sd")
    assert Layout("bhsd").without("h") == Layout("bsd")
    assert Layout("bsd", packed=True).without("h") == Layout("bsd")
    assert Layout("bsd", packed=True).without("b") == Layout("sd", packed=True)


def test_the_default_layouts() -> None:
    assert [Layout.of(n, None, packed=False).axes for n in (2, 3, 4)] == ["sd", "bsd", "bhsd"]


def test_wrong_layouts_say_what_there_is() -> None:
    with pytest.raises(UsageError) as other:
        Layout.of(3, "bhsd", packed=False)
    assert other.value.message == "layout 'bhsd' is for 4 axes; query has 3"
    assert other.value.hint == "for 3 axes: bsd or hsd or sbd or shd"
    with pytest.raises(UsageError, match="'hsd' has a head axis already"):
        Layout.of(3, "hsd", packed=True)
    with pytest.raises(ShapeError) as uneven:
        Layout("sd", packed=True).split(np.ones((2, 7)), 3, "query (q.csv)")
    assert uneven.value.message == (
        "query (q.csv): the width 7 cannot be cut into 3 heads of equal width"
    )
