"""What --help shows: the most used first, and examples that run."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from oracle import attention_oracle
from process import ROOT, Run

if TYPE_CHECKING:
    from pathlib import Path

# What a command is about, and the groups of its own.
FIRST = {
    "compute": (["--show", "--format", "--save"], []),
    "heatmap": (["--out"], ["Picture"]),
    "explain": (["--query", "--format"], []),
    "check": (["--expect", "--diagnose", "--diff", "--format"], ["How it is judged"]),
}
COMMANDS = [*FIRST, "merge", "info", "capture"]
PLACES = ["https://attncli.github.io/attncli", "https://github.com/attncli/attncli/issues"]


def sections(text: str) -> dict[str, list[str]]:
    """The options under each heading of a help text."""
    _, *parts = re.split(r"^(\S.*):$", text, flags=re.MULTILINE)
    return {
        heading: re.findall(r"^  (?:-\w, )?(--\w[\w-]*)", body, flags=re.MULTILINE)
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize("command", FIRST)
def test_what_a_command_is_about_comes_first(command: str, attncli: Run) -> None:
    own, groups = FIRST[command]
    found = sections(attncli(command, "--help").good().text)
    assert [*found][: 4 + len(groups)] == ["Files", "Most used", *groups, "What is shown", "Scores"]
    assert [*found][-2:] == ["Running", "Other"]
    assert found["Most used"] == [*own, "--plain", "--mask", "--causal"]


@pytest.mark.parametrize("command", COMMANDS)
def test_h_is_short_and_help_is_complete(command: str, attncli: Run) -> None:
    short, whole = (attncli(command, word).good().text for word in ("-h", "--help"))
    small = ("merge", "info", "capture")
    assert len(short.splitlines()) <= 40 < len(whole.splitlines()) or command in small
    files, used = ([*sections(text)][:2] for text in (short, whole))
    assert files == used == ["Files", "Most used"]
    assert sections(short)["Most used"] == sections(whole)["Most used"]
    assert short.count("attncli " + command) >= 4  # usage, two examples, the way to the others
    assert attncli("help", command).good().text == whole
    for text in (short, whole):
        assert [line.strip().partition(": ")[2] for line in text.splitlines()[-2:]] == PLACES


def test_help_alone_is_that_of_the_program(attncli: Run) -> None:
    text = attncli("--help").good().text
    assert attncli("help").good().text == attncli("-h").good().text == text == attncli().text
    assert [line.strip().partition(": ")[2] for line in text.splitlines()[-2:]] == PLACES
    assert set(re.findall(r"^  (\w+)  ", text, re.MULTILINE)) == {*COMMANDS, "help"}


def test_where_to_read_and_ask_is_what_the_project_says() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert [urls["Documentation"], urls["Issues"]] == PLACES


@pytest.mark.parametrize("command", ["compute", "explain", "info", "check"])
def test_json_is_the_format(command: str, files: Path, attncli: Run) -> None:
    words = ["q.npy", "k.npy", "v.npy"]
    words += ["--expect", "out.npy"] if command == "check" else []
    ran = attncli(command, *words, "--json").good()
    assert ran.json["schema"] == 1
    assert ran.out == attncli(command, *words, "--format", "json").out


def test_no_color_is_a_colour(files: Path, attncli: Run) -> None:
    words = ["compute", "q.npy", "k.npy", "--color", "always"]
    assert b"\x1b[" in attncli(*words).good().out
    assert b"\x1b[" not in attncli(*words, "--no-color").good().out


def test_what_is_required_says_so(attncli: Run) -> None:
    assert re.search(r"--expect \S+ +Required: ", attncli("check", "--help").good().text)
    ran = attncli("check")
    assert (ran.code, ran.messages[0]) == (2, "error: check needs an output to judge")


@pytest.fixture
def files(folder: Path) -> Path:
    """The files that the examples name; who made ``out`` was right."""
    random = np.random.default_rng(3)
    layer = {name: random.normal(size=(1, 4, 3, 2)) for name in ("query", "key", "value")}
    out = attention_oracle(*layer.values(), causal=True)["context"]
    np.savez("layer.npz", **layer, out=out)
    square = {name: random.normal(size=(3, 3)) for name in "qkv"}
    for name, array in square.items():
        np.savetxt(f"{name}.csv", array, delimiter=",")
        np.save(f"{name}.npy", array)
    np.save("out.npy", attention_oracle(*square.values())["context"])
    for number in range(2):
        np.savez(f"part{number}.npz", context=np.ones((3, 3)), lse=np.ones(3))
    (folder / "tokens.txt").write_text("the\ncat\nsat\n")
    return folder


# What capture runs needs PyTorch: tests/test_capture.py.
@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "capture"])
def test_the_examples_run(command: str, files: Path, attncli: Run) -> None:
    lines = re.findall(r"^  Example: (.*)$", attncli(command, "--help").good().text, re.MULTILINE)
    assert len(lines) >= 2
    if command == "info":
        attncli("heatmap", "q.csv", "k.csv", "--out", "weights.png").good()
        make = pytest.importorskip("safetensors.numpy").save_file
        make({"query": np.eye(2)}, "model.safetensors")
    for line in lines:
        program, *words = shlex.split(line)
        assert (program, words[0]) == ("attncli", command)
        words = [file for word in words for file in _found(files, word)]
        ran = attncli(*words).good()
        assert not [words for words in ran.messages if words.startswith("error")]


def _found(folder: Path, word: str) -> list[str]:
    """The files that a shell finds for a word with a star."""
    return sorted(path.name for path in folder.glob(word)) if "*" in word else [word]
