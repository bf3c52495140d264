"""Mistakes with packed sequences: which keys stand in the sequence of a query."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.problem.segments import Segments
from attncli.referee import topics
from attncli.referee.catalogue.helpers import changed, dropped
from attncli.referee.convention import Apply, Convention, with_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.problem.problem import Problem
    from attncli.referee.recipe import Recipe

__all__ = ["FROM_LENGTHS", "SEGMENTS", "with_segments"]

Ints = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


def _left_out(problem: Problem) -> str:
    segments = problem.visible.segment_ids
    apart = segments is not None and segments.queries is not segments.keys
    return f"leave --segment-ids{' and --kv-segment-ids' if apart else ''} out"


def _otherwise(
    moved: Callable[[Segments], Segments | None], seen: Callable[[Segments], Bools] = Segments.seen
) -> Apply:
    """Make an `apply` with other numbers of the sequences, or another comparison of them."""

    def apply(recipe: Recipe) -> Recipe | None:
        whole = recipe.whole.visible.segment_ids
        other = None if whole is None else moved(whole)
        return None if other is None else with_segments(recipe, other, seen)

    return apply


def with_segments(
    recipe: Recipe, whole: Segments, seen: Callable[[Segments], Bools] = Segments.seen
) -> Recipe:
    """Return the recipe, perhaps of a part, with the sequences of the whole problem."""
    entry, _, rows = recipe.part
    own = whole if entry is None else whole.entries([entry])
    own = own if rows is None else own.rows(*rows)
    return with_rule(recipe, "segment_ids", seen(own)[:, None])


def _both(change: Callable[[Ints], Ints]) -> Callable[[Segments], Segments]:
    return lambda segments: Segments(change(segments.queries), change(segments.keys))


def _of_keys(change: Callable[[Ints], Ints]) -> Callable[[Segments], Segments]:
    return lambda segments: Segments(segments.queries, change(segments.keys))


def _later(ids: Ints) -> Ints:
    """Return the number of the token before each one; the first keeps its own."""
    return np.concatenate((ids[:, :1], ids[:, :-1]), axis=1)


def _earlier(ids: Ints) -> Ints:
    return np.concatenate((ids[:, 1:], ids[:, -1:]), axis=1)


def _of_first(ids: Ints) -> Ints:
    return ids[:1]


def _not_after(segments: Segments) -> Bools:
    """Return which keys stand in the sequence of each query or in one of a lower number."""
    return np.greater_equal(segments.queries[:, :, None], segments.keys[:, None, :])


def _not_before(segments: Segments) -> Bools:
    return np.less_equal(segments.queries[:, :, None], segments.keys[:, None, :])


_segments = partial(
    Convention,
    topic=topics.SEGMENTS,
    fix="let a query see only keys with its own number: segment_ids (--segment-ids)",
    shows="more than one packed sequence",
)
FROM_LENGTHS = "take the ends of the sequences from the cumulative lengths, which begin with 0"

SEGMENTS = (
    _segments(
        "segment_ids_ignored",
        "segment_ids is ignored: queries see keys of the other packed sequences",
        dropped("segment_ids"),
        option=_left_out,
    ),
    _segments(
        "segment_ids_inverted",
        "the mask made of segment_ids is inverted: queries see keys of other sequences alone",
        changed("segment_ids", np.logical_not),
    ),
    _segments(
        "segment_ids_in_order",
        "queries see keys of earlier packed sequences, too: numbers are compared with ≥, not =",
        _otherwise(lambda segments: segments, _not_after),
        # Under a causal rule no query sees a later sequence.
        variant_of=("segment_ids_ignored",),
    ),
    _segments(
        "segments_end_late",
        "each packed sequence begins and ends one token late",
        _otherwise(_both(_later)),
        fix=FROM_LENGTHS,
    ),
    _segments(
        "segments_end_early",
        "each packed sequence begins and ends one token early",
        _otherwise(_both(_earlier)),
        fix=FROM_LENGTHS,
    ),
    *(
        _segments(
            f"segments_of_keys_end_{word}",
            f"the packed sequences of the keys begin and end one token {word}, those of the "
            "queries where they should",
            _otherwise(_of_keys(change)),
            fix=FROM_LENGTHS,
            # In slices without an end of a sequence they are the same.
            variant_of=(f"segments_end_{word}",),
        )
        for word, change in (("late", _later), ("early", _earlier))
    ),
    _segments(
        "segment_ids_in_reverse_order",
        "queries see keys of later packed sequences, too: numbers are compared with ≤, not =",
        _otherwise(lambda segments: segments, _not_before),
    ),
    _segments(
        "segment_ids_of_first_entry",
        "every batch entry takes the segment_ids of the first",
        _otherwise(_both(_of_first)),
        fix="give each batch entry its own segment_ids",
        shows="batch entries that are packed differently",
        needs=frozenset({"batch"}),
    ),
)
