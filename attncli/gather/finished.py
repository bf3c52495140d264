"""Weights or scores that were computed before, which a picture can show."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from attncli.arguments import label_list, layout_axes, names_of
from attncli.dtypes import readable
from attncli.errors import InputError, UsageError
from attncli.gather.entries import KNOWN, LABELS, RESULTS, full_name, unknown_entry
from attncli.gather.lists import check_labels
from attncli.gather.maps import Finished, Kind
from attncli.layout import LAYOUTS
from attncli.loading import kind_of
from attncli.loading.contents import LoadedArray, LoadedMapping
from attncli.names import INPUTS
from attncli.text import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from attncli.gather.reader import Reader

__all__ = [
    "finished_array",
    "finished_document",
    "holds_result",
    "is_finished",
]

_SQUARE = 2


def is_finished(document: LoadedMapping, kind: Kind) -> bool:
    """Return whether a document holds such an output, and nothing to compute it from."""
    names = {full_name(name) for name in document.entries}
    return kind in names and not ({"query", "key"} <= names or "x" in names)


def holds_result(document: LoadedMapping, kind: Kind, options: Mapping[str, object]) -> bool:
    """Return whether such an output stands beside its queries and keys, as a program saved them.

    Options that say how to compute it ask for another one.
    """
    saved = document.dump or "schema" in document.entries
    rules = [name for name, value in options.items() if value is not None]
    return saved and kind in document.entries and not set(rules) - {*LABELS, "layout"}


def finished_array(
    array: LoadedArray, kind: Kind, options: Mapping[str, object], reader: Reader
) -> Finished:
    """Return the weights or scores that one array alone is."""
    found = _with_labels(array, None, kind, options, reader)
    return found if kind == "weights" else found._replace(hidden=_hidden(array, found.values.shape))


def finished_document(
    document: LoadedMapping, kind: Kind, options: Mapping[str, object], reader: Reader
) -> Finished:
    """Return an output in a document, such as `attncli compute --format json` writes."""
    _refuse_strange(document, kind)
    output = _entry(document, kind, reader)
    if not isinstance(output, LoadedArray):
        found = "a list of words" if isinstance(output, list) else kind_of(output)
        raise InputError(
            f"{document.name}: expected {kind} to be an array of numbers; found {found}"
        )
    finished = _with_labels(output, document, kind, options, reader)
    scores = output if kind == "scores" else _entry(document, "scores", reader)
    return finished._replace(hidden=_hidden(scores, finished.values.shape))


def _entry(document: LoadedMapping, kind: Kind, reader: Reader) -> object:
    """Return an output in a document; a string in its place names a file beside it."""
    value = document.entries.get(kind)
    if isinstance(value, str) and not document.dump:  # what a program dumped names no files
        return reader.read_named(value, document.folder, f"{document.name}#{kind}")
    return value


def _refuse_strange(document: LoadedMapping, kind: Kind) -> None:
    """Refuse what a user wrote beside an output as if it were computed with it."""
    if document.dump:  # a program writes whatever it has
        return
    for name in document.entries:
        full = full_name(name)
        if full in (*RESULTS, *LABELS, *INPUTS, "layout"):
            continue
        if full not in KNOWN:
            raise unknown_entry(name, document)
        raise UsageError(
            f"{document.name} holds finished {kind}, because query or key is missing: "
            f"{printable(name)} has nothing to act on",
            hint=f"leave it out, or give query and key instead of {kind}",
        )


def _hidden(scores: object, shape: tuple[int, ...]) -> npt.NDArray[np.bool_] | None:
    """Return which scores are −inf; None where there are none of this shape."""
    if not isinstance(scores, LoadedArray) or scores.values.shape != shape:
        return None
    hidden: npt.NDArray[np.bool_] = np.equal(readable(scores.values), -np.inf)
    return hidden


def _with_labels(
    array: LoadedArray,
    document: LoadedMapping | None,
    kind: Kind,
    options: Mapping[str, object],
    reader: Reader,
) -> Finished:
    given = {name: value for name, value in options.items() if value is not None}
    said = None if document is None else document.entries.get("layout")
    batched = _is_batched(given.pop("layout", said), array)
    strange = [name for name in given if name not in LABELS]
    if strange:
        raise UsageError(
            f"{array.name} is a single array, which is taken for finished {kind}: "
            f"{strange[0]} has nothing to act on",
            hint="give the files Q K V, or a problem file; embeddings need --wq, --wk and --wv, or "
            "--checkpoint",
        )
    # Tokens that are given take the place of all labels in the file.
    if document is not None and "tokens" not in given:
        _take_labels(document, [name for name in LABELS if name not in given], reader)
    for name in LABELS:
        reader.take(name, given.get(name), ".")
    reader.name_tokens()
    return Finished(
        reader.values(array),
        array.name,
        tuple(reader.gathered.inputs),
        _labels("query_labels", array.row_labels, array, reader),
        _labels("key_labels", array.column_labels, array, reader),
        reader.gathered.bfloat16,
        batched,
    )


def _take_labels(document: LoadedMapping, names: list[str], reader: Reader) -> None:
    """Note the labels in a document; a string there names a file beside it."""
    for name in names:
        value = document.entries.get(name)
        if document.dump and isinstance(value, str):
            # What a program dumped names no files.
            raise InputError(f"{document.name}#{name}: expected a list of labels; found text")
        reader.take(name, value, document.folder)


def _labels(
    name: str, own: tuple[str, ...] | None, array: LoadedArray, reader: Reader
) -> tuple[str, ...] | None:
    """Return the labels of the queries or the keys: those given, or those of the array itself."""
    given = cast("tuple[str, ...] | None", reader.gathered.arguments.get(name, own))
    check_labels(name, given)
    if given is None or array.values.ndim < _SQUARE:
        return given
    axis, of = (-2, "query") if name == "query_labels" else (-1, "key")
    return label_list(
        names_of(reader.gathered.sources)(name), given, array.values.shape[axis], of=of
    )


def _is_batched(layout: object, array: LoadedArray) -> bool:
    """Return whether a layout says that three axes of weights begin with the batch."""
    if layout is None:
        return False
    axes = layout_axes("layout", layout)
    if LAYOUTS[axes] != array.values.ndim:
        raise UsageError(
            f"layout {axes!r} is for {LAYOUTS[axes]} axes; {array.name} has {array.values.ndim}",
            hint="for weights (B, L, S) give bsd, for (H, L, S) hsd"
            if array.values.ndim == 3
            else None,
        )
    return axes in ("bsd", "sbd")
