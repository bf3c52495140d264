"""From a problem or finished weights to the maps of the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attncli.engine import attend
from attncli.errors.names import HIDING_RULES
from attncli.numerics.indices import EVERYTHING, Picked
from attncli.summaries.maps import Computed, Given
from attncli.summaries.stats import statistics
from attncli.view.page import Map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem

Array: TypeAlias = npt.NDArray[Any]

# Why a key is hidden: bit n of a reason stands for the sentence n. The order is that of
# HIDING_RULES; a bias of −inf comes last.
REASONS = (
    "the mask does not let the query attend to the key",
    "the padding mask marks the key as padding",
    "the key is padding: it lies beyond the length of the keys",
    "the query is padding: it lies beyond the length of the queries",
    "causal: the key comes after the query",
    "the key lies outside the window",
    "the key belongs to another segment",
    "the score is −inf",
)
# The bit of the last reason.
_INFINITE = 1 << len(HIDING_RULES)


class MapMaker:
    """Makes the maps of one layer after the other; equal reasons share one array."""

    def __init__(
        self, threads: int | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.threads = threads
        self.progress = progress
        self.fully_masked = 0  # queries of the last layer that see no key
        self._shared: dict[tuple[tuple[int, ...], bytes], Array] = {}

    def maps(
        self, source: Computed | Given, *, layer: int = 0, picked: Picked = EVERYTHING
    ) -> list[Map]:
        """Return a map of each batch entry and head; `picked` gives the user's indices."""
        self.fully_masked = 0
        parts = self._computed(source) if isinstance(source, Computed) else self._given(source)
        places, made = list(np.ndindex(*source.shape[:2])), []
        for place, stats, part in zip(places, statistics(source), parts, strict=True):
            batch, head = (number or 0 for number in picked.place(*place))
            facts = {"entropy": stats.entropy, "distance": stats.distance, "first": stats.first_key}
            made.append(Map(layer, batch, head, *part, facts, source.labels))
            if self.progress is not None:
                self.progress(len(made), len(places))
        return made

    def _computed(self, maps: Computed) -> Iterator[tuple[Array, Array | None, Array | None]]:
        for batch, head in np.ndindex(*maps.shape[:2]):
            part = maps.problem.select(batch=batch, head=head)
            answer, fully_masked = attend(part, ("weights", "lse"), threads=self.threads)
            self.fully_masked += fully_masked
            weights = np.asarray(answer.weights).reshape(part.shape[2:])
            lse = np.asarray(answer.lse).reshape(part.shape[2])
            yield weights.astype(np.float32, copy=False), lse, self._share(_reasons(part))

    def _given(self, given: Given) -> Iterator[tuple[Array, Array | None, Array | None]]:
        for place in np.ndindex(*given.shape[:2]):
            hidden = False if given.hidden is None else given.hidden[place]
            weights = np.maximum(given.values[place], 0)  # rounding may leave weights below 0
            reasons = self._share(_where(hidden, _INFINITE))
            yield weights.astype(np.float32, copy=False), None, reasons

    def _share(self, reasons: Array) -> Array | None:
        known = self._shared.setdefault((reasons.shape, reasons.tobytes()), reasons)
        return known if known.any() else None


def _reasons(part: Problem) -> Array:
    """Return which rules hide each key, of one batch entry and head; a bit for each rule."""
    visible, (queries, keys) = part.visible, part.shape[2:]
    found = np.zeros((queries, keys), np.uint8)
    for rule, hidden in visible.hidden_by(0, 0, (0, queries), (0, keys)):
        found |= _where(hidden, 1 << HIDING_RULES.index(rule))
    if part.bias is not None:
        found |= _where(part.bias[0, 0] == -np.inf, _INFINITE)
    return found


def _where(hidden: npt.ArrayLike, bit: int) -> Array:
    return np.multiply(hidden, bit, dtype=np.uint8)
