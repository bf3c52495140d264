"""What --help shows: the most used first, and examples that run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from oracle import attention_oracle
from process import Ran

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Ran]
# What a command is about, and the groups of its own.
FIRST = {
    "compute": (["--show", "--format", "--save"], []),
    "heatmap": (["--out"], ["Picture"]),
    "explain": (["--query", "--format"], []),
    "check": (["--expect", "--diagnose", "--strict", "--diff", "--format"], ["How it is judged"]),
}
COMMANDS = [*FIRST, "info"]


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
    (folder / "tokens.txt").write_text("the\ncat\nsat\n")
    return folder


@pytest.mark.parametrize("command", COMMANDS)
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
        ran = attncli(*words).good()
        assert not [words for words in ran.messages if words.startswith("error")]


def test_the_help_of_all_commands_leads_to_that_of_each(attncli: Run) -> None:
    assert "attncli COMMAND --help shows the options of a command" in attncli("--help").good().text
