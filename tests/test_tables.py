"""Tables without a terminal: numbers, notation, crops, alignment, shades."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from terminal import columns

from attncli.view.color import HIDDEN, xterm
from attncli.view.limits import Limits
from attncli.view.sheets import Sheet, sheet_parts

if TYPE_CHECKING:
    from rich.text import Text

ALL = Limits(depth="truecolor")


def sheet(values: Any, rows: int | None = None, **more: Any) -> Sheet:
    values = np.asarray(values, float)
    standard = {
        "title": "weights",
        "labels": (more.pop("row_labels", None), more.pop("column_labels", None)),
    }
    shape = rows or len(values), values.shape[1]
    return Sheet(values=values, counts=shape, **(standard | more))


def lines(one: Sheet, limits: Limits = ALL) -> list[str]:
    """The lines of a plain table."""
    encoding = "utf-8" if limits.unicode else "ascii"
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    screen = Console(file=stream, width=limits.width or 10**6, color_system=None)
    for part in sheet_parts([one], limits):
        screen.print(part, highlight=False)
    stream.flush()
    return stream.buffer.getvalue().decode().splitlines()


def cells(one: Sheet, limits: Limits = ALL) -> list[list[str]]:
    """The words of the rows below the line."""
    found = lines(one, limits)
    return [line.split() for line in found[3 : found.index("")] if not line.startswith("…")]


def test_a_table_has_a_title_headings_a_line_and_rows() -> None:
    found = lines(sheet([[0.5, 0.25], [1, 0]], row_labels=["a", "b"], column_labels=["x", "y"]))
    assert found[0] == "weights"
    assert found[1].split() == ["x", "y"]
    assert set(found[2]) == {"─"}
    assert [line.split() for line in found[3:5]] == [
        ["a", "0.5000", "0.2500"],
        ["b", "1.0000", "0.0000"],
    ]
    assert found[5:] == [""]


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([[0.123456789, 1]], 4, ["0.1235", "1.0000"]),
        ([[1234567.0, 1]], 2, ["1.23e+06", "1.00"]),
        ([[-1e9, 0.5, 0, -np.inf]], 2, ["-1.00e+09", "0.50", "0.00", "-inf"]),
        ([[0.00001234, 0]], 3, ["1.234e-05", "0.000e+00"]),
        ([[-np.inf, 1]], 2, ["-inf", "1.00"]),
        ([[0, 0]], 2, ["0.00", "0.00"]),
    ],
)
def test_one_notation_a_table_and_another_for_huge_numbers(
    values: Any, digits: int, expected: list[str]
) -> None:
    limits = Limits(rows=None, columns=None, heads=9, width=None, digits=digits)
    assert cells(sheet(values), limits) == [["0", *expected]]


def test_a_crop_says_what_is_missing() -> None:
    limits = Limits(rows=2, columns=3, heads=9, width=None, digits=1)
    found = lines(sheet(np.ones((5, 7))), limits)
    assert len(cells(sheet(np.ones((5, 7))), limits)) == 2
    assert [len(row) for row in cells(sheet(np.ones((5, 7))), limits)] == [4, 4]
    assert found[5] == (
        "… 3 more queries and 4 more keys "
        "(--max-rows, --max-cols; --save and --format json have all)"
    )


NAMES = st.lists(
    st.sampled_from(["a", "[pad]", "中文字", "e\u0301", "a\x1b[0m", "x" * 50, "\n", ""]),
    min_size=12,
    max_size=12,
)


@settings(max_examples=30, deadline=None)
@given(NAMES, st.integers(30, 120), st.integers(0, 12))
def test_no_line_is_longer_than_the_window(names: list[str], width: int, digits: int) -> None:
    values = np.random.default_rng(width).normal(size=(12, 12)) * 100
    limits = Limits(rows=None, columns=None, heads=9, width=width, digits=digits)
    found = lines(sheet(values, row_labels=names, column_labels=names), limits)
    table = found[1:15]
    # At least one column is shown, however narrow the window.
    least = 24 + 2 + max(12, digits + 6)
    assert all(columns(line) <= max(width, least) for line in table)
    assert not any("\x1b" in line for line in found)


def table(one: Sheet, limits: Limits = ALL) -> Text:
    """The table of a sheet, as Rich gets it."""
    _, found, *_ = sheet_parts([one], limits)
    return found


def shades(one: Sheet, limits: Limits = ALL) -> list[Any]:
    """The styles with a background in a table, cell by cell."""
    spans = sorted(table(one, limits).spans, key=lambda span: span.start)
    return [span.style for span in spans if getattr(span.style, "bgcolor", None)]


def inks(text: Any) -> list[str]:
    """The colours of the ink in a table."""
    styles = [span.style for span in text.spans]
    return [style.color.name for style in styles if getattr(style, "color", None)]


def test_the_largest_weight_that_is_shown_is_darkest() -> None:
    small, whole = (shades(sheet([[n, n / 2]], shaded=True)) for n in (0.003, 1.0))
    assert small == whole
    # Of what is cropped nothing is told.
    one = sheet([[0.5, 0.25], [1.0, 0.0]], shaded=True, hidden=np.array([[0, 0], [0, 1]], bool))
    assert shades(one, ALL._replace(rows=1)) == shades(sheet([[0.5, 0.25]], shaded=True))
    told = lines(one, ALL._replace(rows=1))
    assert "darkest blue: 0.5000" in told
    assert not any("grey" in line for line in told)


def test_hidden_keys_are_grey_and_a_line_says_so() -> None:
    one = sheet([[0.5, 0.0, 0.0]], shaded=True, hidden=np.array([[False, False, True]]))
    assert lines(one)[-2:] == ["darkest blue: 0.5000 · grey: hidden", ""]
    grey = "#{:02x}{:02x}{:02x}".format(*HIDDEN)
    # Grey ink without a background: what is hidden recedes.
    assert inks(table(one, ALL)).count(grey) == 1
    assert len(shades(one)) == 2
    assert f"color({xterm(HIDDEN)})" in inks(table(one, ALL._replace(depth="256")))
    assert not any("grey" in line for line in lines(one, ALL._replace(depth="none")))
    seen = sheet([[0.5, 0.5]], shaded=True, hidden=np.zeros((1, 2), bool))
    assert not any("grey" in line for line in lines(seen))


def test_a_large_table_has_no_shades() -> None:
    large = sheet(np.ones((200, 101)) / 101, shaded=True)
    assert shades(large) == []
    assert len(shades(large._replace(values=large.values[:, :100]))) == 20_000


@pytest.mark.parametrize("depth", ["none", "truecolor"])
@pytest.mark.parametrize("width", [20, 80])
def test_columns_that_do_not_fit_stand_below_the_others_where_they_are_asked_for(
    width: int, depth: Any
) -> None:
    values = np.arange(60.0).reshape(2, 30) / 100
    limits = ALL._replace(width=width, depth=depth, stacked=True)
    found = lines(sheet(values, row_labels=["a", "b"]), limits)
    assert all(columns(line) <= width for line in found)
    tables_of = "\n".join(found[1:]).strip("\n").split("\n\n")
    assert len(tables_of) == {20: 15, 80: 4}[width]
    headings = [word for one in tables_of for word in one.split("\n")[0].split()]
    assert headings == [str(n) for n in range(30)]
    for name, row in (("a", 2), ("b", 3)):
        shown = [one.split("\n")[row].split() for one in tables_of]
        assert {words[0] for words in shown} == {name}
        numbers = [float(word) for words in shown for word in words[1:]]
        assert numbers == values[row - 2].tolist()


def test_large_problems_compute_what_is_shown(folder, attncli) -> None:
    """Above 4 million scores, tables come from a part, which has the numbers of the whole."""
    random = np.random.default_rng(0)
    q, k = (random.normal(size=(6, 900, 4)) for _ in range(2))
    np.save("q.npy", q)
    np.save("k.npy", k)
    words = ["compute", "q.npy", "k.npy", "--layout", "hsd", "--max-rows", "2", "--max-cols", "3"]
    text = attncli(*words, "--show", "weights,lse", "--digits", "9").good().text
    scores = q @ k.transpose(0, 2, 1) / 2
    weights = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    for head in range(6):
        block = text.split(f"weights · head {head}\n")[1].split("\n")
        rows = [[float(word) for word in line.split()[1:]] for line in block[2:4]]
        np.testing.assert_allclose(rows, weights[head, :2, :3], rtol=1e-4)
        assert block[4].startswith("… 898 more queries and 897 more keys")
    mean = attncli(*words, "--show", "weights", "--average-heads").good().text.split("\n")
    rows = [[float(word) for word in line.split()[1:]] for line in mean[3:5]]
    np.testing.assert_allclose(rows, weights.mean(axis=0)[:2, :3], atol=6e-5)
