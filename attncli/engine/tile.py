"""One tile of scores: steps 1 to 4 of the computation, in place, in the order of the spec."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.panels import Grain, across, is_turned, multiply
from attncli.engine.refusals import refuse_scores
from attncli.engine.strategy import Shift
from attncli.finite import all_finite
from attncli.visibility import cut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from attncli.engine.operands import Operands
    from attncli.engine.scratch import Scratch
    from attncli.engine.strategy import Strategy

__all__ = ["Rows", "fill", "silence"]

Array = npt.NDArray[Any]
Span = tuple[int, int]
Step = Callable[["Rows", Span, Array, "Scratch"], None]


@dataclass(eq=False, slots=True)
class Rows:
    """Some queries, and what the tiles of their row of tiles share.

    Attributes
    ----------
    operands : Operands
    batch, head, start, stop : int
        The head is the first of N; where there are more, no rule tells them apart.
    query : ndarray (N, P, D, R)
        In panels (`attncli.engine.panels`), multiplied by scale and unit.
    key : ndarray (G, S, D)
        As stored.
    value : ndarray (G, S, E), or None
        As stored; None where no context is asked for.
    keep : dict of str to ndarray (N, P · R, S)
        Where to copy ``raw``, ``capped`` and ``scores``: those asked for.
    strategy : Strategy
        How the scores are exponentiated.
    grain : Grain
        What query and tiles have.
    steps : list of callable
        What the rules do to a tile of raw scores, one after the other.
    """

    operands: Operands
    batch: int
    head: int
    start: int
    stop: int
    query: Array
    key: Array
    value: Array | None
    keep: dict[str, Array]
    strategy: Strategy
    grain: Grain
    steps: list[Step] | None = None

    def __post_init__(self) -> None:
        if self.steps is None:
            self.steps = list(_steps(self))

    @property
    def panel(self) -> int:
        """How many queries a panel holds."""
        panel: int = self.query.shape[3]
        return panel

    @property
    def sink(self) -> float | None:
        """A logit, in nats, that counts in the denominator."""
        sinks = self.operands.problem.sinks
        return None if sinks is None else float(sinks[self.head])

    @property
    def may_be_blind(self) -> bool:
        """Whether some query may see no key: any rule, or a bias, may hide all of them."""
        problem = self.operands.problem
        return problem.visible.hides or problem.bias is not None

    @property
    def hides_late(self) -> bool:
        """Whether what is hidden is left to whoever exponentiates the tile, to make it 0."""
        return self.strategy.shift is not Shift.APPLIED and not self.keep

    @property
    def skips(self) -> bool:
        """Whether what the banded rules hide from some queries is not even computed."""
        return self.operands.problem.visible.banded and not self.keep

    def part(self, panels: slice) -> Rows:
        """Return some of the panels."""
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


def fill(rows: Rows, columns: Span, out: Array, scratch: Scratch) -> None:
    """Write the scores of some queries and the keys of some columns into ``out``.

    Where `Rows.hides_late`, those of hidden keys too: they come out finite.

    Parameters
    ----------
    rows : Rows
    columns : (start, stop)
    out : ndarray (N, P, columns, R), the computing dtype
    scratch : Scratch

    Raises
    ------
    DataError
        A score that is seen exceeds the range of the computing dtype.
    NotFiniteError
        So it seems, but key and value are still unread.
    """
    keys = widen(rows.key[:, slice(*columns)], rows.query.dtype)
    if rows.operands.problem.score == "additive":
        each = len(out) // len(keys)
        for head, scores in enumerate(out):
            _additive(rows, rows.query[head], keys[head // each], scores)
    else:
        multiply(keys, rows.query, out, rows.grain)
    for step in rows.steps or ():
        step(rows, columns, out, scratch)


def _steps(rows: Rows) -> Iterator[Step]:
    """Give what a problem's rules do to a tile of raw scores, in their order.

    No step holds the rows, which hold the steps: garbage collection may be off.
    """
    problem = rows.operands.problem
    if rows.strategy.may_overflow:
        yield _refuse_overflow
    if "raw" in rows.keep:
        yield partial(_copy, "raw")
    # The cap comes before bias and mask: it must not squeeze −inf back into range.
    if problem.softcap is not None:
        yield _cap
    if "capped" in rows.keep:
        yield partial(_copy, "capped")
    if problem.bias is not None:
        yield _add_bias
    if problem.slopes is not None:
        yield _subtract_penalty
    if rows.strategy.may_overflow and not (problem.bias is None and problem.slopes is None):
        yield _refuse_sums
    # What is hidden is selected, not added: nothing behind a mask can leak.
    if problem.visible.hides and not rows.hides_late:
        yield _hide
    if "scores" in rows.keep:
        yield partial(_copy, "scores")


def _copy(name: str, rows: Rows, columns: Span, tile: Array, _: Scratch) -> None:
    across(rows.keep[name][..., slice(*columns)], rows.panel)[...] = tile


def _additive(rows: Rows, queries: Array, keys: Array, out: Array) -> None:
    """Write scale · v · tanh(q + k) of a head, a query at a time: the sum has a third axis, D.

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
    """Write softcap · tanh(scores / softcap) in place (Gemma 2, section 2)."""
    softcap = (rows.operands.problem.softcap or math.inf) * rows.strategy.unit
    np.divide(scores, softcap, out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, softcap, out=scores)


