"""Weights or scores that were computed before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError, InputError, ShapeError, UsageError, warn
from attncli.errors.names import INPUTS, LABELS
from attncli.errors.text import printable
from attncli.gather.entries import KNOWN, RESULTS, full_name, unknown_entry
from attncli.gather.lists import check_labels
from attncli.gather.sources import one_layer
from attncli.loading import kind_of
from attncli.loading.contents import LoadedArray
from attncli.numerics.dtypes import readable
from attncli.numerics.finite import least_weight
from attncli.problem.arguments import label_list, layout_axes, names_of, number_found
from attncli.problem.layout import LAYOUTS

if TYPE_CHECKING:
    from attncli.gather.reader import Reader
    from attncli.loading.contents import LoadedMapping
    from attncli.numerics.indices import Picked

Array = npt.NDArray[Any]
Kind = Literal["weights", "scores"]
# A row of weights with a larger sum gets a warning; a smaller excess over 1 may be rounding.
_MOST_OF_A_ROW = 1.05
_NO_WEIGHTS = (
    "if these are scores, give heatmap --what scores; attention needs query, key and value"
)


class Finished(NamedTuple):
    """Weights or scores (…, L, S) that were computed before.

    Three axes are (B, L, S) if ``batched``, else (H, L, S). ``hidden`` is true where a query does
    not see a key, and None if the file has no scores that show it. Titles show the ``remark``.
    """

    values: npt.NDArray[Any]
    name: str
    inputs: tuple[str, ...] = ()
    query_labels: tuple[str, ...] | None = None
    key_labels: tuple[str, ...] | None = None
    bfloat16: bool = False
    batched: bool = False
    hidden: npt.NDArray[np.bool_] | None = None
    remark: str = ""

    @property
    def axes(self) -> str:
        """The axes before (L, S): ``""``, ``"b"``, ``"h"`` or ``"bh"``."""
        return {2: "", 3: "b" if self.batched else "h"}.get(self.values.ndim, "bh")

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of batch entries and of heads."""
        sizes = dict(zip(self.axes, self.values.shape, strict=False))
        return sizes.get("b", 1), sizes.get("h", 1)

    def checked(self, kind: Kind, picked: Picked) -> Array:
        """Return weights or scores as (B, H, L, S); warn if a row of weights exceeds 1."""
        values = readable(self.values)
        if values.dtype.kind not in "fiu":
            raise DataError(f"{self.name}: expected {kind}; found {values.dtype.name}")
        if not 2 <= values.ndim <= 4:
            raise ShapeError(f"{self.name}: expected {kind} (…, queries, keys) of 2 to 4 axes")
        if values.dtype.kind != "f":  # differences of unsigned numbers would be wrong
            values = values.astype(np.float64)
        values = self._of_those(values, picked)
        if kind == "scores":
            wrong, expected, hint = ~(values < np.inf), "finite numbers or −inf", None
        else:
            most = float(np.max(values, where=np.isfinite(values), initial=0.0))
            wrong = ~(np.isfinite(values) & (values >= least_weight(most)))
            expected, hint = "finite and not negative", _NO_WEIGHTS
        if wrong.any():
            first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
            found = f"{number_found(float(values[first]))} at query {first[-2]}, key {first[-1]}"
            what = f"expected finished {kind}, {expected}; found {found}"
            raise DataError(f"{self.name}: {what}", hint=hint)
        if kind == "weights":
            most = float(np.max(values.sum(axis=-1, dtype=np.float64)))
            if most > _MOST_OF_A_ROW:
                warn(f"{self.name}: a row adds up to {most:.4g}, not to 1")
        return values

    def hidden_cells(self, picked: Picked) -> npt.NDArray[np.bool_] | None:
        """Return the hidden cells as (B, H, L, S), or None if they are unknown."""
        return None if self.hidden is None else self._of_those(self.hidden, picked)

    def refusal(self, hint: str) -> UsageError:
        """Return the error for finished weights instead of a problem."""
        what = "expected query, key and value; found a single array (finished weights?)"
        return UsageError(f"{self.name}: {what}", hint=hint)

    def _of_those(self, array: Array, picked: Picked) -> Array:
        """Return the picked batch entries and heads of an array as (B, H, L, S)."""
        array = array.reshape(*self.counts, *array.shape[-2:])
        for axis, indices in enumerate(picked):
            if indices is not None:
                array = array.take([indices] if isinstance(indices, int) else indices, axis)
        return array


