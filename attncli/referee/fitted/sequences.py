"""Where packed sequences begin, read off weights or a context.

The last query of a row sees the keys of the last sequence, from its first one on; the query before
that key sees those of the sequence before; and so on, back to the first.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee.fitted.cut_keys import Look, as_good

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.referee.case import Case

__all__ = ["begins_of", "found_ids", "listed"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
# Tokens up to which their sequences are listed as an option.
_LISTED = 64
# Of a sequence, that are looked at.
_ROWS = 8


def found_ids(case: Case) -> Ints | None:
    """Return the numbers (B, L) of the sequences that the files of a case show.

    Parameters
    ----------
    case : Case
        With all batch entries and rows.

    Returns
    -------
    ndarray of int (B, L), or None
        None where a row is of no sequence, or rules end rows where a sequence might.
    """
    problem, visible = case.recipe.problem, case.recipe.problem.visible
    batches, _, queries, keys = problem.shape
    if visible.window is not None or queries != keys or any(map(visible.offset, range(batches))):
        return None
    first_key = _reader(case)
    if first_key is None:
        return None
    found = [_walk(partial(first_key, b), queries, case.deadline) for b in range(batches)]
    rows = [row for row in found if row is not None]
    return np.array(rows) if len(rows) == batches else None


def begins_of(ids: Ints) -> list[int]:
    """Return the tokens at which a sequence begins, after the first one."""
    return [int(token) for token in np.flatnonzero(np.diff(ids)) + 1]


def listed(ids: Ints, option: str = "--segment-ids") -> str:
    """Return the option that states the sequences, if they fit there."""
    if (ids != ids[0]).any() or ids.shape[1] > _LISTED:
        return ""
    return f"{option} {','.join(map(str, ids[0].tolist()))}"


def _reader(case: Case) -> Callable[[int, int], int | None] | None:
    """Return what reads off the files of a case with which key a sequence begins."""
    if case.whole and not case.comparable:
        return None
    if "weights" in case.files:
        return partial(_first_of_weights, case.canonical("weights"))
    if "context" in case.files and case.recipe.problem.value is not None:
        return partial(_first_of_context, case)
    return None


def _walk(first_key: Callable[[int], int | None], count: int, deadline: float) -> Ints | None:
    """Return the numbers (L,) of the sequences of a batch entry; None if a row is of none."""
    begins = np.zeros(count, np.int64)
    end = count
    while end:
        first = first_key(end)
        if first is None or time.monotonic() > deadline:
            return None
        begins[first] = 1
        end = first
    return np.cumsum(begins) - 1


def _first_of_weights(weights: Array, b: int, end: int) -> int | None:
    """Return the first key of the sequence that ends before one, if there is any."""
    seen = np.flatnonzero(weights[b, :, end - 1, :end].any(axis=0))
    if not seen.size:
        return None
    # What one query gives too little to be written, others do not.
    others = weights[b][:, _some_rows(int(seen[0]), end), :end]
    return int(np.flatnonzero(others.any(axis=(0, 1)))[0])


def _first_of_context(case: Case, b: int, end: int) -> int | None:
    """Return the first key of the sequence that ends before one, if it is seen in some rows."""

    def errors(i: int, first: Ints) -> Array:
        # A row at a time, as all rows of a large problem are too many.
        look = Look(case.row(b, i), frozenset({"segment_ids"}))
        return look.errors_of(0, 0, first, np.full(first.size, end))

    good = as_good(errors(end - 1, np.arange(end)))
    if not good.size:
        return None
    # Keys to which one query gives next to no weight have more of another.
    rows = _some_rows(int(good[-1]), end).tolist()
    best = good[as_good(np.mean([errors(i, good) for i in rows], axis=0))]
    # What hidden keys leave open is as it is stated.
    likely = best[np.isin(best, _stated_begins(case, b))]
    return next(map(int, (*likely, *best)), None)


def _stated_begins(case: Case, b: int) -> list[int]:
    segments = case.recipe.problem.visible.segment_ids
    return [] if segments is None else [0, *begins_of(segments.queries[b % len(segments.queries)])]


def _some_rows(first: int, end: int) -> Ints:
    return np.unique(np.linspace(first, end - 1, _ROWS).astype(int))
