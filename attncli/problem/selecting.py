"""A part of a problem: some batch entries, heads or queries."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from attncli.errors import UsageError
from attncli.numerics.indices import index_of, indices_of
from attncli.problem.arguments import shown

if TYPE_CHECKING:
    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]
A = TypeVar("A", Array, Array | None)
N = TypeVar("N", tuple[int, ...], tuple[int, ...] | None)


def select(
    problem: Problem,
    *,
    batch: int | Sequence[int] | None,
    head: int | Sequence[int] | None,
    rows: tuple[int, int] | None,
) -> Problem:
    """Return the part of a problem, as `Problem.select` says."""
    batches, heads, queries, _ = problem.shape
    if batch is not None:
        problem = _some_batches(problem, *_indices("batch", batch, batches))
    if head is not None:
        problem = _some_heads(problem, *_indices("head", head, heads))
    return problem if rows is None else _some_rows(problem, *_range_of(rows, queries))


def _indices(name: str, chosen: int | Sequence[int], count: int) -> tuple[tuple[int, ...], str]:
    """Return the chosen indices of an axis, and the letter of the axis if it is dropped."""
    if isinstance(chosen, np.ndarray):
        chosen = chosen.tolist()
    if isinstance(chosen, Sequence) and not isinstance(chosen, str):
        return indices_of(name, chosen, count), ""
    return (index_of(name, chosen, count),), name[0]


def _range_of(rows: tuple[int, int], queries: int) -> tuple[int, int]:
    try:
        start, stop = map(operator.index, rows)
    except (TypeError, ValueError):
        start, stop = 0, 0
    if not 0 <= start < stop <= queries:
        expected = f"(start, stop) between 0 and {queries}, start first"
        raise UsageError(f"rows: expected {expected}; found {shown(rows)}")
    return start, stop


def _some_batches(problem: Problem, batches: tuple[int, ...], gone: str) -> Problem:
    visible = problem.visible
    return replace(
        problem,
        layout=problem.layout.without(gone),
        made_from=None,
        query=_pick(problem.query, 0, batches),
        key=_pick(problem.key, 0, batches),
        value=_pick(problem.value, 0, batches),
        bias=_pick(problem.bias, 0, batches),
        visible=visible._replace(
            offsets=_pick_some(visible.offsets, batches),
            mask=_pick(visible.mask, 0, batches),
            key_padding_mask=_pick(visible.key_padding_mask, 0, batches),
            kv_lengths=_pick_some(visible.kv_lengths, batches),
            query_lengths=_pick_some(visible.query_lengths, batches),
            segment_ids=visible.segment_ids and visible.segment_ids.entries(batches),
        ),
    )


def _some_heads(problem: Problem, heads: tuple[int, ...], gone: str) -> Problem:
    groups = _shared_alike(tuple(map(problem.key_head, heads)))
    return replace(
        problem,
        layout=problem.layout.without(gone),
        made_from=None,
        output=None,
        query=_pick(problem.query, 1, heads),
        key=_pick(problem.key, 1, groups),
        value=_pick(problem.value, 1, groups),
        bias=_pick(problem.bias, 1, heads),
        alibi_slopes=_pick(problem.alibi_slopes, 0, heads),
        sinks=_pick(problem.sinks, 0, heads),
        shard=problem.shard and problem.shard._replace(sinks=_pick(problem.shard.sinks, 0, heads)),
        visible=problem.visible._replace(mask=_pick(problem.visible.mask, 1, heads)),
    )


def _shared_alike(groups: tuple[int, ...]) -> tuple[int, ...]:
    """Return the key heads that query heads read; each only once if all are shared equally."""
    own = tuple(dict.fromkeys(groups))
    shared = tuple(np.repeat(own, len(groups) // len(own)).tolist())
    return own if groups == shared else groups


def _some_rows(problem: Problem, start: int, stop: int) -> Problem:
    visible = problem.visible
    lengths = visible.query_lengths
    labels = problem.query_labels
    return replace(
        problem,
        query=problem.query[:, :, start:stop],
        made_from=None,
        shard=problem.shard and problem.shard._replace(queries=None),
        bias=_slice_rows(problem.bias, start, stop),
        query_labels=labels and labels[start:stop],
        visible=visible._replace(
            queries=stop - start,
            # The first query kept had index start, and keeps its position.
            offsets=tuple(offset + start for offset in visible.offsets),
            mask=_slice_rows(visible.mask, start, stop),
            query_lengths=lengths and tuple(min(max(0, n - start), stop - start) for n in lengths),
            segment_ids=visible.segment_ids and visible.segment_ids.rows(start, stop),
        ),
    )


def _pick(array: A, axis: int, indices: tuple[int, ...]) -> A:
    """Keep some indices of an axis; an axis of length 1 stands for every index."""
    if array is None or array.shape[axis] == 1:
        return array
    first, stop = indices[0], indices[0] + len(indices)
    # Consecutive indices make a view.
    some = slice(first, stop) if indices == tuple(range(first, stop)) else [*indices]
    return array[(slice(None),) * axis + (some,)]


def _pick_some(values: N, indices: tuple[int, ...]) -> N:
    return values if values is None or len(values) == 1 else tuple(values[i] for i in indices)


def _slice_rows(array: Array | None, start: int, stop: int) -> Array | None:
    """Keep some rows of an array that broadcasts to (B, H, L, S)."""
    return array if array is None or array.shape[2] == 1 else array[:, :, start:stop]
