"""Every good sample gives what the oracle gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracle import attention_2d

from attncli import load, solve

SAMPLES = Path(__file__).parents[1] / "samples"
QUERY = [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]
KEY = [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
VALUE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
SEEN = [[True, True, False], [True, True, True]]


@pytest.fixture
def computed(attncli, monkeypatch):
    monkeypatch.chdir(SAMPLES)
    return lambda *words: attncli("compute", *words, "--format", "json").good().json


def by_loops(query, key, value, seen=None):
    weights, context = attention_2d(query, key, value, seen=seen)
    return {"weights": weights, "context": context}


def check(answer, expected, tolerance=1e-12):
    for name in ("weights", "context"):
        np.testing.assert_allclose(
            np.array(answer[name]), np.array(expected[name]), rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("suffix", ["csv", "npy", "yaml"])
def test_tutorial_files(suffix, computed):
    answer = computed(*(f"tutorial/{name}.{suffix}" for name in "qkv"))
    check(answer, by_loops(QUERY, KEY, VALUE))


def test_masked_problem_file_names_its_files(computed):
    check(computed("tutorial/masked.yaml"), by_loops(QUERY, KEY, VALUE, seen=SEEN))


def test_built_in_example_is_the_tutorial_problem():
    answer = solve(load())
    check(vars(answer), by_loops(QUERY, KEY, VALUE))


def test_sentence_is_causal_and_labelled(computed):
    answer = computed("sentence.yaml")
    rows = {
        "query": [[1.0, 0.2, 0.1, 0.0], [0.6, 1.0, 0.3, 0.1], [1.4, 2.2, 0.2, 0.5]],
        "key": [[1.2, 0.3, 0.0, 0.1], [0.5, 1.3, 0.2, 0.4], [0.1, 0.2, 1.0, 0.3]],
        "value": [[1.0, 0.0], [0.1, 1.0], [0.2, 0.7]],
    }
    seen = [[key <= query for key in range(3)] for query in range(3)]
    check(answer, by_loops(rows["query"], rows["key"], rows["value"], seen=seen))
    assert answer["query_labels"] == answer["key_labels"] == ["The", "cat", "sat"]
    to_the, to_cat, to_itself = answer["weights"][2]
    assert to_cat > to_the > to_itself


def minilm(name):
    return np.load(SAMPLES / "minilm" / f"{name}.npy")


def test_minilm_gives_what_the_model_computed(computed):
    answer = computed(*(f"minilm/{name}.npy" for name in ("query", "key", "value")))
    expected = {name: minilm(name) for name in ("weights", "context")}
    check(answer, expected, tolerance=2e-6)
