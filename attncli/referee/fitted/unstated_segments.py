"""Packed sequences that the problem does not state: in a mask, in weights or in a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attncli.errors.text import first_few
from attncli.problem.segments import Segments
from attncli.referee import topics
from attncli.referee.catalogue.segments import with_segments
from attncli.referee.convention import Convention
from attncli.referee.fitted.places import told
from attncli.referee.fitted.sequences import begins_of, found_ids, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.fitted.found_weights import Patterns

__all__ = ["as_segments", "segments_unasked"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


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
    if case.recipe.problem.visible.segment_ids is not None:
        return None
    ids = found_ids(case)
    # Tokens that each see only themselves are no sequences.
    several = ids is not None and ids.any() and (ids != np.arange(ids.shape[1])).any()
    return _unasked(ids) if ids is not None and several else None


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
        option=lambda _: listed(ids),
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
    begins = [begins_of(each) for each in ids]
    if all(each == begins[0] for each in begins):
        return f"new ones begin at {_tokens(begins[0])}"
    pairs = [
        (f"batch entry {b}", _tokens(each) if each else "none") for b, each in enumerate(begins)
    ]
    return f"new ones begin at: {told(pairs, 'at')}"


def _tokens(begins: Sequence[int]) -> str:
    return f"{'token' if len(begins) == 1 else 'tokens'} {first_few([str(n) for n in begins])}"
