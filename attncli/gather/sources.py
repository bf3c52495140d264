"""The files of a command, and the problem that they hold."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from attncli.errors import InputError, UsageError
from attncli.errors.names import GRADIENTS, INPUTS, LABELS, SCHEMA, UPSTREAM
from attncli.errors.text import counted, first_few, printable, quoted
from attncli.gather.entries import (
    KNOWN,
    PROJECTIONS,
    full_name,
    nearest_name,
    replaced_by,
    spellings,
)
from attncli.loading import headers, read
from attncli.loading.contents import LazyEntries, LoadedArray, LoadedMapping
from attncli.loading.source import is_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from attncli.gather.reader import Reader

# Names or numbers that a hint lists at most.
_LISTED = 16
# Axes of weights, queries or keys of several layers: layer, batch, head, and two more.
_WITH_LAYERS = 5
# The file names of `attncli.capture`, and the entry of the metadata that holds the options.
_DUMP = re.compile(r"layer-(\d{3,})-call-(\d{4,})\.safetensors")
_FACTS = "attncli"
# The tutorial problem of two queries and three keys: its dot products are (2, 1, 1) and (1, 1, 2).
_EXAMPLE: dict[str, list[list[float]]] = {
    "query": [[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]],
    "key": [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]],
    "value": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
}


def problem_source(files: Sequence[str], kind: str, reader: Reader) -> LoadedMapping:
    """Return the problem in the files of a command, by the names of its entries."""
    given = reader.given
    projections = [name for name in (*PROJECTIONS, "checkpoint") if name in given]
    if not files:
        if any(name in given for name in (*INPUTS, "x")):
            return LoadedMapping({}, "")
        for name in projections:
            raise UsageError(
                f"{name} is for embeddings, but no file of embeddings is given",
                hint="name the file: attncli compute x.csv --wq wq.csv --wk wk.csv --wv wv.csv",
            )
        return LoadedMapping({**_EXAMPLE}, "")
    if reader.call is not None and not (len(files) == 1 and is_folder(files[0])):
        raise UsageError(f"--call {reader.call} is for a folder of recorded calls")
    if len(files) == 1:
        skipped = spellings(replaced_by(given) | reader.left.names)
        file = files[0]
        if is_folder(file):
            file = dump_file(file, reader.layer, reader.call)
            reader.layer = None  # the file holds a single layer
        contents = reader.read(file, skipped)
        if isinstance(contents, LoadedArray):
            return LoadedMapping({"x" if projections else kind: contents}, contents.name)
        return _with_facts(contents)
    if len(files) > len(INPUTS):
        raise UsageError(
            f"expected one problem file, or the files Q K V; found {len(files)} files",
            hint="a problem file (YAML, JSON, NPZ, safetensors) names query, key and value",
        )
    arrays = [reader.read_array(file) for file in files]
    name = " ".join(array.name for array in arrays)
    return LoadedMapping(dict(zip(INPUTS, arrays, strict=False)), name)


def dump_file(folder: str, layer: int | None, call: int | None) -> str:
    """Return the file of a recorded call, by default the first call of the only layer."""
    calls, name = _recorded(folder), printable(folder)
    if not calls:
        raise InputError(
            f"{name} is a folder without recorded calls (layer-000-call-0000.safetensors)",
            hint="attncli capture records a model's, attncli.capture those of Python code",
        )
    if layer is None and len(calls) > 1:
        raise UsageError(
            f"{name} holds {len(calls)} layers: choose one with --layer", hint=_listed(calls)
        )
    chosen = next(iter(calls)) if layer is None else layer
    for noun, number, held in (
        ("layer", chosen, calls),
        ("call", call or 0, calls.get(chosen, {})),
    ):
        if number not in held:
            raise UsageError(f"{name} has no {noun} {number}", hint=_listed(held))
    return calls[chosen][call or 0]


def layers_in(source: str) -> dict[int, str]:
    """Return the layers in a folder or a file, with the names of their modules."""
    if os.path.isdir(source):  # noqa: PTH112 - no error for impossible names
        first = {layer: next(iter(calls.values())) for layer, calls in _recorded(source).items()}
        facts = {layer: _facts(cast("LoadedMapping", read(file))) for layer, file in first.items()}
        return {layer: str((told or {}).get("module", "")) for layer, told in facts.items()}
    shapes = [member.shape for member in headers(source) if len(member.shape) == _WITH_LAYERS]
    return dict.fromkeys(range(shapes[0][0] if shapes else 0), "")


def recorded_calls(folder: str) -> list[dict[str, Any]]:
    """Return facts, shapes and dtype of each recorded call in a folder."""
    return [
        _told(file, layer, call)
        for layer, calls in _recorded(folder).items()
        for call, file in calls.items()
    ]


def _told(file: str, layer: int, call: int) -> dict[str, Any]:
    contents = read(file)
    facts = (_facts(contents) if isinstance(contents, LoadedMapping) else None) or {}
    members = {member.name: member.shape for member in headers(file)}
    arrays = (*INPUTS, "out")
    return {
        "file": file,
        "layer": layer,
        "call": call,
        **{name: facts.get(name, "") for name in ("module", "kernel", "dtype", "device")},
        "shapes": {name: members[name] for name in arrays if name in members},
        "rules": sorted(
            {*members} - {*arrays, *GRADIENTS, *UPSTREAM} | {*facts.get("options", ())}
        ),
    }


def _recorded(folder: str) -> dict[int, dict[int, str]]:
    """Return the files of a folder by layer and call."""
    calls: dict[int, dict[int, str]] = {}
    for path in sorted(Path(folder).iterdir()):
        if numbers := _DUMP.fullmatch(path.name):
            calls.setdefault(int(numbers[1]), {})[int(numbers[2])] = str(path)
    return calls


def one_layer(array: LoadedArray, layer: int | None) -> LoadedArray:
    """Return one layer of an array whose first axis counts layers."""
    if layer is None:
        return array
    shape, what = array.values.shape, f"{array.name}: --layer {layer}"
    if len(shape) < 3:
        raise InputError(f"{what} needs a first axis that counts layers; found shape {shape}")
    if not -shape[0] <= layer < shape[0]:
        count = counted(shape[0], "layer")
        raise InputError(f"{what} is out of range for {count}, counted from 0")
    return LoadedArray(array.values[layer], f"{array.name}, layer {layer}", printed=array.printed)


class LeftOut:
    """The names that ``without`` leaves out; it remembers which of them a file had."""

    def __init__(self, without: object) -> None:
        names: Any = without.split(",") if isinstance(without, str) else without or ()
        try:
            self.names = {*map(_checked, names)}
        except TypeError:  # not iterable
            self.names = {_checked(names)}
        self._met: set[str] = set()
        self._held: dict[str, None] = {}  # in their order

    def takes(self, name: str) -> bool:
        """Return whether an entry is left out."""
        full = full_name(name)
        self._held[name] = None
        if full in self.names:
            self._met.add(full)
        return full in self.names

    def refuse_unmet(self, given: Collection[str]) -> None:
        """Refuse names that neither a file nor an option had."""
        for name in sorted(self.names - self._met - {*given}):
            # Options come first: the file may also hold a thousand outputs.
            held = sorted(self._held, key=lambda one: full_name(one) not in KNOWN)
            there = f"there are {first_few([*map(printable, held)], _LISTED)}" if held else None
            raise UsageError(
                f"without: there is no {quoted(name)} to leave out",
                hint=there if name in KNOWN else nearest_name(name) or there,
            )


def _checked(name: object) -> str:
    full = full_name(name.strip()) if isinstance(name, str) else ""
    if not full:
        raise UsageError(
            f"without: expected names of entries, as in causal,mask; found {quoted(str(name))}"
        )
    return full


def _listed(numbers: Collection[int]) -> str:
    return f"there are {first_few([str(number) for number in numbers], _LISTED)}"


def _with_facts(document: LoadedMapping) -> LoadedMapping:
    """Add the options and labels in the metadata of a recorded call."""
    facts = _facts(document)
    if facts is None:
        return document
    told = facts["options"] | {name: facts[name] for name in LABELS if name in facts}
    names = dict.fromkeys((*(name for name in document.entries if name != "out"), *told))
    entries = LazyEntries(names, lambda name: told.get(name, document.entries.get(name)))
    return LoadedMapping(entries, document.name, document.folder, document.dump)


def _facts(document: LoadedMapping) -> dict[str, Any] | None:
    """Return the metadata of a recorded call; None for other files."""
    text = (document.metadata or {}).get(_FACTS)
    if text is None:
        return None
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        facts = None
    options = facts.get("options") if isinstance(facts, dict) else None
    if not isinstance(options, dict) or facts.get("schema") != SCHEMA:
        raise InputError(
            f"{document.name}: expected in its metadata, under {_FACTS!r}, a recorded call of "
            f"schema {SCHEMA}; found something else"
        )
    return dict(facts)