def _add_bias(rows: Rows, columns: Span, scores: Array, scratch: Scratch) -> None:
    part = _bias_part(rows, columns, scores.dtype)
    if rows.strategy.unit != 1.0:
        room = scratch.apart("bias", *part.shape)
        part = np.multiply(part, rows.strategy.unit, room, dtype=scores.dtype)
    elif is_turned(scores):
        part = scratch.near("bias", part)
    np.add(scores, across(part, rows.panel), out=scores)


def _bias_part(rows: Rows, columns: Span, dtype: np.dtype[Any]) -> Array:
    bias = np.asarray(rows.operands.problem.bias)
    part = cut(bias, rows.batch, rows.head, (rows.start, rows.stop), columns)
    return widen(part, dtype)


def _subtract_penalty(rows: Rows, columns: Span, scores: Array, _: Scratch) -> None:
    """Subtract slope · |i + offset − j| (Press et al. 2022, section 3)."""
    slope = np.asarray(rows.operands.problem.slopes)[rows.head] * rows.strategy.unit
    # The penalty depends on i − j alone: row i is the row before it, moved by one. So it
    # is a view of one diagonal.
    visible = rows.operands.problem.visible
    shape = rows.stop - rows.start, columns[1] - columns[0]
    first = rows.start + visible.offset(rows.batch) - columns[1] + 1
    distance = np.abs(np.arange(first, first + sum(shape) - 1))
    penalty = np.multiply(distance, slope, dtype=scores.dtype, casting="same_kind")
    step = penalty.itemsize
    start = (shape[1] - 1) * step
    view: Array = np.ndarray(shape, penalty.dtype, penalty, start, (step, -step))
    np.subtract(scores, across(view, rows.panel), out=scores)


def _hide(rows: Rows, columns: Span, scores: Array, scratch: Scratch) -> None:
    """Put -inf in the place of every score of a tile whose key its query does not see."""
    for edge, part in _edges(rows, columns, scores):
        seen = _pattern(rows, edge, part, scratch)
        if rows.strategy.may_overflow:
            np.copyto(part, -np.inf, where=seen == 0)
        else:
            # Where a pattern is no stripe, many times as fast: the lesser of the score and ±inf.
            np.subtract(seen, 0.5, out=seen)
            np.multiply(seen, np.inf, out=seen)
            np.minimum(part, seen, out=part)


def silence(rows: Rows, columns: Span, out: Array, scratch: Scratch) -> None:
    """Put 0 in the place of the exponential of every key that its query does not see."""
    visible = rows.operands.problem.visible
    for edge, part in _edges(rows, columns, out):
        seen = partial(_pattern, rows, edge, part, scratch)
        if rows.strategy.may_overflow:
            np.copyto(part, 0, where=seen() == 0)
        elif visible.repeats:
            form = (*visible.form(rows.batch, (rows.start, rows.stop), edge), rows.panel)
            np.multiply(part, scratch.kept(form, seen), out=part)
        else:
            np.multiply(part, seen(), out=part)


def _edges(rows: Rows, columns: Span, tile: Array) -> Iterator[tuple[Span, Array]]:
    """Give the columns of a tile that not every query sees whole, and that part of it."""
    for edge in rows.operands.problem.visible.edges(rows.batch, (rows.start, rows.stop), columns):
        yield edge, tile[:, :, edge[0] - columns[0] : edge[1] - columns[0]]


def _pattern(rows: Rows, edge: Span, part: Array, scratch: Scratch) -> Array:
    """Return 1 for each key of an edge that is seen, 0 for each that is not.

    Returns
    -------
    ndarray (P or 1, columns or 1, R or 1)
        Lying as the tile does: it is turned here, and not again at every head.
    """
    visible = rows.operands.problem.visible
    seen = visible.tile(rows.batch, rows.head, (rows.start, rows.stop), edge)
    if seen is None:
        return np.ones((1, 1, 1), part.dtype)
    if not is_turned(part):
        return across(seen, rows.panel).astype(part.dtype)
    pattern = across(scratch.near("seen", seen), rows.panel)
    return np.broadcast_to(pattern, (len(pattern), *part.shape[2:])).copy().astype(part.dtype)


def _refuse_overflow(rows: Rows, columns: Span, scores: Array, _: Scratch) -> None:
    if not all_finite(scores):
        _refuse(rows, columns, ~np.isfinite(scores))


def _refuse_sums(rows: Rows, columns: Span, scores: Array, _: Scratch) -> None:
    """Refuse sums of scores, bias and penalties that are infinite, but for a bias of −inf."""
    if all_finite(scores):
        return
    wrong = ~np.isfinite(scores)
    if rows.operands.problem.bias is not None:
        wrong &= across(_bias_part(rows, columns, scores.dtype) > -np.inf, rows.panel)
    _refuse(rows, columns, wrong)


def _refuse(rows: Rows, columns: Span, wrong: npt.NDArray[np.bool_]) -> None:
    """Raise the error of scores beyond the range, if some of the wrong ones are seen."""
    problem = rows.operands.problem
    seen = problem.visible.tile(rows.batch, rows.head, (rows.start, rows.stop), columns)
    if seen is not None and problem.unread is None:
        wrong = np.logical_and(wrong, across(seen, rows.panel))
    if wrong.any():
        refuse_scores(problem)
