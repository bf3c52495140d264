"""Query and key after rope and score function: raw scores are scale · q kᵀ of these.

Also bounds on the scores, which replace their maxima, and the errors for numbers that are not
finite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from attncli.errors import DataError
from attncli.numerics.dtypes import parts, widen
from attncli.numerics.positions import rotate

if TYPE_CHECKING:
    from attncli.engine.score_rules import Place
    from attncli.problem.problem import Problem, Rope

Array = npt.NDArray[Any]
Span = tuple[int, int]
# Squares below this, the smallest normal number / epsilon, may have lost digits.
_LEAST_SQUARE = {
    np.dtype(kind): float(np.finfo(kind).tiny / np.finfo(kind).eps)
    for kind in (np.float32, np.float64)
}


class NotFiniteError(Exception):
    """A result is not finite, possibly because an input is not.

    Raised only while `Problem.unread` is set: nobody has checked the inputs yet.
    """


@dataclass(eq=False)
class Operands:
    """A problem with query and key ready for a plain product.

    Attributes
    ----------
    problem : Problem
    query : ndarray (B, H, L, D)
    key : ndarray (B or 1, G, S, D)
        Rotated, normalised or multiplied as the problem asks. Otherwise as stored, so that a
        memory-mapped float16 file stays on disk.
    """

    problem: Problem
    query: Array
    key: Array
    # Bounds by place; two threads may compute the same bound at once, with the same result.
    _longest_keys: dict[tuple[int, int], float] = field(default_factory=dict)
    _largest_values: dict[tuple[int, int], Array] = field(default_factory=dict)

    @property
    def share(self) -> int:
        """The number of query heads that read one key head."""
        share: int = self.query.shape[1] // self.key.shape[1]
        return share

    def groups(self, heads: Span) -> slice:
        """Return which key heads some query heads read."""
        share = self.share
        return slice(heads[0] // share, (heads[1] - 1) // share + 1)

    def key_and_value(self, entry: int, head: int) -> tuple[Array, Array | None]:
        """Return what a query head reads, (S, D) and (S, E), as stored."""
        at, value = (entry % len(self.key), head // self.share), self.problem.value
        return self.key[at], None if value is None else value[at]

    def score_bound(self, place: Place) -> float:
        """Return a bound on the capped scores of some queries of one head, in nats.

        It is inf if they may leave the range.
        """
        problem, (entry, _), (head, _) = self.problem, place.entries, place.heads
        query = _largest_length(self.query[entry, head, slice(*place.rows)], problem.dtype)
        at = entry % len(self.key), head // self.share
        if at not in self._longest_keys:
            self._longest_keys[at] = _largest_length(self.key[at], problem.dtype)
        key = self._longest_keys[at]
        if not math.isfinite(query + key) and problem.unread is not None:
            raise NotFiniteError
        # |q · k| ≤ ‖q‖ ‖k‖ (Cauchy–Schwarz), before and after the query is scaled.
        factor = abs(problem.scale)
        if not max(query, query * key) * max(factor, 1) < float(np.finfo(problem.dtype).max) / 2:
            return math.inf
        return min(query * key * factor, problem.softcap or math.inf)

    def largest_values(self, place: Place) -> Array:
        """Return the largest magnitude in each column (E,) of a head's values, or NaN."""
        (entry, _), (head, _) = place.entries, place.heads
        value = np.asarray(self.problem.value)
        at = entry % len(value), head // self.share
        if at not in self._largest_values:
            wide = (widen(part, self.problem.dtype) for part in parts(value[at]))
            largest = [np.abs(part).max(axis=0, initial=0) for part in wide]
            self._largest_values[at] = np.asarray(np.max(largest, axis=0))
        return self._largest_values[at]


def prepare(problem: Problem, angles: npt.DTypeLike = np.float64) -> Operands:
    """Apply the steps before the product of query and key; ``angles`` is the dtype of rope's.

    Rotary embedding comes first. Then the score function decides: ``cosine`` scales both to unit
    length, ``general`` multiplies the query by W; ``dot`` and ``additive`` change nothing.

    References
    ----------
    Luong, Pham, Manning 2015, "Effective Approaches to Attention-based Neural
    Machine Translation", equation 8 (``general``).
    """
    query, key = problem.query, problem.key
    if problem.rope is not None:
        query, key = _rotated(problem, problem.rope, angles)
    if problem.score == "cosine":
        query, key = _unit(widen(query, problem.dtype)), _unit(widen(key, problem.dtype))
    if problem.score_weight is not None:
        query = widen(query, problem.dtype) @ widen(problem.score_weight, problem.dtype)
    return Operands(problem, query, key)


def rotated(problem: Problem) -> Operands:
    """Apply rotary embedding alone, whatever the score function."""
    return prepare(replace(problem, score="dot", score_weight=None))


def _largest_length(vectors: Array, dtype: np.dtype[Any]) -> float:
    """Return the largest length of some vectors (..., D), or a larger number if squares underflow.

    It is inf if a square overflows, and NaN if a number is NaN.
    """
    wide = [vectors] if vectors.dtype == dtype else (widen(one, dtype) for one in parts(vectors))
    squares = [np.vecdot(one, one).max() for one in wide]
    square = float(np.max(squares))
    if square < vectors.shape[-1] * _LEAST_SQUARE[dtype]:
        wide = (widen(one, dtype) for one in parts(vectors))
        largest = max((float(np.abs(one).max(initial=0)) for one in wide), default=0.0)
        return math.sqrt(vectors.shape[-1]) * largest
    return math.sqrt(square)


def refuse_scores(problem: Problem) -> NoReturn:
    """Raise the error of scores that are not finite; the inputs may be the cause if unread."""
    if problem.unread is not None:
        raise NotFiniteError
    narrow = problem.dtype.itemsize < 8
    wider = "compute in float64 (--precision float64), or " if narrow else ""
    others = ("score_weight", "score_vector", "bias", "alibi_slopes")
    names = ["query", "key", *(name for name in others if getattr(problem, name) is not None)]
    joined = f"{', '.join(names[:-1])} {'and' if len(names) == 2 else 'or'} {names[-1]}"
    raise DataError(
        f"the scores exceed the range of {problem.dtype.name}: {joined} are too large",
        hint=f"{wider}give a smaller scale",
    )


def _rotated(problem: Problem, rope: Rope, angles: npt.DTypeLike) -> tuple[Array, Array]:
    query, key = widen(problem.query, problem.dtype), widen(problem.key, problem.dtype)
    batch, _, queries, keys = problem.shape
    frequencies = rope.of_width(query.shape[3])
    turn = partial(rotate, pairing=rope.pairing, frequencies=frequencies, angles=angles)
    turned = [turn(query[b], np.arange(queries) + problem.visible.offset(b)) for b in range(batch)]
    return np.stack(turned), turn(key, np.arange(keys))


def _unit(rows: Array) -> Array:
    """Return rows scaled to length 1; a row of zeros stays zero, so that its cosines are 0."""
    # Dividing by the largest component first keeps the squares from overflowing.
    peak = np.abs(rows).max(axis=-1, keepdims=True)
    rows = rows / np.where(peak == 0, 1, peak)
    length = np.sqrt(np.square(rows).sum(axis=-1, keepdims=True))
    return rows / np.where(length == 0, 1, length)
