"""Layers in checkpoints: found by their names, transposed if needed, read without the others."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from oracle import attention_oracle
from process import measured

from attncli import AttnWarning, ShapeError, UsageError, solve
from attncli.checkpoints.names import find_layers
from attncli.gather import load

# Layers with Llama's names give the advice to rotate. One test below is about this advice.
pytestmark = pytest.mark.filterwarnings("ignore:.*with layers named as in:attncli.AttnWarning")

WIDTH, HEADS, TOKENS = 8, 4, 5


def drawn(*seed_and_shape):
    seed, *shape = seed_and_shape
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Parts:
    """The projections of a layer as (in, out), and their results in plain NumPy and float64."""

    def __init__(self, *, kv_heads=HEADS, bias=True, output=True):
        shared = WIDTH * kv_heads // HEADS
        self.kv_heads = kv_heads
        self.w = {"q": drawn(1, WIDTH, WIDTH), "k": drawn(2, WIDTH, shared)}
        self.w |= {"v": drawn(3, WIDTH, shared)} | ({"o": drawn(4, WIDTH, WIDTH)} if output else {})
        self.b = {c: drawn((5, ord(c)), w.shape[1]) for c, w in self.w.items()} if bias else {}

    def linear(self, x, letter):
        return x @ self.w[letter].astype(np.float64) + self.b.get(letter, 0.0)

    def answer(self, x, **options):
        x = x.astype(np.float64)
        q, k, v = (self.linear(x, letter) for letter in "qkv")
        found = attention_oracle(q, k, v, heads=HEADS, kv_heads=self.kv_heads, **options)
        context = found["context"]
        return found["weights"], self.linear(context, "o") if "o" in self.w else context


def plain(parts):
    return {f"w{c}": w for c, w in parts.w.items()} | {f"b{c}": b for c, b in parts.b.items()}


def linear_layers(parts, pattern, output, names="qkv"):
    """Weights as torch.nn.Linear stores them: (out, in)."""
    stems = {c: pattern.format(name) for c, name in zip("qkv", names, strict=True)} | {"o": output}
    return {f"{stems[c]}.weight": w.T for c, w in parts.w.items()} | {
        f"{stems[c]}.bias": b for c, b in parts.b.items()
    }


def gpt2(parts, *, turned=False):
    side = np.concatenate([parts.w[c] for c in "qkv"], axis=1)
    return {
        "attn.c_attn.weight": side.T if turned else side,
        "attn.c_attn.bias": np.concatenate([parts.b[c] for c in "qkv"]),
        "attn.c_proj.weight": parts.w["o"].T if turned else parts.w["o"],
        "attn.c_proj.bias": parts.b["o"],
        # The causal mask that GPT-2 stores, and its other projection.
        "attn.bias": np.tril(np.ones((1, 1, 4, 4), np.float32)),
        "mlp.c_proj.weight": drawn(9, 4 * WIDTH, WIDTH),
    }


def timm(parts):
    return {
        "blocks.0.attn.qkv.weight": np.concatenate([parts.w[c] for c in "qkv"], axis=1).T,
        "blocks.0.attn.qkv.bias": np.concatenate([parts.b[c] for c in "qkv"]),
        "blocks.0.attn.proj.weight": parts.w["o"].T,
        "blocks.0.attn.proj.bias": parts.b["o"],
    }


def joint(parts, name, output):
    """All queries, all keys and all values in one linear layer."""
    arrays = {
        f"{name}.weight": np.concatenate([parts.w[c] for c in "qkv"], axis=1).T,
        f"{output}.weight": parts.w["o"].T,
    }
    if parts.b:
        arrays[f"{name}.bias"] = np.concatenate([parts.b[c] for c in "qkv"])
        arrays[f"{output}.bias"] = parts.b["o"]
    return arrays


def by_group(parts, prefix):
    """For each key/value head: its query heads, its key, its value."""
    each, shared = WIDTH // HEADS, HEADS // parts.kv_heads

    def rows(arrays):
        return np.concatenate(
            [
                arrays[letter].T[first * each : (first + count) * each]
                for group in range(parts.kv_heads)
                for letter, first, count in (
                    ("q", group * shared, shared),
                    ("k", group, 1),
                    ("v", group, 1),
                )
            ]
        )

    name = f"{prefix}query_key_value"
    return {
        f"{name}.weight": rows(parts.w),
        f"{name}.bias": rows(parts.b),
        f"{prefix}dense.weight": parts.w["o"].T,
        f"{prefix}dense.bias": parts.b["o"],
    }


def bert(parts, inner="attention.self.", above="attention."):
    names = linear_layers(parts, inner + "{}", above + "output.dense", ("query", "key", "value"))
    # The feed-forward network of BERT has an output.dense too.
    return names | {"output.dense.weight": drawn(9, WIDTH, 4 * WIDTH)}


def write(path: Path, arrays, metadata=None):
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path, metadata)


def within(prefix, arrays):
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def three(pattern, output, names="qkv", **parts):
    """Return a family of linear layers; its layers need the number of heads."""
    return Parts(**parts), lambda made: linear_layers(made, pattern, output, names), True


def one(name, output, **parts):
    return Parts(**parts), lambda made: joint(made, name, output), True


def grouped(prefix, **parts):
    return Parts(**parts), lambda made: by_group(made, prefix), True


def bare(made):
    return {f"W_{c}": w for c, w in made.w.items()} | {f"b_{c}": b for c, b in made.b.items()}


WHOLE = ("query", "key", "value")
FAMILIES = {
    "plain": (Parts(), plain, False),
    "plain without biases": (Parts(bias=False), plain, False),
    "Llama": three("self_attn.{}_proj", "self_attn.o_proj", kv_heads=2, bias=False),
    "Llama with biases": three("self_attn.{}_proj", "self_attn.o_proj", kv_heads=1),
    "Llama as published": three("attention.w{}", "attention.wo", kv_heads=2, bias=False),
    "BART": three("a.{}_proj", "a.out_proj"),
    "BERT": (Parts(), bert, True),
    "BERT without prefix": (Parts(output=False), lambda made: bert(made, "", ""), True),
    "ViT": (Parts(), lambda made: bert(made, "attention.attention.", "attention."), True),
    "a class with query, key, value and out": three("{}", "out", WHOLE),
    "DistilBERT": three("attention.{}_lin", "attention.out_lin"),
    "Diffusers": three("attn1.to_{}", "attn1.to_out.0"),
    "W_query": three("att.W_{}", "att.out_proj", WHOLE, bias=False),
    "W_q": three("W_{}", "W_o"),
    "bare W_query": (
        Parts(bias=False, output=False),
        lambda made: {f"W_{name}": made.w[name[0]] for name in WHOLE},
        False,
    ),
    "bare W_q": (Parts(), bare, False),
    "T5": three("layer.0.SelfAttention.{}", "layer.0.SelfAttention.o", bias=False),
    "ModernBERT": one("attn.Wqkv", "attn.Wo", bias=False),
    "MPT": one("attn.Wqkv", "attn.out_proj", kv_heads=2),
    "Phi-3": one("self_attn.qkv_proj", "self_attn.o_proj", kv_heads=2, bias=False),
    "GPT-BigCode": one("attn.c_attn", "attn.c_proj", kv_heads=1),
    "GPT-NeoX": grouped("layers.0.attention."),
    "BLOOM": grouped("h.0.self_attention."),
    "Falcon": grouped("h.3.self_attention.", kv_heads=1),
    "Falcon with groups": grouped("h.0.self_attention.", kv_heads=2),
    "timm": (Parts(), timm, True),
    "GPT-2": (Parts(), gpt2, True),
    "GPT-2 as linear layers": (Parts(), lambda made: gpt2(made, turned=True), True),
}
X = drawn(7, 2, TOKENS, WIDTH)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_gives_what_its_matrices_give(name):
    parts, store, asked = FAMILIES[name]
    arrays = store(parts)
    if name == "BERT without prefix":
        arrays.pop("output.dense.weight")
    file = "model.npz" if "BERT" in name else "model.safetensors"
    if file == "model.npz":
        np.savez(file, **arrays)
    else:
        write(Path(file), arrays)
    if asked:
        with pytest.raises(UsageError, match=r"give heads|do not say how queries, keys"):
            load("x.npy", checkpoint=file)
    else:
        assert load("x.npy", checkpoint=file).shape == (2, 1, TOKENS, TOKENS)
    answer = solve(load("x.npy", checkpoint=file, heads=HEADS))
    weights, context = parts.answer(X)
    assert answer.weights.dtype == np.float32
    np.testing.assert_allclose(answer.weights, weights, rtol=0, atol=5e-6)
    np.testing.assert_allclose(answer.context, context, rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", ["Llama", "GPT-2", "MPT"])
@pytest.mark.parametrize("files", [1, 3])
def test_a_layer_without_its_output_projection(name, files):
    parts, store, _ = FAMILIES[name]
    write(Path("m.safetensors"), store(parts))
    parts = deepcopy(parts)
    parts.w.pop("o")
    given = {"checkpoint": "m.safetensors", "heads": HEADS}
    answer = solve(load(*["x.npy"] * files, without="wo", **given))
    np.testing.assert_allclose(answer.context, parts.answer(X)[1], rtol=0, atol=5e-5)


def test_prefix_chooses_a_layer():
    first, second = Parts(), Parts(bias=False)
    layers = within("encoder.layer.0.", bert(first)) | within("encoder.layer.1.", bert(second))
    write(Path("m.safetensors"), layers)
    for prefix in ("encoder.layer.1", "encoder.layer.1.", "encoder.layer.1.attention.self"):
        answer = solve(load("x.npy", checkpoint=f"m.safetensors#{prefix}", heads=HEADS))
        np.testing.assert_allclose(answer.context, second.answer(X)[1], rtol=0, atol=5e-5)
    with pytest.raises(UsageError, match="expected one attention layer; found 2") as caught:
        load("x.npy", checkpoint="m.safetensors", heads=HEADS)
    assert caught.value.hint == (
        "choose one: m.safetensors#encoder.layer.0.attention.self, "
        "m.safetensors#encoder.layer.1.attention.self"
    )
    with pytest.raises(UsageError, match=r"within 'encoder\.layer\.11'; found none"):
        load("x.npy", checkpoint="m.safetensors#encoder.layer.11", heads=HEADS)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"c_attn.weight": (8, 20)},
            r"m\.safetensors#c_attn\.weight: .*found 8 inputs and 20 outputs",
        ),
        ({"in_proj_weight": (25, 8)}, "equally wide"),
        ({"wq": (8,), "wk": (8, 8), "wv": (8, 8)}, "wq: expected a matrix"),
        ({"in_proj_weight": (24, 8), "in_proj_bias": ()}, "in_proj_bias: .*equally wide"),
        ({"c_attn.weight": (8, 8)}, "equally wide"),
    ],
)
def test_shapes_that_no_layer_has(arrays, words):
    write(
        Path("m.safetensors"), {name: np.ones(shape, np.float32) for name, shape in arrays.items()}
    )
    with pytest.raises(ShapeError, match=words):
        load("x.npy", checkpoint="m.safetensors", heads=4)


@pytest.mark.parametrize(
    ("family", "start", "more"),
    [
        ("Llama", "self_attn.", ["q_proj.lora_A.weight", "v_proj.weight_scale", "g_proj.weight"]),
        ("Diffusers", "attn1.", ["norm_q.weight", "add_k_proj.weight"]),
        ("nn.MultiheadAttention", "layers.0.self_attn.", ["bias_k", "bias_v"]),
        ("Llama", "layers.0.", ["q_norm.weight", "k_proj.lora_B.weight"]),
    ],
)
def test_whatever_else_a_layer_holds_is_not_applied(family, start, more):
    names = {
        "Llama": ["q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight"],
        "timm": ["qkv.weight", "qkv.bias", "proj.weight"],
        "BERT": ["query.weight", "key.weight", "value.weight", "value.bias"],
        "Diffusers": ["to_q.weight", "to_k.weight", "to_v.weight", "to_out.0.weight"],
        "GPT-2": ["c_attn.weight", "c_attn.bias", "c_proj.weight"],
        "nn.MultiheadAttention": ["in_proj_weight", "in_proj_bias", "out_proj.weight"],
    }[family]
    buffers = ["bias", "masked_bias", "rotary_emb.inv_freq", "relative_position_index", "mask"]
    buffers += ["causal_mask", "tril", "rope.freqs", "rotary_emb.cos_cached", "sin_cached"]
    around = ["mlp.fc.weight", "norm.weight"] if start == "layers.0." else []
    whole = [start + name for name in (*names, *more, *buffers, *around)]
    # Modules beside a layer are not part of it.
    others = ["ln.weight", start.rstrip(".") + "_norm.weight", "zzz.weight"]
    (layer,) = find_layers([*others, *whole])
    assert layer.kind.name == family
    assert set(layer.not_applied) == {start + name for name in more}


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("GPT-NeoX", "--alibi", {"alibi_slopes": True}),
        ("T5", "--plain", {"plain": True}),
        ("T5", "--bias", {"bias": np.zeros((TOKENS, TOKENS))}),
        ("MPT", "--alibi", {"alibi_slopes": True}),
        ("GPT-2", "--causal", {"causal": True}),
    ],
)
def test_what_models_do_beside_their_projections_is_said_to_who_does_not_know(
    name, option, value, recwarn
):
    parts, store, _ = FAMILIES[name]
    write(Path("m.safetensors"), store(parts))
    with pytest.warns(AttnWarning, match=f"layers named as in .*{option}"):
        load("x.npy", checkpoint="m.safetensors", heads=4)
    load("x.npy", checkpoint="m.safetensors", heads=4, **value)
    assert not recwarn


@pytest.mark.parametrize(
    ("prefix", "known"),
    [
        ("gpt_neox.layers.0.attention", True),
        ("attention", True),
        ("transformer.h.0.self_attention", True),
        # CogVLM's images and ChatGLM have all queries first.
        ("model.vision.transformer.layers.0.attention", False),
        ("transformer.encoder.layers.0.self_attention", False),
    ],
)
def test_a_joint_matrix_is_cut_by_groups_only_where_its_model_does(prefix, known):
    names = [f"{prefix}.query_key_value.weight", f"{prefix}.dense.weight"]
    assert [layer.kind.by_group for layer in find_layers(names)] == [True] * known


def test_checkpoint_and_single_weights_exclude_each_other():
    parts, store, _ = FAMILIES["plain"]
    write(Path("m.safetensors"), store(parts))
    with pytest.raises(UsageError, match="supplies the projections: leave out wq"):
        load("x.npy", checkpoint="m.safetensors", wq=parts.w["q"])


def test_one_layer_of_a_large_checkpoint_is_read_alone():
    """A sparse file of 6 GB: a process that may hold 1 GB reads a layer of it."""
    parts, store, _ = FAMILIES["Llama"]
    large = {f"h.{n}.big": ("F32", (512, 1024, 1024)) for n in range(3)}
    small = within("h.3.", store(parts))
    header, start = {}, 0
    for name, (kind, shape) in large.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, start + size]}
        start += size
    for name, array in small.items():
        span = [start, start + array.nbytes]
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": span}
        start += array.nbytes
    text = json.dumps(header).encode()
    with Path("large.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.seek(3 * 2**31, 1)
        for array in small.values():
            stream.write(np.ascontiguousarray(array).tobytes())
    words = ["compute", "x.npy", "--checkpoint", "large.safetensors#h.3", "--heads", "4"]
    ran = measured(*words, "--save", "context=c.npy", "-q", most_seconds=20)
    assert ran.code == 0
    np.testing.assert_allclose(np.load("c.npy"), parts.answer(X)[1], rtol=0, atol=5e-5)


@pytest.mark.peer
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 6, "vdim": 10}])
def test_multihead_attention_of_torch(options):
    torch = pytest.importorskip("torch")
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **options).eval()
    torch.manual_seed(0)
    query = torch.randn(2, 3, WIDTH)
    key = torch.randn(2, TOKENS, options.get("kdim", WIDTH))
    value = torch.randn(2, TOKENS, options.get("vdim", WIDTH))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
        expected, weights = module(query, key, value, average_attn_weights=False)
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert ("in_proj_weight" in state) == ("kdim" not in options)
    write(Path("mha.safetensors"), within("layers.0.self_attn.", state))
    for name, tensor in {"q": query, "k": key, "v": value}.items():
        np.save(f"{name}.npy", tensor.numpy())
    answer = solve(load("q.npy", "k.npy", "v.npy", checkpoint="mha.safetensors", heads=HEADS))
    np.testing.assert_allclose(answer.weights, weights.numpy(), rtol=0, atol=2e-6)
    np.testing.assert_allclose(answer.context, expected.numpy(), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("shape", "heads", "message"),
    [
        (
            (18, 8),
            {"heads": 4, "kv_heads": 2},
            r"or of 4 heads and .*; found 8 inputs and 18 outputs",
        ),
        ((16, 8), {"heads": 4, "kv_heads": 3}, "or of 4 heads and "),
        ((12, 8), {}, r"m\.safetensors#attn\.qkv\.weight: its 8 inputs and 12 outputs do not say"),
    ],
)
def test_heads_that_cut_no_joint_matrix(shape, heads, message):
    write(Path("m.safetensors"), {"attn.qkv.weight": np.ones(shape, np.float32)})
    np.save("x.npy", np.ones((2, 5, shape[1]), np.float32))
    with pytest.raises((ShapeError, UsageError), match=message):
        load("x.npy", checkpoint="m.safetensors", **heads)
