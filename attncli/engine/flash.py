"""The tiled path: the queries of a block meet one tile of keys after the other.

The softmax of a row is summed up without ever holding the row:

    for each tile of keys:
        S = Q Kᵀ                                  the scores of the tile
        m' = max(m, row max of S)                 the new row max
        P = exp(S − m')                           exponentials
        l = exp(m − m') · l + row sum of P        the new row sum
        O = exp(m − m') · O + P V                 the weighted sum of the values
        m = m'
    O / l is the context, and m + ln l the lse

Any number in place of m gives the same result. If no exponential leaves the range, m stays 0: no
row max is searched for or subtracted. Either a bound on the scores shows this beforehand, or the
sums show it afterwards (`attncli.engine.range_checks`).

References
----------
Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"; Dao et al. 2022,
"FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", algorithm 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine import formula
from attncli.engine.panels import row_sums
from attncli.engine.range_checks import HIGHEST_UNSHIFTED, NEGLIGIBLE, loses_digits
from attncli.engine.score_rules import (
    add_rules,
    hidden_as_infinity,
    hiding_parts,
    log_denominator,
    share_beside_sinks,
)
from attncli.numerics.dtypes import widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from attncli.engine.operands import Operands
    from attncli.engine.panels import Scratch
    from attncli.engine.plan import Tiling
    from attncli.engine.score_rules import Place

Array = npt.NDArray[Any]
Span = tuple[int, int]

# A first tile above this share of the highest unshifted score makes the block subtract row maxes.
_NEARLY = 0.8
# The most scores of a strip that is computed by the formula.
_FORMULA_SCORES = 2**17


def attend_block(
    operands: Operands,
    place: Place,
    tiling: Tiling,
    results: dict[str, Array],
    scratch: Scratch,
    check_stopped: Callable[[], None],
) -> int:
    """Compute context and lse of some queries of one head, and return how many see no key.

    ``check_stopped`` is called before each tile and raises to stop the work.
    """
    bound = operands.score_bound(place)
    for shifted in (False, True) if bound < math.inf else ():
        block = Block(operands, place, tiling, scratch, bound, shifted=shifted)
        softmax = _over_all_keys(block, results, check_stopped)
        if softmax and not loses_digits(block, softmax, with_lse="lse" in results):
            return _deliver(block, softmax, results)
    # By the formula, some queries at a time.
    step = max(1, _FORMULA_SCORES // operands.problem.shape[3])
    fully_masked = 0
    for start in range(*place.rows, step):
        check_stopped()
        strip = place._replace(rows=(start, min(start + step, place.rows[1])))
        fully_masked += formula.attend_part(operands, strip, results, scratch)
    return fully_masked


class Block:
    """The queries of a block, scaled and in panels, with the keys and values that they read.

    Attributes
    ----------
    bound : float
        The bound on the capped scores, in nats.
    shifted : bool
        Whether the row max is subtracted from the scores.
    watched : bool
        Whether exponentials may leave the range, because there is no shift and no bound.
    query : ndarray (P, R, D)
    key, value : ndarray (S, ·)
        As stored; value is None if the problem has none.
    exp : ufunc
        The exponential of the scores' unit.
    """

    def __init__(
        self,
        operands: Operands,
        place: Place,
        tiling: Tiling,
        scratch: Scratch,
        bound: float,
        *,
        shifted: bool,
    ) -> None:
        self.operands, self.place, self.tiling = operands, place, tiling
        self.scratch, self.bound, self.shifted = scratch, bound, shifted
        self.problem = problem = operands.problem
        self.adds = problem.bias is not None or problem.alibi_slopes is not None
        bounded = bound <= HIGHEST_UNSHIFTED[problem.dtype] and not self.adds
        self.watched = not (shifted or bounded)
        bare = not shifted and bounded and problem.softcap is None
        self.exp, unit = tiling.exponential if bare else (np.exp, 1.0)
        (entry, _), (head, _), rows, _ = place
        count = rows[1] - rows[0]
        self._panel = tiling.panel if count % tiling.panel == 0 else count
        self.key, self.value = operands.key_and_value(entry, head)
        own = operands.query[entry, head, slice(*rows)]
        self.query = self.array("query", own.shape[1])
        scale = problem.scale * unit
        np.multiply(self.in_panels(widen(own, problem.dtype)), scale, out=self.query)

    def array(self, name: str, width: int) -> Array:
        """Return a scratch array (P, R, width)."""
        start, stop = self.place.rows
        shape = (stop - start) // self._panel, self._panel, width
        return self.scratch.tile(name, shape, query_major=self.tiling.query_major)

    def in_panels(self, array: Array) -> Array:
        """Return a view (P, R, width) of an array (queries, width); one row stays one."""
        rows = self._panel if len(array) > 1 else 1
        return array.reshape(-1, rows, array.shape[1])

    def fit(self, rule: Array) -> Array:
        """Return a rule (1, 1, L, S) as an array that broadcasts to a tile."""
        rule = rule[0, 0]
        if not self.tiling.query_major:
            # Rows a power of 2 apart would evict each other from the cache.
            rule = np.ascontiguousarray(rule)
        return self.in_panels(rule)

    def tiles(self, bound: float) -> list[Span]:
        """Return the range of keys of each tile; together they hold every key that a query may see.

        ``bound`` is the bound on the capped scores, in nats.
        """
        first, last = self._within_reach(bound)
        if first >= last:
            return []
        count = -(-(last - first) // self.tiling.columns)
        # All about equally wide, and multiples of 16, on which BLAS is fastest.
        width = min(self.tiling.columns, -(-(last - first) // count // 16) * 16)
        return [(start, min(start + width, last)) for start in range(first, last, width)]

    def _within_reach(self, bound: float) -> Span:
        """Return the keys that any query sees, without those that ALiBi makes negligible.

        A later check finds whether that was right, as for other negligible exponentials.
        """
        problem, entry, (start, stop) = self.problem, self.place.entries[0], self.place.rows
        span = problem.visible.span(entry, start, stop)
        slopes = problem.alibi_slopes
        if slopes is None or problem.bias is not None or self.shifted:
            return span
        slope = float(slopes[self.place.heads[0]])
        reach = (bound - _floor(problem.dtype)) / slope if slope > 0 else math.inf
        if not reach < span[1] - span[0]:
            return span
        offset, far = problem.visible.offset(entry), math.ceil(reach)
        first, last = max(span[0], start + offset - far), min(span[1], stop + offset + far)
        return (first, last) if first < last else span


class OnlineSoftmax:
    """The sums of the softmax over the keys so far.

    Attributes
    ----------
    row_max : ndarray (P, R), or None
        What was subtracted from the scores; None for 0.
    row_sum : ndarray (P, R)
        Row sum of the exponentials; 0 where a query has seen no key.
    context : ndarray (P, R, E), or None
        Values weighted by exponentials; None where no context is asked for.
    flushed : bool
        Whether negligible exponentials may have become 0.
    """

    def __init__(self, block: Block, *, with_context: bool) -> None:
        rows, dtype = block.query.shape[:2], block.problem.dtype
        self._block = block
        self.row_max = np.full(rows, -np.inf, dtype) if block.shifted else None
        self.row_sum = np.zeros(rows, dtype)
        self.context: Array | None = None
        if with_context and block.value is not None:
            self.context = block.array("context", block.value.shape[-1])
            self.context[...] = 0
        # Far below a higher row max, sums become negligible, too.
        self.flushed = block.shifted

    def shift(self, scores: Array) -> None:
        """Raise the row max to that of the scores (P, R, C), and subtract it from them."""
        before = np.asarray(self.row_max)
        row_max = np.maximum(before, scores.max(axis=2))
        # A query that has seen no key has a row max of −inf, which must not be subtracted.
        shift = np.where(row_max == -np.inf, 0, row_max)
        np.subtract(scores, shift[:, :, None], out=scores)
        if (row_max > before).any():
            factor = np.exp(before - shift)
            self.row_sum *= factor
            if self.context is not None:
                self.context *= factor[:, :, None]
        self.row_max = row_max

    def add(self, exponentials: Array, columns: Span) -> None:
        """Add the exponentials (P, R, C) of some keys."""
        self.row_sum += row_sums(exponentials)
        if self.context is not None:
            value = widen(np.asarray(self._block.value)[slice(*columns)], exponentials.dtype)
            addend = self._block.array("addend", value.shape[1])
            self.context += np.matmul(exponentials, value, out=addend)


def _over_all_keys(
    block: Block, results: dict[str, Array], check_stopped: Callable[[], None]
) -> OnlineSoftmax | None:
    """Return the sums over all keys, or None if the first tile shows that a shift is needed."""
    problem = block.problem
    softmax = OnlineSoftmax(block, with_context="context" in results)
    tiles = block.tiles(block.bound)
    # Keys beyond the reach of ALiBi count as negligible.
    softmax.flushed |= problem.alibi_slopes is not None and tiles != block.tiles(math.inf)
    for columns in tiles:
        check_stopped()
        place = block.place._replace(columns=columns)
        key = widen(block.key[slice(*columns)], problem.dtype)
        tile = block.array("tile", len(key))
        np.matmul(block.query, key.T, out=tile)
        add_rules(problem, tile, place, block.fit)
        if block.shifted:
            for some, seen in hiding_parts(problem, place):
                edge = tile[:, :, some]
                np.minimum(edge, block.fit(hidden_as_infinity(seen, tile.dtype)), out=edge)
            softmax.shift(tile)
            _exponentiate(block, tile, softmax)
        else:
            if block.watched and columns == tiles[0] and not _needs_no_shift(tile):
                return None
            _exponentiate(block, tile, softmax)
            for some, seen in hiding_parts(problem, place):
                edge = tile[:, :, some]
                np.multiply(edge, block.fit(seen), out=edge)
        softmax.add(tile, columns)
    return softmax


def _floor(dtype: np.dtype[Any]) -> float:
    """Return the score, in nats, below which an exponential is negligible beside 1."""
    return math.log(NEGLIGIBLE[dtype])


def _needs_no_shift(tile: Array) -> bool:
    """Return whether the scores of a first tile are low enough to need no shift."""
    return bool(tile.max() <= _NEARLY * HIGHEST_UNSHIFTED[tile.dtype])


def _exponentiate(block: Block, tile: Array, softmax: OnlineSoftmax) -> None:
    """Replace scores by their exponentials, some of which may be negligible.

    Arithmetic with numbers below 1e−38 takes ten to a hundred times as long as with others. Where
    scores may be −inf, negligible exponentials become 0. Otherwise they become the smallest number
    that is not negligible, which takes less time.
    """
    problem, floor = block.problem, _floor(tile.dtype)
    low = block.shifted or block.adds or block.bound > -floor
    if not (low and tile.min() < floor):
        block.exp(tile, tile)
        return
    softmax.flushed = True
    np.maximum(tile, floor, out=tile)
    np.exp(tile, tile)
    if problem.bias is not None or (block.shifted and problem.visible.hides):
        np.subtract(tile, 2 * NEGLIGIBLE[tile.dtype], out=tile)
        np.maximum(tile, 0, out=tile)


def _deliver(block: Block, softmax: OnlineSoftmax, results: dict[str, Array]) -> int:
    """Write context and lse, and return how many queries see no key."""
    problem, row_sum = block.problem, softmax.row_sum
    (entry, _), (head, _), rows, _ = block.place
    own = {name: array[entry, head, slice(*rows)] for name, array in results.items()}
    empty = row_sum == 0
    shift = np.where(empty, 0, 0 if softmax.row_max is None else softmax.row_max)
    sink = None if problem.sinks is None else problem.sinks[head]
    if "lse" in own:
        own["lse"][...] = log_denominator(row_sum, shift, sink).reshape(own["lse"].shape)
    if softmax.context is not None:
        factors: tuple[Array, ...] = (1 / np.where(empty, 1, row_sum),)
        if sink is not None:
            factors += share_beside_sinks(row_sum, sink.astype(row_sum.dtype) - shift)
        *first, last = factors
        for factor in first:
            softmax.context *= factor[:, :, None]
        np.multiply(softmax.context, last[:, :, None], out=block.in_panels(own["context"]))
    hides = problem.visible.hides or problem.bias is not None
    return int(np.count_nonzero(empty)) if hides else 0
