"""Read a mapping of JSON that is no problem: the settings of another program."""

from __future__ import annotations

from typing import Any

from attncli.errors import InputError
from attncli.loading.json_text import bounded_json
from attncli.loading.source import open_source
from attncli.loading.tree import Document

__all__ = ["read_settings"]

_LONGEST = 2**20


def read_settings(file: str, what: str) -> dict[str, Any]:
    """Return the entries of a file, of any depth, as they are.

    Parameters
    ----------
    file : str
    what : str
        What it should be, for errors.

    Raises
    ------
    InputError
        There is no such file, or it is not JSON of a mapping.
    """
    source = open_source(file)
    found = bounded_json(Document(source, source.text(_LONGEST)))
    if not isinstance(found, dict):
        raise InputError(f"{source.name}: expected {what}, a mapping in which each key stands once")
    return found
