"""Query, key and value after rope and score function: raw scores are scale · q kᵀ of these."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from attncli.engine.refusals import NotFiniteError
from attncli.numerics.dtypes import parts, widen
from attncli.numerics.finite import finite_in
from attncli.numerics.positions import rotate

if TYPE_CHECKING:
    from attncli.engine.scratch import Scratch
    from attncli.problem.problem import Problem, Rope

__all__ = ["Operands", "prepare", "rotated"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
# The bits of a number as one whole number, of whose last bits so many are its binary digits.
_STORED_DIGITS: dict[np.dtype[Any], tuple[type, int]] = {
    np.dtype(np.float32): (np.uint32, 23),
    np.dtype(np.float64): (np.uint64, 52),
}
# Rows and numbers of each that are looked at.
_SAMPLED = 16, 64
# Squares that are smaller may have lost digits.
_LEAST_SQUARE = {
    np.dtype(kind): float(np.finfo(kind).tiny / np.finfo(kind).eps)
    for kind in (np.float32, np.float64)
}


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
    _few_digits: bool | None = None
    _exact_products: bool | None = None
    _longest_keys: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _largest_values: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def keys(self, batch: int, heads: Span) -> Array:
        """Return the keys (G, S, D) that some query heads read, as stored."""
        entry, first, last = self._place(self.key, batch, heads)
        keys: Array = self.key[entry, first:last]
        return keys

    def transposed_keys(self, batch: int, heads: Span, scratch: Scratch) -> Array:
        """Return the keys (G, S, D) of some query heads as a copy in column order."""
        return scratch.transposed(self.keys(batch, heads), self._place(self.key, batch, heads))

    def values(self, batch: int, heads: Span) -> Array:
        """Return the values (G, S, E) that some query heads read, as stored."""
        value = self._value
        entry, first, last = self._place(value, batch, heads)
        values: Array = value[entry, first:last]
        return values

    def largest_value(self, batch: int, heads: Span) -> float:
        """Return the largest magnitude in the values of some query heads; NaN if one of them is."""
        place = self._place(self._value, batch, heads)
        largest = self._largest_values.get(place)
        if largest is None:
            largest = _largest(self.values(batch, heads), self.problem.dtype)
            self._largest_values[place] = largest
        return largest

    def largest_by_column(self, batch: int, heads: Span) -> Array:
        """Return the largest magnitude in each column (E,) of the values of some query heads."""
        wide = (widen(part, self.problem.dtype) for part in parts(self.values(batch, heads)))
        largest = [np.abs(part).max(axis=tuple(range(part.ndim - 1))) for part in wide]
        return np.asarray(np.max(largest, axis=0))

    @property
    def have_few_digits(self) -> bool:
        """Whether query and key look as if together they had at most the digits of the dtype.

        Products of whole numbers, of 16-bit floats and of quantized numbers are exact then.
        """
        if self._few_digits is None:
            dtype = self.problem.dtype
            digits = sum(_digits(each, dtype) for each in (self.query, self.key))
            self._few_digits = digits <= _STORED_DIGITS[dtype][1] + 1
        return self._few_digits

    @property
    def have_exact_products(self) -> bool:
        """Whether sums of their products look exact, too: whole numbers that are not too large."""
        if self._exact_products is None:
            dtype = self.problem.dtype
            digits = sum(_digits_of_all(each, dtype) for each in (self.query, self.key))
            digits += math.ceil(math.log2(self.query.shape[3]))
            self._exact_products = digits <= _STORED_DIGITS[dtype][1] + 1
        return self._exact_products

    @property
    def _value(self) -> Array:
        # Asked for with a context only, which needs one.
        return cast("Array", self.problem.value)

    def _place(self, array: Array, batch: int, heads: Span) -> tuple[int, int, int]:
        """Return which entry and which heads (first, last + 1) of an array query heads read."""
        share = self.query.shape[1] // array.shape[1]
        return batch % array.shape[0], heads[0] // share, (heads[1] - 1) // share + 1

    def longest_query(self, batch: int, heads: Span, rows: Span) -> float:
        """Return the length of the longest query of some heads and rows.

        It is inf where a square overflows.

        Raises
        ------
        NotFiniteError
            A query is not finite, and nobody has checked them.
        """
        queries = self.query[batch, slice(*heads), slice(*rows)]
        longest = largest_length(queries, self.problem.dtype)
        if not math.isfinite(longest):
            self._refuse_unread(queries)
        return longest

    def check_queries(self, batch: int, heads: Span, rows: Span) -> None:
        """Raise `NotFiniteError` if a query is not finite, and nobody has checked them."""
        self._refuse_unread(self.query[batch, slice(*heads), slice(*rows)])

    def _refuse_unread(self, queries: Array) -> None:
        if self.problem.unread is not None and not finite_in(queries, self.problem.dtype):
            raise NotFiniteError

    def longest_key(self, batch: int, heads: Span) -> float:
        """Return the length of the longest key that some heads read; NaN or inf if not finite."""
        place = self._place(self.key, batch, heads)
        # Two threads may race here, but they compute the same length.
        longest = self._longest_keys.get(place)
        if longest is None:
            longest = largest_length(self.keys(batch, heads), self.problem.dtype)
            self._longest_keys[place] = longest
        return longest


def prepare(problem: Problem, angles: npt.DTypeLike = np.float64) -> Operands:
    """Apply what comes before the product of query and key.

    Rotary embedding comes first. Then the score function decides: ``cosine`` scales both to unit
    length, ``general`` multiplies the query by W; ``dot`` and ``additive`` change nothing.

    Parameters
    ----------
    problem : Problem
    angles : dtype
        The dtype in which rotary angles are computed.

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


