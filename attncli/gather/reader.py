"""Read files one by one, and note what they say and where each thing came from."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from attncli.arguments import MOST_AXES, fewer_axes, flag
from attncli.dtypes import BFLOAT16
from attncli.errors import InputError, UsageError
from attncli.gather.entries import (
    COLUMNS_ARE,
    KNOWN,
    LABELS,
    MATRICES,
    MODELS,
    NORMS,
    OF_FILES,
    PROJECTIONS,
    RESULTS,
    ROWS_ARE,
    SINGLE,
    WORDS,
    full_name,
    missing_input,
    nearest_name,
    unknown_entry,
)
from attncli.gather.gathered import Gathered
from attncli.gather.leaving_out import leave_out, leave_out_of_config, leave_out_of_layer
from attncli.gather.lists import (
    check_labels,
    is_meant_as_file,
    label_file,
    label_member,
    number_list,
    split_labels,
)
from attncli.gather.strange import is_single, pass_over
from attncli.labelled import advise_on_order
from attncli.loading import is_stream, read, read_array, split_member, two_streams
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.loading.number import is_spaced
from attncli.loading.source import is_file, is_readable
from attncli.text import printable, quoted
from attncli.warning import warn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from attncli.checkpoints.config import LayerConfig
    from attncli.checkpoints.names import Layer

__all__ = ["Reader", "refuse_plain_scaled"]

# A checkpoint may have a hundred thousand; comparing a name takes 60 µs.
_LOOKED_AT = 2000


class Reader:
    """Reads files and notes what they say, and where each thing came from."""

    def __init__(self, dtype: str | None, left: frozenset[str] = frozenset()) -> None:
        self.gathered = Gathered()
        self._dtype = dtype
        # What is left out, and what of it no file had yet.
        self._left = self._unmet = left
        # With the name of the file that they stand in.
        self._found_labels: dict[str, tuple[tuple[str, ...], str]] = {}
        self._strange: list[tuple[str, LoadedMapping]] = []
        # The names of the components that are multiplied with each other, and their file.
        self._features: dict[str, tuple[tuple[str, ...] | None, str]] = dict.fromkeys(
            ("query", "key"), (None, "")
        )

    def read(self, file: str) -> LoadedArray | LoadedMapping:
        """Return what a file holds."""
        self._note_input(file)
        return read(file, dtype=self._dtype)

    def read_problem(self, file: str, models: Collection[str]) -> LoadedArray | LoadedMapping:
        """Return what a file holds, without what is left out of it."""
        contents, self._unmet = leave_out(self.read(file), self._left, models)
        return contents

    def read_array(self, file: str) -> LoadedArray:
        """Return the one array of a file."""
        self._note_input(file)
        return read_array(file, dtype=self._dtype)

    def read_named(self, file: str, folder: str, source: str | None) -> LoadedArray:
        """Return the one array of a file that an entry of a problem file or an option names."""
        with _named_by(source):
            return self.read_array(_inside(folder, file))

    def _note_input(self, file: str) -> None:
        if is_stream(file) and "-" in self.gathered.inputs:
            raise two_streams()
        self.gathered.inputs.append(split_member(file)[0])

    def take_document(self, document: LoadedMapping) -> None:
        """Note every entry of a problem file; results that stand beside them are passed over."""
        if {"schema", "weights"} <= set(document.entries):
            warn(
                f"{document.name}: its weights are ignored, and computed again without the rules "
                "that they were computed with, which the file does not hold"
            )
        refuse_plain_scaled(document.entries, document.name)
        taken: dict[str, str] = {}
        strange = []
        for name in document.entries:  # what is not used is not read
            full = full_name(name)
            if full in RESULTS:
                continue
            if full not in KNOWN:
                strange.append(name)
                continue
            if full in taken:
                raise InputError(f"{document.name}: both {taken[full]} and {name} are given")
            taken[full] = name
            if document.dump:
                _refuse_dumped(document, name, full)
            source = f"{document.name}#{printable(name)}"
            self.take(full, document.entries[name], document.folder, source)
        self._check_complete(document, strange)

    def _check_complete(self, document: LoadedMapping, strange: list[str]) -> None:
        """Refuse what is not known, and where query or key is missing."""
        named = self.gathered.arguments
        # What is made from embeddings is asked for when it is made.
        made = "x" in named or "checkpoint" in named or any(name in named for name in PROJECTIONS)
        missing = [name for name in ("query", "key") if name not in named and not made]
        for name in strange[:_LOOKED_AT]:
            if not document.dump or (missing and nearest_name(name)):
                raise unknown_entry(name, document)
            self._strange.append((name, document))
        if missing:
            raise missing_input(missing[0], document)

    def pass_over_strange(self, more: Collection[str]) -> None:
        """Leave out what a program wrote beside the inputs, unless an option or more takes it."""
        taken = {*self.gathered.sources.values(), *more}
        for name, document in self._strange:
            if f"{document.name}#{printable(name)}" not in taken:
                pass_over(name, document)

    def take(self, name: str, value: object, folder: str, source: str | None = None) -> None:
        """Note one option, from the place in a problem file or from the command line."""
        if value is None:
            return
        if name in LABELS:
            self.gathered.arguments[name] = self._labels(name, value, folder)
        elif name == "plain":
            self._take_plain(value, source)
        elif name in MODELS:
            self.gathered.arguments[name] = _inside(folder, _file_name(name, value))
        elif isinstance(value, LoadedArray):
            self.take_array(name, value)
        elif isinstance(value, str) and name in OF_FILES:
            text = _unbounded(value) if name == "window" else value
            if name == "mask" and value == "causal" and not is_file(_inside(folder, value)):
                raise UsageError("mask: expected a file; found 'causal'", hint="give --causal")
            numbers = None if name in MATRICES else number_list(name, text)
            if numbers is None:
                self.take_array(name, self.read_named(value, folder, source))
            else:
                self._take_value(name, numbers, source)
        else:
            self._take_value(name, value, source)

    def _take_value(self, name: str, value: object, source: str | None) -> None:
        first = value[0] if isinstance(value, list) and value else None
        if name in MATRICES and isinstance(first, str) and is_spaced(first):
            raise InputError(
                f"{source or name}: expected numbers; found the text {quoted(first)}",
                hint=f"separate the numbers by commas: [{', '.join(first.split())}]",
            )
        self.gathered.arguments[name] = value
        # What stood in a file before must not be blamed for it.
        self.gathered.sources.pop(name, None)
        if source is not None:
            self.gathered.sources[name] = source

    def _take_plain(self, value: object, source: str | None) -> None:
        if _is_plain(source, value):
            self.gathered.arguments["scale"] = 1.0

    def take_array(self, name: str, array: LoadedArray) -> None:
        """Note an array, its file, and the labels of its rows."""
        self.gathered.arguments[name] = self.values(array)
        self.gathered.sources[name] = array.name
        found = [(rows_are, array.row_labels) for rows_are in ROWS_ARE.get(name, ())]
        if name in COLUMNS_ARE:
            found.append((COLUMNS_ARE[name], array.column_labels))
        if name in self._features:
            self._features[name] = array.column_labels, array.name
        for which, labels in found:
            # One row of a mask or bias stands for every query.
            if labels and (len(labels) > 1 or name not in COLUMNS_ARE):
                known, file = self._found_labels.setdefault(which, (labels, array.name))
                advise_on_order(array.name, labels, file, known)

    def values(self, array: LoadedArray) -> npt.NDArray[Any]:
        """Return the numbers of an array that may be an input, and note whether they are bfloat16.

        Raises
        ------
        InputError
            If no input has its shape.
        """
        _check_axes(array.values.shape, array.name)
        self.gathered.bfloat16 |= array.values.dtype == BFLOAT16
        return array.values

    def embed(self, threads: int | None) -> None:
        """Read the layer of a checkpoint, and make query, key and value from embeddings."""
        arguments = self.gathered.arguments
        if not any(name in arguments for name in ("x", *MODELS, "positions", *PROJECTIONS, *NORMS)):
            (own, file), (known, other) = self._features["key"], self._features["query"]
            advise_on_order(file, own, other, known)
            return
        # Most problems have none of it: they start without these modules.
        from attncli.gather.embedding import project_arguments  # noqa: PLC0415

        checkpoint, config = (arguments.pop(name, None) for name in MODELS)
        if checkpoint is not None:
            self._take_layer(str(checkpoint), None if config is None else str(config))
        elif config is not None:
            raise UsageError(
                f"config: {printable(str(config))} says how the layers of a checkpoint attend, but "
                "there is none",
                hint="give --checkpoint model.safetensors#PREFIX",
            )
        project_arguments(self.gathered, threads=threads)

    def _take_layer(self, checkpoint: str, config: str | None) -> None:
        from attncli.checkpoints.layers import choose_layer  # noqa: PLC0415
        from attncli.gather.layer import StoredLayer, add_layer, warn_of_options  # noqa: PLC0415

        file, prefix = split_member(checkpoint)
        contents = self.read(file)
        if isinstance(contents, LoadedArray):
            raise InputError(
                f"{contents.name}: expected a checkpoint of named weights; found one array",
                hint="give single matrices with --wq, --wk and --wv",
            )
        members = contents.entries

        def fetch(name: str) -> npt.NDArray[Any]:
            entry = members[name]
            if isinstance(entry, LoadedArray):
                return self.values(entry)
            raise InputError(f"{contents.name}#{printable(name)}: expected an array of numbers")

        layer, self._unmet = leave_out_of_layer(
            choose_layer(members, prefix, contents.name),
            self._left,
            self._unmet,
            contents.name,
            configured=config is not None,
        )
        attends = None
        if config is not None:
            attends, layer = self._layer_config(config, layer)
        warn_of_options(contents, self.gathered.arguments)
        add_layer(self.gathered, StoredLayer(contents.name, layer, fetch), attends)

    def _layer_config(self, config: str, layer: Layer) -> tuple[LayerConfig, Layer]:
        """Read how a layer attends, and note it where no option says it or leaves it out."""
        from attncli.checkpoints.config import layer_config  # noqa: PLC0415
        from attncli.gather.embedding import count_tokens  # noqa: PLC0415
        from attncli.gather.layer import add_config  # noqa: PLC0415
        from attncli.loading.json_text import read_settings  # noqa: PLC0415

        self._note_input(config)
        settings = read_settings(config, "the config.json of a model")
        name = printable(config)
        tokens = count_tokens(self.gathered.arguments)
        given = self.gathered.arguments
        attends = layer_config(settings, layer.prefix, name, tokens=tokens, given=given)
        unmet = self._unmet.difference(given)
        attends, layer = leave_out_of_config(attends, layer, self._left, unmet, name)
        add_config(self.gathered, layer, attends, name)
        return attends, layer

    def forget_labels(self) -> None:
        """Pass over the labels of a problem file: tokens that are given take their place."""
        for name in ("query_labels", "key_labels"):
            self.gathered.arguments.pop(name, None)

    def name_tokens(self) -> None:
        """Spread tokens over queries and keys; labels found in matrix files come last."""
        arguments = self.gathered.arguments
        tokens = arguments.pop("tokens", None)
        for name in ("query_labels", "key_labels"):
            if tokens is not None and name not in arguments:
                arguments[name] = tokens
                self.gathered.sources[name] = "tokens"
            elif name in self._found_labels:
                arguments.setdefault(name, self._found_labels[name][0])
            check_labels(name, cast("tuple[str, ...] | None", arguments.get(name)))

    def _labels(self, name: str, value: object, folder: str) -> tuple[str, ...]:
        if isinstance(value, LoadedArray):
            return tuple(_number_label(number) for number in value.values.ravel().tolist())
        if isinstance(value, (list, tuple)):
            return tuple(str(label) for label in value)
        text = str(value)
        path = _inside(folder, text)
        file, member = split_member(path)
        if member is not None and os.path.isfile(file):  # noqa: PTH113
            self._note_input(path)
            return self._labels(name, label_member(file, member), folder)
        if text == "-" or is_readable(path) or is_meant_as_file(text):
            self._note_input(path)
            return label_file(path)
        return split_labels(name, text)


@contextmanager
def _named_by(source: str | None) -> Iterator[None]:
    """Say of a file that cannot be read which entry of a problem file names it."""
    try:
        yield
    except InputError as error:
        if source is not None:
            error.message = f"{source}: {error.message}"
        raise


def _check_axes(shape: tuple[int, ...], name: str) -> None:
    """Refuse an array that cannot be a vector, a matrix, or a batch of matrices."""
    if not 1 <= len(shape) <= MOST_AXES:
        msg = f"{name}: expected 1 to {MOST_AXES} axes; found {len(shape)} (shape {shape})"
        raise InputError(msg, hint=fewer_axes(shape))
    if 0 in shape:
        raise InputError(f"{name} holds no numbers: its shape is {shape}")


def refuse_plain_scaled(entries: Mapping[str, object], file: str | None = None) -> None:
    """Refuse a plain product beside a scale, in a file or among the options."""
    plain = entries.get("plain")
    if plain is None or entries.get("scale") is None or not _is_plain(file, plain):
        return
    what, hint = "both plain and scale are given", "plain is scale 1"
    raise UsageError(what, hint=hint) if file is None else InputError(f"{file}: {what}", hint=hint)


def _refuse_dumped(document: LoadedMapping, name: str, full: str) -> None:
    """Refuse an entry of a dump that is not of the kind that an option takes."""
    value, where = document.entries[name], f"{document.name}#{printable(name)}"
    if isinstance(value, str) and full not in WORDS:
        # What a program dumped names no files.
        raise InputError(f"{where}: expected real numbers; found text")
    if full in SINGLE and not is_single(value):
        raise InputError(
            f"{where}: expected a single value; found an array",
            hint=f"--without {printable(name)} leaves it out",
        )


def _is_plain(source: str | None, value: object) -> bool:
    name = "plain" if source is None else f"plain ({source})"
    return flag(name, value.values if isinstance(value, LoadedArray) else value)


def _number_label(number: float) -> str:
    """Return a number as a name: a whole one with all its digits."""
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


def _unbounded(window: str) -> str:
    """Return a window with −1 for none."""
    return ",".join("-1" if side.strip() == "none" else side for side in window.split(","))


def _file_name(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}: expected the name of a file; found something else")
    return value


def _inside(folder: str, file: str) -> str:
    return file if folder == "." or is_stream(file) else os.path.join(folder, file)  # noqa: PTH118
