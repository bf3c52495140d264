"""Attention layers in checkpoints, found only by the names of their members."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

__all__ = ["Layer", "find_layers"]

Stored = Literal["in, out", "out, in", "by shape"]


@dataclass(frozen=True)
class _Family:
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
    """

    name: str
    weights: tuple[str, ...]
    biases: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    stored: Stored = "out, in"
    one_head: bool = False


def _each(pattern: str, words: Iterable[str] = "qkv") -> tuple[str, ...]:
    return tuple(pattern.format(word) for word in words)


def _linear(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{name}.weight", f"{name}.bias") for name in names)


def _layers(name: str, pattern: str, *outputs: str, words: Iterable[str] = "qkv") -> _Family:
    """Return a family whose three projections and output are linear layers of their own."""
    stems = _each(pattern, words)
    weights, biases = zip(*_linear(*stems), strict=True)
    return _Family(name, weights, biases, _linear(*outputs))


_TORCH = "nn.MultiheadAttention"
_BERT = ("query", "key", "value")
_FAMILIES = (
    _Family("plain", _each("w{}"), _each("b{}"), (("wo", "bo"),), "in, out", one_head=True),
    # The same words with .weight are linear layers (Llama as Meta published it).
    _layers("Llama", "w{}", "wo"),
    _layers("Llama", "{}_proj", "o_proj", "out_proj", "dense"),
    # The others are those of classes that call their layers so.
    _layers(
        "BERT", "{}", "output.dense", "dense", "out_proj", "out", "proj", "fc_out", words=_BERT
    ),
    _layers("DistilBERT", "{}_lin", "out_lin"),
    _layers("Diffusers", "to_{}", "to_out.0", "to_out"),
    # Classes of books and courses: linear layers, or bare matrices that stand behind X.
    _layers("W_query", "W_{}", "out_proj", "W_out", "W_o", words=_BERT),
    _layers("W_q", "W_{}", "W_o", "out_proj"),
    _Family("W_query", _each("W_{}", _BERT), _each("b_{}", _BERT), (), "in, out", one_head=True),
    _Family("W_q", _each("W_{}"), _each("b_{}"), (("W_o", "b_o"),), "in, out", one_head=True),
    _Family(_TORCH, ("in_proj_weight",), ("in_proj_bias",), _linear("out_proj")),
    # With kdim or vdim it has three weights, and still one bias.
    _Family(_TORCH, _each("{}_proj_weight"), ("in_proj_bias",), _linear("out_proj")),
    _Family("timm", ("qkv.weight",), ("qkv.bias",), _linear("proj")),
    _Family("GPT-2", ("c_attn.weight",), ("c_attn.bias",), _linear("c_proj"), stored="by shape"),
)
# What some layers do beside the projections, and attncli does not. Within what is called
# attention, everything that is not known belongs to it; beside other things, this does.
_NOT_APPLIED = (
    *("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight"),
    *("bias_k", "bias_v", "relative_attention_bias."),
)
_ATTENTION = re.compile(r"(?:^|[./_])(?:\w*attn\d*|\w*attention|self)[./]$", re.IGNORECASE)
# More than any layer has: a hostile file may nest thousands of layers in each other.
_MOST_MEMBERS = 300
# Causal masks, positions and frequencies that are saved though they are no weights; and the norm
# that follows the residual connection, behind the layer.
_BESIDE = re.compile(
    r"(?:masked_)?bias|relative_position_index|position_ids|LayerNorm\..*"
    r"|(?:.*\.)?(?:(?:causal_|attn_|attention_)?mask|tril|inv_freq|freqs(?:_cis)?)"
    r"|(?:.*\.)?(?:cos|sin)(?:_cached)?"
)
# What the output of BERT and ViT stands beside, not within.
_INNER = re.compile(r"(?:(?:^|(?<=[./]))self|(?<=attention[./])attention)[./]$")


@dataclass(frozen=True)
class Layer:
    """One attention layer, by the names of its members.

    Attributes
    ----------
    prefix : str
        What its members' names begin with, without the last point.
    family : str
        Whose names they are: ``BERT``, ``Llama``, ``nn.MultiheadAttention``, ….
    stored : {"in, out", "out, in", "by shape"}
        The axes of the weights; ``by shape`` is GPT-2's packed matrix, of which there are
        transposed copies.
    members : mapping of str to str
        ``wq``, ``wk``, ``wv``, ``wo``, ``bq``, ``bk``, ``bv``, ``bo``, ``sinks``: those that
        there are, each with its member; three share one member where they are packed.
    not_applied : tuple of str
        Members that belong to the layer, and that attncli ignores.
    one_head : bool
        Without word on its heads the layer is taken to have one.
    """

    prefix: str
    family: str
    stored: Stored
    members: Mapping[str, str]
    not_applied: tuple[str, ...] = ()
    one_head: bool = False

    @property
    def rotates(self) -> bool:
        """Whether models whose layers are named so rotate query and key.

        BART's names differ from theirs in the output alone, and BART does not.
        """
        output = self.members.get("wo", "")
        return self.family == "Llama" and output.endswith(("o_proj.weight", "dense.weight"))


def find_layers(names: Collection[str]) -> tuple[Layer, ...]:
    """Return the attention layers among the members of a checkpoint, in its order.

    Parameters
    ----------
    names : collection of str
        The names of all members.

    Examples
    --------
    >>> names = ["h.0.q_proj.weight", "h.0.k_proj.weight", "h.0.v_proj.weight"]
    >>> [(layer.prefix, layer.family) for layer in find_layers(names)]
    [('h.0', 'Llama')]
    """
    known = set(names)
    ordered = sorted(known)
    return tuple(
        _layer(family, start, known, ordered)
        for name in names
        for family in _FAMILIES
        if (start := _start(name, family.weights[0])) is not None
        and all(start + weight in known for weight in family.weights)
    )


def _layer(family: _Family, start: str, known: set[str], ordered: list[str]) -> Layer:
    members = dict(_parts("w", start, family.weights))
    biases = _parts("b", start, family.biases)
    # Whisper leaves out the key's bias alone.
    members |= {part: name for part, name in biases if name in known}
    members |= _output(family, start, known)
    if f"{start}sinks" in known:
        members["sinks"] = f"{start}sinks"
    ignored = tuple(_not_applied(start, set(members.values()), ordered))
    return Layer(start.rstrip("./"), family.name, family.stored, members, ignored, family.one_head)


def _not_applied(start: str, used: set[str], ordered: list[str]) -> Iterator[str]:
    """Yield the members that belong to a layer and are not used, of all names in their order."""
    parts = {name.removesuffix("weight") for name in used if name.endswith(".weight")}
    within = _ATTENTION.search(start) is not None
    prefixes = [start] if within else sorted({*parts, *(start + own for own in _NOT_APPLIED)})
    for prefix in prefixes:
        for name in _beginning(prefix, ordered):
            if name not in used and not _BESIDE.fullmatch(name.removeprefix(start)):
                yield name


def _beginning(prefix: str, ordered: list[str]) -> Iterator[str]:
    """Yield the first names of an order that begin with a prefix, as many as a layer may have."""
    first = bisect_left(ordered, prefix)
    for name in ordered[first : first + _MOST_MEMBERS]:
        if not name.startswith(prefix):
            return
        yield name


def _parts(kind: str, start: str, ends: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for place, letter in enumerate("qkv"):
        yield kind + letter, start + ends[place if len(ends) > 1 else 0]


def _output(family: _Family, start: str, known: set[str]) -> dict[str, str]:
    for place in (start, _INNER.sub("", start)):
        for weight, bias in family.outputs:
            if place + weight in known:
                names = {"wo": place + weight, "bo": place + bias}
                return {part: name for part, name in names.items() if name in known}
    return {}


def _start(name: str, end: str) -> str | None:
    """Return what stands before a name's last part, or None where that is another."""
    start = name.removesuffix(end)
    return start if name.endswith(end) and (not start or start[-1] in "./") else None
