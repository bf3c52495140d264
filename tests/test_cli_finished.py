"""``attncli compute`` of finished weights: what they come to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from referee_numpy import softmax

if TYPE_CHECKING:
    from process import Run

SHOW = ("--show", "stats,top", "-f", "json")


@pytest.fixture
def problem(folder: Path) -> Path:
    """Queries and keys of two batch entries and three heads, and their causal weights."""
    query, key = np.random.default_rng(0).normal(size=(2, 2, 3, 5, 4))
    scores = query @ key.swapaxes(-1, -2) / 2
    np.save("q.npy", query)
    np.save("k.npy", key)
    np.save("w.npy", softmax(np.where(np.tri(5, dtype=bool), scores, -np.inf)))
    return folder


def numbers(part: object) -> object:
    """Round what is computed in two ways."""
    return json.loads(json.dumps(part), parse_float=lambda text: round(float(text), 12))


@pytest.mark.parametrize(
    ("pick", "heads"),
    [((), 6), (("--head", "1"), 2), (("--batch", "1", "--head", "0"), 1)],
)
def test_they_come_to_what_the_problem_does(
    pick: tuple[str, ...], heads: int, problem: Path, attncli: Run
) -> None:
    of_problem = attncli("compute", "q.npy", "k.npy", "--causal", *SHOW, *pick).good().json
    of_weights = attncli("compute", "w.npy", *SHOW, *pick).good().json
    assert numbers(of_weights) == numbers(of_problem)
    assert len(of_weights["stats"]) == heads


def test_many_rows_are_read_in_parts(folder: Path, attncli: Run) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(40), (1, 60_000)).astype(np.float32)
    np.save("w.npy", weights)
    (stats,) = attncli("compute", "w.npy", "--show", "stats", "-f", "json").good().json["stats"]
    assert stats["queries"] == 60_000
    assert stats["first_key"] == pytest.approx(weights[..., 0].mean(), rel=1e-4)


def test_scores_that_stand_beside_them_say_what_is_hidden(folder: Path, attncli: Run) -> None:
    """A key that is seen with a weight of 0 counts among the negligible ones."""
    Path("w.json").write_text('{"weights": [[1.0, 0.0, 0.0]], "scores": [[0.0, -900.0, null]]}')
    (stats,) = attncli("compute", "w.json", "--show", "stats", "-f", "json").good().json["stats"]
    assert stats["negligible"] == 0.5
    (top,) = attncli("compute", "w.json", "--show", "top", "-f", "json").good().json["top"]
    assert [key["index"] for key in top["keys"]] == [0, 1]


def test_files_are_written(problem: Path, attncli: Run) -> None:
    attncli("compute", "w.npy", "--show", "stats", "--save", "stats=s.csv", "--save", "top=t.json")
    assert Path("s.csv").read_text().startswith("batch,head,queries")
    assert len(json.loads(Path("t.json").read_text())["top"]) == 30


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "w.npy: expected query, key and value"),
        (("--show", "weights,context"), "w.npy: expected query, key and value"),
        (("--show", "stats", "--save", "lse=o.npy"), "w.npy: expected query, key and value"),
        (("--show", "weights,stats", "-f", "npz"), "NPZ holds only arrays; found stats"),
        (("--show", "weights", "--with-labels"), "--with-labels is for CSV and TSV"),
        (("--show", "stats", "--average-heads"), "--average-heads does not go with stats"),
        (("--show", "stats", "--top", "2"), "--top says how many keys"),
        (("--show", "top", "--save", "top=w.npy"), "the output w.npy is the same file"),
        (("--save", "x.csv"), "w.npy: expected query, key and value"),
        (("--show", "stats,top", "-f", "csv"), "csv holds one array; found stats and top"),
        (("--show", "top", "--head", "3"), "--head: expected an index from -3 to 2; found 3"),
    ],
)
def test_what_cannot_be_asked_of_them(
    words: tuple[str, ...], message: str, problem: Path, attncli: Run
) -> None:
    before = Path("w.npy").read_bytes()
    ran = attncli("compute", "w.npy", *words)
    assert (ran.code, ran.out) == (2, b"")
    assert message in ran.messages[0]
    assert Path("w.npy").read_bytes() == before
    assert sorted(path.name for path in problem.iterdir()) == ["k.npy", "q.npy", "w.npy"]


def test_weights_a_little_below_0_are_0(folder: Path, attncli: Run) -> None:
    np.save("w.npy", np.where(np.tri(5, dtype=bool), 0.2, -1e-9))
    (stats,) = attncli("compute", "w.npy", "--show", "stats", "-f", "json").good().json["stats"]
    assert stats["negligible"] == 0
    assert stats["entropy"] == pytest.approx(np.log(np.arange(1, 6)).mean())
    (first, *_) = attncli("compute", "w.npy", "--show", "top", "-f", "json").good().json["top"]
    assert [key["index"] for key in first["keys"]] == [0]


def test_a_problem_file_names_their_file_beside_it(problem: Path, attncli: Run) -> None:
    (problem / "runs").mkdir()
    Path("w.npy").rename("runs/w.npy")
    words = "weights: w.npy\nkey_labels: [the, cat, sat, on, it]\n"
    Path("runs/seen.yaml").write_text(words, encoding="utf-8")
    of_name = attncli("compute", "runs/seen.yaml", *SHOW).good().json
    of_file = attncli("compute", "runs/w.npy", "--key-labels", "the,cat,sat,on,it", *SHOW)
    assert of_name == of_file.good().json
    refused = attncli("compute", "runs/seen.yaml", "--show", "top", "--save", "top=runs/w.npy")
    assert (refused.code, refused.out) == (2, b"")
    assert "the output runs/w.npy is the same file as the input" in refused.messages[0]


def test_they_are_shown_as_they_are(problem: Path, attncli: Run) -> None:
    weights = np.load("w.npy")
    words = ("compute", "w.npy", "--show", "weights", "--tokens", "a,b,c,d,e")
    text = attncli(*words, "--batch", "1", "--head", "2,0", "--digits", "6").good().text
    titles = [line for line in text.splitlines() if line.startswith("weights")]
    assert titles == ["weights · batch 1 · head 2", "weights · batch 1 · head 0"]
    assert f"{weights[1, 0, 4, 2]:.6f}" in text
    assert text.splitlines()[1].split() == ["a", "b", "c", "d", "e"]
    whole = attncli(*words, "-f", "json").good().json
    np.testing.assert_array_equal(whole["weights"], weights)
    assert whole["key_labels"] == ["a", "b", "c", "d", "e"]
    one = attncli(*words, "--batch", "0", "--head", "-1", "-f", "csv", "--with-labels").good().out
    head, first, *_ = one.decode().splitlines()
    assert (head, first) == (",a,b,c,d,e", f"a,{','.join(map(str, weights[0, 2, 0].tolist()))}")
    np.save("batched.npy", weights[:, 0])
    batched = ("compute", "batched.npy", "--layout", "bsd", "--show", "weights")
    assert "weights · batch 1\n" in attncli(*batched).good().text
    assert attncli(*batched, "-f", "json").good().json["layout"] == "bsd"


@pytest.mark.parametrize(
    ("words", "beside"),
    [
        ("w.npy --show weights", "finished weights (w.npy)"),
        ("w.npy --show rollout", "--show rollout"),
        ("q.npy k.npy v.npy --tokens a,##b --merge words", "--merge"),
    ],
)
def test_gradients_beside_finished_weights_are_refused(
    words: str, beside: str, folder: Path, attncli: Run
) -> None:
    np.save("w.npy", np.full((2, 1, 2, 2), 0.5))
    for name in "qkv":
        np.save(f"{name}.npy", np.ones((2, 2)))
    for grad in ("ones", "do.npy"):
        ran = attncli("compute", *words.split(), "--grad", grad)
        assert ran.code == 2
        assert ran.messages[0].startswith(f"error: --grad does not go with {beside}")
