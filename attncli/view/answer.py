"""Inputs, outputs and finished weights as the tables that ``attncli compute`` prints."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from attncli.errors.names import GRADIENTS, INPUTS, SQUARE
from attncli.errors.text import places
from attncli.numerics.indices import EVERYTHING, Picked
from attncli.problem.layout import Layout
from attncli.summaries.maps import SINK_NOTE, sinks_take
from attncli.view.sheets import Sheet, sheet_parts
from attncli.view.tables import remark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt
    from rich.text import Text

    from attncli.problem.problem import Problem
    from attncli.summaries.maps import Given
    from attncli.view.limits import Limits

_AS_INPUTS = (*INPUTS, *(name for name, of in GRADIENTS.items() if of in INPUTS))
# A batch entry and a head; None where the inputs have no such axis.
_Place = tuple[int | None, int | None]


def answer_parts(
    problem: Problem,
    arrays: Mapping[str, npt.NDArray[Any]],
    limits: Limits,
    picked: Picked = EVERYTHING,
    *,
    whole: Problem | None = None,
    mean: bool = False,
    value_columns: Sequence[str] | None = None,
) -> Iterator[Text]:
    """Yield the tables of inputs and outputs, batch entry by batch entry and head by head.

    The arrays (B, H, rows, columns) come from `by_head`, and have at least the cells that the
    limits show. `problem` may be a computed part of `whole`. `picked` gives the user's indices of
    batch entries and heads. With `mean`, the weights are the mean of the heads.
    """
    whole = whole or problem

    def axes_of(name: str) -> tuple[str, str]:
        """Return the user's axes, and the name of an array with its own number of heads."""
        if name in _AS_INPUTS or (name == "context" and problem.layout.packed):
            return whole.layout.axes, name
        if name in GRADIENTS:
            counts = zip("bh", arrays[name].shape, strict=False)
            return "".join(axis for axis, count in counts if count > 1), name
        axes = whole.layout.weight_axes
        return axes.replace("h", "") if mean and name == "weights" else axes, ""

    def sheet(name: str, place: _Place) -> Sheet:
        averaged = mean and name == "weights"
        values = arrays[name][place[0] or 0, place[1] or 0]
        title, hidden = _title(name, picked, place, averaged=averaged), None
        if name == "weights":
            hidden = _hidden(problem, place, values.shape, averaged=averaged)
            title += f" · {SINK_NOTE}" if problem.sinks is not None and sinks_take(values) else ""
        return _sheet(whole, name, values, value_columns)._replace(title=title, hidden=hidden)

    for (axes, one), group in groupby(arrays, axes_of):
        names, found = [*group], _places(axes, arrays[one].shape if one else whole.shape)
        shown = (sheet(name, place) for place in found[: limits.heads] for name in names)
        yield from sheet_parts(shown, limits)
        yield from _left_out(found, limits)


def by_head(
    problem: Problem, name: str, array: npt.NDArray[Any], *, mean: bool = False
) -> npt.NDArray[Any]:
    """Return an input or an output with all its axes, (B, H, rows, columns).

    Packed heads lie side by side in the columns, as in the user's array.
    """
    batch, heads = problem.shape[:2]
    if name == "dbias":
        return problem.layout.broadcastable(array)
    if name == "dsinks":
        return array.reshape(1, 1, 1, -1)
    if name in _AS_INPUTS or (name == "context" and problem.layout.packed):
        return Layout(problem.layout.axes).split(np.asarray(array), 1, name)
    if name == "context":
        return problem.layout.split(np.asarray(array), 1, name)
    if name == "lse":
        array = array[..., None]
    return array.reshape(batch, 1 if mean and name == "weights" else heads, *array.shape[-2:])


