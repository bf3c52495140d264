"""The drawn figure: colours of cells, places and fonts of texts, its size, bytes and metadata."""

import math
import re
import struct
import warnings
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.font_manager import fontManager
from matplotlib.image import imread
from matplotlib.text import Text
from picturing import looking, make_panel, make_picture, split
from process import long_but

from attncli.errors import InputError
from attncli.loading.pictures import picture_format, read_texts
from attncli.view.color import blues, diverging, ink
from attncli.view.figure import drawing
from attncli.view.figure.render import render
from attncli.view.figure.style import letters_without_font
from attncli.view.pictures.sizes import NoRoomError, grid_columns

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


def draw(picture, **look):
    return drawing.draw(looking(picture, **look)).figure


def weights(rows, across, heads=None, seed=0):
    shape = (rows, across) if heads is None else (heads, rows, across)
    raw = np.random.default_rng(seed).random(shape) ** 4
    return raw / raw.sum(-1, keepdims=True)


def pixels_of(figure, panel=0):
    """Return a function from a place in a panel to the colour of the pixel there."""
    image = imread(BytesIO(render(figure, "png")))
    box = figure.axes[panel].transData

    def at(x, y):
        left, bottom = box.transform((x, y))
        return (image[image.shape[0] - 1 - int(bottom), int(left), :3] * 255).round().astype(int)

    return at


