"""Judge single queries in 16 bits by what rounding may do to the context or the weights of each.

A stretch of queries leaves its worst rows out: where the largest scores of a row are nearly the
same, to round one of them moves all of its numbers. How far is known. Where scores err by δ_j and
products of a weight and a value by a share ω_j, the context c of a query errs to first order by

    Σ_j w_j (δ_j (v_j − c) + ω_j v_j)

of which the mean square is the sum of those of all terms, since roundings are independent. What
rounds the query itself moves all of its scores, δ_j = Σ_d ε_d q_d k_jd, and is added up before it
is squared; so are those of a key that is given several times, and weights of float16 that become 0.
A row is wrong by itself if it is many times as far off as that, and as what is usual beside it.
Weights are the context of values that are the rows of a unit matrix.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.numerics.dtypes import widen
from attncli.referee.pipeline import evaluate, pipeline_of
from attncli.referee.report import Stretch

if TYPE_CHECKING:
    from attncli.problem.problem import Problem
    from attncli.referee.formats import Digits, Precision
    from attncli.referee.pipeline import Outputs
    from attncli.referee.verdict import Errors

__all__ = ["judged_row_by_row"]

Array = npt.NDArray[Any]
# A batch entry, a head and a query.
Row = tuple[int, int, int]
# The worst rows of so many heads are looked at, each beside so many; if one is wrong, of more.
_HEADS, _BESIDE, _MOST_HEADS = 8, 16, 64
# Rows of fewer numbers are compared with so much of what is usual.
_USUAL = 0.25
# Right computations come to 3 times what is expected, where one score has most of a row's weight.
_FACTOR = 6.0
# Numbers are rounded when they are made and when they are scaled, or turned to another format.
_ROUNDINGS = 2
# Scores that err by more than this, in nats, move weights further than to first order; those that
# are lower than the highest by more than the second have no weight.
_SMALL, _LOW = 0.25, 40.0
# Numbers of float16 that are less than the second are rounded by the first.
_LEAST, _SUBNORMAL = 2.0**-25, 2.0**-14
# Scores that agree to so many decimals are those of the same key, given twice.
_SAME = 9


def judged_row_by_row(
    problem: Problem, name: str, errors: Errors, precision: Precision, digits: Digits
) -> Errors:
    """Return the errors of an output, with a row that is wrong by itself if there is one.

    Parameters
    ----------
    problem : Problem
        In float64.
    name : str
        context, without an output projection, or weights of each head; of others nothing is said.
    errors : Errors
        Beside the answer.
    precision : Precision
        Of 16 bits.
    digits : Digits
    """
    # Rotary angles, and what a matrix makes of keys, are rounded in ways of their own.
    if name not in ("context", "weights") or problem.rope is not None or problem.score != "dot":
        return errors
    rows = _Rows(problem, name, errors, precision, digits)
    for place in rows.doubtful():
        found, most = rows.found_and_most(place)
        if found > most:
            batch, head, query = place
            own_batch, own_head = problem.layout.place(batch, head)
            tolerance = replace(errors.tolerance, rms=most)
            stretch = Stretch(own_batch, own_head, (query, query + 1), found, tolerance)
            return replace(errors, stretch=stretch, limits=rows.limits(query))
    return errors


class _Rows(NamedTuple):
    """An output whose rows are judged: `judged_row_by_row`."""

    problem: Problem
    name: str
    errors: Errors
    precision: Precision
    digits: Digits

    def doubtful(self) -> list[Row]:
        """Return the rows of each head with the largest errors for their numbers, worst first.

        A row of hardly anything, whose share is large by itself, does not hide another.
        """
        error, answer = _rms(self.errors.error), _rms(self.errors.answer)
        usual = np.maximum(answer, _USUAL * np.median(answer, axis=-1, keepdims=True))
        shares = _shares(error, answer)
        rows = [each.argmax(axis=-1) for each in (shares, _shares(error, usual))]
        worst = [place for one in rows for place in _worst(shares, one, _HEADS)]
        return list(dict.fromkeys(worst))

    def limits(self, query: int) -> Array:
        """Return how large an error may be in a query's rows that are wrong; inf of all others.

        Beside a row that is wrong, those do not count as right that are further off than right
        ones are.
        """
        limits = np.full((*self.errors.error.shape[:3], 1), np.inf)
        shares = _shares(_rms(self.errors.error), _rms(self.errors.answer))
        for place in _worst(shares, np.full(limits.shape[:2], query), _MOST_HEADS):
            found, most = self.found_and_most(place)
            if found > most / 2:
                limits[place] = most / 2
        return limits

    def found_and_most(self, place: Row) -> tuple[float, float]:
        """Return the root mean square error of a row, and the largest that is no mistake."""
        batch, head, query = place
        queries = self.problem.shape[2]
        first = max(0, min(query - _BESIDE // 2, queries - _BESIDE))
        rows = first, min(first + _BESIDE, queries)
        part = self.problem.select(batch=batch, head=head, rows=rows)
        rounded = _Rounded.of(part, self.name, self.precision)
        own = query - first
        if not rounded.known[own]:
            return 0.0, math.inf
        found = _rms(self.errors.error[batch, head, slice(*rows)])
        printed = self.digits.absolute + self.digits.relative * _rms(rounded.made)
        expected = np.sqrt(rounded.squares()) + _rms(rounded.flushed()) + printed
        expected += rounded.least + np.finfo(np.float64).tiny
        others = rounded.known & (np.arange(len(expected)) != own)
        usual = float(np.median((found / expected)[others])) if others.any() else 0.0
        together = rounded.by_the_query(own), rounded.by_equal_keys(own)
        most = math.hypot(expected[own], *together)
        return float(found[own]), _FACTOR * max(1.0, usual) * most


def _shares(errors: Array, sizes: Array) -> Array:
    """Return the errors of each row as a share of a size, (B, H, L)."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(errors / sizes, posinf=0.0)


