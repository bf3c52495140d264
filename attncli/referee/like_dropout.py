"""Whether errors are as large, direction by direction, as dropout of the weights makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attncli.referee.stages import shared

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from attncli.referee.case import Case

__all__ = ["like_dropout"]

Array = npt.NDArray[Any]
# Directions in which dropout moves a context much less are left to rounding errors.
_LEAST_VARIANCE, _BEYOND_ROUNDING = 1e-4, 10.0
# Each group of errors must be so many, and say the same number up to this factor.
_LEAST_COUNT, _GROUPS, _FACTOR = 100, 4, 1.35
# Any errors would look so if dropout moved contexts as far in one direction as in another.
_LEAST_RANGE = 2.0
# What is lost at random has nothing to do with what is right, or with what the next query loses.
_CORRELATED = 0.15
# Eigenvectors that take some tenths of a second: rows times columns cubed.
_MOST_WORK = 2**28
# However few columns: each takes 20 µs.
_MOST_ROWS = 2**12
# What nobody drops; errors of weights in few bits look like less.
_SMALLEST, _LARGEST = 0.045, 0.9


class Dropout(NamedTuple):
    """What was done to the weights.

    Attributes
    ----------
    share : float
        p, the probability with which one is lost.
    divided : bool
        Whether those that are left are divided by 1 − p.
    """

    share: float
    divided: bool


def like_dropout(cases: Sequence[Case]) -> Dropout | None:
    """Return the dropout of weights that explains how large the errors of contexts are.

    With more keys than columns, a context does not show its weights. But each error
    Σ_j (m_j / (1 − p) − 1) w_j v_j of dropout, m_j being 0 with probability p and 1 otherwise,
    has the covariance p / (1 − p) · Σ_j w_j² v_j v_jᵀ. Along the eigenvectors of that sum, in
    units of its eigenvalues, errors of dropout have the variance p / (1 − p): along the large
    ones as along the small ones, in the first queries as in the last. Hardly anything else does.

    Where nobody divides by 1 − p, p times the right context is missing, and the rest has the
    variance p · (1 − p).

    Parameters
    ----------
    cases : sequence of Case

    Returns
    -------
    Dropout or None
        None where the errors are not like that.

    References
    ----------
    Srivastava et al. 2014, "Dropout"; ``dropout_p`` of PyTorch's scaled_dot_product_attention.
    """
    shown = [case for case in cases if _shows_errors(case)]
    found = [errors for case in shown for errors in _errors(case) if errors[0].size]
    if not found:
        return None
    apart, right, variances, rows = (np.concatenate(parts) for parts in zip(*found, strict=True))
    together = float(apart @ right)
    sizes = float(np.linalg.norm(apart) * np.linalg.norm(right))
    divided = abs(together) <= _CORRELATED * sizes
    lost = 0.0 if divided else -together / float(right @ right)
    squares = np.square(apart + lost * right)
    variance = float(squares.mean())
    share = variance / (1 + variance) if divided else lost
    groups = [*_quarters(squares, variances), *_quarters(squares, rows)]
    expected = variance if divided else share * (1 - share)
    alike = all(
        len(group) >= _LEAST_COUNT and expected / _FACTOR <= group.mean() <= expected * _FACTOR
        for group in groups
    )
    low, high = np.quantile(variances, [0.25, 0.75])
    told = alike and high >= _LEAST_RANGE * low and _SMALLEST <= share <= _LARGEST
    return Dropout(share, divided) if told and not _repeat(shown, lost) else None


def _quarters(squares: Array, by: Array) -> list[Array]:
    return np.array_split(squares[np.argsort(by, kind="stable")], _GROUPS)


def _shows_errors(case: Case) -> bool:
    """Return whether a case holds a context, not projected, and the right weights."""
    known = "context" in case.files and {"context", "weights"} <= case.right.keys()
    if not known or case.recipe.problem.output is not None or not case.comparable:
        return False
    return bool(np.isfinite(_apart(case)).all())


def _apart(case: Case) -> Array:
    return case.canonical("context") - case.right["context"]


def _repeat(cases: Sequence[Case], lost: float) -> bool:
    """Return whether neighbouring queries have errors in one direction, as where keys are lost.

    Beside a share of the right context that all of them lost.
    """
    rests = [_apart(case) + lost * case.right["context"] for case in cases]
    pairs = [(each[:, :, :-1], each[:, :, 1:]) for each in rests]
    together = sum(float((one * other).sum()) for one, other in pairs)
    sizes = (np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1) for one, other in pairs)
    return abs(together) > _CORRELATED * sum(float(size.sum()) for size in sizes)


def _errors(case: Case) -> Iterator[tuple[Array, Array, Array, Array]]:
    """Yield, row by row, errors along directions in units of what dropout makes, and the rest.

    Namely the right context in the same units, the units squared, and the row's number.
    """
    apart, right, weights = _apart(case), case.right["context"], case.right["weights"]
    problem = case.recipe.problem
    values = shared(problem, np.asarray(problem.value))
    values = np.broadcast_to(values, (*apart.shape[:2], *values.shape[2:]))
    places = list(np.ndindex(apart.shape[:-1]))
    work = len(places) * apart.shape[-1] ** 3
    for place in places[:: 1 + max(work // _MOST_WORK, len(places) // _MOST_ROWS)]:
        moved = weights[place][:, None] * values[place[:2]]
        variances, directions = np.linalg.eigh(moved.T @ moved)
        least = max(
            _LEAST_VARIANCE * variances[-1], _BEYOND_ROUNDING * np.square(case.recipe.resolution)
        )
        kept = variances > least
        along = directions.T[kept] / np.sqrt(variances[kept, None])
        number = np.full(len(along), place[2])
        yield along @ apart[place], along @ right[place], variances[kept], number
