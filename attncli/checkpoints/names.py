"""Attention layers in checkpoints, found only by the names of their members."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attncli.checkpoints.families import FAMILIES, ROTATES, Habit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from attncli.checkpoints.families import Family, Stored

__all__ = ["Layer", "find_layers"]

# What some layers do beside the projections, and attncli does not. Within what is called
# attention, everything that is not known belongs to it; beside other things, this does.
_NOT_APPLIED = (
    *("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight"),
    *("bias_k", "bias_v", "relative_attention_bias."),
)
# Of models that normalise in front of attention. PyTorch's norm1 may stand behind it.
_NORMS_BEFORE = (
    *("input_layernorm", "ln_1", "norm_1", "layernorm_before", "attn_norm", "layer_norm1"),
    *("attention_norm", "ln_attn"),
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
    by_group : bool
        In one member, the query heads of each key/value head are followed by its key and value.
    habit : Habit or None
        What models whose layers are named so do besides.
    frequencies : str or None
        The member that holds the angles of a rotary embedding.
    norms : mapping of str to str
        ``q_norm`` and ``k_norm``, each with its member, where both are there. They are among
        ``not_applied``, too: only the model's configuration says how they are meant.
    norm_before : mapping of str to str
        ``weight`` and ``bias`` of the norm through which the layer's input went, each with its
        member: those that there are.
    """

    prefix: str
    family: str
    stored: Stored
    members: Mapping[str, str]
    not_applied: tuple[str, ...] = ()
    one_head: bool = False
    by_group: bool = False
    habit: Habit | None = None
    frequencies: str | None = None
    norms: Mapping[str, str] = field(default_factory=dict)
    norm_before: Mapping[str, str] = field(default_factory=dict)


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
        for family in FAMILIES
        if (start := _start(name, family.weights[0])) is not None
        and all(start + weight in known for weight in family.weights)
        and _is_of(family, start, known)
    )


def _is_of(family: Family, start: str, known: set[str]) -> bool:
    """Return whether the members behind a prefix mean what they do in a family."""
    if family.within is not None and not family.within.search(start):
        return False
    return not family.needs_output or bool(_output(family, start, known))


def _layer(family: Family, start: str, known: set[str], ordered: list[str]) -> Layer:
    members = dict(_parts("w", start, family.weights))
    biases = _parts("b", start, family.biases)
    # Whisper leaves out the key's bias alone.
    members |= {part: name for part, name in biases if name in known}
    members |= _output(family, start, known)
    if f"{start}sinks" in known:
        members["sinks"] = f"{start}sinks"
    ignored = tuple(_not_applied(start, set(members.values()), ordered))
    frequencies = next((n for n in _beginning(start, ordered) if n.endswith("inv_freq")), None)
    return Layer(
        start.rstrip("./"),
        family.name,
        family.stored,
        members,
        ignored,
        family.one_head,
        family.by_group,
        ROTATES if frequencies else _habit(family, members),
        frequencies,
        _norms(start, known),
        _norm_before(start, known),
    )


def _norms(start: str, known: set[str]) -> dict[str, str]:
    names = {name: f"{start}{name}.weight" for name in ("q_norm", "k_norm")}
    return names if known.issuperset(names.values()) else {}


def _norm_before(start: str, known: set[str]) -> dict[str, str]:
    """Return the parts of the norm in front of a layer, beside it or one level up."""
    places = start.rstrip("./").split(".")
    above = [".".join([*places[:depth], ""]) for depth in (-1, -2) if len(places) > -depth]
    stems = (f"{place}{name}" for place in above for name in _NORMS_BEFORE)
    stem = next((stem for stem in stems if f"{stem}.weight" in known), None)
    if stem is None:
        return {}
    parts = {part: f"{stem}.{part}" for part in ("weight", "bias")}
    return {part: name for part, name in parts.items() if name in known}


def _habit(family: Family, members: Mapping[str, str]) -> Habit | None:
    """Return what models do whose layers are named so.

    BART's names differ from Llama's in the output alone, and BART does not rotate.
    """
    of_bart = members.get("wo", "").endswith("out_proj.weight")
    return None if family.habit is ROTATES and of_bart else family.habit


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


def _output(family: Family, start: str, known: set[str]) -> dict[str, str]:
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
