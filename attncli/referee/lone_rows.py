"""Judge single queries of a context in 16 bits by what rounding may do to each of them.

A stretch of queries leaves its worst rows out: where the largest scores of a row are nearly the
same, to round one of them moves all of its numbers. How far is known. Where scores err by δ_j and
products of a weight and a value by a share ω_j, the context c of a query errs to first order by

    Σ_j w_j (δ_j (v_j − c) + ω_j v_j)

of which the mean square is the sum of those of all terms, since roundings are independent. What
rounds the query itself moves all of its scores, δ_j = Σ_d ε_d q_d k_jd, and is added up before it
is squared. A row is wrong by itself if it is many times as far off as that, and as what is usual
beside it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.dtypes import widen
from attncli.referee.evaluation import evaluate
from attncli.referee.recipe import recipe_of
from attncli.referee.report import Stretch

if TYPE_CHECKING:
    from attncli.problem import Problem
    from attncli.referee.recipe import Outputs
    from attncli.referee.rounding import Digits, Precision
    from attncli.referee.verdict import Errors

__all__ = ["judged_row_by_row"]

Array = npt.NDArray[Any]
# The worst rows of so many heads are looked at, each beside so many; if one is wrong, of more.
_HEADS, _BESIDE, _MOST_HEADS = 8, 16, 64
# Right computations come to 3 times what is expected, where one score has most of a row's weight.
_FACTOR = 6.0
# Numbers are rounded when they are made and when they are scaled, or turned to another format.
_ROUNDINGS = 2
# Scores that err by more than this, in nats, move weights further than to first order; those that
# are lower than the highest by more than the second have no weight.
_SMALL, _LOW = 0.25, 40.0
# Numbers of float16 that are nearly 0 are rounded by this.
_LEAST = 2.0**-25


def judged_row_by_row(
    problem: Problem, errors: Errors, precision: Precision, digits: Digits
) -> Errors:
    """Return the errors of a context, with a row that is wrong by itself if there is one.

    Parameters
    ----------
    problem : Problem
        In float64, without an output projection.
    errors : Errors
        Beside the answer.
    precision : Precision
        Of 16 bits.
    digits : Digits
    """
    # Rotary angles, and what a matrix makes of keys, are rounded in ways of their own.
    if problem.rope is not None or problem.score != "dot":
        return errors
    for batch, head, query in _doubtful(errors):
        found, most = _found_and_most(problem, errors, (batch, head, query), precision, digits)
        if found > most:
            own_batch, own_head = problem.layout.place(batch, head)
            tolerance = replace(errors.tolerance, rms=most)
            stretch = Stretch(own_batch, own_head, (query, query + 1), found, tolerance)
            limits = _limits(problem, errors, query, precision, digits)
            return replace(errors, stretch=stretch, limits=limits)
    return errors


def _limits(
    problem: Problem, errors: Errors, query: int, precision: Precision, digits: Digits
) -> Array:
    """Return how large an error may be in a query's rows that are wrong; inf of all others.

    Beside a row that is wrong, all do not count as right that are further off than right ones are.
    """
    limits = np.full((*errors.error.shape[:3], 1), np.inf)
    rows = np.full(limits.shape[:2], query)
    for place in _worst(_shares(errors), rows, _MOST_HEADS):
        found, most = _found_and_most(problem, errors, place, precision, digits)
        if found > most / 2:
            limits[place] = most / 2
    return limits


def _doubtful(errors: Errors) -> list[tuple[int, int, int]]:
    """Return the row of each head with the largest errors for its numbers, worst first."""
    shares = _shares(errors)
    return _worst(shares, shares.argmax(axis=-1), _HEADS)


def _shares(errors: Errors) -> Array:
    """Return the errors of each row as a share of its numbers, (B, H, L)."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(_rms(errors.error) / _rms(errors.answer), posinf=0.0)


def _worst(shares: Array, rows: npt.NDArray[np.intp], count: int) -> list[tuple[int, int, int]]:
    """Return so many of the rows, one of each head (B, H), that have the largest shares."""
    largest = np.take_along_axis(shares, rows[..., None], axis=-1)[..., 0]
    worst = [np.unravel_index(i, largest.shape) for i in np.argsort(-largest, axis=None)]
    return [(int(b), int(h), int(rows[b, h])) for b, h in worst[:count] if largest[b, h] > 0]


