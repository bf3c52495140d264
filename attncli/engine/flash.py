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

Any number in place of m gives the same result. Where no exponential leaves the range, m is 0 and
stays so: nothing is searched for, subtracted or rescaled (`attncli.engine.modes`).

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
from attncli.engine.formula import HIGHEST_UNSHIFTED, Part
from attncli.engine.modes import NEGLIGIBLE, Mode, failed_heads, first_mode, score_bound
from attncli.engine.panels import TileShape, row_sums
from attncli.engine.score_rules import (
    Place,
    add_rules,
    hidden_as_infinity,
    hiding_parts,
    log_denominator,
    seen_at,
    share_beside_sinks,
)
from attncli.numerics.dtypes import widen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attncli.engine.operands import Operands
    from attncli.engine.panels import Scratch
    from attncli.engine.plan import Tiling

__all__ = ["Block", "OnlineSoftmax", "attend_block"]

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Span = tuple[int, int]

# If the first tile comes so close to the highest score that needs no shift, a later one exceeds it.
_NEARLY = 0.8
# Scores of a strip that is computed by the formula.
_FORMULA_SCORES = 2**17


def attend_block(
    operands: Operands,
    part: Part,
    tiling: Tiling,
    results: dict[str, Array],
    scratch: Scratch,
    check_stopped: Callable[[], None],
) -> int:
    """Compute context and lse of some queries, and return how many of them see no key.

    The part is of one batch entry, and of whole groups of heads or of heads within one group.
    ``check_stopped`` is called before each tile and raises to stop the work.
    """
    bounds = {head: score_bound(operands, part, head) for head in range(*part.heads)}
    modes = [first_mode(operands.problem, bound) for bound in bounds.values()]
    todo = _alike(part.heads, modes)
    fully_masked = 0
    while todo:
        heads, mode = todo.pop()
        own = part._replace(heads=heads)
        if mode is Mode.FORMULA:
            fully_masked += _by_formula(operands, own, results, scratch, check_stopped)
            continue
        block = Block(operands, own, tiling, scratch, mode)
        softmax = _sweep(block, bounds[heads[0]], results, check_stopped)
        failed = np.ones(heads[1] - heads[0], np.bool_)
        if softmax is not None:
            failed = failed_heads(block, softmax, with_lse="lse" in results)
            fully_masked += _deliver(block, softmax, results, ~failed)
        todo += [(some, mode.safer) for some, fails in _alike(heads, failed.tolist()) if fails]
    return fully_masked


def _alike(heads: Span, kinds: list[Any]) -> list[tuple[Span, Any]]:
    """Return all heads with their kind if they are of one kind, otherwise each by itself."""
    if len(set(kinds)) == 1:
        return [(heads, kinds[0])]
    return [((head, head + 1), kind) for head, kind in zip(range(*heads), kinds, strict=True)]


