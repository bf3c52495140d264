"""What `compute` gives: formats read back by other readers, files, picks and crops."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from oracle import attention_oracle
from process import Ran, run

from attncli.cli import output
from attncli.loading import read_array

Run = Callable[..., Ran]
Q, K = [[1.0, 0, 1], [0, 1, 1]], [[1.0, 0, 1], [1, 1, 0], [0, 1, 1]]
V = [[1.0, 2], [3, 4], [5, 6]]
TUTORIAL = attention_oracle(Q, K, V)
FILES = ("q.csv", "k.csv", "v.csv")


def read_csv(data: bytes, delimiter: str = ",") -> list[list[float]]:
    return [
        [float(cell) for cell in row]
        for row in csv.reader(io.StringIO(data.decode()), delimiter=delimiter)
    ]


# One array is the context unless another is named.
READERS: dict[str, Callable[[bytes], dict[str, Any]]] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "csv": lambda data: {"context": read_csv(data)},
    "tsv": lambda data: {"context": read_csv(data, "\t")},
    "npy": lambda data: {"context": np.load(io.BytesIO(data))},
    "npz": lambda data: dict(np.load(io.BytesIO(data))),
}


@pytest.mark.parametrize("kind", READERS)
def test_each_format_is_read_back_by_another_reader(
    kind: str, tutorial: Path, attncli: Run
) -> None:
    found = READERS[kind](attncli("compute", *FILES, "--format", kind).good().out)
    assert set(found) - {"schema"} == ({"weights", "context"} if len(found) > 1 else {"context"})
    for name in set(found) - {"schema"}:
        np.testing.assert_allclose(found[name], TUTORIAL[name], rtol=1e-15)


@pytest.mark.parametrize("kind", ["json", "yaml", "csv", "tsv"])
def test_text_formats_hold_every_digit(kind: str, tutorial: Path, attncli: Run) -> None:
    words = ["compute", *FILES, "--digits", "1", "--format"]
    exact = np.load(io.BytesIO(attncli(*words, "npy").out))
    np.testing.assert_array_equal(READERS[kind](attncli(*words, kind).out)["context"], exact)


@pytest.mark.parametrize("kind", ["text", "markdown"])
def test_explain_takes_no_formulas_without_decimals(
    kind: str, tutorial: Path, attncli: Run
) -> None:
    ran = attncli("explain", *FILES, "--digits", "0", "-f", kind)
    assert (ran.code, ran.out) == (2, b"")
    assert ran.messages == [
        "error: --digits: expected a number from 1 to 17 for explain; found 0",
        "hint: its formulas do not add up without decimals: --digits 2 shows two",
    ]


def test_json_carries_its_schema_and_null_for_hidden_scores(tutorial: Path, attncli: Run) -> None:
    words = ["--causal", "--causal-align", "top-left", "--show", "scores", "-f", "json"]
    found = attncli("compute", *FILES, *words).good().json
    assert list(found) == ["schema", "scores"]
    assert found["schema"] == 1
    assert found["scores"][0][1:] == [None, None]
    assert found["scores"][1][2] is None


@pytest.mark.parametrize("name", ["weights", "context", "scores", "raw", "capped", "lse"])
def test_show_names_the_one_array(name: str, tutorial: Path, attncli: Run) -> None:
    found = read_csv(attncli("compute", *FILES, "--show", name, "-f", "csv").good().out)
    expected = TUTORIAL[name].reshape(2, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_save_writes_named_arrays_and_all_of_them(tutorial: Path, attncli: Run) -> None:
    words = ["--save", "context=c.csv", "--save", "weights=w.npy", "--save", "lse=l.tsv"]
    words += ["--save", "all.npz", "--save", "all.json", "--save", "c.tsv"]
    ran = attncli("compute", *FILES, *words).good()
    assert ran.text.startswith("weights\n")
    np.testing.assert_allclose(np.load("w.npy"), TUTORIAL["weights"])
    np.testing.assert_allclose(read_csv(Path("c.csv").read_bytes()), TUTORIAL["context"])
    np.testing.assert_allclose(read_csv(Path("c.tsv").read_bytes(), "\t"), TUTORIAL["context"])
    np.testing.assert_allclose(read_csv(Path("l.tsv").read_bytes()), TUTORIAL["lse"][:, None])
    with np.load("all.npz") as archive:
        assert sorted(archive) == ["context", "weights"]
    assert json.loads(Path("all.json").read_text())["schema"] == 1


def test_nothing_is_saved_where_one_of_the_outputs_is_refused(tutorial: Path, attncli: Run) -> None:
    ran = attncli("compute", *FILES, "--save", "new.csv", "--save", "q.csv")
    assert ran.code == 2
    assert not Path("new.csv").exists()
    assert Path("q.csv").read_text() == "1,0,1\n0,1,1\n"


def test_an_archive_that_a_member_was_read_from_is_not_written_over(
    folder: Path, attncli: Run
) -> None:
    np.savez("p.npz", a=np.eye(2), b=np.eye(2))
    before = Path("p.npz").read_bytes()
    ran = attncli("compute", "p.npz#a", "p.npz#b", "--save", "p.npz")
    assert ran.code == 2
    assert "the output p.npz is the same file as the input p.npz" in ran.messages[0]
    assert Path("p.npz").read_bytes() == before


def test_batch_and_head_choose_one_matrix(folder: Path, attncli: Run) -> None:
    numbers = np.random.default_rng(0).normal(size=(2, 3, 2, 4))
    np.save("x.npy", numbers)
    expected = attention_oracle(numbers, numbers, numbers)
    words = ["compute", *["x.npy"] * 3]
    one = attncli(*words, "--batch", "1", "--head", "2", "-f", "json").good().json
    np.testing.assert_allclose(one["weights"], expected["weights"][1, 2], rtol=1e-12)
    np.testing.assert_allclose(one["context"], expected["context"][1, 2], rtol=1e-12)
    head = attncli(*words, "--head", "0", "-f", "json").good().json
    np.testing.assert_allclose(head["weights"], expected["weights"][:, 0], rtol=1e-12)
    titles = attncli(*words, "--batch", "1", "--head", "2").good().text
    assert "weights · batch 1 · head 2" in titles
    assert attncli(*words).good().text.count("weights · batch") == 6


def test_a_pipe_gets_wide_tables_whole_and_plain(folder: Path, attncli: Run) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 60))
    np.save("q.npy", numbers)
    np.save("k.npy", np.random.default_rng(1).normal(size=(60, 60)))
    text = attncli("compute", "q.npy", "k.npy").good().text
    assert "\x1b" not in text
    rows = text.splitlines()
    assert [len(row.split()) for row in rows[3:6]] == [61, 61, 61]
    assert len(rows[3]) > 400


def test_a_large_table_is_cropped_and_says_so(folder: Path) -> None:
    for name in "qkv":
        np.save(f"{name}.npy", np.random.default_rng(ord(name)).normal(size=(512, 16)))
    text = run("compute", "q.npy", "k.npy", "v.npy", cwd=folder).good().text
    lines = text.splitlines()
    assert len(lines) < 150
    assert lines[67] == (
        "… 448 more queries and 448 more keys "
        "(--max-rows, --max-cols; --save and --format json have all)"
    )


def test_max_rows_and_max_cols_say_how_much_is_shown(tutorial: Path, attncli: Run) -> None:
    words = ["compute", *FILES, "--show", "weights"]
    cropped = attncli(*words, "--max-rows", "1", "--max-cols", "2").good().text.splitlines()
    assert cropped[3].split() == ["0", "0.4711", "0.2645"]
    assert cropped[4].startswith("… 1 more query and 1 more key (")
    np.save("q.npy", np.ones((70, 2)))
    whole = attncli("compute", "q.npy", "q.npy", "--max-rows", "0", "--max-cols", "0").good()
    assert len(whole.text.splitlines()) == 70 + 4
    assert "more" not in whole.text


def test_several_outputs_go_into_one_file_by_their_names(tutorial: Path, attncli: Run) -> None:
    attncli("compute", *FILES, "--save", "weights,lse,weights=w.npz").good()
    assert set(np.load("w.npz")) == {"weights", "lse"}
    ran = attncli("compute", *FILES, "--save", "weights,lse=w.csv")
    assert ran.messages[0] == "error: csv holds one array; found weights and lse"
    ran = attncli("compute", *FILES, "--save", "weights,les=w.npz")
    assert ran.messages[0].endswith("found 'les'")
    assert not Path("w.csv").exists()


def test_figures_go_into_csv_and_tsv(tutorial: Path, attncli: Run) -> None:
    lines = attncli("compute", *FILES, "--show", "stats", "-f", "csv").good().text.splitlines()
    assert lines[0].startswith("queries,left_out,entropy")
    assert lines[1].startswith("2,0,")
    attncli("compute", *FILES, "--show", "weights", "--save", "top=top.tsv").good()
    rows = [line.split("\t") for line in Path("top.tsv").read_text().splitlines()]
    assert rows[0] == ["query", "rank", "key_index", "key_weight"]
    assert [row[:3] for row in rows[1:4]] == [["0", "1", "0"], ["0", "2", "1"], ["0", "3", "2"]]
    ran = attncli("compute", *FILES, "--show", "stats,top", "-f", "csv")
    hint = "hint: name one (--show stats, --save stats=FILE), or use json or yaml"
    assert (ran.code, ran.messages[1]) == (2, hint)


def test_packed_contexts_that_are_left_out_are_told(folder: Path, attncli: Run) -> None:
    np.save("x.npy", np.ones((20, 3, 8)))
    line = ["compute", "x.npy", "x.npy", "x.npy", "--heads", "2", "--show", "context"]
    assert "… 4 more of 20 batch entries (--batch chooses some;" in attncli(*line).good().text
    more = attncli(*line[:4], "--layout", "sbd", "--heads", "2").good().text
    assert "more of" not in more  # (L, B): 3 batch entries of 2 heads
    np.save("x.npy", np.ones((3, 3, 8)))
    assert "more of" not in attncli(*line).good().text


def test_statistics_are_computed_once_for_all_destinations(
    tutorial: Path, attncli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attncli.summaries import stats

    calls = []
    right = stats.statistics
    monkeypatch.setattr(stats, "statistics", lambda *a, **k: calls.append(a) or right(*a, **k))
    line = ["compute", "q.csv", "k.csv", "--show", "stats", "-f", "json"]
    told = attncli(*line, "--save", "a.json", "--save", "b.json").good().json
    assert len(calls) == 1
    assert json.loads(Path("b.json").read_text()) == told
    assert attncli("compute", "q.csv", "k.csv", "--show", "stats", "--save", "c.json").good()
    assert len(calls) == 2


def test_a_mean_of_weights_counts_queries_that_see_nothing(folder: Path, attncli: Run) -> None:
    np.save("x.npy", np.ones((2, 2100, 1)))
    mask = np.ones((2100, 2100), np.bool_)
    mask[0] = False
    np.save("m.npy", mask)
    line = ["compute", "x.npy", "x.npy", "--layout", "hsd", "--mask", "m.npy", "--average-heads"]
    ran = attncli(*line, "--show", "weights").good()
    assert ran.messages == [
        "warning: 2 of 4200 queries see no key: weights and context are 0 there, not NaN"
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--show", "weights,stats", "--save", "a.npz"], "NPZ holds only arrays; found stats"),
        (["--show", "weights", "--save", "a.csv"], "CSV holds a matrix, but weights has shape"),
        (["--save", "context=a.tsv"], "TSV holds a matrix, but context has shape (2, 5, 6)"),
        (["--save", "lse=none/a.npy"], "cannot write none/a.npy: the folder"),
        (["-f", "csv"], "CSV holds a matrix, but context has shape"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(
    words: list[str], message: str, folder: Path, attncli: Run
) -> None:
    np.save("q.npy", np.ones((2, 5, 6)))
    ran = attncli("compute", *["q.npy"] * 3, "--save", "weights=w.npy", *words)
    assert (ran.code, ran.out) == (2, b"")
    assert message in ran.messages[-2 if ran.messages[-1].startswith("hint") else -1]
    assert [path.name for path in folder.iterdir()] == ["q.npy"]
    # With one batch entry all of this can be saved, but for what has no folder or no array.
    if "shape" in message:
        attncli("compute", *["q.npy"] * 3, "--batch", "0", *words).good()


@pytest.mark.parametrize("saved", [["a.npy"], ["a.npy", "b.npy"]])
def test_large_weights_are_saved_as_often_as_asked_and_shown_too(
    saved: list[str], tutorial: Path, attncli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_HELD_CELLS", 3)
    saves = [word for name in saved for word in ("--save", f"weights={name}")]
    words = ["q.csv", "k.csv", "v.csv", *saves]
    shown = attncli("compute", "-f", "json", "--show", "weights", *words).good().json["weights"]
    assert np.any(shown)
    for name in saved:
        np.testing.assert_array_equal(np.load(name), shown)
    # Not shown, they are written where they are computed.
    attncli("compute", "--show", "context", *words).good()
    for name in saved:
        np.testing.assert_array_equal(np.load(name), shown)


@pytest.fixture
def heads(folder: Path) -> np.ndarray:
    """Three heads of two batch entries."""
    query = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    np.save("q.npy", query)
    return query


@pytest.mark.parametrize("more", [(), ("--average-heads",)])
def test_only_npy_files_are_computed_where_they_are_saved(
    more: tuple[str, ...], heads: np.ndarray, attncli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_HELD_CELLS", 1)
    show = "weights" if more else "context"
    words = ("compute", *["q.npy"] * 3, "--show", show, *more)
    attncli(*words, "--save", "scores=s.npy").good()
    scores = heads @ heads.swapaxes(-1, -2) / 2
    np.testing.assert_allclose(np.load("s.npy"), scores, rtol=1e-12)
    attncli(*words[:4], "--batch", "0", "--head", "0", "--save", "weights=w.csv").good()
    weights = np.loadtxt("w.csv", delimiter=",")
    np.testing.assert_allclose(weights.sum(axis=1), np.ones(5), rtol=1e-12)


def test_a_spreadsheet_may_have_the_labels(folder: Path, attncli: Run) -> None:
    tokens = ("the, cat", '"sat"', "1990")
    Path("tokens.txt").write_text("\n".join(tokens))
    x = np.random.default_rng(0).normal(size=(3, 2))
    np.save("x.npy", x)
    problem = ("compute", "x.npy", "x.npy", "x.npy", "--tokens", "tokens.txt")
    ran = attncli(*problem, "--with-labels", "--save", "weights=w.tsv", "-f", "csv").good()
    Path("c.csv").write_bytes(ran.out)
    for name, columns in {"w.tsv": tokens, "c.csv": ("0", "1")}.items():
        array = read_array(name)
        assert (array.row_labels, array.column_labels) == (tokens, columns)
    exact = attncli(*problem, "-f", "json").good().json
    np.testing.assert_array_equal(read_array("w.tsv").values, exact["weights"])
    np.testing.assert_array_equal(read_array("c.csv").values, exact["context"])
    drawn = attncli("heatmap", "w.tsv").good().text
    assert "the, cat" in drawn
    assert attncli(*problem, "-f", "csv").good().out.count(b",") == 3


@pytest.mark.parametrize("words", [(), ("-f", "json"), ("--save", "w.npy")])
def test_labels_are_for_tables_of_numbers(
    words: tuple[str, ...], tutorial: Path, attncli: Run
) -> None:
    ran = attncli("compute", "q.csv", "k.csv", "v.csv", "--with-labels", *words)
    assert ran.code == 2
    assert ran.messages[0].startswith("error: --with-labels is for CSV and TSV")
    assert not Path("w.npy").exists()


def test_of_two_files_of_one_run_none_is_replaced_where_one_fails(folder, attncli):
    np.save("x.npy", np.ones((2, 2)))
    Path("old.npy").write_bytes(b"old")
    words = ["compute", "x.npy", "x.npy", "x.npy", "--save", "context=old.npy"]
    assert attncli(*words, "--save", "weights=/dev/full").code == 2
    assert Path("old.npy").read_bytes() == b"old"
    # Also of a file that is filled as it is computed.
    np.save("long.npy", np.ones((3000, 2)))
    words = ["compute", *["long.npy"] * 3, "--save", "weights=old.npy", "--show", "lse"]
    assert attncli(*words, "--save", "context=/dev/full").code == 2
    assert Path("old.npy").read_bytes() == b"old"


def test_two_files_behind_one_save_are_told_to_be_two_options(tutorial, attncli):
    ran = attncli("compute", "q.csv", "k.csv", "v.csv", "--save", "weights=w.csv,context=c.csv")
    assert ran.code == 2
    assert "repeat --save" in ran.messages[1]
    assert not list(tutorial.glob("*c.csv"))
