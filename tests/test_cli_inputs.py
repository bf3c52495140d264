"""Where `compute` takes its problem from: files, problem files, members, pipes, nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from oracle import attention_oracle
from piping import piped
from process import Ran, Run, run
from together import run_together

Q, K = [[1.0, 0, 1], [0, 1, 1]], [[1.0, 0, 1], [1, 1, 0], [0, 1, 1]]
V = [[1.0, 2], [3, 4], [5, 6]]
PROBLEM = {"query": Q, "key": K, "value": V}
TUTORIAL = attention_oracle(Q, K, V)
EXAMPLE_NOTE = "note: no files given: this is the built-in example"


def weights(ran: Ran) -> np.ndarray:
    return np.array(ran.good().json["weights"])


# --- files --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "tsv", "npy", "yaml", "json"])
def test_matrices_of_each_kind(kind: str, folder: Path, attncli: Run) -> None:
    for name, rows in zip("qkv", (Q, K, V), strict=True):
        if kind == "npy":
            np.save(f"{name}.npy", np.array(rows))
        elif kind in {"csv", "tsv"}:
            mark = "," if kind == "csv" else "\t"
            Path(f"{name}.{kind}").write_text("\n".join(mark.join(map(str, row)) for row in rows))
        else:
            Path(f"{name}.{kind}").write_text(json.dumps(rows))
    found = attncli("compute", *(f"{name}.{kind}" for name in "qkv"), "-f", "json").good().json
    np.testing.assert_allclose(found["weights"], TUTORIAL["weights"], rtol=1e-14)
    np.testing.assert_allclose(found["context"], TUTORIAL["context"], rtol=1e-14)


def write_problem(kind: str) -> str:
    if kind == "npz":
        np.savez("p.npz", q=np.array(Q), k=np.array(K), v=np.array(V), causal=True, scale=0.5)
    elif kind == "json":
        Path("p.json").write_text(json.dumps({**PROBLEM, "causal": True, "scale": 0.5}))
    else:
        lines = [f"{name}: {rows}" for name, rows in PROBLEM.items()]
        Path("p.yaml").write_text("\n".join([*lines, "causal: true", "scale: 0.5"]))
    return f"p.{kind}"


@pytest.mark.parametrize("kind", ["yaml", "json", "npz"])
def test_problem_files_hold_options_and_the_command_line_wins(
    kind: str, folder: Path, attncli: Run
) -> None:
    words = ["compute", write_problem(kind), "--causal-align", "top-left", "-f", "json"]
    expected = attention_oracle(Q, K, V, causal=True, scale=0.5)["weights"]
    np.testing.assert_allclose(weights(attncli(*words)), expected, rtol=1e-14)
    plain = attention_oracle(Q, K, V, causal=True, scale=1.0)["weights"]
    np.testing.assert_allclose(weights(attncli(*words, "--plain")), plain, rtol=1e-14)
    zero = attention_oracle(Q, K, V, causal=True, scale=0.0)["weights"]
    np.testing.assert_allclose(weights(attncli(*words, "--scale", "0")), zero, rtol=1e-14)


def test_files_in_a_problem_file_are_relative_to_it(folder: Path, attncli: Run) -> None:
    (folder / "sub").mkdir()
    np.save("sub/q.npy", np.array(Q))
    (folder / "sub" / "names.txt").write_text("a\nb\nc\n")
    lines = ["query: q.npy", f"key: {K}", "key_labels: names.txt"]
    (folder / "sub" / "p.yaml").write_text("\n".join(lines))
    found = attncli("compute", "sub/p.yaml", "-f", "json").good().json
    np.testing.assert_allclose(found["weights"], TUTORIAL["weights"], rtol=1e-14)
    assert found["key_labels"] == ["a", "b", "c"]


def test_members_of_files(folder: Path, attncli: Run) -> None:
    np.savez("dump.npz", q=np.array(Q), k=np.array(K))
    Path("p.yaml").write_text(f"values: {V}")
    found = attncli("compute", "dump.npz#q", "dump.npz#k", "p.yaml#values", "-f", "json")
    np.testing.assert_allclose(weights(found), TUTORIAL["weights"], rtol=1e-14)


# --- standard input -----------------------------------------------------------------------


@pytest.fixture
def from_pipe(attncli: Run) -> Run:
    """Run a command line in this process with these bytes on standard input."""

    def call(*words: str, stdin: bytes) -> Ran:
        with piped(stdin):
            return attncli(*words)

    return call


def test_a_problem_is_piped_in() -> None:
    ran = run("compute", "-f", "json", stdin=json.dumps(PROBLEM).encode())
    np.testing.assert_allclose(weights(ran), TUTORIAL["weights"], rtol=1e-14)
    assert ran.err == b""


def test_a_regular_file_is_redirected_in(folder: Path) -> None:
    Path("p.json").write_text(json.dumps(PROBLEM))
    with Path("p.json").open("rb") as file:
        ran = run("compute", "-f", "json", stdin_file=file)
    np.testing.assert_allclose(weights(ran), TUTORIAL["weights"], rtol=1e-14)
    # The built-in example has the same numbers, but says so.
    assert ran.err == b""


def test_a_dash_is_standard_input_for_files_and_for_options(tutorial: Path, from_pipe: Run) -> None:
    mask = "1,1,0\n0,1,1\n"
    expected = attention_oracle(Q, K, V, mask=np.array([[1, 1, 0], [0, 1, 1]]))["weights"]
    words = ["compute", "q.csv", "k.csv", "--mask", "-", "-f", "json"]
    np.testing.assert_allclose(
        weights(from_pipe(*words, stdin=mask.encode())), expected, rtol=1e-14
    )
    ran = run("compute", "-", "k.csv", "v.csv", "-f", "json", stdin=Path("q.csv").read_bytes())
    np.testing.assert_allclose(weights(ran), TUTORIAL["weights"], rtol=1e-14)


def test_an_empty_pipe_is_an_error_not_the_example() -> None:
    ran = run("compute", stdin=b"")
    assert (ran.code, ran.out) == (2, b"")
    assert ran.messages == [
        "error: standard input is empty",
        "hint: nothing came through the pipe: pipe a file in, or name files",
    ]


def test_a_person_who_names_no_file_gets_the_example_with_a_note() -> None:
    lines = ["compute", "compute -f markdown", "explain --query 0", "heatmap"]
    # A script whose variables are not set has to know, whatever it silences.
    for ran in run_together([*lines, *(f"{line} --quiet" for line in lines)]).values():
        assert ran.good().messages == [EXAMPLE_NOTE]


def test_a_program_that_names_no_file_gets_an_error(folder: Path) -> None:
    np.save("w.npy", TUTORIAL["context"])
    lines = [f"compute -f {kind}" for kind in ("json", "yaml", "csv", "tsv", "npy", "npz")]
    lines += ["compute --save all.npz", "explain --query 0 --format json", "check --expect w.npy"]
    for ran in run_together(lines).values():
        assert (ran.code, ran.out) == (2, b"")
        assert ran.messages[0].startswith("error: no files given")
    assert not Path("all.npz").exists()


def test_standard_input_is_read_once(tutorial: Path, attncli: Run) -> None:
    for words in (["-", "k.csv", "-"], ["q.csv", "k.csv", "-", "--mask=-"], ["--", "-#q", "-#k"]):
        ran = attncli("compute", *words)
        assert ran.code == 2
        assert ran.messages == [
            "error: standard input (-) can be read only once",
            "hint: read one of them from a file",
        ]


# --- labels -------------------------------------------------------------------------------


def test_header_row_and_label_column_become_names(folder: Path, attncli: Run) -> None:
    Path("q.csv").write_text(",x,y,z\nthe,1,0,1\ncat,0,1,1\n")
    Path("k.csv").write_text("one,1,0,1\ntwo,1,1,0\n[pad],0,1,1\n")
    found = attncli("compute", "q.csv", "k.csv", "-f", "json").good().json
    assert found["query_labels"] == ["the", "cat"]
    assert found["key_labels"] == ["one", "two", "[pad]"]
    np.testing.assert_allclose(found["weights"], TUTORIAL["weights"], rtol=1e-14)
    rows = attncli("compute", "q.csv", "k.csv").good().text.splitlines()
    assert rows[1].split() == ["one", "two", "[pad]"]
    assert [row.split()[0] for row in rows[3:5]] == ["the", "cat"]


def test_tokens_name_queries_and_keys(folder: Path, attncli: Run) -> None:
    np.save("x.npy", np.eye(3))
    Path("names.txt").write_text("the\ncat, black\n[/INST]\n")
    words = ["compute", "x.npy", "x.npy", "-f", "json"]
    names = ["the", "cat, black", "[/INST]"]
    found = attncli(*words, "--tokens", "names.txt").good().json
    assert found["query_labels"] == found["key_labels"] == names
    found = attncli(*words, "--tokens", "names.txt", "--key-labels", "a, b,c").good().json
    assert found["query_labels"] == names
    assert found["key_labels"] == ["a", "b", "c"]
    found = attncli(*words, "--query-labels", "a,b,c").good().json
    assert "key_labels" not in found


@pytest.mark.parametrize("name", ["кью ☃.csv", "with space.csv", "#1.csv", "a=b.csv"])
def test_file_names_of_all_kinds(name: str, tutorial: Path, attncli: Run) -> None:
    Path("q.csv").rename(name)
    attncli("compute", name, "k.csv", "v.csv", "--save", f"./out {name}").good()
    found = np.loadtxt(f"out {name}", delimiter=",")
    np.testing.assert_allclose(found, TUTORIAL["context"], rtol=1e-14)


def test_a_file_name_that_is_no_text(tutorial: Path, attncli: Run) -> None:
    name = os.fsdecode(b"q\xff.csv")
    Path("q.csv").rename(name)
    np.testing.assert_allclose(
        weights(attncli("compute", name, "k.csv", "-f", "json")), TUTORIAL["weights"], rtol=1e-14
    )
    Path(name).unlink()
    assert attncli("compute", name, "k.csv").messages[0] == r"error: q\xff.csv does not exist"


def bits(array: np.ndarray) -> np.ndarray:
    """Half of a float32 each, as `tensor.view(torch.int16).numpy()` gives it."""
    return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.int16)


def test_the_bits_of_bfloat16_are_read_from_int16(folder: Path, attncli: Run) -> None:
    x = np.array([[1.0, -2.0], [0.5, 3.0]])  # exact in bfloat16
    np.save("x.npy", bits(x))
    words = ["x.npy", "x.npy", "--dtype", "bfloat16", "-f", "json"]
    ran = attncli("compute", *words).good()
    assert ran.err == b""
    np.testing.assert_allclose(ran.json["weights"], attention_oracle(x, x, x)["weights"], atol=1e-6)


# --- tables as spreadsheets and pandas write them -------------------------------------------


def test_a_mask_of_true_and_false_hides_as_one_of_ones(tutorial: Path, attncli: Run) -> None:
    Path("m.csv").write_text("TRUE,FALSE,TRUE\nTRUE,TRUE,FALSE\n")
    Path("p.csv").write_text("true,true,false\n")
    mask = np.array([[1, 0, 1], [1, 1, 0]], bool)
    words = ["compute", "q.csv", "k.csv", "v.csv", "-f", "json"]
    expected = attention_oracle(Q, K, V, mask=mask)["weights"]
    np.testing.assert_allclose(weights(attncli(*words, "--mask", "m.csv")), expected)
    seen = weights(attncli(*words, "--key-padding-mask", "p.csv"))
    assert (seen > 0).tolist() == [[True, True, False]] * 2


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("v.csv", "on,1,2\nthe,3,4\nmat,5,6\n", "label 0 is 'on', but in k.csv 'the'"),
        ("v.csv", "the,1,2\non,3,4\nmat,5,6\n", None),
        ("mask.csv", ",mat,on,the\n1,1,1,0\n", "label 0 is 'mat', but in k.csv 'the'"),
        ("padding.csv", "the,on,mat\n1,1,0\n", None),
    ],
)
def test_labels_in_another_order_are_told(
    name: str, text: str, told: str | None, folder: Path, attncli: Run
) -> None:
    Path("q.csv").write_text("1,0\n")
    for file in ("k.csv", "v.csv"):
        Path(file).write_text("the,1,0\non,0,1\nmat,1,1\n")
    Path(name).write_text(text)
    options = {"mask.csv": ["--mask", name], "padding.csv": ["--key-padding-mask", name]}
    mask = options.get(name, [])
    messages = attncli("compute", "q.csv", "k.csv", "v.csv", *mask).good().messages
    begin = f"warning: {name}: {told}: rows and columns belong together by their place"
    assert [message.startswith(begin) for message in messages] == ([True] if told else [])
