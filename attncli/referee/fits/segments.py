"""Where packed sequences begin, and which blocks of a causal mask are wrong, read row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attncli.errors.text import first_few
from attncli.referee.fits.counts import ranges
from attncli.referee.fits.rows import Rows, shown_by
from attncli.referee.fits.spans import as_good
from attncli.referee.fits.table import at_first, found, told
from attncli.referee.pipeline import measured

if TYPE_CHECKING:
    from attncli.referee.formats import Array, Ints
    from attncli.referee.mistakes.table import Mistake
    from attncli.referee.parts import Case
    from attncli.referee.run import Run

__all__ = ["FITTINGS"]

# Tokens up to which their sequences are listed as an option; rows of a sequence that are looked at.
_LISTED, _ROWS = 64, 8


def other_segments(case: Case) -> Mistake | None:
    """Return the mistake that packed sequences begin elsewhere, or are not stated at all."""
    stated = case.problem.visible.segment_ids
    ids = _segments(case)
    if ids is None or (ids == np.arange(ids.shape[1])).all():  # tokens alone are no sequences
        return None
    right = np.zeros_like(ids) if stated is None else np.broadcast_to(stated.queries, ids.shape)
    if np.array_equal(np.diff(ids) != 0, np.diff(right) != 0):
        return None
    pairs = [(f"batch entry {b}", _begins(own)) for b, own in enumerate(ids)]
    alike = (ids == ids[0]).all()
    listed = ",".join(map(str, ids[0].tolist())) if alike and ids.shape[1] <= _LISTED else ""
    return found(
        "segments_unasked" if stated is None else "segments_elsewhere",
        lambda pipe: pipe.with_rule("segment_ids", measured(ids, ids)),
        _begins(ids[0]) if alike else told(pairs, "at"),
        "" if stated is None else _begins(right[0]),
        option=lambda _: f"--segment-ids {listed}" if listed else "",
    )


def _begins(ids: Ints) -> str:
    """Say at which tokens a sequence begins, after the first one."""
    return first_few([str(token) for token in np.flatnonzero(np.diff(ids)) + 1]) or "none"


def _segments(case: Case) -> Ints | None:
    """Return the numbers (B, L) of the sequences that a file shows, from the last one back.

    The last query of a sequence sees its keys from the first one on. None where a row is of no
    sequence, or rules end rows where a sequence might.
    """
    visible, (batch, _, queries, keys) = case.problem.visible, case.problem.shape
    if shown_by(case) is None or visible.window is not None or queries != keys:
        return None
    if any(map(visible.offset, range(batch))):
        return None
    begins = np.zeros((batch, queries), np.int64)
    for b in range(batch):
        end = queries
        while end:
            first = _first(case, b, end)
            if first is None or case.question.work.over:
                return None
            begins[b, first], end = 1, first
    return np.cumsum(begins, axis=1) - 1


def _first(case: Case, b: int, end: int) -> int | None:
    """Return the first key of the sequence that ends before one, if it is seen in some rows."""

    def errors(i: int, first: Ints) -> Array:
        # A row at a time, as all rows of a large problem are too many.
        row = Rows(case.row(b, i), {"segment_ids"})
        case.question.work.spend(first.size)
        return row.errors_of(0, 0, first, np.full(first.size, end))

    good = as_good(errors(end - 1, np.arange(end)))
    if not good.size:
        return None
    # Keys to which one query gives next to no weight have more of another.
    rows = np.unique(np.linspace(good[-1], end - 1, _ROWS).astype(int)).tolist()
    best = as_good(np.mean([errors(i, good) for i in rows], axis=0))
    return int(good[best[0]]) if best.size else None


def diagonal_blocks(case: Case) -> Mistake | None:
    """Return the mistake that a causal mask is wrong in some blocks on the diagonal.

    A block of queries is wrong in all of its rows, but for the last one where it sees the block of
    keys on the diagonal to its end. Rows of zeros have more likely not been written.
    """
    visible, (_, _, queries, keys) = case.problem.visible, case.problem.shape
    if shown_by(case) is None or not visible.causal or any(visible.offsets):
        return None
    rows = Rows(case, {"causal"})
    wrong, numbers = rows.wrong(0), np.arange(1, keys + 1)
    ends = np.arange(1, queries + 1)
    for i in wrong:
        good = as_good(rows.errors_of(0, int(i), np.zeros_like(numbers), numbers))
        case.question.work.spend(8 * numbers.size)
        if not good.size or case.question.work.over:
            return None
        ends[i] = numbers[good[np.argmin(np.abs(good - i))]]
    moved = ends[wrong]
    if not 0 < len(set(moved)) < len(wrong):  # each row ends elsewhere: another diagonal
        return None
    # The last row of a block is right where its keys are seen; where they are not, the first one
    # is wrong, and sees the keys before it.
    if (moved > wrong + 1).all() and not np.isin(moved - 1, wrong).any():
        name = "some_diagonal_blocks_unmasked"
    elif (moved <= wrong).all() and np.isin(moved, wrong).all():
        name = "some_diagonal_blocks_lost"
    else:
        return None

    def seen(run: Run) -> Array:
        return np.asarray(run.j < ends[run.i])

    return found(
        name,
        lambda pipe: pipe.with_rule("causal", seen),
        ranges(wrong),
    )


FITTINGS = (
    at_first(diagonal_blocks, "some_diagonal_blocks_lost"),
    at_first(other_segments, "segments_unasked"),
)
