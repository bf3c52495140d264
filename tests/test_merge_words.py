"""Subwords joined to words: `--merge` of compute, heatmap and the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from attncli.summaries.words import words_of

if TYPE_CHECKING:
    from process import Run

TOKENS = ["[CLS]", "play", "##ing", "un", "##like", "##ly", "."]
# The tokens of each word, written by hand.
MEMBERS = [[0], [1, 2], [3, 4, 5], [6]]
NAMES = ["[CLS]", "playing", "unlikely", "."]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (" ".join(TOKENS), " ".join(NAMES)),
        ("The Ġquick er Ġdog 's .", "The quicker dog's ."),
        ("<s> ▁The ▁qui ck </s> x", "<s> The quick </s> x"),
        ("<|im_start|> user Ġa", "<|im_start|> user a"),
        ("a b c", "a b c"),
        ("##a ## ##b", "a ##b"),
    ],
)
def test_tokenizers_mark_what_belongs(tokens: str, words: str) -> None:
    found = words_of(tokens.split())
    assert found.names == tuple(words.split())
    assert found.starts[0] == 0
    assert sorted(found.starts) == [*found.starts]


@pytest.fixture
def given(folder: Path) -> Any:
    """Queries, keys and their names in files; and the weights of words by plain loops."""
    rng = np.random.default_rng(3)
    query, key = rng.normal(size=(2, 2, 7, 3))
    np.save("q.npy", query)
    np.save("k.npy", key)
    Path("t.txt").write_text("\n".join(TOKENS))
    scores = np.einsum("hid,hjd->hij", query, key) / np.sqrt(3)
    scores[:, np.arange(7)[:, None] < np.arange(7)] = -np.inf
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True)
    expected = np.zeros((2, 4, 4))
    for head, i, j in np.ndindex(2, 4, 4):
        rows = [sum(weights[head, q, k] for k in MEMBERS[j]) for q in MEMBERS[i]]
        expected[head, i, j] = sum(rows) / len(rows)
    return expected


WORDS = ["q.npy", "k.npy", "--layout", "hsd", "--causal", "--tokens", "t.txt"]


def test_compute_sums_over_keys_and_averages_over_queries(given: Any, attncli: Run) -> None:
    ran = attncli("compute", *WORDS, "--merge", "words", "--format", "json").good()
    np.testing.assert_allclose(np.array(ran.json["weights"], float), given, rtol=1e-12)
    one = attncli("compute", *WORDS, "--merge", "words", "--head", "1", "-f", "json").good()
    np.testing.assert_allclose(np.array(one.json["weights"], float), given[1], rtol=1e-12)
    table = attncli("compute", *WORDS, "--merge", "words", "--show", "weights,top").good().text
    assert "unlikely" in table
    assert "##" not in table
    assert re.search(r"^weights · head 1 · subwords joined", table, re.MULTILINE)


def test_groups_come_from_a_file(given: Any, attncli: Run) -> None:
    Path("g.txt").write_text("\n".join("0112223"))
    ran = attncli("compute", *WORDS, "--merge", "g.txt", "--format", "json").good()
    np.testing.assert_allclose(np.array(ran.json["weights"], float), given, rtol=1e-12)
    Path("g.txt").write_text("0\n1\n")
    assert attncli("compute", *WORDS, "--merge", "g.txt").code == 2


def test_pictures_and_pages_name_words_and_say_so(given: Any, attncli: Run) -> None:
    attncli("heatmap", *WORDS, "--merge", "words", "--out", "w.html").good()
    text = Path("w.html").read_text(encoding="utf-8")
    assert "averaged over queries" in text[: text.index("</title>")]
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert data["labels"] == [NAMES]
    assert data["maps"][0]["reasons"] == 0  # what is causal stays hidden
    attncli("heatmap", *WORDS, "--merge", "words", "--head", "0", "--out", "w.svg").good()
    svg = Path("w.svg").read_text(encoding="utf-8")
    assert "averaged over queries" in svg
    assert "unlikely" in svg


@pytest.mark.parametrize(
    "words",
    [
        "compute q.npy k.npy --layout hsd --merge words",
        f"compute {' '.join(WORDS)} --merge words --show context",
        f"compute {' '.join(WORDS)} --merge none.txt",
        f"heatmap {' '.join(WORDS)} --merge words --what scores",
    ],
)
def test_what_has_no_words_is_refused(given: Any, attncli: Run, words: str) -> None:
    ran = attncli(*words.split())
    assert ran.code == 2
    assert b"Traceback" not in ran.err
