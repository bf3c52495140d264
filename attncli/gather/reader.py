"""Collect the arguments of a problem from files and options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from attncli.errors import InputError, UsageError, warn
from attncli.errors.elsewhere import ELSEWHERE
from attncli.errors.names import INPUTS, LABELS, UPSTREAM
from attncli.errors.text import first_few, printable, quoted
from attncli.gather.entries import (
    COLUMNS_ARE,
    KNOWN,
    MATRICES,
    MODELS,
    OF_FILES,
    RESULTS,
    ROWS_ARE,
    SINGLE,
    WORDS,
    full_name,
    replaced_by,
    unknown_entry,
)
from attncli.gather.lists import check_labels, inside, labels_of, number_list
from attncli.gather.sources import one_layer
from attncli.loading import read, read_array, refuse_two_streams, split_member
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.numerics.dtypes import BFLOAT16
from attncli.problem.arguments import MOST_AXES, fewer_axes, flag, names_of
from attncli.problem.labels import advise_on_order
from attncli.problem.posing import pose

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    import numpy.typing as npt

    from attncli.gather.sources import LeftOut
    from attncli.problem.problem import Problem
    from attncli.problem.projection import Projected

# Arrays whose first axis may count layers.
_LAYERED = (*INPUTS, "x")


@dataclass(eq=False)
class Gathered:
    """The arguments from files and options, not yet checked against each other.

    ``arguments`` are those of `attncli.pose`, ``sources`` the file of each, ``inputs`` all files
    read. ``projected`` holds the embeddings and weights that query, key and value were made from,
    and ``norm_before`` the norm in front of a checkpoint's layer. ``upstream`` has a function for
    each of ``dcontext`` and ``dlse`` that reads it.
    """

    arguments: dict[str, object] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    bfloat16: bool = False
    value_columns: tuple[str, ...] | None = None
    projected: Projected | None = None
    notes: list[str] = field(default_factory=list)
    norm_before: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    upstream: dict[str, Callable[[], object]] = field(default_factory=dict)

    def posed(self) -> Problem:
        """Return the checked problem."""
        problem = pose(**cast("dict[str, Any]", self.arguments), sources=self.sources)
        return problem if self.projected is None else replace(problem, made_from=self.projected)


@dataclass(eq=False)
class Reader:
    """Reads files, and notes their contents and where each argument came from.

    Options that are ``given`` replace entries of a file; entries that are ``left`` out are ignored.
    """

    given: Mapping[str, object]
    left: LeftOut
    layer: int | None
    call: int | None
    dtype: str | None
    header: str
    gathered: Gathered = field(default_factory=Gathered)
    # Labels of queries, of keys, and of the columns of query and key, each with its file.
    _found_labels: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)

    def read(self, file: str, skipped: Collection[str] = ()) -> LoadedArray | LoadedMapping:
        """Return the contents of a file; skipped entries cause no errors."""
        self.note_input(file)
        return read(file, dtype=self.dtype, header=self.header, skipped=skipped)

    def read_array(self, file: str) -> LoadedArray:
        """Return the one array of a file."""
        self.note_input(file)
        return read_array(file, dtype=self.dtype, header=self.header)

    def read_named(self, file: str, folder: str, source: str | None) -> LoadedArray:
        """Return the array in a file that an entry or an option names."""
        try:
            return self.read_array(inside(folder, file))
        except InputError as error:
            if source is not None:
                error.message = f"{source}: {error.message}"
            raise

    def note_input(self, file: str) -> None:
        """Note the name of a file; standard input can be read only once."""
        refuse_two_streams((*self.gathered.inputs, file))
        self.gathered.inputs.append(split_member(file)[0])

    def take_document(self, document: LoadedMapping) -> list[str]:
        """Take the entries of a problem; return the names of unknown ones."""
        replaced = replaced_by(self.given)
        taken: dict[str, str] = {}
        strange = []
        for name in document.entries:
            full = full_name(name)
            if full in UPSTREAM:
                self.gathered.upstream[full] = partial(document.entries.__getitem__, name)
            if self.left.takes(name) or full in RESULTS or full in replaced:
                continue
            if full not in KNOWN:
                strange.append(name)
            elif full in taken:
                raise InputError(f"{document.name}: both {taken[full]} and {name} are given")
            else:
                taken[full] = name
        if strange and not document.dump:
            raise unknown_entry(strange[0], document)
        entries = {full: document.entries[name] for full, name in taken.items()}
        for full, name in taken.items():
            self.take_entry(document, name, full, entries[full])
        if {"schema", "weights"} <= set(document.entries):
            warn(
                f"{document.name}: its weights are ignored. attncli computes new ones without the "
                "rules of the old ones (mask, scale, …), which the file does not hold"
            )
        return strange

    def take_entry(self, document: LoadedMapping, name: str, full: str, value: object) -> None:
        """Take one entry of a problem under its full name."""
        source = f"{document.name}#{printable(name)}" if document.name else None
        if document.dump and isinstance(value, str) and full not in WORDS:
            # In a dump, no text names a file.
            raise InputError(f"{source}: expected real numbers; found text")
        if full in SINGLE and isinstance(value, LoadedArray) and value.values.size != 1:
            raise InputError(
                f"{source}: expected a single value; found an array",
                hint=f"--without {printable(name)} leaves it out",
            )
        self.take(full, value, document.folder, source)

    def tell_of_strange(
        self, names: Collection[str], document: LoadedMapping, more: Collection[str]
    ) -> None:
        """Note unknown entries of a dump; refuse rules of other libraries."""
        taken = {*self.gathered.sources.values(), *more}
        rest = [name for name in names if f"{document.name}#{printable(name)}" not in taken]
        for name in rest:
            here = ELSEWHERE.get(name.lower())
            if here is not None and here.rule and _is_set(document, name):
                raise unknown_entry(name, document)
        if rest:
            self.gathered.notes.append(
                f"{document.name}: not used: {first_few([*map(printable, rest)])}"
            )

    def take(self, name: str, value: object, folder: str, source: str | None = None) -> None:
        """Take one option or entry."""
        if value is None:
            return
        if name in LABELS:
            self.gathered.arguments[name] = labels_of(self, name, value, folder)
        elif name in MODELS:
            if not isinstance(value, str):
                raise UsageError(f"{name}: expected the name of a file; found something else")
            self.gathered.arguments[name] = inside(folder, value)
        elif isinstance(value, LoadedArray):
            self.take_array(name, value)
        elif isinstance(value, str) and name in OF_FILES:
            numbers = None if name in MATRICES else number_list(name, value)
            if numbers is None:
                self.take_array(name, self.read_named(value, folder, source))
            else:
                self._take_value(name, numbers, source)
        else:
            self._take_value(name, value, source)

    def _take_value(self, name: str, value: object, source: str | None) -> None:
        if name in MATRICES and isinstance(value, list) and value and isinstance(value[0], str):
            raise InputError(
                f"{source or name}: expected numbers; found the text {quoted(value[0])}",
                hint="numbers are separated by commas: [1, 0, 1]",
            )
        self.gathered.arguments[name] = value
        if source is not None:
            self.gathered.sources[name] = source

    def take_array(self, name: str, array: LoadedArray) -> None:
        """Take an array, its file, and its labels."""
        layered = name in _LAYERED or array.values.ndim > MOST_AXES
        one = one_layer(array, self.layer) if layered else array
        self.gathered.arguments[name] = self.values(one)
        self.gathered.sources[name] = one.name
        found = [(rows_are, array.row_labels) for rows_are in ROWS_ARE.get(name, ())]
        if name in COLUMNS_ARE:
            found.append((COLUMNS_ARE[name], array.column_labels))
        if name == "value":
            self.gathered.value_columns = array.column_labels
        for which, labels in found:
            # The only row of a mask or bias is for every query, so its label names none.
            if labels and (len(labels) > 1 or name in _LAYERED):
                known, file = self._found_labels.setdefault(which, (labels, array.name))
                advise_on_order(array.name, labels, file, known)

    def values(self, array: LoadedArray) -> npt.NDArray[Any]:
        """Return the numbers of an array, and note bfloat16."""
        shape, name = array.values.shape, array.name
        if not 1 <= len(shape) <= MOST_AXES:
            hint = fewer_axes(shape)
            if len(shape) == MOST_AXES + 1:
                hint = f"--layer N takes one of {shape[0]} layers, counted from 0"
            what = f"expected 1 to {MOST_AXES} axes; found {len(shape)} (shape {shape})"
            raise InputError(f"{name}: {what}", hint=hint)
        if 0 in shape:
            raise InputError(f"{name} holds no numbers: its shape is {shape}")
        self.gathered.bfloat16 |= array.values.dtype == BFLOAT16
        return array.values

    def settle_scale(self) -> None:
        """Replace plain by scale 1."""
        arguments = self.gathered.arguments
        if flag(names_of(self.gathered.sources)("plain"), arguments.pop("plain", False)):
            if "scale" in arguments:
                raise UsageError("both plain and scale are given", hint="plain is scale 1")
            arguments["scale"] = 1.0

    def name_tokens(self) -> None:
        """Use tokens as labels of queries and keys, or else the labels in tables."""
        arguments = self.gathered.arguments
        tokens = arguments.pop("tokens", None)
        for name in ("query_labels", "key_labels"):
            if tokens is not None and name not in arguments:
                arguments[name] = tokens
                self.gathered.sources[name] = "tokens"
            elif name in self._found_labels:
                arguments.setdefault(name, self._found_labels[name][0])
            check_labels(name, cast("tuple[str, ...] | None", arguments.get(name)))


def _is_set(document: LoadedMapping, name: str) -> bool:
    """Return whether an entry is not null, false or zero."""
    try:
        value = document.entries[name]
    except InputError:  # attncli cannot read its elements
        return True
    if isinstance(value, LoadedArray):
        return value.values.size > 1 or (value.values.size == 1 and bool(value.values.any()))
    return value not in (None, False, 0)
