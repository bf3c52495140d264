"""Self-attention and cross-attention: embeddings and weights become query, key and value.

What stands between the files (`attncli.gather.reader`) and the arguments of `attncli.pose`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.arguments import choice, positive_int
from attncli.array_likes import as_ndarray
from attncli.checkpoints.layers import read_layer
from attncli.dtypes import widen
from attncli.elsewhere import option_of
from attncli.errors import ShapeError, UsageError
from attncli.gather.entries import NORMS, PROJECTIONS
from attncli.layout import LAYOUTS
from attncli.projection import project
from attncli.text import counted, first_few, printable
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import numpy.typing as npt

    from attncli.checkpoints.config import LayerConfig
    from attncli.checkpoints.names import Layer
    from attncli.projection import Projected

__all__ = ["add_config", "add_layer", "project_arguments"]

Arguments = dict[str, object]
_OWN = (*PROJECTIONS, "wo", "bo")
_OF_VALUE = ("wv", "bv", "wo", "bo")
_ROLES = {"query": "x", "key": "key_source", "value": "value_source"}
# How scores depend on positions, beside rules: whoever gives one of these says all of it.
_PLACES = ("rope", "rope_base", "rope_frequencies", "alibi_slopes")
# What models take for the width of a head, for a hint.
_HEAD_WIDTHS, _LISTED = (128, 64, 32, 16, 8), 3


def add_config(arguments: Arguments, config: LayerConfig) -> str:
    """Add what a configuration says of a checkpoint's layer, unless an option says it.

    Parameters
    ----------
    arguments : dict
        As in `attncli.gather.Gathered`; extended.
    config : LayerConfig

    Returns
    -------
    str
        What was added, as options.
    """
    options = config.options
    if any(name in arguments for name in _PLACES):
        options = {name: value for name, value in options.items() if name not in _PLACES}
    new = {name: value for name, value in options.items() if name not in arguments}
    arguments |= new
    told = " ".join(_as_option(name, value) for name, value in new.items())
    return told if config.norm is None else f"{told}, and norms of query and key"


def _as_option(name: str, value: object) -> str:
    if value is True:
        return "--alibi" if name == "alibi_slopes" else option_of(name)
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if isinstance(value, float):
        value = int(value) if value.is_integer() else value
    return f"{option_of(name)} {'…' if isinstance(value, (list, np.ndarray)) else value}"


def add_layer(
    arguments: Arguments,
    sources: dict[str, str],
    file: str,
    layer: Layer,
    fetch: Callable[[str], npt.NDArray[Any]],
    config: LayerConfig | None = None,
) -> None:
    """Add the projections of a checkpoint's layer to the arguments.

    Parameters
    ----------
    arguments, sources : dict
        As in `attncli.gather.Gathered`; extended.
    file : str
        How errors name the checkpoint.
    layer : Layer
    fetch : callable
        Takes a name and returns the array; called only for members of the layer.
    config : LayerConfig, optional
        Without it, norms of query and key are not applied, and rotary embeddings are warned of.

    Raises
    ------
    AttnError
        The layer does not say its heads, or weights are given twice.

    Warns
    -----
    AttnWarning
        The layer does more than attncli applies.
    """
    given = [name for name in _OWN if name in arguments]
    if given:
        raise UsageError(f"{file} supplies the projections: leave out {', '.join(given)}")
    heads, kv_heads = _told_heads(arguments)
    try:
        arrays = read_layer(layer, fetch, heads, kv_heads)
    except (ShapeError, UsageError) as error:
        raise type(error)(f"{file}#{error.message}", hint=error.hint) from error
    if _has_no_value(arguments, arrays):
        arrays = {name: array for name, array in arrays.items() if name not in _OF_VALUE}
    for name, array in arrays.items():
        # Sinks are an option of their own, and options win over files.
        arguments.setdefault(name, array)
        sources.setdefault(name, f"{file}#{printable(layer.members[name])}")
    norms = _norms(layer, fetch, config)
    for name, value in norms.items():
        arguments.setdefault(name, value)
    applied = layer.norms.values() if norms else ()
    # A bias of relative positions is given as what it comes to.
    stated = ("relative_attention_bias.weight",) if "bias" in arguments else ()
    not_applied = [
        printable(name)
        for name in layer.not_applied
        if name not in applied and not name.endswith(stated)
    ]
    if not_applied:
        warn(
            f"{file}: the layer also holds {first_few(not_applied)}, which attncli does not apply: "
            "the result is not the model's"
        )
    if config is None:
        _warn_of_habit(layer, file, arguments)
    _count_heads(arguments, arrays["wq"].shape[1], arrays["wk"].shape[1])
    if "heads" not in arguments and not layer.one_head:
        raise _heads_missing(file, arrays["wq"].shape[1], arrays["wk"].shape[1])


def _norms(
    layer: Layer, fetch: Callable[[str], npt.NDArray[Any]], config: LayerConfig | None
) -> Arguments:
    """Return the norms of query and key, if a configuration says how they are meant."""
    if config is None or config.norm is None or not layer.norms:
        return {}
    stored = {name: fetch(member) for name, member in layer.norms.items()}
    # As in the model, the sum is one in its own precision, at least float32.
    weights = {
        name: widen(array, np.float32) + np.float32(config.norm) for name, array in stored.items()
    }
    return weights | {"norm_eps": config.epsilon}


def _has_no_value(arguments: Arguments, arrays: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Return whether of two sources the second cannot be that of the values: none were given."""
    if "key" not in arguments or "value" in arguments:
        return False
    source = as_ndarray("key", arguments["key"])
    return source.ndim > 0 and arrays["wv"].shape[0] != source.shape[-1]