def _worst(shares: Array, rows: npt.NDArray[np.intp], count: int) -> list[Row]:
    """Return so many of the rows, one of each head (B, H), that have the largest shares."""
    largest = np.take_along_axis(shares, rows[..., None], axis=-1)[..., 0]
    worst = [np.unravel_index(i, largest.shape) for i in np.argsort(-largest, axis=None)]
    return [(int(b), int(h), int(rows[b, h])) for b, h in worst[:count] if largest[b, h] > 0]


class _Rounded(NamedTuple):
    """What roundings do to the contexts, or the weights, of a few queries of one head.

    Attributes
    ----------
    query, key, weights : ndarray
        (L, D), (S, D) and (L, S). Queries are scaled.
    value : ndarray (S, E) or None
        None stands for a unit matrix, of which the weights are the context.
    made : ndarray (L, E)
        The context.
    share : float
        The root mean square of what all roundings of a number change, of the number.
    scores : ndarray (L, S)
        The root mean square of what they change in each score.
    sink : ndarray (L,)
        The same in the score of the sink, times the sink's weight.
    known : ndarray of bool (L,)
        Where these are small.
    exact : ndarray (L, S)
        The scores.
    least : float
        What numbers that are nearly 0 are rounded by.
    """

    query: Array
    key: Array
    weights: Array
    value: Array | None
    made: Array
    share: float
    scores: Array
    sink: Array
    known: npt.NDArray[np.bool_]
    exact: Array
    least: float

    @classmethod
    def of(cls, part: Problem, name: str, precision: Precision) -> _Rounded:
        """Solve the problem of these queries."""
        outputs = evaluate(pipeline_of(part))
        score, weights, made = (outputs[each][0, 0] for each in ("scores", "weights", name))
        query, key = (_finite(widen(a[0, 0], np.float64)) for a in (part.query, part.key))
        query = part.scale * query
        value = None
        if name == "context":
            value = _finite(widen(np.asarray(part.value)[0, 0], np.float64))
        share = precision.eps * math.sqrt(_ROUNDINGS / 12)
        # Of keys each number is rounded by itself.
        of_keys = np.sqrt(np.square(query) @ np.square(key).T)
        scores = share * np.hypot(_score_sizes(outputs)[0, 0], of_keys)
        weighty = score > score.max(axis=-1, keepdims=True) - _LOW
        known = weights.any(axis=-1)
        known &= np.max(scores, where=weighty, initial=0, axis=-1) < _SMALL
        sink = np.zeros(len(query))
        if part.sinks is not None:
            own = share * np.abs(part.sinks.ravel())
            known &= own < _SMALL
            sink = own * (1 - weights.sum(axis=-1))
        least = _LEAST if precision.name == "float16" else 0.0
        return cls(query, key, weights, value, made, share, scores, sink, known, score, least)

    def squares(self) -> Array:
        """Return the mean squares of what independent roundings change in each row, (L,)."""
        value = self.value
        moved = np.square(self.weights * self.scores)
        by_scores = moved.sum(axis=-1, keepdims=True) * np.square(self.made)
        terms = np.square(self.share * self.weights)
        if value is None:
            by_scores += moved - 2 * self.made * moved
            by_terms = terms
        else:
            by_scores += moved @ np.square(value) - 2 * self.made * (moved @ value)
            by_terms = terms @ np.square(value)
        by_itself = np.square(self.share * self.made) + np.square(self.sink[:, None] * self.made)
        return np.asarray((np.maximum(by_scores, 0) + by_terms + by_itself).mean(axis=-1))

    def flushed(self) -> Array:
        """Return how far contexts move as weights that are nearly 0 all become 0, (L, E)."""
        lost = np.where(self.weights < _SUBNORMAL, np.minimum(self.weights, self.least), 0)
        return lost if self.value is None else lost @ self.value

    def by_equal_keys(self, row: int) -> float:
        """Return the same of the scores of keys that are given several times, all at once."""
        if self.value is None:
            return 0.0
        same, place = np.unique(np.round(self.exact[row], _SAME), return_inverse=True)
        if len(same) == len(place):
            return 0.0
        weights, scores, made = self.weights[row], self.scores[row], self.made[row]
        terms = [scores[:, None] * (self.value - made), self.share * self.value]
        squares = 0.0
        for term in terms:
            sums = np.zeros((len(same), term.shape[1]))
            np.add.at(sums, place, weights[:, None] * term)
            squares += float(np.square(sums).sum(axis=0).mean())
        return math.sqrt(squares)

    def by_the_query(self, row: int) -> float:
        """Return the root mean square of what roundings of a query's numbers change in its row."""
        weighted = (self.weights[row][:, None] * self.key).T
        sums = weighted if self.value is None else weighted @ self.value
        sums = sums - weighted.sum(axis=-1, keepdims=True) * self.made[row]
        moved = self.query[row][:, None] * sums
        return self.share * math.sqrt(np.square(moved).sum(axis=0).mean())


def _score_sizes(outputs: Outputs) -> Array:
    """Return how large the numbers are that each score is made of; 0 of hidden keys."""
    raw, capped, scores = (outputs[name] for name in ("raw", "capped", "scores"))
    with np.errstate(invalid="ignore"):
        sizes = np.max(np.abs([raw, capped, scores, scores - capped]), axis=0)
    return np.where(np.isfinite(scores), sizes, 0)


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0)


def _rms(array: Array) -> Array:
    """Return the root mean squares of the finite numbers of each row."""
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.square(_finite(array)).mean(axis=-1)))
