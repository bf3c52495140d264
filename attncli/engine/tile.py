"""One tile of scores: product, softcap, bias, ALiBi and mask, in place and in this order."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.engine.calls import carry_out
from attncli.engine.exponentials import TooHighError
from attncli.engine.panels import (
    TileLayout,
    as_panels,
    is_key_major,
    product,
    product_in_chunks,
)
from attncli.engine.refusals import refuse_scores
from attncli.engine.rules import cap, penalties
from attncli.engine.strategy import ProductsTooHighError, Shift
from attncli.numerics.dtypes import widen
from attncli.numerics.finite import all_finite
from attncli.problem.visibility import cut

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from attncli.engine.calls import Call
    from attncli.engine.operands import Operands
    from attncli.engine.scratch import Scratch
    from attncli.engine.strategy import Strategy
    from attncli.problem.problem import Problem

__all__ = ["Rows", "rules_of", "score_calls", "zero_calls"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
Rule = Callable[["Rows", Span, Array, "Scratch"], None]


@dataclass(eq=False, slots=True)
class Rows:
    """Some queries with everything that their tiles have in common.

    Attributes
    ----------
    operands : Operands
    batch, start, stop : int
        ``stop`` is the end of the last panel, which may have more queries than there are.
    heads : (first, last + 1)
        N of them; one if the steps of a window take the places of heads.
    query : ndarray (N, P, D, R)
        In panels (`attncli.engine.panels`), multiplied by scale and `Strategy.unit`; unscaled for
        the additive score, and beside a `last_factor`.
    key : ndarray (..., S, D)
        From `attncli.engine.panels.by_query_head`; as stored.
    value : ndarray (..., S, E), or None
        Likewise; None where no context is asked for.
    keep : dict of str to ndarray (N, P · R, S)
        Where to copy ``raw``, ``capped`` and ``scores``, if asked for.
    strategy : Strategy
        How the scores are exponentiated.
    layout : TileLayout
        The layout of query and tiles.
    rules : tuple of callable
        Make the scores of a tile of its raw ones, one after the other (`rules_of`).
    last_factor : ndarray (1,), or None
        What the products are multiplied with, where the query is not (`Strategy.scaled_last`).
    """

    operands: Operands
    batch: int
    heads: Span
    start: int
    stop: int
    query: Array
    key: Array
    value: Array | None
    keep: dict[str, Array]
    strategy: Strategy
    layout: TileLayout
    rules: tuple[Rule, ...]
    last_factor: Array | None = None

    @property
    def panel(self) -> int:
        """The number of queries in a panel."""
        panel: int = self.query.shape[3]
        return panel

    @property
    def index(self) -> int | slice:
        """The index of these heads on the head axis of a rule; for one head it drops the axis."""
        first, last = self.heads
        return first if last - first == 1 else slice(first, last)

    @property
    def sinks(self) -> Array | None:
        """The logits (N, 1, 1), in nats, that count in the denominators only."""
        sinks = self.operands.problem.sinks
        return None if sinks is None else sinks[slice(*self.heads), None, None]

    @property
    def may_be_fully_masked(self) -> bool:
        """Whether some query may see no key, because rules or a bias of −inf hide all of them."""
        problem = self.operands.problem
        return problem.visible.hides or problem.bias is not None

    @property
    def masks_after_exp(self) -> bool:
        """Whether hidden keys are zeroed after the exponential, not set to −inf before it.

        That is faster, but only works without a shift, and not where score stages are kept.
        """
        return not _masks_before_exp(self.strategy, self.keep)

    def has_infinite_scores(self, *, hides: bool) -> bool:
        """Return whether scores of a tile, in which rules hide keys or not, may be −inf."""
        infinite = hides and not self.masks_after_exp
        return infinite or self.operands.problem.bias is not None

    @property
    def skips_hidden(self) -> bool:
        """Whether tiles that the banded rules hide entirely are not computed at all."""
        return self.operands.problem.visible.banded and not self.keep

    def part(self, panels: slice) -> Rows:
        """Return the rows of some panels."""
        if panels.stop - panels.start == self.query.shape[1]:
            return self
        first, last = panels.start * self.panel, panels.stop * self.panel
        return replace(
            self,
            start=self.start + first,
            stop=self.start + last,
            query=self.query[:, panels],
            keep={name: array[:, first:last] for name, array in self.keep.items()},
        )


def score_calls(rows: Rows, columns: Span, out: Array, scratch: Scratch) -> Iterator[Call]:
    """Yield the calls that write the scores of some queries and keys into ``out``.

    Under `Rows.masks_after_exp`, hidden keys get finite scores instead of −inf.

    Parameters
    ----------
    rows : Rows
    columns : (start, stop)
        The keys.
    out : ndarray (N, P, columns, R), the computing dtype
    scratch : Scratch

    Raises
    ------
    DataError
        By a call: a score that is seen exceeds the range of the computing dtype.
    NotFiniteError
        The same, while query, key and value are still unread.
    """
    yield from _products(rows, columns, out)
    for rule in rows.rules:
        yield rule, (rows, columns, out, scratch)


def rules_of(problem: Problem, strategy: Strategy, keep: Collection[str]) -> tuple[Rule, ...]:
    """Return what a problem requires after the product, in order.

    None of it refers to the rows: these refer to it, and with garbage collection off a
    reference cycle would never be freed.
    """
    return tuple(_rules(problem, strategy, keep))


def _rules(problem: Problem, strategy: Strategy, keep: Collection[str]) -> Iterator[Rule]:
    if strategy.may_overflow:
        yield _refuse_overflow
    if "raw" in keep:
        yield partial(_copy, "raw")
    # Softcap precedes bias and mask, or it would squeeze −inf back into range.
    if problem.softcap is not None:
        yield _cap
    if "capped" in keep:
        yield partial(_copy, "capped")
    if problem.bias is not None:
        yield _add_bias
    if problem.alibi_slopes is not None:
        yield _subtract_penalty
    adds = problem.bias is not None or problem.alibi_slopes is not None
    # In bits a sum may be infinite that is not in nats. An exponential of 0 is right then; where
    # it is not, the sums show it, and the block is computed again in nats.
    if strategy.may_overflow and adds and strategy.unit == 1.0:
        yield _refuse_sums
    # Hidden scores are replaced, not added to, so nothing behind a mask can leak.
    if problem.visible.hides and _masks_before_exp(strategy, keep):
        yield _hide
    if "scores" in keep:
        yield partial(_copy, "scores")


def _masks_before_exp(strategy: Strategy, keep: Collection[str]) -> bool:
    """Return whether hidden keys are set to −inf, not zeroed after the exponential."""
    return strategy.shift is Shift.APPLIED or bool(keep)


def _copy(name: str, rows: Rows, columns: Span, tile: Array, _: Scratch) -> None:
    as_panels(rows.keep[name][..., slice(*columns)], rows.panel)[...] = tile


def _products(rows: Rows, columns: Span, out: Array) -> Iterator[Call]:
    """Yield the calls that write the raw scores."""
    yield from _unscaled_products(rows, columns, out)
    if rows.last_factor is not None:
        yield np.multiply, (out, rows.last_factor, out)


def _unscaled_products(rows: Rows, columns: Span, out: Array) -> Iterator[Call]:
    """Yield the calls that write the products, which only the query may have scaled."""
    keys = rows.key[..., columns[0] : columns[1], :]
    if not rows.operands.problem.is_product:
        yield _add_keys, (rows, keys, out)
    elif keys.dtype == out.dtype:
        yield from product_in_chunks(keys, rows.query, out, rows.layout.chunk)
    else:
        yield _multiply_widened, (keys, rows.query, out)


def _multiply_widened(keys: Array, query: Array, out: Array) -> None:
    carry_out([product(widen(keys, out.dtype), query, out)])


def _add_keys(rows: Rows, keys: Array, out: Array) -> None:
    """Write the additive scores, of heads with keys of their own."""
    keys = widen(keys, out.dtype)
    for query, own, scores in zip(
        rows.query, keys.reshape(len(out), -1, keys.shape[-1]), out, strict=True
    ):
        _additive(rows, query, own, scores)


def _additive(rows: Rows, queries: Array, keys: Array, out: Array) -> None:
    """Write scale · v · tanh(q + k) of one head, query by query because q + k has a third axis, D.

    References
    ----------
    Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to
    Align and Translate", appendix A.1.2, with the projections left to the caller.
    """
    problem = rows.operands.problem
    vector = widen(np.asarray(problem.score_vector), problem.dtype)
    hidden_layer = np.empty_like(keys)
    for panel, scores in zip(queries, out, strict=True):
        for number, query in enumerate(panel.T):
            np.add(keys, query, out=hidden_layer)
            np.tanh(hidden_layer, out=hidden_layer)
            np.matmul(hidden_layer, vector, out=scores[:, number])
    factor = problem.scale * rows.strategy.unit
    if factor != 1.0:
        np.multiply(out, factor, out=out)


def _cap(rows: Rows, _: Span, scores: Array, __: Scratch) -> None:
    cap(scores, (rows.operands.problem.softcap or math.inf) * rows.strategy.unit)


def _add_bias(rows: Rows, columns: Span, scores: Array, scratch: Scratch) -> None:
    part = _bias_part(rows, columns, scores.dtype)
    if rows.strategy.unit != 1.0:
        room = scratch.padded("bias", *part.shape)
        part = np.multiply(part, rows.strategy.unit, room, dtype=scores.dtype)
    elif is_key_major(scores):
        part = scratch.column_readable("bias", part)
    np.add(scores, as_panels(part, rows.panel), out=scores)


def _bias_part(rows: Rows, columns: Span, dtype: np.dtype[Any]) -> Array:
    bias = np.asarray(rows.operands.problem.bias)
    return widen(cut(bias, rows.batch, rows.index, (rows.start, rows.stop), columns), dtype)


def _subtract_penalty(rows: Rows, columns: Span, scores: Array, _: Scratch) -> None:
    problem = rows.operands.problem
    slopes = np.asarray(problem.alibi_slopes)[slice(*rows.heads)] * rows.strategy.unit
    first = rows.start + problem.visible.offset(rows.batch) - columns[1] + 1
    shape = rows.stop - rows.start, columns[1] - columns[0]
    penalty = penalties(slopes, first, shape, scores.dtype)
    np.subtract(scores, as_panels(penalty, rows.panel), out=scores)


def _hide(rows: Rows, columns: Span, scores: Array, scratch: Scratch) -> None:
    """Set the scores of hidden keys to −inf."""
    for edge, part in _edges(rows, columns, scores):
        if rows.strategy.may_overflow:
            np.copyto(part, -np.inf, where=~_pattern(rows, edge, part, scratch))
        else:
            # min(score, ±inf) is many times faster than a masked copy of an irregular pattern.
            seen = _factors(rows, edge, part, scratch)
            np.subtract(seen, 0.5, out=seen)
            np.multiply(seen, np.inf, out=seen)
            np.minimum(part, seen, out=part)


def zero_calls(rows: Rows, columns: Span, out: Array, scratch: Scratch) -> Iterator[Call]:
    """Yield the calls that set the exponentials of hidden keys to 0."""
    visible = rows.operands.problem.visible
    for edge, part in _edges(rows, columns, out):
        if visible.repeats and not rows.strategy.may_overflow:
            form = (*visible.form(rows.batch, (rows.start, rows.stop), edge), rows.panel)
            seen = scratch.cached(form, partial(_factors, rows, edge, part, scratch))
            yield np.multiply, (part, seen, part)
        else:
            yield _zero, (rows, edge, part, scratch)


def _zero(rows: Rows, edge: Span, part: Array, scratch: Scratch) -> None:
    seen = _pattern(rows, edge, part, scratch)
    if rows.strategy.may_overflow:
        np.copyto(part, 0, where=~seen)
    else:
        np.multiply(part, seen, out=part)


def _edges(rows: Rows, columns: Span, tile: Array) -> Iterator[tuple[Span, Array]]:
    """Yield the column ranges of a tile that hold hidden keys, each with its part of the tile."""
    for edge in rows.operands.problem.visible.edges(rows.batch, (rows.start, rows.stop), columns):
        yield edge, tile[:, :, edge[0] - columns[0] : edge[1] - columns[0]]


def _factors(rows: Rows, edge: Span, part: Array, scratch: Scratch) -> Array:
    """Return 1 where a key of an edge is seen and 0 where it is hidden; otherwise as `_pattern`."""
    return _pattern(rows, edge, part, scratch).astype(part.dtype)


def _pattern(
    rows: Rows, edge: Span, part: Array, scratch: Scratch
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return where a key of an edge is seen.

    Returns
    -------
    ndarray of bool (P or 1, columns or 1, R or 1) or (N, …)
        In the memory order of the tile, so that it is transposed once, not for every head that it
        is the same for. The next pattern overwrites it.
    """
    visible = rows.operands.problem.visible
    seen = visible.tile(rows.batch, rows.index, (rows.start, rows.stop), edge)
    if seen is None:
        return np.ones((1, 1, 1), np.bool_)
    if not is_key_major(part):
        return as_panels(seen, rows.panel)
    pattern = as_panels(scratch.column_readable("seen", seen), rows.panel)
    shape = *pattern.shape[:-2], *part.shape[2:]
    turned = scratch.buffer("pattern", *shape, dtype=np.dtype(np.bool_))
    np.copyto(turned, pattern)
    return turned


