"""Tables without a terminal: numbers, notation, crops, alignment, shades."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text
from terminal import columns

import attncli
from attncli import Attention, pose
from attncli.view import answer, tables
from attncli.view.color import HIDDEN, blues_256, xterm
from attncli.view.tables import Limits, Sheet, sheet_parts

ALL = Limits(rows=None, columns=None, heads=9, width=None, digits=4)


def sheet(values: Any, rows: int | None = None, **more: Any) -> Sheet:
    values = np.asarray(values, float)
    standard = {
        "title": "weights",
        "row_labels": None,
        "column_labels": None,
        "rows_are": "queries",
        "columns_are": "keys",
    }
    return Sheet(values=values, row_count=rows or len(values), **(standard | more))


def lines(one: Sheet, limits: Limits = ALL) -> list[str]:
    """The lines of a plain table."""
    encoding = "utf-8" if limits.unicode else "ascii"
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    screen = Console(file=stream, width=limits.width or 10**6, color_system=None)
    for part in sheet_parts(one, limits):
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


def test_numbers_are_right_aligned_under_their_headings() -> None:
    found = lines(sheet([[1, -200.5], [-10, 3]], column_labels=["a", "long name"]))
    ends = [[i for i, c in enumerate(line + " ") if c == " " and i and line[i - 1] != " "]
            for line in (found[3], found[4])]  # fmt: skip
    assert ends[0] == ends[1]
    assert found[1].index("long name") + len("long name") == ends[0][-1]


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([[0.123456789, 1]], 4, ["0.1235", "1.0000"]),
        ([[0.123456789, 1]], 0, ["0", "1"]),
        ([[1234567.0, 1]], 2, ["1.23e+06", "1.00"]),
        ([[-1e9, 0.5, 0, -np.inf]], 2, ["-1.00e+09", "0.50", "0.00", "-inf"]),
        ([[-3.4e38, 9999.5, -0.00001]], 2, ["-3.40e+38", "9999.50", "0.00"]),
        ([[-1e9, 12345, 1]], 2, ["-1.00e+09", "1.23e+04", "1.00e+00"]),
        ([[999999, 12345, 1]], 1, ["999999.0", "12345.0", "1.0"]),
        ([[-1e9, 0.00001234, 0]], 3, ["-1.000e+09", "1.234e-05", "0.000e+00"]),
        ([[0.00001234, 0]], 3, ["1.234e-05", "0.000e+00"]),
        ([[-np.inf, 1]], 2, ["-inf", "1.00"]),
        ([[-np.inf, -np.inf]], 2, ["-inf", "-inf"]),
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


def test_rows_that_were_never_computed_count_as_missing() -> None:
    assert "… 98 more queries" in lines(sheet(np.ones((2, 2)), rows=100))[5]


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


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(["é", "中文", "a", "ñandú"]), min_size=3, max_size=3), st.booleans()
)
def test_what_stdout_cannot_encode_is_escaped_before_the_layout(
    names: list[str], large: bool
) -> None:
    one = sheet(np.ones((3, 3)), rows=9, title="weights · head 0", row_labels=names,
                column_labels=names)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_MANY_CELLS", 0 if large else 9)
        found = lines(one, ALL._replace(unicode=False))
    assert all(line.isascii() for line in found)
    assert found[0] == "weights, head 0"
    assert set(found[2]) == {"-"}
    assert len({len(line) for line in found[1:6]}) == 1
    escaped = [name.encode("ascii", "backslashreplace").decode() for name in names]
    for line, name in zip(found[3:6], escaped, strict=True):
        assert line.split()[0] == name


def test_shades_of_256_colours_are_the_blues_that_were_chosen() -> None:
    weights = [0, 0.1, 0.25, 0.5, 1]
    styles = shades(sheet([weights], shaded=True), ALL._replace(depth="256"))
    assert [style.bgcolor.number for style in styles] == [xterm(blues_256(w)) for w in weights]


def test_labels_are_text_and_cut_in_the_middle() -> None:
    names = ["[bold]x", "[/INST]", "abcdefghijklmnopqrstuvwxyzabcdefgh"]
    rows = [line.split()[0] for line in lines(sheet(np.ones((3, 1)), row_labels=names))[3:6]]
    assert rows[:2] == names[:2]
    assert columns(rows[2]) == 24
    assert rows[2].startswith("abc")
    assert rows[2].endswith("fgh")


@settings(max_examples=20, deadline=None)
@given(NAMES, st.integers(1, 12), st.booleans())
def test_a_large_table_looks_as_a_small_one(names: list[str], count: int, many: bool) -> None:
    values = np.random.default_rng(count).normal(size=(12, count)) * 100
    one = sheet(values, row_labels=names, column_labels=names[:count] if many else None)
    quick = lines(one, ALL._replace(depth="none"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_MANY_CELLS", 0)
        assert quick == lines(one)
    assert quick == lines(one)
    assert len(quick) == 12 + 4


def test_a_pipe_does_not_wait_for_rich() -> None:
    _, table, _ = sheet_parts(sheet(np.ones((3, 3))), ALL._replace(depth="none"))
    assert isinstance(table, Text)
    assert not table.spans


def shades(one: Sheet, limits: Limits = ALL) -> list[Any]:
    """The styles of the cells of a table of one row."""
    _, _, _, row, *_ = sheet_parts(one, limits)
    assert isinstance(row, Text)
    return [
        span.style
        for span in row.spans
        if span.style != "bold" and row.plain[span.start : span.end].strip()
    ]


def test_the_largest_weight_that_is_shown_is_darkest() -> None:
    small, whole = (shades(sheet([[n, n / 2]], shaded=True)) for n in (0.003, 1.0))
    assert small == whole


def test_heads_share_one_scale_and_a_line_says_which() -> None:
    weights = np.array([[[0.8, 0.2]], [[0.4, 0.6]]])
    problem = pose(np.ones((2, 1, 1)), np.ones((2, 2, 1)), layout="hsd")
    solved = Attention(weights=weights)
    parts = [*answer.answer_parts(problem, solved, ["weights"], ALL, threads=1)]
    texts = [part for part in parts if isinstance(part, Text)]
    assert [text.plain for text in texts].count("darkest blue: 0.8000") == 2
    (row,) = [text for text in texts if "0.6000" in text.plain]
    own = [span.style for span in row.spans if row.plain[span.start : span.end] == "0.6000"]
    assert own == shades(sheet([[0.8, 0.6]], shaded=True))[1:]
    # Of what is cropped nothing is told.
    cropped = answer.answer_parts(problem, solved, ["weights"], ALL._replace(columns=1), threads=1)
    lines_ = [part.plain for part in cropped if isinstance(part, Text)]
    assert lines_.count("darkest blue: 0.8000") == 2
    second = Attention(weights=weights[::-1, :, ::-1])
    cropped = answer.answer_parts(problem, second, ["weights"], ALL._replace(columns=1), threads=1)
    lines_ = [part.plain for part in cropped if isinstance(part, Text)]
    assert lines_.count("darkest blue: 0.6000") == 2


def test_backgrounds_leave_no_gaps_between_the_numbers() -> None:
    _, _, _, row, *_ = sheet_parts(sheet([[0.25, 0.75]], shaded=True), ALL)
    assert isinstance(row, Text)
    covered = {i for span in row.spans if span.style != "bold" for i in range(span.start, span.end)}
    assert covered == set(range(1, len(row.plain)))


def test_hidden_keys_are_grey_and_a_line_says_so() -> None:
    one = sheet([[0.5, 0.0, 0.0]], shaded=True)._replace(hidden=np.array([[False, False, True]]))
    *_, row, words, _ = sheet_parts(one, ALL)
    assert isinstance(words, Text)
    assert words.plain == "darkest blue: 0.5000 · grey: hidden"
    assert isinstance(row, Text)
    greys = [span for span in row.spans if getattr(span.style, "bgcolor", None)]
    grey = "#{:02x}{:02x}{:02x}".format(*HIDDEN)
    assert [span.style.bgcolor.name == grey for span in greys[-2:]] == [True, True]
    assert sum(span.style.bgcolor.name == grey for span in greys) == len(greys) / 3
    without = sheet_parts(one, ALL._replace(depth="none"))
    assert "grey" not in "".join(part.plain for part in without if isinstance(part, Text))


def test_only_shaded_sheets_have_a_background() -> None:
    assert shades(sheet([[0.2]])) == []
    style = shades(sheet([[0.2]], shaded=True))[0]
    assert style.bgcolor is not None


@pytest.mark.parametrize("depth", ["none", "truecolor"])
@pytest.mark.parametrize("width", [20, 80])
def test_columns_that_do_not_fit_stand_below_the_others_where_they_are_asked_for(
    width: int, depth: Any
) -> None:
    values = np.arange(60.0).reshape(2, 30) / 100
    limits = ALL._replace(width=width, depth=depth, stacked=True)
    found = lines(sheet(values, row_labels=["a", "b"], shaded=True), limits)
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


@pytest.mark.parametrize("width", [20, 30])
def test_labels_leave_room_for_numbers(width: int) -> None:
    names = [f"internationalisation-number-{n}" for n in range(3)]
    values = np.array([[-1.288982486e7], [0.5], [0.25]])
    found = lines(sheet(values, row_labels=names), ALL._replace(width=width, digits=6))
    rows = [line.split() for line in found[3:6]]
    assert [float(row[1]) for row in rows] == [-1.288982e07, 0.5, 0.25]
    assert len({row[0] for row in rows}) == 3
    assert all(columns(line) <= width for line in found[1:6])


def test_no_weight_is_palest_and_all_of_it_darkest() -> None:
    styles = shades(sheet([[0, 0.25, 0.5, 0.75, 1]], shaded=True))
    sums = [sum(style.bgcolor.triplet) for style in styles]
    assert sums == sorted(sums, reverse=True)
    assert len(set(sums)) == 5
    assert [style.color.triplet.hex for style in styles] == ["#000000"] * 3 + ["#ffffff"] * 2


def test_cropped_tables_are_computed_on_as_many_threads_as_are_asked_for(threads_asked):
    asked = threads_asked(answer)
    problem = pose(np.eye(3), np.eye(3))
    limits = ALL._replace(rows=2)
    assert list(answer.answer_parts(problem, Attention(), ["weights"], limits, threads=3))
    assert asked == [3]


def test_labels_keep_some_letters_in_a_narrow_terminal() -> None:
    narrow = ALL._replace(width=12, digits=12)
    found = lines(sheet([[0.5]], row_labels=["alpha"], column_labels=["x"]), narrow)
    assert any(line.startswith("al…a") for line in found)


def test_a_heading_is_as_wide_as_its_widest_number() -> None:
    wide = ALL._replace(width=80, digits=17)
    assert "internationalise" in lines(sheet([[0.5]], column_labels=["internationalise"]), wide)[1]


def test_only_weights_are_told_of_sinks_and_hidden_keys() -> None:
    problem = pose(np.eye(3), np.eye(3), np.eye(3), causal=True, sinks=[0.5])
    solved = attncli.solve(problem, ("weights", "scores", "context", "lse"))
    names = ["weights", "scores", "context", "lse"]
    parts = answer.answer_parts(problem, solved, names, ALL, threads=1)
    texts = [part.plain for part in parts if isinstance(part, Text)]
    assert sum("the sink takes the rest" in text for text in texts) == 1
    assert sum("grey: hidden" in text for text in texts) == 1


def test_what_is_cropped_neither_shades_nor_is_told_of() -> None:
    one = sheet([[0.5, 0.25], [1.0, 0.0]], shaded=True)
    one = one._replace(hidden=np.array([[False, False], [False, True]]))
    _, _, _, row, *rest = sheet_parts(one, ALL._replace(rows=1))
    (alone,) = [*sheet_parts(sheet([[0.5, 0.25]], shaded=True), ALL)][3:4]
    assert isinstance(row, Text)
    assert isinstance(alone, Text)
    assert row.spans == alone.spans
    assert not any("grey" in part.plain for part in rest if isinstance(part, Text))


def test_columns_that_stand_below_others_have_their_own_shades() -> None:
    values = np.arange(1.0, 31) / 30
    limits = ALL._replace(width=40, stacked=True)
    parts = [*sheet_parts(sheet([values], shaded=True), limits)]
    styles = [
        span.style.bgcolor.name
        for part in parts
        if isinstance(part, Text)
        for span in part.spans
        if getattr(span.style, "bgcolor", None) and part.plain[span.start : span.end].strip()
    ]
    assert styles == [style.bgcolor.name for style in shades(sheet([values], shaded=True))]


def test_hidden_keys_are_grey_in_256_colours() -> None:
    one = sheet([[0.5, 0.0]], shaded=True)._replace(hidden=np.array([[False, True]]))
    *_, row, _, _ = sheet_parts(one, ALL._replace(depth="256"))
    assert isinstance(row, Text)
    grey = [span.style.bgcolor for span in row.spans if getattr(span.style, "bgcolor", None)][-1]
    assert grey.number == xterm(HIDDEN)


@pytest.mark.filterwarnings("ignore::attncli.AttnWarning")
def test_keys_that_another_batch_entry_hides_are_not_grey() -> None:
    problem = pose(*[np.ones((2, 3, 3))] * 2, kv_lengths=[3, 2])
    solved = attncli.solve(problem, ("weights",))
    parts = list(answer.answer_parts(problem, solved, ["weights"], ALL, threads=1))
    texts = [part.plain for part in parts if isinstance(part, Text)]
    (place,) = [n for n, text in enumerate(texts) if "grey: hidden" in text]
    assert place > next(n for n, text in enumerate(texts) if "batch 1" in text)


def test_backgrounds_reach_over_the_blanks_before_a_short_number() -> None:
    one = sheet([[0.25, 0.75]], shaded=True, column_labels=["a long name", "b"])
    _, _, _, row, *_ = sheet_parts(one, ALL)
    assert isinstance(row, Text)
    covered = {i for span in row.spans if span.style != "bold" for i in range(span.start, span.end)}
    assert covered == set(range(1, len(row.plain)))


def test_the_mean_of_heads_is_grey_where_every_head_hides() -> None:
    mask = [[[1, 0, 0]] * 2, [[1, 1, 0]] * 2]
    problem = pose(np.ones((1, 2, 2, 1)), np.ones((1, 2, 3, 1)), mask=mask)
    parts = answer.average_parts(problem, np.array([[[0.75, 0.25, 0.0]] * 2]), ALL, threads=1)
    grey = "#{:02x}{:02x}{:02x}".format(*HIDDEN)
    rows = [
        [
            part.plain[span.start : span.end].strip()
            for span in part.spans
            if getattr(span.style, "bgcolor", None) and span.style.bgcolor.name == grey
        ]
        for part in parts
        if isinstance(part, Text) and "0.2500" in part.plain
    ]
    assert [[text for text in row if text] for row in rows] == [["0.0000"]] * 2


def test_the_mean_of_heads_is_told_of_sinks() -> None:
    problem = pose(np.ones((1, 2, 2, 1)), np.ones((1, 2, 3, 1)), sinks=[0.5, 1.0])
    title = next(iter(answer.average_parts(problem, np.full((1, 2, 3), 0.2), ALL, threads=1)))
    assert isinstance(title, Text)
    assert title.plain.endswith(
        "mean of the heads · rows add up to less than 1: the sink takes the rest"
    )


def test_nothing_is_told_of_hidden_keys_where_there_are_none() -> None:
    one = sheet([[0.5, 0.5]], shaded=True)._replace(hidden=np.zeros((1, 2), bool))
    assert not any("grey" in part.plain for part in sheet_parts(one, ALL) if isinstance(part, Text))


@pytest.mark.parametrize("depth", ["256", "truecolor"])
def test_weights_that_are_all_zero_have_shades(depth: Any) -> None:
    zeros = shades(sheet([[0.0, 0.0]], shaded=True), ALL._replace(depth=depth))
    palest = shades(sheet([[0.0, 1.0]], shaded=True), ALL._replace(depth=depth))[0]
    assert [style.bgcolor for style in zeros] == [palest.bgcolor] * 2
