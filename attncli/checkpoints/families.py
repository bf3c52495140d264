"""How kinds of models name the parts of an attention layer, and what they do besides."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FAMILIES", "ROTATES", "Family", "Habit", "Stored"]

Stored = Literal["in, out", "out, in", "by shape"]


class Habit(NamedTuple):
    """What models do whose layers are named so, and no tensor says how.

    Attributes
    ----------
    words : str
        Who does what.
    remedy : str
        The options that do it.
    options : frozenset of str
        Who gives one of these knows.
    """

    words: str
    remedy: str
    options: frozenset[str]


@dataclass(frozen=True)
class Family:
    """How a kind of model names the parts of an attention layer.

    Attributes
    ----------
    name : str
        How a user knows it.
    weights, biases : tuple of str
        Of query, key and value; one name where the three lie in one member.
    outputs : tuple of (str, str)
        What weight and bias of the output projection may be called.
    stored : {"in, out", "out, in", "by shape"}
        The axes of the weights.
    one_head : bool
        Without word on its heads it has one; the others must be told.
    by_group : bool
        In one member, the query heads of each key/value head are followed by that key and value
        head; otherwise all queries by all keys and values.
    needs_output : bool
        Without one of its outputs it is another model, which cuts its member in another way.
    within : Pattern or None
        What the prefix of its layers ends with, where others use the same names otherwise.
    habit : Habit or None
    """

    name: str
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    stored: Stored = "out, in"
    one_head: bool = False
    by_group: bool = False
    needs_output: bool = False
    within: re.Pattern[str] | None = None
    habit: Habit | None = None


def _each(pattern: str, words: Iterable[str] = "qkv") -> tuple[str, ...]:
    return tuple(pattern.format(word) for word in words)


def _linear(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}.weight", f"{name}.bias") for name in names)


def _layers(
    name: str,
    pattern: str,
    *outputs: str,
    words: Iterable[str] = "qkv",
    habit: Habit | None = None,
) -> Family:
    """Return a family whose three projections and output are linear layers of their own."""
    stems = _each(pattern, words)
    weights, biases = zip(*_linear(*stems), strict=True)
    return Family(name, weights, biases, _linear(*outputs), habit=habit)


_BY_CONFIG = "--config takes it from the model's config.json; or "
_BY_ROPE = (
    f"{_BY_CONFIG}--rope half does it as Transformers does, with --rope-base (rope_theta there), "
)
_ROTARY = frozenset({"rope"})
ROTATES = Habit(
    "most language models whose layers are named like this (Llama, Mistral, Qwen, Phi) rotate "
    "query and key and are causal",
    f"{_BY_ROPE}or --rope-frequencies for rope_scaling, and --causal",
    _ROTARY,
)
_ROTATES_OR_SLOPES = Habit(
    "models whose layers are named like this rotate a part of query and key (GPT-NeoX, Pythia), or "
    "all of them (Falcon), or have ALiBi (BLOOM), and are causal",
    f"{_BY_CONFIG}--rope half, for a part of them with --rope-frequencies, or --alibi; and "
    "--causal",
    _ROTARY | {"alibi_slopes"},
)
_MODERN = Habit(
    "models whose layers are named like this rotate query and key (ModernBERT) or have ALiBi (MPT)",
    f"{_BY_ROPE}or --alibi",
    _ROTARY | {"alibi_slopes"},
)
_CAUSAL = Habit(
    "GPT-2, whose layers are named like this, is causal",
    "--causal, or --config with the model's config.json",
    frozenset({"causal", "mask", "bias"}),
)
_UNSCALED = Habit(
    "T5, whose layers are named like this, does not scale, and adds a bias of relative positions",
    "--plain, and --bias",
    frozenset({"scale", "plain", "bias"}),
)
# As wide as each other: what stands before may be looked back at.
_OF_T5 = r"(?:SelfAttention[./]|cDecAttention[./])"
_TORCH = "nn.MultiheadAttention"
_BERT = ("query", "key", "value")
FAMILIES = (
    Family("wq", _each("w{}"), _each("b{}"), (("wo", "bo"),), "in, out", one_head=True),
    # The same words with .weight are linear layers (Llama as Meta published it).
    _layers("Llama", "w{}", "wo", habit=ROTATES),
    _layers("Llama", "{}_proj", "o_proj", "out_proj", "dense", habit=ROTATES),
    # The others are those of classes that call their layers so.
    _layers(
        "BERT", "{}", "output.dense", "dense", "out_proj", "out", "proj", "fc_out", words=_BERT
    ),
    _layers("DistilBERT", "{}_lin", "out_lin"),
    _layers("Diffusers", "to_{}", "to_out.0", "to_out"),
    replace(_layers("T5", "{}", "o", habit=_UNSCALED), within=re.compile(rf"{_OF_T5}$")),
    replace(_layers("q, k, v, o", "{}", "o"), within=re.compile(rf"(?<!{_OF_T5})$")),
    # Classes of books and courses: linear layers, or bare matrices that stand behind X.
    _layers("W_query", "W_{}", "out_proj", "W_out", "W_o", words=_BERT),
    _layers("W_q", "W_{}", "W_o", "out_proj"),
    Family("W_query", _each("W_{}", _BERT), _each("b_{}", _BERT), (), "in, out", one_head=True),
    Family("W_q", _each("W_{}"), _each("b_{}"), (("W_o", "b_o"),), "in, out", one_head=True),
    Family(_TORCH, ("in_proj_weight",), ("in_proj_bias",), _linear("out_proj")),
    # With kdim or vdim it has three weights, and still one bias.
    Family(_TORCH, _each("{}_proj_weight"), ("in_proj_bias",), _linear("out_proj")),
    Family("timm", ("qkv.weight",), ("qkv.bias",), _linear("proj")),
    Family(
        "GPT-2",
        ("c_attn.weight",),
        ("c_attn.bias",),
        _linear("c_proj"),
        stored="by shape",
        habit=_CAUSAL,
    ),
    Family(
        "ModernBERT", ("Wqkv.weight",), ("Wqkv.bias",), _linear("Wo", "out_proj"), habit=_MODERN
    ),
    # CodeGen, whose output is called out_proj, cuts its qkv_proj in four.
    Family(
        "Phi-3",
        ("qkv_proj.weight",),
        ("qkv_proj.bias",),
        _linear("o_proj"),
        needs_output=True,
        habit=ROTATES,
    ),
    # ChatGLM's, within layers.0.self_attention, have all queries first; so have those of CogVLM's
    # images, within transformer.layers.0.attention.
    Family(
        "GPT-NeoX",
        ("query_key_value.weight",),
        ("query_key_value.bias",),
        _linear("dense"),
        by_group=True,
        needs_output=True,
        within=re.compile(
            r"^attention[./]$|(?:^|(?<!transformer)[./])layers[./]\d+[./]attention[./]$"
            r"|(?:^|[./])h[./]\d+[./]self_attention[./]$"
        ),
        habit=_ROTATES_OR_SLOPES,
    ),
)
