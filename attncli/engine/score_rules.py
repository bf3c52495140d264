"""From raw scores to scores: softcap, bias, ALiBi and hiding, in this order, for every path.

Each rule is cut to the current part of the scores, as an array (B, H, L, S) whose axes may have
length 1. Each path gives a function that makes such an array broadcast to its own scores: as it is,
or in the panels of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.problem.problem import Problem

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Span = tuple[int, int]


class Place(NamedTuple):
    """A part of the scores (B, H, L, S), each axis as (start, stop)."""

    entries: Span
    heads: Span
    rows: Span
    columns: Span

    def cut(self, array: Array) -> Array:
        """Return the part of an array that broadcasts to the scores, as a view (B, H, L, S)."""
        index = (
            slice(*span) if length > 1 else slice(None)
            for span, length in zip(self, array.shape, strict=True)
        )
        part: Array = array[tuple(index)]
        return part


def add_rules(
    problem: Problem,
    scores: Array,
    place: Place,
    fit: Callable[[Array], Array],
    keep: Callable[[str, Array], None] | None = None,
) -> None:
    """Cap raw scores (scaled products, in nats) in place, and add bias and ALiBi.

    ``fit`` turns an array (B, H, L, S) into one that broadcasts to the scores. ``keep`` is called
    with the name of each stage and the scores at that stage.
    """
    if keep is not None:
        keep("raw", scores)
    # The softcap comes before bias and mask, or it would squeeze −inf back into range.
    if problem.softcap is not None:
        _cap(scores, problem.softcap)
    if keep is not None:
        keep("capped", scores)
    if problem.bias is not None:
        np.add(scores, fit(widen(place.cut(problem.bias), problem.dtype)), out=scores)
    if problem.alibi_slopes is not None:
        np.subtract(scores, fit(_penalties(problem, place)), out=scores)


def seen_at(problem: Problem, place: Place) -> Bools | None:
    """Return which keys are seen, (B or 1, H or 1, L, S); None where all of them are."""
    visible = problem.visible
    entries = range(*place.entries)
    if visible.entries == 1:
        entries = entries[:1]
    heads = slice(*place.heads)
    tiles = [visible.tile(entry, heads, place.rows, place.columns) for entry in entries]
    if all(tile is None for tile in tiles):
        return None
    several = [np.ones((1, 1, 1), np.bool_) if tile is None else tile for tile in tiles]
    several = [tile[None] if tile.ndim == 2 else tile for tile in several]
    return np.stack(np.broadcast_arrays(*several)) if len(several) > 1 else several[0][None]


def hiding_parts(problem: Problem, place: Place) -> Iterator[tuple[slice, Bools]]:
    """Yield slices of the keys that may hold hidden ones, and which keys of a slice are seen.

    The slice counts from the first key of the place. What is seen is (B or 1, H or 1, L, S).
    """
    visible, (entry, stop) = problem.visible, place.entries
    if not visible.hides:
        return
    edges = [place.columns]
    if visible.entries == 1 or stop - entry == 1:
        edges = visible.edges(entry, place.rows, place.columns)
    for first, last in edges:
        seen = seen_at(problem, place._replace(columns=(first, last)))
        if seen is not None:
            yield slice(first - place.columns[0], last - place.columns[0]), seen


def hidden_as_infinity(seen: Array, dtype: np.dtype[Any]) -> Array:
    """Return inf where a key is seen and −inf where it is hidden.

    The minimum with it hides scores that are finite. It takes a fraction of the time of a masked
    copy, and hidden scores are replaced: nothing behind a mask can leak.
    """
    return np.asarray(np.where(seen, dtype.type(np.inf), dtype.type(-np.inf)))


def _cap(scores: Array, softcap: float) -> None:
    """Write softcap · tanh(scores / softcap) in place (Gemma 2, section 2)."""
    np.divide(scores, softcap, out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, softcap, out=scores)


def _penalties(problem: Problem, place: Place) -> Array:
    """Return slope · |i + offset − j| (Press et al. 2022, section 3), (B or 1, H, L, S)."""
    offsets = problem.visible.offsets
    own = offsets if len(offsets) == 1 else offsets[slice(*place.entries)]
    slopes = np.asarray(problem.alibi_slopes)[slice(*place.heads), None]
    each = [_penalty(slopes, place, offset, problem.dtype) for offset in own]
    return np.stack(each) if len(each) > 1 else each[0][None]


def _penalty(slopes: Array, place: Place, offset: int, dtype: np.dtype[Any]) -> Array:
    """Return the penalties of one entry, which depend on i − j only, (H, L, S)."""
    (start, stop), (first, last) = place.rows, place.columns
    distance = np.abs(np.arange(start + offset - last + 1, stop + offset - first))
    penalty = np.multiply(distance, slopes, dtype=dtype, casting="same_kind")
    rows = np.lib.stride_tricks.sliding_window_view(penalty, last - first, axis=1)
    # A copy, because NumPy reads the view many times more slowly in the order of a tile.
    return np.ascontiguousarray(rows[:, :, ::-1])


def share_beside_sinks(total: Array, above: Array) -> tuple[Array, Array]:
    """Return two factors with the product total / (total + e^above), which might underflow as one.

    The total is a sum of exponentials under a shift, 0 where a query sees no key; the sinks are
    ``above`` nats above that shift. The second factor is 0 where the total is 0.
    """
    # t / (t + e^a) = e^(−a/2) · e^(−a/2) t / (t e^(−a) + 1), for a > 0
    half = np.exp(np.maximum(above, 0) / -2)
    denominator = total * half * half + np.exp(np.minimum(above, 0))
    # A query that sees no key may have a denominator of 0, too, if its sink is far below the shift.
    share = half * total
    return half, np.divide(share, denominator, out=np.zeros_like(share), where=total != 0)


def log_denominator(total: Array, shift: Array | float, sinks: Array | None) -> Array:
    """Return the lse, ln(total · e^shift + e^sinks), in nats.

    Sinks are added without the shift: far above it they would lose their digits.
    """
    logarithm = np.asarray(np.log(total) + shift)
    if sinks is None:
        return logarithm
    return np.asarray(np.logaddexp(logarithm, sinks.astype(logarithm.dtype)))
