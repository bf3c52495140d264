"""One layer of a checkpoint, and what its model's configuration says, become arguments."""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attncli.arguments import positive_int
from attncli.array_likes import as_ndarray
from attncli.checkpoints.layers import read_layer
from attncli.dtypes import widen
from attncli.elsewhere import option_of
from attncli.errors import InputError, ShapeError, UsageError
from attncli.gather.embedding import count_heads
from attncli.gather.entries import KNOWN, MATRICES, PROJECTIONS
from attncli.gather.normed import note_norm
from attncli.names import INPUTS
from attncli.text import counted, first_few, printable
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from attncli.checkpoints.config import LayerConfig
    from attncli.checkpoints.names import Layer
    from attncli.gather.gathered import Gathered
    from attncli.loading.contents import LoadedMapping

__all__ = ["StoredLayer", "add_config", "add_layer", "warn_of_options"]

Arguments = dict[str, object]
_OWN = (*PROJECTIONS, "wo", "bo")
_OF_VALUE = ("wv", "bv", "wo", "bo")
# So many numbers stand in a note as they are, and this in the place of more.
_SHORT, _LONG = 2, "…"
_NORMED = {"q_norm": "query", "k_norm": "key"}
# What models take for the width of a head, for a hint.
_HEAD_WIDTHS, _LISTED = (128, 64, 32, 16, 8), 3
_ANOTHER_MODEL = "is it the configuration of another model, or of another part of it?"


class StoredLayer(NamedTuple):
    """A layer in its file.

    Attributes
    ----------
    file : str
        How errors name the checkpoint.
    layer : Layer
    fetch : callable
        Takes the name of a member and returns the array; called only for members of the layer, and
        of the norm in front of it.
    """

    file: str
    layer: Layer
    fetch: Callable[[str], npt.NDArray[Any]]


def add_config(gathered: Gathered, layer: Layer, config: LayerConfig, file: str) -> None:
    """Add what a configuration says of a checkpoint's layer, and a note of it."""
    gathered.arguments |= config.options
    told = [" ".join(_as_option(name, value) for name, value in config.options.items())]
    if config.norm is not None and layer.norms:
        normed = [what for name, what in _NORMED.items() if name in layer.norms]
        told.append(f"{'norms' if len(normed) > 1 else 'norm'} of {' and '.join(normed)}")
    gathered.notes.append(f"{file} says {', and '.join(filter(None, told)) or 'nothing'}")


def _as_option(name: str, value: object) -> str:
    if value is True:
        return "--alibi" if name == "alibi_slopes" else option_of(name)
    if value is False:
        return f"no {option_of(name)}"
    if isinstance(value, np.ndarray) and value.size <= _SHORT:
        value = value.ravel().tolist()
    numbers = value if isinstance(value, (tuple, list)) else [value]
    text = ",".join(map(_as_number, numbers)) if len(numbers) <= _SHORT else _LONG
    return f"{option_of(name)} {text}"


def _as_number(value: object) -> str:
    if isinstance(value, Sized) and not isinstance(value, str):
        return _LONG
    unbounded = value in (None, -math.inf)  # as JSON has it, and as it is read from there
    return "none" if unbounded else printable(str(value)).removesuffix(".0")


def add_layer(gathered: Gathered, stored: StoredLayer, config: LayerConfig | None) -> None:
    """Add the projections of a checkpoint's layer to the arguments.

    Parameters
    ----------
    gathered : Gathered
    stored : StoredLayer
    config : LayerConfig or None
        Without it, norms of query and key are not applied, and what such models do besides is
        warned of.

    Raises
    ------
    AttnError
        The layer does not say its heads, or weights are given twice.

    Warns
    -----
    AttnWarning
        The layer does more than attncli applies, or does not read such embeddings.
    """
    arguments, file, layer = gathered.arguments, stored.file, stored.layer
    given = [name for name in _OWN if name in arguments]
    if given:
        raise UsageError(f"{file} supplies the projections: leave out {', '.join(given)}")
    note_norm(gathered, stored)
    widths = _add_projections(gathered, stored)
    _add_norms(gathered, stored, config)
    _warn_of_the_rest(layer, file, arguments)
    if config is None:
        _warn_of_habit(layer, file, arguments)
    else:
        _refuse_another_model(config, arguments, file, widths)
        _warn_of_another_model(config, layer, file)
    count_heads(arguments, *widths)
    if "heads" not in arguments and not layer.kind.one_head:
        raise _heads_missing(file, *widths, configured=config is not None)


def warn_of_options(checkpoint: LoadedMapping, arguments: Arguments) -> None:
    """Warn of what a file says like a problem file: of a checkpoint, only the layer counts."""
    options = {
        name: value
        for name in checkpoint.entries
        if _may_be_option(name, checkpoint)
        and name not in arguments
        and (value := _single(checkpoint, name)) not in (None, False)
    }
    if options:
        names = first_few([*map(printable, options)])
        verb = "is" if len(options) == 1 else "are"
        given = " ".join(_as_option(name, value) for name, value in options.items())
        warn(
            f"{checkpoint.name}: of a checkpoint only a layer is taken, so that {names} {verb} not "
            f"applied: give {given}"
        )


