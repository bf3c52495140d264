"""Of products of three and more parameters, the cases that the default run takes.

Mistakes that show only where three parameters have certain values at once are rare, so those
cases run that hold every two values together; the long run has all others.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["beyond_pairs"]

Case = tuple[int, ...]


def beyond_pairs(parameters: Sequence[dict[str, Any]]) -> list[int]:
    """Return which cases of a test add no two values that others do not hold together.

    Parameters that are given together, as in "left, right", count as one; what has fewer than
    three of its own has no case too many.
    """
    columns = {_numbered(id(case[name]) for case in parameters) for name in parameters[0]}
    if len(columns) < 3:
        return []
    # In an order that every process of a run finds again.
    cases = list(zip(*sorted(columns), strict=True))
    kept = _cover(cases)
    return [at for at in range(len(cases)) if at not in kept]


def _numbered(values: Any) -> Case:
    """Return the values as numbers, in the order in which they are met."""
    seen: dict[Hashable, int] = {}
    return tuple(seen.setdefault(value, len(seen)) for value in values)


def _cover(cases: Sequence[Case]) -> set[int]:
    """Return cases that hold every pair, each the one that adds most to those before it."""
    pairs = [set(combinations(enumerate(case), 2)) for case in cases]
    missing = set().union(*pairs)
    kept = set()
    while missing:
        best = max(range(len(cases)), key=lambda at: len(pairs[at] & missing))
        kept.add(best)
        missing -= pairs[best]
    return kept