def _told_heads(arguments: Arguments) -> list[int | None]:
    """Return the head counts that are given."""
    told = ((name, arguments.get(name)) for name in ("heads", "kv_heads"))
    return [None if count is None else positive_int(name, count) for name, count in told]


def _warn_of_habit(layer: Layer, file: str, arguments: Arguments) -> None:
    """Warn of what models do whose layers are named so, unless an option shows that it is known."""
    habit = layer.habit
    if habit is None or habit.options & set(arguments):
        return
    if layer.frequencies:
        name = f"{file}#{printable(layer.frequencies)}"
        warn(
            f"{file}: the layer holds the frequencies of a rotary embedding, {layer.frequencies}: "
            f"--rope half --rope-frequencies {name} applies them"
        )
        return
    warn(f"{file}: {habit.words}, and checkpoints do not say how: {habit.remedy}")


def project_arguments(
    arguments: Arguments, sources: dict[str, str], *, threads: int | None
) -> Projected | None:
    """Replace embeddings and weights by the query, key and value that they make.

    Parameters
    ----------
    arguments : dict
        ``x``, or ``query`` and ``key`` (and ``value``) as sources of cross-attention,
        the weights, and options of `attncli.pose`; changed to arguments of `attncli.pose`.
    sources : dict of str to str
        The file of each; extended.
    threads : int or None
        For `attncli.project`.

    Returns
    -------
    Projected or None
        None where there are neither embeddings nor weights.

    Raises
    ------
    AttnError
        Something is missing, is there twice, or does not fit.
    """
    given = {name: arguments.pop(name) for name in PROJECTIONS if name in arguments}
    beside = {name: arguments.pop(name) for name in (*NORMS, "positions") if name in arguments}
    if "x" in arguments and "query" in arguments:
        raise UsageError(
            "x and query are both given: x is what the query is made from",
            hint="--without x leaves it out of a problem file",
        )
    if not given:
        _refuse_without_weights(arguments, beside)
        return None
    embeddings = _embeddings(arguments)
    missing = [name for name in ("x", "wq", "wk") if name not in embeddings | given]
    if missing:
        raise UsageError(f"self-attention needs x, wq, wk and wv: {missing[0]} is missing")
    turned = _turned(arguments.get("layout"))
    names = sources | {own: sources[name] for name, own in _ROLES.items() if name in sources}
    batch_first = {name: turned(array) for name, array in embeddings.items()}
    options: dict[str, Any] = batch_first | given | beside
    precision = _precision(arguments)
    made = project(**options, precision=precision, sources=names, threads=threads)
    arguments |= {"query": turned(made.query), "key": turned(made.key)}
    if made.value is not None:
        arguments["value"] = turned(made.value)
    sources |= _made_from(names)
    _count_heads(arguments, made.query.shape[-1], made.key.shape[-1])
    _refuse_unequal_widths(arguments, made)
    _refuse_norms_across_heads(arguments, made, sources)
    return made


def _precision(arguments: Arguments) -> Any:
    """Return the precision: that of a wide output projection is the whole computation's."""
    given, output = arguments.get("precision"), arguments.get("wo")
    if given is None and output is not None and as_ndarray("wo", output).dtype == np.float64:
        return "float64"
    return given


