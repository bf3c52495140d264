"""Mistakes with norms of query and key, each made by a line of NumPy, are named."""

from itertools import product

import numpy as np
import pytest
from process import long_but
from referee_numpy import draw, named

from attncli import pose, project
from attncli.referee import check

HEADS, GROUPS, WIDTH, TOKENS = 4, 2, 6, 7
WQ, WK, WV = draw(1, (8, HEADS * WIDTH), *[(8, GROUPS * WIDTH)] * 2, dtype="float64")
WEIGHTS = {"wq": WQ, "wk": WK, "wv": WV}
EACH = {
    name: 1 + weight / 4
    for name, weight in zip(
        ("q_norm", "k_norm"), draw(2, (WIDTH,), (WIDTH,), dtype="float64"), strict=True
    )
}


def _normed(rows, weight):
    vectors = rows.reshape(len(rows), -1, len(weight))
    means = np.square(vectors).mean(axis=2, keepdims=True)
    return (vectors / np.sqrt(means + 1e-6) * weight).reshape(rows.shape)


MISTAKES = {
    "norms_missing": lambda q, k: (q, k),
    "query_norm_missing": lambda q, k: (q, _normed(k, EACH["k_norm"])),
    "key_norm_missing": lambda q, k: (_normed(q, EACH["q_norm"]), k),
    "norm_weights_missing": lambda q, k: [_normed(rows, np.ones(WIDTH)) for rows in (q, k)],
    "norm_weights_plus_1": lambda q, k: (
        _normed(q, EACH["q_norm"] + 1),
        _normed(k, EACH["k_norm"] + 1),
    ),
    "norm_weights_minus_1": lambda q, k: (
        _normed(q, EACH["q_norm"] - 1),
        _normed(k, EACH["k_norm"] - 1),
    ),
    "norms_of_all_heads": lambda q, k: (
        _normed(q, np.tile(EACH["q_norm"], HEADS)),
        _normed(k, np.tile(EACH["k_norm"], GROUPS)),
    ),
}


@pytest.mark.parametrize(
    ("name", "tokens"),
    long_but(
        product(MISTAKES, [TOKENS, 200]),
        *product(MISTAKES, [TOKENS]),
        (next(iter(MISTAKES)), 200),
    ),
)
def test_mistakes_with_them_are_named(name, tokens):
    x = draw(3, (tokens, 8), dtype="float64")[0]
    query, key, value = (x @ WEIGHTS[f"w{letter}"] for letter in "qkv")
    made = project(x, **WEIGHTS, **EACH)
    problem = pose(made.query, made.key, made.value, heads=HEADS, kv_heads=GROUPS)
    right = attended(_normed(query, EACH["q_norm"]), _normed(key, EACH["k_norm"]), value)
    assert check(right, problem, projected=made).passed
    wrong = attended(*MISTAKES[name](query, key), value)
    assert named(check(wrong, problem, projected=made, time_limit=100)) == {name}


def attended(query, key, value):
    """Return the contexts of all heads, side by side, without attncli."""
    heads = []
    for head in range(HEADS):
        own = slice(head * WIDTH, (head + 1) * WIDTH)
        group = head // (HEADS // GROUPS)
        shared = slice(group * WIDTH, (group + 1) * WIDTH)
        powers = np.exp(query[:, own] @ key[:, shared].T / np.sqrt(WIDTH))
        heads.append(powers @ value[:, shared] / powers.sum(axis=1, keepdims=True))
    return np.concatenate(heads, axis=1)
