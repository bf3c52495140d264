"""One tile of scores: steps 1 to 4 of the computation, in place, in the order of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.engine.operands import Operands
from attncli.errors import DataError
from attncli.visibility import cut

__all__ = ["Rows", "fill"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Rows:
    """Some queries of one head, and what the tiles of their row of tiles share.

    Attributes
    ----------
    operands : Operands
    batch, head, start, stop : int
    query : ndarray (rows, D)
        Scaled.
    keep : dict of str to ndarray (rows, S)
        Where to copy ``raw``, ``capped`` and ``scores``: those asked for.
    may_overflow : bool
        Whether the product of query and key may exceed the computing dtype.
    """

    operands: Operands
    batch: int
    head: int
    start: int
    stop: int
    query: Array
    keep: dict[str, Array]
    may_overflow: bool


def fill(rows: Rows, columns: tuple[int, int], out: Array) -> None:
    """Write the scores of some queries and the keys of some columns into ``out``.

    Parameters
    ----------
    rows : Rows
    columns : (start, stop)
    out : ndarray (rows, columns), the computing dtype

    Raises
    ------
    DataError
        A score that is seen exceeds the range of the computing dtype.
    """
    problem = rows.operands.problem
    part = slice(*columns)
    seen = problem.visible.tile(rows.batch, rows.head, (rows.start, rows.stop), columns)
    # 1. Similarity.
    if problem.score == "additive":
        _additive(rows, columns, out)
    else:
        np.matmul(rows.query, rows.operands.key_rows(rows.batch, rows.head, *columns).T, out=out)
    if rows.may_overflow:
        _refuse_overflow(out, seen)
    _copy(rows, "raw", part, out)
    # 2. The cap comes before bias and mask: it must not squeeze −inf back into range.
    if problem.softcap is not None:
        _cap(out, problem.softcap)
    _copy(rows, "capped", part, out)
    # 3. What is added.
    if problem.bias is not None:
        bias = cut(problem.bias, rows.batch, rows.head, (rows.start, rows.stop), columns)
        np.add(out, widen(bias, problem.dtype), out=out)
    if problem.slopes is not None:
        np.subtract(out, _distance_penalty(rows, columns), out=out)
    # 4. What is hidden is selected, not added: nothing behind a mask can leak.
    if seen is not None:
        np.copyto(out, -np.inf, where=np.logical_not(seen))
    _copy(rows, "scores", part, out)


def _copy(rows: Rows, name: str, part: slice, tile: Array) -> None:
    if name in rows.keep:
        rows.keep[name][:, part] = tile


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
    if problem.scale != 1.0:
        np.multiply(out, problem.scale, out=out)


def _cap(scores: Array, softcap: float) -> None:
    """Write softcap · tanh(scores / softcap) in place (Gemma 2, section 2)."""
    np.divide(scores, softcap, out=scores)
    np.tanh(scores, out=scores)
    np.multiply(scores, softcap, out=scores)


def _distance_penalty(rows: Rows, columns: tuple[int, int]) -> Array:
    """Return slope · |i + offset − j| (Press et al. 2022, section 3)."""
    problem = rows.operands.problem
    slope = 0.0 if problem.slopes is None else problem.slopes[rows.head]
    position = np.arange(rows.start, rows.stop) + problem.visible.offset(rows.batch)
    distance = np.abs(np.subtract.outer(position, np.arange(*columns)))
    return np.multiply(distance, slope, dtype=problem.dtype, casting="same_kind")


def _refuse_overflow(scores: Array, seen: npt.NDArray[np.bool_] | None) -> None:
    wrong = ~np.isfinite(scores)
    if seen is not None:
        wrong &= seen
    if wrong.any():
        raise DataError(
            f"the scores exceed the range of {scores.dtype.name}: query and key are too large",
            hint="compute in float64 (--precision float64), or give a smaller scale",
        )
