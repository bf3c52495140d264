"""A part of the queries or keys, with the rules and positions of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors import ShapeError, UsageError, warn
from attncli.errors.text import counted
from attncli.problem import arguments
from attncli.problem.layout import LAYOUTS, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]
Span = tuple[int, int | None]
# The last axes of rules that are arrays: batch, heads, queries (l), keys (s). Each of them may
# have length 1, and the first ones may be missing.
ARRAY_AXES = {
    "mask": "bhls",
    "bias": "bhls",
    "key_padding_mask": "bs",
    "kv_lengths": "b",
    "query_lengths": "b",
    "query_offset": "b",
    "segment_ids": "bl",
    "kv_segment_ids": "bs",
    "sinks": "h",
    "alibi_slopes": "h",
    "score_weight": "",
    "score_vector": "",
    "rope_frequencies": "",
}
_POSITIONAL = ("causal", "window", "alibi_slopes", "rope")


class Shard(NamedTuple):
    """Where a part begins in the whole.

    Attributes
    ----------
    query, key : int
        The indices of its first query and its first key.
    queries : int or None
        All queries of the whole, where they are known.
    sinks : ndarray (H,) or None
        Sinks of the whole that this part does not count, as it does not begin with key 0.
    """

    query: int
    key: int
    sinks: Array | None = None
    queries: int | None = None


def shard_of(
    inputs: Mapping[str, object], given: Mapping[str, Any], queries: object, keys: object
) -> tuple[dict[str, Any], dict[str, Any], Shard]:
    """Return the inputs and the rules of a part, as arguments of `pose`, and where it begins.

    Parameters
    ----------
    inputs : mapping of str to array_like
        query, key, value, query_labels and key_labels.
    given : mapping of str to object
        The rules of the whole.
    queries, keys : (start, stop) or None
        The range of the part; None for all. Arrays with fewer than ``stop`` rows hold only the
        part.
    """
    spans = {"l": _span("queries", queries), "s": _span("keys", keys)}
    start = tuple(0 if span is None else span[0] for span in spans.values())
    cut: dict[str, Any] = dict(inputs)
    whole: dict[str, int | None] = {}
    for name, axis in (("query", "l"), ("key", "s"), ("value", "s")):
        if inputs[name] is not None:
            cut[name], whole[name] = _cut_input(name, inputs[name], given["layout"], spans[axis])
    counts = tuple(_rows(cut[name], given["layout"]) for name in ("query", "key"))
    rules = dict(given)
    if rules["segment_ids"] is not None and rules["kv_segment_ids"] is None:
        rules["kv_segment_ids"] = rules["segment_ids"]
    for name, axes in ARRAY_AXES.items():
        if set(axes) & {*"ls"} and rules[name] is not None:
            rules[name] = _cut_rule(name, np.asarray(rules[name]), axes, spans)
    for name, axis in (("query_labels", "l"), ("key_labels", "s")):
        if cut[name] is not None:
            cut[name] = rows_of(name, np.asarray(cut[name], object), 0, spans[axis]).tolist()
    sizes = whole["query"], whole["key"]
    _advise_on_alignment(rules, sizes)
    rules = placed(rules, (start[0], start[1]), sizes, (counts[0], counts[1]))
    sinks = rules["sinks"]
    if sinks is not None and start[1]:
        rules["sinks"] = None
    left = None if sinks is None or not start[1] else np.asarray(sinks, np.float64).reshape(-1)
    return cut, rules, Shard(start[0], start[1], left, whole["query"])


def placed(
    rules: Mapping[str, Any],
    start: tuple[int, int],
    whole: tuple[int | None, int | None],
    counts: tuple[int, int],
) -> dict[str, Any]:
    """Return rules of the whole, changed for a part: offset and lengths count from its beginning.

    Parameters
    ----------
    rules : mapping of str to object
        Arrays are cut to the part already.
    start : (int, int)
        The first query and the first key of the part.
    whole : (int or None, int or None)
        All queries and all keys, where they are known.
    counts : (int, int)
        The queries and the keys of the part.
    """
    made = dict(rules)
    if any(_is_given(made.get(name)) for name in _POSITIONAL):
        if _is_given(made.get("rope")) and made.get("score", "dot") in ("general", "additive"):
            raise UsageError(
                f"rope and score {made['score']}: a part cannot be computed in its place, because "
                "these scores depend on more than the distance of query and key"
            )
        made["query_offset"] = _offset(made, whole) + start[0] - start[1]
        made["causal_align"] = None
    for name, first, count in zip(("query_lengths", "kv_lengths"), start, counts, strict=True):
        if made.get(name) is not None:
            made[name] = np.clip(np.asarray(made[name]) - first, 0, count)
    return made


def part_of_output(problem: Problem, name: str, array: Array) -> Array:
    """Return the rows of a part from an output of the part or of the whole."""
    shard = problem.shard or Shard(0, 0)
    axes = problem.layout.axes.replace("h", "") if problem.layout.packed else problem.layout.axes
    at = {"context": axes.index("s") - len(axes), "lse": -1}.get(name, -2)
    ends = [(at, shard.query, problem.shape[2])]
    if name not in ("context", "lse"):
        ends.append((-1, shard.key, problem.shape[3]))
    for axis, start, count in ends:
        if array.ndim >= -axis and array.shape[axis] >= start + count:
            array = rows_of(name, array, array.ndim + axis, (start, start + count))
    return array


def rows_of(name: str, array: Array, axis: int, span: Span | None) -> Array:
    """Return the rows of a part; an array with fewer rows than its stop holds only the part.

    Raises
    ------
    ShapeError
        The array has the rows neither of the whole nor of the part.
    """
    if span is None:
        return array
    rows, (start, stop) = array.shape[axis], span
    if stop is None:
        stop = rows
    if stop <= rows and start < stop:
        index = (slice(None),) * (axis % array.ndim)
        return array[(*index, slice(start, stop))]
    if rows != stop - start:
        raise ShapeError(
            f"{name}: expected {stop} rows or more, those of the whole, or {stop - start}, those "
            f"of the part {start}:{stop} alone; found {rows}"
            if start < stop
            else f"{name}: the part begins at {start}, and there are {rows} rows",
            hint=None if start < stop else "rows of a part alone need both ends, as in 8192:16384",
        )
    return array


def _span(name: str, value: object) -> Span | None:
    """Return (start, stop) of a slice or a pair; stop may be None."""
    if value is None:
        return None
    pair: Any = (value.start, value.stop) if isinstance(value, slice) else value
    start: Any
    stop: Any
    try:
        start, stop = pair
        start = 0 if start is None else start
        right = 0 <= int(start) == start and (stop is None or start < int(stop) == stop)
    except (TypeError, ValueError):
        right = False
    if not right:
        raise UsageError(
            f"{name}: expected a range (start, stop) of whole numbers; found "
            f"{arguments.shown(value)}"
        )
    return int(start), None if stop is None else int(stop)


def _axis(array: Array, layout: object) -> int:
    """Return which axis of query, key or value counts the rows."""
    if layout is not None:
        arguments.layout_axes("layout", layout)
    axes = str(layout) if layout in LAYOUTS else ""
    if not axes and 2 <= array.ndim <= 4:
        axes = Layout.of(array.ndim, None, packed=False).axes
    return axes.index("s") if len(axes) == array.ndim else max(0, array.ndim - 2)


def _rows(array: object, layout: object) -> int:
    made = arguments.stored_numbers("query", array)
    return int(made.shape[_axis(made, layout)])


def _cut_input(name: str, given: object, layout: object, span: Span | None) -> tuple[Array, Any]:
    """Return the rows of the part, and the number of rows of the whole, or None if unknown."""
    array = arguments.stored_numbers(name, given)
    if not 2 <= array.ndim <= 4:  # `pose` says what is wrong
        return array, None
    axis = _axis(array, layout)
    part = rows_of(name, array, axis, span)
    # An array with as many rows as the part may be the part or the whole.
    alone = span is not None and span[1] is not None and part.shape == array.shape
    return part, None if alone else array.shape[axis]


def _cut_rule(name: str, array: Array, axes: str, spans: Mapping[str, Span | None]) -> Array:
    for axis in range(1, min(array.ndim, len(axes)) + 1):
        letter = axes[-axis]
        if letter in spans and array.shape[-axis] > 1:
            array = rows_of(name, array, array.ndim - axis, spans[letter])
    return array


def _is_given(rule: object) -> bool:
    return rule is not None and rule is not False


def _offset(rules: Mapping[str, Any], whole: tuple[int | None, int | None]) -> Array:
    """Return the position of the whole's first query among the whole's keys."""
    given, align = rules.get("query_offset"), rules.get("causal_align")
    if given is not None:
        if align is not None:
            raise UsageError(
                "causal_align and query_offset both say where the queries stand",
                hint="give one of the two",
            )
        return np.asarray(given)
    if align != "bottom-right":
        return np.zeros((), int)
    queries, keys = whole
    lengths = keys if rules.get("kv_lengths") is None else rules["kv_lengths"]
    if queries is None or lengths is None:
        raise UsageError(
            "causal_align bottom-right needs the numbers of all queries and keys, but a file holds "
            "those of one part",
            hint="give query_offset (--query-offset): all keys minus all queries",
        )
    return np.asarray(lengths) - queries


def _advise_on_alignment(rules: Mapping[str, Any], whole: tuple[Any, Any]) -> None:
    said = rules["causal_align"] is not None or rules["query_offset"] is not None
    moves = any(_is_given(rules[name]) for name in _POSITIONAL)
    if said or not moves or None in whole or whole[0] == whole[1]:
        return
    warn(
        f"{counted(whole[0], 'query', 'queries')} and {counted(whole[1], 'key')}, and no alignment "
        "given: query i is aligned with key i (top-left). Choose with causal_align "
        "(--causal-align)"
    )