def _may_be_option(name: str, checkpoint: LoadedMapping) -> bool:
    """Return whether an entry may be an option of a problem; what a program dumps names no file."""
    arrays = MATRICES if checkpoint.dump else (*INPUTS, "x", *_OWN)
    return name in KNOWN and name not in arrays


def _single(checkpoint: LoadedMapping, name: str) -> object:
    """Return the number, word or truth value that an entry is; None of all others."""
    try:
        value = checkpoint.entries[name]
    except InputError:  # of elements that are not read: no concern of this layer
        return None
    return value if isinstance(value, (bool, int, float, str)) else None


def _add_projections(gathered: Gathered, stored: StoredLayer) -> tuple[int, int]:
    """Add weights and biases, and return how wide queries and keys are that they make."""
    arguments, file, layer = gathered.arguments, stored.file, stored.layer
    try:
        arrays = read_layer(layer, stored.fetch, *_told_heads(arguments))
    except (ShapeError, UsageError) as error:
        raise type(error)(f"{file}#{error.message}", hint=error.hint) from error
    if _has_no_value(arguments, arrays):
        arrays = {name: array for name, array in arrays.items() if name not in _OF_VALUE}
    for name, array in arrays.items():
        # Sinks are an option of their own, and options win over files.
        arguments.setdefault(name, array)
        gathered.sources.setdefault(name, f"{file}#{printable(layer.members[name])}")
    return arrays["wq"].shape[1], arrays["wk"].shape[1]


def _add_norms(gathered: Gathered, stored: StoredLayer, config: LayerConfig | None) -> None:
    """Add the norms of query and key, if a configuration says how they are meant."""
    arguments, members = gathered.arguments, stored.layer.norms
    if config is None or config.norm is None or not members:
        return
    for name, member in members.items():
        if name not in arguments:
            array = stored.fetch(member)
            # As in the model, the sum is one of float32, or of what is wider.
            wide = array if array.dtype == np.float64 else widen(array, np.float32)
            arguments[name] = wide + wide.dtype.type(config.norm)
            gathered.sources[name] = f"{stored.file}#{printable(member)}"
    arguments.setdefault("norm_eps", config.epsilon)


def _warn_of_the_rest(layer: Layer, file: str, arguments: Arguments) -> None:
    """Warn of what else a layer holds."""
    applied = [member for name, member in layer.norms.items() if name in arguments]
    # A bias of relative positions is given as what it comes to.
    stated = ("relative_attention_bias.weight",) if "bias" in arguments else ()
    rest = [n for n in layer.not_applied if n not in applied and not n.endswith(stated)]
    if rest:
        warn(
            f"{file}: the layer also holds {first_few([*map(printable, rest)])}, which attncli "
            "does not apply: the result is not the model's"
        )


def _refuse_another_model(
    config: LayerConfig, arguments: Arguments, file: str, widths: tuple[int, int]
) -> None:
    """Refuse a configuration whose heads are not those of the layer."""
    heads = config.options.get("heads")
    if heads is None or config.width is None or arguments["heads"] != heads:
        return
    groups = config.options.get("kv_heads", heads)
    made = [(heads, "queries", widths[0])]
    if arguments.get("kv_heads", groups) == groups:
        made.append((groups, "keys", widths[1]))
    for count, what, width in made:
        if count * config.width != width:
            raise UsageError(
                f"config: {counted(count, 'head')} of width {config.width} make "
                f"{count * config.width}; the {what} of {file} are {width} wide",
                hint=_ANOTHER_MODEL,
            )


def _warn_of_another_model(config: LayerConfig, layer: Layer, file: str) -> None:
    """Warn of a configuration of models whose layers are named otherwise."""
    if not config.model.names(layer):
        warn(
            f"config: layers of {config.kind} have other names than those of {file}, which are "
            f"named as in {layer.family}: {_ANOTHER_MODEL}"
        )


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
    habit = layer.kind.habit
    if layer.frequencies:
        if "rope" not in arguments:
            name = f"{file}#{printable(layer.frequencies)}"
            warn(
                f"{file}: the layer holds the frequencies of a rotary embedding: --rope half "
                f"--rope-frequencies {name} applies them"
            )
    elif habit is not None and not habit.known & set(arguments):
        warn(
            f"{file}: models with layers named as in {layer.family} {habit.does}, which no tensor "
            f"shows: give --config with the model's config.json, or {habit.give}"
        )


def _heads_missing(file: str, width: int, key_width: int, *, configured: bool) -> UsageError:
    fitting = [each for each in _HEAD_WIDTHS if math.gcd(width, key_width) % each == 0]
    likely = [f"{counted(width // each, 'head')} of width {each}" for each in fitting[:_LISTED]]
    told = "" if configured else "--config takes them from the model's config.json; there, "
    return UsageError(
        f"{file}: its shapes do not say how many heads share the width {width}: give heads "
        "(--heads)",
        hint=f"{told}see num_attention_heads, n_head or nhead"
        + (f"; {' or '.join(likely)} would fit" if likely else ""),
    )
