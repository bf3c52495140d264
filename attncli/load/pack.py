"""Nested lists to arrays: regular ones packed, irregular ones named with their place."""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.errors import InputError
from attncli.load.contents import Contents, LoadedArray, LoadedMapping
from attncli.load.shapes import check_shape
from attncli.load.tree import LABEL_NAMES, Branch, Document
from attncli.text import counted, printable, quoted

__all__ = ["Unpackable", "contents", "pack"]


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
        if not set(map(type, flat)) <= {list, Branch} or len(lengths := set(map(len, flat))) > 1:
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
        If the tree has no offsets and a list in it is not an array; a second
        tree, made by `build`, will say where.
    InputError
        The same, with the place.
    """
    source = document.source
    if isinstance(root, dict):
        entries = {name: _entry(document, name, value) for name, value in root.items()}
        return LoadedMapping(entries, source.name, source.folder)
    packed = _packed(document, root, source.name)
    if isinstance(packed, list):
        raise InputError(f"{source.name} is a list of words, expected numbers")
    return LoadedArray(packed, source.name)


def _entry(document: Document, name: str, value: object) -> object:
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise Unpackable
        return value
    full = f"{document.source.name}#{printable(name)}"
    packed = _packed(document, value, full)
    if isinstance(packed, list):
        return packed
    if name in LABEL_NAMES:  # only a tree of `build` keeps the words as they were written
        raise Unpackable
    return LoadedArray(packed, full)


def _packed(document: Document, nested: list[Any], name: str) -> npt.NDArray[Any] | list[str]:
    try:
        packed = pack(nested)
    except Unpackable:
        if isinstance(nested, Branch):
            raise _fault(document, nested) from None
        raise
    if not isinstance(packed, list):
        check_shape(packed.shape, name)
    return packed


def _fault(document: Document, branch: Branch) -> InputError:
    lengths: list[int] = []
    leaf: object = branch
    while isinstance(leaf, Branch):
        lengths.append(len(leaf))
        leaf = leaf[0] if leaf else None
    expected = bool if isinstance(leaf, bool) else float
    _refuse_first(document, branch, lengths, expected)
    return document.refusal("the lists here are not one array of numbers", branch.offset)


def _refuse_first(document: Document, branch: Branch, lengths: list[int], leaf: type) -> None:
    if not branch:
        raise document.refusal("found an empty list, expected numbers", branch.offset)
    if len(branch) != lengths[0]:
        what = f"found {counted(len(branch), 'item')}, expected {lengths[0]} as in the first list"
        raise document.refusal(what, branch.offset)
    for item, offset in zip(branch, branch.offsets, strict=True):
        _refuse_item(document, item, offset, lengths[1:], leaf)


def _refuse_item(
    document: Document, item: object, offset: int, lengths: list[int], leaf: type
) -> None:
    expected = "true or false" if leaf is bool else "a number"
    if isinstance(item, Branch) and lengths:
        _refuse_first(document, item, lengths, leaf)
    elif isinstance(item, Branch):
        raise document.refusal(f"found a list, expected {expected}", offset)
    elif lengths:
        what = f"found {_shown(item)}, expected a list of {counted(lengths[0], 'item')}"
        raise document.refusal(what, offset)
    elif isinstance(item, str) or isinstance(item, bool) != (leaf is bool):
        raise document.refusal(f"found {_shown(item)}, expected {expected}", offset)


def _shown(item: object) -> str:
    return quoted(item) if isinstance(item, str) else json.dumps(item)
