"""The drawn figure: colours of cells, places of texts, bytes and metadata."""

import math
import re
import struct
import warnings
import zlib
from io import BytesIO
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from matplotlib.patches import Polygon
from matplotlib.text import Text
from process import long_but

from attncli.describing.pictures import picture_format, read_texts
from attncli.errors import InputError, UsageError
from attncli.view.color import blues, diverging, ink
from attncli.view.figure.drawing import draw, fit, render
from attncli.view.figure.style import boxed_texts
from attncli.view.pictures.panel import make_panel, split
from attncli.view.pictures.picture import make_picture
from attncli.view.pictures.room import cell_limit, grid_columns, panel_size

TOKENS = [
    "[CLS]",
    "the",
    "cat",
    "sat",
    "on",
    "$x$",
    "_a^b",
    "because",
    "[/INST]",
    "was",
    "tired",
    ".",
    "[SEP]",
]
CHINESE = ["我", "喜欢", "吃", "苹果", "和", "香蕉", "🙂", "。", "ごはん", "한국어"]
TUTORIAL = [[0.5761, 0.2119, 0.2119], [0.2119, 0.5761, 0.2119]]
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def weights(rows, across, heads=None, seed=0):
    shape = (rows, across) if heads is None else (heads, rows, across)
    raw = np.random.default_rng(seed).random(shape) ** 4
    return raw / raw.sum(-1, keepdims=True)


def pixels_of(figure, panel=0):
    """Return a function from a place in a panel to the colour of the pixel there."""
    image = imread(BytesIO(render(figure, "png", dpi=100)))
    box = figure.axes[panel].transData
    scale = 100 / figure.dpi

    def at(x, y):
        left, bottom = box.transform((x, y)) * scale
        return (image[image.shape[0] - 1 - int(bottom), int(left), :3] * 255).round().astype(int)

    return at


