"""How models attend whose configuration leaves it unsaid, by the type that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.checkpoints.names import Layer
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
    family : str
        Whose names its layers have.
    output : str or None
        What the output projection is called, where other models of that family call it otherwise.
    """

    causal: bool | None = True
    rotates: Pairing | None = None
    alibi: bool = False
    every: int | None = None
    far_rotates: Literal["always", "without others", "never"] = "always"
    near_unscaled: bool = False
    scale: float | None = None
    norm: float | None = None
    family: str = "Llama"
    output: str | None = "o_proj"

    def names(self, layer: Layer) -> bool:
        """Return whether a layer's members may be named so; others than models' own always may."""
        if layer.family != self.family:
            return layer.family not in _FAMILIES
        if self.output is None or "wo" not in layer.members:
            return True
        own = layer.members["wo"].removesuffix(".weight").rpartition(".")[2]
        return own in (self.output, _OF_META)


# As Llama was published by Meta.
_OF_META = "wo"
_OF_BART = Model(output="out_proj")
_OF_GPT2 = Model(family="GPT-2", output=None)
_ENCODER = Model(causal=False, family="BERT", output=None)
_ROTARY = Model(rotates="half")
_SLIDING = Model(rotates="half", every=0)
_NORMED = Model(rotates="half", norm=0.0)
_TURNED = Model(rotates="interleaved")
# Each compared with its module in Transformers 5.24 (tests/data/transformers).
MODELS: Mapping[str, Model] = {
    **dict.fromkeys(("gpt2", "gpt_bigcode"), _OF_GPT2),
    **dict.fromkeys(("opt", "xglm", "biogpt", "clip_text_model"), _OF_BART),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "camembert", "electra", "albert"), _ENCODER),
    "vit": _ENCODER,
    "distilbert": _ENCODER._replace(family="DistilBERT"),
    "siglip_vision_model": _OF_BART._replace(causal=False),
    **dict.fromkeys(("llama", "qwen2", "qwen2_moe", "gemma", "olmo", "granite"), _ROTARY),
    **dict.fromkeys(("stablelm", "smollm3", "seed_oss", "nemotron"), _ROTARY),
    "phi": _ROTARY._replace(output="dense"),
    **dict.fromkeys(("gpt_neox", "falcon"), _ROTARY._replace(family="GPT-NeoX", output=None)),
    **dict.fromkeys(("qwen3", "qwen3_moe", "olmo2", "olmoe"), _NORMED),
    **dict.fromkeys(("mistral", "mixtral", "starcoder2"), _SLIDING),
    "phi3": _SLIDING._replace(family="Phi-3", output=None),
    **dict.fromkeys(("gemma2", "gpt_oss"), _SLIDING._replace(every=2)),
    **dict.fromkeys(("cohere", "glm", "glm4", "ernie4_5", "helium"), _TURNED),
    "gptj": _TURNED._replace(output="out_proj"),
    "bloom": Model(alibi=True, family="GPT-NeoX", output=None),
    "mpt": Model(alibi=True, family="ModernBERT", output="out_proj"),
    "olmo3": _NORMED._replace(every=4, near_unscaled=True),
    "exaone4": _NORMED._replace(every=4, far_rotates="without others"),
    "gemma3_text": Model(rotates="half", every=6, norm=1.0, near_unscaled=True),
    "modernbert": Model(causal=False, rotates="half", family="ModernBERT", output="Wo"),
    "cohere2": _TURNED._replace(every=4, far_rotates="never"),
    "gpt_neo": _OF_BART._replace(scale=1.0),
    **dict.fromkeys(
        ("bart", "mbart", "marian", "pegasus", "whisper"), _OF_BART._replace(causal=None)
    ),
}
_FAMILIES = {model.family for model in MODELS.values()}
