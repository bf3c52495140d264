"""Attention rollout (Abnar and Zuidema 2020) against plain loops, from files and folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

if TYPE_CHECKING:
    from process import Run

LAYERS, BATCH, HEADS, TOKENS = 3, 2, 2, 4


def by_loops(layers: Any, *, residual: bool = True) -> Any:
    """Return the rollout of weights (layers, B, H, L, L), number by number."""
    every = range(TOKENS)
    found = []
    for batch in range(BATCH):
        rolled = [[float(i == j) for j in every] for i in every]
        for layer in layers:
            mixing = []
            for i in every:
                row = [sum(layer[batch][h][i][j] for h in range(HEADS)) / HEADS for j in every]
                if residual:
                    row = [0.5 * row[j] + 0.5 * (i == j) for j in every]
                total = sum(row)
                mixing.append([number / total if total else 0.0 for number in row])
            rolled = [
                [sum(mixing[i][m] * rolled[m][j] for m in every) for j in every] for i in every
            ]
        found.append(rolled)
    return np.array(found)


@pytest.fixture
def weights(folder: Path) -> Any:
    """Causal weights of three layers in ``w.npy``; query 1 of layer 1 sees no key."""
    rng = np.random.default_rng(4)
    made = np.tril(rng.random((LAYERS, BATCH, HEADS, TOKENS, TOKENS)))
    made /= made.sum(-1, keepdims=True)
    made[1, :, :, 1] = 0
    np.save("w.npy", made)
    for layer, own in enumerate(made):
        np.save(f"w{layer}.npy", own)
    return made


def shown(attncli: Run, *words: str) -> Any:
    ran = attncli("compute", *words, "--show", "rollout", "--format", "json").good()
    return np.array(ran.json["rollout"])


def test_layers_come_from_one_file_or_from_one_each(weights: Any, attncli: Run) -> None:
    expected = by_loops(weights)
    found = shown(attncli, "w.npy")
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert not np.triu(found, 1).any()  # what is causal stays causal
    np.testing.assert_allclose(found.sum(-1), 1)
    np.testing.assert_allclose(shown(attncli, "w0.npy", "w1.npy", "w2.npy"), expected, rtol=1e-12)
    np.testing.assert_allclose(shown(attncli, "w.npy", "--batch", "1"), expected[1], rtol=1e-12)


def test_layers_come_from_a_folder_of_recorded_calls(folder: Path, attncli: Run) -> None:
    (folder / "dumps").mkdir()
    rng = np.random.default_rng(5)
    layers = []
    for layer in range(LAYERS):
        query, key = rng.normal(size=(2, BATCH, HEADS, TOKENS, 3))
        facts = {"schema": 1, "options": {"causal": True}, "layer": layer, "call": 0}
        save_file(
            {"query": query, "key": key, "value": key},
            str(folder / f"dumps/layer-{layer:03}-call-0000.safetensors"),
            {"attncli": json.dumps(facts)},
        )
        scores = np.einsum("bhid,bhjd->bhij", query, key) / np.sqrt(3)
        powers = np.tril(np.exp(scores))
        layers.append(powers / powers.sum(-1, keepdims=True))
    np.testing.assert_allclose(shown(attncli, "dumps"), by_loops(layers), rtol=1e-12)
    attncli("compute", "dumps", "--show", "rollout,top", "--save", "rollout=r.npy").good()
    np.testing.assert_allclose(np.load("r.npy"), by_loops(layers), rtol=1e-12)


def test_pictures_and_pages_show_it(weights: Any, attncli: Run) -> None:
    text = attncli("heatmap", "--rollout", "w.npy", "--batch", "0", "--annotate").good().text
    assert "rollout of 3 layers" in text
    for number in by_loops(weights)[0][np.tril_indices(TOKENS)]:
        assert f"{number:.2f}" in text
    raw = attncli("heatmap", "w.npy", "--rollout", "raw", "--batch", "1", "--annotate").good().text
    assert "without the residual" in raw
    assert f"{by_loops(weights, residual=False)[1, 3, 0]:.2f}" in raw
    attncli("heatmap", "w.npy", "--rollout", "--out", "w.html").good()
    page = Path("w.html").read_text(encoding="utf-8")
    assert "rollout of 3 layers" in page[: page.index("</title>")]


@pytest.mark.parametrize(
    "words",
    [
        "compute w0.npy --show rollout",  # a single layer
        "heatmap w.npy --layer 1 --rollout",
        "heatmap wide.npy --rollout",  # other keys than queries
        "heatmap w0.npy small.npy --rollout",  # layers of two shapes
        "compute w.npy --show rollout,context",
        "compute w.npy --show rollout --head 0",  # the heads are averaged
        "heatmap w.npy --rollout --what scores",
        "compute --show weights --save rollout=r.npy",
    ],
)
def test_what_has_no_rollout_is_one_error(weights: Any, attncli: Run, words: str) -> None:
    np.save("wide.npy", np.full((2, 1, 1, 2, 4), 0.25))
    np.save("small.npy", np.full((1, 1, 2, 2), 0.5))
    ran = attncli(*words.split())
    assert ran.code == 2
    assert sum(line.startswith("error: ") for line in ran.messages) == 1
    assert b"Traceback" not in ran.err
