"""The terminal picture: colours and marks of cells, labels, and the width it must fit."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from picturing import looking, make_panel, make_picture, split

from attncli import pose
from attncli.summaries.maps import Computed
from attncli.view.blocks import drawing
from attncli.view.color import HIDDEN, blues, diverging
from attncli.view.labels import text_width
from attncli.view.limits import Limits
from attncli.view.pictures.making import picture_of
from attncli.view.pictures.picture import Look

TOKENS = ["[CLS]", "the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired", "."]
TOKENS += ["[SEP]"]
CHINESE = ["我", "喜欢", "吃", "苹果", "和", "香蕉", "🙂", "。", "ごはん", "한국어"]
_SEQUENCE = re.compile(r"\x1b\[([0-9;]*)m|([^\x1b])")


def draw_blocks(picture, *, annotate=None, color="none", most=None, **screen):
    limits = Limits(heads=most, depth=color, **screen)
    return drawing.draw_blocks(looking(picture, annotate=annotate), limits)


def weights(rows, across, heads=None, seed=0):
    shape = (rows, across) if heads is None else (heads, rows, across)
    raw = np.random.default_rng(seed).random(shape) ** 4
    return raw / raw.sum(-1, keepdims=True)


def screen(text):
    """Return each line as characters with ink and background, as a terminal would."""
    lines = []
    for line in text.split("\n"):
        fore = back = None
        cells = []
        for codes, character in _SEQUENCE.findall(line):
            if character:
                cells.append((character, fore, back))
            elif codes == "0":
                fore = back = None
            else:
                numbers = [int(code) for code in codes.split(";")]
                while numbers:
                    size = 5 if numbers[1] == 2 else 3
                    color = tuple(numbers[2:size])
                    if numbers[0] == 38:
                        fore = color
                    else:
                        back = color
                    numbers = numbers[size:]
        assert (fore, back) == (None, None), "a line leaves its colour behind"
        lines.append(cells)
    return lines


def step(fraction):
    """Return the place on the ramp that a terminal picture rounds to."""
    return round(fraction * 256) / 256


def bare(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_tutorial_numbers_stand_in_cells_of_their_colour():
    picture = make_picture([make_panel([[0.5761, 0.2119, 0.2119], [0.2119, 0.5761, 0.2119]])])
    lines = screen(draw_blocks(picture, width=40, color="truecolor"))
    rows = [line for line in lines if line[0][0] in "01" and line[2][2]]
    for i, row in enumerate(rows):
        cells = row[2:20]
        for j in range(3):
            cell = cells[6 * j : 6 * j + 6]
            value = picture.panels[0].values[i, j]
            assert "".join(c for c, _, _ in cell) == f" {value:.2f} "
            assert {back for _, _, back in cell} == {blues(step(value / 0.5761))}
            assert cell[1][1] == ((255, 255, 255) if value > 0.5 else (0, 0, 0))
    assert len(rows) == 2


def test_two_column_cells_have_the_colour_of_their_weight_and_hidden_ones_a_mark():
    values = weights(20, 20)
    hidden = np.triu(np.ones((20, 20), bool), 1)
    picture = make_picture([make_panel(values, hidden)])
    lines = screen(draw_blocks(picture, width=60, color="truecolor"))
    body = [line[3:] for line in lines if len(line) == 43]
    assert len(body) == 20
    for i, line in enumerate(body):
        for j in range(20):
            cell = line[2 * j]
            shade = blues(step(values[i, j] / picture.vmax))
            # Hidden cells recede: they have the background of the terminal.
            assert cell == (("·", HIDDEN, None) if hidden[i, j] else (" ", None, shade))


def test_half_blocks_hold_two_rows_in_a_line():
    values = weights(31, 30)
    picture = make_picture([make_panel(values)])
    lines = screen(draw_blocks(picture, width=40, color="truecolor"))
    body = [line[3:] for line in lines if any(c == "▀" for c, _, _ in line)]
    assert len(body) == 16
    for i, line in enumerate(body):
        for j, (character, fore, back) in enumerate(line):
            assert character == "▀"
            assert fore == blues(step(values[2 * i, j] / picture.vmax))
            lower = None if i == 15 else blues(step(values[2 * i + 1, j] / picture.vmax))
            assert back == lower


def test_scores_diverge_and_without_colour_show_their_sign():
    values = np.array([[-4.0, 0.0, 4.0]])
    picture = make_picture([make_panel(values)], what="scores")
    line = screen(draw_blocks(picture, width=40, color="truecolor", annotate=False))[2]
    assert [line[i][2] for i in (2, 4, 6)] == [diverging(0), diverging(0.5), diverging(1)]
    assert "0 -█  +█" in draw_blocks(picture, width=40, annotate=False)
    assert "0 -@  +@" in draw_blocks(picture, width=40, annotate=False, unicode=False)


def test_shades_grow_with_the_weight_and_differ_from_hidden():
    picture = make_picture([make_panel([[0, 0.25, 0.5, 0.75, 1, -np.inf]])])
    assert "0   ░░▒▒▓▓██··" in draw_blocks(picture, width=40, annotate=False)
    assert "0   ::==%%@@//" in draw_blocks(picture, width=40, annotate=False, unicode=False)
    assert "hidden" in draw_blocks(picture, width=40)
    assert "hidden" not in draw_blocks(make_picture([make_panel([[0.0]])]), width=40)


def test_no_colour_means_no_escape_and_ascii_means_ascii():
    labels = ["中", "é…", "≥\x1b[31m"]
    picture = make_picture(
        [make_panel([[-1.0, -np.inf, 2.0]], title="头 3")],
        what="scores",
        key_labels=labels,
        query_labels=["q×"],
        title="−x≤",
        vmax=1,
    )
    for annotate in (None, False):
        text = draw_blocks(picture, width=40, unicode=False, annotate=annotate)
        assert text.isascii()
        assert "\x1b" not in text
    assert "\x1b" not in draw_blocks(picture, width=40)
    colored = draw_blocks(picture, width=40, color="256")
    assert "\x1b" not in bare(colored)
    assert "38;2" not in colored
    assert "48;2" not in colored


def test_token_labels_stand_upright_over_their_columns():
    picture = make_picture(
        [make_panel(weights(13, 13))], query_labels=TOKENS, key_labels=TOKENS, title="MiniLM"
    )
    lines = draw_blocks(picture, width=50, annotate=False).split("\n")
    header = [line.ljust(34) for line in lines[2:9]]
    for j, token in enumerate(TOKENS):
        assert "".join(line[8 + 2 * j] for line in header).strip() == token
    assert [line[:8].strip() for line in lines[9:22]] == TOKENS


def test_a_large_map_is_pooled_and_says_so():
    values = np.zeros((2048, 2048))
    values[1500, 700] = 1
    picture = make_picture([make_panel(values)])
    text = draw_blocks(picture, width=80, height=40)
    assert "each cell shows the largest of" in text
    # One strong key among four million must still be seen.
    assert sum(line.count("█") for line in text.split("\n")[3:-2]) == 1
    assert len(text.split("\n")) <= 40


def numbers(text):
    """Return how many numbers with two digits stand in each line."""
    return [
        count for line in bare(text).split("\n") if (count := len(re.findall(r"\d\.\d\d", line)))
    ]


@pytest.mark.parametrize("color", ["truecolor", "none"])
@pytest.mark.parametrize(
    ("heads", "width", "height", "counts"),
    [
        # Five cells of six columns are a map, after two columns for the numbers of queries.
        (2, 64, 24, [10] * 5),
        (2, 63, 24, [5] * 10),
        (6, 80, None, [10] * 15),
        # Six maps below each other do not fit 49 lines, two rows of three do.
        (6, 63, 49, []),
        (6, 100, 24, [15] * 10),
    ],
)
def test_several_small_maps_have_numbers_if_all_can_be_seen_at_once(
    color, heads, width, height, counts
):
    picture = make_picture(split(weights(5, 5, heads=heads), names=["head"]))
    text = draw_blocks(picture, width=width, height=height, color=color)
    drawn = numbers(text.rpartition("\n")[0])  # without the legend
    assert drawn == counts
    assert not numbers(
        draw_blocks(picture, width=width, height=height, annotate=False).rpartition("\n")[0]
    )


@pytest.mark.parametrize("color", ["truecolor", "256", "none"])
@pytest.mark.parametrize("unicode", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 90)),
    heads=st.sampled_from([None, 1, 3]),
    width=st.sampled_from([20, 31, 40, 80, 200]),
    height=st.sampled_from([None, 10, 24, 50]),
    labels=st.sampled_from([None, TOKENS, CHINESE, ["x" * 60, "👩‍👩‍👧", "e\u0301\x1b[1m"]]),
    what=st.sampled_from(["weights", "scores"]),
    hide=st.booleans(),
)
def test_no_line_is_longer_than_the_terminal(
    color, unicode, shape, heads, width, height, labels, what, hide
):
    values = weights(*shape, heads=heads) - (0.1 if what == "scores" else 0)
    hidden = np.triu(np.ones(shape, bool), 1) if hide else None

    def named(count):
        return labels and [labels[i % len(labels)] for i in range(count)]

    picture = make_picture(
        split(values, hidden, names=["head"][: values.ndim - 2]),
        what=what,
        query_labels=named(shape[0]),
        key_labels=named(shape[1]),
        title="A title of many words " * 4,
        vmax=0.1234567,
    )
    text = draw_blocks(picture, width=width, height=height, color=color, unicode=unicode)
    screen(text)
    for line in bare(text).split("\n"):
        assert text_width(line) <= width
        assert "\x1b" not in line
        assert unicode or line.isascii()


@pytest.mark.parametrize("color", ["truecolor", "none"])
@pytest.mark.parametrize(
    ("size", "height"), [(10, 24), (18, 24), (19, 30), (30, 40), (64, 60), (90, 24), (300, 40)]
)
def test_one_map_and_its_notes_leave_a_line_for_the_prompt(size, height, color):
    inputs = np.random.default_rng(0).normal(size=(size, 16))
    # The first query sees one key: the scale ends below its weight, and a note says so.
    picture = picture_of(Computed(pose(inputs, inputs, causal=True)), Look())
    lines = draw_blocks(picture, width=80, height=height, color=color).split("\n")
    assert len(lines) < height
    assert size < 64 or any("the scale ends at" in line for line in lines)
