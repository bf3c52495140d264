"""What `compute` gives: formats read back by other readers, files, picks and crops."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from oracle import attention_oracle

from attncli.loading import read_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from process import Run

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


def test_a_large_table_is_cropped_and_says_so(folder: Path, attncli: Run) -> None:
    for name in "qkv":
        np.save(f"{name}.npy", np.random.default_rng(ord(name)).normal(size=(512, 16)))
    text = attncli("compute", "q.npy", "k.npy", "v.npy").good().text
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