def finished_parts(
    weights: Given, limits: Limits, picked: Picked = EVERYTHING, *, mean: bool, remark: str = ""
) -> Iterator[Text]:
    """Yield the tables of finished weights, or of their mean; titles end with the remark."""

    def sheet(place: _Place) -> Sheet:
        at = place[0] or 0, place[1] or 0
        title = _title("weights", picked, place, averaged=mean) + (f" · {remark}" if remark else "")
        hidden = None if weights.hidden is None else weights.hidden[at]
        counts = weights.shape[2], weights.shape[3]
        return Sheet(title, weights.values[at], counts, weights.labels, shaded=True, hidden=hidden)

    found = _places(weights.axes, weights.shape)
    yield from sheet_parts(map(sheet, found[: limits.heads]), limits)
    yield from _left_out(found, limits)


def _places(axes: str, counts: Sequence[int]) -> list[_Place]:
    batches = range(counts[0]) if "b" in axes else [None]
    heads = range(counts[1]) if "h" in axes else [None]
    return [(batch, head) for batch in batches for head in heads]


def _left_out(found: list[_Place], limits: Limits) -> Iterator[Text]:
    """Yield a line that counts the batch entries and heads left out, if any."""
    left_out = len(found) - (limits.heads or len(found))
    if left_out <= 0:
        return
    batches, heads = map(set, zip(*found, strict=True))
    kinds = (heads, "heads", "--head"), (batches, "batch entries", "--batch")
    several = [kind[1:] for kind in kinds if len(kind[0]) > 1]
    named, options = (" and ".join(told) for told in zip(*several, strict=True))
    yield remark(
        f"… {left_out} more of {len(found)} {named} ({options} "
        f"{'choose' if len(several) > 1 else 'chooses'} some; --save and --format json have all)\n",
        limits,
    )


def _title(name: str, picked: Picked, place: _Place, *, averaged: bool) -> str:
    batch, head = picked.place(*place)
    where = places({"batch": batch, "head": None if averaged else head})
    return " · ".join([name, *where, *([picked.mean] if averaged else [])])


def _sheet(
    whole: Problem, name: str, values: npt.NDArray[Any], value_columns: Sequence[str] | None
) -> Sheet:
    if name in ("dbias", "dsinks"):
        return _of_rules(whole, name, values)
    name = GRADIENTS.get(name, name)
    over_keys, of_keys = name in SQUARE, name in ("key", "value")
    columns: Sequence[str] | None
    columns = whole.key_labels if over_keys else ["lse"] if name == "lse" else None
    if name in ("value", "context") and value_columns and len(value_columns) == values.shape[1]:
        columns = value_columns
    return Sheet(
        title=name,
        values=values,
        counts=(whole.shape[3 if of_keys else 2], whole.shape[3] if over_keys else values.shape[1]),
        labels=(whole.key_labels if of_keys else whole.query_labels, columns),
        are=("keys" if of_keys else "queries", "keys" if over_keys else "columns"),
        shaded=name == "weights",
    )


def _of_rules(whole: Problem, name: str, values: npt.NDArray[Any]) -> Sheet:
    """Return the sheet of the gradient of the bias or of the sinks."""
    rows, columns = values.shape
    _, _, queries, keys = whole.shape
    by_key = name == "dbias" and columns == keys
    named = whole.query_labels if name == "dbias" and rows == queries else None
    labels = named, whole.key_labels if by_key else None
    are = "queries", "keys" if by_key else "columns"
    return Sheet(title=name, values=values, counts=(rows, columns), labels=labels, are=are)


def _hidden(
    problem: Problem, place: _Place, shape: tuple[int, ...], *, averaged: bool
) -> npt.NDArray[np.bool_] | None:
    """Return which keys are hidden from one head, or from all heads."""
    heads = slice(None) if averaged else place[1] or 0
    seen = problem.visible.tile(place[0] or 0, heads, (0, shape[0]), (0, shape[1]))
    if seen is None:
        return None
    return np.broadcast_to(~seen.reshape(-1, *seen.shape[-2:]).any(axis=0), shape)
