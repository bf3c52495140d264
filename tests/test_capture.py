"""Capture: what PyTorch's attention computes is recorded, judged right, and equals the model's own.

The oracle is the model: its eager attention returns weights (`output_attentions`).
"""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest

import attncli

pytestmark = [
    pytest.mark.torch,
    # PyTorch warns of its own parts when flex attention compiles its masks.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
torch = pytest.importorskip("torch")
F = torch.nn.functional
safetensors_torch = pytest.importorskip("safetensors.torch")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 64,
}


def loaded(path):
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["attncli"])
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


def problem_of(path):
    """Return the problem of a dump, made from its entries, and its output."""
    entries, facts = loaded(path)
    arrays = {
        name: tensor.numpy() if tensor.dtype == torch.bool else tensor.double().numpy()
        for name, tensor in entries.items()
    }
    out = entries["out"]
    del arrays["out"]
    query, key, value = (arrays.pop(name) for name in ("query", "key", "value"))
    return attncli.pose(query, key, value, **arrays, **facts["options"]), out


def model_of(name, **more):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")
    made = {
        "Bert": lambda: config(**SMALL),
        "GPT2": lambda: config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=64, bos_token_id=1, eos_token_id=2
        ),
        "Llama": lambda: config(**SMALL, num_key_value_heads=2),
        "Gemma2": lambda: config(
            **SMALL, num_key_value_heads=2, head_dim=8, sliding_window=3, attn_logit_softcapping=2.0
        ),
        "GptOss": lambda: config(
            **SMALL,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=3,
            num_local_experts=2,
            num_experts_per_tok=1,
            eos_token_id=2,
            pad_token_id=0,
        ),
        "T5": lambda: config(
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            vocab_size=64,
            decoder_start_token_id=0,
        ),
        "ViT": lambda: config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
        ),
    }[name]()
    for option, value in more.items():
        setattr(made, option, value)
    return getattr(transformers, f"{name}Model")(made).eval()


def inputs_of(name, *, padded):
    ids = torch.randint(3, 60, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 7, dtype=torch.long)
    if padded:
        mask[1, 5:] = 0
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32)}
    inputs = {"input_ids": ids, "attention_mask": mask}
    return {**inputs, "decoder_input_ids": ids[:, :4]} if name == "T5" else inputs


def run(model, implementation, inputs, folder):
    model.set_attn_implementation(implementation)
    with torch.no_grad(), attncli.capture(folder) as captured:
        results = model(**inputs, output_attentions=implementation == "eager")
    assert captured.unseen == []
    return captured, results


def own_weights(results):
    """Return the model's own weights in the order of the calls."""
    if results.get("attentions") is not None:
        return list(results.attentions)
    pairs = zip(results.decoder_attentions, results.cross_attentions, strict=True)
    return [*results.encoder_attentions, *(weights for pair in pairs for weights in pair)]


