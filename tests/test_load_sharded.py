"""Checkpoints in several files, and the index that says which file holds which tensor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from attncli import InputError
from attncli.gather import load
from attncli.loading import read

if TYPE_CHECKING:
    from pathlib import Path

INDEX = "model.safetensors.index.json"
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
NAMES = [f"layers.0.self_attn.{letter}_proj.weight" for letter in "qkvo"]


@pytest.fixture
def arrays(folder: Path) -> dict[str, np.ndarray]:
    """A layer of four projections, two in each file."""
    random = np.random.default_rng(0)
    made = {name: random.normal(size=(8, 8)).astype("f4") for name in NAMES}
    for file, names in zip(FILES, (NAMES[:2], NAMES[2:]), strict=True):
        save_file({name: made[name] for name in names}, folder / file)
    places = dict.fromkeys(NAMES[:2], FILES[0]) | dict.fromkeys(NAMES[2:], FILES[1])
    write(folder, {"metadata": {"total_size": 1024}, "weight_map": places})
    np.save(folder / "x.npy", random.normal(size=(5, 8)))
    return made


def write(folder: Path, index: object) -> None:
    (folder / INDEX).write_text(json.dumps(index))


def test_a_layer_in_two_files(arrays: dict[str, np.ndarray], folder: Path) -> None:
    save_file(arrays, folder / "whole.safetensors")
    options = {"heads": 2, "rope": "half", "causal": True}
    split = load("x.npy", checkpoint=f"{INDEX}#layers.0", **options)
    whole = load("x.npy", checkpoint="whole.safetensors", **options)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(split, name), getattr(whole, name))
    np.testing.assert_array_equal(split.output.weight, whole.output.weight)


def test_only_the_files_of_the_layer_are_opened(
    arrays: dict[str, np.ndarray], folder: Path
) -> None:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["layers.1.self_attn.q_proj.weight"] = "not-there.safetensors"
    write(folder, index)
    assert load("x.npy", checkpoint=f"{INDEX}#layers.0", heads=2, rope="half").shape[1] == 2
    with pytest.raises(InputError, match=r"not-there\.safetensors"):
        read(INDEX).entries["layers.1.self_attn.q_proj.weight"]


def test_info_lists_members_and_layers(arrays: dict[str, np.ndarray], attncli) -> None:
    (found,) = attncli("info", INDEX, "--no-numbers", "-f", "json").good().json["files"]
    assert [member["name"] for member in found["members"]] == NAMES
    assert {tuple(member["shape"]) for member in found["members"]} == {(8, 8)}
    assert [layer["checkpoint"] for layer in found["layers"]] == [f"{INDEX}#layers.0.self_attn"]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ([1], "expected the index of a checkpoint, with weight_map; found none"),
        ({"weight_map": {}}, "with weight_map; found none"),
        ({"weight_map": {"a": 3}}, "expected the name of a file beside it for a; found '3'"),
        ({"weight_map": {"a": "../a.safetensors"}}, "expected the name of a file beside it"),
        ({"weight_map": {"a": "x.npy"}}, "is not a safetensors file"),
        ({"weight_map": {"a": FILES[0]}}, f"{FILES[0]} holds no a, though {INDEX} says so"),
    ],
)
def test_what_is_no_index_is_said(
    index: object, words: str, arrays: dict[str, np.ndarray], folder: Path
) -> None:
    write(folder, index)
    with pytest.raises(InputError, match=words):
        _ = read(INDEX).entries["a"]