def _turned(layout: object) -> Callable[[Any], Any]:
    """Return what brings embeddings of a layout to (B, L, W), and back; an error where none does.

    Raises
    ------
    UsageError
        The layout is none, or has axes that embeddings do not have.
    """
    # First a word at all: an array in a problem file compares item by item.
    axes = "bsd" if layout is None else choice("layout", layout, tuple(LAYOUTS))
    if axes not in ("sd", "bsd", "sbd"):
        raise UsageError(
            f"layout {axes!r} does not fit embeddings, which are (L, W), (B, L, W) or, with layout "
            "sbd, (L, B, W)",
            hint="leave layout out",
        )
    return _batch_second if axes == "sbd" else lambda array: array


def _batch_second(array: Any) -> Any:
    """Exchange the first two of three axes."""
    given = as_ndarray("x", array)
    return given.swapaxes(0, 1) if given.ndim == 3 else given


def _refuse_without_weights(arguments: Arguments, beside: Collection[str]) -> None:
    if "x" in arguments:
        raise UsageError(
            "x is made into query, key and value by wq, wk and wv, which are missing",
            hint="give --wq, --wk and --wv, or --checkpoint; or give query, key and value",
        )
    for name in beside:
        raise UsageError(
            "positions are added to embeddings, but there are none"
            if name == "positions"
            else f"{name} is for query and key that are projected, but there are no projections",
            hint="give --wq, --wk and --wv, or --checkpoint",
        )


def _embeddings(arguments: Arguments) -> Arguments:
    """Take the sources out of the arguments, under the names of `attncli.project`."""
    found = {own: arguments.pop(name) for name, own in _ROLES.items() if name in arguments}
    return found | ({"x": arguments.pop("x")} if "x" in arguments else {})


def _made_from(names: dict[str, str]) -> dict[str, str]:
    """Return how errors name query, key and value: by what they are made from."""
    query = names.get("x")
    key = names.get("key_source", query)
    made = {"query": query, "key": key, "value": names.get("value_source", key)}
    return {name: f"projected from {source}" for name, source in made.items() if source}


def _count_heads(arguments: Arguments, query_width: int, key_width: int) -> None:
    """Add what follows of the head counts: query and key heads are equally wide."""
    heads, kv_heads = arguments.get("heads"), arguments.get("kv_heads")
    sinks = as_ndarray("sinks", arguments.get("sinks", ()))
    if heads is None and kv_heads is None and sinks.size > 1:
        heads = arguments["heads"] = sinks.size
    # What is no whole number is refused at the door.
    if kv_heads is None and isinstance(heads, int) and heads > 0 and query_width != key_width:
        shared, rest = divmod(heads * key_width, query_width)
        if shared and not rest:
            arguments["kv_heads"] = shared
    elif heads is None and isinstance(kv_heads, int) and kv_heads > 0:
        count, rest = divmod(kv_heads * query_width, key_width)
        if count and not rest:
            arguments["heads"] = count


def _refuse_unequal_widths(arguments: Arguments, made: Projected) -> None:
    """Ask for the heads where queries are wider than keys, as many of them share each key."""
    wide, narrow = made.query.shape[-1], made.key.shape[-1]
    if wide > narrow and wide % narrow == 0 and "heads" not in arguments:
        raise UsageError(
            f"wq makes queries of {wide} numbers and wk keys of {narrow}: give heads (--heads) if "
            "several query heads share each key head"
        )


def _refuse_norms_across_heads(
    arguments: Arguments, made: Projected, sources: dict[str, str]
) -> None:
    """Refuse norms that are neither of one head nor of all of them together."""
    heads = arguments.get("heads")
    counts = {"q_norm": heads, "k_norm": arguments.get("kv_heads", heads)}
    for name, packed in (("q_norm", made.query), ("k_norm", made.key)):
        weight, count = made.arguments[name], counts[name]
        if weight is None or not (count is None or isinstance(count, int)):
            continue
        width = packed.shape[-1]
        if len(weight) not in (width, width // (count or 1)):
            raise ShapeError(
                f"{sources.get(name, name)}: expected {width // (count or 1)} numbers, the width "
                f"of a head, or {width}, of all heads; found {len(weight)}",
                hint=None if count else "give heads (--heads)",
            )


def _heads_missing(file: str, width: int, key_width: int) -> UsageError:
    fitting = [each for each in _HEAD_WIDTHS if math.gcd(width, key_width) % each == 0]
    likely = [f"{counted(width // each, 'head')} of width {each}" for each in fitting[:_LISTED]]
    return UsageError(
        f"{file}: its shapes do not say how many heads share the width {width}: give heads "
        "(--heads)",
        hint="--config takes them from the model's config.json; there, see num_attention_heads, "
        "n_head or nhead" + (f"; {' or '.join(likely)} would fit" if likely else ""),
    )
