"""Norms of query and key behind their projection, as Qwen 3, Gemma 3 and OLMo 2 have them."""

import math

import numpy as np
import pytest
from linear_oracle import linear
from nearness import assert_near
from oracle import attention_oracle

from attncli import DataError, ShapeError, UsageError, explain, load, project

HEADS, GROUPS, WIDTH, TOKENS = 4, 2, 6, 7


def drawn(*seed_and_shape):
    seed, *shape = seed_and_shape
    return np.random.default_rng(seed).normal(size=shape)


def normed(rows, weight, epsilon=1e-6):
    """Return vectors of length len(weight), side by side in rows, normalised in plain loops."""
    width, found = len(weight), []
    for row in rows.reshape(-1, rows.shape[-1]).tolist():
        made = []
        for start in range(0, len(row), width):
            own = row[start : start + width]
            rms = math.sqrt(math.fsum(x * x for x in own) / width + epsilon)
            made += [x / rms * w for x, w in zip(own, weight.tolist(), strict=True)]
        found.append(made)
    return np.array(found).reshape(rows.shape)


X = drawn(1, TOKENS, 8)
WEIGHTS = {
    "wq": drawn(2, 8, HEADS * WIDTH),
    "wk": drawn(3, 8, GROUPS * WIDTH),
    "wv": drawn(4, 8, GROUPS * WIDTH),
}
EACH = {"q_norm": 1 + drawn(5, WIDTH) / 4, "k_norm": 1 + drawn(6, WIDTH) / 4}
ALL = {"q_norm": 1 + drawn(7, HEADS * WIDTH) / 4, "k_norm": 1 + drawn(8, GROUPS * WIDTH) / 4}


@pytest.mark.parametrize("norms", [EACH, ALL], ids=["of each head", "of all heads"])
@pytest.mark.parametrize("epsilon", [None, 0.1])
def test_query_and_key_are_normalised(norms, epsilon):
    made = project(X, **WEIGHTS, **norms, norm_eps=epsilon)
    own = 1e-6 if epsilon is None else epsilon
    for name, of in (("q", made.query), ("k", made.key)):
        expected = normed(linear(X, WEIGHTS[f"w{name}"]), norms[f"{name}_norm"], own)
        assert_near(of, expected, rtol=1e-13, atol=1e-14)
    assert_near(made.value, linear(X, WEIGHTS["wv"]), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("error", "words", "norms"),
    [
        (
            ShapeError,
            r"q_norm: expected a number for each component .* \(24\)",
            {"q_norm": [1] * 5},
        ),
        (ShapeError, "k_norm: expected a number", {"k_norm": np.ones((2, 3))}),
        (ShapeError, "q_norm: expected a number", {"q_norm": []}),
        (DataError, "q_norm: expected finite numbers", {"q_norm": [np.nan] * WIDTH}),
        (UsageError, "norm_eps is for q_norm and k_norm", {"norm_eps": 1e-5}),
        (UsageError, "norm_eps: expected a number above 0", {**EACH, "norm_eps": 0}),
    ],
)
def test_errors_say_what_and_where(error, words, norms):
    with pytest.raises(error, match=words):
        project(X, **WEIGHTS, **norms)


@pytest.fixture
def files(folder):
    np.save("x.npy", X)
    for name, array in (WEIGHTS | EACH).items():
        np.save(f"{name}.npy", array)
    return [word for name in WEIGHTS for word in (f"--{name}", f"{name}.npy")]


def test_on_the_command_line(files, attncli):
    ran = attncli(
        *("compute", "x.npy", *files, "--heads", str(HEADS), "--format", "json"),
        *("--q-norm", "q_norm.npy", "--k-norm", "k_norm.npy", "--norm-eps", "0.01", "--rope=half"),
    )
    query, key, value = (linear(X, WEIGHTS[f"w{name}"]) for name in "qkv")
    query, key = (normed(rows, EACH[n], 0.01) for rows, n in ((query, "q_norm"), (key, "k_norm")))
    expected = attention_oracle(query, key, value, heads=HEADS, kv_heads=GROUPS, rope="half")
    assert_near(np.array(ran.good().json["weights"]), expected["weights"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norms", [EACH, ALL], ids=["of each head", "of all heads"])
@pytest.mark.parametrize("head", [0, 1, HEADS - 1])
def test_they_are_explained(norms, head):
    problem = load(x=X, **WEIGHTS, **norms, heads=HEADS, norm_eps=0.01)
    told = explain(problem, query=3, head=head)
    norm = told.made.norm
    projected = linear(X, WEIGHTS["wq"])[3]
    own = projected[head * WIDTH :][:WIDTH]
    joint = norms is ALL
    assert norm.joint == joint
    assert_near(norm.projected, own, rtol=1e-12)
    squares = [x * x for x in (projected if joint else own).tolist()]
    assert norm.rms == pytest.approx(math.sqrt(math.fsum(squares) / len(squares) + 0.01))
    assert_near(norm.projected / norm.rms * norm.weight, told.given, rtol=1e-12)
    text = str(told)
    assert f"{norm.rms:.4f}" in text
    assert "q_norm" in text
