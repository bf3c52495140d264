"""A mask that is that of packed sequences, which the problem does not state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.referee import topics
from attncli.referee.convention import Convention, with_rule
from attncli.referee.fitted.places import told
from attncli.segments import Segments
from attncli.text import first_few

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.referee.case import Case
    from attncli.referee.fitted.found_weights import Patterns

__all__ = ["as_segments"]

Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
# Tokens up to which their sequences are listed as an option.
_LISTED = 64


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
    if ids is None:
        return None
    seen = Segments(ids, ids).seen()[:, None]
    return Convention(
        "segments_unasked",
        "queries see only keys of their own part of the row, as of packed sequences, which the "
        f"problem does not state: {_parts(ids)}",
        lambda recipe: with_rule(recipe, "segment_ids", seen),
        topic=topics.SEGMENTS,
        fix="let each query see the keys of the whole row, or state the sequences: segment_ids "
        "(--segment-ids)",
        shows="as long a row",
        option=lambda _: _option(ids),
        pattern=True,
    )


def _ids(mask: Bools, right: Bools) -> Ints | None:
    """Return the numbers (B, L) of sequences that make one mask of the other, if any do."""
    own, given = mask[:, :1], right[:, :1]
    if not ((mask == own).all() and (right == given).all()):
        return None
    before, after = (np.diagonal(given & ~own, step, axis1=2, axis2=3)[:, 0] for step in (-1, 1))
    begins = np.pad(before | after, ((0, 0), (1, 0)))
    ids = np.cumsum(begins, axis=1)
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
