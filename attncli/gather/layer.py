"""Turn one layer of a checkpoint, and its model's configuration, into arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.checkpoints.layers import choose_layer, read_layer
from attncli.errors import InputError, ShapeError, UsageError, warn
from attncli.errors.elsewhere import option_of
from attncli.errors.text import counted, first_few, printable
from attncli.gather.embedding import count_heads, count_tokens
from attncli.gather.entries import MODELS, PROJECTIONS
from attncli.loading import split_member
from attncli.loading.contents import LoadedArray
from attncli.numerics.array_likes import as_ndarray
from attncli.numerics.dtypes import widen
from attncli.problem.arguments import positive_int

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.checkpoints.config import LayerConfig
    from attncli.checkpoints.names import Layer
    from attncli.gather.reader import Gathered, Reader

Arguments = dict[str, object]
Array = npt.NDArray[Any]
# Parts of a layer that ``without`` may leave out.
_OPTIONAL = ("wo", "bo", "sinks")
# A note shows the numbers of an option if there are at most this many.
_SHORT = 2
_NORMED = {"q_norm": "query", "k_norm": "key"}


class StoredLayer(NamedTuple):
    """A layer in its file; ``fetch`` returns the array of a member."""

    file: str
    layer: Layer
    fetch: Callable[[str], Array]


def add_layer(reader: Reader) -> None:
    """Add the projections of a layer, and the options of its configuration."""
    gathered = reader.gathered
    arguments = gathered.arguments
    checkpoint, config = (arguments.pop(name, None) for name in MODELS)
    if checkpoint is None:
        raise UsageError(
            f"config: {printable(str(config))} describes the layers of a checkpoint, but no "
            "checkpoint is given",
            hint="give --checkpoint model.safetensors#PREFIX",
        )
    stored = _stored(reader, str(checkpoint))
    own = [name for name in (*PROJECTIONS, "wo", "bo", "transposed") if name in arguments]
    if own:
        raise UsageError(f"{stored.file} supplies the projections: leave out {', '.join(own)}")
    said = None
    if config is not None:
        said, stored = _configured(reader, str(config), stored)
    _note_norm_before(gathered, stored)
    widths = _add_projections(gathered, stored)
    _add_norms(gathered, stored, said)
    _warn_of_the_rest(stored.layer, stored.file, arguments)
    if said is None:
        _warn_of_habit(stored.layer, stored.file, arguments)
    else:
        _refuse_another_model(said, arguments, stored.file, widths)
    count_heads(arguments, *widths)
    if "heads" not in arguments and not stored.layer.kind.one_head:
        raise UsageError(
            f"{stored.file}: its shapes do not say how many heads share the width {widths[0]}: "
            "give heads (--heads)",
            hint="see num_attention_heads, n_head or nhead in the model's config.json, from which "
            "--config takes them",
        )


def _stored(reader: Reader, checkpoint: str) -> StoredLayer:
    """Return the layer of a checkpoint, without members that ``without`` names."""
    file, prefix = split_member(checkpoint)
    contents = reader.read(file)
    if isinstance(contents, LoadedArray):
        raise InputError(
            f"{contents.name}: expected a checkpoint of named weights; found one array",
            hint="give single matrices with --wq, --wk and --wv",
        )
    members = contents.entries

    def fetch(name: str) -> Array:
        entry = members[name]
        if isinstance(entry, LoadedArray):
            return reader.values(entry)
        raise InputError(f"{contents.name}#{printable(name)}: expected an array of numbers")

    layer = choose_layer(members, prefix, contents.name)
    gone = {name for name in _OPTIONAL if name in layer.members and reader.left.takes(name)}
    gone |= {"bo"} if "wo" in gone else set()
    # An option wins over the sinks in the checkpoint.
    gone |= {"sinks"} & reader.gathered.arguments.keys()
    kept = {name: member for name, member in layer.members.items() if name not in gone}
    return StoredLayer(contents.name, replace(layer, members=kept), fetch)


def _configured(
    reader: Reader, config: str, stored: StoredLayer
) -> tuple[LayerConfig, StoredLayer]:
    """Add the options of a configuration; return it, and the layer with its norms."""
    from attncli.checkpoints.config import layer_config  # noqa: PLC0415
    from attncli.loading.documents import read_settings  # noqa: PLC0415

    reader.note_input(config)
    gathered, left, name = reader.gathered, reader.left, printable(config)
    settings = read_settings(config, "the config.json of a model")
    tokens = count_tokens(gathered.arguments)
    said = layer_config(
        settings, stored.layer.prefix, name, tokens=tokens, given=gathered.arguments
    )
    options = {option: value for option, value in said.options.items() if not left.takes(option)}
    norms = stored.layer.norms if said.norm is not None else {}
    norms = {norm: member for norm, member in norms.items() if not left.takes(norm)}
    gathered.arguments |= options
    told = [" ".join(_as_option(option, value) for option, value in options.items())]
    if norms:
        normed = " and ".join(_NORMED[norm] for norm in norms)
        told.append(f"{'norms' if len(norms) > 1 else 'norm'} of {normed}")
    gathered.notes.append(f"{name} says {', and '.join(filter(None, told)) or 'nothing'}")
    layer = replace(stored.layer, norms=norms)
    return said._replace(options=options), stored._replace(layer=layer)


def _note_norm_before(gathered: Gathered, stored: StoredLayer) -> None:
    """Keep the norm in front of the layer: `check` tests whether an output was made without it."""
    members = stored.layer.norm_before
    if not members or "x" not in gathered.arguments:
        return
    try:
        parts = {part: stored.fetch(name).ravel() for part, name in members.items()}
    except InputError:  # the norm may lie in a missing file, and nothing else needs that file
        return
    x = as_ndarray("x", gathered.arguments["x"])
    if x.ndim and x.shape[-1] == parts["weight"].size:
        gathered.norm_before = parts


def _as_option(name: str, value: object) -> str:
    option = "--alibi" if name == "alibi_slopes" else option_of(name)
    if isinstance(value, bool):
        return option
    numbers = [value] if isinstance(value, str) else np.ravel(np.asarray(value)).tolist()
    words = [str(number).removesuffix(".0") for number in numbers]
    return f"{option} {','.join(words) if len(words) <= _SHORT else '…'}"


def _add_projections(gathered: Gathered, stored: StoredLayer) -> tuple[int, int]:
    """Add weights and biases; return the widths of queries and keys."""
    arguments, file, layer = gathered.arguments, stored.file, stored.layer
    told = ((name, arguments.get(name)) for name in ("heads", "kv_heads"))
    heads = [None if count is None else positive_int(name, count) for name, count in told]
    try:
        arrays = read_layer(layer, stored.fetch, *heads)
    except (ShapeError, UsageError) as error:
        raise type(error)(f"{file}#{error.message}", hint=error.hint) from error
    arguments |= arrays
    for name in arrays:
        gathered.sources[name] = f"{file}#{printable(layer.members[name])}"
    return arrays["wq"].shape[1], arrays["wk"].shape[1]


def _add_norms(gathered: Gathered, stored: StoredLayer, config: LayerConfig | None) -> None:
    """Add the norms of query and key, if the configuration explains them."""
    arguments, members = gathered.arguments, stored.layer.norms
    if config is None or config.norm is None or not members:
        return
    for name, member in members.items():
        if name not in arguments:
            array = stored.fetch(member)
            # Models add in float32, or in float64 if the weights have it.
            wide = array if array.dtype == np.float64 else widen(array, np.float32)
            arguments[name] = wide + wide.dtype.type(config.norm)
            gathered.sources[name] = f"{stored.file}#{printable(member)}"
    arguments.setdefault("norm_eps", config.epsilon)


def _warn_of_the_rest(layer: Layer, file: str, arguments: Arguments) -> None:
    """Warn of members of the layer that are not applied."""
    applied = [member for name, member in layer.norms.items() if name in arguments]
    # A user may give the relative bias of positions as --bias.
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
    """Refuse a configuration whose heads do not fit the layer."""
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
                hint="is it the configuration of another model, or of another part of it?",
            )


def _warn_of_habit(layer: Layer, file: str, arguments: Arguments) -> None:
    """Warn of a rule that the models of this family have and no option gives."""
    habit = layer.kind.habit
    if layer.frequencies:
        if "rope" not in arguments:
            name = f"{file}#{printable(layer.frequencies)}"
            warn(
                f"{file}: the layer holds the frequencies of a rotary embedding: --rope half "
                f"--rope-frequencies {name} applies them"
            )
    elif habit is not None and arguments.keys().isdisjoint(habit.known):
        warn(
            f"{file}: models with layers named as in {layer.kind.name} {habit.does}, which no "
            f"tensor shows: give --config with the model's config.json, or {habit.give}"
        )
