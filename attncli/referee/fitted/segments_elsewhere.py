"""Packed sequences that begin elsewhere than the problem states, read off weights or a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from attncli.problem.segments import Segments
from attncli.referee import topics
from attncli.referee.catalogue.segments import FROM_LENGTHS, with_segments
from attncli.referee.convention import Convention
from attncli.referee.fitted.places import some
from attncli.referee.fitted.sequences import begins_of, found_ids, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.case import Case

__all__ = ["segments_elsewhere"]

Ints = npt.NDArray[np.int64]


def segments_elsewhere(cases: Sequence[Case]) -> Convention | None:
    """Return the convention that packed sequences begin elsewhere than the problem states."""
    (case, *_) = cases
    stated = case.recipe.problem.visible.segment_ids
    if stated is None or not np.array_equal(stated.queries, stated.keys):
        return None
    ids = found_ids(case)
    words = [] if ids is None else _differences(ids, np.broadcast_to(stated.queries, ids.shape))
    if ids is None or not words:
        return None
    segments = Segments(ids, ids)
    return Convention(
        "segments_elsewhere",
        f"the packed sequences are not those of segment_ids: {some(words)}",
        lambda recipe: with_segments(recipe, segments),
        topic=topics.SEGMENTS,
        fix=FROM_LENGTHS,
        shows="packed sequences of other lengths",
        variant_of=("chunks_unasked",),
        option=lambda _: _option(ids, stated),
    )


def _differences(ids: Ints, stated: Ints) -> list[str]:
    """Say which sequences begin elsewhere, of each batch entry unless all are alike."""
    words = [list(_moves(*map(begins_of, pair))) for pair in zip(ids, stated, strict=True)]
    if all(each == words[0] for each in words):
        return words[0]
    return [f"in batch entry {b}, {one}" for b, each in enumerate(words) for one in each]


def _moves(found: Sequence[int], right: Sequence[int]) -> Iterator[str]:
    """Say what begins elsewhere: a missing beginning and an odd one side by side are one."""
    odd, missing = {*found} - {*right}, {*right} - {*found}
    tokens = sorted({*found, *right}, reverse=True)
    while tokens:
        token = tokens.pop()
        after = tokens[-1] if tokens else None
        if token in odd and after in missing:
            yield f"a sequence begins at token {token} where {tokens.pop()} is right"
        elif token in missing and after in odd:
            yield f"a sequence begins at token {tokens.pop()} where {token} is right"
        elif token in odd:
            yield f"a sequence begins at token {token} where none should"
        elif token in missing:
            yield f"no sequence begins at token {token}"


def _option(ids: Ints, stated: Segments) -> str:
    option = listed(ids)
    # What is stated of the keys would be as it was.
    apart = option and stated.queries is not stated.keys
    return f"{option} (without --kv-segment-ids)" if apart else option
