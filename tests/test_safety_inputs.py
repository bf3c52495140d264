"""An output that is one of the inputs is refused, for every command and every kind of input."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from process import Run, long_but, run

QKV = "q.csv k.csv v.csv"

# What is read, and where: a file that may not be written, and the options that read it. Where
# only a name is wanted, contents tell the format, so that any file may be called x.png.
READ: dict[str, tuple[str, str]] = {
    "query": ("x.png", "x.png k.csv v.csv"),
    "key": ("y.png", "q.csv y.png v.csv"),
    "value": ("z.png", "q.csv k.csv z.png"),
    "mask": ("m.png", f"{QKV} --mask m.png"),
    "bias": ("m.png", f"{QKV} --bias m.png"),
    "key_padding_mask": ("p.png", f"{QKV} --key-padding-mask p.png"),
    "lengths": ("l.png", f"{QKV} --kv-lengths l.png"),
    "sinks": ("l.png", f"{QKV} --sinks l.png"),
    "score_weight": ("w.png", f"{QKV} --score general --score-weight w.png"),
    "tokens": ("t.png", f"{QKV} --key-labels t.png"),
    "projection": ("w.png", "q.csv --wq w.png --wk w.png --wv w.png"),
    "projection bias": ("b.png", "q.csv --wq w.png --wk w.png --wv w.png --bq b.png"),
    "checkpoint": ("c.png", "q.csv --checkpoint c.png"),
    "checkpoint layer": ("c2.png", "q.csv --checkpoint c2.png#layer.0"),
    "member": ("n.png", "n.png#q k.csv v.csv"),
    "problem": ("d.png", "d.png"),
    "named in a problem": ("x.png", "names.yaml"),
    "mask named in a problem": ("m.png", "names.yaml"),
    "tokens named in a problem": ("t.png", "names.yaml"),
    "checkpoint named in a problem": ("c.png", "layer.yaml"),
    "another name": ("x.png", "linked.png k.csv v.csv"),
    "a hard link": ("hard.png", "x.png k.csv v.csv"),
}


@pytest.fixture
def files(tutorial: Path) -> Path:
    """Inputs of every kind; those called .png are to be written over."""
    for new, old in (("x", "q"), ("y", "k"), ("z", "v")):
        Path(f"{new}.png").write_bytes(Path(f"{old}.csv").read_bytes())
    Path("m.png").write_text("1,1,0\n1,1,1\n")
    Path("p.png").write_text("1,1,0\n")
    Path("l.png").write_text("2\n")
    Path("b.png").write_text("1,2,3\n")
    Path("w.png").write_text("1,0,0\n0,1,0\n0,0,1\n")
    Path("t.png").write_text("a\nb\nc")
    weights = {name: np.eye(3) for name in ("wq", "wk", "wv")}
    for name, start in (("c", ""), ("c2", "layer.0.")):
        with Path(f"{name}.png").open("wb") as file:
            np.savez(file, **{start + key: value for key, value in weights.items()})
    with Path("n.png").open("wb") as file:
        np.savez(file, q=np.array([[1.0, 0, 1], [0, 1, 1]]))
    problem = {"query": [[1, 0, 1], [0, 1, 1]], "key": np.eye(3).tolist(), "value": [[1], [2], [3]]}
    Path("d.png").write_text(json.dumps(problem))
    Path("names.yaml").write_text(
        "query: x.png\nkey: y.png\nvalue: z.png\nmask: m.png\nkey_labels: t.png\n"
    )
    Path("layer.yaml").write_text("x: q.csv\ncheckpoint: c.png\n")
    Path("linked.png").symlink_to("x.png")
    os.link("x.png", "hard.png")
    return tutorial


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


WRITING = ["compute --save npz:", "heatmap --out", "check --diff"]
# Each kind of input meets one command, in turn; all of them in the long run.
IN_TURN = [(WRITING[at % 3], kind) for at, kind in enumerate(READ)]


@pytest.mark.parametrize(("command", "kind"), long_but(product(WRITING, READ), *IN_TURN))
def test_no_command_writes_over_what_it_read(
    command: str, kind: str, files: Path, attncli: Run
) -> None:
    target, words = READ[kind]
    name, option = command.split(" ")[:2]
    if name == "compute":
        # The suffix tells the format of what is saved.
        renamed = target.replace(".png", ".npz")
        os.link(target, renamed)
        target = renamed
    Path("expected.csv").write_text("1,2\n3,4\n")
    more = ["--expect", "expected.csv", "--no-diagnose"] if name == "check" else []
    before = contents(files)
    ran = attncli(name, *words.split(), *more, option, target)
    assert ran.code == 2
    assert f"error: the output {target} is the same file as the input " in "\n".join(ran.messages)
    assert contents(files) == before
    # Without the output the same command line is fine, so that it was the reason.
    assert attncli(name, *words.split(), *more).code in {0, 1}


@pytest.mark.parametrize("expect", ["e.png", "context=e.png", "n2.png#context", "linked2.png"])
def test_what_is_judged_is_not_written_over(expect: str, files: Path, attncli: Run) -> None:
    Path("e.png").write_text("1,2\n3,4\n")
    Path("linked2.png").symlink_to("e.png")
    with Path("n2.png").open("wb") as file:
        np.savez(file, context=np.ones((2, 2)))
    target = "n2.png" if "#" in expect else "e.png"
    before = contents(files)
    ran = attncli("check", *QKV.split(), "--expect", expect, "--diff", target)
    assert ran.code == 2
    assert "is the same file as the input" in ran.messages[0]
    assert contents(files) == before


@pytest.mark.parametrize("minus", ["f.png", "n2.png#weights"])
def test_weights_that_are_subtracted_are_not_written_over(
    minus: str, files: Path, attncli: Run
) -> None:
    Path("f.png").write_text("1,0,0\n0,1,0\n")
    with Path("n2.png").open("wb") as file:
        np.savez(file, weights=np.eye(3)[:2])
    target = minus.partition("#")[0]
    before = contents(files)
    ran = attncli("heatmap", *QKV.split(), "--minus", minus, "--out", target)
    assert ran.code == 2
    assert "is the same file as the input" in ran.messages[0]
    assert contents(files) == before
    assert attncli("heatmap", *QKV.split(), "--minus", minus, "--out", "new.png").code == 0


def test_finished_weights_are_not_written_over(files: Path, attncli: Run) -> None:
    Path("f.png").write_text("1,0,0\n0,1,0\n")
    before = contents(files)
    ran = attncli("heatmap", "f.png", "--out", "f.png")
    assert ran.code == 2
    assert "is the same file as the input" in ran.messages[0]
    assert contents(files) == before


@pytest.mark.parametrize(
    "line",
    ["compute - k.csv v.csv --save x.npz", "compute q.csv k.csv v.csv --mask - --save x.npz"],
)
def test_a_file_that_is_redirected_in_is_not_written_over(line: str, files: Path) -> None:
    Path("x.npz").write_text("1,0,1\n0,1,1\n")
    before = contents(files)
    with Path("x.npz").open("rb") as stdin:
        ran = run(*line.split(), stdin_file=stdin)
    assert (ran.code, contents(files)) == (2, before)
    assert "is the same file as the input" in ran.messages[0]
