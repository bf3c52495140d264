"""The data behind a picture: panels, scale, ticks, pooling, colours, labels."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picturing import make_panel, make_picture, split

from attncli.view.color import (
    HIDDEN,
    blues,
    blues_256,
    diverging,
    diverging_256,
    ink,
)
from attncli.view.pictures.pooling import Pooler
from attncli.view.pictures.scale import (
    fractions,
    scale_ticks,
    ticks,
)

sizes = st.integers(1, 12)
channels = st.integers(0, 255)


def luminance(rgb):
    """Return the relative luminance of WCAG 2.2."""
    parts = [channel / 255 for channel in rgb]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def blocks_of(count, limit):
    """Return the indices of each block, by the definition."""
    size = -(-count // limit)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def strongest(values, hidden, *, signed):
    """Return what one cell shows, by the definition, and None where it is hidden."""
    seen = [v for v, h in zip(values, hidden, strict=True) if not h]
    if not seen:
        return None
    return max(seen, key=lambda v: (abs(v), v)) if signed else max(seen)


@st.composite
def maps(draw):
    rows, across = draw(sizes), draw(sizes)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, (rows, across)).astype(float)
    return values, rng.random((rows, across)) < draw(st.sampled_from([0.0, 0.4, 0.95, 1.0]))


@settings(max_examples=50, deadline=None)
@given(maps(), sizes, sizes, st.booleans(), st.data())
def test_pooling_keeps_the_strongest_of_each_block_in_whatever_order_rows_come(
    map_, down, across, signed, data
):
    values, hidden = map_
    block = tuple(-(-size // most) for size, most in zip(values.shape, (down, across), strict=True))
    pooler = Pooler(values.shape, block, signed=signed)
    size = data.draw(sizes)
    for i in data.draw(st.permutations(range(0, values.shape[0], size))):
        pooler.add(values[i : i + size], hidden[i : i + size], row=i)
    pooled = pooler.panel()
    for i, rows in enumerate(blocks_of(values.shape[0], down)):
        for j, cols in enumerate(blocks_of(values.shape[1], across)):
            part = np.ix_(rows, cols)
            best = strongest(values[part].ravel(), hidden[part].ravel(), signed=signed)
            assert pooled.hidden[i, j] == (best is None)
            assert pooled.values[i, j] == (best or 0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 200), st.integers(0, 5000), st.booleans())
def test_ticks_fit_the_room_and_name_the_right_places(count, room, start, labelled):
    labels = [f"t{start + i}" for i in range(count)] if labelled else None
    named = ticks(count, labels, room, start=start)
    assert 1 <= len(named.positions) <= room
    assert named.texts == tuple(f"{'t' if labelled else ''}{start + p}" for p in named.positions)
    assert all(0 <= p < count for p in named.positions)
    gaps = {b - a for a, b in zip(named.positions, named.positions[1:], strict=False)}
    assert gaps <= {named.step}
    if not labelled:
        assert re.fullmatch("[125]0*", str(named.step))
    if count <= room:
        assert len(named.positions) == count


def test_weights_scale_from_zero_to_the_largest_of_all_panels():
    picture = make_picture(split(np.array([[[0.1, 0.9]], [[0.3, 0.7]]]), names=["head"]))
    assert (picture.vmin, picture.vmax) == (0, 0.9)
    assert [panel.title for panel in picture.panels] == ["head 0", "head 1"]
    assert np.allclose(fractions(picture, [0, 0.45, 0.9, 2]), [0, 0.5, 1, 1])


def causal(count):
    """Return even causal weights: row 0 is 1, the last row 1/count."""
    return np.tril(np.ones((count, count))) / np.arange(1, count + 1)[:, None]


def test_a_few_large_weights_do_not_make_a_white_picture_of_the_others():
    hidden = np.triu(np.ones((400, 400), bool), 1)
    picture = make_picture([make_panel(causal(400), hidden)])
    # A row is 1/n wide and n cells long: 1 cell in 50 lies in the first 57 rows.
    seen = np.sort(causal(400)[~hidden])
    assert picture.vmax == pytest.approx(seen[-len(seen) // 50], rel=0.06)
    assert picture.saturated == (False, True)
    assert picture.scale_note == "the scale ends at 0.018, the largest weight is 1"
    assert scale_ticks(picture)[-1] == (1.0, "≥ 0.018")
    assert fractions(picture, 1 / 400) > 0.1


@pytest.mark.parametrize(
    "values",
    [
        causal(40),
        np.eye(400),
        0.95 * np.eye(400) + 0.05 / 400,
        np.full((400, 400), 1 / 400),
        np.zeros((400, 400)),
        np.random.default_rng(0).random((400, 400)),
    ],
    ids=["small", "diagonal", "nearly diagonal", "even", "zero", "random"],
)
def test_other_maps_keep_the_scale_up_to_the_largest_weight(values):
    picture = make_picture([make_panel(values)])
    assert picture.vmax == (values.max() or 1)
    assert picture.scale_note is None


@pytest.mark.parametrize("sinks", [[0], [0, 17], [3, 40, 41]])
def test_sinks_leave_the_scale_to_the_others(sinks):
    rest = np.random.default_rng(1).random((200, 200)) ** 4
    rest[:, sinks] = 0
    values = 0.4 * rest / rest.sum(axis=1, keepdims=True)
    largest = values.max(axis=1)
    values[:, sinks] = 0.6 / len(sinks)
    for maps in ([values], [values, values]):
        vmax = make_picture([make_panel(each) for each in maps]).vmax
        assert np.median(largest) <= vmax < 1.1 * np.median(largest)


def test_scores_scale_symmetrically_and_zero_is_the_middle():
    picture = make_picture([make_panel([[-3.0, 1.0, -np.inf]])], what="scores")
    assert (picture.vmin, picture.vmax) == (-3, 3)
    assert np.allclose(fractions(picture, [-3, 0, 3, -9]), [0, 0.5, 1, 0])
    assert picture.panels[0].hidden.tolist() == [[False, False, True]]


def test_log_scale_spans_the_positive_weights_but_at_most_six_decades():
    picture = make_picture([make_panel([[1.0, 1e-2, 0.0]])], log=True)
    assert picture.vmin == pytest.approx(0.01)
    assert np.allclose(fractions(picture, [0, 0.01, 0.1, 1]), [0, 0, 0.5, 1])
    deep = make_picture([make_panel([[1.0, 1e-30]])], log=True)
    assert deep.vmin == pytest.approx(1e-6)
    same = make_picture([make_panel([[0.5, 0.5]])], log=True)
    assert (same.vmin, same.vmax) == (0.05, 0.5)


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-300, 1e308), st.sampled_from(["weights", "scores"]))
def test_scale_ticks_lie_in_order_and_stand_where_their_number_does(top, what):
    picture = make_picture([make_panel([[top, 0.0]])], what=what)
    marks = scale_ticks(picture)
    places = [place for place, _ in marks]
    assert places == sorted(set(places))
    assert 2 <= len(marks) <= 9
    assert places[-1] >= 0.94
    assert places[0] <= 0.06
    for place, text in marks:
        value = float(text)
        share = value / top if what == "weights" else 0.5 + value / top / 2
        # The ends are named to three digits; numbers between them are round.
        assert place == pytest.approx(share, abs=5e-3 if place in (0, 1) else 1e-6)


@pytest.mark.parametrize(
    ("scores", "end", "left_out"),
    [
        ([[2.0, -1e9], [-3.0, 1.0]], 3.0, True),
        ([[2.0, -1e4 + 2], [-3.0, 1.0]], 3.0, True),
        # Scores as large as these are none of a mask, nor are those that are all alike.
        ([[900.0, -2e4], [-3.0, 1.0]], 2e4, False),
        ([[-1e9, -1e9]], 1e9, False),
        ([[2.0, -999.0]], 999.0, False),
    ],
)
def test_scores_that_hide_keys_leave_colours_to_the_others(scores, end, left_out):
    picture = make_picture([make_panel(scores)], what="scores")
    assert (picture.vmin, picture.vmax) == (-end, end)
    assert picture.saturated == (left_out, False)
    assert (picture.scale_note is not None) is left_out
    if left_out:
        assert picture.scale_advice.endswith("(--vmax takes them in)")


def test_blues_is_the_ramp_of_matplotlib():
    mpl = pytest.importorskip("matplotlib")
    for ramp, name in ((blues, "Blues"), (diverging, "RdBu")):
        theirs = mpl.colormaps[name](np.arange(256), bytes=True)[:, :3].astype(int)
        ours = np.array([ramp(i / 255) for i in range(256)])
        assert np.abs(ours - theirs).max() <= 1


def test_ramps_darken_and_never_meet_the_colour_of_hidden_cells():
    for ramp in (blues, blues_256):
        lights = [luminance(ramp(i / 100)) for i in range(101)]
        assert lights == sorted(lights, reverse=True)
    for ramp in (blues, diverging, blues_256, diverging_256):
        shades = [ramp(i / 255) for i in range(256)]
        assert min(sum(abs(a - b) for a, b in zip(s, HIDDEN, strict=True)) for s in shades) > 60
        assert ramp(-1) == ramp(0)
        assert ramp(2) == ramp(1)


@settings(max_examples=50, deadline=None)
@given(st.tuples(channels, channels, channels))
def test_ink_has_the_better_contrast_and_enough_of_it(rgb):
    light = luminance(rgb)
    contrast = {"black": (light + 0.05) / 0.05, "white": 1.05 / (light + 0.05)}
    assert contrast[ink(rgb)] == max(contrast.values())
    # The contrast that WCAG asks of text; the better ink always has it.
    assert contrast[ink(rgb)] >= 4.5


def test_a_crop_says_what_it_is_a_part_of():
    weights = make_panel(np.full((2, 3), 0.1))
    assert make_picture([weights]).notes == ()
    crop = make_picture([weights], row_start=4, whole=(9, 3))
    assert crop.notes == ("queries 4 to 5 of 9",)
    crop = make_picture([weights], row_start=4, column_start=7, whole=(6, 10))
    assert crop.notes == ("queries 4 to 5 of 6, keys 7 to 9 of 10",)
