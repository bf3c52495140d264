"""Nested lists to arrays, and a tree of them to what its file holds."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors import InputError
from attncli.loading.contents import Contents, LoadedArray, LoadedMapping, Unread
from attncli.loading.printed import printed_alike
from attncli.names import LABELS, SUMMARIES
from attncli.text import printable

if TYPE_CHECKING:
    from attncli.loading.tree import Document

__all__ = ["Unpackable", "contents", "pack"]

_FLOAT_MAX = int(np.finfo(np.float64).max)


class Unpackable(Exception):  # noqa: N818 - a question answered with no, not yet an error
    """Nested lists that are not one array: irregular, or not of one kind."""


def pack(nested: list[Any]) -> npt.NDArray[Any] | list[str]:
    """Turn nested lists into one array, or a flat list of words into labels.

    Parameters
    ----------
    nested : list
        Of numbers (None is −inf, as attncli writes it in JSON), of booleans, or
        of str, in lists of equal lengths.

    Returns
    -------
    ndarray of float64 or bool, or list of str

    Raises
    ------
    Unpackable
        If it is ragged, empty, or mixes kinds.
    """
    shape, flat = [len(nested)], nested
    while flat and isinstance(flat[0], list):
        if set(map(type, flat)) != {list} or len(lengths := set(map(len, flat))) > 1:
            raise Unpackable
        shape += lengths
        flat = list(chain.from_iterable(flat))
    kinds = set(map(type, flat))
    if kinds == {str} and len(shape) == 1:
        return list(flat)
    if kinds != {bool} and not (kinds and kinds <= {int, float, type(None)}):
        raise Unpackable
    return _array(flat, kinds).reshape(shape)


def _array(flat: list[Any], kinds: set[type]) -> npt.NDArray[Any]:
    if kinds == {bool}:
        return np.array(flat, dtype=np.bool_)
    if type(None) in kinds:
        flat = [-np.inf if item is None else item for item in flat]
    try:
        return np.array(flat, dtype=np.float64)
    except OverflowError as error:  # an integer of more than 308 digits
        raise Unpackable from error


def contents(document: Document, root: list[Any] | dict[str, Any]) -> Contents:
    """Turn the tree of a document into what its file holds.

    Raises
    ------
    Unpackable
        If a list in it is not an array, which the trees of `build` never have.
    InputError
        If there are words alone.
    """
    source = document.source
    if isinstance(root, dict):
        entries = {name: _entry(document, name, value) for name, value in root.items()}
        return LoadedMapping(entries, source.name, source.folder)
    packed = pack(root)
    if isinstance(packed, list):
        raise InputError(f"{source.name}: expected numbers; found a list of words")
    return LoadedArray(packed, source.name, printed=printed_alike(document.text))


def _entry(document: Document, name: str, value: object) -> object:
    if name in SUMMARIES and _is_summary(value):
        return Unread()
    if not isinstance(value, list):
        if isinstance(value, dict) or (isinstance(value, int) and abs(value) > _FLOAT_MAX):
            raise Unpackable
        return value
    packed = pack(value)
    if isinstance(packed, list):
        return packed
    if name in LABELS:  # numbers here are words, and `build` keeps them as written
        raise Unpackable
    return LoadedArray(packed, f"{document.source.name}#{printable(name)}")


def _is_summary(value: object) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, dict | Unread)
