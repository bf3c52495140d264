"""One tile of scores: steps 1 to 4 of the computation, in place, in the order of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.errors import DataError
from attncli.finite import all_finite
from attncli.visibility import cut

if TYPE_CHECKING:
    from attncli.engine.operands import Operands
    from attncli.problem import Problem

__all__ = ["NotFiniteError", "Rows", "fill", "hide", "refuse_scores"]

Array = npt.NDArray[Any]


class NotFiniteError(Exception):
    """Something that nobody has looked at yet is not finite."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Some queries of one head, and what the tiles of their row of tiles share.

    Attributes
    ----------
    operands : Operands
    batch, head, start, stop : int
    query : ndarray (rows, D)
        Multiplied by scale and unit.
    unit : float
        Scores are in 1/unit nats: 1, or 1/ln 2 where they are in bits.
    keep : dict of str to ndarray (rows, S)
        Where to copy ``raw``, ``capped`` and ``scores``: those asked for.
    may_overflow : bool
        Whether the product of query and key may exceed the computing dtype.
    shifted : bool
        Whether the scores are shifted before they are exponentiated.
    """

    operands: Operands
    batch: int
    head: int
    start: int
    stop: int
    query: Array
    unit: float
    keep: dict[str, Array]
    may_overflow: bool
    shifted: bool

    @property
    def hides_late(self) -> bool:
        """Whether what is hidden is left to whoever exponentiates the tile, to make it 0."""
        return not self.shifted and not self.keep


def fill(rows: Rows, columns: tuple[int, int], out: Array) -> None:
    """Write the scores of some queries and the keys of some columns into ``out``.

    Where `Rows.hides_late`, those of hidden keys too: they come out finite.

    Parameters
    ----------
    rows : Rows
    columns : (start, stop)
    out : ndarray (rows, columns), the computing dtype

    Raises
    ------
    DataError
        A score that is seen exceeds the range of the computing dtype.
    NotFiniteError
        So it seems, but key and value are still unread.
    """
    problem = rows.operands.problem
    # 1. Similarity.
    if problem.score == "additive":
        _additive(rows, columns, out)
    else:
        np.matmul(rows.query, rows.operands.key_rows(rows.batch, rows.head, *columns).T, out=out)
    if rows.may_overflow:
        _refuse_overflow(rows, columns, out)
    _copy(rows, "raw", columns, out)
    # 2. The cap comes before bias and mask: it must not squeeze −inf back into range.
    if problem.softcap is not None:
        _cap(out, problem.softcap * rows.unit)
    _copy(rows, "capped", columns, out)
    # 3. What is added.
    if problem.bias is not None:
        bias = cut(problem.bias, rows.batch, rows.head, (rows.start, rows.stop), columns)
        np.add(out, widen(bias, problem.dtype), out=out)
    if problem.slopes is not None:
        np.subtract(out, _distance_penalty(rows, columns), out=out)
    # 4. What is hidden is selected, not added: nothing behind a mask can leak.
    if not rows.hides_late:
        hide(rows, columns, out, -np.inf)
    _copy(rows, "scores", columns, out)


def _copy(rows: Rows, name: str, columns: tuple[int, int], tile: Array) -> None:
    if name in rows.keep:
        rows.keep[name][:, slice(*columns)] = tile


def _additive(rows: Rows, columns: tuple[int, int], out: Array) -> None:
    """Write scale · v · tanh(q + k), a query at a time: the sum has a third axis, D.

    References
    ----------
    Bahdanau, Cho, Bengio 2015, "Neural Machine Translation by Jointly Learning to
    Align and Translate", appendix A.1.2, with the projections left to the caller.
    """
    problem = rows.operands.problem
    vector = widen(np.asarray(problem.score_vector), problem.dtype)
    keys = rows.operands.key_rows(rows.batch, rows.head, *columns)
    hidden_layer = np.empty_like(keys)
    for query, scores in zip(rows.query, out, strict=True):
        np.add(keys, query, out=hidden_layer)
        np.tanh(hidden_layer, out=hidden_layer)
        np.matmul(hidden_layer, vector, out=scores)
    factor = problem.scale * rows.unit
    if factor != 1.0:
        np.multiply(out, factor, out=out)


def _cap(scores: Array, softcap: float) -> None:
    """Write softcap · tanh(scores / softcap) in place (Gemma 2, section 2)."""
    np.divide(scores, softcap, out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, softcap, out=scores)


def _distance_penalty(rows: Rows, columns: tuple[int, int]) -> Array:
    """Return slope · |i + offset − j| (Press et al. 2022, section 3), as a view of one diagonal."""
    problem = rows.operands.problem
    slope = 0.0 if problem.slopes is None else problem.slopes[rows.head] * rows.unit
    # The penalty depends on i − j alone: row i is the row before it, moved by one.
    first = rows.start + problem.visible.offset(rows.batch) - columns[1] + 1
    count = rows.stop - rows.start
    distance = np.abs(np.arange(first, first + count + columns[1] - columns[0] - 1))
    penalty = np.multiply(distance, slope, dtype=problem.dtype, casting="same_kind")
    step = penalty.itemsize
    shape = count, columns[1] - columns[0]
    return np.ndarray(shape, penalty.dtype, penalty, (shape[1] - 1) * step, (step, -step))


def hide(rows: Rows, columns: tuple[int, int], out: Array, value: float) -> None:
    """Put a value in the place of every key of a tile that its query does not see."""
    visible = rows.operands.problem.visible
    if not visible.hides:
        return
    span = rows.start, rows.stop
    for start, stop in visible.edges(rows.batch, span, columns):
        seen = visible.tile(rows.batch, rows.head, span, (start, stop))
        if seen is not None:
            part = out[:, start - columns[0] : stop - columns[0]]
            np.copyto(part, value, where=np.logical_not(seen))


def _refuse_overflow(rows: Rows, columns: tuple[int, int], scores: Array) -> None:
    if all_finite(scores):
        return
    problem = rows.operands.problem
    wrong = ~np.isfinite(scores)
    seen = problem.visible.tile(rows.batch, rows.head, (rows.start, rows.stop), columns)
    if seen is not None and problem.unread is None:
        wrong &= seen
    if wrong.any():
        refuse_scores(problem)


def refuse_scores(problem: Problem) -> NoReturn:
    """Raise the error of scores that are not finite.

    Raises
    ------
    NotFiniteError
        Key and value are still unread: it may be their fault.
    DataError
        They are not to blame.
    """
    if problem.unread is not None:
        raise NotFiniteError
    raise DataError(
        f"the scores exceed the range of {problem.dtype.name}: query and key are too large",
        hint="compute in float64 (--precision float64), or give a smaller scale",
    )