def is_finished(document: LoadedMapping, kind: Kind, reader: Reader, *, saved: bool) -> bool:
    """Return whether to use the output in a document instead of its query and key."""
    if kind not in document.entries or reader.left.takes(kind):
        return False
    given = {*reader.given}
    names = {full_name(name) for name in document.entries} | given
    if not ({"query", "key"} <= names or "x" in names):
        return True
    if not saved or given - {*LABELS, "layout"}:
        return False
    by_program = document.dump or "schema" in document.entries
    if by_program:
        warn(
            f"{document.name}: its {kind} are drawn as they were saved; --without {kind} computes "
            "them from its query and key"
        )
    return by_program


def take_finished(document: LoadedMapping, kind: Kind, reader: Reader) -> Finished:
    """Return the weights or scores in a document, with their labels."""
    array = _output(document, kind, reader)
    if not isinstance(array, LoadedArray):
        what = f"expected {kind} to be an array of numbers; found {kind_of(array)}"
        raise InputError(f"{document.name}: {what}")
    _refuse_idle(document, kind, array, reader)
    scores = array if kind == "scores" else _output(document, "scores", reader)
    values, hidden = reader.values(array), None
    if isinstance(scores, LoadedArray) and scores.values.shape == values.shape:
        hidden = np.equal(readable(scores.values), -np.inf)
    _take_labels(document, reader)
    return Finished(
        values,
        array.name,
        tuple(reader.gathered.inputs),
        _labels("query_labels", array.row_labels, array, reader),
        _labels("key_labels", array.column_labels, array, reader),
        reader.gathered.bfloat16,
        _is_batched(reader.given.get("layout", document.entries.get("layout")), array),
        hidden,
    )


def _output(document: LoadedMapping, kind: Kind, reader: Reader) -> object:
    """Return an output in a document; a text in its place is the name of a file."""
    value = document.entries.get(kind)
    if isinstance(value, str) and not document.dump:  # in a dump, no text names a file
        value = reader.read_named(value, document.folder, f"{document.name}#{kind}")
    return one_layer(value, reader.layer) if isinstance(value, LoadedArray) else value


def _refuse_idle(document: LoadedMapping, kind: Kind, array: LoadedArray, reader: Reader) -> None:
    """Refuse entries and options that finished weights or scores do not use."""
    idle = {*RESULTS, *LABELS, *INPUTS, "layout"}
    beside = [name for name in document.entries if not reader.left.takes(name)]
    # A dump may hold any other entries beside an output.
    beside = [] if document.dump else [name for name in beside if full_name(name) not in idle]
    if strange := [name for name in beside if full_name(name) not in KNOWN]:
        raise unknown_entry(strange[0], document)
    for name in (*beside, *({*reader.given} - {*LABELS, "layout"})):
        raise UsageError(
            f"{array.name} is read as finished {kind}, without query and key: "
            f"{printable(name)} has no effect on these",
            hint=f"leave {printable(name)} out, or give query, key and value; embeddings need "
            "--wq, --wk and --wv, or --checkpoint",
        )
    reader.left.refuse_unmet(reader.given)


def _take_labels(document: LoadedMapping, reader: Reader) -> None:
    """Take the labels of the options, or those of the document."""
    given = reader.given
    for name in LABELS:
        if name in given:
            reader.take(name, given[name], ".")
        # Given tokens replace all labels in the file.
        elif name in document.entries and "tokens" not in given and not reader.left.takes(name):
            reader.take_entry(document, name, name, document.entries[name])
    reader.name_tokens()


def _labels(
    name: str, own: tuple[str, ...] | None, array: LoadedArray, reader: Reader
) -> tuple[str, ...] | None:
    """Return the given labels of queries or keys, or else those of the array."""
    given = cast("tuple[str, ...] | None", reader.gathered.arguments.get(name, own))
    check_labels(name, given)
    if given is None or array.values.ndim < 2:
        return given
    axis, of = (-2, "query") if name == "query_labels" else (-1, "key")
    return label_list(
        names_of(reader.gathered.sources)(name), given, array.values.shape[axis], of=of
    )


def _is_batched(layout: object, array: LoadedArray) -> bool:
    """Return whether the layout says that three axes begin with the batch."""
    if layout is None:
        return False
    axes = layout_axes("layout", layout)
    if LAYOUTS[axes] != array.values.ndim:
        raise UsageError(
            f"layout {axes!r} is for {LAYOUTS[axes]} axes; {array.name} has {array.values.ndim}",
            hint="for weights (B, L, S) give bsd, for (H, L, S) hsd",
        )
    return axes in ("bsd", "sbd")