def _by_formula(
    operands: Operands,
    part: Part,
    results: dict[str, Array],
    scratch: Scratch,
    check_stopped: Callable[[], None],
) -> int:
    """Compute a part by the formula, some queries of one head at a time."""
    step = max(1, _FORMULA_SCORES // operands.problem.shape[3])
    fully_masked = 0
    for head in range(*part.heads):
        for start in range(*part.rows, step):
            check_stopped()
            rows = start, min(start + step, part.rows[1])
            strip = Part(part.entries, (head, head + 1), rows)
            fully_masked += formula.attend_part(operands, strip, results, scratch)
    return fully_masked


class Block:
    """The queries of a part, scaled and in panels, with the keys and values that they read.

    Attributes
    ----------
    shape : TileShape
    entry : int
        The batch entry.
    query : ndarray (G, N, P, D, R)
    key, value : ndarray (G, 1, 1, S, ·)
        As stored; value is None if the problem has none.
    exp : ufunc
        The exponential of the scores' unit.
    """

    def __init__(
        self, operands: Operands, part: Part, tiling: Tiling, scratch: Scratch, mode: Mode
    ) -> None:
        self.operands, self.part, self.tiling = operands, part, tiling
        self.scratch, self.mode = scratch, mode
        self.problem = problem = operands.problem
        heads, rows = part.heads[1] - part.heads[0], part.rows[1] - part.rows[0]
        groups = operands.groups(part.heads)
        count = groups.stop - groups.start
        panel = rows if rows % tiling.panel else tiling.panel
        self.shape = TileShape(count, heads // count, rows // panel, panel, tiling.query_major)
        self.entry = part.entries[0]
        self.key = self._of_groups(operands.key, groups)
        self.value = None if problem.value is None else self._of_groups(problem.value, groups)
        bare = mode is Mode.BOUNDED and problem.softcap is None
        self.exp, unit = tiling.exponential if bare else (np.exp, 1.0)
        own = operands.query[self.entry, slice(*part.heads), slice(*part.rows)]
        self.query = self.shape.array(scratch, "query", own.shape[2])
        np.multiply(
            self.shape.view(widen(own, problem.dtype)), problem.scale * unit, out=self.query
        )

    def _of_groups(self, array: Array, groups: slice) -> Array:
        own: Array = array[self.entry % len(array), groups, None, None]
        return own

    def fit(self, rule: Array) -> Array:
        """Return a rule (1, H, L, S) as an array that broadcasts to a tile."""
        rule = rule[0]
        if not self.shape.query_major and rule.shape[1] > 1 < rule.shape[2]:
            rule = _readable_by_column(rule)
        return self.shape.view(rule)

    def tiles(self, bound: float) -> list[Span]:
        """Return the keys of each tile, of those that any query may see.

        The bound is that on the capped scores, in nats.
        """
        span = self.problem.visible.span(self.entry, *self.part.rows)
        first, last = self._within_reach(span, bound)
        if first >= last:
            return []
        count = -(-(last - first) // self.tiling.columns)
        # All about equally wide, and multiples of 16, on which BLAS is fastest.
        width = min(self.tiling.columns, -(-(last - first) // count // 16) * 16)
        return [(start, min(start + width, last)) for start in range(first, last, width)]

    def _within_reach(self, span: Span, bound: float) -> Span:
        """Return the span without keys that ALiBi makes negligible for every query.

        Whether that was right is checked afterwards, as for other negligible exponentials.
        """
        problem, (start, stop) = self.problem, self.part.rows
        slopes = problem.alibi_slopes
        if slopes is None or problem.bias is not None or self.mode is not Mode.WATCHED:
            return span
        slope = float(slopes[slice(*self.part.heads)].min())
        reach = (bound - _floor(problem.dtype)) / slope if slope > 0 else math.inf
        if not reach < span[1] - span[0]:
            return span
        offset, far = problem.visible.offset(self.entry), math.ceil(reach)
        first, last = max(span[0], start + offset - far), min(span[1], stop + offset + far)
        return (first, last) if first < last else span


def _readable_by_column(rule: Array) -> Array:
    """Return a copy of a rule whose rows do not displace each other in the cache.

    They would where they begin a power of 2 apart; here it is an odd number of lines of 64 bytes.
    """
    line = 64 // rule.itemsize
    width = (-(-rule.shape[2] // line) | 1) * line
    copy = np.empty((*rule.shape[:2], width), rule.dtype)[..., : rule.shape[2]]
    np.copyto(copy, rule)
    return copy


class OnlineSoftmax:
    """The sums of the softmax over the keys so far.

    Attributes
    ----------
    row_max : ndarray (G, N, P, R), or None
        What was subtracted from the scores; None for 0.
    row_sum : ndarray (G, N, P, R)
        Of exponentials; 0 where a query has seen no key.
    context : ndarray (G, N, P, E, R), or None
        Values weighted by exponentials; None where no context is asked for.
    flushed : ndarray of bool (G, N)
        Whether exponentials of a head may have been taken for 0 because they are negligible.
    """

    def __init__(self, block: Block, *, with_context: bool) -> None:
        shape, dtype = block.shape, block.problem.dtype
        rows = shape.groups, shape.heads, shape.panels, shape.rows
        self._block = block
        self._empty = True
        self.row_max = np.full(rows, -np.inf, dtype) if block.mode is Mode.SHIFTED else None
        self.row_sum = np.zeros(rows, dtype)
        self.context: Array | None = None
        if with_context and block.value is not None:
            self.context = shape.array(block.scratch, "context", block.value.shape[-1])
        self.flushed = np.zeros(rows[:2], np.bool_)

    def shift(self, scores: Array) -> None:
        """Raise the row max to that of the scores (G, N, P, C, R), and subtract it from them."""
        before = np.asarray(self.row_max)
        row_max = np.maximum(before, scores.max(axis=3))
        # A query that has seen no key has a row max of −inf, of which none may be subtracted.
        shift = np.where(row_max == -np.inf, 0, row_max)
        np.subtract(scores, shift[:, :, :, None], out=scores)
        if not self._empty and (row_max > before).any():
            factor = np.exp(before - shift)
            self.row_sum *= factor
            if self.context is not None:
                self.context *= factor[:, :, :, None]
        self.row_max = row_max

    def add(self, exponentials: Array, columns: Span) -> None:
        """Add the exponentials (G, N, P, C, R) of some keys."""
        self.row_sum += row_sums(exponentials)
        if self.context is not None:
            value = np.asarray(self._block.value)[..., slice(*columns), :]
            weights = widen(value, exponentials.dtype).swapaxes(3, 4)
            if self._empty:
                np.matmul(weights, exponentials, out=self.context)
            else:
                width = self.context.shape[3]
                addend = self._block.shape.array(self._block.scratch, "addend", width)
                self.context += np.matmul(weights, exponentials, out=addend)
        self._empty = False

    def close(self) -> None:
        """Set the context to 0 if no tile was added."""
        if self._empty and self.context is not None:
            self.context[...] = 0


def _sweep(
    block: Block, bound: float, results: dict[str, Array], check_stopped: Callable[[], None]
) -> OnlineSoftmax | None:
    """Return the sums over all keys; None where the first tile shows that the mode fails."""
    problem, mode = block.problem, block.mode
    softmax = OnlineSoftmax(block, with_context="context" in results)
    tiles = block.tiles(bound)
    adds = problem.bias is not None or problem.alibi_slopes is not None
    if adds and tiles and problem.bias is None:
        # Keys beyond the reach of ALiBi count as negligible ones.
        softmax.flushed |= tiles != block.tiles(math.inf)
    for columns in tiles:
        check_stopped()
        place = Place(*block.part, columns)
        tile = block.shape.array(block.scratch, "tile", columns[1] - columns[0])
        key = widen(block.key[..., slice(*columns), :], problem.dtype)
        np.matmul(key, block.query, out=tile)
        add_rules(problem, tile, place, block.fit)
        if mode is Mode.SHIFTED:
            _hide(block, tile, place)
            softmax.shift(tile)
            _exponentiate_low(tile, infinite=problem.visible.hides or problem.bias is not None)
            softmax.flushed[...] = True
        else:
            if mode is Mode.WATCHED and columns == tiles[0] and _too_high(tile):
                return None
            _exponentiate(block, tile, softmax, low=adds or bound > -_floor(problem.dtype))
            _zero_hidden(block, tile, place)
        softmax.add(tile, columns)
    softmax.close()
    return softmax


def _floor(dtype: np.dtype[Any]) -> float:
    """Return the score whose exponential is just not negligible beside 1, in nats."""
    return math.log(NEGLIGIBLE[dtype])


def _too_high(tile: Array) -> bool:
    """Return whether the scores of all heads nearly need a shift already in their first tile."""
    highest = tile.max(axis=(2, 3, 4))
    return not (highest <= _NEARLY * HIGHEST_UNSHIFTED[tile.dtype]).any()


def _exponentiate(block: Block, tile: Array, softmax: OnlineSoftmax, *, low: bool) -> None:
    """Replace scores without a shift by their exponentials, some of which may be negligible."""
    lowest = tile.min(axis=(2, 3, 4)) if low else np.zeros(1)
    infinite = block.problem.bias is not None
    negligible = lowest < _floor(tile.dtype)
    if not negligible.any():
        block.exp(tile, tile)
    elif negligible.all():
        _exponentiate_low(tile, infinite=infinite)
        softmax.flushed[...] = True
    else:  # each head by itself: none changes another one's bits
        for place in np.ndindex(negligible.shape):
            if negligible[place]:
                _exponentiate_low(tile[place], infinite=infinite)
            else:
                np.exp(tile[place], tile[place])
        softmax.flushed |= negligible


def _exponentiate_low(scores: Array, *, infinite: bool) -> None:
    """Replace scores by their exponentials, where those may be negligible.

    Arithmetic with numbers below 1e−38 takes ten to a hundred times as long as with others. Where
    scores may be −inf, negligible exponentials become 0. Otherwise they become the least that is
    not negligible, which takes less time.
    """
    np.maximum(scores, _floor(scores.dtype), out=scores)
    np.exp(scores, scores)
    if infinite:
        np.subtract(scores, 2 * NEGLIGIBLE[scores.dtype], out=scores)
        np.maximum(scores, 0, out=scores)


def _hide(block: Block, tile: Array, place: Place) -> None:
    """Replace the scores of hidden keys by −inf."""
    for part, edge in _edges(block, tile, place):
        seen = seen_at(block.problem, part)
        if seen is not None:
            np.minimum(edge, block.fit(hidden_as_infinity(seen, tile.dtype)), out=edge)


def _zero_hidden(block: Block, tile: Array, place: Place) -> None:
    """Replace the exponentials of hidden keys by 0."""
    for part, edge in _edges(block, tile, place):
        seen = seen_at(block.problem, part)
        if seen is not None:
            pattern = block.fit(seen)
            if not block.shape.query_major:
                # In the memory order of the tile, so that it is turned once and not for every head.
                pattern = np.ascontiguousarray(pattern)
            np.multiply(edge, pattern, out=edge)


def _edges(block: Block, tile: Array, place: Place) -> Iterator[tuple[Place, Array]]:
    """Yield the parts of a tile that may hold hidden keys, each with its place."""
    start = place.columns[0]
    for part in hiding_parts(block.problem, place):
        yield part, tile[:, :, :, part.columns[0] - start : part.columns[1] - start]


def _deliver(block: Block, softmax: OnlineSoftmax, results: dict[str, Array], good: Bools) -> int:
    """Write context and lse, and return how many queries of good heads see no key."""
    problem, row_sum = block.problem, softmax.row_sum
    own = {
        name: array[block.entry, slice(*block.part.heads), slice(*block.part.rows)]
        for name, array in results.items()
    }
    shift: Array | float = 0.0 if softmax.row_max is None else softmax.row_max
    sinks = None
    if problem.sinks is not None:
        sinks = problem.sinks[slice(*block.part.heads)].reshape(*row_sum.shape[:2], 1, 1)
    if "lse" in own:
        log_sum = log_denominator(row_sum, np.where(row_sum == 0, 0, shift), sinks)
        own["lse"][...] = log_sum.reshape(own["lse"].shape)
    empty = row_sum == 0
    if softmax.context is not None:
        factors: tuple[Array, ...] = (1 / np.where(empty, 1, row_sum),)
        if sinks is not None:
            above = sinks.astype(row_sum.dtype) - np.where(empty, 0, shift)
            factors += share_beside_sinks(row_sum, above)
        *first, last = factors
        for factor in first:
            softmax.context *= factor[:, :, :, None]
        np.multiply(softmax.context, last[:, :, :, None], out=block.shape.view(own["context"]))
    if not (problem.visible.hides or problem.bias is not None):
        return 0
    return int(np.count_nonzero(block.shape.by_head(empty)[good]))
