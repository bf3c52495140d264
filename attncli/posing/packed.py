"""Packed sequences: which one each query and key belongs to, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from attncli import arguments
from attncli.arguments import shape_text
from attncli.errors import ShapeError, UsageError
from attncli.segments import Segments

if TYPE_CHECKING:
    from attncli.arguments import Names

__all__ = ["segments_of"]

Ints = npt.NDArray[Any]
Shape = tuple[int, int, int, int]


def segments_of(
    named: Names, segment_ids: object, kv_segment_ids: object, shape: Shape
) -> Segments | None:
    """Return the sequences that queries and keys belong to; None where nobody tells them apart."""
    batch, _, queries, keys = shape
    if segment_ids is None:
        if kv_segment_ids is not None:
            raise UsageError(
                "kv_segment_ids says which sequence each key belongs to, but nothing says it of "
                "the queries",
                hint="give segment_ids, too, or in its place where it is that of both",
            )
        return None
    if kv_segment_ids is not None:
        own = _ids(named, "segment_ids", segment_ids, batch, queries, "queries")
        return Segments(own, _ids(named, "kv_segment_ids", kv_segment_ids, batch, keys, "keys"))
    if queries != keys:
        raise ShapeError(
            f"{named('segment_ids')}: expected kv_segment_ids beside it, as there are {queries} "
            f"queries and {keys} keys"
        )
    own = _ids(named, "segment_ids", segment_ids, batch, queries, "tokens")
    return Segments(own, own)


def _ids(named: Names, name: str, value: object, batch: int, count: int, of: str) -> Ints:
    """Return whole numbers, (B or 1, count)."""
    given = arguments.whole_array(named(name), value)
    one_row = given.shape != (batch, count) and given.size == max(given.shape, default=0)
    ids = given.reshape(1, -1) if one_row else given
    if ids.ndim != 2 or ids.shape[1] != count or len(ids) not in (1, batch):
        raise ShapeError(
            f"{named(name)}: expected shape {shape_text((batch, count))} or "
            f"{shape_text((count,))}, one number for each of the {of}; found "
            f"{shape_text(given.shape)}",
            hint=_hint(ids, count),
        )
    return ids


def _hint(ids: Ints, count: int) -> str | None:
    """Return what to give instead of the ends of the sequences."""
    ends = ids.reshape(-1)
    if ends.size and ends[0] == 0 and ends[-1] == count and (ends[1:] > ends[:-1]).all():
        return (
            "it looks like cu_seqlens, the ends of the sequences: give the number of the sequence "
            "that each token belongs to, np.repeat(np.arange(n), np.diff(cu_seqlens))"
        )
    return None
