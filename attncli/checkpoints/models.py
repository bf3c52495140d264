"""How models attend whose configuration leaves it unsaid, by the type that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.names import Pairing

__all__ = ["MODELS", "Model"]


class Model(NamedTuple):
    """How all models of a type attend.

    Attributes
    ----------
    causal : bool or None
        None if only the decoder of two halves is.
    rotates : {"half", "interleaved"} or None
        How a rotary embedding pairs components, where there is one.
    alibi : bool
        Whether scores have the penalties of ALiBi.
    every : int or None
        Where the configuration does not list it: one layer of so many, the last, has no window; 0
        if all have one, None if none has.
    far_rotates : {"always", "without others", "never"}
        Whether layers without a window rotate; ``without others``: if none has one.
    near_unscaled : bool
        Layers with a window rotate as if no text were longer.
    scale : float or None
        Where it is not 1/√D.
    norm : float or None
        Query and key are normalised, with what is stored plus this for weight; None if they are
        not.
    """

    causal: bool | None = True
    rotates: Pairing | None = None
    alibi: bool = False
    every: int | None = None
    far_rotates: Literal["always", "without others", "never"] = "always"
    near_unscaled: bool = False
    scale: float | None = None
    norm: float | None = None


_PLAIN = Model()
_ENCODER = Model(causal=False)
_ROTARY = Model(rotates="half")
_SLIDING = Model(rotates="half", every=0)
_NORMED = Model(rotates="half", norm=0.0)
_TURNED = Model(rotates="interleaved")
# Each compared with its module in Transformers 5.24 (tests/data/transformers).
MODELS: Mapping[str, Model] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode", "opt", "xglm", "biogpt", "clip_text_model"), _PLAIN),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert"), _ENCODER),
    **dict.fromkeys(("distilbert", "vit", "siglip_vision_model"), _ENCODER),
    **dict.fromkeys(("llama", "qwen2", "qwen2_moe", "phi", "gemma", "olmo", "granite"), _ROTARY),
    **dict.fromkeys(("stablelm", "gpt_neox", "falcon", "smollm3", "seed_oss", "nemotron"), _ROTARY),
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo2", "olmoe"), _NORMED),
    **dict.fromkeys(("mistral", "mixtral", "phi3", "starcoder2"), _SLIDING),
    **dict.fromkeys(("gemma2", "gpt_oss"), _SLIDING._replace(every=2)),
    **dict.fromkeys(("cohere", "glm", "glm4", "gptj", "ernie4_5", "helium"), _TURNED),
    **dict.fromkeys(("bloom", "mpt"), Model(alibi=True)),
    "olmo3": _NORMED._replace(every=4, near_unscaled=True),
    "exaone4": _NORMED._replace(every=4, far_rotates="without others"),
    "gemma3_text": Model(rotates="half", every=6, norm=1.0, near_unscaled=True),
    "modernbert": Model(causal=False, rotates="half"),
    "cohere2": _TURNED._replace(every=4, far_rotates="never"),
    "gpt_neo": Model(scale=1.0),
    **dict.fromkeys(("bart", "mbart", "marian", "pegasus", "whisper"), Model(causal=None)),
}
