"""Which keys each query sees: the one place that defines the hiding rules.

A key is seen only if EVERY rule given allows it:

=============  ===================================================================
mask           true where the query may attend to the key
key padding    true where the key is a real one
kv lengths     j < length of the batch entry
causal         j ≤ i + offset
window         i + offset − left ≤ j ≤ i + offset + right, self included
segment ids    query and key belong to the same of several packed sequences
=============  ===================================================================

Lengths, causal and window leave each query one interval of keys, so the corners of a tile show
whether all of it is hidden, or all of it visible. Keys of packed sequences, one behind the other,
are confined to an interval, too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.errors.names import HIDING_RULES
from attncli.numerics.dtypes import parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.problem.segments import Segments

Bools = npt.NDArray[np.bool_]


class Visibility(NamedTuple):
    """The hiding rules of a problem, checked.

    Attributes
    ----------
    queries, keys : int
        L and S.
    offsets : tuple of int, length B or 1
        Added to a query's index, it gives the query's position among the keys.
    mask : ndarray (B or 1, H or 1, L or 1, S or 1), or None
        Booleans, or 0 and 1 as they were given; they are read by `attending`.
    mask_drops : bool
        Whether true or 1 in the mask means hidden.
    key_padding_mask : ndarray of bool (B or 1, S), or None
    kv_lengths, query_lengths : tuple of int, length B or 1, or None
        A query at or beyond its batch entry's length sees nothing.
    causal : bool
    window : (left, right), None on an unbounded side; or None
    segment_ids : Segments or None
    """

    queries: int
    keys: int
    offsets: tuple[int, ...] = (0,)
    mask: npt.NDArray[Any] | None = None
    key_padding_mask: Bools | None = None
    kv_lengths: tuple[int, ...] | None = None
    query_lengths: tuple[int, ...] | None = None
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    segment_ids: Segments | None = None
    mask_drops: bool = False

    @property
    def banded(self) -> bool:
        """Whether any rule confines a query to an interval of keys."""
        return (
            self.causal
            or self.window is not None
            or self.kv_lengths is not None
            or self.query_lengths is not None
            or self.segment_ids is not None
        )

    @property
    def is_one_interval(self) -> bool:
        """Whether each query sees every key of one interval and no other."""
        return self.mask is None and self.key_padding_mask is None and self.segment_ids is None

    @property
    def hides(self) -> bool:
        """Whether any rule is given at all."""
        return self.banded or not self.is_one_interval

    @property
    def entries(self) -> int:
        """The number of batch entries with rules of their own: B, or 1 if all share them."""
        by_entry = (
            self.offsets,
            self.mask,
            self.key_padding_mask,
            self.kv_lengths,
            self.query_lengths,
            self.segment_ids,
        )
        return max(1 if rule is None else len(rule) for rule in by_entry)

    @property
    def padded_queries(self) -> Bools | None:
        """Which queries are padding, (B or 1, L); None without query lengths."""
        if self.query_lengths is None:
            return None
        padded: Bools = np.arange(self.queries) >= np.array(self.query_lengths)[:, None]
        return padded

    @property
    def bottom_right(self) -> tuple[int, ...]:
        """The offsets that align the last query with the last real key."""
        lengths = self.kv_lengths or (self.keys,)
        return tuple(length - self.queries for length in lengths)

    @property
    def padded_lengths(self) -> tuple[int, ...] | None:
        """The number of real keys of each entry, if the padding mask hides only the last ones."""
        real = self.key_padding_mask
        if real is None:
            return None
        lengths = np.count_nonzero(real, axis=1)
        first = np.arange(real.shape[1]) < lengths[:, None]
        return tuple(lengths.tolist()) if np.array_equal(real, first) else None

    def offset(self, batch: int) -> int:
        """Return the offset from a query's index to its position among the keys."""
        return _at(self.offsets, batch)

    def length(self, batch: int) -> int:
        """Return how many keys of the batch entry are real."""
        return self.keys if self.kv_lengths is None else _at(self.kv_lengths, batch)

    def span(self, batch: int, start: int, stop: int) -> tuple[int, int]:
        """Return a small interval that holds every key which banded rules show to rows start:stop.

        (0, 0) if those rows see no key.
        """
        if not self.banded:
            return 0, self.keys
        if self.query_lengths is not None:
            stop = min(stop, _at(self.query_lengths, batch))
        if start >= stop:
            return 0, 0
        # Both ends of a row's interval grow with the row.
        first, last = self._bounds(batch, start)[0], self._bounds(batch, stop - 1)[1]
        if self.segment_ids is not None and first < last:
            least, most = self.segment_ids.reach(batch, start, stop)
            first, last = max(first, least), min(last, most)
        return (first, last) if first < last else (0, 0)

    def tile(
        self, batch: int, heads: int | slice, rows: tuple[int, int], columns: tuple[int, int]
    ) -> Bools | None:
        """Return which keys the queries of a tile see, broadcastable to it; None where all are."""
        seen: Bools | None = None
        if self.banded and not self._clear(batch, rows, columns):
            seen = self._band(batch, rows, columns)
        if self.mask is not None:
            part = cut(self.mask, batch, heads, rows, columns)
            seen = _both(seen, self.attending(part))
        if self.key_padding_mask is not None:
            padding = self.key_padding_mask[batch % len(self.key_padding_mask), slice(*columns)]
            seen = _both(seen, padding[None])
        if self.segment_ids is not None:
            together = self.segment_ids.tile(batch, rows, columns)
            seen = seen if together is None else _both(seen, together)
        return seen

    def attending(self, part: npt.NDArray[Any]) -> Bools:
        """Return a part of the mask as booleans, true where the query may attend to the key."""
        if part.dtype == np.bool_:
            return ~part if self.mask_drops else part
        seen: Bools = part == (0 if self.mask_drops else 1)
        return seen

    def mask_parts(self) -> Iterator[Bools]:
        """Yield whole rows of the mask, if there is one, as booleans."""
        for part in () if self.mask is None else parts(self.mask):
            yield self.attending(part)

    def with_whole_mask(self) -> Visibility:
        """Return the same rules with a mask of booleans that are true where a query may attend."""
        if self.mask is None:
            return self
        return self._replace(mask=self.attending(self.mask), mask_drops=False)

    def edges(
        self, batch: int, rows: tuple[int, int], columns: tuple[int, int]
    ) -> list[tuple[int, int]]:
        """Return the columns of a tile that may hold hidden keys: at most two intervals."""
        if not self.is_one_interval:
            return [columns]
        if not self.banded:
            return []
        if self.query_lengths is not None and rows[1] > _at(self.query_lengths, batch):
            return [columns]
        # Both ends of the interval grow with the row, so the outer rows decide.
        first = max(self._bounds(batch, rows[1] - 1)[0], columns[0])
        last = min(self._bounds(batch, rows[0])[1], columns[1])
        if first >= last:
            return [columns]
        pairs = ((columns[0], first), (last, columns[1]))
        return [(start, stop) for start, stop in pairs if start < stop]

    def reasons(self, batch: int, head: int, row: int, column: int) -> tuple[str, ...]:
        """Return the names of the rules that hide a key from a query, in the order above."""
        cell = (row, row + 1), (column, column + 1)
        return tuple(name for name, hidden in self.hidden_by(batch, head, *cell) if hidden.any())

    def hidden_by(
        self, batch: int, head: int, rows: tuple[int, int], columns: tuple[int, int]
    ) -> Iterator[tuple[str, Bools]]:
        """Yield rules in the order above, and which keys of a tile each one hides."""
        sizes = self.queries, self.keys, self.offsets
        for name in HIDING_RULES:
            given: dict[str, Any] = {name: getattr(self, name)}
            seen = Visibility(*sizes, mask_drops=self.mask_drops, **given)
            tile = seen.tile(batch, head, rows, columns)
            if tile is not None:
                yield name, ~tile

    def _clear(self, batch: int, rows: tuple[int, int], columns: tuple[int, int]) -> bool:
        # Both ends of the interval grow with the row, so the corners decide.
        if self.query_lengths is not None and rows[1] > _at(self.query_lengths, batch):
            return False
        return (
            self._bounds(batch, rows[1] - 1)[0] <= columns[0]
            and self._bounds(batch, rows[0])[1] >= columns[1]
        )

    def _band(self, batch: int, rows: tuple[int, int], columns: tuple[int, int]) -> Bools:
        """Return which keys the banded rules show to the queries of a tile."""
        left, right = self.window or (None, None)
        if self.causal:
            right = 0 if right is None else min(right, 0)
        ahead = rows[0] + self.offset(batch) - columns[0]
        band = _band(rows[1] - rows[0], columns[1] - columns[0], ahead, left, right)
        if self.length(batch) < columns[1]:
            band = band & (np.arange(*columns) < self.length(batch))
        if self.query_lengths is not None and rows[1] > _at(self.query_lengths, batch):
            band = band & (np.arange(*rows) < _at(self.query_lengths, batch))[:, None]
        return band

    def _bounds(self, batch: int, row: int) -> tuple[int, int]:
        """Return the start and stop of the keys that one query sees; start ≥ stop if none."""
        position = row + self.offset(batch)
        left, right = self.window or (None, None)
        first = 0 if left is None else max(0, position - left)
        last = self.length(batch)
        if self.causal:
            last = min(last, position + 1)
        if right is not None:
            last = min(last, position + right + 1)
        return first, last