def _found_and_most(
    problem: Problem,
    errors: Errors,
    place: tuple[int, int, int],
    precision: Precision,
    digits: Digits,
) -> tuple[float, float]:
    """Return the root mean square error of a row, and the largest that is no mistake of its own."""
    batch, head, query = place
    first = max(0, min(query - _BESIDE // 2, problem.shape[2] - _BESIDE))
    rows = slice(first, first + _BESIDE)
    part = problem.select(batch=batch, head=head, rows=(first, min(rows.stop, problem.shape[2])))
    rounded = _Rounded.of(part, precision)
    own = query - first
    if not rounded.known[own]:
        return 0.0, math.inf
    found = _rms(errors.error[batch, head, rows])
    printed = digits.absolute + digits.relative * _rms(rounded.context)
    expected = np.sqrt(rounded.squares()) + printed + _LEAST
    others = rounded.known & (np.arange(len(expected)) != own)
    usual = float(np.median((found / expected)[others])) if others.any() else 0.0
    most = math.hypot(expected[own], rounded.by_the_query(own))
    return float(found[own]), _FACTOR * max(1.0, usual) * most


class _Rounded(NamedTuple):
    """What roundings do to the contexts of a few queries of one head.

    Attributes
    ----------
    query, key, value, weights, context : ndarray
        (L, D), (S, D), (S, E), (L, S) and (L, E). Queries are scaled.
    share : float
        The root mean square of what all roundings of a number change, of the number.
    scores : ndarray (L, S)
        The root mean square of what they change in each score.
    sink : ndarray (L,)
        The same in the score of the sink, times the sink's weight.
    known : ndarray of bool (L,)
        Where these are small.
    """

    query: Array
    key: Array
    value: Array
    weights: Array
    context: Array
    share: float
    scores: Array
    sink: Array
    known: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, part: Problem, precision: Precision) -> _Rounded:
        """Solve the problem of these queries."""
        made = evaluate(recipe_of(part))
        sizes = _score_sizes(made)[0, 0]
        exact = {name: array[0, 0] for name, array in made.items()}
        query, key, value = (
            _finite(widen(array[0, 0], np.float64))
            for array in (part.query, part.key, np.asarray(part.value))
        )
        query = part.scale * query
        share = precision.eps * math.sqrt(_ROUNDINGS / 12)
        # Of keys each number is rounded by itself.
        of_keys = np.sqrt(np.square(query) @ np.square(key).T)
        scores = share * np.hypot(sizes, of_keys)
        score = exact["scores"]
        weighty = score > score.max(axis=-1, keepdims=True) - _LOW
        known = np.max(scores, where=weighty, initial=0, axis=-1) < _SMALL
        weights = exact["weights"]
        sink = np.zeros(len(query))
        if part.sinks is not None:
            own = share * np.abs(part.sinks.ravel())
            known &= own < _SMALL
            sink = own * (1 - weights.sum(axis=-1))
        known &= weights.any(axis=-1)
        return cls(query, key, value, weights, exact["context"], share, scores, sink, known)

    def squares(self) -> Array:
        """Return the mean squares of what independent roundings change in each row, (L,)."""
        # (v − c)² is made of products with v − m, which do not cancel, for the mean m.
        mean = self.value.mean(axis=0)
        value, context = self.value - mean, self.context - mean
        moved = np.square(self.weights * self.scores)
        by_scores = moved @ np.square(value) - 2 * context * (moved @ value)
        by_scores += moved.sum(axis=-1, keepdims=True) * np.square(context)
        terms = np.square(self.share * self.weights) + np.square(_LEAST * (self.weights > 0))
        by_terms = terms @ np.square(self.value) + np.square(self.share * self.context)
        by_sink = np.square(self.sink[:, None] * self.context)
        squares = np.maximum(by_scores, 0) + by_terms + by_sink
        return np.asarray(squares.mean(axis=-1))

    def by_the_query(self, row: int) -> float:
        """Return the root mean square of what roundings of a query's numbers change in its row."""
        weighted = self.weights[row][:, None] * self.key
        moved = self.query[row][:, None] * (weighted.T @ (self.value - self.context[row]))
        return self.share * math.sqrt(np.square(moved).sum(axis=0).mean())


def _score_sizes(exact: Outputs) -> Array:
    """Return how large the numbers are that each score is made of; 0 of hidden keys."""
    raw, capped, scores = (exact[name] for name in ("raw", "capped", "scores"))
    with np.errstate(invalid="ignore"):
        sizes = np.max(np.abs([raw, capped, scores, scores - capped]), axis=0)
    return np.where(np.isfinite(scores), sizes, 0)


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0)


def _rms(array: Array) -> Array:
    """Return the root mean squares of the finite numbers of each row."""
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt(np.square(_finite(array)).mean(axis=-1)))