def _refuse_overflow(rows: Rows, columns: Span, scores: Array, _: Scratch) -> None:
    if all_finite(scores):
        return
    if rows.last_factor is not None:  # the products may be within range if the query is scaled
        raise ProductsTooHighError
    if rows.strategy.unit != 1.0:  # in nats they may be finite
        raise TooHighError
    _refuse(rows, columns, ~np.isfinite(scores))


def _refuse_sums(rows: Rows, columns: Span, scores: Array, _: Scratch) -> None:
    """Raise if score + bias − penalty is infinite, unless the bias itself is −inf."""
    if all_finite(scores):
        return
    wrong = ~np.isfinite(scores)
    if rows.operands.problem.bias is not None:
        wrong &= as_panels(_bias_part(rows, columns, scores.dtype) > -np.inf, rows.panel)
    _refuse(rows, columns, wrong)


def _refuse(rows: Rows, columns: Span, wrong: npt.NDArray[np.bool_]) -> None:
    """Raise the error of scores beyond the range if a query sees any of the wrong ones."""
    problem = rows.operands.problem
    seen = problem.visible.tile(rows.batch, rows.index, (rows.start, rows.stop), columns)
    if seen is not None and problem.unread is None:
        wrong = np.logical_and(wrong, as_panels(seen, rows.panel))
    if wrong.any():
        refuse_scores(problem)
