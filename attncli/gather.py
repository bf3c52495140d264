"""Files and options become the arguments of `attncli.pose`.

What a name means in a problem file and on the command line is written here once.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from attncli.arguments import flag
from attncli.checkpoint_names import find_layers
from attncli.embedding import PROJECTIONS, add_layer, project_arguments
from attncli.errors import InputError, UsageError
from attncli.example import EXAMPLE
from attncli.loading import read, read_array, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.loading.number import NumberOverflowError, parse_number
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

__all__ = ["Finished", "Gathered", "gather"]

_SHORT = {"q": "query", "k": "key", "v": "value"}
_EMBEDDED = ("x", "wq", "wk", "wv", "wo")
_MATRICES = (
    *("query", "key", "value", "mask", "bias", "key_padding_mask", "score_weight"),
    *_EMBEDDED,
)
# A short list on the command line or in a problem file serves as well as a file.
_LISTS = (
    *("kv_lengths", "query_lengths", "query_offset", "alibi_slopes", "sinks", "score_vector"),
    *("bq", "bk", "bv", "bo"),
)
_PLAIN_OPTIONS = (
    "scale",
    "mask_means",
    "causal",
    "causal_align",
    "window",
    "softcap",
    "rope",
    "rope_base",
    "score",
    "heads",
    "kv_heads",
    "layout",
    "precision",
    "positions",
)
_LABELS = ("tokens", "query_labels", "key_labels")
_KNOWN = (*_MATRICES, *_LISTS, *_PLAIN_OPTIONS, *_LABELS, "plain", "checkpoint")
_ROWS_ARE = {
    "x": ("query_labels", "key_labels"),
    "query": ("query_labels",),
    "key": ("key_labels",),
    "value": ("key_labels",),
}
_RESULTS = ("schema", "weights", "context", "scores", "raw", "capped", "lse", "stats", "top")


@dataclass(frozen=True, eq=False)
class Finished:
    """Weights that were computed before: all that a picture needs.

    Attributes
    ----------
    weights : ndarray (…, L, S)
    name : str
        Where they came from.
    inputs : tuple of str
        Every file that was read, without ``#NAME``.
    query_labels, key_labels : tuple of str or None
    """

    weights: npt.NDArray[Any]
    name: str
    inputs: tuple[str, ...] = ()
    query_labels: tuple[str, ...] | None = None
    key_labels: tuple[str, ...] | None = None


@dataclass(eq=False)
class Gathered:
    """What the files and options say, not yet checked against each other.

    Attributes
    ----------
    arguments : dict
        Keyword arguments of `attncli.pose`, query, key and value included.
    sources : dict of str to str
        The file of each argument that has one.
    inputs : list of str
        Every file that was read, without ``#NAME``.
    """

    arguments: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)


def gather(
    files: Sequence[str],
    options: Mapping[str, object] | None = None,
    *,
    dtype: str | None = None,
    stdin: BinaryIO | None = None,
    example: bool = False,
) -> Gathered | Finished:
    """Read files and join them with options.

    Parameters
    ----------
    files : sequence of str
        One problem file, or Q K V, or Q K; with projections one embedding file X, or the
        sources of cross-attention. One array alone is finished weights.
    options : mapping, optional
        Options of `attncli.pose` under their Python names; they win over the same
        option in a problem file. A str in the place of an array names a file, or is a
        list such as ``"3,5"``.
    dtype : str, optional
        ``"bfloat16"`` for NPY files of bare 2-byte elements.
    stdin : binary stream, optional
        What ``-`` reads.
    example : bool
        Take the built-in example in the place of files.

    Raises
    ------
    InputError
        A file cannot be read as what it should be.
    UsageError
        A wrong number of files, or an unknown option in a problem file.
    """
    options = options or {}
    _refuse_two_streams(files, options)
    reader = _Reader(dtype, stdin)
    if example:
        _refuse_projections(options)
        reader.gathered.arguments.update(EXAMPLE)
    elif len(files) == 1:
        contents = reader.read(files[0])
        if isinstance(contents, LoadedArray) and _projections(options):
            reader.take_array("x", contents)
        elif isinstance(contents, LoadedArray):
            return _finished(contents, options, reader)
        elif _is_finished(contents):
            return _finished_document(contents, options, reader)
        else:
            reader.take_document(contents)
    elif len(files) in (2, 3):
        for name, file in zip(("query", "key", "value"), files, strict=False):
            reader.take_array(name, reader.read_array(file))
    else:
        raise UsageError(
            f"expected one problem file, or the files Q K V; found {len(files)} files",
            hint="a problem file (YAML, JSON, NPZ, safetensors) names query, key and value",
        )
    for name, value in options.items():
        reader.take(name, value, folder=".")
    reader.name_tokens()
    reader.embed()
    return reader.gathered


def _projections(options: Mapping[str, object]) -> list[str]:
    """Return the options that make query, key and value out of embeddings."""
    names = (*PROJECTIONS, "checkpoint")
    return [name for name in names if options.get(name) is not None]


def _refuse_projections(options: Mapping[str, object]) -> None:
    for name in _projections(options):
        raise UsageError(
            f"{name} is for embeddings, and no file of embeddings is given",
            hint="name the file: attncli compute x.csv --wq wq.csv --wk wk.csv --wv wv.csv",
        )


def _refuse_two_streams(files: Sequence[str], options: Mapping[str, object]) -> None:
    words = [word for word in (*files, *options.values()) if isinstance(word, str)]
    streams = [word for word in words if split_member(word)[0] == "-"]
    if len(streams) > 1:
        raise UsageError("standard input (-) can be read once only", hint="put one into a file")


class _Reader:
    """Reads files and notes what they say, and where each thing came from."""

    def __init__(self, dtype: str | None, stdin: BinaryIO | None) -> None:
        self.gathered = Gathered()
        self._dtype = dtype
        self._stdin = stdin
        self._found_labels: dict[str, tuple[str, ...]] = {}

    def read(self, file: str) -> LoadedArray | LoadedMapping:
        self._note_input(file)
        return read(file, dtype=self._dtype, stdin=self._stdin)

    def read_array(self, file: str) -> LoadedArray:
        self._note_input(file)
        return read_array(file, dtype=self._dtype, stdin=self._stdin)

    def _note_input(self, file: str) -> None:
        self.gathered.inputs.append(split_member(file)[0])

    def take_document(self, document: LoadedMapping) -> None:
        taken: dict[str, str] = {}
        for name in document.entries:
            full = _SHORT.get(name, name)
            if full in _RESULTS:
                continue
            if full not in _KNOWN:
                raise _unknown(name, document)
            if full == "plain" and "scale" in document.entries:
                raise InputError(
                    f"{document.name}: both plain and scale are given", hint="plain is scale 1"
                )
            if full in taken:
                raise InputError(f"{document.name}: both {taken[full]} and {name} are given")
            taken[full] = name
            self.take(full, document.entries[name], document.folder)
        named = self.gathered.arguments
        # What is made from embeddings is asked for when it is made.
        made = "x" in named or "checkpoint" in named or any(name in named for name in PROJECTIONS)
        missing = [name for name in ("query", "key") if name not in named]
        if missing and not made:
            found = ", ".join(printable(name) for name in document.entries) or "nothing"
            raise InputError(
                f"{document.name}: expected query, key and value; {missing[0]} is missing, "
                f"found {found}"
            )

    def take(self, name: str, value: object, folder: str) -> None:
        """Note one option, from a problem file or from the command line."""
        if value is None:
            return
        if name in _LABELS:
            self.gathered.arguments[name] = self._labels(value, folder)
        elif name == "plain":
            self._take_plain(value)
        elif name == "checkpoint":
            self.gathered.arguments[name] = _inside(folder, str(value))
        elif isinstance(value, LoadedArray):
            self.take_array(name, value)
        elif isinstance(value, str) and name in (*_MATRICES, *_LISTS, "window"):
            numbers = None if name in _MATRICES else _number_list(name, value)
            if numbers is None:
                self.take_array(name, self.read_array(_inside(folder, value)))
            else:
                self._take_value(name, numbers)
        else:
            self._take_value(name, value)

    def _take_value(self, name: str, value: object) -> None:
        self.gathered.arguments[name] = value
        # What stood in a file before must not be blamed for it.
        self.gathered.sources.pop(name, None)

    def _take_plain(self, value: object) -> None:
        if flag("plain", value.values if isinstance(value, LoadedArray) else value):
            self.gathered.arguments["scale"] = 1.0

    def take_array(self, name: str, array: LoadedArray) -> None:
        self.gathered.arguments[name] = array.values
        self.gathered.sources[name] = array.name
        for rows_are in _ROWS_ARE.get(name, ()):
            if array.row_labels:
                self._found_labels.setdefault(rows_are, array.row_labels)

    def embed(self) -> None:
        """Read the layer of a checkpoint, and make query, key and value from embeddings."""
        checkpoint = self.gathered.arguments.pop("checkpoint", None)
        if checkpoint is not None:
            self._take_layer(str(checkpoint))
        project_arguments(self.gathered.arguments, self.gathered.sources)

    def _take_layer(self, checkpoint: str) -> None:
        file, prefix = split_member(checkpoint)
        contents = self.read(file)
        if isinstance(contents, LoadedArray):
            raise InputError(
                f"{contents.name} holds one array; expected a checkpoint of named weights",
                hint="give single matrices with --wq, --wk and --wv",
            )
        members = contents.entries

        def fetch(name: str) -> npt.NDArray[Any]:
            entry = members[name]
            if isinstance(entry, LoadedArray):
                return entry.values
            raise InputError(f"{contents.name}#{printable(name)}: expected an array of numbers")

        add_layer(
            self.gathered.arguments, self.gathered.sources, contents.name, members, fetch, prefix
        )

    def name_tokens(self) -> None:
        """Spread tokens over queries and keys; labels found in matrix files come last."""
        arguments = self.gathered.arguments
        tokens = arguments.pop("tokens", None)
        for name in ("query_labels", "key_labels"):
            if tokens is not None and name not in arguments:
                arguments[name] = tokens
                self.gathered.sources[name] = "tokens"
            elif name in self._found_labels:
                arguments.setdefault(name, self._found_labels[name])

    def _labels(self, value: object, folder: str) -> tuple[str, ...]:
        if isinstance(value, LoadedArray):
            return tuple(f"{number:g}" for number in value.values.ravel().tolist())
        if isinstance(value, (list, tuple)):
            return tuple(str(label) for label in value)
        text = str(value)
        path = _inside(folder, text)
        # A lone name.txt is meant as a file even where there is none.
        if os.path.isfile(path) or ("," not in text and text.endswith(".txt")):  # noqa: PTH113
            self.gathered.inputs.append(path)
            return _label_file(path)
        return tuple(label.strip() for label in text.split(","))


def _inside(folder: str, file: str) -> str:
    return file if folder == "." or file == "-" else os.path.join(folder, file)  # noqa: PTH118


def _label_file(path: str) -> tuple[str, ...]:
    """Read one label a line; a label may hold anything but a line break."""
    try:
        with open(path, encoding="utf-8-sig") as file:  # noqa: PTH123
            text = file.read()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"{printable(path)}: expected labels, one a line; {reason}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{printable(path)}: expected labels, one a line, in UTF-8") from error
    return tuple(text.removesuffix("\n").split("\n"))


def _number_list(name: str, text: str) -> list[float] | None:
    """Return the numbers of ``"3,5"``, or None where it names a file instead."""
    try:
        numbers = [parse_number(part.strip()) for part in text.split(",")]
    except NumberOverflowError as error:
        raise UsageError(f"{name}: {error} is beyond the range of float64") from None
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        return known
    path = split_member(text)[0]
    if known or (path != "-" and not os.path.exists(path) and "." not in path):  # noqa: PTH110
        raise UsageError(
            f"{name}: expected numbers, as in 3 or 3,5, or a file; found {printable(text)!r}"
        )
    return None


def _unknown(name: str, document: LoadedMapping) -> UsageError:
    # Made here, not at the top: only an error pays for the import.
    from difflib import get_close_matches  # noqa: PLC0415

    if find_layers(document.entries):
        return UsageError(
            f"{document.name} is a checkpoint: it holds weights and no embeddings",
            hint=f"attncli compute x.npy --checkpoint {document.name}",
        )
    known = [*_SHORT, *_KNOWN]
    close = get_close_matches(name, known, n=1)
    return UsageError(
        f"{document.name}: unknown entry {printable(name)!r}",
        hint=f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}",
    )


def _is_finished(document: LoadedMapping) -> bool:
    return "weights" in document.entries and not {"query", "q", "x"} & set(document.entries)


def _finished(array: LoadedArray, options: Mapping[str, object], reader: _Reader) -> Finished:
    return _with_labels(array, {}, options, reader, array.row_labels, array.column_labels)


def _finished_document(
    document: LoadedMapping, options: Mapping[str, object], reader: _Reader
) -> Finished:
    weights = document.entries["weights"]
    if not isinstance(weights, LoadedArray):
        raise InputError(f"{document.name}: expected weights to be an array of numbers")
    return _with_labels(weights, document.entries, options, reader, None, None)


def _with_labels(
    array: LoadedArray,
    entries: Mapping[str, object],
    options: Mapping[str, object],
    reader: _Reader,
    rows: tuple[str, ...] | None,
    columns: tuple[str, ...] | None,
) -> Finished:
    given = {name: value for name, value in options.items() if value is not None}
    strange = [name for name in given if name not in _LABELS]
    if strange:
        raise UsageError(
            f"{array.name} holds finished weights: {strange[0]} has nothing to act on",
            hint="give the files Q K V, or a problem file",
        )
    for name in _LABELS:
        reader.take(name, given.get(name, entries.get(name)), ".")
    reader.name_tokens()
    named: dict[str, Any] = reader.gathered.arguments
    return Finished(
        array.values,
        array.name,
        tuple(reader.gathered.inputs),
        named.get("query_labels", rows),
        named.get("key_labels", columns),
    )
