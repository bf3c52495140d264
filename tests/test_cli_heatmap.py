"""Pictures from the command line: what they are drawn from, and where they go."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from oracle import attention_oracle
from piping import piped
from process import ROOT, Run

Q, K = [[1.0, 0, 1], [0, 1, 1]], [[1.0, 0, 1], [1, 1, 0], [0, 1, 1]]
WEIGHTS = attention_oracle(Q, K, [[1.0, 2], [3, 4], [5, 6]])["weights"]
MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def numbers(text: str) -> list[float]:
    """The numbers in the cells of a small picture in the terminal."""
    return [float(word) for word in re.findall(r"\d\.\d\d(?!\d)", text)]


@pytest.mark.parametrize("kind", MAGIC)
def test_each_kind_of_picture(kind: str, tutorial: Path, attncli: Run) -> None:
    ran = attncli("heatmap", "q.csv", "k.csv", "--out", f"w.{kind}").good()
    assert (ran.out, ran.err) == (b"", b"")
    assert Path(f"w.{kind}").read_bytes().startswith(MAGIC[kind])


@pytest.mark.parametrize(
    ("size", "points"), [("3.3", (237.6, None)), ("10x4", (720, 288)), ("5 × 20", (360, 1440))]
)
def test_a_picture_may_have_a_size(
    size: str, points: tuple[float | None, float | None], tutorial: Path, attncli: Run
) -> None:
    attncli("heatmap", "q.csv", "k.csv", "-o", "p.svg", "--size", size).good()
    sides = re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', Path("p.svg").read_text("utf-8"))
    assert sides is not None
    for found, wanted in zip(sides.groups(), points, strict=True):
        assert wanted is None or float(found) == pytest.approx(wanted, abs=0.1)


@pytest.mark.parametrize("size", ["3.3x", "x", "0.5", "3x4x5", "wide", "1e3", "-3", "200", "nan"])
def test_what_is_no_size_is_refused(size: str, tutorial: Path, attncli: Run) -> None:
    ran = attncli("heatmap", "q.csv", "k.csv", "-o", "p.svg", "--size", size)
    assert "--size: expected inches, W or WxH, each from 1 to 100" in ran.messages[0]
    assert not Path("p.svg").exists()


def test_title_and_labels_are_words_in_the_picture(tutorial: Path, attncli: Run) -> None:
    words = ["--title", "Who <sees> whom", "--key-labels", "[pad],ein & zwei,x$y_2$"]
    attncli("heatmap", "q.csv", "k.csv", *words, "-o", "w.svg").good()
    svg = Path("w.svg").read_text()
    for text in ("Who &lt;sees&gt; whom", "[pad]", "ein &amp; zwei", "x$y_2$", "Keys", "Queries"):
        assert text in svg


@pytest.mark.parametrize("kind", ["json", "yaml", "csv", "npy", "npz"])
def test_what_compute_writes_heatmap_draws(kind: str, tutorial: Path, attncli: Run) -> None:
    made = attncli("compute", "q.csv", "k.csv", "--show", "weights", "-f", kind).good()
    with piped(made.out):
        drawn = attncli("heatmap").good()
    assert drawn.err == b""
    np.testing.assert_allclose(numbers(drawn.text)[:6], WEIGHTS.ravel(), atol=0.005)


def test_one_matrix_alone_is_finished_weights(folder: Path, attncli: Run) -> None:
    Path("w.csv").write_text("0.25,0.75\n0.5,0.5\n")
    assert numbers(attncli("heatmap", "w.csv").good().text)[:4] == [0.25, 0.75, 0.5, 0.5]
    np.save("w.npy", np.array([[[0.25, 0.75]], [[0.1, 0.9]]]))
    head = attncli("heatmap", "w.npy", "--head", "1").good().text
    assert numbers(head)[:2] == [0.1, 0.9]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("cat : sat", "12"),
        (" sat: sat", "2"),
        (" sat:", "23"),
        ("-2:", "23"),
    ],
)
def test_a_range_of_labels_holds_both(words: str, kept: str, folder: Path, attncli: Run) -> None:
    Path("w.csv").write_text(
        "0.11,0.12,0.13,0.64\n0.21,0.22,0.23,0.34\n0.31,0.32,0.33,0.04\n0.41,0.42,0.13,0.04\n"
    )
    Path("t.txt").write_text("The\ncat\n sat\na:b\n")
    rows = np.loadtxt("w.csv", delimiter=",")[[int(row) for row in kept]]
    asked = ["heatmap", "w.csv", "--tokens", "t.txt"]
    text = attncli(*asked, "--rows", words).good().text
    assert numbers(text)[: rows.size] == pytest.approx(rows.ravel(), abs=0.005)
    text = attncli(*asked, "--cols", words, "--rows", "0").good().text
    first = np.loadtxt("w.csv", delimiter=",")[0, [int(row) for row in kept]]
    assert numbers(text)[: first.size] == pytest.approx(first, abs=0.005)


def test_scores_are_drawn_where_asked(tutorial: Path, attncli: Run) -> None:
    text = attncli("heatmap", "q.csv", "k.csv", "--plain", "--what", "scores").good().text
    assert numbers(text)[:6] == [2, 1, 1, 1, 1, 2]


@pytest.mark.parametrize("kind", ["csv", "npy", "npz", "json", "yaml"])
@pytest.mark.parametrize("cut", [(), ("--cols", "1:3", "--rows", "1")])
def test_finished_scores_are_drawn_as_computed_ones(
    tutorial: Path, attncli: Run, kind: str, cut: tuple[str, ...]
) -> None:
    problem = ("q.csv", "k.csv", "--causal", "--quiet")
    drawn = attncli("heatmap", *problem, "--what", "scores", *cut).good().text
    assert "hidden" in drawn
    attncli("compute", *problem, "--show", "scores", "--save", f"scores=s.{kind}").good()
    assert attncli("heatmap", f"s.{kind}", "--what", "scores", *cut).good().text == drawn


@pytest.fixture
def heads(folder: Path, attncli: Run) -> np.ndarray:
    """Queries that are keys too, of 2 batch entries and 3 heads, with their finished weights."""
    x = np.random.default_rng(4).normal(size=(2, 3, 4, 5))
    np.save("x.npy", x)
    weights = attention_oracle(x, x, x)["weights"]
    np.save("w.npy", weights)
    np.save("one.npy", weights[1, 2])
    return weights


@pytest.mark.parametrize("first", ["x.npy x.npy", "w.npy"])
@pytest.mark.parametrize("second", ["w.npy", "one.npy"])
def test_a_difference_is_that_of_the_batch_entry_and_head_chosen(
    first: str, second: str, heads: np.ndarray, attncli: Run
) -> None:
    words = ["heatmap", *first.split(), "--minus", second, "--batch", "1", "--head", "2"]
    text = attncli(*words).good().text
    assert shows_no_difference(text)


def shows_no_difference(text: str) -> bool:
    """Tell whether cells are 0, or the scale ends at a hundred roundings."""
    *cells, scale = text.splitlines()
    end = float(scale.split()[-1])
    return end < 1e-13 or set(numbers("\n".join(cells))) == {0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--average-heads",
            "--average-heads does not go with --minus: heads are subtracted one by one",
        ),
        (
            "--what scores",
            "--minus does not go with --what scores: only weights are averaged or subtracted",
        ),
        ("--log", "--minus does not go with --log: negative numbers have no logarithm"),
    ],
)
@pytest.mark.parametrize("first", ["x.npy x.npy", "w.npy"])
def test_what_a_difference_cannot_be_is_refused(
    first: str, words: str, message: str, heads: np.ndarray, attncli: Run
) -> None:
    ran = attncli("heatmap", *first.split(), "--minus", "w.npy", *words.split())
    assert ran.code == 2
    assert ran.messages[0] == f"error: {message}"


@pytest.mark.parametrize("command", ["heatmap", "compute"])
def test_a_sentence_is_as_many_labels_as_are_expected(
    command: str, tutorial: Path, attncli: Run
) -> None:
    words = ("--key-labels", "The cat sat", "--query-labels", "a b,c d")
    text = attncli(command, "q.csv", "k.csv", *words).good().text
    assert all(f" {word} " in f" {' '.join(text.split())} " for word in ("The", "cat", "sat"))
    assert "a b" in text  # two labels were expected and given
    Path("The cat sat").write_text("x\ny\nz\n")
    assert "The" not in attncli(command, "q.csv", "k.csv", *words[:2]).good().text
    assert "found 4" in attncli(command, "q.csv", "k.csv", "--key-labels", "a b c d").messages[0]


def test_three_axes_of_finished_weights_are_heads_or_batch_entries(attncli, folder):
    weights = np.full((2, 3, 3), 1 / 3)
    weights[1] = np.eye(3)
    np.save("w.npy", weights)
    np.save("other.npy", weights[::-1])
    for words, name in (
        ([], "head"),
        (["--layout", "hsd"], "head"),
        (["--layout", "bsd"], "batch"),
    ):
        drawn = attncli("heatmap", "w.npy", *words).good().text
        assert f"{name} 0" in drawn
        assert f"{name} 1" in drawn
        one = attncli("heatmap", "w.npy", *words, f"--{name}", "1").good().text
        assert "1.00" in one
        difference = attncli("heatmap", "w.npy", *words, "--minus", "other.npy").good().text
        assert f"{name} 1" in difference
    ran = attncli("heatmap", "w.npy", "--layout", "bhsd")
    assert ran.code == 2
    assert ran.messages[0] == "error: --layout 'bhsd' is for 4 axes; w.npy has 3"
    assert "for weights (B, L, S) give bsd" in ran.messages[1]
    ran = attncli("heatmap", "w.npy", "--layout", "bsd", "--average-heads")
    assert ran.code == 2


SENTENCE = ROOT / "samples" / "sentence.yaml"


@pytest.mark.parametrize("name", ["all.json", "all.yaml", "all.npz"])
def test_keys_that_saved_scores_hide_are_drawn_hidden(
    name: str, attncli: Run, folder: Path
) -> None:
    direct = attncli("heatmap", str(SENTENCE)).good().text
    attncli("compute", str(SENTENCE), "--show", "weights,scores", "--save", name).good()
    assert "·· hidden" in direct
    assert attncli("heatmap", name).good().text == direct
    attncli("compute", str(SENTENCE), "--show", "weights", "--save", name).good()
    assert "hidden" not in attncli("heatmap", name).good().text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cmap", "nosuch", "--out", "p.png"], "there is no colour map 'nosuch'"),
        (["--vmax", "0,5"], "--vmax: expected auto or a number above 0; found '0,5'"),
        (["--out", "none/p.png"], "cannot write none/p.png"),
        (["--minus", "w.csv", "--log"], "--minus does not go with --log"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_a_file_is_read(
    words: list[str], message: str, folder: Path, attncli: Run
) -> None:
    ran = attncli("heatmap", "there-is-no-such-file.npy", *words)
    assert ran.code == 2
    assert message in ran.messages[0]


def test_the_share_of_a_sink_is_told(folder, attncli):
    np.save("x.npy", np.eye(3))
    np.save("lower.npy", np.tri(3, k=-1, dtype=bool))
    words = "rows add up to less than 1: the sink takes the rest"
    for command in (["heatmap"], ["compute"]):
        ran = attncli(*command, "x.npy", "x.npy", "--sinks", "0.5").good()
        assert ran.text.count(words) == 1
        assert words not in attncli(*command, "x.npy", "x.npy").good().text
        # A sink that takes nothing leaves rows of 1, and one of no seen key takes none of it.
        for options in (["--sinks", "-99"], ["--sinks", "-99", "--mask", "lower.npy"]):
            assert words not in attncli(*command, "x.npy", "x.npy", *options).good().text
    assert (
        words not in attncli("heatmap", "x.npy", "x.npy", "--sinks", "0", "--what", "scores").text
    )
