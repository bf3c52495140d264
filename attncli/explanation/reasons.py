"""Why a query does not see a key, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from attncli.problem.visibility import Visibility


@dataclass(frozen=True)
class Reason:
    """A rule that hides a key (an option's name, or ``bias`` where -inf is added), and why."""

    rule: str
    words: str


def hidden_by(visible: Visibility, bias: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which keys each rule hides from the one query of a problem, (S,)."""
    rules = visible.hidden_by(0, 0, (0, 1), (0, visible.keys))
    found = {rule: np.broadcast_to(hidden[0], bias.shape) for rule, hidden in rules}
    return found | {"bias": bias == -np.inf}


def why(rule: str, visible: Visibility, query: int, key: int) -> Reason:
    """Return why a rule hides a key from the one query of a problem."""
    position = visible.offset(0)
    where = f"position {position}"
    if position != query:
        where += f" (query {query} + offset {position - query})"
    match rule:
        case "mask":
            words = f"it does not let query {query} attend to key {key}"
        case "key_padding_mask":
            words = f"it marks key {key} as padding"
        case "kv_lengths":
            valid = visible.length(0)
            words = f"key {key} is padding: only the first {valid} of the keys are valid"
        case "query_lengths":
            words = f"query {query} is padding: it sees no key at all"
        case "causal":
            words = f"key {key} comes after {where}"
        case "window":
            left, right = visible.window or (None, None)
            reach, side = (left, "left") if key < position else (right, "right")
            apart = abs(position - key)
            words = f"key {key} is {apart} to the {side} of {where}, at most {reach}"
        case "segment_ids":
            segments: Any = visible.segment_ids
            own, other = segments.queries[0, 0], segments.keys[0, key]
            words = f"query {query} belongs to segment {own}, and key {key} to segment {other}"
        case _:
            words = "-inf is added to the score"
    return Reason(rule, words)
