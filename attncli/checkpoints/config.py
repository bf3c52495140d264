"""How a layer attends, by the ``config.json`` that Transformers keeps beside its weights."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.arguments import not_negative
from attncli.checkpoints.entries import Entries
from attncli.checkpoints.models import MODELS
from attncli.checkpoints.rotation import SLIDING, Rotation
from attncli.dtypes import nearest
from attncli.errors import UsageError
from attncli.positions import alibi_slopes
from attncli.text import first_few, quoted
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from attncli.checkpoints.models import Model

__all__ = ["LayerConfig", "layer_config"]

Options = dict[str, Any]

# More than any model has.
_MOST_LAYERS, _MOST_HEADS = 1000, 2**12
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_CROSS = re.compile(r"cross|encoder_attn", re.IGNORECASE)
_VISION = re.compile(r"vision|visual|image", re.IGNORECASE)
# What changes attention where it is set, and attncli does not do.
_NOT_APPLIED = {
    **dict.fromkeys(("clip_qkv", "qk_ln", "prefix_lm"), (None, False)),
    "position_embedding_type": (None, "absolute", "rope", "rope_gptj", "rotary"),
}


class LayerConfig(NamedTuple):
    """How a layer attends.

    Attributes
    ----------
    options : dict
        Arguments of `attncli.pose`.
    norm : float or None
        Where query and key are normalised, what is added to the stored weights of the norms.
    epsilon : float or None
        Of these norms.
    width : int or None
        Of a head, to be compared with the layer's.
    kind : str
        The type of model that it names.
    model : Model
    """

    options: Options
    norm: float | None
    epsilon: float | None
    width: int | None
    kind: str
    model: Model


def layer_config(
    config: Mapping[str, Any],
    prefix: str,
    file: str,
    *,
    tokens: int | None = None,
    placed: bool = False,
) -> LayerConfig:
    """Return how a layer attends in its model.

    Parameters
    ----------
    config : mapping
        As its JSON has it.
    prefix : str
        Of the layer's members; its number is the layer's.
    file : str
        How errors name the configuration.
    tokens : int, optional
        How many there are, on which the rotary embeddings of some models depend.
    placed : bool
        Whether options say how scores depend on positions, so that the configuration need not.

    Returns
    -------
    LayerConfig

    Raises
    ------
    UsageError
        The type of the model is unknown, or an entry is not what it should be.

    Warns
    -----
    AttnWarning
        The model does something that attncli does not apply.
    """
    own = _part(config, prefix)
    kind = own.get("model_type")
    model = MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise _unknown(kind, file)
    settings = _Settings(own, prefix, file, model, tokens)
    for name, plain in _NOT_APPLIED.items():
        if settings.value(name) not in plain:
            warn(
                f"{file}: {name} is set, which attncli does not apply: the result is not the "
                "model's"
            )
    options = {"heads": settings.heads, "kv_heads": settings.kv_heads}
    options |= settings.scores()
    if not _CROSS.search(prefix):
        options |= settings.rules(placed=placed)
    given = {name: value for name, value in options.items() if value is not None}
    epsilon = settings.number("rms_norm_eps")
    return LayerConfig(given, model.norm, epsilon, settings.width, settings.kind, model)


@dataclass(frozen=True)
class _Settings(Entries):
    """What a configuration says of a layer of a model that is known."""

    model: Model
    tokens: int | None

    @property
    def heads(self) -> int | None:
        if self.model.causal is None:
            halves = ("encoder_attention_heads", "decoder_attention_heads")
            return self.count(halves[self.decodes], most=_MOST_HEADS)
        return self.count(*_HEADS, most=_MOST_HEADS)

    @property
    def decodes(self) -> bool:
        """Whether the layer is one of a decoder, of a model that has an encoder, too."""
        if "decoder" in self.prefix.lower():
            return True
        if "encoder" in self.prefix.lower():
            return False
        raise UsageError(
            f"{self.file}: {quoted(self.prefix)} does not say whether the layer is one of the "
            "encoder or of the decoder",
            hint="name it as in model.safetensors#model.decoder.layers.3.self_attn",
        )

    @property
    def kv_heads(self) -> int | None:
        if self.says("multi_query", otherwise=False):
            newer = self.says("new_decoder_architecture", otherwise=False)
            return self.count("num_kv_heads") if newer else 1
        if self.kind == "gpt_bigcode":
            raise UsageError(
                f"{self.file}: without multi_query the c_attn of each head lies by itself, and "
                "attncli does not cut it so",
                hint="give the weights one by one, with --wq, --wk and --wv",
            )
        if self.value("new_decoder_architecture") is False:
            return None
        return self.count("num_key_value_heads", "num_kv_heads")

    @property
    def width(self) -> int | None:
        """Of a head."""
        width, heads, all_of = self.count("head_dim"), self.heads, self.count(*_WIDTHS)
        return width or (max(1, all_of // heads) if heads and all_of else None)

    @property
    def known_width(self) -> int:
        """The same, where it is needed."""
        if self.width is None:
            raise UsageError(f"{self.file}: expected head_dim, or {_WIDTHS[0]} and {_HEADS[0]}")
        return self.width

    @property
    def slides(self) -> bool:
        """Whether the layer sees only keys that are near, if the model has such layers."""
        kinds = self.value("layer_types", "attention_layers")
        if isinstance(kinds, list):
            return self.of_layer(kinds) in (SLIDING, "local")
        types = self.value("attention_types")
        if isinstance(types, list):
            return bool(self.of_layer(_spread(types, self.file)) == "local")
        if self.value("use_sliding_window") is not None:
            if self.says("use_sliding_window", otherwise=False) and "_moe" in self.kind:
                raise UsageError(
                    f"{self.file}: which layers of {self.kind} have a window does not follow from "
                    "use_sliding_window",
                    hint="leave out --config, and give its options one by one",
                )
            first = self.value("max_window_layers") or 0
            first = not_negative(f"{self.file}: max_window_layers", first)
            return self.says("use_sliding_window", otherwise=True) and self.number_of_layer >= first
        if (every := self.count("global_attn_every_n_layers")) is not None:
            return self.number_of_layer % every != 0
        every = self.count("sliding_window_pattern") or self.model.every
        return every == 0 or (every is not None and (self.number_of_layer + 1) % every != 0)

    def scores(self) -> Options:
        """Return scale and softcap."""
        scale, squared = (
            self.number("attention_multiplier", "softmax_scale"),
            self.number("query_pre_attn_scalar"),
        )
        if squared is not None:
            scale = squared**-0.5
        if scale is None:
            scale = self.model.scale
        if not self.says("scale_attn_weights", otherwise=True):
            scale = 1.0
        if self.says("scale_attn_by_inverse_layer_idx", otherwise=False):
            scale = (scale or self.known_width**-0.5) / (self.number_of_layer + 1)
        return {"scale": scale, "softcap": self.number("attn_logit_softcapping")}

    def rules(self, *, placed: bool) -> Options:
        """Return what depends on positions: who sees whom, and rotation or ALiBi."""
        causal = self.decodes if self.model.causal is None else self.model.causal
        causal = causal or self.says("is_decoder", otherwise=False)
        causal = causal and not self.says("use_bidirectional_attention", otherwise=False)
        options: Options = {"causal": True} if causal else {}
        reaches = ("sliding_window", "window_size", "local_attention")
        slides = self.value(*reaches) is not None and self.slides
        if slides:
            reach = self.count(*reaches) or 1
            options["window"] = (reach - 1, 0) if causal else (reach // 2, reach // 2)
        if placed:
            return options
        if self.says("alibi", otherwise=self.model.alibi):
            return options | self._penalties()
        rotation = Rotation(self, self.model, slides)
        if self.model.rotates is None or not rotation.is_applied:
            return options
        own = self.scores()["scale"]
        scale = self.known_width**-0.5 if own is None else own
        return options | rotation.options(self.known_width, scale, self.tokens)

    def _penalties(self) -> Options:
        """Return ALiBi, which Falcon adds as numbers of its own."""
        if self.kind != "falcon":
            return {"alibi_slopes": True}
        warn(
            f"{self.file}: its bias is ALiBi as the default attention of Transformers (sdpa) adds "
            "it in Falcon: slope · j / √D to key j, rounded to bfloat16; eager attention adds "
            "twice as much"
        )
        bias = _falcon_penalties(self.heads or 1, self.tokens or 1)
        return {"bias": bias / np.float32(math.sqrt(self.known_width))}


def _part(config: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    """Return the part of a configuration that is about a layer: of text, or of pictures."""
    inner = config.get("vision_config" if _VISION.search(prefix) else "text_config")
    return inner if isinstance(inner, dict) else config


def _falcon_penalties(heads: int, tokens: int) -> npt.NDArray[np.float32]:
    """Return the slope of each head times the number of each key (H, 1, S), as in bfloat16."""
    slopes, keys = (
        nearest(np.array(numbers, np.float32), 16)
        for numbers in (alibi_slopes(heads), np.arange(tokens))
    )
    return nearest(np.multiply.outer(slopes, keys), 16)[:, np.newaxis]


def _spread(types: list[Any], file: str) -> list[Any]:
    """Return the kind of each layer, of kinds that follow each other and how often they do."""
    try:
        return [
            kind for kinds, times in types for kind in list(kinds) * min(int(times), _MOST_LAYERS)
        ]
    except (TypeError, ValueError):
        raise UsageError(f"{file}: attention_types: expected lists of kinds and times") from None


def _unknown(kind: object, file: str) -> UsageError:
    if not isinstance(kind, str):
        return UsageError(
            f"{file}: expected the config.json of a model, with model_type; found none",
            hint="Transformers keeps it beside the model's weights",
        )
    return UsageError(
        f"{file}: attncli does not know how models of type {quoted(kind)} attend",
        hint="leave out --config, and give its options one by one: --heads, --causal, --rope, …; "
        f"known are {first_few([*MODELS], len(MODELS))}",
    )
