"""Why a query does not see a key, in words, and how many keys each rule hides from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.errors.names import HIDING_RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.visibility import Visibility

__all__ = ["Reason", "reasons", "tally"]


@dataclass(frozen=True)
class Reason:
    """A rule that hides a key.

    Attributes
    ----------
    rule : str
        The option's name, or ``bias`` where -inf is added.
    words : str
        Why, with the numbers of this query and key.
    """

    rule: str
    words: str


def reasons(visible: Visibility, query: int, key: int, bias: float = 0.0) -> tuple[Reason, ...]:
    """Return every rule that hides a key from the one query of a selected problem.

    Parameters
    ----------
    visible : Visibility
        Of one batch entry, one head and one query (`Problem.select`).
    query : int
        The query's index before it was selected, for the words.
    key : int
    bias : float
        What is added to the score; -inf hides.
    """
    rules = visible.reasons(0, 0, 0, key) + (("bias",) if bias == -np.inf else ())
    return tuple(Reason(rule, _WORDS[rule](visible, query, key)) for rule in rules)


def tally(
    visible: Visibility, bias: npt.NDArray[Any], among: npt.NDArray[np.bool_]
) -> dict[str, int]:
    """Count the keys that each rule hides from the one query of a selected problem.

    A key that two rules hide counts for both.

    Parameters
    ----------
    visible : Visibility
    bias : ndarray (S,)
    among : ndarray of bool (S,)
        Which keys to count.

    Returns
    -------
    dict of str to int
        Only rules that hide a key.
    """
    keys = 0, visible.keys
    counts = {}
    for rule, alone in _rules_alone(visible):
        seen = alone.tile(0, 0, (0, 1), keys)
        if seen is not None:
            counts[rule] = int(np.count_nonzero(~np.broadcast_to(seen[0], among.shape) & among))
    counts["bias"] = int(np.count_nonzero((bias == -np.inf) & among))
    return {rule: count for rule, count in counts.items() if count}


def _rules_alone(visible: Visibility) -> Iterator[tuple[str, Visibility]]:
    """Yield each rule that is given, and what the query sees under only this rule."""
    for rule in HIDING_RULES:
        one: dict[str, Any] = {rule: getattr(visible, rule)}
        if one[rule] is not None:
            yield rule, visible.under(**one)


def _position(visible: Visibility, query: int) -> str:
    """Return the position of the query among the keys, and the offset that leads to it."""
    position = visible.offset(0)
    offset = position - query
    if not offset:
        return f"position {position}"
    return f"position {position} (query {query} + offset {offset})"


def _by_length(visible: Visibility, _query: int, key: int) -> str:
    return f"key {key} is padding: only the first {visible.length(0)} of the keys are valid"


def _by_query_length(_visible: Visibility, query: int, _key: int) -> str:
    return f"query {query} is padding: it sees no key at all"


def _by_causal(visible: Visibility, query: int, key: int) -> str:
    return f"key {key} comes after {_position(visible, query)}"


def _by_window(visible: Visibility, query: int, key: int) -> str:
    position = visible.offset(0)
    left, right = visible.window or (None, None)
    reach, side = (left, "left") if key < position else (right, "right")
    distance = abs(position - key)
    return f"key {key} is {distance} to the {side} of {_position(visible, query)}, at most {reach}"


def _by_segment(visible: Visibility, query: int, key: int) -> str:
    segments: Any = visible.segment_ids
    own, other = segments.queries[0, 0], segments.keys[0, key]
    return f"query {query} belongs to segment {own}, and key {key} to segment {other}"


_WORDS: dict[str, Callable[[Visibility, int, int], str]] = {
    "mask": lambda _visible, query, key: f"it does not let query {query} attend to key {key}",
    "key_padding_mask": lambda _visible, _query, key: f"it marks key {key} as padding",
    "kv_lengths": _by_length,
    "query_lengths": _by_query_length,
    "causal": _by_causal,
    "window": _by_window,
    "segment_ids": _by_segment,
    "bias": lambda _visible, _query, _key: "-inf is added to the score",
}
