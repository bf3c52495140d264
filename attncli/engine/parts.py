"""The parts of the work: blocks of queries, each with some of the keys that they see."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.panels import TileLayout, allocate
from attncli.engine.sums import merge

if TYPE_CHECKING:
    from attncli.engine.scratch import Scratch
    from attncli.engine.sums import Sums

__all__ = ["Block", "Part", "Span"]

Array = npt.NDArray[Any]
Span = tuple[int, int]


@dataclass(eq=False, slots=True)
class Block:
    """Queries start:stop of one head or several, and where their results go.

    Attributes
    ----------
    batch : int
    heads : (first, last + 1)
    start, stop : int
    panel : int
        Queries in a panel. The last panel may have more than are left; the others are zeros.
    layout : TileLayout
    results : dict of str to ndarray
        The block's own rows of each output asked for: (N, rows, S), (N, rows, E) or (N, rows).
    spans : list of (start, stop)
        The keys of each part. There is more than one part only if no L × S output is asked for.
    small : bool
        `attncli.engine.size.is_small`: the maximum is always subtracted, scores stay in nats, and
        no bound is worked out, which only pays off on large problems.
    """

    batch: int
    heads: Span
    start: int
    stop: int
    panel: int
    layout: TileLayout
    results: dict[str, Array]
    spans: list[Span]
    small: bool
    _sums: dict[int, Sums] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def panels(self) -> int:
        """How many panels the queries of a head fill."""
        return -(-(self.stop - self.start) // self.panel)

    def context_buffer(self, scratch: Scratch) -> Array | None:
        """Return the array in which a part sums up weighted values; None without a context."""
        context = self.results.get("context")
        if context is None:
            return None
        shape = len(context), self.panels, context.shape[2], self.panel
        if len(self.spans) == 1:
            return allocate(partial(scratch.buffer, "context"), shape, self.layout)
        return np.empty(shape, context.dtype)

    def deliver(self, part: int, sums: Sums) -> Sums | None:
        """Store the sums of a part; the last part to arrive gets the sums of the whole block."""
        if len(self.spans) == 1:
            return sums
        with self._lock:
            self._sums[part] = sums
            if len(self._sums) < len(self.spans):
                return None
        return merge([self._sums[n] for n in range(len(self.spans))])


Part = tuple[Block, int]
"""A block, and which of its spans of keys."""