def texts_of(figure):
    """Return each text that is seen, with its box in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        figure.draw_without_rendering()
        return [
            (text.get_text(), text.get_window_extent(renderer))
            for text in figure.findobj(Text)
            if text.get_visible() and text.get_text().strip()
        ]


def words_of(figure):
    return [text for text, _ in texts_of(figure)]


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


# --- cells --------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["weights", "scores"])
def test_each_cell_and_the_colour_bar_have_the_colour_of_their_value(what):
    values = weights(7, 5) - (0.1 if what == "scores" else 0)
    picture = make_picture([make_panel(values)], what=what)
    figure = draw(picture, annotate=False)
    at = pixels_of(figure)
    color = blues if what == "weights" else diverging
    for (i, j), value in np.ndenumerate(values):
        share = value / picture.vmax
        expected = color(share if what == "weights" else 0.5 + share / 2)
        assert np.abs(at(j, i) - expected).max() <= 4
    at = pixels_of(figure, panel=-1)
    for share in (0.05, 0.95):
        assert np.abs(at(0.5, share) - color(share)).max() <= 8


@pytest.mark.parametrize("transparent", [False, True])
def test_hidden_cells_are_grey_and_hatched_and_explained(transparent):
    hidden = np.triu(np.ones((4, 4), bool), 1)
    picture = make_picture([make_panel(np.zeros((4, 4)), hidden)])
    figure = draw(picture, annotate=False, transparent=transparent)
    at = pixels_of(figure)
    spots = np.linspace(-0.4, 0.4, 31)
    seen = {tuple(at(3 + x, y).tolist()) for x in spots for y in spots}
    assert (205, 205, 205) in seen
    assert len(seen) > 2
    assert all(max(color) - min(color) <= 2 for color in seen)
    assert tuple(at(0, 3)) == blues(0)
    assert "hidden" in words_of(figure)
    assert "hidden" not in words_of(draw(make_picture([make_panel(np.zeros((4, 4)))])))


def test_a_transparent_figure_has_no_background():
    picture = make_picture([make_panel(TUTORIAL)])
    for transparent, alpha in ((False, 1), (True, 0)):
        image = imread(BytesIO(render(draw(picture, transparent=transparent), "png")))
        assert image.shape[2] == 4
        assert image[0, 0, 3] == alpha


@pytest.mark.parametrize(("count", "lines"), [(6, True), (40, False)])
def test_thin_lines_part_the_cells_of_small_maps(count, lines):
    at = pixels_of(draw(make_picture([make_panel(np.ones((count, count)))]), annotate=False))
    between = [at(0.5 + step, 1) for step in np.linspace(-0.05, 0.05, 21)]
    assert any(np.abs(color - blues(1)).max() > 4 for color in between) is lines


def test_numbers_stand_in_their_cells_in_readable_ink():
    figure = draw(make_picture([make_panel(TUTORIAL)]))
    numbers = {t.get_position(): t for t in figure.axes[0].texts}
    for (i, j), value in np.ndenumerate(np.array(TUTORIAL)):
        text = numbers[j, i]
        assert text.get_text() == f"{value:.2f}"
        assert to_rgb(text.get_color()) == to_rgb(ink(blues(value / 0.5761)))


@pytest.mark.parametrize("shape", [(8, 12), (7, 11)])
def test_numbers_stand_in_the_middle_of_pooled_cells(shape):
    values = weights(*(-(-size // wide) for size, wide in zip(shape, (2, 3), strict=True)))
    picture = make_picture([make_panel(values)], block=(2, 3), shape=shape)
    figure = draw(picture, annotate=True)
    numbers = {t.get_position(): t.get_text() for t in figure.axes[0].texts}
    for (i, j), value in np.ndenumerate(values):
        across = np.arange(shape[1])[3 * j : 3 * j + 3].mean()
        down = np.arange(shape[0])[2 * i : 2 * i + 2].mean()
        assert numbers[across, down] == f"{value:.2f}"
    assert_nothing_overlaps(figure)


@pytest.mark.parametrize(
    ("shape", "heads", "shown"), [((20, 20), 1, True), ((20, 21), 1, False), ((15, 14), 2, False)]
)
def test_four_hundred_cells_of_all_maps_have_numbers_unasked(shape, heads, shown):
    picture = make_picture([make_panel(np.full(shape, 0.5))] * heads)
    assert bool(draw(picture).axes[0].texts) is shown
    assert len(draw(picture, annotate=True).axes[0].texts) == math.prod(shape)
    assert not draw(picture, annotate=False).axes[0].texts


@pytest.mark.parametrize(("dpi", "size"), [(50, None), (50, (3.0, 3.0)), (150, (20.0, 20.0))])
def test_a_cell_never_gets_less_than_a_pixel(dpi, size):
    picture = make_picture([make_panel(np.zeros((1200, 1000)))])
    drawn = drawing.draw(looking(picture, dpi=dpi, size=size))
    drawn.figure.draw_without_rendering()
    box, sides = drawn.figure.axes[0].get_position(), drawn.figure.get_size_inches() * dpi
    assert drawn.picture.cells[0] <= math.ceil(box.height * sides[1])
    assert drawn.picture.cells[1] <= math.ceil(box.width * sides[0])
    assert any("largest of" in words for words in words_of(drawn.figure)) is (dpi == 50)


# --- texts --------------------------------------------------------------------------------


def longer(count):
    return [f"token{i}" for i in range(count)]


LABELLED = {
    "tutorial": ([make_panel(TUTORIAL)], None),
    "one": ([make_panel([[1.0]])], None),
    "tokens": ([make_panel(weights(13, 13))], TOKENS),
    "heads": (split(weights(13, 13, heads=12), names=["head"]), TOKENS),
    "five heads": (split(weights(12, 12, heads=5), names=["head"]), longer(12)),
    "chinese": ([make_panel(weights(10, 10))], CHINESE),
    "long": ([make_panel(weights(12, 12))], [f"{i}{'word ' * 11}{i}" for i in range(12)]),
    "100": ([make_panel(weights(100, 100))], longer(100)),
    "wide": ([make_panel(weights(3, 200))], None),
    "tall": ([make_panel(weights(200, 3))], None),
    "pooled": ([make_panel(weights(1500, 1300))], None),
    "hidden": ([make_panel(weights(9, 9), np.triu(np.ones((9, 9), bool), 1))], TOKENS[:9]),
    "extreme": ([make_panel([[1e-310, 1e308], [3.0, 0.0]])], None),
}


@pytest.mark.parametrize("name", long_but(LABELLED, "tutorial", "five heads", "long", "extreme"))
@pytest.mark.parametrize("points", long_but([9.0, 18.0], 9.0))
def test_no_text_overlaps_another_or_leaves_the_figure(name, points):
    panels, labels = LABELLED[name]
    picture = make_picture(
        panels, query_labels=labels, key_labels=labels, title="A title of many words " * 3
    )
    assert_nothing_overlaps(draw(picture, font_size=points))


@pytest.mark.parametrize(
    "wishes",
    [
        {"what": "scores", "vmax": 0.05},
        {"log": True, "vmax": 0.01},
        {"what": "difference", "scale_names": ("above 0: more than in w.npy", "above 0: more")},
    ],
)
def test_texts_of_the_colour_bar_do_not_overlap(wishes):
    for shape in ((4, 4), (1, 3)):
        values = weights(*shape) ** 3 - (0.1 if "what" in wishes else 0)
        assert_nothing_overlaps(draw(make_picture([make_panel(values)], **wishes)))


def test_labels_are_plain_text_and_thinned_ones_are_announced():
    figure = draw(make_picture([make_panel(weights(2, 13))], key_labels=TOKENS))
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == TOKENS
    assert not any(t.get_parse_math() for t in figure.findobj(Text) if "$" in t.get_text())
    thinned = draw(make_picture([make_panel(weights(2, 150))], key_labels=longer(150)))
    shown = [t.get_text() for t in thinned.axes[0].get_xticklabels()]
    assert shown == longer(150)[::2]
    assert "Keys (1 label in 2 shown)" in words_of(thinned)


def test_formulas_are_drawn_where_they_are_asked_for():
    picture = make_picture(
        [make_panel(weights(1, 2))], key_labels=[r"$\alpha_1$", "b"], title="$x$"
    )
    for math_ in (False, True):
        svg = render(draw(picture, math=math_), "svg").decode()
        assert (r">$\alpha_1$<" in svg) is not math_
        assert ("α" in svg) is math_
    wrong = make_picture([make_panel(weights(1, 2))], title=r"$\nosuch$")
    with pytest.raises(ValueError, match="nosuch"):
        render(draw(wrong, math=True), "svg")


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


# --- colour bar ---------------------------------------------------------------------------


def test_a_scale_that_ends_before_its_cells_points_on_and_says_so():
    long = np.tril(np.ones((200, 200))) / np.arange(1, 201)[:, None]
    figure = draw(make_picture([make_panel(long)]))
    at = pixels_of(figure, panel=-1)
    assert np.abs(at(0.5, 1.01) - blues(1)).max() <= 2
    shown = words_of(figure)
    assert "the scale ends at 0.036, the largest weight is 1" in shown
    assert "≥ 0.036" in shown
    assert_nothing_overlaps(figure)
    at = pixels_of(draw(make_picture([make_panel(long)], vmax=1)), panel=-1)
    assert at(0.5, 1.01).min() == 255
    below = pixels_of(draw(make_picture([make_panel([[0.9, 0.1, 1e-9]])], log=True)), panel=-1)
    assert np.abs(below(0.5, -0.04) - blues(0)).max() <= 8


@pytest.mark.parametrize(
    ("rows", "words"), [(4, "above 0: more than in w.npy"), (1, "above 0: more")]
)
def test_the_bar_of_a_difference_says_which_side_is_which(rows, words):
    values = weights(rows, 4) - 0.2
    figure = draw(
        make_picture(
            [make_panel(values)],
            what="difference",
            scale_names=("above 0: more than in w.npy", "above 0: more"),
        )
    )
    assert figure.axes[-1].get_ylabel() == words


# --- size ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(13.3, 7.5), (7.5, 13.3), (3.3, math.inf)])
@pytest.mark.parametrize("panels", [1, 4])
def test_a_figure_has_the_size_that_is_asked_for(size, panels):
    words = [f"word {n}" for n in range(20)]
    picture = make_picture(
        [make_panel(weights(20, 20), title=f"head {n}") for n in range(panels)],
        query_labels=words,
        key_labels=words,
    )
    figure = draw(picture, size=size)
    assert_nothing_overlaps(figure)
    across, up = figure.get_size_inches()
    assert across == size[0]
    box = figure.axes[0].get_position()
    if math.isinf(size[1]):
        assert box.width * across == pytest.approx(box.height * up, rel=0.1)
        return
    assert up == size[1]
    grid = [axes.get_position() for axes in figure.axes[:panels]]
    # Texts take an inch or two at most.
    assert (max(b.x1 for b in grid) - min(b.x0 for b in grid)) * across > across - 2.7
    assert (max(b.y1 for b in grid) - min(b.y0 for b in grid)) * up > up - 2.2


def test_text_has_the_size_that_is_asked_for():
    picture = make_picture([make_panel(TUTORIAL)], key_labels=["a", "b", "c"], title="title")
    for points in (9.0, 14.0):
        figure = draw(picture, font_size=points)
        sizes = {t.get_text(): t.get_fontsize() for t in figure.findobj(Text)}
        assert sizes["a"] == points
        assert sizes["title"] > sizes["Keys"] > points


def test_without_room_there_is_no_figure():
    picture = make_picture([make_panel(weights(20, 20))] * 12)
    with pytest.raises(NoRoomError, match="no room for the cells"):
        draw(picture, size=(2.0, 1.0))
    one = make_picture([make_panel(weights(20, 20))])
    with pytest.raises(NoRoomError, match="no room for numbers"):
        draw(one, size=(3.0, 3.0), annotate=True)
    assert not draw(one, size=(3.0, 3.0)).axes[0].texts


@pytest.mark.parametrize(
    ("count", "columns"),
    [(1, 1), (2, 2), (3, 3), (4, 2), (8, 4), (12, 4), (16, 4), (32, 8), (40, 8), (7, 4)],
)
def test_heads_make_a_grid_near_the_shape_of_a_page(count, columns):
    assert grid_columns(count, 1.0) == columns


# --- fonts --------------------------------------------------------------------------------


SCRIPTS = {"Devanagari": "नमस्ते", "Thai": "สวัสดี", "Arabic": "مرحبا", "Hebrew": "שלום", "CJK": "你好"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_whichever_installed_font_has_the_letters_draws_them(script):
    named = [entry.name for entry in fontManager.ttflist if script in entry.name]
    if not named and letters_without_font([SCRIPTS[script]]):
        pytest.skip(f"no font here for {script}")
    assert letters_without_font([SCRIPTS[script]]) == set()
    picture = make_picture([make_panel(TUTORIAL)], title=SCRIPTS[script])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render(draw(picture), "png")


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_any_script_is_drawn_without_a_warning_and_svg_keeps_it_as_text(file_format):
    picture = make_picture(
        [make_panel(weights(10, 10))], query_labels=CHINESE, key_labels=CHINESE, title="标题 שלום"
    )
    data = render(draw(picture, annotate=False, dpi=50), file_format)
    assert picture_format(data) == file_format
    assert file_format != "svg" or "苹果" in data.decode()


def test_a_reader_without_the_font_of_an_svg_takes_a_similar_one():
    label = "font-family: a"
    picture = make_picture([make_panel(weights(2, 2))], key_labels=[label, "b"])
    data = render(draw(picture), "svg").decode()
    families = re.findall(r'<text style="[^"]*font-family: ([^;"]*)', data)
    assert len(families) > 4
    assert set(families) == {"'DejaVu Sans', Verdana, sans-serif"}
    assert ">font-family: a<" in data


# --- bytes and metadata -------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_the_same_picture_is_the_same_bytes_and_metadata_comes_back(file_format):
    picture = make_picture([make_panel(TUTORIAL, [[False, False, True]])], title="<&> (x)")
    metadata = {"Software": "attncli 1.2", "Options": 'é 中 (a\\b) "q" </dc:description> &amp;\nx'}
    one = render(draw(picture, dpi=50), file_format, metadata=metadata)
    # A reader's own settings must not change the picture either.
    with rc_context({"font.size": 30, "axes.grid": True, "savefig.bbox": "tight"}):
        two = render(draw(picture, dpi=50), file_format, metadata=metadata)
    assert one == two
    assert read_texts(one) == metadata
    assert b"matplotlib.org" not in one.lower() or file_format == "svg"
    assert read_texts(render(draw(picture), file_format)) == {}


def png_with(*chunks):
    def packed(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    shape = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixels = (b"IDAT", zlib.compress(bytes(2)))
    body = [(b"IHDR", shape), *chunks, pixels, (b"IEND", b"")]
    return SIGNATURE + b"".join(packed(*chunk) for chunk in body)


def test_metadata_of_other_programs_is_read_and_damage_is_an_error():
    data = png_with(
        (b"tEXt", b"Author\0me"),
        (b"zTXt", b"Zipped\0\0" + zlib.compress(b"long")),
        (b"iTXt", b"Titel\0\0\0de\0Titel\0" + "ü".encode()),
        (b"iTXt", b"title\0\1\0en\0Titel\0" + zlib.compress("größer".encode())),
    )
    found = read_texts(data)
    assert found == {"Author": "me", "Zipped": "long", "Titel": "ü", "title": "größer"}
    bomb = png_with((b"zTXt", b"Bomb\0\0" + zlib.compress(bytes(5_000_000))))
    for wrong in (data[:30], bomb):
        with pytest.raises(InputError, match="damaged"):
            read_texts(wrong)
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


def test_many_packed_texts_unfold_to_no_more_than_one_may():
    body = zlib.compress(b"x" * 2**20)
    found = read_texts(png_with(*((b"zTXt", b"t%d\0\0" % n + body) for n in range(50))))
    assert 0 < sum(map(len, found.values())) <= 64 * 2**20
