"""Whatever the command line: exit code 0, 1 or 2, words on the right stream, and no traceback."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st
from process import Ran, run

from attncli.cli import _run

COMMANDS = ["compute", "heatmap", "explain", "check", "info"]
MATRIX = np.array([[1.0, 0, 1], [0, 1, 1]])
GOOD = ["q.csv", "k.csv", "v.csv", "q.npy", "k.npy", "v.npy", "x4.npy", "p.npz", "p.yaml", "p.json"]
GOOD += ["p.npz#q", "p.yaml#key", "p.json#value", "w.csv", "mask.csv", "pad.csv", "labels.txt"]
GOOD += ["c.csv", "st.safetensors", "picture.png", "sq.csv", "one.csv", "head.csv"]
BAD = ["nope.csv", "dir", "empty.csv", "ragged.csv", "words.csv", "nan.csv", "bin.npy", "p.npz#no"]
BAD += ["utf16.csv", "pickle.npy", "lie.npy", "nest.json", "alias.yaml", "loop.csv", "dangling"]
BAD += [
    "/dev/null",
    "zero.npy",
    "five.npy",
    "complex.npy",
    "",
    "#",
    "#q",
    "\x1b[31m.csv",
    "twice.json",
]
WORDS = ["0", "1", "2", "-1", "3", "1,2", "-1,0", "0.5", "1e308", "1e400", "nan", "inf", "-inf"]
WORDS += ["x", "٣", "1_0", "99999999999999999999", "a,b,c"]
WORDS += ["", " ", "[pad],\x1b[2J,\u202e", "0:1", ":", "1:"]
WORDS += ["weights", "context", "lse,top,stats", "all", "auto", "keep", "drop", "half", "cosine"]
WORDS += ["sd", "bhsd", "float32"]
WORDS += ["bfloat16", "always", "general", "additive", "bottom-right", "json"]
OUT = ["out.csv", "out.npz", "out.png", "out.svg", "out.pdf", "weights=out.npy", "lse=out.json"]
OUT += ["q.csv", "dir"]
OUT += ["no/out.csv", "out.gif", "context=out.tsv", "top=out.yaml", "", "out", "/dev/null"]


# What an option is likely to take, so that a run gets further than its parser.
_TOGETHER: list[tuple[str, list[str]]] = [
    ("--mask --bias --key-padding-mask", ["mask.csv", "pad.csv", "p.npz#q"]),
    ("--causal-align", ["top-left", "bottom-right"]),
    ("--kv-lengths --query-lengths --query-offset", ["1", "2", "0", "3,1"]),
    ("--window", ["1", "1,0", "-1,0"]),
    ("--sinks --alibi-slopes --score-vector", ["1", "0,1", "one.csv"]),
    ("--wq --wk --wv --wo --score-weight", ["sq.csv", "w.csv"]),
    ("--bq --bk --bv --bo", ["1,2,3", "one.csv"]),
    ("--scale --softcap --rope-base --vmax --rtol --atol", ["0.5"]),
    ("--heads --kv-heads --batch --head --top --keys", ["1", "3"]),
    ("--digits --max-rows --max-cols --threads", ["0", "1", "2"]),
    ("--tokens --query-labels --key-labels", ["labels.txt", "a,b,c"]),
    ("--rope", ["half", "interleaved"]),
    ("--score", ["dot", "cosine", "general", "additive"]),
    ("--mask-means", ["keep", "drop"]),
    ("--layout", ["sd", "hsd", "shd", "bshd"]),
    ("--precision --dtype", ["float32", "bfloat16"]),
    ("--show", ["weights", "raw,capped,scores", "lse", "stats,top", "context"]),
    ("--format", ["json", "yaml", "csv", "tsv", "npy", "npz", "text", "markdown"]),
    ("--expect", ["c.csv", "weights=w.csv", "v.csv", "lse=one.csv"]),
    ("--rows --cols", ["0:1", ":2", "1:"]),
    ("--checkpoint", ["st.safetensors", "st.safetensors#l", "p.npz"]),
    ("--query", ["0", "1", "b", "5"]),
    ("--what", ["weights", "scores"]),
    ("--minus", ["w.csv", "q.csv"]),
    ("--cmap", ["Blues", "viridis", "nope"]),
    ("--color", ["always", "never"]),
    ("--positions", ["sinusoidal"]),
    ("--title", ["$x^", "\x1b]0;x\x07", "a" * 300, "<script>"]),
    ("--time-limit", ["0", "0.1"]),
    ("--dpi", ["10", "50"]),
    ("--save --out --diff", OUT),
]
LIKELY = {name: values for names, values in _TOGETHER for name in names.split()}
FLAGS = ["--plain", "--causal", "--alibi", "--average-heads", "--log", "--annotate"]
FLAGS += ["--no-annotate"]
FLAGS += ["--no-diagnose", "--no-numbers", "-q", "-h", "--", "-", "--nope", "--version", "-f", "-o"]

PROBLEMS: list[dict[str, Any]] = [
    {"query": [[1, 0, 1], [0, 1, 1]], "key": np.eye(3).tolist(), "value": [[1, 2], [3, 4], [5, 6]]},
    {"q": np.ones((2, 2, 3, 4)).tolist(), "k": np.ones((2, 1, 3, 4)).tolist(), "v": "x4.npy"},
    {"x": np.eye(3).tolist(), "wq": "sq.csv", "wk": "sq.csv", "wv": "sq.csv"},
    {"weights": [[0.5, 0.5], [1, 0]]},
]
_ENTRIES = """
query key value mask bias key_padding_mask score_weight x wq wk wv wo bq bk bv bo
kv_lengths query_lengths query_offset alibi_slopes sinks score_vector scale mask_means
causal causal_align window softcap rope rope_base rope_frequencies score heads kv_heads
layout precision positions tokens query_labels key_labels plain checkpoint weights context nonsense
"""
ENTRIES = _ENTRIES.split()
VALUES: list[Any] = [
    *(True, False, None, 0, 1, 2, 3, -1, 0.5, 1e308, float("inf"), float("nan"), 10**30, ""),
    *("drop", "keep", "half", "top-left", "bottom-right", "cosine", "general", "additive", "sd"),
    *("float32", "sinusoidal", "q.csv", "labels.txt", "nope.csv", "st.safetensors", "-", "1,2"),
    *([1, 2], [1], [0, 1, 1], [-1, 0], [None, 0], [[1, 0, 1], [1, 1, 1]], [[1]], [True, False]),
    *(["a", "b", "c"], ["a", "\x1b[31m"], [[[[[1]]]]], [], {}, [[True, False, True]] * 2, [[None]]),
]
entry_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)

file_words = st.sampled_from(GOOD) | st.sampled_from(GOOD) | st.sampled_from(BAD)
values = st.sampled_from(WORDS) | file_words | st.text(max_size=5)


# Options that one command alone has, or that only some have.
_OWN = {
    "compute": "--show --format --save --digits --top --max-rows --max-cols --batch --head",
    "heatmap": "--out --title --cmap --digits --minus --what --rows --cols --vmax --dpi --batch",
    "explain": "--query --format --keys --digits --batch --head",
    "check": "--expect --diff --format --rtol --atol --time-limit",
    "info": "--format --dtype --color",
}
OWN = {command: names.split() for command, names in _OWN.items()}
SHARED = sorted(set(LIKELY) - {name for names in OWN.values() for name in names})
NUMERIC = ["--causal", "--plain", "--alibi", "--average-heads", "-q"]


@st.composite
def options(draw: st.DrawFn, command: str) -> list[str]:
    shared = [] if command == "info" else [*SHARED, *NUMERIC]
    likely, strange = OWN[command] + shared, [*LIKELY, *FLAGS]
    name = draw(st.sampled_from(likely if draw(st.integers(0, 19)) else strange))
    if name not in LIKELY:
        return [name]
    value = draw(st.sampled_from(LIKELY[name]) if draw(st.integers(0, 9)) else values)
    return draw(st.sampled_from([[name, value], [f"{name}={value}"]]))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command = draw(st.sampled_from(COMMANDS))
    usual = st.sampled_from(
        [["q.csv", "k.csv", "v.csv"], ["p.yaml"], ["x4.npy"] * 3, ["p.json"], []]
    )
    files = draw(usual if draw(st.integers(0, 4)) else st.lists(file_words, max_size=4))
    count = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 5]))
    words = [word for _ in range(count) for word in draw(options(command))]
    if command == "check" and draw(st.integers(0, 9)):
        words += ["--expect", draw(st.sampled_from(LIKELY["--expect"]))]
    return [command, *files, *words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files good and bad, read by all examples; what they write is taken away again."""
    folder = tmp_path_factory.mktemp("fuzz")
    before = Path.cwd()
    os.chdir(folder)
    write_good()
    write_bad()
    os.chdir(before)
    return folder


