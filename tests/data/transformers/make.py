"""Write what attention layers of Transformers' models take and give: MODEL.npz beside this file.

Each holds the model's config.json as text, the layer's weights under their names (of the first
layer, and where layers differ, of one of each kind), what the layer read (x), and, where its module
gives them, its weights and what came out. The models are tiny, their weights random numbers of 16
bits. Run by hand, with torch and transformers installed:

    python tests/data/transformers/make.py [MODEL ...]
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForCausalLM

TOKENS, LAYERS = 9, 4
ANY = {"vocab_size": 32, "max_position_embeddings": 32, "pad_token_id": 0}
TEXT = {
    **ANY,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 16}
OLDER = {**ANY, "n_embd": 16, "n_layer": LAYERS, "n_head": 4, "n_positions": 32}
HALVES = {
    **ANY,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
NEAR = {"sliding_window": 3}


def rope(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


TRAINED = {"original_max_position_embeddings": 8, "factor": 4.0}
LONGROPE = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.25],
        "long_factor": [1.5, 6.0],
    }
}
# The class of the configuration without its last word, and what is given to it.
MODELS = {
    "llama": ("Llama", GROUPED),
    "llama-linear": ("Llama", WIDE | rope("linear", factor=4.0)),
    "llama-llama3": (
        "Llama",
        WIDE | rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **TRAINED),
    ),
    "llama-yarn": ("Llama", WIDE | rope("yarn", **TRAINED)),
    "llama-dynamic": ("Llama", WIDE | {"max_position_embeddings": 6} | rope("dynamic", factor=3.0)),
    "mistral": ("Mistral", GROUPED | NEAR),
    "mixtral": ("Mixtral", GROUPED | NEAR | {"num_local_experts": 2}),
    "qwen2": (
        "Qwen2",
        GROUPED | NEAR | {"use_sliding_window": True, "max_window_layers": 2},
    ),
    "qwen2_moe": ("Qwen2Moe", GROUPED | EXPERTS | {"shared_expert_intermediate_size": 8}),
    "qwen3": ("Qwen3", WIDE),
    "qwen3_moe": ("Qwen3Moe", WIDE | EXPERTS),
    "phi": ("Phi", TEXT | {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", GROUPED | NEAR),
    "phi3-long": ("Phi3", GROUPED | LONGROPE | {"original_max_position_embeddings": 8}),
    "phi3-short": ("Phi3", GROUPED | LONGROPE | {"original_max_position_embeddings": 16}),
    "gemma": ("Gemma", WIDE),
    "gemma2": (
        "Gemma2",
        WIDE | NEAR | {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 2.0},
    ),
    "gemma3_text": (
        "Gemma3Text",
        WIDE | NEAR | {"query_pre_attn_scalar": 20, "num_hidden_layers": 6},
    ),
    "olmo": ("Olmo", GROUPED),
    "olmo2": ("Olmo2", GROUPED),
    "olmo3": ("Olmo3", GROUPED | NEAR),
    "olmoe": ("Olmoe", GROUPED | EXPERTS),
    "granite": ("Granite", GROUPED | {"attention_multiplier": 0.3}),
    "starcoder2": ("Starcoder2", GROUPED | NEAR),
    "stablelm": ("StableLm", GROUPED | {"partial_rotary_factor": 0.5}),
    "gpt_oss": (
        "GptOss",
        WIDE
        | NEAR
        | {"num_local_experts": 4}
        | rope("yarn", beta_fast=32.0, beta_slow=1.0, truncate=False, **TRAINED),
    ),
    "cohere": ("Cohere", GROUPED),
    "cohere2": ("Cohere2", GROUPED | NEAR),
    "glm": ("Glm", WIDE | {"partial_rotary_factor": 0.5}),
    "glm4": ("Glm4", WIDE | {"partial_rotary_factor": 0.5}),
    "smollm3": ("SmolLM3", GROUPED),
    "seed_oss": ("SeedOss", WIDE),
    "nemotron": ("Nemotron", GROUPED | {"partial_rotary_factor": 0.5}),
    "ernie4_5": ("Ernie4_5", GROUPED),
    "helium": ("Helium", GROUPED | {"head_dim": 4}),
    "exaone4": ("Exaone4", GROUPED | NEAR | {"sliding_window_pattern": 4}),
    "gpt2": ("GPT2", OLDER),
    "gpt2-by-layer": (
        "GPT2",
        OLDER | {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False},
    ),
    "gpt_bigcode": ("GPTBigCode", OLDER),
    "gptj": ("GPTJ", OLDER | {"rotary_dim": 2}),
    "gpt_neo": (
        "GPTNeo",
        {
            **ANY,
            "hidden_size": 16,
            "num_layers": LAYERS,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 3,
        },
    ),
    "gpt_neox": ("GPTNeoX", TEXT | {"rotary_pct": 0.5}),
    "bloom": ("Bloom", {**ANY, "hidden_size": 16, "n_layer": LAYERS, "n_head": 4}),
    "falcon": ("Falcon", TEXT | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-one-key": ("Falcon", TEXT),
    "mpt": (
        "Mpt",
        {**ANY, "d_model": 16, "n_layers": LAYERS, "n_heads": 4, "expansion_ratio": 1},
    ),
    "opt": ("OPT", TEXT | {"ffn_dim": 16, "word_embed_proj_dim": 16}),
    "xglm": (
        "XGLM",
        {**ANY, "d_model": 16, "ffn_dim": 16, "num_layers": LAYERS, "attention_heads": 4},
    ),
    "biogpt": ("BioGpt", TEXT),
    "bert": ("Bert", TEXT),
    "bert-decoder": ("Bert", TEXT | {"is_decoder": True}),
    "roberta": ("Roberta", TEXT),
    "xlm-roberta": ("XLMRoberta", TEXT),
    "camembert": ("Camembert", TEXT),
    "electra": ("Electra", TEXT | {"embedding_size": 16}),
    "albert": ("Albert", TEXT | {"embedding_size": 16}),
    "distilbert": (
        "DistilBert",
        {**ANY, "dim": 16, "hidden_dim": 16, "n_layers": LAYERS, "n_heads": 4},
    ),
    "modernbert": ("ModernBert", TEXT | {"local_attention": 4, "global_attn_every_n_layers": 3}),
    "clip_text_model": ("CLIPText", TEXT),
    "vit": ("ViT", TEXT | {"image_size": 6, "patch_size": 2}),
    "siglip_vision_model": ("SiglipVision", TEXT | {"image_size": 6, "patch_size": 2}),
    "bart": ("Bart", HALVES),
    "mbart": ("MBart", HALVES),
    "marian": ("Marian", HALVES),
    "pegasus": ("Pegasus", HALVES),
    "whisper": (
        "Whisper",
        HALVES | {"max_source_positions": TOKENS, "max_target_positions": 32, "num_mel_bins": 4},
    ),
}
HEADLESS = (
    *("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert"),
    *("modernbert", "clip_text_model", "vit", "siglip_vision_model", "bart", "mbart", "marian"),
    *("pegasus", "whisper"),
)
JOINT = {"c_attn", "query_key_value", "Wqkv", "qkv_proj"}
APART = (
    {"q_proj", "k_proj", "v_proj"},
    {"q_lin", "k_lin", "v_lin"},
    {"query", "key", "value"},
)


def is_attention(module):
    parts = {name for name, _ in module.named_children()}
    return bool(parts & JOINT) or any(names <= parts for names in APART)


def random_model(name):
    """Return a model with weights of 16 bits, which every norm and bias has too."""
    words, options = MODELS[name]
    config = getattr(transformers, f"{words}Config")(**options)
    config._attn_implementation = "eager"
    torch.manual_seed(sorted(MODELS).index(name))
    kind = AutoModel if name.split("-decoder")[0] in HEADLESS else AutoModelForCausalLM
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn_like(weight)
            weight.copy_((0.4 * noise if weight.ndim > 1 else weight + 0.2 * noise).half())
    return model


def inputs(model):
    ids = torch.randint(1, 32, (1, TOKENS))
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(1, 3, 6, 6)}
    if model.main_input_name == "input_features":
        return {"input_features": torch.randn(1, 4, 2 * TOKENS), "decoder_input_ids": ids}
    both = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    return {"input_ids": ids, **both}


def watched(model):
    """Run a model, and return what each attention module read and gave."""
    seen = {}

    def before(name, _module, args, options):
        seen[name] = {"x": options.get("hidden_states", args[0] if args else None)}

    def after(name, _module, _args, given):
        for array in given if isinstance(given, tuple) else (given,):
            if torch.is_tensor(array):
                seen[name]["weights" if array.ndim == 4 else "context"] = array

    for name, module in model.named_modules():
        if is_attention(module) and "encoder_attn" not in name:
            module.register_forward_pre_hook(
                lambda *given, name=name: before(name, *given), with_kwargs=True
            )
            module.register_forward_hook(lambda *given, name=name: after(name, *given))
    with torch.no_grad():
        eager = model.config._attn_implementation == "eager"
        model(**inputs(model), output_attentions=eager)
    return seen


def chosen(names, config):
    """Return one layer of each kind: those that follow each other differ, if any do."""
    kinds = config.get("layer_types") or config.get("attention_layers")
    skips = config.get("no_rope_layers")
    by_layer = [0, *[config.get("scale_attn_by_inverse_layer_idx", 0)] * 99]
    labels = list(zip(kinds or by_layer, skips or by_layer, by_layer, strict=False))
    if config.get("is_encoder_decoder"):
        return names
    first = dict(reversed(list(zip(labels, range(len(names)), strict=False))))
    return [names[number] for number in sorted(first.values())]


def number_of(name):
    return [int(word) for word in name.split(".") if word.isdigit()]


def write(name):
    model = random_model(name)
    seen = watched(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads(Path(folder, "config.json").read_text())
        stored = load_file(Path(folder, "model.safetensors"))
    entries = {"config": np.frombuffer(json.dumps(config).encode(), np.uint8)}
    for layer in chosen(list(seen), config):
        # What is stored may have another prefix than the module.
        half = layer.split(".")[-4] if config.get("is_encoder_decoder") else None
        own = {
            member: weight
            for member, weight in stored.items()
            if number_of(member)[:1] == number_of(layer)[:1]
            and (half is None or half in member.split("."))
            and ("attention" in member or "attn" in member)
            and "encoder_attn" not in member
        }
        entries |= {member: weight.half().numpy() for member, weight in own.items()}
        entries |= {f"{layer}|{what}": array.numpy() for what, array in seen[layer].items()}
    np.savez_compressed(Path(__file__).parent / f"{name}.npz", **entries)


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        write(name)