NAMES = ["Bert", "GPT2", "Llama", "Gemma2", "GptOss", "T5", "ViT"]
# What the rounding of one operation in the dtype can be, with room for a few of them.
ROUNDING = {torch.float32: 3e-6, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_weights_are_the_models_own(name, dtype, tmp_path):
    model = model_of(name).to(dtype)
    inputs = {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in inputs_of(name, padded=True).items()
    }
    captured, results = run(model, "eager", inputs, tmp_path)
    own = own_weights(results)
    assert len(captured.files) == len(own) >= 2
    for path, weights in zip(captured.files, own, strict=True):
        problem, _ = problem_of(path)
        ours = attncli.solve(problem, ("weights",)).weights
        assert ours.shape == tuple(weights.shape)
        seen = ours.sum(axis=-1) > 0
        assert seen.any()
        np.testing.assert_allclose(
            ours[seen], weights.double().numpy()[seen], atol=ROUNDING[dtype], rtol=0
        )


@pytest.mark.parametrize(
    ("name", "implementation"),
    [(name, "sdpa") for name in NAMES if name not in ("Gemma2", "GptOss")]
    + [(name, "eager") for name in NAMES]
    # Compiling flex attention takes half a minute a model.
    + [pytest.param("Gemma2", "flex_attention", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_check_passes_on_the_models_kernel(name, implementation, dtype, tmp_path):
    model = model_of(name).to(dtype)
    inputs = {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in inputs_of(name, padded=True).items()
    }
    captured, _ = run(model, implementation, inputs, tmp_path)
    assert len(captured.files) >= 2
    for path in captured.files:
        problem, out = problem_of(path)
        report = attncli.check(out, problem)
        assert report.passed, (path.name, str(report))


def test_the_function_is_seen_under_every_name(tmp_path):
    held = F.scaled_dot_product_attention
    query = torch.randn(2, 3, 5, 4)
    with attncli.capture(tmp_path) as captured:
        F.scaled_dot_product_attention(query, query, query, is_causal=True)
        torch.nn.functional.scaled_dot_product_attention(query[0], query[0], query[0], scale=0.3)
        torch._C._nn.scaled_dot_product_attention(query, query, query)
    assert F.scaled_dot_product_attention is held
    assert len(captured.files) == 3
    assert loaded(captured.files[0])[1]["options"] == {"causal": True}
    assert loaded(captured.files[1])[1]["options"] == {"scale": 0.3}
    for path in captured.files:
        problem, out = problem_of(path)
        assert attncli.check(out, problem).passed


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_the_multihead_layer(fast, batch_first, tmp_path):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=batch_first).eval()
    x = torch.randn(2, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.set_grad_enabled(not fast), attncli.capture(tmp_path) as captured:
        given = x if batch_first else x.transpose(0, 1)
        layer(given, given, given, key_padding_mask=padding, need_weights=not fast)
    (path,) = captured.files
    problem, out = problem_of(path)
    assert attncli.check(out, problem).passed
    assert loaded(path)[1]["kernel"] == "nn.MultiheadAttention"


def test_layers_calls_and_names(tmp_path):
    model = model_of("Llama")
    with torch.no_grad(), attncli.capture(tmp_path, layers=1, tokens=list("abcdefg")) as captured:
        model(**inputs_of("Llama", padded=False))
        model(**inputs_of("Llama", padded=False))
    assert [path.name for path in captured.files] == [
        "layer-001-call-0000.safetensors",
        "layer-001-call-0001.safetensors",
    ]
    facts = loaded(captured.files[1])[1]
    assert (facts["layer"], facts["call"], facts["layer_idx"]) == (1, 1, 1)
    assert facts["module"] == "layers.1.self_attn"
    assert facts["query_labels"] == facts["key_labels"] == list("abcdefg")


def test_limits_stop_the_recording_with_a_warning(tmp_path):
    query = torch.randn(1, 1, 4, 4)
    with (
        pytest.warns(attncli.AttnWarning, match="2 calls"),
        attncli.capture(tmp_path / "calls", limit=2) as captured,
    ):
        for _ in range(4):
            F.scaled_dot_product_attention(query, query, query)
    assert len(captured.files) == len(list((tmp_path / "calls").iterdir())) == 2


def test_a_full_disk_keeps_the_earlier_dumps_and_the_model_runs_on(tmp_path, monkeypatch):
    import os

    query = torch.randn(1, 1, 4, 4)
    real, writes = os.fsync, []

    def full(descriptor):
        writes.append(descriptor)
        if len(writes) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(attncli.AttnWarning, match="space"), attncli.capture(tmp_path) as captured:
        outs = [F.scaled_dot_product_attention(query, query, query) for _ in range(3)]
    assert len(outs) == 3
    (path,) = captured.files
    assert [*tmp_path.iterdir()] == [path]
    problem, out = problem_of(path)
    assert attncli.check(out, problem).passed


def test_a_folder_with_dumps_is_refused(tmp_path):
    query = torch.randn(1, 1, 4, 4)
    with attncli.capture(tmp_path):
        F.scaled_dot_product_attention(query, query, query)
    with pytest.raises(attncli.OutputError, match="already"), attncli.capture(tmp_path):
        pass


def test_a_block_that_saw_no_call_says_so(tmp_path):
    query = torch.randn(1, 1, 4, 4)
    with pytest.warns(attncli.AttnWarning, match="any attention call"), attncli.capture(tmp_path):
        (query @ query.transpose(2, 3)).softmax(-1) @ query


def test_an_error_inside_the_block_restores_everything(tmp_path):
    held = F.scaled_dot_product_attention, torch.nn.MultiheadAttention.forward
    with pytest.raises(KeyError), attncli.capture(tmp_path):
        raise KeyError
    assert held == (F.scaled_dot_product_attention, torch.nn.MultiheadAttention.forward)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "The", "the", "cat", "sat", "on", "mat", "because"]
WORDS += ["it", "was", "tired", "."]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a Llama and a BERT with a tokenizer, as Transformers stores them."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    place = tmp_path_factory.mktemp("models")
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]"
    )
    torch.manual_seed(0)
    small = {**SMALL, "vocab_size": len(WORDS), "pad_token_id": 0}
    llama = transformers.LlamaConfig(**small, num_key_value_heads=2, bos_token_id=2, eos_token_id=3)
    transformers.LlamaForCausalLM(llama).save_pretrained(place / "llama")
    transformers.BertModel(transformers.BertConfig(**small)).save_pretrained(place / "bert")
    for name in ("llama", "bert"):
        fast.save_pretrained(place / name)
    return place


SENTENCE = "The cat sat on the mat because it was tired ."


def test_a_model_is_run_and_its_tokens_are_labels(models, tmp_path, attncli):
    ran = attncli("capture", str(models / "bert"), "--text", SENTENCE, "--out", str(tmp_path / "d"))
    assert ran.code == 0, ran.err
    files = sorted((tmp_path / "d").iterdir())
    assert len(files) == 2
    for path in files:
        assert loaded(path)[1]["key_labels"] == SENTENCE.split()
        problem, out = problem_of(path)
        assert globals()["attncli"].check(out, problem).passed


def test_decoding_steps_have_their_own_queries(models, tmp_path, attncli):
    out = tmp_path / "d"
    options = ("--generate", "2", "--layers", "1:2", "--dtype", "bfloat16", "--out", str(out))
    prompt = tmp_path / "prompt.txt"
    prompt.write_text(SENTENCE, encoding="utf-8")
    ran = attncli("capture", str(models / "llama"), "--prompt-file", str(prompt), *options)
    assert ran.code == 0, ran.err
    first, *steps = sorted(out.iterdir())
    assert len(steps) == 2
    assert loaded(first)[0]["query"].dtype == torch.bfloat16
    for number, path in enumerate(steps):
        entries, facts = loaded(path)
        assert (entries["query"].shape[2], entries["key"].shape[2]) == (1, 12 + number)
        assert len(facts["query_labels"]) == 1
        assert facts["key_labels"][:11] == SENTENCE.split()
        problem, answer = problem_of(path)
        assert globals()["attncli"].check(answer, problem).passed


def test_info_lists_the_recorded_calls(models, tmp_path, attncli):
    out = str(tmp_path / "d")
    assert attncli("capture", str(models / "llama"), "--text", SENTENCE, "--out", out).code == 0
    told = attncli("info", out, "--json").json["files"]
    (folder,) = told
    assert [(call["layer"], call["call"]) for call in folder["calls"]] == [(0, 0), (1, 0)]
    assert folder["calls"][1]["module"] == "layers.1.self_attn"
    assert folder["calls"][0]["shapes"]["query"] == [1, 4, 11, 8]
    assert folder["calls"][0]["shapes"]["key"] == [1, 2, 11, 8]
    assert "layers.1.self_attn" in attncli("info", out).text


def test_every_command_reads_the_folder(models, tmp_path, attncli):
    out = str(tmp_path / "d")
    assert attncli("capture", str(models / "bert"), "--text", SENTENCE, "--out", out).code == 0
    layer = ("--layer", "1", "--head", "2")
    assert "cat" in attncli("compute", out, *layer, "--show", "top").text
    assert "cat" in attncli("explain", out, *layer, "--query", "it").text
    assert attncli("heatmap", out, *layer, "--out", str(tmp_path / "it.png")).code == 0
    assert (tmp_path / "it.png").stat().st_size > 1000
    assert attncli("check", out).code == 0


def test_a_compiled_graph_is_said_to_be_unseen(tmp_path):
    query = torch.randn(1, 2, 4, 8)

    def compiled(*graph_and_inputs):
        graph, _ = graph_and_inputs
        return graph.forward

    @torch.compile(backend=compiled)
    def attend(x):
        return F.scaled_dot_product_attention(x, x, x) * 2

    with (
        pytest.warns(attncli.AttnWarning, match="compiled"),
        attncli.capture(tmp_path) as captured,
    ):
        attend(query)
        attend(query)
    assert len(captured.unseen) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "--text", "a"), "config.json"),
        (("MODEL",), "--text"),
        (("MODEL", "--text", "The", "--layers", "9"), "no attention call"),
        (("MODEL", "--text", "The", "--layers", "x"), "--layers"),
    ],
)
def test_wrong_arguments_are_told(models, tmp_path, attncli, arguments, said):
    given = [str(models / "bert") if one == "MODEL" else one for one in arguments]
    ran = attncli("capture", *given, "--out", str(tmp_path / "d"))
    assert ran.code == 2
    assert ran.err.startswith(b"error: ")
    assert said in ran.err.decode()


def test_a_training_step_becomes_dumps_whose_gradients_are_judged(folder, attncli):
    import attncli as package

    model = model_of("Llama")
    model.set_attn_implementation("sdpa")
    inputs = inputs_of("Llama", padded=False)
    with package.capture("dumps", gradients=True) as captured:
        model(**inputs).last_hidden_state.square().sum().backward()
    assert captured.unseen == []
    entries, _ = loaded(captured.files[0])
    assert {"dcontext", "dquery", "dkey", "dvalue"} < entries.keys()
    assert entries["dkey"].shape == entries["key"].shape
    ran = attncli("check", "dumps", "--json")
    assert ran.code == 0, ran.text
    (one, _) = json.loads(ran.out)["files"]
    names = [verdict["name"] for verdict in one["report"]["outputs"]]
    assert names == ["context", "dquery", "dkey", "dvalue"]


def test_without_gradients_it_says_so(folder):
    x = torch.randn(1, 2, 5, 4)
    with pytest.warns(attncli.AttnWarning, match="no_grad"), attncli.capture("d", gradients=True):
        F.scaled_dot_product_attention(x, x, x)