def cut(
    array: npt.NDArray[Any],
    batch: int,
    heads: int | slice,
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> npt.NDArray[Any]:
    """Return the tile of an array that broadcasts to (B, H, L, S), as a view.

    Several heads keep their axis, unless all share one matrix.
    """
    matrices: npt.NDArray[Any] = array[batch % array.shape[0], heads if array.shape[1] > 1 else 0]
    return matrices[
        ...,
        slice(*rows) if matrices.shape[-2] > 1 else slice(None),
        slice(*columns) if matrices.shape[-1] > 1 else slice(None),
    ]


@lru_cache(maxsize=4)  # the tiles along a diagonal are alike
def _band(rows: int, columns: int, ahead: int, left: int | None, right: int | None) -> Bools:
    """Return which keys each query sees; the first query stands at position ``ahead``."""
    # Reach depends only on i − j, so the band is a strided view of one row of distances.
    behind = np.arange(ahead + rows - 1, ahead - columns, -1)
    near = np.ones(behind.shape, np.bool_) if left is None else behind <= left
    if right is not None:
        near &= behind >= -right
    strided: Bools = np.ndarray((rows, columns), np.bool_, near, rows - 1, (-1, 1))
    # A copy, because NumPy reads the view many times more slowly in the order of a tile.
    band = np.ascontiguousarray(strided)
    band.flags.writeable = False
    return band


def _at(values: tuple[int, ...], batch: int) -> int:
    return values[batch % len(values)]


def _both(seen: Bools | None, rule: Bools) -> Bools:
    return rule if seen is None else seen & rule
