"""Batch entries as further heads: short ones are computed together then, as short heads are.

Head h of entry b becomes head b · H + h. It reads key head (b · H + h) // (H/G), which is
b · G + h // (H/G).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.size import work_of_entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.problem.visibility import Visibility

__all__ = ["folded"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Queries of all heads of an entry: more of them fill a block by themselves.
_MOST_ROWS = 2048
# Multiplications of an entry up to which a block of its own takes longer than hidden keys do that
# a block of several entries cannot leave out.
_SHORT_WORK = 4_000_000
# Bytes of an array that may be copied, because its axes do not lie one behind the other.
_MOST_COPIED = 2**22


def folded(problem: Problem, results: dict[str, Array]) -> tuple[Problem, dict[str, Array]]:
    """Return a problem with all heads in one batch entry, and views of its results alike.

    Both are returned as they are where folding does not pay.
    """
    batch, heads, queries, _ = problem.shape
    if batch == 1 or heads * queries >= _MOST_ROWS or len(problem.key) == 1:
        return problem, results
    visible = _with_one_entry(problem)
    if visible is None:
        return problem, results
    rules = [array for array in (visible.mask, problem.bias) if array is not None]
    inputs = [a for a in (problem.query, problem.key, problem.value) if a is not None]
    may_copy = all(_lies_folded(each) or each.nbytes <= _MOST_COPIED for each in inputs)
    if not (may_copy and all(_may_spread(rule, problem) for rule in rules)):
        return problem, results
    if not all(map(_lies_folded, results.values())):
        return problem, results
    as_one = replace(
        problem,
        query=_fold(problem.query),
        key=_fold(problem.key),
        value=None if problem.value is None else _fold(problem.value),
        visible=visible._replace(mask=_spread(visible.mask, problem)),
        bias=_spread(problem.bias, problem),
        alibi_slopes=_each(problem.alibi_slopes, batch),
        sinks=_each(problem.sinks, batch),
    )
    return as_one, {name: _fold(array) for name, array in results.items()}


def _with_one_entry(problem: Problem) -> Visibility | None:
    """Return rules that are the same for all entries, but for a mask.

    Rules that differ become masks where the entries are short; None where they are long, or the
    offsets differ.
    """
    visible = problem.visible
    given = {name: getattr(visible, name) for name in _AS_MASK}
    differing = [name for name, rule in given.items() if rule is not None and _differs(rule)]
    if len(set(visible.offsets)) > 1 or (differing and work_of_entry(problem) > _SHORT_WORK):
        return None
    alike: dict[str, Any] = {
        name: rule[:1] if isinstance(rule, tuple) else rule for name, rule in given.items()
    }
    alike |= dict.fromkeys(differing)
    one: Visibility = visible._replace(offsets=visible.offsets[:1], **alike)
    masks = [_AS_MASK[name](given[name], visible) for name in differing]
    if masks and visible.mask is not None:
        masks.append(visible.attending(visible.mask))
    if not masks:
        return one
    return one._replace(mask=reduce(np.logical_and, masks), mask_drops=False)


def _differs(rule: Any) -> bool:
    """Return whether a rule is another one for some batch entry."""
    return len(set(rule) if isinstance(rule, tuple) else rule) > 1


def _column(lengths: tuple[int, ...]) -> Array:
    return np.array(lengths)[:, None, None, None]


# What each rule that may differ by entry is as a mask (B, 1, L or 1, S or 1).
_AS_MASK: dict[str, Callable[[Any, Visibility], Bools]] = {
    "key_padding_mask": lambda mask, _: mask[:, None, None, :],
    "kv_lengths": lambda lengths, visible: np.arange(visible.keys) < _column(lengths),
    "query_lengths": lambda lengths, visible: (
        np.arange(visible.queries)[:, None] < _column(lengths)
    ),
    "segment_ids": lambda segments, _: segments.seen()[:, None],
}


def _lies_folded(array: Array) -> bool:
    """Return whether the first two axes lie one behind the other in memory."""
    first, second = array.strides[:2]
    return 1 in array.shape[:2] or first == array.shape[1] * second


def _fold(array: Array) -> Array:
    """Return an array (B, H, …) as (1, B · H, …)."""
    return array.reshape(1, -1, *array.shape[2:])


def _may_spread(rule: Array, problem: Problem) -> bool:
    """Return whether a rule may be repeated for all heads of all entries, where it has to be."""
    whole = problem.shape[:2]
    needs_no_copy = rule.shape[:2] == (1, 1) or (rule.shape[:2] == whole and _lies_folded(rule))
    size = math.prod(whole) * math.prod(rule.shape[2:]) * rule.itemsize
    short = work_of_entry(problem) <= _SHORT_WORK
    return needs_no_copy or (short and size <= _MOST_COPIED)


def _spread(rule: Array | None, problem: Problem) -> Array | None:
    if rule is None or rule.shape[:2] == (1, 1):
        return rule
    return _fold(np.broadcast_to(rule, (*problem.shape[:2], *rule.shape[2:])))


def _each(numbers: Array | None, batch: int) -> Array | None:
    """Return numbers for each head (H,) for those of all entries."""
    return None if numbers is None else np.tile(numbers, batch)
