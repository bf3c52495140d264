"""`compute --format markdown`, parsed back: the tables of a pipe, whatever the labels hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from markdown_blocks import blocks
from oracle import attention_oracle

if TYPE_CHECKING:
    from pathlib import Path

    from process import Run

Q = np.random.default_rng(0).normal(size=(2, 3, 2, 4))


@pytest.fixture
def heads(folder: Path) -> Path:
    """Two batch entries of three heads."""
    np.save("x.npy", Q)
    return folder


def test_each_head_has_its_tables_and_their_numbers(heads: Path, attncli: Run) -> None:
    words = ["compute", "x.npy", "x.npy", "x.npy", "--tokens", "a|b,*c*", "--digits", "3"]
    ran = attncli(*words, "-f", "markdown").good()
    assert ran.messages == []
    found = blocks(ran.text)
    expected = attention_oracle(Q, Q, Q)
    assert [kind for kind, _ in found] == ["h2", "table"] * 12
    for number, (title, table) in enumerate(zip(found[::2], found[1::2], strict=True)):
        batch, head, name = number // 6, number % 6 // 2, ("weights", "context")[number % 2]
        assert title[1] == f"{name} · batch {batch} · head {head}"
        (corner, *columns), *rows = table[1]
        assert corner == ""
        assert columns == (["a|b", "*c*"] if name == "weights" else ["0", "1", "2", "3"])
        assert [row[0] for row in rows] == ["a|b", "*c*"]
        numbers = [[f"{x + 0.0:.3f}" for x in row] for row in expected[name][batch, head]]
        assert [row[1:] for row in rows] == numbers


@pytest.mark.parametrize(
    "names",
    ["weights,context,lse", "query,key,value", "raw,capped,scores", "stats", "top", "top,weights"],
)
def test_its_cells_are_those_of_a_pipe(names: str, heads: Path, attncli: Run) -> None:
    words = ["compute", "x.npy", "x.npy", "x.npy", "--causal", "--show", names]
    words += ["--max-rows", "1", "--max-cols", "1", "--softcap", "2"]
    lines = attncli(*words).good().text.splitlines()
    told = [line.split() for line in lines if line and set(line) != {"─"}]
    found: list[list[str]] = []
    for kind, content in blocks(attncli(*words, "-f", "markdown").good().text):
        texts = [" ".join(row) for row in content] if kind == "table" else [content]
        found += [text.split() for text in texts]
    assert found == told


def test_the_mean_of_the_heads(heads: Path, attncli: Run) -> None:
    words = ["compute", "x.npy", "x.npy", "--average-heads", "--batch", "1", "-f", "markdown"]
    (_, title), (_, table) = blocks(attncli(*words).good().text)
    assert title == "weights · batch 1 · mean of the heads"
    mean = attention_oracle(Q, Q, Q)["weights"][1].mean(axis=0)
    assert [row[1:] for row in table[1:]] == [[f"{x:.4f}" for x in row] for row in mean]
