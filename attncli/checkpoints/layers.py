"""Choose one attention layer of a checkpoint; read its weights and their widths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.checkpoints.names import another_kind, find_layers
from attncli.errors import InputError, ShapeError, UsageError
from attncli.errors.text import counted, first_few, printable
from attncli.problem.arguments import shape_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from attncli.checkpoints.names import Layer

Array = npt.NDArray[Any]
# Layers that a hint lists at most.
_LISTED = 4
# If no layer is found, the error lists members with these names first.
_OF_ATTENTION = re.compile(r"attn|attention|query|qkv|q_proj|in_proj", re.IGNORECASE)
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")
# One query head and one key/value head: query, key and value have equal widths.
_THIRDS = (1, 1)


@dataclass(frozen=True)
class Widths:
    """The widths of X (``embedding``), and of query, key and value of all heads.

    ``joint`` is the width of a joint matrix that cannot be cut without the number of heads.
    """

    embedding: int
    query: int | None
    key: int | None
    value: int | None
    output: int | None
    joint: int | None = None


def choose_layer(names: Collection[str], prefix: str | None, file: str) -> Layer:
    """Return the only layer, or the only one whose names begin with the prefix."""
    layers = find_layers(names)
    if not layers:
        raise _unknown(names, file)
    wanted = (prefix or "").rstrip("./")
    ends = (f"{wanted}.", f"{wanted}/")
    chosen = [one for one in layers if not wanted or f"{one.prefix}.".startswith(ends)]
    exact = [layer for layer in chosen if layer.prefix == wanted]
    # FILE alone means the layer whose prefix is empty, if there is one.
    if len(exact) == 1 or len(chosen) == 1:
        return (exact or chosen)[0]
    within = f" within {printable(wanted)!r}" if wanted else ""
    raise UsageError(
        f"{file}: expected one attention layer{within}; found {len(chosen) or 'none'}",
        hint=_choices(chosen or layers, file),
    )


def read_layer(
    layer: Layer,
    fetch: Callable[[str], Array],
    heads: int | None = None,
    kv_heads: int | None = None,
) -> dict[str, Array]:
    """Return the projections of a layer as (in, out), with biases and sinks.

    A joint matrix is cut by heads, or into thirds if it is three times as wide as X.
    """
    read: dict[str, Array] = {}
    whole = {name: fetch(name) for name in dict.fromkeys(layer.members.values())}
    turned = _is_turned(layer, whole)
    counts = _THIRDS
    for name, array in whole.items():
        parts = [part for part, member in layer.members.items() if member == name]
        oriented = array
        if parts[0].startswith("w"):
            oriented = _matrix(name, array).T if turned else _matrix(name, array)
            if len(parts) > 1:
                counts = _head_counts(layer, name, oriented.shape, heads, kv_heads)
        cut = [oriented] if len(parts) == 1 else _cut(name, oriented, counts, layer.kind.by_group)
        read.update(zip(parts, cut, strict=True))
    return read


def layer_widths(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> Widths | None:
    """Return the widths of a layer from the shapes of its members; None if they do not fit."""
    # Arrays that take no memory stand for the weights.
    empty = np.empty((), np.bool_)

    def fetch(name: str) -> Array:
        return np.broadcast_to(empty, shapes[name])

    try:
        arrays = read_layer(layer, fetch, 1 if layer.kind.by_group else None)
    except ShapeError:
        return None
    except UsageError:  # only the number of heads says how a joint matrix is cut
        width, joint = sorted(shapes[layer.members["wq"]])
        made = shapes.get(layer.members.get("wo", ""), ())
        return Widths(width, None, None, None, output=made[0] if made else None, joint=joint)
    sizes = {name: array.shape for name, array in arrays.items()}
    return Widths(
        embedding=sizes["wq"][0],
        query=sizes["wq"][1],
        key=sizes["wk"][1],
        value=sizes["wv"][1],
        output=sizes["wo"][1] if "wo" in sizes else None,
    )


def _is_turned(layer: Layer, whole: Mapping[str, Array]) -> bool:
    """Return whether weights are stored as (out, in)."""
    if layer.kind.stored != "by shape":
        return layer.kind.stored == "out, in"
    name = layer.members["wq"]
    rows, columns = _matrix(name, whole[name]).shape
    return bool(rows > columns)  # a joint matrix has more outputs than inputs


def _matrix(name: str, array: Array) -> Array:
    if array.ndim != 2:
        raise ShapeError(f"{name}: expected a matrix; found shape {shape_text(array.shape)}")
    return array


def _head_counts(
    layer: Layer, name: str, shape: tuple[int, ...], heads: int | None, kv_heads: int | None
) -> tuple[int, int]:
    """Return the numbers of query and key/value heads in a joint matrix."""
    width, joint = shape
    if joint == 3 * width and not layer.kind.by_group:
        return _THIRDS
    if heads is None:
        raise UsageError(
            f"{name}: its {width} inputs and {joint} outputs do not say how wide query, key and "
            "value are: give heads (--heads)",
            hint="see num_attention_heads or n_head in the model's configuration",
        )
    if kv_heads is None:  # queries together are as wide as X
        each, rest = divmod(width, heads)
        kv_heads, over = divmod(joint - width, 2 * each) if each and not rest else (0, 1)
        kv_heads = 0 if over else kv_heads
    if kv_heads < 1 or heads % kv_heads or joint % (heads + 2 * kv_heads):
        raise ShapeError(
            f"{name}: expected the weights of query, key and value, equally wide, or of "
            f"{counted(heads, 'head')} and their keys and values; found {width} inputs and {joint} "
            "outputs"
        )
    return heads, kv_heads


def _cut(name: str, array: Array, counts: tuple[int, int], by_group: bool) -> list[Array]:  # noqa: FBT001
    """Cut a joint matrix into query, key and value along the last axis."""
    heads, groups = counts
    width = array.shape[-1] if array.ndim else 1
    each, rest = divmod(width, heads + 2 * groups)
    if rest:
        raise ShapeError(
            f"{name}: expected the weights of query, key and value, equally wide; "
            f"found shape {shape_text(array.shape)}"
        )
    if not by_group:
        return np.split(array, [heads * each, (heads + groups) * each], axis=-1)
    front = array.shape[:-1]
    apart = array.reshape(*front, groups, heads // groups + 2, each)
    parts = np.split(apart, [heads // groups, heads // groups + 1], axis=-2)
    return [part.reshape(*front, -1) for part in parts]


def _choices(layers: Collection[Layer], file: str) -> str:
    prefixes = [printable(layer.prefix) for layer in list(layers)[:_LISTED]]
    shown = [f"{file}#{prefix}" if prefix else file for prefix in prefixes]
    more = "" if len(layers) <= _LISTED else f", … ({len(layers)} in all)"
    return f"choose one: {', '.join(shown)}{more}"


def _unknown(names: Collection[str], file: str) -> InputError:
    first = [name for name in names if _OF_ATTENTION.search(name)] or names
    hint = another_kind(names)
    if hint is None and _SHARD.search(file):
        hint = (
            "this is one of several files, and a layer may be spread over two: name their index, "
            "model.safetensors.index.json"
        )
    return InputError(
        f"{file}: found no attention layer with names that attncli knows; it holds "
        f"{first_few([*map(printable, first)])}",
        hint=hint
        or "give the matrix of each projection with --wq, --wk and --wv, as (in, out), or as "
        "nn.Linear stores it, (out, in), with --transposed",
    )