def texts_of(figure):
    """Return each text that is seen, with its box in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The places of texts alone, without a pixel.
        figure.draw_without_rendering()
        return [
            (text.get_text(), text.get_window_extent(renderer))
            for text in figure.findobj(Text)
            if text.get_visible() and text.get_text().strip()
        ]


def assert_nothing_overlaps(figure):
    boxes = texts_of(figure)
    for text, box in boxes:
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= figure.bbox.x1 + 1, text
        assert box.y1 <= figure.bbox.y1 + 1, text
    edges = np.array([[b.x0, b.y0, b.x1, b.y1] for _, b in boxes])
    across = np.minimum(edges[:, None, 2], edges[:, 2]) - np.maximum(edges[:, None, 0], edges[:, 0])
    along = np.minimum(edges[:, None, 3], edges[:, 3]) - np.maximum(edges[:, None, 1], edges[:, 1])
    clash = np.argwhere(np.triu((across > 0.5) & (along > 0.5), 1))
    assert not [(boxes[i][0], boxes[j][0]) for i, j in clash]


@pytest.mark.parametrize("what", ["weights", "scores"])
def test_each_cell_has_the_colour_of_its_value(what):
    values = weights(7, 5) - (0.1 if what == "scores" else 0)
    picture = make_picture([make_panel(values)], what=what)
    at = pixels_of(draw(picture, annotate=False))
    for (i, j), value in np.ndenumerate(values):
        share = value / picture.vmax
        expected = blues(share) if what == "weights" else diverging(0.5 + share / 2)
        assert np.abs(at(j, i) - expected).max() <= 4


@pytest.mark.parametrize("what", ["weights", "scores"])
def test_the_colour_bar_is_darkest_at_its_upper_end(what):
    at = pixels_of(draw(make_picture([make_panel([[0.25, 1.0]])], what=what)), panel=-1)
    color = blues if what == "weights" else diverging
    for share in (0.05, 0.95):
        assert np.abs(at(0.5, share) - color(share)).max() <= 8


def test_hidden_cells_are_grey_and_hatched_and_explained():
    hidden = np.triu(np.ones((4, 4), bool), 1)
    figure = draw(make_picture([make_panel(np.zeros((4, 4)), hidden)]), annotate=False)
    at = pixels_of(figure)
    seen = {
        tuple(at(3 + dx / 40, dy / 40).tolist()) for dx in range(-15, 16) for dy in range(-15, 16)
    }
    assert (205, 205, 205) in seen
    assert len(seen) > 2
    assert all(max(color) - min(color) <= 2 for color in seen)
    assert tuple(at(0, 3)) == blues(0)
    assert "hidden" in [text for text, _ in texts_of(figure)]
    plain = draw(make_picture([make_panel(np.zeros((4, 4)))]))
    assert "hidden" not in [text for text, _ in texts_of(plain)]


def test_numbers_are_written_in_readable_ink():
    figure = draw(make_picture([make_panel(TUTORIAL)]))
    numbers = {t.get_position(): t for t in figure.axes[0].texts}
    for (i, j), value in np.ndenumerate(np.array(TUTORIAL)):
        text = numbers[j, i]
        assert text.get_text() == f"{value:.2f}"
        assert to_rgb(text.get_color()) == to_rgb(ink(blues(value / 0.5761)))


def test_on_a_logarithmic_scale_numbers_keep_their_digits():
    picture = make_picture([make_panel([[0.9, 0.0123, 4.56e-5]])], log=True)
    for digits, expected in ((2, ["0.90", "0.012", "4.6e−05"]), (0, ["0.9", "0.01", "5e−05"])):
        shown = [text.get_text() for text in draw(picture, digits=digits).axes[0].texts]
        assert shown == expected


def test_numbers_are_left_out_where_they_cannot_be_read_or_are_not_wanted():
    assert not draw(make_picture([make_panel(weights(21, 21))])).axes[0].texts
    assert not draw(make_picture([make_panel(TUTORIAL)]), annotate=False).axes[0].texts
    forced = draw(make_picture([make_panel(weights(21, 21))]), annotate=True)
    assert len(forced.axes[0].texts) == 441
    with pytest.raises(UsageError, match="at most 2500 cells, found 3600"):
        draw(make_picture([make_panel(weights(60, 60))]), annotate=True)


@pytest.mark.parametrize(
    ("shape", "heads", "shown"), [((20, 20), 1, True), ((20, 21), 1, False), ((15, 14), 2, False)]
)
def test_four_hundred_cells_of_all_maps_have_numbers_unasked(shape, heads, shown):
    panels = [make_panel(np.full(shape, 0.5))] * heads
    assert bool(draw(make_picture(panels)).axes[0].texts) == shown


def test_numbers_are_as_small_as_their_cells_need():
    figure = draw(make_picture([make_panel(np.full((2, 20), 0.5))]), digits=4)
    left, right = figure.axes[0].transData.transform([(0, 0), (1, 0)])[:, 0]
    widths = [box.width for text, box in texts_of(figure) if text == "0.5000"]
    assert len(widths) == 2 * 20
    assert max(widths) < right - left


LABELLED = {
    "tutorial": ([make_panel(TUTORIAL)], None),
    "one": ([make_panel([[1.0]])], None),
    "tokens": ([make_panel(weights(13, 13))], TOKENS),
    "heads": (split(weights(13, 13, heads=12), names=["head"]), TOKENS),
    "five heads": (
        split(weights(12, 12, heads=5), names=["head"]),
        [f"token{i}" for i in range(12)],
    ),
    "five longer heads": (
        split(weights(30, 30, heads=5), names=["head"]),
        [f"token{i}" for i in range(30)],
    ),
    "chinese": ([make_panel(weights(10, 10))], CHINESE),
    "long": ([make_panel(weights(12, 12))], [f"{i}{'word ' * 11}{i}" for i in range(12)]),
    "50": ([make_panel(weights(50, 50))], [f"token{i}" for i in range(50)]),
    "100": ([make_panel(weights(100, 100))], [f"token{i}" for i in range(100)]),
    "wide": ([make_panel(weights(3, 200))], None),
    "tall": ([make_panel(weights(200, 3))], None),
    "pooled": ([make_panel(weights(1500, 1300))], None),
    "hidden": ([make_panel(weights(9, 9), np.triu(np.ones((9, 9), bool), 1))], TOKENS[:9]),
    "many": (split(weights(4, 4, heads=30), names=["head"]), None),
    "extreme": ([make_panel([[1e-310, 1e308], [3.0, 0.0]])], None),
}


@pytest.mark.parametrize(
    "name", long_but(LABELLED, "tutorial", "five heads", "long", "50", "extreme")
)
def test_no_text_overlaps_another_or_leaves_the_figure(name):
    panels, labels = LABELLED[name]
    picture = make_picture(
        panels, query_labels=labels, key_labels=labels, title="A title of many words " * 3
    )
    assert_nothing_overlaps(draw(picture))


@pytest.mark.parametrize(("inches", "named"), [(2.6, "Queries"), (3.3, "Queries (1 in 3)")])
@pytest.mark.parametrize("heads", [None, 1])
def test_names_of_the_axes_of_a_small_figure_do_not_leave_it(heads, inches, named):
    tokens = [str(token) for token in range(101, 121)]
    panels = (
        split(weights(20, 20, heads=1), names=["head"]) if heads else [make_panel(weights(20, 20))]
    )
    picture = make_picture(panels, query_labels=tokens, key_labels=tokens)
    figure = draw(picture, size=(inches, math.inf))
    assert_nothing_overlaps(figure)
    assert named in [text for text, _ in texts_of(figure)]


def test_small_panels_have_batch_and_head_in_short():
    values = np.stack([weights(8, 8, heads=3)] * 2)
    figure = draw(make_picture(split(values, names=["batch", "head"])), size=(3.3, math.inf))
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:6] == ["b0 h0", "b0 h1", "b0 h2", "b1 h0", "b1 h1", "b1 h2"]
    assert_nothing_overlaps(figure)


def test_long_labels_lose_their_middle_so_that_the_map_keeps_its_room():
    labels = [f"{i} {'word ' * 11}end{i}" for i in range(12)]
    figure = draw(make_picture([make_panel(weights(12, 12))], query_labels=labels))
    shown = [t.get_text() for t in figure.axes[0].get_yticklabels()]
    for label, text in zip(labels, shown, strict=True):
        head, tail = text.split("…")
        assert label.startswith(head)
        assert label.endswith(tail)
        assert len(text) <= 24


def test_saturated_and_log_and_signed_bars_do_not_overlap():
    values = make_panel(weights(4, 4) - 0.1)
    assert_nothing_overlaps(draw(make_picture([values], what="scores", vmax=0.05)))
    deep = make_panel(weights(4, 4) ** 9)
    assert_nothing_overlaps(draw(make_picture([deep], log=True, vmax=0.01)))
    # Just under two decades, beside a picture of one row.
    short = make_panel([[1.0, 0.011, 0.5]])
    assert_nothing_overlaps(draw(make_picture([short], log=True)))


def test_a_logarithmic_bar_has_minor_ticks_and_another_has_none():
    panel = make_panel([[1.0, 0.1]])
    log, linear = (draw(make_picture([panel], log=log)).axes[-1].yaxis for log in (True, False))
    # Matplotlib leaves out those that have a number.
    assert log.get_minorticklocs() == pytest.approx(np.log10([3, 4, 6, 7, 8, 9]))
    assert len(linear.get_minorticklocs()) == 0


@pytest.mark.parametrize(
    ("rows", "words"), [(4, "above 0: more than in w.npy"), (1, "above 0: more")]
)
def test_the_bar_of_a_difference_says_which_side_is_which(rows, words):
    values = weights(rows, 4) - 0.2
    figure = draw(make_picture([make_panel(values)], what="difference", than="in w.npy"))
    assert figure.axes[-1].get_ylabel() == words
    ((box,),) = ([box for text, box in texts_of(figure) if text == words],)
    bar = figure.axes[-1].get_window_extent()
    assert bar.y0 - 1 <= box.y0 <= box.y1 <= bar.y1 + 1


def test_a_scale_that_ends_below_the_largest_weight_points_on_and_says_so():
    long = np.tril(np.ones((200, 200))) / np.arange(1, 201)[:, None]
    figure = draw(make_picture([make_panel(long)]))
    (arrow,) = [shape for shape in figure.artists if isinstance(shape, Polygon)]
    bar = figure.axes[-1].get_position()
    corners = arrow.get_xy()
    assert corners[:, 1].min() == pytest.approx(bar.y1)
    assert corners[:, 1].max() > bar.y1
    assert to_rgb(arrow.get_facecolor()) == pytest.approx([c / 255 for c in blues(1)], abs=0.01)
    shown = [text for text, _ in texts_of(figure)]
    assert "the scale ends at 0.036, the largest weight is 1" in shown
    assert "≥ 0.036" in shown
    assert_nothing_overlaps(figure)
    honest = draw(make_picture([make_panel(long)], vmax=1))
    assert not [shape for shape in honest.artists if isinstance(shape, Polygon)]


def test_a_log_scale_that_begins_above_the_smallest_weight_points_on():
    figure = draw(make_picture([make_panel([[0.9, 0.1, 1e-9]])], log=True))
    (arrow,) = [shape for shape in figure.artists if isinstance(shape, Polygon)]
    bar = figure.axes[-1].get_position()
    corners = arrow.get_xy()
    assert corners[:, 1].max() == pytest.approx(bar.y0)
    assert corners[:, 1].min() < bar.y0
    assert to_rgb(arrow.get_facecolor()) == pytest.approx([c / 255 for c in blues(0)], abs=0.01)


def test_the_note_on_a_scale_names_the_options_that_change_it(folder, attncli):
    np.save(folder / "q.npy", np.zeros((200, 1)))
    line = "heatmap q.npy q.npy --causal --dpi 40 --out w.png"
    (note,) = attncli(*line.split()).good().messages
    assert "the scale ends at 0.036" in note
    for option in ("--vmax 1", "--log"):
        assert option in note
        assert not attncli(*line.split(), *option.split()).good().messages


def test_labels_are_plain_text_and_thinned_ones_are_announced():
    figure = draw(make_picture([make_panel(weights(2, 13))], key_labels=TOKENS))
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == TOKENS
    assert not any(t.get_parse_math() for t in figure.axes[0].get_xticklabels())
    names = [f"token{i}" for i in range(150)]
    thinned = draw(make_picture([make_panel(weights(2, 150))], key_labels=names))
    shown = [t.get_text() for t in thinned.axes[0].get_xticklabels()]
    assert shown == names[::2]
    assert "Keys (1 label in 2 shown)" in [text for text, _ in texts_of(thinned)]


@pytest.mark.parametrize(
    ("heads", "tokens", "step"),
    long_but([(8, 30, 1), (2, 60, 1), (8, 60, 3)], (2, 60, 1), (8, 60, 3)),
)
def test_panels_of_a_grid_grow_for_their_labels_but_not_in_vain(heads, tokens, step):
    names = [f"token{i}" for i in range(tokens)]
    panels = [make_panel(weights(tokens, tokens)) for _ in range(heads)]
    figure = draw(make_picture(panels, query_labels=names, key_labels=names))
    below, left = figure.axes[heads - 1], figure.axes[0]
    assert [t.get_text() for t in below.get_xticklabels()] == names[::step]
    assert [t.get_text() for t in left.get_yticklabels()] == names[::step]
    assert figure.get_size_inches()[0] < 30


def test_a_reader_without_the_font_of_an_svg_takes_a_similar_one():
    label = "font-family: a"
    picture = make_picture([make_panel(weights(2, 2))], key_labels=[label, "b"])
    data = render(draw(picture), "svg").decode()
    families = re.findall(r'<text style="[^"]*font-family: ([^;"]*)', data)
    assert len(families) > 4
    assert set(families) == {"'DejaVu Sans', Verdana, sans-serif"}
    assert ">font-family: a<" in data


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_any_script_is_drawn_without_a_warning_and_svg_keeps_it_as_text(file_format):
    picture = make_picture(
        [make_panel(weights(10, 10))], query_labels=CHINESE, key_labels=CHINESE, title="标题 שלום"
    )
    data = render(draw(picture, annotate=False), file_format, dpi=50)
    assert picture_format(data) == file_format
    assert file_format != "svg" or "苹果" in data.decode()
    assert set(boxed_texts(picture)) <= {*CHINESE, "标题 שלום"}


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_bytes_and_metadata_comes_back(file_format):
    picture = make_picture([make_panel(TUTORIAL, [[False, False, True]])], title="<&> (x)")
    metadata = {"Software": "attncli 1.2", "Options": 'é 中 (a\\b) "q" </dc:description> &amp;\nx'}
    one = render(draw(picture), file_format, dpi=50, metadata=metadata)
    import matplotlib as mpl

    # A reader's own settings must not change the picture either.
    with mpl.rc_context({"font.size": 30, "axes.grid": True, "savefig.bbox": "tight"}):
        two = render(draw(picture), file_format, dpi=50, metadata=metadata)
    assert one == two
    assert read_texts(one) == metadata
    assert b"matplotlib.org" not in one.lower() or file_format == "svg"
    assert read_texts(render(draw(picture), file_format, dpi=50)) == {}


def chunk(kind, body):
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def test_metadata_of_other_programs_is_read_and_damage_is_an_error():
    bomb = zlib.compress(bytes(5_000_000))
    data = (
        SIGNATURE
        + chunk(b"tEXt", b"Author\0me")
        + chunk(b"zTXt", b"Zipped\0\0" + zlib.compress(b"long"))
        + chunk(b"iTXt", b"Titel\0\0\0de\0\0" + "ü".encode())
        + chunk(b"zTXt", b"Bomb\0\0" + bomb)
        + chunk(b"IEND", b"")
    )
    found = read_texts(data)
    assert len(found.pop("Bomb")) <= 1 << 20
    assert found == {"Author": "me", "Zipped": "long", "Titel": "ü"}
    with pytest.raises(InputError, match="cut short"):
        read_texts(data[:30])
    with pytest.raises(InputError, match="damaged"):
        read_texts(SIGNATURE + chunk(b"zTXt", b"a\0\0nonsense"))
    with pytest.raises(InputError, match="not a PNG, SVG or PDF"):
        read_texts(b"GIF89a")
    svg = b"<svg><dc:description>[1, 2</dc:description></svg>"
    assert read_texts(svg) == {"Description": "[1, 2"}


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([SIGNATURE, b"%PDF-1.4", b"<svg>", b""]))
def test_reading_metadata_of_anything_never_fails_otherwise(data, start):
    try:
        found = read_texts(start + data)
    except InputError:
        return
    assert all(isinstance(text, str) for pair in found.items() for text in pair)


def test_a_cell_never_gets_less_than_a_pixel():
    picture = make_picture([make_panel(np.zeros((1200, 1000)))])
    fitted = fit(picture, dpi=50)
    limit = cell_limit((1200, 1000), dpi=50)
    assert fitted.cells[0] <= limit[0]
    assert fitted.cells[1] <= limit[1]
    assert fitted.note
    width, height = panel_size(1200, 1000)
    assert fitted.cells[0] <= height * 50
    assert fitted.cells[1] <= width * 50


SIZES = [(3.3, math.inf), (math.inf, 3.0), (13.3, 7.5), (7.5, 13.3)]


@pytest.mark.parametrize(
    ("size", "panels"), long_but(product(SIZES, [1, 4]), *zip(SIZES, [4, 1, 4, 1], strict=True))
)
def test_a_figure_is_as_large_as_it_may_be(size, panels):
    words = [f"word {n}" for n in range(20)]
    picture = make_picture(
        [make_panel(weights(20, 20), title=f"head {n}") for n in range(panels)],
        query_labels=words,
        key_labels=words,
    )
    figure = draw(fit(picture, size=size), size=size)
    sides = figure.get_size_inches()
    assert all(side <= most + 0.01 for side, most in zip(sides, size, strict=True))
    assert min(most - side for side, most in zip(sides, size, strict=True)) < 0.01
    box = figure.axes[0].get_position()
    assert box.width * sides[0] == pytest.approx(box.height * sides[1])
    sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text() in words}
    assert sizes == {9.0}
    assert_nothing_overlaps(figure)


@pytest.mark.parametrize("width", [3.2, 4.2, 6.6])
def test_labels_that_have_room_or_not_do_not_keep_a_figure_from_its_size(width):
    """Without the longer labels there is room for larger panels, in which all would have room."""
    words = ["word", "a longer one"] * 6 + ["end"]
    picture = make_picture(
        [make_panel(weights(13, 13), title=f"head {n}") for n in range(4)],
        query_labels=words,
        key_labels=words,
    )
    figure = draw(picture, size=(width, math.inf))
    assert width - 0.7 < figure.get_size_inches()[0] < width + 0.01
    assert_nothing_overlaps(figure)


def test_a_cell_of_a_small_figure_never_gets_less_than_a_pixel():
    picture = make_picture([make_panel(np.zeros((1200, 1000)))])
    for dpi, size in ((50, (3.0, 3.0)), (150, (20.0, 20.0))):
        fitted = fit(picture, dpi=dpi, size=size)
        figure = draw(fitted, dpi=dpi, size=size)
        box = figure.axes[0].get_position()
        across, up = figure.get_size_inches() * dpi
        assert fitted.cells[0] <= math.ceil(box.height * up)
        assert fitted.cells[1] <= math.ceil(box.width * across)
    assert fitted.cells == (1200, 1000)


def test_what_has_no_room_in_a_figure_is_said():
    picture = make_picture([make_panel(weights(20, 20))] * 12)
    with pytest.raises(UsageError, match="leave no room for the cells of this picture in 2 × 1 in"):
        draw(picture, size=(2.0, 1.0))
    one = make_picture([make_panel(weights(20, 20))])
    with pytest.raises(UsageError, match="no room for numbers in the cells"):
        draw(one, size=(3.0, 3.0), annotate=True)
    assert not draw(one, size=(3.0, 3.0)).axes[0].texts


def test_a_pooled_picture_keeps_the_numbers_of_tokens():
    picture = make_picture([make_panel(np.eye(1999))], row_start=1, column_start=1)
    figure = draw(fit(picture))
    assert figure.axes[0].get_xlim() == (-0.5, 1998.5)
    ticks = figure.axes[0].get_xticks()
    labels = [int(t.get_text()) for t in figure.axes[0].get_xticklabels()]
    assert labels == [int(place) + 1 for place in ticks]
    assert any("largest of 2" in text for text, _ in texts_of(figure))


@pytest.mark.parametrize(
    ("count", "columns"),
    [(1, 1), (2, 2), (3, 3), (4, 2), (8, 4), (12, 4), (16, 4), (32, 8), (40, 8), (7, 4)],
)
def test_heads_make_a_grid_near_the_shape_of_a_page(count, columns):
    assert grid_columns(count, 1.0) == columns


@pytest.mark.parametrize(
    ("count", "group", "columns"), [(6, 3, {3}), (14, 7, {7}), (30, 10, {5}), (24, 12, {3, 4, 6})]
)
def test_a_row_of_the_grid_holds_heads_of_one_batch_entry(count, group, columns):
    assert grid_columns(count, 7 / 5, group) in columns


def test_the_heads_of_a_batch_entry_share_a_row_though_a_page_is_higher():
    assert grid_columns(8, 1.6, 4) == 4


def test_many_heads_of_one_query_make_no_tower():
    (one,), (six, _) = ([panel_size(1, 20, panels=count)[1]] * count for count in (1, 2))
    assert six < one / 1.5


def test_a_prime_number_of_heads_makes_no_strip():
    assert 6 <= grid_columns(62, 1.0, 31) <= 12


def test_batches_of_a_problem_lie_below_each_other(folder, attncli):
    random = np.random.default_rng(0)
    for name, rows in (("q", 2), ("k", 3)):
        np.save(folder / f"{name}.npy", random.normal(size=(2, 3, rows, 4)))
    attncli("compute", "q.npy", "k.npy", "--save", "weights=w.npy").good()
    for files in (["q.npy", "k.npy"], ["w.npy"], ["w.npy", "--minus", "w.npy"]):
        attncli("heatmap", *files, "--no-annotate", "--out", "w.svg").good()
        svg = (folder / "w.svg").read_text()
        pairs = re.findall(r'x="([\d.]+)" y="([\d.]+)"[^>]*>batch (\d), head (\d)<', svg)
        assert len(pairs) == 6
        assert len({(batch, up) for _, up, batch, _ in pairs}) == 2
        assert len({(head, across) for across, _, _, head in pairs}) == 3


@pytest.mark.parametrize(("across", "first"), [(10, "b1 h8"), (80, "batch 1, head 8")])
def test_titles_that_do_not_fit_are_all_short_and_keep_the_batch(across, first):
    titles = [f"batch 1, head {head}" for head in range(8, 12)]
    panels = [make_panel(weights(40, across), title=title) for title in titles]
    shown = [axes.get_title() for axes in draw(make_picture(panels)).axes if axes.get_title()]
    assert shown[0] == first
    assert len(shown) == 4
    assert len({text.startswith("batch") for text in shown}) == 1


def test_wrong_wishes_are_errors_with_a_way_out():
    picture = make_picture([make_panel(TUTORIAL)])
    with pytest.raises(UsageError, match="no colour map 'Bluess'") as error:
        draw(picture, cmap="Bluess")
    assert "Blues" in error.value.hint
    with pytest.raises(UsageError, match="at most 100 million"):
        render(draw(picture), "png", dpi=5000)
    with pytest.raises(UsageError, match="at most 400 maps, found 401"):
        draw(make_picture([make_panel([[1.0]])] * 401))


def words_of(figure):
    return [text for text, _ in texts_of(figure)]


def test_long_titles_are_wrapped_and_end_in_a_cut():
    panel = make_panel(weights(8, 8))
    words = "Layer 3, head 1 of MiniLM: attention of the pronoun it to its antecedent"
    shown = words_of(draw(make_picture([panel], title=words), annotate=False))
    lines = [line for line in shown if line in words and not line.isdigit()]
    assert " ".join(lines) == words
    assert len(lines) == 2
    shown = words_of(draw(make_picture([panel], title="first\nsecond"), annotate=False))
    assert {"first", "second"} <= set(shown)
    endless = words_of(draw(make_picture([panel], title="word " * 100), annotate=False))
    assert sum(line.startswith("word") for line in endless) == 3


@pytest.mark.parametrize("count", [60, 128, 300, 512, 2000])
def test_numbers_of_queries_and_keys_of_a_square_map_match(count):
    figure = draw(make_picture([make_panel(np.full((count, count), 1 / count))]))
    axes = figure.axes[0]
    across, down = (
        [label.get_text() for label in labels]
        for labels in (axes.get_xticklabels(), axes.get_yticklabels())
    )
    assert across == down


@pytest.mark.parametrize("shape", [(8, 12), (7, 11)])
def test_numbers_stand_in_the_middle_of_pooled_cells(shape):
    block = 2, 3
    cells = tuple(-(-size // wide) for size, wide in zip(shape, block, strict=True))
    values = weights(*cells)
    picture = make_picture([make_panel(values)], block=block, shape=shape)
    figure = draw(picture, annotate=True)
    numbers = {t.get_position(): t.get_text() for t in figure.axes[0].texts}
    for (i, j), value in np.ndenumerate(values):
        across = np.arange(shape[1])[3 * j : 3 * j + 3].mean()
        down = np.arange(shape[0])[2 * i : 2 * i + 2].mean()
        assert numbers[across, down] == f"{value:.2f}"
    assert_nothing_overlaps(figure)


def test_axes_whose_labels_are_all_shown_need_no_more_words():
    picture = make_picture([make_panel(weights(3, 3))], key_labels="abc", query_labels="abc")
    texts = {text.get_text() for text in draw(picture).findobj(Text)}
    assert {"Keys", "Queries"} <= texts


def test_dots_limit_no_picture_of_lines():
    drawn = draw(make_picture([make_panel(weights(3, 3))]))
    assert render(drawn, "svg", dpi=10_000).startswith(b"<?xml")


def test_a_last_cell_of_fewer_keys_ends_where_they_end():
    picture = make_picture([make_panel(weights(3, 3))], shape=(8, 8), block=(3, 3))
    axes = draw(picture).axes[0]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.5, 7.5), (7.5, -0.5))


def test_titles_of_all_maps_are_short_where_one_has_to_be():
    titles = ["head 1", "batch 1, head 2 of a very long name for a head"]
    picture = make_picture([make_panel(weights(2, 2), title=title) for title in titles])
    assert "h1" in {axes.get_title() for axes in draw(picture).axes}


def test_an_empty_line_of_a_title_takes_its_room():
    figure = draw(make_picture([make_panel(weights(3, 3))], title="a\n\nb"))
    places = {text.get_text(): text.get_position()[1] for text in figure.texts}
    height = figure.get_size_inches()[1]
    assert (places["a"] - places["b"]) * height == pytest.approx(0.48)


def png_with(*chunks):
    def packed(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    body = [(b"IHDR", bytes(13)), *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed(*chunk) for chunk in body)


def test_many_packed_texts_unfold_to_no_more_than_one_may():
    body = zlib.compress(b"x" * 2**20)
    found = read_texts(png_with(*((b"zTXt", b"t%d\0\0" % n + body) for n in range(50))))
    assert 0 < sum(map(len, found.values())) <= 4 * 2**20


def test_packed_texts_of_unicode_are_read():
    text = b"title\0\1\0en\0Titel\0" + zlib.compress("größer".encode())
    assert read_texts(png_with((b"iTXt", text))) == {"title": "größer"}
