"""Packed sequences that the problem does not state: in a mask, in weights or in a context.

The last query of a row sees the keys of the last sequence, from its first one on; the query before
that key sees those of the sequence before; and so on, back to the first.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.catalogue.segments import with_segments
from attncli.referee.convention import Convention
from attncli.referee.fitted.cut_keys import Look, as_good
from attncli.referee.fitted.places import told
from attncli.segments import Segments
from attncli.text import first_few

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from attncli.referee.case import Case
    from attncli.referee.fitted.found_weights import Patterns

__all__ = ["as_segments", "segments_unasked"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
# Tokens up to which their sequences are listed as an option.
_LISTED = 64
# Of a sequence, that are looked at.
_ROWS = 8


def as_segments(cases: Sequence[Case], masks: Patterns, right: Patterns) -> Convention | None:
    """Return the convention that queries see only keys of their own packed sequence.

    Parameters
    ----------
    cases : sequence of Case
    masks : mapping of Part to ndarray of bool (B, H, L, S)
        What the files show.
    right : mapping of Part to ndarray of bool (B, H, L, S)
        What the rules of the problem let see.

    Returns
    -------
    Convention or None
        None where the problem states such sequences, the masks are others, or not all queries
        were looked at.
    """
    problem, part = cases[0].recipe.problem, cases[0].recipe.part
    stated = problem.visible.segment_ids is not None
    if stated or part != (None, None, None) or problem.shape[2] != problem.shape[3]:
        return None
    ids = _ids(masks[part], right[part])
    return None if ids is None else _unasked(ids)


def segments_unasked(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that queries see only keys of their own packed sequence."""
    (case, *_) = cases
    problem, visible = case.recipe.problem, case.recipe.problem.visible
    # A window ends rows where a sequence might.
    if visible.segment_ids is not None or visible.window is not None:
        return None
    batches, _, queries, keys = problem.shape
    if queries != keys or any(visible.offset(b) for b in range(batches)):
        return None
    first_key = _reader(case)
    if first_key is None:
        return None
    found = [_walk(partial(first_key, b), queries, case.deadline) for b in range(batches)]
    rows = [row for row in found if row is not None]
    ids = np.array(rows)
    # Tokens that each see only themselves are no sequences.
    several = len(rows) == batches and ids.any() and (ids != np.arange(keys)).any()
    return _unasked(ids) if several else None


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
        return Look(case.row(b, i), frozenset()).errors_of(0, 0, first, np.full(first.size, end))

    good = as_good(errors(end - 1, np.arange(end)))
    if not good.size:
        return None
    # Keys to which one query gives next to no weight have more of another.
    rows = _some_rows(int(good[-1]), end).tolist()
    best = as_good(np.mean([errors(i, good) for i in rows], axis=0))
    return int(good[best[0]]) if best.size else None


def _some_rows(first: int, end: int) -> Ints:
    return np.unique(np.linspace(first, end - 1, _ROWS).astype(int))


def _unasked(ids: Ints) -> Convention:
    segments = Segments(ids, ids)
    return Convention(
        "segments_unasked",
        "queries see only keys of their own part of the row, as of packed sequences, which the "
        f"problem does not state: {_parts(ids)}",
        lambda recipe: with_segments(recipe, segments),
        topic=topics.SEGMENTS,
        fix="let each query see the keys of the whole row, or state the sequences: segment_ids "
        "(--segment-ids)",
        shows="as long a row",
        variant_of=("chunks_unasked",),
        option=lambda _: _option(ids),
    )


def _ids(mask: Bools, right: Bools) -> Ints | None:
    """Return the numbers (B, L) of sequences that make one mask of the other, if any do."""
    own, given = mask[:, :1], right[:, :1]
    if not ((mask == own).all() and (right == given).all()):
        return None
    before, after = (np.diagonal(given & ~own, step, axis1=2, axis2=3)[:, 0] for step in (-1, 1))
    begins = np.pad(before | after, ((0, 0), (1, 0)))
    ids = np.cumsum(begins, axis=1, dtype=np.int64)
    together = given[:, 0] & Segments(ids, ids).seen()
    return ids if begins.any() and np.array_equal(own[:, 0], together) else None


def _parts(ids: Ints) -> str:
    """Say where the sequences begin."""
    begins = [(np.flatnonzero(np.diff(each)) + 1).tolist() for each in ids]
    if all(each == begins[0] for each in begins):
        return f"new ones begin at {_tokens(begins[0])}"
    pairs = [
        (f"batch entry {b}", _tokens(each) if each else "none") for b, each in enumerate(begins)
    ]
    return f"new ones begin at: {told(pairs, 'at')}"


def _tokens(begins: Sequence[int]) -> str:
    return f"{'token' if len(begins) == 1 else 'tokens'} {first_few([str(n) for n in begins])}"


def _option(ids: Ints) -> str:
    """Return the option that states the sequences, if they fit there."""
    if (ids != ids[0]).any() or ids.shape[1] > _LISTED:
        return ""
    return f"--segment-ids {','.join(map(str, ids[0].tolist()))}"