def _some(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return some numbers of (B, H, L, D), widened to a dtype."""
    rows, numbers = _SAMPLED
    some = array[0, 0, :: -(-array.shape[2] // rows), :numbers]
    return np.ascontiguousarray(widen(some, dtype))


def _digits_of_all(array: Array, dtype: np.dtype[Any]) -> int:
    """Return how many binary digits lie between the first of some numbers and the last of any."""
    some = _some(array, dtype)
    some = some[some != 0]
    if not some.size:
        return 0
    kind, stored = _STORED_DIGITS[dtype]
    bits = some.view(kind) | kind(1 << stored)  # the first digit, which is not stored
    lowest = np.frexp((bits & (~bits + kind(1))).astype(dtype))[1]
    exponents = np.frexp(some)[1]
    # The last stored digit of a number lies so far below its first one.
    last = exponents - stored + lowest - 2
    return int(exponents.max() - last.min())


def _digits(array: Array, dtype: np.dtype[Any]) -> int:
    """Return how many binary digits some numbers of (B, H, L, D) have, widened to a dtype."""
    kind, stored = _STORED_DIGITS[dtype]
    bits: Array = _some(array, dtype).view(kind)
    used = int(np.bitwise_or.reduce(bits, axis=None)) & (1 << stored) - 1
    lowest = used & -used
    # The first digit is 1, and not stored.
    return 1 if not used else stored + 2 - lowest.bit_length()


def largest_length(vectors: Array, dtype: np.dtype[Any]) -> float:
    """Return the largest length of some vectors (..., D), or more where squares underflow.

    It is inf where a square overflows.
    """
    if vectors.dtype == dtype:
        square = _largest_square(vectors)
    else:
        square = _highest([_largest_square(widen(part, dtype)) for part in parts(vectors)])
    if square < vectors.shape[-1] * _LEAST_SQUARE[dtype]:
        return math.sqrt(vectors.shape[-1]) * _largest(vectors, dtype)
    return math.sqrt(square)


def _largest_square(vectors: Array) -> float:
    """Return the largest squared length of some vectors (..., D); NaN if one of them is."""
    return float(np.maximum.reduce(np.vecdot(vectors, vectors), axis=None))


def _largest(vectors: Array, dtype: np.dtype[Any]) -> float:
    """Return the largest magnitude in some vectors (..., E)."""
    if not vectors.size:
        return 0.0
    wide = (widen(part, dtype) for part in parts(vectors))
    extremes = [(float(part.max()), -float(part.min())) for part in wide]
    return _highest([number for both in extremes for number in both])


def _highest(numbers: list[float]) -> float:
    # Python's max() ignores NaN.
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)
