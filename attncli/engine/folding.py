"""Batch entries as further heads: short ones are computed together then, as short heads are.

Head h of entry b becomes head b · H + h. It reads key head (b · H + h) // (H/G), which is
b · G + h // (H/G).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from attncli.problem import Problem

__all__ = ["folded"]

Array = npt.NDArray[Any]
# Queries of all heads of an entry: more of them fill a block by themselves.
_MOST_ROWS = 2048
# Bytes of an input that may be copied, because its axes do not lie one behind the other.
_MOST_COPIED = 2**22


def folded(problem: Problem, results: dict[str, Array]) -> tuple[Problem, dict[str, Array]]:
    """Return a problem with all heads in one batch entry, and views of its results alike.

    Both are returned as they are where entries differ in more than query, key and value, or where
    folding does not pay.
    """
    batch, heads, queries, _ = problem.shape
    if batch == 1 or heads * queries >= _MOST_ROWS or not _are_alike(problem):
        return problem, results
    inputs = [problem.query, problem.key]
    if problem.value is not None:
        inputs.append(problem.value)
    cheap = all(_lies_folded(each) or each.nbytes <= _MOST_COPIED for each in inputs)
    if not cheap or not all(map(_lies_folded, results.values())):
        return problem, results
    visible = problem.visible
    as_one = replace(
        problem,
        query=_fold(problem.query),
        key=_fold(problem.key),
        value=None if problem.value is None else _fold(problem.value),
        visible=visible._replace(
            offsets=visible.offsets[:1],
            kv_lengths=visible.kv_lengths and visible.kv_lengths[:1],
            query_lengths=visible.query_lengths and visible.query_lengths[:1],
            mask=_rule(visible.mask),
        ),
        bias=_rule(problem.bias),
        slopes=_each(problem.slopes, batch),
        sinks=_each(problem.sinks, batch),
    )
    return as_one, {name: _fold(array) for name, array in results.items()}


def _are_alike(problem: Problem) -> bool:
    """Return whether the same rules apply to every batch entry, or each head has its own."""
    visible, whole = problem.visible, problem.shape[:2]
    numbers = visible.offsets, visible.kv_lengths or (), visible.query_lengths or ()
    masks = [rule for rule in (visible.mask, problem.bias) if rule is not None]
    return (
        visible.key_padding is None
        and all(len(set(each)) < 2 for each in numbers)
        and len(problem.key) == len(problem.query)
        and all(mask.shape[:2] in ((1, 1), whole) for mask in masks)
        and all(_lies_folded(mask) for mask in masks)
    )


def _lies_folded(array: Array) -> bool:
    """Return whether the first two axes lie one behind the other in memory."""
    first, second = array.strides[:2]
    return 1 in array.shape[:2] or first == array.shape[1] * second


def _fold(array: Array) -> Array:
    """Return an array (B, H, …) as (1, B · H, …)."""
    return array.reshape(1, -1, *array.shape[2:])


def _rule(rule: Array | None) -> Array | None:
    return rule if rule is None or rule.shape[:2] == (1, 1) else _fold(rule)


def _each(numbers: Array | None, batch: int) -> Array | None:
    """Return numbers for each head (H,) for those of all entries."""
    return None if numbers is None else np.tile(numbers, batch)
