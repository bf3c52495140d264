"""Which batch entry and head stands in the place of which, and the words for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from attncli.referee.case import Case

__all__ = ["Indices", "Places", "judged", "some", "told"]

Indices = npt.NDArray[np.intp]
_NAMED = 4


class Places(NamedTuple):
    """The batch entry and the head that each (b, h) has in the place of its own, (B, H) each."""

    batch: Indices
    head: Indices

    def pairs(self, own: Places) -> Iterator[tuple[str, str]]:
        """Yield what stands where something else should, and what."""
        if (self.batch == own.batch).all() and (self.head == self.head[0]).all():
            moved = np.flatnonzero(self.head[0] != own.head[0])
            yield from ((f"head {h}", f"head {self.head[0, h]}") for h in moved)
        elif (self.head == own.head).all() and (self.batch == self.batch[:, :1]).all():
            moved = np.flatnonzero(self.batch[:, 0] != own.batch[:, 0])
            yield from ((f"batch entry {b}", f"batch entry {self.batch[b, 0]}") for b in moved)
        else:
            for b, h in np.argwhere((self.batch != own.batch) | (self.head != own.head)):
                there = f"batch entry {self.batch[b, h]}"
                if own.head.any():
                    there = f"head {self.head[b, h]} of {there}"
                yield f"head {h} of batch entry {b}", there


def told(pairs: Iterable[tuple[str, str]], verb: str) -> str:
    """Say what stands, or reads, where; some of it where there is much."""
    return some([f"{one} {verb} {other}" for one, other in pairs])


def some(words: Sequence[str]) -> str:
    """Return the first of some words, and how many more there are."""
    more = len(words) - _NAMED
    return "; ".join(words[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def judged(case: Case, *, least: int = 2) -> str | None:
    """Return an output that shows each head; None where there is none, or there are too few."""
    problem = case.recipe.problem
    names = ("weights", "context", "lse") if problem.output is None else ("weights", "lse")
    if problem.shape[0] * problem.shape[1] < least or not case.comparable:
        return None
    return next((name for name in names if name in case.files), None)
