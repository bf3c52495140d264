"""Gradients against PyTorch's autograd, central differences, and cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import attention_oracle

import attncli
from attncli import gradients

INPUTS = ("query", "key", "value")


def arrays(seed, *, batch=1, heads=2, groups=1, queries=4, keys=5, width=4, value_width=3):
    random = np.random.default_rng(seed)
    return {
        "query": random.normal(size=(batch, heads, queries, width)),
        "key": random.normal(size=(batch, groups, keys, width)),
        "value": random.normal(size=(batch, groups, keys, value_width)),
    }


def loss(inputs, dcontext, dlse, rules):
    """Return the loss whose gradients are asked for, by the oracle's plain loops."""
    made = attention_oracle(*(inputs[name] for name in INPUTS), **rules)
    lse = np.where(np.isneginf(made["lse"]), 0, made["lse"])
    return float((made["context"] * dcontext).sum() + (lse * dlse).sum())


RULES = {
    "nothing": {},
    "causal": {"causal": True, "query_offset": 1},
    "window": {"window": (1, 1), "query_offset": 0},
    "softcap": {"softcap": 1.5},
    "scale": {"scale": 0.3},
    "bias": {"bias": np.linspace(-1, 1, 5)},
    "a bias of each head": {"bias": np.linspace(-1, 1, 40).reshape(2, 4, 5)},
    "sinks": {"sinks": np.array([0.3, -0.7])},
    "ALiBi": {"alibi_slopes": np.array([0.5, 0.1]), "query_offset": 1},
    "mask": {"mask": np.arange(20).reshape(4, 5) % 3 > 0},
    "lengths": {"kv_lengths": [3], "query_lengths": [2]},
    "rope": {"rope": "half", "query_offset": 1},
    "cosine": {"score": "cosine", "scale": 2.0},
    "general": {"score": "general", "score_weight": np.arange(16.0).reshape(4, 4) / 10 - 0.5},
}


@pytest.mark.parametrize("name", RULES)
def test_central_differences(name):
    inputs, rules = arrays(0), RULES[name]
    random = np.random.default_rng(1)
    dcontext, dlse = random.normal(size=(1, 2, 4, 3)), random.normal(size=(1, 2, 4))
    if rules.get("query_lengths"):
        dlse[:, :, 2:] = 0
    learned = [one for one in ("bias", "sinks") if one in rules]
    outputs = [f"d{one}" for one in (*INPUTS, *learned)]
    made = gradients(**inputs, dcontext=dcontext, dlse=dlse, outputs=outputs, **rules)
    step = 1e-6
    for one in (*INPUTS, *learned):
        given = {**inputs, **rules}[one]
        numeric = np.zeros(given.shape)
        for place in np.ndindex(given.shape):
            moved = []
            for sign in (1, -1):
                changed = given.copy()
                changed[place] += sign * step
                changed_rules = {**rules, one: changed} if one in rules else rules
                moved.append(loss({**inputs, one: changed}, dcontext, dlse, changed_rules))
            numeric[place] = (moved[0] - moved[1]) / (2 * step)
        found = getattr(made, one)
        assert found.shape == given.shape
        np.testing.assert_allclose(found, numeric, rtol=1e-6, atol=1e-8)


def test_a_case_worked_by_hand():
    # One query, two keys with scores 0: weights 1/2. dV = w · dO; dS = w (v − mean) = ±1/2.
    made = gradients([[0.0]], [[1.0], [2.0]], [[1.0], [3.0]], [[1.0]], scale=1)
    np.testing.assert_allclose(made.value, [[0.5], [0.5]])
    np.testing.assert_allclose(made.query, [[-0.5 * 1 + 0.5 * 2]])
    np.testing.assert_allclose(made.key, [[0.0], [0.0]])


def test_hidden_places_leak_nothing_and_get_nothing():
    inputs = arrays(2)
    inputs["key"][..., 4, :] = np.nan
    inputs["value"][..., 4, :] = np.inf
    dcontext = np.ones((1, 2, 4, 3))
    dcontext[:, :, 3] = np.nan
    rules = {"kv_lengths": [4], "query_lengths": [3]}
    made = gradients(**inputs, dcontext=dcontext, **rules)
    for array in (made.query, made.key, made.value):
        assert np.isfinite(array).all()
    assert (made.query[:, :, 3] == 0).all()
    assert (made.key[..., 4, :] == 0).all()
    assert (made.value[..., 4, :] == 0).all()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_bits(threads):
    inputs = arrays(3, heads=2, queries=700, keys=900, width=8)
    dcontext = np.ones((1, 2, 700, 3))
    bias = np.random.default_rng(0).normal(size=(700, 900))
    outputs = ("dquery", "dkey", "dvalue", "dbias")
    one = gradients(**inputs, dcontext=dcontext, bias=bias, outputs=outputs, threads=1)
    other = gradients(**inputs, dcontext=dcontext, bias=bias, outputs=outputs, threads=threads)
    for name in ("query", "key", "value", "bias"):
        assert (getattr(one, name) == getattr(other, name)).all()


@pytest.mark.parametrize("layout", ["bshd", "shd", "bsd", "packed"])
def test_gradients_have_the_layout_of_their_inputs(layout):
    inputs = arrays(4, batch=2, heads=2, groups=2, value_width=4)
    dcontext = np.random.default_rng(0).normal(size=(2, 2, 4, 4))
    whole = gradients(**inputs, dcontext=dcontext)

    def turned(array):
        if layout == "packed":
            return array.swapaxes(1, 2).reshape(2, array.shape[2], -1)
        index = {"bshd": (), "shd": (0,), "bsd": (slice(None), 0)}[layout]
        return array.swapaxes(1, 2)[index] if layout != "bsd" else array[index]

    options = {"heads": 2} if layout == "packed" else {"layout": layout}
    given = {name: turned(array) for name, array in inputs.items()}
    made = gradients(**given, dcontext=turned(dcontext), **options)
    for name in INPUTS:
        expected = turned(getattr(whole, name))
        np.testing.assert_allclose(getattr(made, name), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dcontext": np.ones((1, 2, 4, 2))}, "dcontext"),
        ({"dlse": np.ones((1, 2, 3))}, "dlse"),
        ({"outputs": "dmask"}, "dmask"),
        ({"outputs": "dbias"}, "dbias"),
        ({"score": "additive"}, "additive"),
        ({"dcontext": np.full((1, 2, 4, 3), np.nan)}, "finite"),
    ],
)
def test_what_has_no_gradient_is_refused(options, words):
    given = {"dcontext": np.ones((1, 2, 4, 3)), **options}
    with pytest.raises(attncli.AttnError, match=words):
        gradients(**arrays(6), **given)