def write_good() -> None:
    texts = {
        "q.csv": "1,0,1\n0,1,1\n",
        "k.csv": "1,0,1\n1,1,0\n0,1,1\n",
        "v.csv": "1,2\n3,4\n5,6\n",
        "w.csv": "0.5,0.5,0\n0.2,0.3,0.5\n",
        "c.csv": "2.5,3.5\n3.4,4.4\n",
        "sq.csv": "1,0,0\n0,1,0\n0,0,1\n",
        "one.csv": "1,2\n",
        "head.csv": ",a,[pad]\nx,1,2\n\x1b[31m,3,4\n",
        "mask.csv": "1,1,0\n0,0,0\n",
        "pad.csv": "1,1,0\n",
        "labels.txt": "a\n[/b]\nc\u202e",
        "p.yaml": "query: [[1,0,1],[0,1,1]]\nkey: k.csv\nvalue: v.csv\nkey_labels: [a, b, c]\n",
        "p.json": '{"q": [[1,0,1]], "k": [[1,0,1],[0,1,1]], "value": [[1],[2]], "causal": true}',
    }
    for name, text in texts.items():
        Path(name).write_text(text, encoding="utf-8")
    np.save("q.npy", MATRIX.astype(np.float16))
    np.save("k.npy", np.eye(3, dtype=np.int8))
    np.save("v.npy", np.ones((3, 2), np.float32))
    np.save("x4.npy", np.arange(24.0).reshape(1, 2, 4, 3) / 10)
    np.savez("p.npz", q=MATRIX, k=np.eye(3), v=np.ones((3, 4)))
    header = json.dumps(
        {"l.wq": {"dtype": "F32", "shape": [3, 3], "data_offsets": [0, 36]}}
    ).encode()
    body = np.eye(3, dtype=np.float32).tobytes()
    Path("st.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + body)
    Path("picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\x05tEXta\0\x1bb]\0\0\0\0")


def write_bad() -> None:
    data = {
        "empty.csv": b"",
        "ragged.csv": b"1,2\n3\n",
        "words.csv": b"1,2,3\n4,five,6\n",
        "nan.csv": b"1,nan,1\n0,1,inf\n",
        "bin.npy": os.urandom(100),
        "utf16.csv": "1,2\n".encode("utf-16"),
        "pickle.npy": b"\x80\x04\x95\x05\0\0\0\0\0\0\0C\x01x\x94.",
        "nest.json": b"[" * 5000,
        "alias.yaml": b"a: &a [1, 2]\nb: [*a, *a]\n",
        "twice.json": b'{"q": [[1]], "q": [[2]]}',
    }
    for name, content in data.items():
        Path(name).write_bytes(content)
    whole = io.BytesIO()
    np.save(whole, np.ones((2, 3)))
    Path("lie.npy").write_bytes(whole.getvalue().replace(b"(2, 3)", b"(9, 9)"))
    np.save("zero.npy", np.ones((0, 3)))
    np.save("five.npy", np.ones((1, 1, 1, 2, 3)))
    np.save("complex.npy", MATRIX * 1j)
    Path("dir").mkdir()
    Path("loop.csv").symlink_to("loop.csv")
    Path("dangling").symlink_to("nowhere")


def called(line: list[str], folder: Path) -> Ran:
    """Run a command line in this process, with stdin closed, in a folder that stays as it is."""
    before, argv, stdin = Path.cwd(), sys.argv, sys.stdin
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace") for _ in range(2))
    kept = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    os.chdir(folder)
    sys.argv, sys.stdin = ["attncli", *line], None
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = _run(line)
    finally:
        sys.argv, sys.stdin = argv, stdin
        os.chdir(before)
    out.flush()
    err.flush()
    made = [path for path in folder.iterdir() if path.is_file() and path not in kept]
    assert not any(path.name.startswith(".attncli-") for path in made), line
    for path in made:
        path.unlink()
    changed = {path for path, data in kept.items() if path.read_bytes() != data}
    for path in changed:
        path.write_bytes(kept[path])
    # What is no input may be written over, if a word names it as an output.
    assert {path.name for path in changed} <= {word.rpartition("=")[2] for word in line}, line
    assert not {path.name for path in changed} & read_by(line), line
    return Ran(code, out.buffer.getvalue(), err.buffer.getvalue())


def read_by(line: list[str]) -> set[str]:
    """Return the files that a line surely reads: those before its options."""
    options = [at for at, word in enumerate(line) if word.startswith("-")]
    return {word.partition("#")[0] for word in line[1 : min(options, default=len(line))]}


def controls(text: str, *, colored: bool) -> set[str]:
    """Return what a terminal would obey and the program did not mean."""
    found = {letter for letter in text if ord(letter) < 32 or 127 <= ord(letter) < 160}
    found |= set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u2028\u2029") & set(text)
    return found - {"\n"} - ({"\x1b"} if colored else set())


def check_line(line: list[str], folder: Path) -> Ran:
    ran = called(line, folder)
    assert ran.code in {0, 1, 2}, line
    assert ran.code != 1 or line[0] == "check", line
    words = ran.err.decode()
    for message in words.splitlines():
        assert message.startswith(("error: ", "hint: ", "note: ", "warning: ")), (line, message)
    # A file that cannot be described does not hide the others.
    errors = words.count("error: ")
    assert errors >= 1 if ran.code == 2 else errors == 0, line
    assert errors <= 1 or line[0] == "info", line
    assert ran.code != 2 or ran.out == b"" or line[0] == "info", line
    assert controls(words, colored=False) == set(), line
    if not {"npy", "npz", "--format=npy", "--format=npz", "tsv", "--format=tsv"} & {
        word.lower() for word in line
    }:
        assert controls(ran.out.decode(), colored="always" in " ".join(line)) == set(), line
    return ran


relaxed = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(line=command_lines())
# What the long run found.
@example(line=["heatmap", "--window", "q.csv"])
@example(line=["heatmap", "--query-lengths", "nan"])
def test_any_command_line(folder: Path, line: list[str]) -> None:
    event(f"{line[0]} ended with {check_line(line, folder).code}")


@pytest.mark.long
@settings(relaxed, max_examples=30_000)
@given(line=command_lines())
def test_many_command_lines(folder: Path, line: list[str]) -> None:
    event(f"{line[0]} ended with {check_line(line, folder).code}")


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """A problem as a document, with entries of any kind in any place."""
    found = draw(st.sampled_from(PROBLEMS)).copy()
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(ENTRIES))
        found[name] = draw(st.sampled_from(VALUES) | entry_values)
    return found


