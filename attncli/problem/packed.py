"""The checked segment ids: the packed sequence that each query and key belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attncli.errors import ShapeError, UsageError
from attncli.problem import arguments
from attncli.problem.arguments import shape_text
from attncli.problem.segments import Segments

if TYPE_CHECKING:
    import numpy.typing as npt

    from attncli.problem.arguments import Names

_HINT = (
    "give the number of the sequence that each token belongs to; from cu_seqlens, it is "
    "np.repeat(np.arange(n), np.diff(cu_seqlens))"
)


def segments_of(
    named: Names, segment_ids: object, kv_segment_ids: object, shape: tuple[int, int, int, int]
) -> Segments | None:
    """Return the segment ids of queries and keys, or None if there are none."""
    batch, _, queries, keys = shape
    if segment_ids is None:
        if kv_segment_ids is not None:
            raise UsageError(
                "kv_segment_ids says which sequence each key belongs to, but nothing says it for "
                "the queries",
                hint="give segment_ids, too; if both are the same, give segment_ids alone",
            )
        return None
    if kv_segment_ids is None and queries != keys:
        raise ShapeError(
            f"{named('segment_ids')}: expected kv_segment_ids, too, because there are {queries} "
            f"queries and {keys} keys"
        )
    own = _ids(named("segment_ids"), segment_ids, batch, queries)
    if kv_segment_ids is None:
        return Segments(own, own)
    return Segments(own, _ids(named("kv_segment_ids"), kv_segment_ids, batch, keys))


def _ids(name: str, value: object, batch: int, count: int) -> npt.NDArray[Any]:
    """Return whole numbers, (B or 1, count)."""
    given = arguments.whole_array(name, value)
    one_row = given.shape != (batch, count) and given.size == max(given.shape, default=0)
    ids = given.reshape(1, -1) if one_row else given
    if ids.ndim != 2 or ids.shape[1] != count or len(ids) not in (1, batch):
        raise ShapeError(
            f"{name}: expected shape {shape_text((batch, count))} or {shape_text((count,))}, one "
            f"number for each token; found {shape_text(given.shape)}",
            hint=_HINT,
        )
    return ids
