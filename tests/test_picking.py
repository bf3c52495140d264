"""Some batch entries and heads of a problem: by index, several in an order, and ranges."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from oracle import attention_oracle

import attncli
from attncli.errors import UsageError
from attncli.numerics.indices import indices_in

if TYPE_CHECKING:
    from pathlib import Path

    from process import Run

BATCH, HEADS, GROUPS = 3, 8, 2


def arrays() -> dict[str, Any]:
    """Every option that differs by batch entry or head."""
    random = np.random.default_rng(0)
    shape = BATCH, HEADS, 5, 6
    return {
        "query": random.normal(size=(BATCH, HEADS, 5, 4)),
        "key": random.normal(size=(BATCH, GROUPS, 6, 4)),
        "value": random.normal(size=(BATCH, GROUPS, 6, 3)),
        "causal": True,
        "query_offset": [1, 0, 2],
        "kv_lengths": [6, 4, 5],
        "query_lengths": [5, 3, 4],
        "bias": random.normal(size=shape),
        "mask": random.random(shape) > 0.2,
        "key_padding_mask": random.random((BATCH, 6)) > 0.1,
        "alibi_slopes": random.random(HEADS),
        "sinks": random.normal(size=HEADS),
    }


@pytest.mark.filterwarnings("ignore::attncli.AttnWarning")
@pytest.mark.parametrize("batch", [None, -1, [2, 0], np.array([1])])
@pytest.mark.parametrize("head", [None, 3, [0, 1, 4, 5], [5, 0, 1], range(2, 6), (-1, 0)])
def test_a_part_has_the_results_that_the_whole_has_there(batch: Any, head: Any) -> None:
    given = arrays()
    whole = attention_oracle(**given)
    names = ("weights", "context", "lse", "scores")
    part = attncli.solve(attncli.pose(**given).select(batch=batch, head=head), names)
    for name in names:
        expected = whole[name]
        if head is not None:
            expected = np.take(expected, head if np.ndim(head) == 0 else [*head], axis=1)
        if batch is not None:
            expected = np.take(expected, batch if np.ndim(batch) == 0 else [*batch], axis=0)
        np.testing.assert_allclose(getattr(part, name), expected, atol=1e-13)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ([], "head: expected one or more indices; found none"),
        ([0, 2], "head: expected an index from -2 to 1; found 2"),
        ([1, -1], "head: expected each index once; found 1 twice"),
        ([0.5], "head: expected a whole number; found 0.5"),
        ("01", "head: expected a whole number; found '01'"),
    ],
)
def test_what_cannot_be_picked(head: Any, message: str) -> None:
    x = np.zeros((1, 2, 3, 4))
    with pytest.raises(UsageError, match=re.escape(message)):
        attncli.pose(x, x).select(head=head)


@pytest.mark.parametrize(
    ("words", "indices"),
    [
        ("3", 3),
        ("-1", 11),
        ("0,3", (0, 3)),
        ("4:8", (4, 5, 6, 7)),
        (":2", (0, 1)),
        ("-2:", (10, 11)),
        ("0,4:6,-1", (0, 4, 5, 11)),
    ],
)
def test_how_they_are_written(words: str, indices: int | tuple[int, ...]) -> None:
    assert indices_in("--head", words, 12) == indices


@pytest.fixture
def files(folder: Path) -> np.ndarray:
    """Queries of 2 batch entries and 4 heads, keys of 2 groups; their weights, too."""
    random = np.random.default_rng(3)
    q, k = random.normal(size=(2, 4, 3, 5)), random.normal(size=(2, 2, 3, 5))
    np.save("q.npy", q)
    np.save("k.npy", k)
    weights = attention_oracle(q, k, k)["weights"]
    np.save("w.npy", weights)
    return weights


def test_tables_name_the_heads_as_the_problem_does(files: np.ndarray, attncli: Run) -> None:
    picked = ("--batch", "-1", "--head", "3,1")
    text = attncli("compute", "q.npy", "k.npy", *picked, "--show", "weights,query").good().text
    titles = [line for line in text.splitlines() if "·" in line]
    assert titles == [
        f"{name} · batch 1 · head {head}" for name in ("weights", "query") for head in (3, 1)
    ]
    assert f"{files[1, 3, 0, 0]:.4f}" in text


def test_finished_weights_are_picked_alike(files: np.ndarray, attncli: Run) -> None:
    words = ("--head", "1,3", "--show", "stats", "-f", "json")
    of_weights = attncli("compute", "w.npy", *words).good().json["stats"]
    of_problem = attncli("compute", "q.npy", "k.npy", *words).good().json["stats"]
    assert [part["head"] for part in of_weights] == [1, 3, 1, 3]
    for one, other in zip(of_weights, of_problem, strict=True):
        assert one["entropy"] == pytest.approx(other["entropy"], abs=1e-12)
    assert attncli("heatmap", "w.npy", *words[:2]).good().text == (
        attncli("heatmap", "q.npy", "k.npy", *words[:2]).good().text
    )


def test_the_mean_of_some_heads(files: np.ndarray, attncli: Run) -> None:
    words = ("compute", "q.npy", "k.npy", "--average-heads", "--head", "0,2", "--show", "weights")
    text = attncli(*words, "--digits", "6").good().text
    assert "weights · batch 1 · mean of heads 0, 2" in text
    mean = files[:, [0, 2]].mean(axis=1)
    assert f"{mean[1, 2, 1]:.6f}" in text
    np.testing.assert_allclose(attncli(*words, "-f", "json").good().json["weights"], mean)
    drawn = attncli("heatmap", *words[1:6], "--batch", "1").good().text
    assert drawn.startswith("Attention weights: batch 1, mean of heads 0, 2\n")


def test_panels_name_the_heads_as_the_problem_does(files: np.ndarray, attncli: Run) -> None:
    picked = ("--batch", "1", "--head", "3,1")
    for problem in (("q.npy", "k.npy"), ("w.npy",)):
        text = attncli("heatmap", *problem, *picked).good().text
        assert text.startswith("Attention weights: batch 1\n")
        assert re.findall(r"head \d", text) == ["head 3", "head 1"]
        difference = attncli("heatmap", *problem, *picked, "--minus", "w.npy").good().text
        assert re.findall(r"head \d", difference) == ["head 3", "head 1"]
        one = attncli("heatmap", *problem, "--batch", "1", "--head", "-1").good().text
        assert one.startswith("Attention weights: batch 1, head 3\n")