@relaxed
@given(problem=problems(), command=st.sampled_from(COMMANDS))
@example(problem={"q": [[1]], "k": [[1]], "score": [1, 2]}, command="compute")
@example(problem=PROBLEMS[0] | {"scale": 1e308}, command="check")
@example(problem=PROBLEMS[0] | {"scale": 1e-310}, command="check")
@example(problem=PROBLEMS[0] | {"scale": 10**400}, command="compute")
def test_any_problem_file(folder: Path, problem: dict[str, Any], command: str) -> None:
    check_problem(folder, problem, command)


@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_with_values_of_many_kinds(folder: Path, name: str) -> None:
    # Each value meets every twentieth entry; the long test below lets any meet any.
    for number in range(ENTRIES.index(name) % 20, len(VALUES), 20):
        check_problem(folder, PROBLEMS[number // 20 % 2 * 2] | {name: VALUES[number]}, "compute")


@pytest.mark.long
@settings(relaxed, max_examples=20_000)
@given(problem=problems(), command=st.sampled_from(COMMANDS))
def test_many_problem_files(folder: Path, problem: dict[str, Any], command: str) -> None:
    check_problem(folder, problem, command)


def check_problem(folder: Path, problem: dict[str, Any], command: str) -> None:
    path = folder / "any.json"
    path.write_text(json.dumps(problem))
    try:
        expect = ["--expect", "c.csv"] if command == "check" else []
        check_line([command, "any.json", *expect], folder)
    finally:
        path.unlink()


@relaxed
@given(line=st.lists(st.text(max_size=8) | st.sampled_from([*COMMANDS, *FLAGS]), max_size=5))
def test_any_words(folder: Path, line: list[str]) -> None:
    ran = called(line, folder)
    assert ran.code in {0, 1, 2}


# In this process a path may be any text; a real one takes no NUL and no lone surrogate.
def passable(line: list[str]) -> bool:
    text = "".join(line)
    return "\0" not in text and text.isprintable()


@settings(relaxed, max_examples=4)
@given(line=command_lines().filter(passable))
def test_real_processes(folder: Path, line: list[str]) -> None:
    kept = {path.name for path in folder.iterdir()}
    ran = run(*line, cwd=folder)
    assert ran.code in {0, 1, 2}, (line, ran)
    assert b"Traceback" not in ran.err
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()
