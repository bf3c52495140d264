"""The options of an attention layer, from the ``config.json`` of its model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attncli.checkpoints.names import stored_table
from attncli.checkpoints.rope import rope_options
from attncli.errors import UsageError, warn
from attncli.errors.text import first_few, quoted
from attncli.problem.arguments import flag, not_negative, positive_int, positive_number, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from attncli.errors.names import Pairing

Options = dict[str, Any]

SLIDING = "sliding_attention"
# No model has more layers, heads, or more of anything else, such as tokens in a window.
_MOST_LAYERS, _MOST_HEADS, _MOST = 1000, 2**12, 2**24
# Names of one setting in the configurations of different models.
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim")
_REACHES = ("sliding_window", "window_size", "local_attention")
_NUMBER = re.compile(r"(?:^|[./])(?:layers?|blocks?|h)[./](\d{1,9})(?:[./]|$)")
_CROSS = re.compile(r"cross|encoder_attn", re.IGNORECASE)
_VISION = re.compile(r"vision|visual|image", re.IGNORECASE)
# Entries that attncli does not apply, and for each the values that change nothing.
_NOT_APPLIED = {
    **dict.fromkeys(("clip_qkv", "qk_ln", "prefix_lm"), (None, False)),
    "position_embedding_type": (None, "absolute", "rope", "rope_gptj", "rotary"),
}


class Model(NamedTuple):
    """The rules of one type of models; ``models.toml`` explains the fields."""

    causal: bool | Literal["in the decoder"] = True
    rotates: Pairing | None = None
    alibi: bool = False
    full_every: int | None = None
    full_rotate: Literal["always", "without windows", "never"] = "always"
    windows_unscaled: bool = False
    scale: float | None = None
    norm_plus: float | None = None
    defaults: Mapping[str, Any] = {}


class LayerConfig(NamedTuple):
    """The arguments of `attncli.pose` that a configuration sets, its norms, and a head's width.

    ``norm`` is added to the stored weights of the norms of query and key; it is None if the model
    has no such norms. ``epsilon`` is the small number in these norms.
    """

    options: Options
    norm: float | None
    epsilon: float | None
    width: int | None


@cache
def models() -> Mapping[str, Model]:
    """Return the rules of all known types of models."""
    return {kind: Model(**entry) for kind, entry in stored_table("models.toml").items()}


def layer_config(
    config: Mapping[str, Any],
    prefix: str,
    file: str,
    *,
    tokens: int | None = None,
    given: Collection[str] = (),
) -> LayerConfig:
    """Return the options of the layer with this ``prefix``.

    Some rotary embeddings depend on the number of ``tokens``. Entries of the file that the options
    in ``given`` replace are not read.
    """
    inner = config.get("vision_config" if _VISION.search(prefix) else "text_config")
    own = inner if isinstance(inner, dict) else config
    kind = own.get("model_type")
    model = models().get(kind) if isinstance(kind, str) else None
    if model is None:
        raise _unknown(kind, file)
    settings = Settings(own, prefix, file, model, tokens)
    for name, plain in _NOT_APPLIED.items():
        if settings.value(name) not in plain:
            warn(
                f"{file}: {name} is set, which attncli does not apply: the result is not the "
                "model's"
            )
    options = settings.options({*given})
    kept = {n: value for n, value in options.items() if value is not None and value is not False}
    width = None if "heads" in given else settings.width
    return LayerConfig(kept, model.norm_plus, settings.number("rms_norm_eps"), width)


@dataclass(frozen=True)
class Settings:
    """The configuration of a layer of a known model."""

    config: Mapping[str, Any]
    prefix: str
    file: str
    model: Model
    tokens: int | None

    def value(self, *names: str) -> Any:
        """Return the first of some entries that is not null, or the default of Transformers."""
        inner = self.config.get("attn_config")
        parts = [self.config, inner if isinstance(inner, dict) else {}]
        found = [part[name] for part in parts for name in names if part.get(name) is not None]
        if found or any(name in part for part in parts for name in names):
            return found[0] if found else None
        return next((v for name, v in self.model.defaults.items() if name in names), None)

    def count(self, *names: str, most: int = _MOST) -> int | None:
        """Return the first of some entries as a whole number."""
        value = self.value(*names)
        if value is None:
            return None
        name = f"{self.file}: {names[0]}"
        count = positive_int(name, value)
        if count > most:
            raise UsageError(f"{name}: expected at most {most}; found {shown(value)}")
        return count

    def number(self, *names: str) -> float | None:
        """Return the first of some entries as a positive number."""
        value = self.value(*names)
        return None if value is None else positive_number(f"{self.file}: {names[0]}", value)

    def says(self, name: str, *, otherwise: bool) -> bool:
        """Return an entry as true or false, and `otherwise` if it is missing."""
        value = self.value(name)
        return otherwise if value is None else flag(f"{self.file}: {name}", value)

    @property
    def layer(self) -> int:
        """The number of the layer, counted from 0."""
        found = _NUMBER.findall(self.prefix)
        if not found:
            raise UsageError(
                f"{self.file}: layers of this model differ, and {quoted(self.prefix)} does not say "
                "which one it is",
                hint="name it as in model.safetensors#model.layers.3.self_attn",
            )
        return int(found[-1])

    def of_layer(self, entries: list[Any]) -> Any:
        """Return this layer's item of a list with an item for each layer."""
        if self.layer >= len(entries):
            raise UsageError(
                f"{self.file}: expected a layer below {len(entries)}; found layer {self.layer}"
            )
        return entries[self.layer]

    def options(self, given: set[str]) -> Options:
        """Return the options that are not given; those that the file lacks are None or false."""
        made: dict[str, Callable[[], object]]
        made = {"heads": self.heads, "kv_heads": self.kv_heads, "scale": self.scale}
        made["softcap"] = lambda: self.number("attn_logit_softcapping")
        if not _CROSS.search(self.prefix):
            made |= {"causal": self.causal, "window": self.window}
        options: Options = {name: make() for name, make in made.items() if name not in given}
        # One of these options replaces all that the file says of positions.
        if "causal" in made and not given & {"rope", "alibi_slopes"}:
            options |= self._positions(given)
        speeds = {"rope_base", "rope_frequencies"}
        given = given | (speeds if given & speeds else set())
        return {name: value for name, value in options.items() if name not in given}

    def heads(self) -> int | None:
        """Return the number of query heads."""
        if self.model.causal == "in the decoder":
            halves = ("encoder_attention_heads", "decoder_attention_heads")
            return self.count(halves[self.decodes], most=_MOST_HEADS)
        return self.count(*_HEADS, most=_MOST_HEADS)

    @property
    def decodes(self) -> bool:
        """Whether the layer belongs to the decoder of an encoder and a decoder."""
        half = re.search("decoder|encoder", self.prefix.lower())
        if half is None:
            raise UsageError(
                f"{self.file}: {quoted(self.prefix)} does not say whether the layer belongs to the "
                "encoder or to the decoder",
                hint="name it as in model.safetensors#model.decoder.layers.3.self_attn",
            )
        return "decoder" in self.prefix.lower()

    def kv_heads(self) -> int | None:
        """Return the number of key/value heads, if the file has it."""
        if self.says("multi_query", otherwise=False):
            newer = self.says("new_decoder_architecture", otherwise=False)
            return self.count("num_kv_heads") if newer else 1
        if self.config["model_type"] == "gpt_bigcode":
            raise UsageError(
                f"{self.file}: without multi_query, c_attn holds query, key and value head by "
                "head, which attncli does not read",
                hint="give the weights one by one, with --wq, --wk and --wv",
            )
        if self.value("new_decoder_architecture") is False:
            return None
        return self.count("num_key_value_heads", "num_kv_heads")

    @property
    def width(self) -> int | None:
        """The width of a head, if the file gives it."""
        width, heads, all_of = self.count("head_dim"), self.heads(), self.count(*_WIDTHS)
        return width or (max(1, all_of // heads) if heads and all_of else None)

    @property
    def known_width(self) -> int:
        """The width of a head; an error where it is unknown."""
        if self.width is None:
            raise UsageError(f"{self.file}: expected head_dim, or {_WIDTHS[0]} and {_HEADS[0]}")
        return self.width

    def scale(self) -> float | None:
        """Return the factor of the scores if it is not 1/√D."""
        scale = self.number("attention_multiplier", "softmax_scale")
        squared = self.number("query_pre_attn_scalar")
        if squared is not None:
            scale = squared**-0.5
        if scale is None:
            scale = self.model.scale
        if not self.says("scale_attn_weights", otherwise=True):
            scale = 1.0
        if self.says("scale_attn_by_inverse_layer_idx", otherwise=False):
            scale = (scale or self.known_width**-0.5) / (self.layer + 1)
        return scale

    def causal(self) -> bool:
        """Return whether the layer is causal."""
        own = self.model.causal
        causal = self.decodes if own == "in the decoder" else own
        causal = causal or self.says("is_decoder", otherwise=False)
        return causal and not self.says("use_bidirectional_attention", otherwise=False)

    def window(self) -> tuple[int, int] | None:
        """Return the number of keys that a query sees before and after its own position."""
        if not self.has_window:
            return None
        reach = self.count(*_REACHES) or 1
        return (reach - 1, 0) if self.causal() else (reach // 2, reach // 2)

    @property
    def has_window(self) -> bool:
        """Whether the layer has a window."""
        if self.value(*_REACHES) is None:
            return False
        kinds = self.value("layer_types", "attention_layers")
        if isinstance(kinds, list):
            return self.of_layer(kinds) in (SLIDING, "local")
        types = self.value("attention_types")
        if isinstance(types, list):
            return bool(self.of_layer(_spread(types, self.file)) == "local")
        if self.value("use_sliding_window") is not None:
            return self._uses_window()
        if (every := self.count("global_attn_every_n_layers")) is not None:
            return self.layer % every != 0
        every = self.count("sliding_window_pattern") or self.model.full_every
        return every == 0 or (every is not None and (self.layer + 1) % every != 0)

    def _uses_window(self) -> bool:
        """Return whether a layer of Qwen has a window."""
        used, kind = self.says("use_sliding_window", otherwise=True), self.config["model_type"]
        if used and "_moe" in kind:
            raise UsageError(
                f"{self.file}: use_sliding_window does not say which {kind} layers have a window",
                hint="leave out --config, and give its options one by one",
            )
        first = self.value("max_window_layers") or 0
        return used and self.layer >= not_negative(f"{self.file}: max_window_layers", first)

    def _positions(self, given: Collection[str]) -> Options:
        """Return the options for positions: ALiBi, or a rotary embedding."""
        if self.says("alibi", otherwise=self.model.alibi):
            if self.config["model_type"] == "falcon":
                raise UsageError(
                    f"{self.file}: Falcon rounds ALiBi to bfloat16, which attncli does not do",
                    hint="leave out --config, and give its options one by one, ALiBi as --bias",
                )
            return {"alibi_slopes": True}
        if self.model.rotates is None or not self._rotates():
            return {}
        own = None if "scale" in given else self.scale()
        scale = self.known_width**-0.5 if own is None else own
        return rope_options(self, self.known_width, scale, sliding=self.has_window)

    def _rotates(self) -> bool:
        full = self.model.full_rotate
        if not self.has_window and full != "always":
            return full == "without windows" and self.value("sliding_window") is None
        rotated, interval = self.value("no_rope_layers"), self.count("no_rope_layer_interval")
        if isinstance(rotated, list):
            return bool(self.of_layer(rotated))
        return interval is None or (self.layer + 1) % interval != 0


def _spread(types: list[Any], file: str) -> list[Any]:
    """Return the kind of each layer from pairs of kinds and their number of repetitions."""
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
            hint="it is in the same folder as the model's weights",
        )
    return UsageError(
        f"{file}: attncli does not know the attention of models of type {quoted(kind)}",
        hint="leave out --config, and give its options one by one: --heads, --causal, --rope, …; "
        f"known are {first_few([*models()], len(models()))}",
    )
