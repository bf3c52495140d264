"""Packed sequences of which only the first keys count, inferred from a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attncli.errors.text import counted
from attncli.problem.segments import Segments
from attncli.referee import topics
from attncli.referee.catalogue.segments import with_segments
from attncli.referee.convention import Convention
from attncli.referee.fitted.cut_keys import WHOLE, Family, first_keys, found_numbers
from attncli.referee.fitted.sequences import listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from attncli.problem.problem import Problem
    from attncli.referee.case import Case
    from attncli.referee.fitted.cut_keys import Spans

__all__ = ["segments_cut_short"]

Ints = npt.NDArray[np.int64]


def segments_cut_short(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that no more keys of a packed sequence count than a kernel expects.

    References
    ----------
    ``max_seqlen_k`` of FlashAttention.
    """
    whole = cases[0].recipe.whole
    stated = whole.visible.segment_ids
    if stated is None:
        return None
    places = np.stack([_places(ids) for ids in stated.keys])
    longest = tuple(int(places[b % len(places)].max()) + 1 for b in range(whole.shape[0]))
    found = found_numbers(cases, _lengths(whole, stated, longest))
    if found is None:
        return None
    count = min(n for n, most in zip(found, longest, strict=True) if n != most)
    # Entries without a longer sequence are as they should be.
    if found != tuple(min(count, most) for most in longest):
        return None
    # Of no query.
    nowhere = max(stated.queries.max(), stated.keys.max()) + 1
    keys = np.where(places < count, stated.keys, nowhere)
    segments = Segments(stated.queries, keys)
    return Convention(
        "segments_cut_short",
        f"of each packed sequence, only {first_keys(count)} "
        f"{'key counts' if count == 1 else 'keys count'}",
        lambda recipe: with_segments(recipe, segments),
        topic=topics.SEGMENTS,
        fix="give the kernel the length of the longest sequence: max_seqlen_k",
        shows=f"packed sequences of more than {counted(count, 'token')}",
        needs=WHOLE,
        option=lambda _: listed(keys, "--kv-segment-ids"),
    )


def _lengths(whole: Problem, stated: Segments, longest: tuple[int, ...]) -> Family:
    """Return the family of how many keys of each sequence count."""
    numbers = np.arange(1, max(longest) + 1)

    def spans(problem: Problem, b: int, i: int) -> Spans:
        query = i + problem.visible.offset(b) - whole.visible.offset(b)
        number = stated.queries[b % len(stated.queries), query]
        own = np.flatnonzero(stated.keys[b % len(stated.keys)] == number)
        if not own.size:
            return np.zeros_like(numbers), np.zeros_like(numbers)
        return np.full_like(numbers, own[0]), own[np.minimum(numbers, own.size) - 1] + 1

    return Family(numbers, frozenset(), spans, longest)


def _places(ids: Ints) -> Ints:
    """Return where each token stands in its sequence, (L,)."""
    order = np.argsort(ids, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(ids)) - np.searchsorted(ids[order], ids[order])
    return places
