"""The drawn figure: colours of cells, places and fonts of texts, its size, bytes and metadata."""

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
from matplotlib.image import imread
from matplotlib.text import Text
from picturing import looking, make_panel, make_picture, split
from process import long_but

from attncli.errors import InputError
from attncli.loading.pictures import picture_format, read_texts
from attncli.view.color import blues, diverging, ink
from attncli.view.figure import drawing
from attncli.view.figure.render import render
from attncli.view.pictures.sizes import NoRoomError

TOKENS = ["[CLS]", "the", "cat", "sat", "on", "$x$", "_a^b", "because", "[/INST]", "was", "tired"]
TOKENS += [".", "[SEP]"]
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


def test_numbers_stand_in_their_cells_in_readable_ink():
    figure = draw(make_picture([make_panel(TUTORIAL)]))
    numbers = {t.get_position(): t for t in figure.axes[0].texts}
    for (i, j), value in np.ndenumerate(np.array(TUTORIAL)):
        text = numbers[j, i]
        assert text.get_text() == f"{value:.2f}"
        assert to_rgb(text.get_color()) == to_rgb(ink(blues(value / 0.5761)))


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


# --- size ---------------------------------------------------------------------------------


def test_without_room_there_is_no_figure():
    picture = make_picture([make_panel(weights(20, 20))] * 12)
    with pytest.raises(NoRoomError, match="no room for the cells"):
        draw(picture, size=(2.0, 1.0))
    one = make_picture([make_panel(weights(20, 20))])
    with pytest.raises(NoRoomError, match="no room for numbers"):
        draw(one, size=(3.0, 3.0), annotate=True)
    assert not draw(one, size=(3.0, 3.0)).axes[0].texts


# --- fonts --------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["png", "svg", "pdf"])
def test_any_script_is_drawn_without_a_warning_and_svg_keeps_it_as_text(file_format):
    picture = make_picture(
        [make_panel(weights(10, 10))], query_labels=CHINESE, key_labels=CHINESE, title="标题 שלום"
    )
    data = render(draw(picture, annotate=False, dpi=50), file_format)
    assert picture_format(data) == file_format
    assert file_format != "svg" or "苹果" in data.decode()


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
