"""Mistakes around attention in a layer: norms, all four biases, what devices and dropout add."""

import numpy as np
import pytest
from process import long_but
from referee_numpy import SEEDS, ask, draw, named, softmax
from referee_tried import one_mistake  # noqa: F401 - a fixture

from attncli import load, pose, project
from attncli.referee import check

BATCH, TOKENS, WIDTH, HEADS = 2, 7, 16, 4


def attend(q, k, v):
    def cut(array):
        return array.reshape(BATCH, TOKENS, HEADS, -1).transpose(0, 2, 1, 3)

    q, k, v = map(cut, (q, k, v))
    context = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(WIDTH / HEADS)) @ v
    return context.transpose(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDTH)


def layer_norm(x, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def rms_norm(x, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


class Layer:
    """Self-attention with four weights and biases, whose every step can be done otherwise."""

    def __init__(self, seed):
        shapes = [(WIDTH, WIDTH)] * 4 + [(WIDTH,)] * 4
        names = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
        self.x, *made = draw(seed, (BATCH, TOKENS, WIDTH), *shapes, dtype="float64")
        self.x = 3 * self.x + 0.5
        self.given = dict(zip(names, made, strict=True))
        self.given |= {name: self.given[name] / 4 for name in ("wq", "wk", "wv", "wo")}

    def __call__(self, x=None, **changes):
        given, x = self.given | changes, self.x if x is None else x
        q, k, v = (x @ given[f"w{n}"] + given[f"b{n}"] for n in "qkv")
        return attend(q, k, v) @ given["wo"] + given["bo"]

    def judge(self, context):
        inputs = {n: a for n, a in self.given.items() if n not in ("wo", "bo")}
        made = project(self.x, **inputs)
        output = {n: self.given[n] for n in ("wo", "bo")}
        problem = pose(made.query, made.key, made.value, heads=HEADS, **output)
        return check(context.astype("f4"), problem, projected=made, time_limit=100)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("eps", long_but([1e-5, 1e-6, 1e-12], 1e-5, 1e-12))
@pytest.mark.parametrize(("word", "norm"), [("layer_norm", layer_norm), ("rms_norm", rms_norm)])
def test_norms_of_the_embeddings_and_of_the_output(seed, word, norm, eps):
    layer = Layer(seed)
    right = layer()
    # In float32 an epsilon of 1e-12 is as good as none: then the nearest is named.
    wrong = {
        f"embeddings_{word}": layer(norm(layer.x, eps)),
        f"output_{word}": norm(right, eps),
        f"output_and_embeddings_{word}": norm(right + layer.x, eps),
    }
    for name, context in wrong.items():
        (found,) = layer.judge(context).diagnosis.explanations
        assert found.name.startswith(f"{name}_1e_")
        digits = found.name.rpartition("_")[2]
        assert eps < 1e-5 or digits == "05"


@pytest.mark.parametrize("seed", SEEDS)
def test_all_biases_and_all_weights(seed):
    layer = Layer(seed)
    none = {f"b{n}": 0 for n in "qkvo"}
    assert named(layer.judge(layer(**none))) == {"all_biases_missing"}
    assert named(layer.judge(layer(**{**none, "bo": layer.given["bo"]}))) == {
        "projection_biases_missing"
    }
    turned = {f"w{n}": layer.given[f"w{n}"].T for n in "qkvo"}
    assert named(layer.judge(layer(**turned))) == {"all_projections_transposed"}
    # Three of four is not all.
    assert named(layer.judge(layer(**{**turned, "wo": layer.given["wo"]}))) == {
        "projections_transposed"
    }


GAIN, SHIFT = 1 + np.arange(WIDTH) / 8, np.arange(WIDTH) / 4
NORMS_BEFORE = {
    "layer_norm_1e_05": ("h.0.attn", "h.0.ln_1", lambda x: layer_norm(x, 1e-5) * GAIN + SHIFT),
    "rms_norm_1e_06": (
        "layers.3.self_attn",
        "layers.3.input_layernorm",
        lambda x: rms_norm(x, 1e-6) * GAIN,
    ),
    "rms_norm_1e_05_plus_1": (
        "layers.3.self_attn",
        "layers.3.input_layernorm",
        lambda x: rms_norm(x, 1e-5) * (1 + GAIN),
    ),
}


@pytest.mark.filterwarnings("ignore::attncli.AttnWarning")
@pytest.mark.parametrize("name", NORMS_BEFORE)
def test_embeddings_from_before_the_norm_in_front_of_their_layer(name, folder):
    prefix, norm, apply = NORMS_BEFORE[name]
    layer = Layer(0)
    stored = {f"{norm}.weight": GAIN, f"{norm}.bias": SHIFT}
    for n in "qkvo":
        stored[f"{prefix}.{n}_proj.weight"] = layer.given[f"w{n}"].T
        stored[f"{prefix}.{n}_proj.bias"] = layer.given[f"b{n}"]
    if name.startswith("rms"):
        stored.pop(f"{norm}.bias")
    np.savez(folder / "m.npz", **stored)
    x = layer.x / 16
    problem = load(x=x, checkpoint="m.npz", heads=HEADS)
    report = check(layer(apply(x)).astype("f4"), problem, time_limit=100)
    assert named(report) == {f"norm_before_{name}"}
    assert check(layer(x).astype("f4"), problem).passed


def test_heads_that_are_not_joined():
    layer = Layer(0)
    q, k, v = (layer.x @ layer.given[f"w{n}"] + layer.given[f"b{n}"] for n in "qkv")
    heads = attend(q, k, v).reshape(BATCH, TOKENS, HEADS, -1).transpose(0, 2, 1, 3)
    packed = pose(q, k, v, heads=HEADS)
    assert named(check(heads.astype("f4"), packed)) == {"heads_not_joined"}
    one = pose(q[:1], k[:1], v[:1], heads=HEADS)
    assert named(check(heads[0].astype("f4"), one)) == {"heads_not_joined"}


def test_another_number_of_heads_is_told():
    layer = Layer(0)
    q, k, v = (layer.x @ layer.given[f"w{n}"] for n in "qkv")
    weights = np.full((BATCH, 2 * HEADS, TOKENS, TOKENS), 1 / TOKENS, "f4")
    report = check({"weights": weights}, pose(q, k, v, heads=HEADS), time_limit=1)
    assert "the file has 8 heads, the answer 4 heads" in str(report)


@pytest.mark.parametrize("times", long_but([2, 4, 8], 4))
def test_the_output_bias_is_added_on_every_device(times):
    layer = Layer(0)
    report = layer.judge(layer(bo=times * layer.given["bo"]))
    (found,) = report.diagnosis.explanations
    assert found.name == "output_bias_repeated"
    assert found.conventions[0].meaning.endswith(f"is added {times} times")


@pytest.mark.parametrize("p", long_but([0.1, 0.5], 0.5))
def test_dropout_behind_attention(p):
    layer = Layer(0)
    right = layer()
    kept = np.random.default_rng(1).random(right.shape) >= p
    report = layer.judge(np.where(kept, right / (1 - p), 0))
    (found,) = report.diagnosis.explanations
    assert found.name == "output_dropout"
    assert found.conventions[0].meaning.endswith(f"divided by 1 − {p}")


@pytest.mark.usefixtures("one_mistake")
@pytest.mark.parametrize("p", long_but([0.1, 0.5], 0.5))
def test_other_numbers_beside_zeros_are_no_dropout(p):
    layer = Layer(0)
    right = layer()
    kept = np.random.default_rng(1).random(right.shape) >= p
    noise = np.random.default_rng(2).uniform(0.9, 1.1, right.shape)
    assert named(layer.judge(np.where(kept, right * noise, 0))) == set()


def test_a_number_that_is_far_too_large_beside_a_zero_is_no_dropout():
    """It would have dropped all but one in a million, which is all with few digits."""
    assert named(ask(([[1.0]], [[1.0]], [[0.3, 0.7]]), [[0.0, 7e5]])) == set()
