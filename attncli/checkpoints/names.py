"""Find attention layers in checkpoints by the names of their members."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

# Members of a layer that attncli does not apply. If the prefix is that of an attention module, such
# as attn, all other unknown members count as well.
_NOT_APPLIED = (
    *("q_norm.weight", "k_norm.weight", "q_layernorm.weight", "k_layernorm.weight"),
    *("bias_k", "bias_v", "relative_attention_bias."),
)
# Names of the norm in front of attention. Not norm1: in PyTorch it may come after attention.
_NORMS_BEFORE = (
    *("input_layernorm", "ln_1", "norm_1", "layernorm_before", "attn_norm", "layer_norm1"),
    *("attention_norm", "ln_attn"),
)
_ATTENTION = re.compile(r"(?:^|[./_])(?:\w*attn\d*|\w*attention|self)[./]$", re.IGNORECASE)
# Members of one layer; a hostile file may nest thousands of layers in each other.
_MOST_MEMBERS = 300
# Members that need no warning: stored masks, positions and frequencies, and the norm after the
# residual connection.
_BESIDE = re.compile(
    r"(?:masked_)?bias|relative_position_index|position_ids|LayerNorm\..*"
    r"|(?:.*\.)?(?:(?:causal_|attn_|attention_)?mask|tril|inv_freq|freqs(?:_cis)?)"
    r"|(?:.*\.)?(?:cos|sin)(?:_cached)?"
)
# The module of query, key and value in BERT and ViT; the output projection lies one level above.
_INNER = re.compile(r"(?:(?:^|(?<=[./]))self|(?<=attention[./])attention)[./]$")


class Habit(NamedTuple):
    """A rule of a family of models that no tensor shows; see ``families.toml``."""

    does: str
    give: str
    known: Collection[str]


class Family(NamedTuple):
    """The names of the parts of an attention layer in a family of models; see ``families.toml``."""

    name: str
    weights: Sequence[str]
    biases: Sequence[str] = ()
    outputs: Sequence[str] = ()
    stored: Literal["in, out", "out, in", "by shape"] = "out, in"
    one_head: bool = False
    by_group: bool = False
    needs_output: bool = False
    within: str = ""
    habit: Habit | None = None


@dataclass(frozen=True)
class Layer:
    """The names of the members of one attention layer, which begin with ``prefix`` and a point.

    ``members`` has the keys ``wq``, ``wk``, ``wv``, ``wo``, ``bq``, ``bk``, ``bv``, ``bo`` and
    ``sinks``, as far as the layer has these parts. Parts of a joint matrix have the same name.
    ``frequencies`` belong to a rotary embedding, ``norms`` to query and key. ``norm_before`` has
    the parts of the norm in front of the layer.
    """

    prefix: str
    kind: Family
    members: Mapping[str, str]
    not_applied: tuple[str, ...] = ()
    frequencies: str | None = None
    norms: Mapping[str, str] = field(default_factory=dict)
    norm_before: Mapping[str, str] = field(default_factory=dict)


def find_layers(names: Collection[str]) -> tuple[Layer, ...]:
    """Return the attention layers of a checkpoint in the order of its names."""
    known = set(names)
    ordered = sorted(known)
    found = (next(_layers_at(name, known, ordered), None) for name in names)
    return tuple(layer for layer in found if layer is not None)


@cache
def stored_table(name: str) -> dict[str, Any]:
    """Return a TOML file of this package."""
    return tomllib.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))


@cache
def _families() -> tuple[Family, ...]:
    table = stored_table("families.toml")
    habits = {name: Habit(**habit) for name, habit in table["habits"].items()}
    return tuple(
        Family(**{**entry, "habit": habits.get(entry.get("habit", ""))})
        for entry in table["family"]
    )


def another_kind(names: Collection[str]) -> str | None:
    """Return a hint for a kind of attention that attncli cannot make from weights, or None."""
    kinds: dict[str, str] = stored_table("families.toml")["another_kind"]
    return next((kinds[stem] for stem in kinds if any(stem in name for name in names)), None)


def _bias_of(weight: str) -> str:
    """Return the name of the bias of a weight: q.bias for q.weight, bq for wq."""
    stem = weight.removesuffix(".weight")
    return f"b{weight[1:]}" if stem == weight else f"{stem}.bias"


def _layers_at(name: str, known: set[str], ordered: list[str]) -> Iterator[Layer]:
    """Yield a layer for each family whose names begin at this member."""
    for family in _families():
        start = _start(name, family.weights[0])
        if start is None or not all(start + weight in known for weight in family.weights):
            continue
        output = _output(family, start, known)
        if re.search(family.within, start) and (output or not family.needs_output):
            yield _layer(family, start, output, known, ordered)


def _layer(
    family: Family, start: str, output: Mapping[str, str], known: set[str], ordered: list[str]
) -> Layer:
    members = dict(_parts("w", start, family.weights))
    biases = _parts("b", start, family.biases or [*map(_bias_of, family.weights)])
    # A layer may lack some biases: Whisper's have none for the key.
    members |= {part: name for part, name in biases if name in known}
    members |= output
    if f"{start}sinks" in known:
        members["sinks"] = f"{start}sinks"
    norms = {name: f"{start}{name}.weight" for name in ("q_norm", "k_norm")}
    return Layer(
        start.rstrip("./"),
        family,
        members,
        tuple(_not_applied(start, set(members.values()), ordered)),
        next((n for n in _beginning(start, ordered) if n.endswith("inv_freq")), None),
        norms if known.issuperset(norms.values()) else {},
        _norm_before(start, known),
    )


def _norm_before(start: str, known: set[str]) -> dict[str, str]:
    """Return the parts of the norm in front of a layer, on its level or one above."""
    places = start.rstrip("./").split(".")
    above = [".".join([*places[:depth], ""]) for depth in (-1, -2) if len(places) > -depth]
    stems = (f"{place}{name}" for place in above for name in _NORMS_BEFORE)
    stem = next((stem for stem in stems if f"{stem}.weight" in known), "")
    parts = {part: f"{stem}.{part}" for part in ("weight", "bias")} if stem else {}
    return {part: name for part, name in parts.items() if name in known}


def _not_applied(start: str, used: set[str], ordered: list[str]) -> Iterator[str]:
    """Yield members of the layer that attncli does not use."""
    parts = {name.removesuffix("weight") for name in used if name.endswith(".weight")}
    within = _ATTENTION.search(start) is not None
    prefixes = [start] if within else sorted({*parts, *(start + own for own in _NOT_APPLIED)})
    for prefix in prefixes:
        for name in _beginning(prefix, ordered):
            if name not in used and not _BESIDE.fullmatch(name.removeprefix(start)):
                yield name


def _beginning(prefix: str, ordered: list[str]) -> Iterator[str]:
    """Yield sorted names that begin with a prefix, up to a limit."""
    first = bisect_left(ordered, prefix)
    for name in ordered[first : first + _MOST_MEMBERS]:
        if not name.startswith(prefix):
            return
        yield name


def _parts(kind: str, start: str, ends: Sequence[str]) -> Iterator[tuple[str, str]]:
    for place, letter in enumerate("qkv"):
        yield kind + letter, start + ends[place if len(ends) > 1 else 0]


def _output(family: Family, start: str, known: set[str]) -> dict[str, str]:
    for place in (start, _INNER.sub("", start)):
        for weight in family.outputs:
            if place + weight in known:
                names = {"wo": place + weight, "bo": place + _bias_of(weight)}
                return {part: name for part, name in names.items() if name in known}
    return {}


def _start(name: str, end: str) -> str | None:
    """Return the part of a name before its end; None if it has another end."""
    start = name.removesuffix(end)
    return start if name.endswith(end) and (not start or start[-1] in "./") else None
