"""One attention layer of a checkpoint: chosen by its prefix, read the right way round.

Members are asked for by name, and only those of the chosen layer, so that a lazy mapping
reads nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.arguments import shape_text
from attncli.checkpoints.names import find_layers
from attncli.errors import InputError, ShapeError, UsageError
from attncli.text import first_few, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from attncli.checkpoints.names import Layer

__all__ = ["Widths", "choose_layer", "layer_widths", "read_layer"]

Array = npt.NDArray[Any]
_LISTED = 4
_LIKE_PROJECTION = re.compile(
    r"(?:^|[._/])(?:w?_?(?:q|k|v|qkv)(?:_?(?:proj|lin|attn)\w*)?|query|key|value|query_key_value"
    r"|in_proj\w*|c_attn|to_(?:q|k|v|qkv))(?:$|[._/])",
    re.IGNORECASE,
)
# One matrix for query, key and value together.
_JOINT = re.compile(r"qkv|query_key_value|in_proj|c_attn", re.IGNORECASE)


@dataclass(frozen=True)
class Widths:
    """How wide a layer's vectors are, all heads together.

    Attributes
    ----------
    embedding : int
        Of what the queries are made from.
    query, key, value : int
    output : int or None
        None where there is no output projection.
    """

    embedding: int
    query: int
    key: int
    value: int
    output: int | None


def choose_layer(names: Collection[str], prefix: str | None, file: str) -> Layer:
    """Return the layer that a prefix names, or the only one.

    Parameters
    ----------
    names : collection of str
        The names of all members.
    prefix : str or None
        The beginning of the layer's names; enough of it to leave one layer.
    file : str
        How errors name the file.

    Raises
    ------
    InputError
        There is no attention layer that attncli knows.
    UsageError
        The prefix names none or several, or is missing where there are several.
    """
    layers = find_layers(names)
    if not layers:
        raise _unknown(names, file)
    wanted = (prefix or "").rstrip("./")
    chosen = [layer for layer in layers if _is_within(layer.prefix, wanted)]
    exact = [layer for layer in chosen if layer.prefix == wanted]
    # A layer whose own prefix is empty is meant by FILE alone.
    if len(exact) == 1 or len(chosen) == 1:
        return (exact or chosen)[0]
    if not chosen:
        raise UsageError(
            f"{file} has no attention layer {printable(wanted)!r}", hint=_choices(layers, file)
        )
    raise UsageError(
        f"{file}: expected one attention layer"
        + (f" within {printable(wanted)!r}" if wanted else "")
        + f"; found {len(chosen)}",
        hint=_choices(chosen, file),
    )


def read_layer(layer: Layer, fetch: Callable[[str], Array]) -> dict[str, Array]:
    """Return the projections of a layer, weights as (in, out).

    Parameters
    ----------
    layer : Layer
    fetch : callable
        Takes the name of a member and returns its array; called once for each member
        of this layer, and for no other.

    Returns
    -------
    dict of str to ndarray
        Under the names of `attncli.project`, and ``wo``, ``bo`` and ``sinks``.

    Raises
    ------
    ShapeError
        A weight is no matrix, or a packed one cannot be cut into three.
    """
    read: dict[str, Array] = {}
    whole = {name: fetch(name) for name in dict.fromkeys(layer.members.values())}
    turned = _is_turned(layer, whole)
    for name, array in whole.items():
        parts = [part for part, member in layer.members.items() if member == name]
        oriented = array
        if parts[0].startswith("w"):
            oriented = _matrix(name, array).T if turned else _matrix(name, array)
        read.update(zip(parts, _cut(name, oriented, len(parts)), strict=True))
    return read


def layer_widths(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> Widths | None:
    """Return the widths of a layer by the shapes of its members.

    Parameters
    ----------
    layer : Layer
    shapes : mapping of str to tuple of int
        Of all members of the checkpoint.

    Returns
    -------
    Widths, or None where the shapes are not those of a layer
    """
    # Shapes without numbers go the way that the numbers would go.
    empty = np.empty((), np.bool_)
    try:
        arrays = read_layer(layer, lambda name: np.broadcast_to(empty, shapes[name]))
    except ShapeError:
        return None
    sizes = {name: array.shape for name, array in arrays.items()}
    return Widths(
        embedding=sizes["wq"][0],
        query=sizes["wq"][1],
        key=sizes["wk"][1],
        value=sizes["wv"][1],
        output=sizes["wo"][1] if "wo" in sizes else None,
    )


def _is_within(prefix: str, wanted: str) -> bool:
    return not wanted or prefix == wanted or prefix.startswith((f"{wanted}.", f"{wanted}/"))


def _is_turned(layer: Layer, whole: Mapping[str, Array]) -> bool:
    """Return whether the weights lie as (out, in)."""
    if layer.stored != "by shape":
        return layer.stored == "out, in"
    name = layer.members["wq"]
    shape = _matrix(name, whole[name]).shape
    if shape[1] == 3 * shape[0]:
        return False
    if shape[0] == 3 * shape[1]:
        return True
    raise ShapeError(
        f"{name}: expected a matrix (W, 3·W), the weights of query, key and value side by side; "
        f"found shape {shape_text(shape)}"
    )


def _matrix(name: str, array: Array) -> Array:
    if array.ndim != 2:
        raise ShapeError(f"{name}: expected a matrix; found shape {shape_text(array.shape)}")
    return array


def _cut(name: str, array: Array, count: int) -> list[Array]:
    """Cut what lies side by side in the last axis."""
    if array.ndim == 0 or array.shape[-1] % count:
        raise ShapeError(
            f"{name}: expected the weights of query, key and value, equally wide; "
            f"found shape {shape_text(array.shape)}"
        )
    return np.split(array, count, axis=-1)


def _choices(layers: Collection[Layer], file: str) -> str:
    prefixes = [printable(layer.prefix) for layer in list(layers)[:_LISTED]]
    shown = [f"{file}#{prefix}" if prefix else file for prefix in prefixes]
    more = "" if len(layers) <= _LISTED else f", … ({len(layers)} in all)"
    return f"choose one: {', '.join(shown)}{more}"


def _hint_for(like: list[str]) -> str:
    if any(_JOINT.search(name) for name in like):
        return (
            "attncli does not know how this joint matrix is made: cut it into those of query, key "
            "and value, and give these with --wq, --wk and --wv, each as (in, out)"
        )
    return "give the weights one by one: --wq, --wk, --wv, each as FILE#NAME and (in, out)"


def _unknown(names: Collection[str], file: str) -> InputError:
    like = [name for name in names if _LIKE_PROJECTION.search(name)]
    shown = first_few([printable(name) for name in like or names])
    return InputError(
        f"{file} holds no attention layer by names that attncli knows; "
        + (f"these look like projections: {shown}" if like else f"it holds {shown}"),
        hint=_hint_for(like),
    )
