"""Read a checkpoint in several safetensors files by the index that says which holds what."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from attncli.errors import InputError
from attncli.loading.contents import LoadedMapping
from attncli.loading.json_text import bounded_json
from attncli.loading.lazy import LazyEntries
from attncli.loading.source import open_source
from attncli.loading.tensors import describe_safetensors, read_safetensors
from attncli.loading.tree import Document
from attncli.text import printable, quoted

if TYPE_CHECKING:
    from attncli.loading.contents import Member
    from attncli.loading.source import Source

__all__ = ["describe_index", "read_index"]

# 100 bytes a tensor, as in a header: room for as many in each of some files.
_LONGEST = 32 * 2**20


def read_index(source: Source) -> LoadedMapping:
    """Read which file holds each tensor; a file is opened when one of its tensors is asked for.

    Parameters
    ----------
    source : Source
        ``model.safetensors.index.json``; the files lie beside it.

    Returns
    -------
    LoadedMapping

    Raises
    ------
    InputError
        It is no such index. Reading a tensor raises it too, if its file is missing or lacks it.
    """
    places = _places(source)

    @cache
    def held(file: str) -> LoadedMapping:
        return read_safetensors(_beside(source, file))

    def entry(name: str) -> object:
        contents = held(places[name])
        if name not in contents.entries:
            raise InputError(
                f"{contents.name} holds no {printable(name)}, though {source.name} says so"
            )
        return contents.entries[name]

    return LoadedMapping(LazyEntries(places, entry), source.name, source.folder, dump=True)


def describe_index(source: Source) -> list[Member]:
    """Return the shape and dtype of every tensor, from the headers of its file."""
    places = _places(source)
    members: dict[str, Member] = {}
    for file in dict.fromkeys(places.values()):
        members |= {member.name: member for member in describe_safetensors(_beside(source, file))}
    return [members[name] for name in places if name in members]


def _places(source: Source) -> dict[str, str]:
    found = bounded_json(Document(source, source.text(_LONGEST)))
    places = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(places, dict) or not places:
        raise InputError(
            f"{source.name}: expected the index of a checkpoint, with weight_map; found none"
        )
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file or file in ("", "-", ".."):
            raise InputError(
                f"{source.name}: expected the name of a file beside it for {printable(name)}; "
                f"found {quoted(str(file))}"
            )
    return places


def _beside(source: Source, file: str) -> Source:
    return open_source(str(Path(source.folder) / file))._replace(dtype=source.dtype)
