"""Embeddings that a layer does not read, as the norm in front of it did not make them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from referee_numpy import as_bfloat16
from safetensors.numpy import save_file

from attncli import AttnWarning
from attncli.checkpoints.names import find_layers
from attncli.loaded import load

WIDTH = 16


def drawn(*seed_and_shape):
    seed, *shape = seed_and_shape
    return np.random.default_rng(seed).normal(size=shape)


def normed(rows, weight, bias=0.0, *, centred=False):
    rows = rows - rows.mean(axis=-1, keepdims=True) if centred else rows
    return rows / np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


X = 3 + 2 * drawn(0, 20, WIDTH)
GAIN, BIAS = 1 + drawn(1, WIDTH) / 4, drawn(2, WIDTH)
RMS = {"layers.1.input_layernorm.weight": GAIN}
KINDS = {
    "Llama": ("layers.1.self_attn.{}_proj.weight", RMS, normed(X, GAIN)),
    "Gemma": (
        "layers.1.self_attn.{}_proj.weight",
        {"layers.1.input_layernorm.weight": GAIN - 1},
        normed(X, GAIN),
    ),
    "with a bias": (
        "h.1.attn.{}_proj.weight",
        {"h.1.ln_1.weight": GAIN, "h.1.ln_1.bias": BIAS},
        normed(X, GAIN, BIAS, centred=True),
    ),
    "two levels up": (
        "layer.1.attention.attention.{}_proj.weight",
        {"layer.1.layernorm_before.weight": GAIN},
        normed(X, GAIN),
    ),
}


def warned(x, folder):
    np.save(folder / "x.npy", x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load("x.npy", checkpoint="m.safetensors", heads=2, rope="half", causal=True)
    return [str(w.message) for w in caught if "does not look like" in str(w.message)]


def write(folder, pattern, norms):
    arrays = {pattern.format(letter): drawn(3, WIDTH, WIDTH) for letter in "qkv"}
    save_file(arrays | norms, folder / "m.safetensors")


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_did_not_go_through_the_norm_is_warned_of(kind, folder):
    pattern, norms, right = KINDS[kind]
    write(folder, pattern, norms)
    assert not warned(right, folder)
    assert not warned(right.astype("f2")[None], folder)
    (words,) = warned(X, folder)
    name = next(iter(norms)).removesuffix(".weight")
    assert words.startswith(f"x.npy does not look like what {name} gives")


def test_rows_of_zeros_are_no_reason_with_a_bias(folder):
    write(folder, *KINDS["with a bias"][:2])
    right = KINDS["with a bias"][2].copy()
    right[-9:] = 0
    assert not warned(right, folder)


def test_nothing_but_padding_is_no_reason(folder):
    write(folder, *KINDS["Llama"][:2])
    assert not warned(np.zeros((4, WIDTH)), folder)


def test_rounding_every_step_to_bfloat16_is_no_reason(folder):
    gain, unit = as_bfloat16(GAIN), as_bfloat16(normed(X, np.ones(WIDTH)))
    write(folder, KINDS["Llama"][0], {"layers.1.input_layernorm.weight": gain})
    assert not warned(as_bfloat16(gain * unit), folder)


def test_rows_of_padding_and_small_ones_are_no_reason(folder):
    write(folder, *KINDS["Llama"][:2])
    right = KINDS["Llama"][2].copy()
    right[-9:] = 0
    assert not warned(right, folder)
    # As embeddings often are: the epsilon of 1e-5 takes a twentieth of 1e-4.
    assert not warned(normed(0.01 * drawn(4, 20, WIDTH), GAIN), folder)


@pytest.mark.parametrize("factor", [0.5, 1.3, 1.7, 5])
def test_the_same_rows_in_another_size_did_not_come_out_of_the_norm(factor, folder):
    write(folder, *KINDS["Llama"][:2])
    assert warned(factor * KINDS["Llama"][2], folder)


@pytest.mark.parametrize("of", [GAIN, 1 + GAIN], ids=["the weight", "1 + the weight"])
@pytest.mark.parametrize("size", [0.9, 0.95, 1.0, 1.05])
def test_rows_whose_sizes_are_only_near_1_did_not_come_out_of_the_norm(of, size, folder):
    write(folder, *KINDS["Llama"][:2])
    assert warned(size * drawn(5, 40, WIDTH) * of, folder)


@pytest.mark.parametrize(
    "norms",
    [
        {"layers.1.input_layernorm.weight": np.zeros(WIDTH)},
        {"layers.1.input_layernorm.weight": np.ones(WIDTH + 1)},
        {"layers.1.post_attention_layernorm.weight": GAIN},
        {"layers.0.input_layernorm.weight": GAIN},
        {"input_layernorm.weight": GAIN},
    ],
    ids=["of zeros", "of another width", "behind", "of another layer", "of none"],
)
def test_other_norms_say_nothing(norms, folder):
    write(folder, "layers.1.self_attn.{}_proj.weight", norms)
    assert not warned(X, folder)


def test_no_layer_of_a_bert_has_a_norm_in_front():
    names = ["attention.self.query.weight", "attention.self.key.weight"]
    names += ["attention.self.value.weight", "attention.output.LayerNorm.weight"]
    (layer,) = find_layers([f"encoder.layer.0.{name}" for name in names])
    assert not layer.norm_before


def test_what_is_before_the_norm_is_told_by_every_command(folder, attncli):
    write(folder, *KINDS["Llama"][:2])
    np.save("x.npy", X)
    words = ["x.npy", "--checkpoint", "m.safetensors", "--heads", "2", "--rope=half", "--causal"]
    (warning,) = attncli("compute", *words).good().messages
    assert "is it from before that norm?" in warning
    with pytest.warns(AttnWarning, match="is it from before that norm"):
        load("x.npy", checkpoint="m.safetensors", heads=2, rope="half")
